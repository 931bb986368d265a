"""
Files and folders: whole files, new files that follow no link, locks, names that are
free, the cache folder and what is made in it, free disk.
"""

import contextlib
import errno
import fcntl
import os
import platform
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec
import platformdirs
import psutil

from codeneedle.errors import BadInput, FolderUnusable, SystemRefuses
from codeneedle.system.secrets import mask_text
from codeneedle.text import escape_invisible, size_text

HOLDER_BYTES = 200
"""Longest text of a lock file that is read."""

CACHE_VARIABLE = "CODENEEDLE_CACHE"
"""Environment variable that names another cache folder."""

_Layout = TypeVar("_Layout")


def cache_folder() -> Path:
    """The cache folder, which may not exist; all of its contents can be made again."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return expand_home(chosen).absolute()
    return platformdirs.user_cache_path("codeneedle", appauthor=False)


def cache_unusable_error(folder: Path, reason: str) -> FolderUnusable:
    """The error for *folder*, below the cache folder, that cannot be written to."""
    hint = f"Make room, or choose another folder: {CACHE_VARIABLE}=/some/folder."
    return FolderUnusable(folder=folder, reason=reason, hint=hint)


def expand_home(path: str | Path) -> Path:
    """*path* with ``~`` replaced by the home folder; unchanged if there is none."""
    # Path.expanduser would raise there.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def exists(path: Path) -> bool:
    """Whether *path* exists; False for what cannot be a path, such as a long name."""
    # Path.exists would raise for a name that is too long.
    return os.path.exists(path)  # noqa: PTH110


def refuse_unreadable(*folders: Path) -> None:
    """
    Stop if one of *folders*, or a folder that leads to it, must not be read.

    What is in it looks as if it were not there.

    Raises:
        SystemRefuses: Naming the first.
    """
    for folder in folders:
        for above in reversed(folder.absolute().parents):
            _refuse_folder_without_rights(above, os.X_OK)
        _refuse_folder_without_rights(folder, os.R_OK | os.X_OK)


def _refuse_folder_without_rights(folder: Path, rights: int) -> None:
    if os.path.isdir(folder) and not os.access(folder, rights):  # noqa: PTH112 - any name
        raise SystemRefuses(number=errno.EACCES, file=str(folder))


def nearest_existing_path(path: Path) -> Path:
    """*path*, absolute, or the nearest folder above it that exists."""
    absolute = expand_home(path).absolute()
    return next(place for place in (absolute, *absolute.parents) if exists(place))


def file_state_text(path: Path) -> str:
    """
    A text that changes when the file at *path* is replaced or written to.

    It has the resolved path, device, inode, size, and the times of the last change of
    contents and of inode (which no program can set). Renaming the file or linking to it
    changes the latter, too.

    It misses a change of equal length within one tick of the clock (milliseconds), on a
    file system that stores no such times, or by a failing disk.

    Raises:
        OSError: If there is no such file.
    """
    at = path.stat()
    facts = (at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)
    return " ".join(map(str, (path.resolve(), *facts)))


def reason_of(error: OSError) -> str:
    """The reason of *error*, without number and path."""
    return error.strerror or str(error)


def refuse_linked_folder(path: Path) -> Path:
    """
    *path*, below a folder of the user's, which codeneedle itself made.

    Raises:
        BadInput: If it is a link: what is behind it is somebody else's.
    """
    if path.is_symlink():
        raise BadInput(
            source=path,
            reason="it is a link, and none is entered in a run folder",
            hint="Put the folder that it leads to in its place.",
        )
    return path


def make_unlinked_folder(folder: Path) -> Path:
    """
    Make *folder*, if it is not there yet, and return it.

    Raises:
        BadInput: If it is a link.
        FolderUnusable: If it cannot be made.
    """
    try:
        refuse_linked_folder(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=reason_of(error)) from error
    return folder


def make_or_empty_folder(folder: Path, *, mode: int = 0o777) -> Path:
    """
    The absolute path of *folder*, which is made, or emptied.

    A link or a file in its place is removed.

    Raises:
        BadInput: If the folder that it is in is a link.
        FolderUnusable: If that fails.
    """
    try:
        refuse_linked_folder(folder.parent)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            remove_folder(folder)
        folder.mkdir(mode=mode, parents=True)
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=reason_of(error)) from error
    return folder.absolute()


def remove_folder(folder: Path) -> None:
    """
    Remove *folder* with all in it, of any depth; links in it are not followed.

    `shutil.rmtree` of Python 3.11 ends at 1,000 folders in one another. Here each is
    moved up before it is read.

    Raises:
        OSError: If something cannot be removed.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    top = os.open(folder, flags)
    try:
        left, number = _remove_files_move_folders(top, top, 0)
        while left:
            name = left.pop()
            inner = os.open(name, flags, dir_fd=top)
            try:
                os.fchmod(inner, 0o700)
                found, number = _remove_files_move_folders(inner, top, number)
            finally:
                os.close(inner)
            left += found
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _remove_files_move_folders(
    folder: int, top: int, number: int
) -> tuple[list[str], int]:
    """Remove files of *folder*, move its folders to *top*; their names, and a count."""
    with os.scandir(folder) as entries:
        found = list(entries)
    moved = []
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            number += 1
            name = f".removed-{number}-{secrets.token_hex(4)}"
            os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(name)
        else:
            os.unlink(entry.name, dir_fd=folder)
    return moved, number


