"""
Which sweeps of this user wait for each other: the lock behind ``--wait``, and who
holds it.
"""

import contextlib
import os
import platform
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from codeneedle.system.files import cache_folder, holding_lock, read_regular
from codeneedle.text import escape_invisible


@contextlib.contextmanager
def occupying_machine(
    what: str, *, exclusive: bool, waiting: Callable[[str], object] | None
) -> Iterator[None]:
    """
    Compute in the block, beside other sweeps of this user, or without them.

    Where the cache folder has no locks, others are not noticed.

    Args:
        what: Run that computes, shown to sweeps that wait.
        exclusive: Whether no other sweep may compute meanwhile, as times are measured.
        waiting: Called with process and run of another sweep while it computes; sleeps
            for a moment. None does not wait.
    """
    # The cache folder may be shared with other hosts.
    path = cache_folder() / f"measuring-{platform.node() or 'here'}.lock"

    def wait() -> None:
        if waiting:
            waiting(_clean_notes_and_name_holder(path))

    # Not every system names the holders of a shared lock.
    note = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = holding_lock(path, waiting=waiting and wait, is_shared=not exclusive)
            stack.enter_context(lock)
        with contextlib.suppress(OSError):
            note.write_text(what, encoding="utf-8")
            stack.callback(note.unlink, missing_ok=True)
        yield


def _clean_notes_and_name_holder(path: Path) -> str:
    """Process and run of another sweep that computes; empty if unknown."""
    who = ""
    for note in path.parent.glob(f"{path.stem}.*-*"):
        pid = note.suffix[1:].partition("-")[0]
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if not psutil.pid_exists(int(pid)):  # it was killed
                note.unlink()
            elif run := read_regular(note):
                who = f"pid {pid}, {escape_invisible(run.decode(errors='replace'))}"
    return who
