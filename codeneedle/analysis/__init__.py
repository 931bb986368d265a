"""From records to numbers: frames, metrics, statistics."""
