"""
Needles: which functions of a corpus are asked for, at what depth,
and with which lines.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from codeneedle.records.record import NeedleFacts

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


ASKED_LINES = 20
"""Lines of a body that a round asks for, as in the published sweeps."""

MORE_LINES = 5
"""Lines after those that earn a bonus: a model that reads on is not wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """
    A function as it stands in a text, verbatim.

    Attributes:
        name: Qualified by what encloses it: ``Server.handle``.
        signature: Its lines from the first to the one that opens the body,
            joined by newlines, with their indentation, without decorators.
        line: Number of the signature's first line in the text, from 1, as an
            editor counts.
        body: The lines after the signature up to the last one of the body,
            without line endings. Lines that hold only a closing brace of the
            function itself are not part of it.
        closing_lines: How many of such lines follow the body: 1 or 0.
    """

    name: str
    signature: str
    line: int
    body: tuple[str, ...]
    closing_lines: int = 0

    @property
    def content_lines(self) -> int:
        """Body lines that are not blank."""
        return sum(bool(line.strip()) for line in self.body)

    @property
    def end(self) -> int:
        """Number of its last line, a closing brace's included."""
        opened = self.line + self.signature.count("\n")
        return opened + len(self.body) + self.closing_lines


def eligible(text: str, functions: Iterable[Function]) -> list[Function]:
    """
    Those of the *functions* of *text* that can be asked for, in order of lines.

    Such a function has at least 20 body lines that are not blank: blank ones are
    never credited, so without 20 others a round could not be scored of 20. And
    its signature, without the white space around it, stands in the text once: a
    question that quotes ``def run(self):`` is no question where another function
    begins ``async def run(self):``. Of several that begin on one line, the
    outermost stays. Where names are equal, the line number is added to each.
    """
    found = long_enough(functions)
    seen = Finder(quoted(function) for function in found).counts(text)
    kept = [function for function in found if seen[quoted(function)] == 1]
    return distinctly_named(kept, Counter(function.name for function in kept))


def long_enough(functions: Iterable[Function]) -> list[Function]:
    """Those with lines enough to be asked for, one on each line, in order of lines."""
    by_line: dict[int, Function] = {}
    for function in functions:
        if function.content_lines >= ASKED_LINES:
            known = by_line.setdefault(function.line, function)
            if function.end > known.end:
                by_line[function.line] = function
    return [by_line[line] for line in sorted(by_line)]


def quoted(function: Function) -> str:
    """What must stand in the text once: the signature as a question quotes it."""
    return function.signature.strip()


def distinctly_named(
    functions: Iterable[Function], count: Mapping[str, int]
) -> list[Function]:
    """The *functions*, with their line in a name that *count* has more than once."""
    return [
        replace(function, name=f"{function.name}:{function.line}")
        if count[function.name] > 1
        else function
        for function in functions
    ]


def choose(
    functions: Sequence[Function], *, k: int = 16, seed: int = 42, line_count: int
) -> list[Function]:
    """
    At most *k* of the *functions*, spread over the text, in order of lines.

    The lines of the text fall into k bands of equal height. Each gives the one
    of its functions that a hash of seed, line and name puts first; what empty
    bands leave open, the first ones of all the others fill.

    Args:
        functions: To choose from, each on another line.
        k: How many; all of them if there are fewer.
        seed: Another one, another choice; the same one, the same everywhere.
        line_count: Lines of the whole text.
    """
    drawn = sorted(functions, key=lambda function: _lot(function, seed))
    bands: dict[int, list[Function]] = {}
    for function in drawn:
        bands.setdefault((function.line - 1) * k // line_count, []).append(function)
    firsts = [band[0] for band in bands.values()]
    lines = {function.line for function in firsts}
    others = [function for function in drawn if function.line not in lines]
    return sorted((firsts + others)[:k], key=lambda function: function.line)


def needle_facts(function: Function, *, depth: float) -> NeedleFacts:
    """
    The needle that asks for *function*, an eligible one.

    Its lines end with the 20th that is not blank; blank ones stay between them.

    Args:
        function: As it stands in the corpus.
        depth: Its place there, from 0 to 1; see `depth_of`.
    """
    content = [at for at, line in enumerate(function.body) if line.strip()]
    asked = content[ASKED_LINES - 1] + 1
    return NeedleFacts(
        name=function.name,
        signature=function.signature,
        line=function.line,
        depth=depth,
        lines=function.body[:asked],
        more=function.body[asked : asked + MORE_LINES],
    )


def depth_of(function: Function, *, line_count: int) -> float:
    """Place of the function's first line in a text, from 0 (top) to 1 (end)."""
    return (function.line - 1) / max(line_count - 1, 1)


def cut_points(functions: Iterable[Function]) -> list[int]:
    """
    Line numbers after which their text may be cut, ascending.

    They are the ends of the outermost functions, so a cut divides none. Give all
    functions of the text: a short one is as good an end as a long one.
    """
    ends: list[int] = []
    for function in sorted(
        functions, key=lambda function: (function.line, -function.end)
    ):
        if not ends or function.line > ends[-1]:
            ends.append(function.end)
    return ends


def _lot(function: Function, seed: int) -> bytes:
    key = f"{seed}:{function.line}:{function.name}"
    return hashlib.sha256(key.encode(errors="replace")).digest()
