"""
The options of the MLX engine: group size, first tokens that stay unquantized, bounded
caches, rope factor, type of arithmetic.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from codeneedle.errors import ToolMissing

NAME = "mlx"

DEFAULT_GROUP_SIZE = 64

LEAST_KV_SIZE = 8
"""Of a cache of bounded size, in tokens: four are kept, and some must rotate."""

_RopeFactor = Annotated[float, Meta(ge=1.0, le=1024.0)]
_KvSize = Annotated[int, Meta(ge=LEAST_KV_SIZE)]


class MlxSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose of caches and arithmetic."""

    group_size: Annotated[
        tuple[int, ...],
        Meta(
            description="Values that share a scale, for --engine mlx: 32, 64 or 128; "
            "two numbers for K and V.",
            extra={
                "option": "--kv-group-size",
                "metavar": "LIST",
                "default": str(DEFAULT_GROUP_SIZE),
            },
        ),
    ] = (DEFAULT_GROUP_SIZE,)
    quantized_kv_start: Annotated[
        int,
        Meta(
            ge=0,
            description="Tokens of a context that stay unquantized at first.",
            extra={"option": "--quantized-kv-start"},
        ),
    ] = 0
    max_kv_size: Annotated[
        _KvSize | None,
        Meta(
            description="Tokens that a cache holds: the first four and the last.",
            extra={"option": "--max-kv-size", "default": "all"},
        ),
    ] = None
    rope_factor: Annotated[
        _RopeFactor | None,
        Meta(
            description="Stretches positions, for contexts beyond the trained one: the "
            "factor of the model's own rope scaling, or of YaRN where it has none.",
            extra={"option": "--rope-factor", "default": "the model's"},
        ),
    ] = None
    compute: Annotated[
        Literal["auto", "float32", "model"],
        Meta(
            description="Type that MLX computes with; auto is float32 on a CPU, and "
            "that of the weights on a GPU.",
            extra={"option": "--compute", "metavar": "TYPE"},
        ),
    ] = "auto"

    @property
    def group_sizes(self) -> tuple[int, int]:
        """Group sizes of K and of V."""
        return self.group_size[0], self.group_size[-1]


def missing_package_error(package: str) -> ToolMissing:
    """The error for a package that the engine needs and that is not installed."""
    hint = "Install it: pip install 'codeneedle[mlx]'"
    return ToolMissing(tool=package, reason="is not installed", hint=hint)


def has_predictable_cache_size(arguments: Sequence[str]) -> bool:
    """
    Whether a cache takes what is predicted: groups of `DEFAULT_GROUP_SIZE`, no limit.

    Args:
        arguments: Of an engine's identity, or stored in a setup; those of other engines
            have no such options.
    """
    stated = dict(argument.partition(" ")[::2] for argument in arguments)
    usual = str(DEFAULT_GROUP_SIZE)
    return (
        "--max-kv-size" not in stated and stated.get("--kv-group-size", usual) == usual
    )
