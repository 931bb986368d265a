"""How often strings stand in a text: all of them in one pass, however many."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Self

_WORD = re.compile(r"\w+")


class Finder:
    """
    Counts some strings in texts.

    A string stands where its first word ends: from there on, 1, 2, 4, ... characters
    are looked up, as long as a string goes on like that. So a text is read once, and
    few places of it are compared with whole strings. A search for each string, or
    for each way to begin, takes minutes in 100 MB.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(sorted(set(strings)))
        self._number = {string: at for at, string in enumerate(self.strings)}
        # By the power of two: what strings go on with; and those no longer than
        # twice that, by the length of their first word and their own.
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

    def _indexed(self, string: str) -> bool:
        word = _WORD.search(string)
        if word is None or word.end() == len(string):
            return False
        rest = string[word.end() :]
        size = 1
        self._ways[1].add(rest[:1])
        while 2 * size <= len(rest):
            size *= 2
            self._ways[size].add(rest[:size])
        lengths = self._ends[size].setdefault(rest[:size], set())
        lengths.add((word.end(), len(string)))
        return True

    def _places(self, text: str, end: int) -> Iterator[str]:
        """Each string as often as it stands in *text* and begins before *end*."""
        first = self._ways[1]
        for word in _WORD.finditer(text):
            at = word.end()
            if text[at : at + 1] in first:
                for before, length in self._lengths(text, at):
                    begins = at - before
                    string = text[begins : begins + length] if begins >= 0 else ""
                    if begins < end and string in self._number:
                        yield string

    def _lengths(self, text: str, at: int) -> Iterator[tuple[int, int]]:
        """Of the strings that go on like *text* does at *at*, behind a first word."""
        size = 1
        while (way := text[at : at + size]) in self._ways[size]:
            yield from self._ends[size].get(way, ())
            size *= 2


def _count(text: str, string: str, end: int) -> int:
    count, at = 0, text.find(string)
    while 0 <= at < end:
        count += 1
        at = text.find(string, at + 1)
    return count
