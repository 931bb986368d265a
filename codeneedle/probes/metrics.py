"""What a metric is, and the metrics of memory and time, which all probes have."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from codeneedle.records.record import CellRecord, Effective, Setup
from codeneedle.text import mib

Values = Callable[[CellRecord, Setup], Sequence[float]]
"""What a metric reads from a finished record of a run."""


class LossKind(StrEnum):
    """
    What the loss of a unit is, beside the reference.

    probability: Difference of the mean probabilities of its right tokens.
    nats: 1 - exp(-x), where the unit has x nats per token less than with the reference.
    change: The divergence itself, in nats; not a loss: needed, never enough.
    answers: Whether the unit is lost, yes or no.
    score: Difference of its scores.
    """

    PROBABILITY = "probability"
    NATS = "nats"
    CHANGE = "change"
    ANSWERS = "answers"
    SCORE = "score"

    @property
    def is_graded(self) -> bool:
        """Whether a loss is a share of right tokens."""
        return self in {LossKind.PROBABILITY, LossKind.NATS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """
    How a metric enters the verdict, unit by unit.

    Attributes:
        kind: What the loss of a unit is.
        by_unit: What losses are computed of; None for the values of the metric.
        lost_from: Of answers: a unit is lost that has this much less.
        units: Names of all units of a record, those without a value included; None
            where each has one.
        bounded: Share of the tokens of a record, from 0 to 1, of whose probability an
            upper bound alone is known.
        able: Share of what a record could have right, from 0 to 1: a reference with
            little has little to lose.
    """

    kind: LossKind
    by_unit: Callable[[CellRecord, Setup], dict[str, float]] | None = None
    lost_from: float = 0.0
    units: Callable[[CellRecord, Setup], Sequence[str]] | None = None
    bounded: Callable[[CellRecord], float] = lambda _record: 0.0
    able: Callable[[CellRecord, Setup], float] = lambda _record, _setup: 1.0


Noun = Literal["functions", "chunks", "texts", "samples", "turns", "conversations"]
"""What units of a metric are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """
    A number of a cell, and how reports show it.

    Attributes:
        name: What ``--metric`` takes: ``matched``.
        label: What a heading says: ``matched lines of 20``.
        unit: Of the values; empty for a pure number.
        better: Which end is good, or ``neither``.
        bounds: The scale's natural ends; None where there is none.
        least_span: Least width of a colour scale, in the unit of the values: a tenth of
            it is no difference worth a colour. 0 for a share of the values instead.
        digits: Decimals worth showing.
        values: The observations of one finished record, one per round where
            there are rounds; empty if it has none. A cell's value is their mean.
        is_sum: Whether the sum over rounds is the value instead (``pass``).
        group: Columns of a group stand together in a table.
        in_table: Whether a table shows it by default.
        is_kept: Whether comparisons and receipts have it although tables leave it out.
        relative: Whether its ratio to the reference stands beside it in a table.
        floor: Whether the reference's value is the noise floor that the others
            are measured in: the reference compared with itself.
        reference: The pair that a record's values are measured against, for values
            that are: ``f16/f16``. None for others; these are compared with the
            most precise pair.
        names: Unit of each observation of a record, by which observations of two
            records are paired; None where they are paired by their order.
        loss: How it enters the verdict; None if it does not.
        error: Standard error of the value of a record, where its tool states one; by
            default it is that of a mean over units.
        shows_error: Whether reports show that error beside the value.
        noun: What its units are called; they are the same in every cell.
        units: Of every unit the value; None where `values` are of units.
    """

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    bounds: tuple[float | None, float | None]
    digits: int
    values: Values
    least_span: float = 0.0
    is_sum: bool = False
    group: Literal["quality", "speed", "memory"] = "quality"
    in_table: bool = False
    is_kept: bool = False
    relative: bool = False
    floor: bool = False
    reference: Callable[[CellRecord], str | None] | None = None
    names: Callable[[CellRecord, Setup], Sequence[str]] | None = None
    loss: Loss | None = None
    error: Callable[[CellRecord], float | None] | None = None
    shows_error: bool = False
    noun: Noun = "functions"
    units: Values | None = None

    @property
    def is_distance(self) -> bool:
        """
        Whether it is a distance from what the run itself wrote with its reference.

        Not what is a share of right tokens or counts samples: these stand alone.
        """
        kind = self.loss.kind if self.loss else LossKind.CHANGE
        is_compared = self.reference is not None and self.noun != "samples"
        return is_compared and kind is LossKind.CHANGE

    @property
    def counted(self) -> str:
        """What its observations are: of a text there are several, one per question."""
        return "questions" if self.noun == "texts" else self.noun

    def by_unit(self, record: CellRecord, setup: Setup) -> dict[str, float]:
        """
        What losses are computed of, for each unit of a finished record, by its name.

        Values of the same name are averaged: questions of one text share what makes
        the text hard. Units without names are numbered.
        """
        if self.loss and self.loss.by_unit:
            return self.loss.by_unit(record, setup)
        facts = (record, setup)
        values = (self.units(*facts) if self.units else ()) or self.values(*facts)
        # Where nothing was answered, there are names and no values.
        numbers = [str(at) for at in range(len(values))]
        names = self.names(record, setup) if self.names and values else numbers
        found: dict[str, list[float]] = {}
        for name, value in zip(names, values, strict=True):
            found.setdefault(name, []).append(value)
        return {name: math.fsum(each) / len(each) for name, each in found.items()}


