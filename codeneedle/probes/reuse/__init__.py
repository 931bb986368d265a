"""Reuse: the same question with a cold cache, and with one that is used again."""