def replace_with_empty_file(path: Path) -> BinaryIO:
    """
    A new, empty file at *path*, open for appending; its folder must exist.

    What had the name before is removed: a link itself, not the file that it leads to,
    and a pipe, which would block whoever opens it.

    Raises:
        OSError: If it cannot be created, or a folder has the name.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags | os.O_CLOEXEC, 0o666), "ab")


def write_atomically(path: Path, data: bytes, *, is_lasting: bool = True) -> None:
    """
    Replace the file at *path* in one step; missing folders are made.

    A reader sees the previous contents or *data*, never a part of it, even if the write
    fails or the machine loses power. A link at *path* is replaced, not followed.

    Args:
        path: Of the file.
        data: All of it.
        is_lasting: Whether to wait for the disk, some milliseconds. Without, a power
            cut may leave less than *data* until `os.sync`.

    Raises:
        OSError: If it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name: another process may write the same file.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with replace_with_empty_file(draft) as file:
            file.write(data)
            file.flush()
            if is_lasting:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    if is_lasting:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make renames in *folder* survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_regular(path: Path) -> BinaryIO:
    """
    The file at *path*, for reading.

    Raises:
        OSError: If it cannot be read, or is not a regular file: opening a pipe would
            block, and a device may have no end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(None, "it is not a regular file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path) -> bytes | None:
    """
    The contents of *path*; None if nothing is there.

    Raises:
        OSError: As `open_regular` does.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


def masked_log_tail(path: Path, limit_bytes: int) -> str:
    """
    The text of the last *limit_bytes* of a log; empty if it cannot be read.

    Known secrets are masked here, as the lines of one that is broken tell it, too.
    """
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
            return mask_text(file.read(limit_bytes).decode(errors="replace"))
    except OSError:
        return ""


def file_size_or_zero(path: Path) -> int:
    """The size of a file in bytes; 0 if it is not there, or may not be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_json_or_none(path: Path, layout: type[_Layout]) -> _Layout | None:
    """The note at *path*; None if it cannot be read, or is no *layout*."""
    try:
        return msgspec.json.decode(read_regular(path) or b"", type=layout)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def write_json_if_possible(path: Path, note: object) -> None:
    """Write *note* as JSON if the disk allows it; nothing depends on it."""
    with contextlib.suppress(OSError):
        write_atomically(path, msgspec.json.encode(note))


def move_aside(path: Path, suffix: str) -> Path:
    """
    Rename *path*, whatever it is, to make room for another file.

    Args:
        path: A file, a folder or a link; a link is not followed.
        suffix: Added to the name behind a dot: ``x.SUFFIX``, then ``x.SUFFIX-2``.

    Returns:
        Its new path.

    Raises:
        OSError: If it cannot be renamed.
    """
    return path.rename(unused_name(path.with_name(f"{path.name}.{suffix}")))


def unused_name(path: Path) -> Path:
    """*path*, or the first of ``path-2``, ``path-3`` ... that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    # Not exists(): a dangling link takes the name, too.
    return next(
        candidate
        for candidate in chain([path], numbered)
        if not os.path.lexists(candidate)
    )


