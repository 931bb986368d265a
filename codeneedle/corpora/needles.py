"""
Which functions can be needles (long enough, with a signature of their own, no copies),
how they are chosen by a seed over the whole text, and which of their lines are asked.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codeneedle.records.record import Length, Share

WRITTEN_LINES = 20
"""Body lines in a question of written recall, as in published sweeps."""

MORE_LINES = 5
"""Further body lines that count for the metric `bonus`."""

FORCED_LINES = 5
"""
Default number of body lines that are forced.

Functions differ more than the lines of one, so many functions of few lines give
narrower intervals than few functions of many lines.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleFacts:
    """A function that is asked for, with the right answer."""

    name: str  # qualified name of the function
    signature: str  # its signature lines, verbatim, joined by newlines
    line: Length  # line of the signature in the text that is sent, from 1
    depth: Share  # place in that text, from 0 (top) to 1 (end)
    lines: tuple[str, ...]
    """The right lines, verbatim; for written recall, exactly 20 are not blank."""

    before: tuple[str, ...] = ()
    """
    Lines of the body before those, which stand in the prompt; empty if *lines* begin
    the body.
    """

    more: tuple[str, ...] = ()
    """Lines of the body after those, for the metric `bonus`; may be empty."""

    budget: Length = 0  # limit of the tokens of a reply; 0 if no reply is written


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of a text, verbatim."""

    name: str  # qualified name: ``Server.handle``
    signature: str
    """
    Its lines from the first to the one that opens the body, joined by newlines, with
    indentation, without decorators.
    """

    line: int  # number of its first line in the text, from 1
    body: tuple[str, ...]
    """
    The lines after the signature up to the last one of the body, without line endings
    and without a line of only the closing brace.
    """

    closing_lines: int = 0  # number of lines of only the closing brace: 1 or 0

    @property
    def nonblank_indices(self) -> list[int]:
        """Indices in `body` of the lines that are not blank."""
        return [at for at, line in enumerate(self.body) if line.strip()]

    @property
    def nonblank_line_count(self) -> int:
        """Number of body lines that are not blank."""
        return len(self.nonblank_indices)

    @property
    def last_line_number(self) -> int:
        """Number of its last line, including a closing brace."""
        opened = self.line + self.signature.count("\n")
        return opened + len(self.body) + self.closing_lines


def eligible_functions(text: str, functions: Iterable[Function]) -> list[Function]:
    """
    The *functions* of *text* that can be needles, in order of lines.

    A needle has at least `FORCED_LINES` body lines that are not blank, since blank ones
    never count. Its signature, without surrounding white space, occurs once in the
    text: ``def run(self):`` is ambiguous if another function begins ``async def
    run(self):``. Of functions that begin on one line, the outermost is kept, and of
    those with equal bodies, the first: copies tell nothing of other functions. Equal
    names get their line numbers added.
    """
    long_enough = _long_outermost_functions(functions)
    unique = occurring_once(
        text, (_stripped_signature(function) for function in long_enough)
    )
    with_own = [f for f in long_enough if _stripped_signature(f) in unique]
    return _with_distinct_names(_without_repeated_bodies(with_own))


def _without_repeated_bodies(functions: Iterable[Function]) -> list[Function]:
    """*functions*, without those whose body is that of an earlier one."""
    firsts: dict[tuple[str, ...], Function] = {}
    for function in functions:
        firsts.setdefault(stripped_body_lines(function), function)
    return list(firsts.values())


def stripped_body_lines(function: Function) -> tuple[str, ...]:
    """The lines of its body that are not blank, without white space around them."""
    return tuple(function.body[at].strip() for at in function.nonblank_indices)


def _long_outermost_functions(functions: Iterable[Function]) -> list[Function]:
    """
    Functions with at least `FORCED_LINES`, in order of lines.

    Of several that begin on one line, the outermost.
    """
    by_line: dict[int, Function] = {}
    for function in functions:
        if function.nonblank_line_count >= FORCED_LINES:
            known = by_line.setdefault(function.line, function)
            if function.last_line_number > known.last_line_number:
                by_line[function.line] = function
    return [by_line[line] for line in sorted(by_line)]


def _stripped_signature(function: Function) -> str:
    return function.signature.strip()


def _with_distinct_names(functions: Sequence[Function]) -> list[Function]:
    """The *functions*, with the line number added to names that repeat."""
    count = Counter(function.name for function in functions)
    return [
        replace(function, name=f"{function.name}:{function.line}")
        if count[function.name] > 1
        else function
        for function in functions
    ]


def occurring_once(text: str, strings: Iterable[str]) -> set[str]:
    """
    The *strings* that occur exactly once in *text*, counting overlaps.

    3,000 searches of 16 MB take 40 s. A string is therefore compared only at
    occurrences of its rarest inner word: a word between other characters in the string
    is a whole word in the text, too.
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
            counts[string] = _occurs_once(text, string)
    for word in _WORD.finditer(text):
        for string, offset in by_word.get(word[0], ()):
            start = word.start() - offset
            counts[string] += start >= 0 and text.startswith(string, start)
    return {string for string, count in counts.items() if count == 1}


