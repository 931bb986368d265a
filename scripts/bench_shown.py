"""What a section gives back: tables for people, raw numbers for programs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codeneedle.records.record import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """
    A section that was measured.

    Attributes:
        title: Above its table.
        headings: Of the columns; the first *words* of them hold words.
        words: How many columns hold words; the others hold numbers.
        rows: One text for each column. An empty row is a line between rows.
        lines: Below the table, first of them on what it was measured.
        raw: All numbers as they were measured, for ``--json``.
    """

    title: str
    headings: tuple[str, ...]
    words: int
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...]
    raw: Json

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(box=None)
        for at, heading in enumerate(self.headings):
            side: Literal["left", "right"] = "left" if at < self.words else "right"
            table.add_column(heading, justify=side, no_wrap=True)
        for row in self.rows:
            if row:
                table.add_row(*row)
            else:
                table.add_section()
        console.print(Text(self.title, style="bold"))
        console.print(table, crop=False)
        for line in self.lines:
            console.print(Text(line), style="dim" if line is self.lines[0] else "")
        console.print()


def lines(*found: str | Iterable[str]) -> tuple[str, ...]:
    """*found* without what is empty, as one tuple."""
    flat = ((each,) if isinstance(each, str) else each for each in found)
    return tuple(line for each in flat for line in each if line)
