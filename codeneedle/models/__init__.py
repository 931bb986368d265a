"""Model files, and what can be computed from their headers."""
