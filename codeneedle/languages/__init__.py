"""Languages: each finds the functions of one kind of source text."""
