"""Needles: which functions of a corpus are asked for, at what depth, which lines."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codeneedle.records.record import NeedleFacts

ASKED_LINES = 20
"""Lines of a body that a round asks for, as in the published sweeps."""

MORE_LINES = 5
"""Lines after those that earn a bonus: a model that reads on is not wrong."""

FORCED_LINES = 5
"""
Lines of a body that are forced, where nothing else is said.

Functions differ more than their lines explain, so many functions of a few lines tell
more than few functions of many lines, with the same number of tokens.
"""


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
    def content(self) -> list[int]:
        """Places in `body`, from 0, of the lines that are not blank."""
        return [at for at, line in enumerate(self.body) if line.strip()]

    @property
    def content_lines(self) -> int:
        """Body lines that are not blank."""
        return len(self.content)

    @property
    def end(self) -> int:
        """Number of its last line, a closing brace's included."""
        opened = self.line + self.signature.count("\n")
        return opened + len(self.body) + self.closing_lines


def eligible(text: str, functions: Iterable[Function]) -> list[Function]:
    """
    Those of the *functions* of *text* that can be asked for, in order of lines.

    Such a function has at least `FORCED_LINES` body lines that are not blank: blank
    ones are never credited. And its signature, without the white space around it,
    stands in the text once: a question that quotes ``def run(self):`` is no question
    where another function begins ``async def run(self):``. Of several that begin on
    one line, the outermost stays. Where names are equal, the line number is added to
    each.
    """
    found = _long_enough(functions)
    unique = occurring_once(text, (_quoted(function) for function in found))
    return _distinctly_named([f for f in found if _quoted(f) in unique])


def _long_enough(functions: Iterable[Function]) -> list[Function]:
    """Functions with at least `FORCED_LINES`, one per line, in order of lines."""
    by_line: dict[int, Function] = {}
    for function in functions:
        if function.content_lines >= FORCED_LINES:
            known = by_line.setdefault(function.line, function)
            if function.end > known.end:
                by_line[function.line] = function
    return [by_line[line] for line in sorted(by_line)]


def _quoted(function: Function) -> str:
    """The signature as a question quotes it; has to be unique in the text."""
    return function.signature.strip()


def _distinctly_named(functions: Sequence[Function]) -> list[Function]:
    """The *functions*; the line number is added to names that occur repeatedly."""
    count = Counter(function.name for function in functions)
    return [
        replace(function, name=f"{function.name}:{function.line}")
        if count[function.name] > 1
        else function
        for function in functions
    ]


def occurring_once(text: str, strings: Iterable[str]) -> set[str]:
    """
    Those of *strings* that occur exactly once in *text*, overlaps included.

    A search for each of 3,000 signatures takes 40 s in 16 MB. So a string is only
    compared where its rarest inner word stands: a word with other characters on
    both sides of it in the string is a whole word of the text as well.
    """
    frequency = Counter(_WORD.findall(text))
    counts: Counter[str] = Counter()
    by_word: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for string in set(strings):
        inner = [(frequency[word[0]], word) for word in _INNER_WORD.finditer(string)]
        if inner:
            _, word = min(inner, key=lambda rated: rated[0])
            by_word[word[0]].append((string, word.start()))
        else:
            counts[string] = _count_up_to_two(text, string)
    for word in _WORD.finditer(text):
        for string, offset in by_word.get(word[0], ()):
            start = word.start() - offset
            counts[string] += start >= 0 and text.startswith(string, start)
    return {string for string, count in counts.items() if count == 1}


_WORD = re.compile(r"\w+")
_INNER_WORD = re.compile(r"(?<=\W)\w+(?=\W)")


def _count_up_to_two(text: str, string: str) -> int:
    first = text.find(string)
    return 0 if first < 0 else 1 + (text.find(string, first + 1) >= 0)


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
    drawn = sorted(functions, key=lambda function: _draw(function, seed))
    bands: dict[int, list[Function]] = {}
    for function in drawn:
        bands.setdefault((function.line - 1) * k // line_count, []).append(function)
    firsts = [band[0] for band in bands.values()]
    lines = {function.line for function in firsts}
    others = [function for function in drawn if function.line not in lines]
    return sorted((firsts + others)[:k], key=lambda function: function.line)


def in_blocks(
    functions: Sequence[Function], *, first: int, limit: int, seed: int, line_count: int
) -> list[Function]:
    """
    At most *limit* of *functions* in asking order, in blocks that end as `block_ends`.

    Those of each block are spread over the text, in order of lines.

    Args:
        functions: To choose from, each on another line.
        first: Functions of the first block.
        limit: Functions of all blocks.
        seed: As in `choose`.
        line_count: Lines of the whole text.
    """
    chosen: list[Function] = []
    for end in block_ends(first, limit):
        lines = {function.line for function in chosen}
        left = [each for each in functions if each.line not in lines]
        size = end - len(chosen)
        chosen += choose(left, k=size, seed=seed, line_count=line_count)
    return chosen


def block_ends(first: int, limit: int) -> list[int]:
    """After how many functions each block ends: *first*, then doubled up to *limit*."""
    ends = [min(first, limit)]
    while ends[-1] < limit:
        ends.append(min(2 * ends[-1], limit))
    return ends


def written_needle(function: Function, *, depth: float) -> NeedleFacts:
    """
    The needle that asks for the first lines of *function*, which has 20 or more.

    Its lines end with the 20th that is not blank; blank ones stay between them.

    Args:
        function: As it stands in the corpus.
        depth: Its place there, from 0 to 1; see `depth_of`.
    """
    asked = function.content[ASKED_LINES - 1] + 1
    return NeedleFacts(
        name=function.name,
        signature=function.signature,
        line=function.line,
        depth=depth,
        lines=function.body[:asked],
        more=function.body[asked : asked + MORE_LINES],
    )


def forced_needle(
    function: Function, *, depth: float, lines: int, seed: int
) -> NeedleFacts:
    """
    The needle that forces *lines* lines of *function*, which has as many or more.

    They begin at a line that *seed* decides, within the first 20 that are not blank:
    first lines are easier than later ones. Blank lines stay between them.

    Args:
        function: As it stands in the corpus.
        depth: Its place there, from 0 to 1; see `depth_of`.
        lines: Lines that are not blank.
        seed: Another one, other lines.
    """
    content = function.content[:ASKED_LINES]
    places = len(content) - lines + 1
    at = int.from_bytes(_draw(function, seed)) % places
    begin, end = content[at], content[at + lines - 1] + 1
    return NeedleFacts(
        name=function.name,
        signature=function.signature,
        line=function.line,
        depth=depth,
        lines=function.body[begin:end],
        before=function.body[:begin],
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


def _draw(function: Function, seed: int) -> bytes:
    """Sort key that is pseudo-random in *seed*, and the same on every machine."""
    key = f"{seed}:{function.line}:{function.name}"
    return hashlib.sha256(key.encode(errors="replace")).digest()
