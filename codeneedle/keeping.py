"""What stands where a file of ours should be: read, or put aside; never overwritten."""

import os
import stat
from pathlib import Path

_ASIDE = "damaged"
"""Suffix of what something else takes the place of."""


def contents(path: Path) -> bytes | None:
    """
    What is in *path*; None if nothing is there.

    Raises:
        OSError: If it cannot be read, or is no regular file: a pipe has no end.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(None, "it is no regular file")
        return path.read_bytes()
    except FileNotFoundError:
        return None


def put_aside(path: Path) -> Path:
    """
    Rename *path*, whatever it is, so that something else can take its place.

    Returns:
        What it is called from now on; nothing had that name.

    Raises:
        OSError: If the disk refuses.
    """
    aside = path.with_name(f"{path.name}.{_ASIDE}")
    number = 1
    # Not exists(): a link that leads nowhere is in the way, too.
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.{_ASIDE}-{number}")
    return path.rename(aside)


def why(error: OSError) -> str:
    """The reason of *error*, without number and path."""
    return error.strerror or str(error)
