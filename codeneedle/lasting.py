"""Streams of a command: progress may be lost, what was asked for may not."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class Lasting:
    """
    Writes to a stream as long as that can be written to, and to nothing afterwards.

    A terminal may be closed, the reader of a pipe go away, the disk of a log fill
    up: a sweep goes on all the same.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write *text*, if possible."""
        # ValueError: the stream is closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what is written, if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """
    Make stderr a `Lasting` one, for good, and see that stdout is written.

    Raises:
        OSError: If stdout cannot be written to the end.
    """
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", Lasting(sys.stderr))
    try:
        yield
    finally:
        if sys.stdout is not None:
            _flush(sys.stdout)


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        # Or else the interpreter tries again at its end, and complains itself.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise
