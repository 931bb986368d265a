"""Needles: which functions of a corpus are asked for, and at what depth."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from codeneedle.mentions import Finder
from codeneedle.records import NeedleFacts

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
