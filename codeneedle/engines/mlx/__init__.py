"""The MLX engine."""
