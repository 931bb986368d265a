"""Scoring of answers against the expected lines."""
