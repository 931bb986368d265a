"""Generation: long answers that the model writes under its own power."""
