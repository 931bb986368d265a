"""
The cells of a grid: a metric's value for each pair, its standard error, differences
over units that both have, mean and spread of all; and which speeds are not ranked.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from codeneedle.cache_types import Pair, distinct_most_precise_first
from codeneedle.probes.cell_metrics import context_tokens_or_zero
from codeneedle.probes.metrics import Metric, cell_value
from codeneedle.records.record import (
    AGAIN,
    ON_CPU,
    Attention,
    CellRecord,
    Run,
    Setup,
)
from codeneedle.reference import choose_reference_pair, reference_among

NOT_RUN = ""
"""Status of a pair without a record."""

OTHER_DEVICE = "measured on another device, or share of the cores, than the reference"
"""Reason of a speed that is shown, and compared with none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellValue:
    """The value of one metric for one pair, or why there is none."""

    pair: Pair
    status: str = NOT_RUN  # status of its record; `NOT_RUN` without one
    is_hole: bool = False
    """True if the sweep does not ask for the pair, only for its types."""

    reason: str = ""  # why it did not finish, or is not ranked; mostly empty
    value: float = math.nan  # the mean or sum of its observations; NaN without any
    observations: tuple[float, ...] = ()
    """The observations, one per round if there are rounds."""

    error: float = math.nan  # standard error of the value; NaN if unknown
    units: int = 0
    """Number of units behind the error: functions, chunks, texts, repetitions."""

    by_unit: Mapping[str, float] = field(default_factory=dict)
    """The value of each unit, by name; empty where units have no names."""

    against: str = ""  # the pair that the record was measured against; empty if none
    left_out: int = 0
    """Units that were asked for and are not in the value: an answer has no score."""

    lacking: str = ""  # phrase for what the value leaves out; see `metrics.Loss`
    attention: Attention | None = None
    """Where attention of its cell ran; None if nothing tells."""

    evidence: str = ""  # what tells it, as a phrase
    is_ranked: bool = True
    """
    False for speeds of cells whose attention ran in no kernel, or that were measured on
    another device: they are shown, and compared with none.
    """

    is_elsewhere: bool = False
    """True for a speed that was measured on another device than the reference."""

    context: int = 0  # context of its server or tool, in tokens; 0 if nothing tells

    @property
    def ran_as_usual(self) -> bool:
        """Whether `Attention.is_usual`, or nothing tells."""
        return self.attention is None or self.attention.is_usual

    @property
    def observation_count(self) -> int:
        """Number of observations."""
        return len(self.observations)

    @property
    def has_value(self) -> bool:
        """True if there is a number to show."""
        return not math.isnan(self.value)


Cells = Sequence[CellValue]
"""Every pair of a grid, K slowest, most precise first."""


def k_and_v_types(run: Run) -> tuple[list[str], list[str]]:
    """K types and V types that were requested or recorded, most precise first."""
    pairs = [record.pair for record in run.records]
    k_types = distinct_most_precise_first(
        [*run.setup.types_k, *(pair.k for pair in pairs)]
    )
    v_types = distinct_most_precise_first(
        [*run.setup.types_v, *(pair.v for pair in pairs)]
    )
    return k_types, v_types


def cells_frame(run: Run, metric: Metric) -> Cells:
    """
    The value of *metric* for every K with every V, asked for or not.

    Raises:
        ValueError: If a pair has two records: the run was not narrowed to a probe.
    """
    return cells_frames(run, [metric])[metric.name]


def cells_frames(run: Run, metrics: Sequence[Metric]) -> dict[str, Cells]:
    """A `cells_frame` for each of *metrics*, by name; faster than one by one."""
    recorded = _records_by_pair(run.records)
    down, across = k_and_v_types(run)
    elsewhere, asked = pairs_on_other_device(run), frozenset(run.setup.grid)
    frames: dict[str, list[CellValue]] = {metric.name: [] for metric in metrics}
    distinct = {metric.name: metric for metric in metrics}
    # Records outermost: metrics share cached computations on a record.
    for pair in itertools.starmap(Pair, itertools.product(down, across)):
        record = recorded.get(pair)
        for metric in distinct.values():
            cell = CellValue(pair=pair, is_hole=pair not in asked)
            if record is not None:
                cell = _cell_value(record, run, metric)
            is_speed = metric.quantity == "speed" and cell.has_value
            if is_speed and pair in elsewhere:
                cell = replace(
                    cell, is_ranked=False, is_elsewhere=True, reason=OTHER_DEVICE
                )
            frames[metric.name].append(cell)
    return {
        name: _cells_relative_to_floor(metric, frames[name])
        for name, metric in distinct.items()
    }


