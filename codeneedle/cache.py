"""Where codeneedle keeps what it can make again: the user's cache folder."""

import os
from pathlib import Path

import platformdirs

VARIABLE = "CODENEEDLE_CACHE"
"""Environment variable that names another folder."""


def cache_folder() -> Path:
    """The folder, which may not exist yet; everything in it can be made again."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("codeneedle", appauthor=False)
