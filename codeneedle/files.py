"""Files written whole or not at all, told apart, and paths as a person writes them."""

import contextlib
import os
from pathlib import Path


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
