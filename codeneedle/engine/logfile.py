"""A server's log on disk, of which only the ends are ever read."""

import os
from pathlib import Path

from codeneedle.childlog import END_BYTES, OMISSION


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
