"""The engine protocol: a way to serve one model with a chosen KV cache."""
