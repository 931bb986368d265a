"""The built-in model as MLX takes it: a folder."""

from pathlib import Path

from gguf_to_mlx import converted

from codeneedle.engines.mlx.folder import read_folder
from codeneedle.models.pretrained import checked_built_in_path
from codeneedle.models.weights import Weights, read_weights_from_headers


def nano_folder() -> Path:
    """The folder, made once in the cache folder."""
    return converted(read_weights_from_headers(checked_built_in_path()))


def nano_weights() -> Weights:
    """Its facts."""
    return read_folder(nano_folder())
