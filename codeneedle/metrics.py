"""What a metric is: a named number that a probe reads from its records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from codeneedle.records import CellRecord, Setup
from codeneedle.scored_rounds import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """
    A number of a cell, with all that a report needs to show it honestly.

    Attributes:
        name: What ``--metric`` takes: ``matched``.
        label: What a heading says: ``matched lines of 20``.
        unit: Of the values; empty for a pure number.
        better: Which end is good, or ``neither``.
        bounds: The scale's natural ends; None where there is none.
        digits: Decimals worth showing.
        values: The observations of one finished record, one per round where
            there are rounds; empty if it has none. A cell's value is their mean.
        is_sum: Whether the sum over rounds is the value instead (``pass``).
        group: What it prices; groups stand together in a table. A speed of a cell
            that fell back to something slow never ranks.
        in_table: Whether a table shows it unasked.
        relative: Whether its ratio to the reference stands beside it in a table.
        floor: Whether the reference's value is the noise floor that the others
            are measured in: the reference compared with itself.
        error: Standard error of a record's value, for values that are a single
            number; None where there is none.
        reference: The pair that a record's values are measured against, for values
            that are: ``f16/f16``. None for others; these are compared with the
            most precise pair.
        of_tokens: Whether its values come from single tokens, which are most of a
            record: where none of such metrics is shown, they are not looked at.
    """

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    bounds: tuple[float | None, float | None]
    digits: int
    values: Callable[[CellRecord, Setup, Reading], Sequence[float]]
    is_sum: bool = False
    group: Literal["quality", "speed", "memory"] = "quality"
    in_table: bool = False
    relative: bool = False
    floor: bool = False
    error: Callable[[CellRecord, Setup, Reading], float | None] | None = None
    reference: Callable[[CellRecord], str | None] | None = None
    of_tokens: bool = False
