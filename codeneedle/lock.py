"""The lock of a run folder, which dies with whoever holds it."""

import fcntl
import os
from pathlib import Path
from typing import IO

from codeneedle.errors import MachineError, RequestError

LOCK = "lock"
"""The file that is locked; it stays where it is, and is empty."""


class FolderBusy(RequestError):  # noqa: N818 - named after the fact
    """Another sweep writes to this run folder right now."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"another sweep is running in {folder}",
            hint="Wait for it, or choose another folder with --out.",
        )


class FolderLost(MachineError):  # noqa: N818 - named after the fact
    """The run folder was removed or moved, and its lock with it."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"{folder} was removed or moved while the sweep ran in it",
            hint="Leave it where it is, and run the same command again.",
        )


def opened(path: Path) -> IO[bytes]:
    """
    The file to lock, made if need be.

    Nothing is cut off, should the name lead to another file, nor waited for,
    should it be a pipe.

    Raises:
        OSError: If the disk refuses.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)


def hold(file: IO[bytes], *, folder: Path) -> None:
    """
    Lock *file* until it is closed.

    Raises:
        FolderBusy: If another sweep holds it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FolderBusy(folder=folder) from error
    except OSError:
        # A network share without locks: better unlocked than unable.
        return


def refuse_lost(file: IO[bytes], *, folder: Path) -> None:
    """
    Stop if *file* is no longer the lock of *folder*.

    Raises:
        FolderLost: If it was taken away: another sweep may be there by now.
    """
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat())
    except OSError:
        is_there = False
    if not is_there:
        raise FolderLost(folder=folder)
