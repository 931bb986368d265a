"""What a table of prices is: the metrics of all pairs, each beside the reference's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from codeneedle.grid import Pair
from codeneedle.metrics import Metric
from codeneedle.records import CellRecord, Run, Status

FALLBACKS = frozenset({Status.FALLBACK_CPU, Status.FALLBACK_F16})
"""Cells that were measured, though not as asked: shown with a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    One metric of one pair.

    Attributes:
        value: The cell's number; NaN where it has none.
        beside: The value over the reference's: a multiple of the noise floor, or a
            share. NaN where the metric has neither, or the reference no value.
        status: How the cell of the metric's probe ended, `frames.NOT_RUN` if it
            was not tried.
        ranks: Whether the value may be compared with others.
    """

    value: float
    beside: float
    status: str
    ranks: bool

    @property
    def is_fallback(self) -> bool:
        """Whether there is a value, though not of what was asked."""
        return self.status in FALLBACKS and not math.isnan(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """
    One metric of a table.

    Attributes:
        metric: What it shows.
        run: The records that it is read from, those of one probe alone.
        probe: Name of that probe.
        is_shown: Whether a person sees it; programs get all columns.
        against: The pair that the others are compared with: the one that records
            say they were measured against, or else the table's. None where there
            is none, or where records name several.
        named: The pairs that records say they were measured against.
        reference: The value of *against*; NaN where it did not finish with one.
    """

    metric: Metric
    run: Run
    probe: str
    is_shown: bool
    against: Pair | None = None
    named: tuple[Pair, ...] = ()
    reference: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One pair of a table.

    Attributes:
        pair: The cache types.
        is_reference: Whether it is the table's reference.
        entries: Of every column, by the metric's name.
        records: What each probe has of it, by the probe's name.
    """

    pair: Pair
    is_reference: bool
    entries: Mapping[str, Entry]
    records: Mapping[str, CellRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """
    All metrics of all pairs of a run.

    Attributes:
        run: What it is about, with the records of all probes.
        columns: Every metric of every probe that has records.
        rows: Every pair of the grid.
        reference: The most precise pair that finished with any probe; columns that
            are measured against another say so.
        sorted_by: Name of the metric that ordered the rows; None: precision did.
        remarks: What the probes say of the run in words.
    """

    run: Run
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: Pair | None
    sorted_by: str | None
    remarks: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that a person sees."""
        return tuple(column for column in self.columns if column.is_shown)

    @property
    def probes(self) -> tuple[str, ...]:
        """Names of the probes that have records, in order."""
        return tuple(dict.fromkeys(column.probe for column in self.columns))
