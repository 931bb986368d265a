"""Engines: each serves a model with a chosen KV cache."""

from collections.abc import Mapping

from msgspec import Struct

from codeneedle.engines.mlx.settings import NAME as MLX
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.engines.openai.settings import (
    COMMAND,
    ENDPOINT,
    CommandSettings,
    EndpointSettings,
)

SETTINGS: Mapping[str, type[Struct]] = {
    MLX: MlxSettings,
    COMMAND: CommandSettings,
    ENDPOINT: EndpointSettings,
}
"""
The table of each engine in a sweep file, by its name.

All fields have a default; the metadata of a field names its option.
"""
