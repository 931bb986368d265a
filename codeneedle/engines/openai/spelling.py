r"""
Where tokens end in the text that they spell, though some of them are told in part.

A character may take several tokens. Servers tell each of these as U+FFFD (vLLM), as
nothing but for the last (newer ones), as ``<0xE2>``, or as ``bytes:\xe2\x80``
(OpenAI).
"""

import itertools
import re
from collections.abc import Iterator, Sequence

UNTOLD = "\N{REPLACEMENT CHARACTER}"
"""Stands for one to three bytes that are no whole character, or for itself."""

_INSIDE = range(0x80, 0xC0)
"""Bytes of UTF-8 that go on with a character."""

_BYTES = re.compile(r"<0x([0-9A-Fa-f]{2})>|bytes:((?:\\x[0-9a-fA-F]{2})+)")


def is_told(token: str) -> bool:
    """Whether the text of *token* is known, so that others are told from it by it."""
    return bool(token) and UNTOLD not in token


def ends_in(tokens: Sequence[str], text: str, begin: int) -> list[int]:
    """
    How many characters of *text* are complete behind each of *tokens*.

    They spell it to its end, and at least from *begin* on; those before are taken to be
    as long as they are told, and may end below 0. Where a token that is not told may
    end at several places, it is the last of these.

    Returns:
        Nothing where they do not spell it.
    """
    data = text[begin:].encode(errors="surrogatepass")
    wide = sum(1 << at for at, byte in enumerate(data) if byte > 0x7F)  # noqa: PLR2004 - not ASCII
    # Bit n of a number says that a token may end behind n bytes.
    places = [1 << len(data)]
    for token in reversed(tokens):
        if places[-1] == 1:
            break
        places.append(_places_before(token, data, places[-1], wide))
    if not places.pop() & 1:
        return []
    before = [*itertools.accumulate(map(len, tokens[: len(tokens) - len(places)]))]
    ends = _characters(data, (place.bit_length() - 1 for place in reversed(places)))
    return [begin + size - before[-1] for size in before] + [begin + at for at in ends]


def _places_before(token: str, data: bytes, ends: int, wide: int) -> int:
    """Where *token* may begin in *data*, or before it, if it ends at one of *ends*."""
    found = 0
    for parts in _readings(token):
        at = ends
        for part in reversed(parts):
            at = _behind_bytes(at, wide) if part is None else _behind(at, part, data)
        found |= at
    return found


def _behind_bytes(ends: int, wide: int) -> int:
    """Places that one to three bytes beyond ASCII are in front of one of *ends*."""
    found = 0
    for _ in range(3):
        ends = ((ends >> 1) & wide) | (ends & 1)
        found |= ends
    return found


def _behind(ends: int, part: bytes, data: bytes) -> int:
    """Places that *part* is in front of one of *ends*; what precedes *data* is any."""
    found = 0
    for end in _bits(ends):
        begin = max(0, end - len(part))
        if data[begin:end] == part[len(part) - (end - begin) :]:
            found |= 1 << begin
    return found


def _bits(number: int) -> Iterator[int]:
    """Where *number* has a 1."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _readings(token: str) -> Iterator[list[bytes | None]]:
    """The bytes that *token* stands for, in each way; None for some that are untold."""
    yield [
        None if each == UNTOLD else each.encode(errors="surrogatepass")
        for each in re.split(f"({UNTOLD})", token)
        if each
    ]
    if stated := _BYTES.fullmatch(token):
        yield [bytes.fromhex((stated[1] or stated[2]).replace("\\x", ""))]


def _characters(data: bytes, places: Iterator[int]) -> Iterator[int]:
    """How many characters of *data* are complete at each of *places*."""
    insides = [byte in _INSIDE for byte in data] + [False]
    begun = [0, *itertools.accumulate(not inside for inside in insides)]
    for place in places:
        yield begun[place] - insides[place]
