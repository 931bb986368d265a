"""How often strings stand in a text: all of them in one pass, however many."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

PIECE_CHARACTERS = 1_000_000
"""Of a long text that are searched at a time, if no string is nearly as long."""

_WORD = re.compile(r"\w+")


class Finder:
    """
    Counts some strings in texts.

    A string stands where its first word ends: from the last letter of that on, 2, 4,
    8, ... characters are looked up, as long as a string goes on like that. So a text
    is read once, and few places of it are compared with whole strings. A search for
    each string, or for each way to begin, takes minutes in 100 MB.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(sorted(set(strings)))
        # Where the first word of each ends: one may also end with another's words.
        self._last: dict[str, int] = {}
        # By the power of two: what strings go on with; and of those that are shorter
        # than twice that, where the last letter is, and the length of the string.
        self._ways: defaultdict[int, set[str]] = defaultdict(set)
        self._ends: defaultdict[int, dict[str, set[tuple[int, int]]]] = defaultdict(
            dict
        )
        # Without a word, or with nothing behind it: looked for one by one.
        self._odd = [string for string in self.strings if not self._indexed(string)]

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[str, ...]]]:
        return type(self), (self.strings,)

    def counts(self, text: str, *, until: int | None = None) -> Counter[str]:
        """
        How often each string stands in *text*; places may overlap.

        Args:
            text: Searched as a whole.
            until: Places that begin here or later are not counted; None for all.
        """
        end = len(text) if until is None else until
        found = Counter(self._places(text, end))
        for string in self._odd:
            found[string] += _count(text, string, end)
        return +found

    def counts_in(self, piece: "Piece") -> Counter[str]:
        """How often each string begins in *piece* of a longer text."""
        return self.counts(piece.text, until=piece.until)

    def _indexed(self, string: str) -> bool:
        word = _WORD.search(string)
        if word is None or word.end() == len(string):
            return False
        self._last[string] = last = word.end() - 1
        rest = string[last:]
        size = 2
        self._ways[size].add(rest[:size])
        while 2 * size <= len(rest):
            size *= 2
            self._ways[size].add(rest[:size])
        lengths = self._ends[size].setdefault(rest[:size], set())
        lengths.add((last, len(string)))
        return True

    def _places(self, text: str, end: int) -> Iterator[str]:
        """Each string as often as it stands in *text* and begins before *end*."""
        # By four at once, as two are nearly everywhere; by two what is that short.
        four, two = self._ways[4], self._ends[2]
        for word in _WORD.finditer(text):
            at = word.end() - 1
            if text[at : at + 4] in four or (two and text[at : at + 2] in two):
                for before, length in self._lengths(text, at):
                    begins = at - before
                    string = text[begins : begins + length] if begins >= 0 else ""
                    if begins < end and self._last.get(string) == before:
                        yield string

    def _lengths(self, text: str, at: int) -> Iterator[tuple[int, int]]:
        """Of the strings that go on as *text* does from *at*, a letter, on."""
        size = 2
        while (way := text[at : at + size]) in self._ways[size]:
            yield from self._ends[size].get(way, ())
            size *= 2


class Piece(NamedTuple):
    """
    A piece of a longer text.

    Attributes:
        text: It, and enough of what follows to see the end of what begins in it.
        until: Where what follows begins.
    """

    text: str
    until: int


def pieces(texts: Iterable[str], overlap: int) -> Iterator[Piece]:
    """*texts* one behind the other, in pieces of equal length and *overlap* more."""
    size = max(PIECE_CHARACTERS, 4 * overlap)
    kept = ""
    for text in texts:
        kept += text
        while len(kept) >= size + overlap:
            yield Piece(kept[: size + overlap], size)
            kept = kept[size:]
    if kept:
        yield Piece(kept, len(kept))


def _count(text: str, string: str, end: int) -> int:
    count, at = 0, text.find(string)
    while 0 <= at < end:
        count += 1
        at = text.find(string, at + 1)
    return count
