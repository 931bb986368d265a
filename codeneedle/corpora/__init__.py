"""Corpora: texts, and the functions asked for in them."""
