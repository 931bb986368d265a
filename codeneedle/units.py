"""Numbers as people read them: durations, sizes, counts."""

import re

_KIB = 1024


def duration(seconds: float) -> str:
    """``8.2 s``, ``3:07``, ``1:02:03`` or ``2 d 4 h``."""
    if round(seconds, 1) < 60:  # noqa: PLR2004 - a minute, as it is printed
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:  # noqa: PLR2004 - two days
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(count: float) -> str:
    """Bytes as ``512 B``, ``1.7 MiB`` or ``15.9 GiB``."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # As it is printed: 1024.0 KiB is 1.0 MiB.
        if round(count, 1) < _KIB or unit == "TiB":
            break
        count /= _KIB
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def mib(count: float) -> float:
    """Bytes in MiB."""
    return count / _KIB**2


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``36 cells``, ``1,024 tokens``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def harmless(text: str) -> str:
    """*text* with lone surrogates, which no file can hold, made U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


_SURROGATES = re.compile("[\ud800-\udfff]")
