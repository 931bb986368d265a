"""Reuse: compares answers from a cold cache with answers from a reused cache."""