class Lock:
    """A lock that this process holds."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def is_lost(self) -> bool:
        """Whether its file was removed, moved or replaced: another may be locked."""
        try:
            there = self._path.stat()
        except OSError:
            return True
        return not os.path.samestat(os.fstat(self._file.fileno()), there)


def nap() -> None:
    """Sleep for a moment, after which a lock may be free."""
    time.sleep(0.1)


@contextlib.contextmanager
def holding_lock(
    path: Path,
    *,
    waiting: Callable[[], object] | None = None,
    is_shared: bool = False,
) -> Iterator[Lock]:
    """
    Hold a lock for the length of the block.

    The system releases it when this process dies. On a file system without locks,
    such as some network shares, nothing is locked.

    Args:
        path: The lock file; it names the `lock_holder` of a lock that is not shared.
        waiting: Called while another process holds the lock; sleeps for a moment. None
            does not wait.
        is_shared: Whether other processes may hold a shared lock meanwhile.

    Raises:
        BlockingIOError: If another process holds it, and *waiting* is None.
        OSError: If the file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is None:
                    raise
                waiting()
                continue
            except OSError:
                pass  # a file system without locks
            break
        with contextlib.suppress(OSError):  # a full disk, or no file
            file.truncate(0)
            if not is_shared:
                file.write(f"pid {os.getpid()} on {platform.node()}".encode())
        yield Lock(path, file)


def lock_holder(path: Path) -> str:
    """The process that holds the lock *path*: ``pid 123 on host``; may be empty."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        return escape_invisible(file.read(HOLDER_BYTES).decode(errors="replace"))
    return ""


@contextlib.contextmanager
def temporary_private_folder() -> Iterator[Path]:
    """
    A new folder that this user alone may read, for the length of the block.

    For what may hold text that is stored nowhere. Of a process that got SIGKILL it is
    left, until the next command calls `remove_private_folders`.

    Raises:
        FolderUnusable: If it cannot be made.
    """
    above = _private_folders_root()
    with contextlib.ExitStack() as stack:
        try:
            above.mkdir(parents=True, exist_ok=True)
            # A lock of all of them: what is made before it is held could be removed.
            lock = holding_lock(above / "lock", waiting=nap, is_shared=True)
            stack.enter_context(lock)
            folder = Path(tempfile.mkdtemp(dir=above))
        except OSError as error:
            raise cache_unusable_error(above, reason_of(error)) from error
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def remove_private_folders() -> None:
    """Remove each `temporary_private_folder`, unless a process is using one."""
    above = _private_folders_root()
    with (
        contextlib.suppress(OSError),  # also of a lock that another process holds
        holding_lock(above / "lock"),
    ):
        for path in above.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def _private_folders_root() -> Path:
    return cache_folder() / "private"


def free_disk_bytes(folder: Path) -> int:
    """Free space where *folder* is or would be made."""
    return psutil.disk_usage(str(nearest_existing_path(folder))).free


def ensure_whole_folder(
    folder: Path,
    make: Callable[[Path], Path],
    *,
    is_whole: Callable[[], bool],
    needed_bytes: int = 0,
    waiting: Callable[[], object] = nap,
) -> Path:
    """
    *folder*, below the cache folder, made unless it is whole; all of it or nothing.

    A second process waits for the first. What a process that got SIGKILL left is
    removed by the next one.

    Args:
        folder: Its place once *make* has returned.
        make: Takes an empty folder beside it, which is removed afterwards, and returns
            the folder in there that is kept.
        is_whole: Whether *folder* exists with all of its contents.
        needed_bytes: Disk space that *make* takes.
        waiting: Called while another process makes it; sleeps for a moment.

    Raises:
        FolderUnusable: If it cannot be written, or the disk is too full.
    """
    prefix = f"{folder.name}.draft-"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with holding_lock(folder.with_name(f"{folder.name}.lock"), waiting=waiting):
            if is_whole():
                return folder
            for stale in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(stale, ignore_errors=True)
            free_bytes = free_disk_bytes(folder)
            if free_bytes < needed_bytes:
                free, needed = size_text(free_bytes), size_text(needed_bytes)
                reason = f"only {free} are free, {needed} are needed for a while"
                raise cache_unusable_error(folder.parent, reason)
            with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as draft:
                made = make(Path(draft))
                # Else a power cut may leave the new name with empty files.
                os.sync()
                shutil.rmtree(folder, ignore_errors=True)
                return made.rename(folder)
    except OSError as error:
        raise cache_unusable_error(folder.parent, reason_of(error)) from error
