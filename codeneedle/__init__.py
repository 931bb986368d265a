"""
What a quantized KV cache costs, measured on a real llama-server.

The command line is `codeneedle`; in Python, `load` reads what a sweep stored.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codeneedle.api import LoadedRun, load
    from codeneedle.cache_types import Pair

__all__ = ["LoadedRun", "Pair", "__version__", "load"]

__version__: str

_PLACES = {
    "LoadedRun": "codeneedle.api",
    "Pair": "codeneedle.cache_types",
    "load": "codeneedle.api",
}


def __dir__() -> list[str]:
    """The public names, also those that were not imported yet."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """
    The public names, imported on first use, and the version.

    The command line imports this module, too: importlib.metadata alone reads mail
    headers and zip files for 25 ms, a fifth of the time that ``--help`` takes.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("codeneedle")
    if name not in _PLACES:
        raise AttributeError(f"module 'codeneedle' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
