"""Records as cells of a grid: one per pair, most precise first; and the reference."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codeneedle.grid import Pair, by_precision, most_precise
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import AGAIN, CellRecord, Run, Setup

NOT_RUN = ""
"""Status of a pair without a record."""

OTHER_DEVICE = "measured on another device, or share of the cores, than the reference"
"""Why a cell that has finished has no speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """
    The value of one metric for one pair, or why there is none.

    Attributes:
        pair: The cache types.
        status: How the cell ended; `NOT_RUN` without a record.
        is_hole: Whether the pair is no part of the grid, only of its rows and columns.
        reason: Why it did not finish; empty if it did.
        value: The mean or sum of its observations; NaN where there is none.
        observations: What the value comes from, one per round where there are rounds.
        error: Standard error of the value; NaN where it is unknown.
        units: What the error is over: functions, chunks, texts or repetitions.
        against: The pair that the record was measured against, if it names one.
    """

    pair: Pair
    status: str = NOT_RUN
    is_hole: bool = False
    reason: str = ""
    value: float = math.nan
    observations: tuple[float, ...] = ()
    error: float = math.nan
    units: int = 0
    against: str = ""

    @property
    def n(self) -> int:
        """Observations behind the value."""
        return len(self.observations)

    @property
    def has_value(self) -> bool:
        """Whether there is a number to show."""
        return not math.isnan(self.value)


Cells = Sequence[Cell]
"""Every pair of a grid, K slowest, most precise first."""


def of_probe(run: Run, probe: str) -> Run:
    """The same run, with the records of *probe* alone."""
    return replace(
        run,
        records=tuple(record for record in run.records if record.probe == probe),
        again=tuple(record for record in run.records if record.probe == probe + AGAIN),
    )


def axes(run: Run) -> tuple[list[str], list[str]]:
    """The K types and the V types, asked for or recorded, most precise first."""
    pairs = [record.pair for record in run.records]
    k_types = by_precision([*run.setup.types_k, *(pair.k for pair in pairs)])
    v_types = by_precision([*run.setup.types_v, *(pair.v for pair in pairs)])
    return k_types, v_types


def cells_frame(run: Run, metric: Metric) -> Cells:
    """
    The value of *metric* for every pair of the grid.

    Raises:
        ValueError: If a pair has two records: the run was not narrowed to a probe.
    """
    return cells_frames(run, [metric])[metric.name]


def cells_frames(run: Run, metrics: Sequence[Metric]) -> dict[str, Cells]:
    """A `cells_frame` for each of *metrics*, by name; faster than one by one."""
    recorded = _by_pair(run.records)
    down, across = axes(run)
    device = _device(run)
    frames: dict[str, list[Cell]] = {metric.name: [] for metric in metrics}
    distinct = {metric.name: metric for metric in metrics}.values()
    # Records outermost: what one metric computes of a record serves the others.
    for pair in itertools.starmap(Pair, itertools.product(down, across)):
        record = recorded.get(pair)
        is_elsewhere = record is not None and record.device != device
        for metric in distinct:
            cell = _cell(pair, record, run, metric)
            if is_elsewhere and metric.group == "speed" and cell.has_value:
                cell = Cell(pair=pair, status=cell.status, reason=OTHER_DEVICE)
            frames[metric.name].append(cell)
    return dict(frames)


def k_types(cells: Cells) -> list[str]:
    """The types down the grid."""
    return list(dict.fromkeys(cell.pair.k for cell in cells))