def of_cell(number: Callable[[CellRecord], float | None]) -> Values:
    """One value for the whole cell, or none."""

    def values(record: CellRecord, _setup: Setup) -> list[float]:
        value = number(record)
        return [] if value is None else [value]

    return values


def _k_mib(record: CellRecord) -> float | None:
    buffers = record.effective.kv
    return math.fsum(buffer.k_mib for buffer in buffers) if buffers else None


def _v_mib(record: CellRecord) -> float | None:
    buffers = record.effective.kv
    return math.fsum(buffer.v_mib for buffer in buffers) if buffers else None


def _mib_per_1k(record: CellRecord) -> float | None:
    """All of it over the context: with sliding windows, less the longer that is."""
    size, context = record.effective.kv_mib, _context(record.effective)
    return size / context * 1000 if size is not None and context else None


def _context(effective: Effective) -> int:
    """The context in tokens; where the log has no line for it, the longest cache's."""
    longest = max((buffer.cells for buffer in effective.kv), default=0)
    return effective.context or longest


def _rss_mib(record: CellRecord) -> float | None:
    peak = record.peak_rss_bytes
    return None if peak is None else mib(peak)


def _device_mib(record: CellRecord) -> float | None:
    held = record.device_bytes
    return None if held is None else mib(held)


_memory = partial(
    Metric, unit="MiB", better="lower", bounds=(0, None), digits=1, group="memory"
)

_seconds = partial(Metric, unit="s", better="lower", bounds=(0, None), group="speed")

METRICS: tuple[Metric, ...] = (
    _memory(
        name="kv",
        label="KV cache",
        values=of_cell(lambda record: record.effective.kv_mib),
        in_table=True,
        relative=True,
    ),
    _memory(name="kv-k", label="K cache", values=of_cell(_k_mib), relative=True),
    _memory(name="kv-v", label="V cache", values=of_cell(_v_mib), relative=True),
    _memory(
        name="kv-per-1k",
        label="KV cache per 1,000 tokens",
        values=of_cell(_mib_per_1k),
        digits=2,
        relative=True,
    ),
    _memory(
        name="compute",
        label="compute buffers",
        values=of_cell(lambda record: record.effective.compute_mib),
    ),
    _memory(name="rss", label="peak of the process", values=of_cell(_rss_mib)),
    _memory(name="device", label="held on devices", values=of_cell(_device_mib)),
    _seconds(
        name="ready",
        label="from launch to a verified server",
        digits=1,
        values=of_cell(lambda record: record.phases.ready_s),
    ),
    _seconds(
        name="time",
        label="the whole cell",
        digits=1,
        values=of_cell(lambda record: record.phases.total_s or None),
    ),
    _seconds(
        name="waiting",
        label="start and stop of the server, and the time since the last cell",
        digits=2,
        values=of_cell(lambda record: record.phases.waiting_s or None),
    ),
)
"""
All of them. They compare only between cells of the same context, so a table takes
each from the records of one probe.
"""
