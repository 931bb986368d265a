"""What a quantized KV cache costs, measured on a real llama-server."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("codeneedle")