def v_types(cells: Cells) -> list[str]:
    """The types across it."""
    return list(dict.fromkeys(cell.pair.v for cell in cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """
    The values of a grid, as one row of the published table has them.

    Attributes:
        mean: Mean over cells; NaN without any.
        sd: Standard deviation over cells, dividing by their number: a grid is
            the whole population. The published figures (15.97 +/- 0.16 for one
            cell of 15 among 36) come from this form alone.
        low: The smallest.
        high: The largest.
        cells: Cells that have a value.
    """

    mean: float
    sd: float
    low: float
    high: float
    cells: int


def spread(cells: Cells) -> Spread:
    """Summarise the values of a `cells_frame`."""
    values = [cell.value for cell in cells if cell.has_value] or [math.nan]
    return Spread(
        mean=statistics.fmean(values),
        sd=math.nan if math.isnan(values[0]) else statistics.pstdev(values),
        low=min(values),
        high=max(values),
        cells=sum(cell.has_value for cell in cells),
    )


def most_observations(cells: Cells) -> int:
    """The largest number of observations behind a value; 0 without cells."""
    return max((cell.n for cell in cells), default=0)


def reference(cells: Cells) -> Pair | None:
    """
    The pair that others are compared with; None if there is none.

    It is the one that records were measured against, if they name one, or else the
    most precise pair with a value. There is none where records name several, or one
    without a value.
    """
    pairs = [cell.pair for cell in cells if cell.has_value]
    named = named_references(cells)
    if named:
        return named[0] if len(named) == 1 and named[0] in pairs else None
    return most_precise(pairs) if pairs else None


def floor(run: Run, metric: Metric, cells: Cells) -> float:
    """
    How far the two values of the reference are apart; NaN if it has but one.

    Args:
        run: Narrowed to the metric's probe.
        metric: What to compare.
        cells: Of that run and metric.
    """
    pair = reference(cells)
    for record in run.again:
        if pair and record.pair == pair and record.has_numbers:
            second = cell_value(metric, metric.values(record, run.setup))
            return abs(second - value_at(cells, pair))
    return math.nan


def named_references(cells: Cells) -> list[Pair]:
    """The pairs that records were measured against, each once, sorted by name."""
    return [
        Pair.parse(pair) for pair in sorted({cell.against for cell in cells} - {""})
    ]


def reference_named_by(metric: Metric, record: CellRecord) -> str:
    """The pair that *record* was measured against; empty if it names none."""
    return (metric.reference(record) or "") if metric.reference else ""


def value_at(cells: Cells, pair: Pair) -> float:
    """The value of *pair*, which is one of the cells'; NaN if it has none."""
    return next(cell.value for cell in cells if cell.pair == pair)


def cell_value(metric: Metric, values: Iterable[float]) -> float:
    """The number of a cell: mean or sum of its observations; NaN if it has none."""
    observations = list(values)
    if not observations:
        return math.nan
    total = math.fsum(observations)
    return total if metric.is_sum else total / len(observations)


def _by_unit(
    metric: Metric, record: CellRecord, setup: Setup, values: Sequence[float]
) -> list[float]:
    """*values* by unit: of a text, the mean of its questions."""
    if not metric.names or not values:
        return list(values)
    found: dict[str, list[float]] = {}
    for name, value in zip(metric.names(record, setup), values, strict=True):
        found.setdefault(name, []).append(value)
    return [math.fsum(each) / len(each) for each in found.values()]


def _error(metric: Metric, record: CellRecord, units: Sequence[float], n: int) -> float:
    """
    Standard error of a cell's number, of *n* observations of *units*.

    As its tool states it, else that of the mean over units: sd / sqrt(units).
    """
    if metric.error:
        stated = metric.error(record)
        return math.nan if stated is None else stated
    if len(units) < 2:  # noqa: PLR2004 - no spread
        return math.nan
    of_mean = statistics.stdev(units) / math.sqrt(len(units))
    return of_mean * n if metric.is_sum else of_mean


def _by_pair(records: Iterable[CellRecord]) -> dict[Pair, CellRecord]:
    recorded: dict[Pair, CellRecord] = {}
    for record in records:
        if record.pair in recorded:
            raise ValueError(f"two records of {record.pair}: narrow the run to a probe")
        recorded[record.pair] = record
    return recorded


def _device(run: Run) -> str:
    """What the reference was measured on: speeds of other devices are left out."""
    finished = {record.pair: record for record in run.records if record.has_numbers}
    return finished[most_precise(finished)].device if finished else ""


def _cell(pair: Pair, record: CellRecord | None, run: Run, metric: Metric) -> Cell:
    if record is None:
        return Cell(pair=pair, is_hole=pair not in run.setup.grid)
    if not record.has_numbers:
        return Cell(pair=pair, status=record.status.value, reason=record.reason)
    values = tuple(metric.values(record, run.setup))
    units = (metric.units or (lambda *_: ()))(record, run.setup)
    units = units or _by_unit(metric, record, run.setup, values)
    return Cell(
        pair=pair,
        status=record.status.value,
        value=cell_value(metric, values),
        observations=values,
        error=_error(metric, record, units, len(values)),
        units=len(units),
        against=reference_named_by(metric, record),
    )
