"""What a system refuses where nobody counts on it: the last stop before a traceback."""

import errno
import os
import re
from collections.abc import Iterator

from codeneedle.errors import MachineError

_MEMORY_HINT = "Close other programs, or raise the limit: ulimit -v unlimited"
_DISK_HINT = "Free some space, then run the same command again."
_PROCESS_HINT = "Close other programs, or raise the limit: ulimit -u"

HINTS: dict[int, str] = {
    errno.ENOMEM: _MEMORY_HINT,
    errno.EMFILE: "Raise the limit of open files: ulimit -n 1024",
    errno.ENFILE: "The whole system has too many open files: close other programs.",
    errno.ENOSPC: _DISK_HINT,
    errno.EDQUOT: _DISK_HINT,
    errno.EFBIG: "Raise the limit of file sizes: ulimit -f unlimited",
    errno.EROFS: "Choose a folder that can be written to.",
    errno.EIO: "Is the disk failing, or a network share gone?",
    errno.ESTALE: "Is a network share gone?",
    errno.EAGAIN: _PROCESS_HINT,
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
"""What to do about each error of the system that is no mistake of ours."""

_NO_MEMORY = re.compile("Cannot allocate memory|failed to map segment")
"""What the loader of libraries says."""


class SystemRefuses(MachineError):  # noqa: N818 - named after the fact
    """Memory, files, processes or disk ran out at a place where they rarely do."""

    def __init__(self, *, number: int, file: str | None = None) -> None:
        where = f": {file}" if file else ""
        super().__init__(
            f"the system refuses: {os.strerror(number)}{where}", hint=HINTS[number]
        )


def refusal(error: BaseException) -> SystemRefuses | None:
    """
    What *error* means to a person, if the system is to blame for it; else None.

    Looks at what it was raised from, too: libraries wrap such errors in their own.
    """
    for each in _chain(error):
        number = _number(each)
        if number in HINTS:
            file = getattr(each, "filename", None)
            return SystemRefuses(number=number, file=str(file) if file else None)
    return None


def hint_for(error: BaseException) -> str:
    """What to do about *error*, if the system is to blame for it; else empty."""
    refused = refusal(error)
    return refused.hint if refused else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _number(error: BaseException) -> int:
    """Number of the system's error; 0 if it is another one."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno or 0
    # The loader of libraries and the starter of threads have no classes for it.
    if isinstance(error, ImportError) and _NO_MEMORY.search(str(error)):
        return errno.ENOMEM
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return errno.EAGAIN
    return 0
