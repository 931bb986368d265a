"""MLX as an engine: quantized KV caches of our own, served by a child process."""
