"""Extracts: what a corpus has to know of one file; small, as files are not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from codeneedle import languages, needles
from codeneedle.needles import Function


class Task(NamedTuple):
    """
    A file to be looked at.

    Attributes:
        text: All of it.
        suffix: Of the language that it is read as, with the dot.
        is_kept: Whether its text stays in memory, so that its functions must.
    """

    text: str
    suffix: str
    is_kept: bool


class Known(NamedTuple):
    """Of a function whose text is not kept: its name, and what a question quotes."""

    name: str
    quoted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """
    What there is in a file.

    Attributes:
        functions: Those long enough to be asked for, of a file that is kept.
        known: The same, of one that is not.
        cuts: Line numbers after which it may be cut, if it is kept.
        found: How many functions there are, short ones too.
        longest: Body lines that are not blank, of the longest.
        unparsable: Why there are none; None if it was parsed.
    """

    functions: tuple[Function, ...] = ()
    known: tuple[Known, ...] = ()
    cuts: tuple[int, ...] = ()
    found: int = 0
    longest: int = 0
    unparsable: str | None = None

    def below(self, lines: int) -> "Extract":
        """The same, of a file that begins after so many *lines* of a corpus."""
        functions = tuple(replace(f, line=f.line + lines) for f in self.functions)
        cuts = tuple(cut + lines for cut in self.cuts)
        return replace(self, functions=functions, cuts=cuts)


def extract(task: Task) -> Extract:
    """What there is in the file of *task*; lines are counted from its own first."""
    try:
        found = languages.functions_in(task.text, task.suffix)
    except languages.Unparsable as error:
        return Extract(unparsable=str(error))
    long = needles.long_enough(found)
    return Extract(
        functions=tuple(long) if task.is_kept else (),
        known=() if task.is_kept else tuple(_known(long)),
        cuts=tuple(needles.cut_points(found)) if task.is_kept else (),
        found=len(found),
        longest=max((function.content_lines for function in found), default=0),
    )


def _known(functions: Sequence[Function]) -> list[Known]:
    return [Known(f.name, needles.quoted(f)) for f in functions]
