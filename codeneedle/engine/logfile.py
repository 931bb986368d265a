"""A server's log on disk, of which only the ends are ever read."""

import os
from pathlib import Path

from codeneedle.childlog import END_BYTES, OMISSION

_FAREWELL = b"cleaning up before exit"
_LAST_BYTES = 16 << 10


def bids_farewell(path: Path) -> bool:
    """Whether a server's log says, near its end, that it was told to end."""
    try:
        with path.open("rb") as file:
            file.seek(-min(_LAST_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return _FAREWELL in file.read()
    except OSError:
        return False


def read_log(path: Path, *, end_bytes: int = END_BYTES) -> str:
    """The first and last *end_bytes* of a log; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(end_bytes)
            rest = max(0, size - len(text))
            if rest > end_bytes:
                file.seek(size - end_bytes)
                text += OMISSION
            text += file.read(end_bytes) if rest else b""
    except OSError:
        return ""
    return text.decode(errors="replace")
