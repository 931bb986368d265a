"""
Files and folders: atomic writes, locks, unreadable files moved
aside, the cache folder.
"""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import IO

import platformdirs

from codeneedle.errors import MachineError, RequestError


def expanded(path: str | Path) -> Path:
    """*path* with its ``~`` read; as it stands where nobody has that home."""
    # Path.expanduser would raise there.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def leads_somewhere(path: Path) -> bool:
    """Whether *path* exists; what can be no name does not."""
    # Path.exists would raise for a name that is too long.
    return os.path.exists(path)  # noqa: PTH110


def identity(path: Path) -> str:
    """
    What changes when the file at *path* is replaced or written to.

    Its place, device and inode, its size, and the times of its last change and of
    that of its inode. The latter cannot be set, not even by who can set the other;
    but a file may be renamed or linked to without a change of its contents.

    What remains unseen: a change of equal length within one tick of the clock, a
    few milliseconds; one on a file system that keeps no such times; and a disk that
    reads back something else than was written.

    Raises:
        OSError: If there is no such file.
    """
    at = path.stat()
    facts = (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    return " ".join(map(str, (path.resolve(), *facts)))


def write_whole(path: Path, data: bytes) -> None:
    """
    Put *data* at *path*, in one step for whoever looks; folders are made.

    A write that fails, or a machine that stops in the middle of one, leaves what
    was there before.

    Raises:
        OSError: If the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        # Only tried: what went wrong first is what is to be told.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """Have the names in *folder* outlive a power cut, where its disk can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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


VARIABLE = "CODENEEDLE_CACHE"
"""Environment variable that names another folder."""


def cache_folder() -> Path:
    """The folder, which may not exist yet; everything in it can be made again."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return expanded(chosen).absolute()
    return platformdirs.user_cache_path("codeneedle", appauthor=False)
