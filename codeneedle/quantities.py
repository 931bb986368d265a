"""Reads quantities as users write them: tokens, memory, time, shares."""

import math
import re
from collections.abc import Mapping

from codeneedle.errors import BadInput, bad_value_error

_TOKENS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES = {
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "t": 1 << 40,
}
_QUANTITY = re.compile(r"\s*(?P<digits>[0-9.]+)\s*(?P<unit>[a-zA-Z]*)\s*", re.ASCII)

LARGEST_SHARE_WITHOUT_SIGN = 0.1
"""From here to 1, a number without a sign may mean a share or a percentage."""


def parse_token_count(source: str, text: str) -> int:
    """
    A number of tokens of 0 or more: ``32768``, ``32K`` or ``1M``; K is 1,024.

    Args:
        source: The option or key that *text* was given to.
        text: As the user wrote it.

    Raises:
        BadInput: If *text* is no whole number of tokens.
    """
    count = _parse_quantity(text, _TOKENS)
    if count is None or count != int(count):
        raise bad_value_error(source, text, "a number of tokens", "32768", "32K")
    return int(count)


def parse_seconds(source: str, text: str) -> float:
    """
    A duration in seconds: ``90m``, ``15min``, ``2h`` or ``1.5h``.

    Raises:
        BadInput: If *text* is no duration above 0.
    """
    seconds = _parse_quantity(text, _SECONDS)
    if not seconds:
        raise bad_value_error(source, text, "a time", "2h", "90m")
    return seconds


def parse_speed(source: str, text: str) -> float:
    """
    A speed in tokens per second: ``200``, ``15.5``.

    Raises:
        BadInput: If *text* is no number above 0.
    """
    per_second = _parse_quantity(text, {"": 1.0})
    if not per_second:
        raise bad_value_error(
            source, text, "a speed in tokens per second", "200", "15.5"
        )
    return per_second


def parse_memory_size(source: str, text: str) -> int:
    """
    A size in bytes: ``2GiB``, the same as ``2G``; ``2GB`` is 2,000,000,000.

    Raises:
        BadInput: If *text* is no size above 0.
    """
    count = _parse_quantity(text, _BYTES)
    if not count:
        raise bad_value_error(source, text, "a size of memory", "2GiB", "2GB")
    return int(count)


def memory_size_text(count: int) -> str:
    """*count* bytes, above 0, in the largest unit that divides it: ``2GiB``."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if count % _BYTES[unit.lower()] == 0:
            return f"{count // _BYTES[unit.lower()]}{unit}"
    # Of 1,024ths the decimals end.
    return f"{count // 1024}{str(count % 1024 / 1024)[1:]}KiB"


def parse_percent_as_share(source: str, text: str) -> float:
    """
    A share between 0 and 1: ``3%``, ``3`` and ``0.03`` are the same.

    Raises:
        BadInput: If *text* is none, or could mean two: ``0.5`` is 0.5 % or 50 %.
    """
    word = text.strip()
    count = _parse_quantity(word.removesuffix("%"), {"": 1})
    is_signed = word.endswith("%")
    if count and not is_signed and LARGEST_SHARE_WITHOUT_SIGN <= count < 1:
        raise BadInput(
            source=source,
            reason=f"'{text}' may mean {count:g} % or {count:.0%}",
            hint=f"Write {source} {count:g}% or {source} {count:.0%}",
        )
    is_share = count is not None and count < LARGEST_SHARE_WITHOUT_SIGN
    share = (count or 0.0) / (1 if is_share and not is_signed else 100)
    if not 0 < share < 1:
        raise bad_value_error(source, text, "a percentage between 0% and 100%", "1%")
    return share


def _parse_quantity(text: str, units: Mapping[str, float]) -> float | None:
    """A number of 0 or more, times one of *units*; None for any other text."""
    parts = _QUANTITY.fullmatch(text)
    if parts is None or parts["unit"].lower() not in units:
        return None
    try:
        number = float(parts["digits"]) * units[parts["unit"].lower()]
    except ValueError:
        return None
    return number if number < math.inf else None
