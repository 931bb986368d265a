"""A pair in the words of ``mlx_lm.server``, which has one width for K and V."""

import re
import shlex
from collections.abc import Sequence

from codeneedle.cache_types import Pair

_QUANTIZED = re.compile(r"kv(?P<bits>\d)")
_UNSAID = ("--rope-factor", "--max-kv-size")
"""Options of the engine that change what is computed, and that it has not."""

_SHARED = ("--kv-group-size", "--quantized-kv-start")
"""Options of the engine for quantized caches, which it has, too."""


def mlx_lm_arguments_or_empty(
    pair: Pair, model: str, arguments: Sequence[str]
) -> list[str]:
    """
    The arguments of ``mlx_lm.server``; empty where it has none.

    Args:
        pair: What it is to run.
        model: A folder, or a name of Hugging Face.
        arguments: Those of the engine, each with its value.
    """
    match = _QUANTIZED.fullmatch(pair.k)
    shared = [argument for argument in arguments if argument.startswith(_SHARED)]
    is_one = pair.k == pair.v and not any("," in argument for argument in shared)
    if _unsupported_argument(arguments) or not is_one or not (match or pair.k == "f16"):
        return []
    quantized = [f"--kv-bits {match['bits']}", *shared] if match else []
    words = (word for argument in quantized for word in argument.split())
    return ["--model", model, *words]


def _unsupported_argument(arguments: Sequence[str]) -> str:
    """The first of *arguments* that it has not, with its value; empty without one."""
    found = (argument for argument in arguments if argument.startswith(_UNSAID))
    return next(found, "")


def mlx_lm_command_lines(pair: Pair, model: str, arguments: Sequence[str]) -> list[str]:
    """The command, or a comment that says why there is none."""
    words = mlx_lm_arguments_or_empty(pair, model, arguments)
    if words:
        return [shlex.join(["mlx_lm.server", *words])]
    if argument := _unsupported_argument(arguments):
        return [f"# mlx_lm.server has no {argument}, which it was measured with"]
    return [f"# mlx_lm.server has one width for K and V: no K {pair.k}, V {pair.v}"]
