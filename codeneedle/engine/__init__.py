"""Engines: each serves a model with the cache types of a cell."""