def _cells_relative_to_floor(metric: Metric, cells: Cells) -> Cells:
    """*cells* as `Metric.over_floor` makes them; without values if there is none."""
    if metric.over_floor is None:
        return cells
    pair = reference_pair(cells)
    base = value_at(cells, pair) if pair else math.nan
    return [
        replace(cell, value=value, observations=(value,))
        if cell.has_value
        and math.isfinite(value := metric.over_floor(cell.value, base))
        else replace(cell, value=math.nan, observations=())
        for cell in cells
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A summary of the values of a grid, one row of the published table."""

    mean: float  # mean over cells; NaN without any
    sd: float
    """
    Standard deviation of the population, dividing by the number of cells. Only this one
    gives the published figures (15.97 +/- 0.16 for one cell of 15 among 36).
    """

    low: float  # the smallest value
    high: float  # the largest value
    cells: int  # number of cells with a value


def value_spread(cells: Cells) -> Spread:
    """The summary of the ranked values of a `cells_frame`."""
    ranked = [cell.value for cell in cells if cell.has_value and cell.is_ranked]
    values = ranked or [math.nan]
    return Spread(
        mean=statistics.fmean(values),
        sd=math.nan if math.isnan(values[0]) else statistics.pstdev(values),
        low=min(values),
        high=max(values),
        cells=len(ranked),
    )


def largest_observation_count(cells: Cells) -> int:
    """The largest number of observations behind a value; 0 without cells."""
    return max((cell.observation_count for cell in cells), default=0)


def reference_pair(cells: Cells) -> Pair | None:
    """
    The pair that others are compared with; None if there is none.

    The pair that records were measured against, if they name one; else the most precise
    pair with a value. None if records name several, or one without a value.
    """
    with_value = [cell for cell in cells if cell.has_value and cell.is_ranked]
    return choose_reference_pair(with_value, [cell.against for cell in cells])


def noise_floor_of_reference(
    run: Run, metric: Metric, cells: Cells, *, on_cpu: bool = False
) -> float:
    """
    Difference of the two values of the reference; NaN if it has only one, and of what
    is measured from the reference's.

    Args:
        run: Narrowed to the probe of the metric.
        metric: The metric.
        cells: Cells of that run and metric.
        on_cpu: Whether the second one is that with attention on the CPU.
    """
    pair = None if metric.over_floor else reference_pair(cells)
    first = next((cell for cell in cells if cell.pair == pair), None)
    variant = ON_CPU if on_cpu else AGAIN
    for record in run.variants:
        is_it = record.variant == variant and record.pair == pair
        if first and is_it and record.has_numbers:
            return abs(value_difference(_cell_value(record, run, metric), first))
    return math.nan


def cell_with_change(cell: CellValue, other: CellValue) -> CellValue:
    """
    *cell* with its `value_difference` from *other*, over the units that both have.

    Units of *cell* that *other* lacks are left out, and counted; there is no error.
    """
    both = len(cell.by_unit.keys() & other.by_unit.keys()) or cell.units
    is_whole = not (cell.left_out or other.left_out)
    return replace(
        cell,
        value=value_difference(cell, other),
        error=math.nan,
        units=both,
        left_out=0 if is_whole else cell.units + cell.left_out - both,
    )


def value_difference(cell: CellValue, other: CellValue) -> float:
    """
    The value of *cell* less that of *other*, over the units that both have.

    NaN if either has no value, or none in common.
    """
    ours, theirs = cell.by_unit, other.by_unit
    if ours.keys() == theirs.keys():
        return cell.value - other.value
    both = ours.keys() & theirs.keys()
    return statistics.fmean(ours[e] - theirs[e] for e in both) if both else math.nan


def named_reference_pairs(cells: Cells) -> list[Pair]:
    """The distinct pairs that records were measured against, by name."""
    return [
        Pair.parse(pair) for pair in sorted({cell.against for cell in cells} - {""})
    ]


def value_at(cells: Cells, pair: Pair) -> float:
    """The value of *pair*, which has a cell; NaN if that has none."""
    return next(cell.value for cell in cells if cell.pair == pair)


def _stated_or_computed_error(
    metric: Metric, record: CellRecord, setup: Setup, units: Sequence[float], n: int
) -> float:
    """
    Standard error of the value of a cell, which has *n* observations.

    As its tool reports it, else that of the mean over *units*.
    """
    if metric.error:
        reported = metric.error(record, setup)
        return math.nan if reported is None else reported
    return standard_error_of_mean(units) * (n if metric.is_sum else 1)


def standard_error_of_mean(values: Sequence[float]) -> float:
    """Error of the mean of *values*: sd / sqrt(n); NaN without two of them."""
    if len(values) < 2:  # noqa: PLR2004 - no spread
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))


def _records_by_pair(records: Iterable[CellRecord]) -> dict[Pair, CellRecord]:
    """*records* by pair; stops at a second one of a pair."""
    recorded: dict[Pair, CellRecord] = {}
    for record in records:
        if record.pair in recorded:
            raise ValueError(f"two records of {record.pair}: narrow the run to a probe")
        recorded[record.pair] = record
    return recorded


def pairs_on_other_device(run: Run) -> set[Pair]:
    """
    The pairs measured on another device than the reference; speeds are not ranked.

    Without a reference, those that name a device.

    Args:
        run: With the records of one probe.
    """
    finished = [record for record in run.records if record.has_numbers]
    reference = reference_among(finished)
    device = next(
        (record.device for record in finished if record.pair == reference), ""
    )
    return {record.pair for record in run.records if record.device != device}


def _cell_value(record: CellRecord, run: Run, metric: Metric) -> CellValue:
    """The value of *metric* in *record*; without numbers, or of a gap, the reason."""
    pair = record.pair
    if not record.has_numbers:
        return CellValue(pair=pair, status=record.status.value, reason=record.reason)
    values = tuple(metric.values(record, run.setup))
    if not values and metric.gap and (gap := metric.gap(record, run.setup)):
        status, reason = gap
        return CellValue(pair=pair, status=status, reason=reason)
    by_unit: Mapping[str, float] = {}
    units: Sequence[float] = values
    if metric.names or metric.units:
        by_unit = metric.mean_value_by_unit(record, run.setup)
        units = list(by_unit.values())
    without = metric.units_without_value(record, run.setup) if values else frozenset()
    return CellValue(
        pair=pair,
        status=record.status.value,
        left_out=len(without),
        value=cell_value(metric, values),
        observations=values,
        error=_stated_or_computed_error(metric, record, run.setup, units, len(values)),
        units=len(units),
        by_unit=by_unit if metric.names else {},
        against=metric.pair_measured_against(record),
        lacking=metric.loss.lacking(record) if metric.loss else "",
        attention=record.attention,
        evidence=record.effective.attention_evidence,
        is_ranked=metric.quantity != "speed" or record.ran_as_usual,
        context=context_tokens_or_zero(record.effective),
    )
