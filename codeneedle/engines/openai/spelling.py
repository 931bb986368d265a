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


def token_ends(tokens: Sequence[str], text: str, begin: int) -> list[int]:
    """
    How many characters of *text* are complete behind each of *tokens*.

    They spell it to its end, and at least from *begin* on; those before are taken to be
    as long as they are told, and may end below 0. Where a token that is not told may
    end at several places, it is the last of these.

    Returns:
        Nothing where they do not spell it.
    """
    data = text[begin:].encode(errors="surrogatepass")
    beyond_ascii = sum(1 << at for at, byte in enumerate(data) if byte > 0x7F)  # noqa: PLR2004 - not ASCII
    # Bit n of a number says that a token may end behind n bytes.
    places = [1 << len(data)]
    for token in reversed(tokens):
        if places[-1] == 1:
            break
        places.append(_start_bits_of_token(token, data, places[-1], beyond_ascii))
    if not places.pop() & 1:
        return []
    before = [*itertools.accumulate(map(len, tokens[: len(tokens) - len(places)]))]
    ends = _character_counts(
        data, (place.bit_length() - 1 for place in reversed(places))
    )
    return [begin + size - before[-1] for size in before] + [begin + at for at in ends]


def _start_bits_of_token(
    token: str, data: bytes, end_bits: int, beyond_ascii: int
) -> int:
    """The places where *token* may begin, as bits, if it ends at one of *end_bits*."""
    found = 0
    for parts in _byte_readings(token):
        at = end_bits
        for part in reversed(parts):
            at = (
                _start_bits_of_untold(at, beyond_ascii)
                if part is None
                else _start_bits_of_part(at, part, data)
            )
        found |= at
    return found


def _start_bits_of_untold(end_bits: int, beyond_ascii: int) -> int:
    """The places, as bits, one to three bytes beyond ASCII before one of *end_bits*."""
    found = 0
    for _ in range(3):
        end_bits = ((end_bits >> 1) & beyond_ascii) | (end_bits & 1)
        found |= end_bits
    return found


def _start_bits_of_part(end_bits: int, part: bytes, data: bytes) -> int:
    """
    The places, as bits, where *part* may begin if it ends at one of *end_bits*.

    What precedes *data* may be anything.
    """
    found = 0
    for end in _numbers_of_set_bits(end_bits):
        begin = max(0, end - len(part))
        if data[begin:end] == part[len(part) - (end - begin) :]:
            found |= 1 << begin
    return found


def _numbers_of_set_bits(number: int) -> Iterator[int]:
    """The bits of *number* that are 1, by their numbers, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _byte_readings(token: str) -> Iterator[list[bytes | None]]:
    """The bytes that *token* stands for, in each way; None for some that are untold."""
    yield [
        None if part == UNTOLD else part.encode(errors="surrogatepass")
        for part in re.split(f"({UNTOLD})", token)
        if part
    ]
    if stated := _BYTES.fullmatch(token):
        yield [bytes.fromhex((stated[1] or stated[2]).replace("\\x", ""))]


def _character_counts(data: bytes, places: Iterator[int]) -> Iterator[int]:
    """How many characters of *data* are complete at each of *places*."""
    insides = [byte in _INSIDE for byte in data] + [False]
    begun = [0, *itertools.accumulate(not inside for inside in insides)]
    for place in places:
        yield begun[place] - insides[place]
