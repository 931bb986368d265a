"""All metrics of all pairs beside the reference, and which differences can be told."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from codeneedle.analysis import frames, stats
from codeneedle.analysis.metrics import Metric
from codeneedle.errors import RequestError, UnknownName
from codeneedle.grid import Pair, most_precise
from codeneedle.probes.probe import Probe
from codeneedle.records.record import CellRecord, Run, Status
from codeneedle.scoring.rounds import Reading

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


GROUPS = ("quality", "speed", "memory")
"""The order of columns."""


class NeverRanks(RequestError):  # noqa: N818 - named after the fact
    """A metric of which neither end is better."""

    def __init__(self, *, metric: str, others: Sequence[str]) -> None:
        super().__init__(
            f"{metric} ranks nothing: neither end of it is better",
            hint=f"Sort by one of {', '.join(others)}.",
        )


def price_table(
    run: Run,
    probes: Sequence[Probe],
    reading: Reading,
    *,
    sort: str | None = None,
) -> PriceTable:
    """
    One row per pair of *run*, with the metrics of all *probes* that have records.

    A metric that several probes yield is taken from the first that has a value:
    values of different probes are not comparable, as their contexts may differ.

    Args:
        run: With the records of all probes.
        probes: All that are known, in order of their columns.
        reading: How stored replies are read.
        sort: Name of a metric; its best value comes first, pairs without one last.
            By default, and between equals, the most precise pair comes first.

    Raises:
        UnknownName: If none of the columns is called *sort*.
        NeverRanks: If neither end of that metric is better.
    """
    reference = _reference(run)
    columns = tuple(_columns(run, probes, reading, reference, sort))
    _refuse_unsortable(sort, columns)
    recorded = {each.probe: _by_pair(each) for each in columns}
    rows = [
        _row(pair, columns, recorded, reading, is_reference=pair == reference)
        for pair in itertools.starmap(Pair, itertools.product(*frames.axes(run)))
    ]
    chosen = next((each.metric for each in columns if each.metric.name == sort), None)
    if chosen is not None:
        rows.sort(key=lambda row: _rank(row.entries[chosen.name], chosen))
    return PriceTable(
        run=run,
        columns=columns,
        rows=tuple(rows),
        reference=reference,
        sorted_by=sort,
        remarks=tuple(line for probe in probes for line in probe.remarks(run)),
    )


def usable(record: CellRecord) -> bool:
    """Whether a record has numbers to show: it finished, or fell back and went on."""
    fell_back = record.status in FALLBACKS and record.observation is not None
    return record.has_numbers or fell_back


def _reference(run: Run) -> Pair | None:
    finished = [record.pair for record in run.records if record.has_numbers]
    return most_precise(finished) if finished else None


def _columns(
    run: Run,
    probes: Sequence[Probe],
    reading: Reading,
    reference: Pair | None,
    sort: str | None,
) -> Iterator[Column]:
    candidates: dict[str, list[Column]] = {}
    for probe in probes:
        narrowed = frames.of_probe(run, probe.name)
        if not narrowed.records:
            continue
        for metric in (*probe.metrics, *probe.more_metrics(run.setup)):
            shown = metric.in_table or metric.name == sort
            column = Column(
                metric=metric, run=narrowed, probe=probe.name, is_shown=shown
            )
            candidates.setdefault(metric.name, []).append(column)
    chosen = (_first_with_value(same, reading) for same in candidates.values())
    # Stable: within a group, probes and their metrics keep their order.
    for column in sorted(chosen, key=lambda each: GROUPS.index(each.metric.group)):
        yield _compared(column, reference, reading)


def _first_with_value(columns: Sequence[Column], reading: Reading) -> Column:
    for column in columns if len(columns) > 1 else ():
        if any(
            not math.isnan(_value(column, record, reading))
            for record in column.run.records
        ):
            return column
    return columns[0]


def _compared(column: Column, reference: Pair | None, reading: Reading) -> Column:
    """*column* with what its values are compared with, *reference* by default."""
    named = _named_references(column)
    against = reference if not named else named[0] if len(named) == 1 else None
    record = _by_pair(column).get(against) if against else None
    has_value = record is not None and record.has_numbers
    value = _value(column, record, reading) if has_value else math.nan
    return replace(column, against=against, named=named, reference=value)


def _named_references(column: Column) -> tuple[Pair, ...]:
    finished = (record for record in column.run.records if record.has_numbers)
    named = {frames.reference_named_by(column.metric, record) for record in finished}
    return tuple(Pair.parse(pair) for pair in sorted(named - {""}))


def _row(
    pair: Pair,
    columns: Sequence[Column],
    recorded: Mapping[str, Mapping[Pair, CellRecord]],
    reading: Reading,
    *,
    is_reference: bool,
) -> Row:
    found = {probe: records.get(pair) for probe, records in recorded.items()}
    return Row(
        pair=pair,
        is_reference=is_reference,
        entries={
            each.metric.name: _entry(each, pair, found[each.probe], reading)
            for each in columns
        },
        records={probe: record for probe, record in found.items() if record},
    )


def _by_pair(column: Column) -> dict[Pair, CellRecord]:
    return {record.pair: record for record in column.run.records}


def _entry(
    column: Column, pair: Pair, record: CellRecord | None, reading: Reading
) -> Entry:
    value = _value(column, record, reading)
    is_slow = record is not None and record.status in FALLBACKS
    ranks = not math.isnan(value) and not (is_slow and column.metric.group == "speed")
    compares = ranks and pair != column.against
    return Entry(
        value=value,
        beside=_beside(value, column) if compares else math.nan,
        status=frames.NOT_RUN if record is None else record.status.value,
        ranks=ranks,
    )


def _value(column: Column, record: CellRecord | None, reading: Reading) -> float:
    if record is None or not usable(record):
        return math.nan
    values = column.metric.values(record, column.run.setup, reading)
    return frames.cell_value(column.metric, values)


def _beside(value: float, column: Column) -> float:
    if not (column.metric.floor or column.metric.relative) or not column.reference:
        return math.nan
    # Rounding may leave a floor below zero; what counts is how far it is from it.
    return value / abs(column.reference)


def _refuse_unsortable(sort: str | None, columns: Sequence[Column]) -> None:
    by_name = {column.metric.name: column.metric for column in columns}
    if sort is None:
        return
    if sort not in by_name:
        raise UnknownName(kind="metric", name=sort, known=list(by_name))
    if by_name[sort].better == "neither":
        shown = (column.metric for column in columns if column.is_shown)
        others = [metric.name for metric in shown if metric.better != "neither"]
        raise NeverRanks(metric=sort, others=others)


def _rank(entry: Entry, metric: Metric) -> tuple[bool, float]:
    if not entry.ranks:
        return True, 0.0
    return False, entry.value if metric.better == "lower" else -entry.value


NORMAL_95 = 1.96
"""Standard errors to either side that hold 95 % of a normal distribution."""

FEWEST = 2
"""Observations that have a spread."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """
    One pair against the reference.

    Attributes:
        pair: The one that is judged.
        difference: Its value less the reference's.
        noise: How large a difference would be noise; NaN if unknown.
        is_told: Whether it is larger than that.
    """

    pair: Pair
    difference: float
    noise: float
    is_told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """
    How well one metric separates the pairs.

    Attributes:
        metric: Which one.
        compared: Pairs with a value, the reference not counted.
        told: How many of these differ from the reference beyond noise; None where
            nothing says how large the noise is.
        pair: The one that differs most.
        difference: By how much, in the metric's unit.
        noise: How large a difference of this pair would still be noise: half of
            an interval, or the noise floor; NaN if unknown.
    """

    metric: Metric
    compared: int
    told: int | None
    pair: Pair
    difference: float
    noise: float

    @property
    def times_noise(self) -> float:
        """The difference in units of the noise; infinite where there was none."""
        if self.noise:
            return abs(self.difference) / self.noise
        return math.inf if self.difference else 0.0


def separations(table: PriceTable, reading: Reading) -> Iterator[Separation]:
    """
    What each shown metric of quality and of speed tells of the pairs.

    Pairs are compared with the column's reference: by the noise floor where the
    metric has one, by their observations where there are several, by standard errors
    where these are stored. About one pair in twenty is told apart by chance alone.
    """
    for column in table.shown:
        metric = column.metric
        if metric.better == "neither" or metric.group == "memory":
            continue
        judged = list(_judged(table, column, reading))
        if judged:
            yield _separation(metric, judged)


def _separation(metric: Metric, judged: list[_Judged]) -> Separation:
    most = max(judged, key=lambda each: abs(each.difference))
    is_known = any(not math.isnan(each.noise) for each in judged)
    return Separation(
        metric=metric,
        compared=len(judged),
        told=sum(each.is_told for each in judged) if is_known else None,
        pair=most.pair,
        difference=most.difference,
        noise=most.noise,
    )


def _judged(table: PriceTable, column: Column, reading: Reading) -> Iterator[_Judged]:
    name = column.metric.name
    finished = {each.pair: each for each in column.run.records if each.has_numbers}
    if column.against not in finished or math.isnan(column.reference):
        return
    reference = finished[column.against]
    for row in table.rows:
        record = finished.get(row.pair)
        if record is None or record is reference:
            continue
        if math.isnan(row.entries[name].value):
            continue
        yield _compared_metrics(
            column, record, reference, row.entries[name].value, reading
        )


def _compared_metrics(
    column: Column,
    record: CellRecord,
    reference: CellRecord,
    value: float,
    reading: Reading,
) -> _Judged:
    metric, setup = column.metric, column.run.setup
    gap = value - column.reference
    error = _error(column, record, reference, reading)
    if metric.floor:
        least = max(abs(column.reference), 0.0 if math.isnan(error) else error)
        return _Judged(record.pair, gap, least, gap > least)
    ours, theirs = (metric.values(each, setup, reading) for each in (record, reference))
    if min(len(ours), len(theirs)) < FEWEST:
        return _Judged(record.pair, gap, error, abs(gap) > error)
    gaps = stats.paired_gaps(ours, theirs, column.run)
    if gaps is not None:
        found = stats.paired_difference(gaps, is_sum=metric.is_sum)
        half = (found.high - found.low) / 2
        return _Judged(record.pair, found.mean, half, found.is_told)
    noise = half_interval(ours, theirs)
    return _Judged(record.pair, gap, noise, abs(gap) > noise)


def half_interval(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """
    Half of the 95 % interval of the difference of two means.

    Repetitions of a speed are few, and a bootstrap of five is far too sure.

    Args:
        ours: Two observations or more.
        theirs: Likewise, not paired with them.

    Source:
        Welch, The generalization of Student's problem when several different
        population variances are involved, 1947. Quantile of Student's t by its
        expansion at the normal one: Abramowitz & Stegun, 26.7.5; 0.3 % too low
        with 8 degrees of freedom, 10 % with 2.
    """
    parts = [statistics.variance(each) / len(each) for each in (ours, theirs)]
    whole = math.fsum(parts)
    if not whole:
        return 0.0
    # Shares of the whole, because squares of tiny variances would be nothing.
    shares = (
        (part / whole) ** 2 / (len(each) - 1)
        for part, each in zip(parts, (ours, theirs), strict=True)
    )
    freedom = 1 / math.fsum(shares)
    z = NORMAL_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return (z + first / freedom + second / freedom**2) * math.sqrt(whole)


def _error(
    column: Column, record: CellRecord, reference: CellRecord, reading: Reading
) -> float:
    """
    Half of the 95 % interval of the difference; NaN where errors are not stored.

    As if the two were independent: of the same text they are not, and differ less
    by chance than this says.
    """
    if column.metric.error is None:
        return math.nan
    errors = [
        column.metric.error(each, column.run.setup, reading)
        for each in (record, reference)
    ]
    known = [error for error in errors if error is not None]
    return NORMAL_95 * math.hypot(*known) if len(known) == len(errors) else math.nan
