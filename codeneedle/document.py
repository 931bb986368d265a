"""What reports consist of: five kinds of blocks, which know no form."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # commands that only name probes do not wait for it
    from rich.text import Text

ShownText: TypeAlias = "str | Text"
"""
Text to show. A string may come from anywhere: each form makes it safe, on one line.
A `Text` may have styles and several lines, and is safe already.
"""


@dataclass(frozen=True, slots=True)
class Heading:
    """What the blocks below it are about."""

    text: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A text for each pair of types."""

    k_types: Sequence[str]  # from top to bottom
    v_types: Sequence[str]  # from left to right
    rows: Sequence[
        Sequence[ShownText]
    ]  # one for each K type, with a text for each V type


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a heading."""

    heading: Sequence[str]  # names of the columns; a name may have several lines
    rows: Sequence[Sequence[ShownText]]
    """As long as the heading. The first text tells a row from others."""

    words: Collection[str] = ()
    """Columns of words, which start at the left and may fold; others have numbers."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A word and a phrase for each fact; *is_quiet* where they are no result."""

    entries: Sequence[tuple[str, ShownText]]
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, a line each."""

    lines: Sequence[ShownText]  # the sentences
    style: str = ""
    """
    Of those that have none of their own, as rich spells it; other forms show what is
    bold.
    """

    copied: str = ""  # what they are instead, where they are to be copied as they stand


Block = Heading | Grid | Table | Facts | Lines
Document = Iterable[Block]

CORNER = "K \\ V"
"""Top left corner of a grid: K types go down, V types across."""


def is_bold(line: ShownText, style: str) -> bool:
    """Whether a line of `Lines` of that *style* is bold, as a whole."""
    return "bold" in (style if isinstance(line, str) else str(line.style))


def has_content(block: Block) -> bool:
    """Whether there is anything to show of *block*."""
    match block:
        case Heading():
            return True
        case Lines(lines=lines):
            return any(map(len, lines))
        case Facts(entries=content) | Grid(rows=content) | Table(rows=content):
            return bool(content)
