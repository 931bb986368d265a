"""Retrieval: questions on made texts, of a difficulty that the reference sets."""
