"""A worker: a program that does one job on all that it is sent.

It reads from stdin and answers on stdout: each time the length of a pickle, in 8
bytes, and the pickle. The first is the job, a function; all others are what to call
it with. It ends when stdin does: also when whoever sends is killed.
"""

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")
_SIGNAL_AT_PARENTS_DEATH = 1
"""``PR_SET_PDEATHSIG`` of ``prctl(2)``."""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that came to its end, with what it returned."""

    answer: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """
    A job that raised.

    Attributes:
        traceback: Where and what, as text: not every error can be sent.
        is_memory: Whether it needs more memory than it may have.
    """

    traceback: str
    is_memory: bool


def send(pipe: BinaryIO, message: object) -> None:
    """
    Write *message* to *pipe*.

    Raises:
        OSError: If nobody reads it any more.
    """
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def received(pipe: BinaryIO) -> Any:
    """
    The next message from *pipe*, by ourselves: never from elsewhere.

    Raises:
        EOFError: If there is none, or not all of it.
    """
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)  # noqa: S301 - both ends are ours


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Do the job on all that comes, until nobody sends or listens any more."""
    with contextlib.suppress(EOFError, OSError):
        job = received(source)
        while True:
            item = received(source)
            send(sink, _done(job, item))


def _done(job: Callable[[Any], object], item: Any) -> Done | Failed:
    try:
        return Done(job(item))
    except Exception as error:  # noqa: BLE001 - it is raised where the job was given
        return Failed(traceback.format_exc(), isinstance(error, MemoryError))


def _end_with(parent: int) -> None:
    """Be killed when *parent* is, in the middle of a job too; on Linux only."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before we asked for that
            sys.exit(1)


def _limit_memory(limit_bytes: int) -> None:
    """Make what takes more than *limit_bytes* an error of ours, not of the machine."""
    # macOS refuses; there the machine swaps.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def main() -> None:
    """Entry point: ``python -m codeneedle.corpora.worker PARENT MEMORY_BYTES``."""
    parent, memory_bytes = map(int, sys.argv[1:])
    _end_with(parent)
    # To be asked to leave is to leave: there is nothing to put away.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _limit_memory(memory_bytes)
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    # By its name, not as __main__: what it sends must be found where it arrives.

    main()
