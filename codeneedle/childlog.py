"""The log of a child: the child writes it without asking, we see that it has an end."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from codeneedle.errors import MachineError

ENDED = "codeneedle: ended, as it has written more than"
"""Begins the line that we write ourselves into a log that had no end."""

LIMIT_BYTES = 256 << 20
"""A child that has written more is ended: a start takes 20 KB, a sweep some MB."""

END_BYTES = 1 << 20
"""What is worth reading of either end, and kept of a log that is far longer."""

LOOK_S = 0.25
"""Between looks at its length; nobody writes the rest of a disk within one."""

OMISSION = b"\n[...]\n"
"""Stands for what was between the ends."""


class Writer(Protocol):
    """What is asked of a child here; `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """How it ended; None as long as it lives."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it lives."""


class NoLog(MachineError):  # noqa: N818 - named after the fact
    """The output of a child cannot be kept."""

    def __init__(self, *, log: Path, reason: str) -> None:
        super().__init__(
            f"{log} cannot be written: {reason}",
            hint="Is the disk full, or the folder gone or read-only?",
        )


@contextlib.contextmanager
def opened(log: Path) -> Iterator[BinaryIO]:
    """
    *log*, emptied, for a child to write to within the block; shortened after it.

    Raises:
        NoLog: If it cannot be written.
    """
    try:
        log.write_bytes(b"")
        # To its end: what we add must not be written over by the child.
        output = log.open("ab")
    except OSError as error:
        raise NoLog(log=log, reason=error.strerror or str(error)) from error
    try:
        with output:
            yield output
    finally:
        with contextlib.suppress(OSError):
            _shorten(log)


@contextlib.contextmanager
def bounded(child: Writer, log: Path) -> Iterator[None]:
    """End *child* should it write more than `LIMIT_BYTES` into *log* in the block."""
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(child, log, is_over), daemon=True)
    with contextlib.suppress(RuntimeError):  # a machine that has no thread to spare
        watch.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(child: Writer, log: Path, is_over: threading.Event) -> None:
    while not is_over.wait(LOOK_S):
        if _size(log) > LIMIT_BYTES and child.poll() is None:
            _end(child, log)
            return


def _end(child: Writer, log: Path) -> None:
    # Frozen first, so that the line is among the last, and there when it is dead.
    child.send_signal(signal.SIGSTOP)
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(f"\n{ENDED} {LIMIT_BYTES >> 20} MiB here\n".encode())
    child.send_signal(signal.SIGKILL)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _shorten(log: Path) -> None:
    """Keep the ends of a long log, in place: the disk may be full."""
    with log.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * END_BYTES + len(OMISSION):
            return
        file.seek(size - END_BYTES)
        end = file.read(END_BYTES)
        file.seek(END_BYTES)
        file.write(OMISSION + end)
        file.truncate()
