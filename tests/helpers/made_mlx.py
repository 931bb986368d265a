"""The built-in model as MLX takes it: a folder."""

from pathlib import Path

from gguf_to_mlx import converted

from codeneedle.engines.mlx.folder import read_folder
from codeneedle.models.pretrained import built_in_model
from codeneedle.models.weights import Weights, read_header


def nano_folder() -> Path:
    """The folder, made once in the cache folder."""
    return converted(read_header(built_in_model()))


def nano_weights() -> Weights:
    """Its facts."""
    return read_folder(nano_folder())
