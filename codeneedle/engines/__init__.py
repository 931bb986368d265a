"""Engines: each serves a model with a chosen KV cache."""