_WORD = re.compile(r"\w+")
_INNER_WORD = re.compile(r"(?<=\W)\w+(?=\W)")


def _occurs_once(text: str, string: str) -> bool:
    """Whether *string* is in *text*, and only once."""
    return 0 <= text.find(string) == text.rfind(string)


def choose_functions(
    functions: Sequence[Function], *, k: int = 16, seed: int = 42, line_count: int
) -> list[Function]:
    """
    At most *k* of the *functions*, spread over the text, in order of lines.

    The text is divided into k bands of equal numbers of lines. Each band contributes
    its first function by a hash of seed, line and name; the first of all others replace
    those of empty bands.

    Args:
        functions: Candidates, each on another line.
        k: Number of functions; all of them if there are fewer.
        seed: Determines the choice, on every machine.
        line_count: Number of lines of the text.
    """
    drawn = sorted(functions, key=lambda function: _random_key(function, seed))
    bands: dict[int, list[Function]] = {}
    for function in drawn:
        bands.setdefault((function.line - 1) * k // line_count, []).append(function)
    firsts = [band[0] for band in bands.values()]
    lines = {function.line for function in firsts}
    others = [function for function in drawn if function.line not in lines]
    return sorted((firsts + others)[:k], key=lambda function: function.line)


def choose_in_blocks(
    functions: Sequence[Function], *, first: int, limit: int, seed: int, line_count: int
) -> list[Function]:
    """
    At most *limit* of *functions* in the order of questions, in blocks of `block_ends`.

    The functions of each block are spread over the text, in order of lines.

    Args:
        functions: Candidates, each on another line.
        first: Number of functions of the first block.
        limit: Number of functions of all blocks.
        seed: See `choose_functions`.
        line_count: Number of lines of the text.
    """
    chosen: list[Function] = []
    for end in block_ends(first, limit):
        lines = {function.line for function in chosen}
        others = [function for function in functions if function.line not in lines]
        size = end - len(chosen)
        chosen += choose_functions(others, k=size, seed=seed, line_count=line_count)
    return chosen


def block_ends(first: int, limit: int) -> list[int]:
    """Number of functions up to each block's end: *first*, doubled up to *limit*."""
    ends = [min(first, limit)]
    while ends[-1] < limit:
        ends.append(min(2 * ends[-1], limit))
    return ends


def written_needle(function: Function, *, depth: float) -> NeedleFacts:
    """
    The needle of the first 20 lines of *function* that are not blank.

    Blank lines between them are kept.

    Args:
        function: It has at least 20 such lines.
        depth: Its place in the corpus, from 0 to 1; see `depth_of`.
    """
    end = function.nonblank_indices[WRITTEN_LINES - 1] + 1
    return NeedleFacts(
        name=function.name,
        signature=function.signature,
        line=function.line,
        depth=depth,
        lines=function.body[:end],
        more=function.body[end : end + MORE_LINES],
    )


def forced_needle(
    function: Function, *, depth: float, lines: int, seed: int
) -> NeedleFacts:
    """
    The needle of *lines* forced lines of *function*, from a seeded line on.

    They are within the first 20 lines that are not blank, not always at their start:
    first lines are easier than later ones. Blank lines between them are kept.

    Args:
        function: It has at least so many lines that are not blank.
        depth: Its place in the corpus, from 0 to 1; see `depth_of`.
        lines: Number of lines that are not blank.
        seed: Determines the first line.
    """
    content = function.nonblank_indices[:WRITTEN_LINES]
    places = len(content) - lines + 1
    at = int.from_bytes(_random_key(function, seed)) % places
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


def cut_line_numbers(functions: Iterable[Function]) -> list[int]:
    """
    Line numbers after which the text may be cut, ascending.

    They are the ends of the outermost functions, so that a cut divides none.

    Args:
        functions: All functions of the text, short ones included.
    """
    ends: list[int] = []
    for function in sorted(
        functions, key=lambda function: (function.line, -function.last_line_number)
    ):
        if not ends or function.line > ends[-1]:
            ends.append(function.last_line_number)
    return ends


def _random_key(function: Function, seed: int) -> bytes:
    """A sort key that is pseudo-random in *seed*, the same on every machine."""
    key = f"{seed}:{function.line}:{function.name}"
    return hashlib.sha256(key.encode(errors="replace")).digest()
