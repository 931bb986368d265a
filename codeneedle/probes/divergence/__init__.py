"""Divergence: next-token distributions compared with those of the reference."""
