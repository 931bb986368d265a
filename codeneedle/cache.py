"""Where codeneedle keeps what it can make again: the user's cache folder."""

import os
from pathlib import Path

import platformdirs

from codeneedle.files import expanded

VARIABLE = "CODENEEDLE_CACHE"
"""Environment variable that names another folder."""


def cache_folder() -> Path:
    """The folder, which may not exist yet; everything in it can be made again."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return expanded(chosen).absolute()
    return platformdirs.user_cache_path("codeneedle", appauthor=False)
