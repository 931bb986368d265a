"""Corpora: texts, and the functions in them that are needles."""
