"""The price of every pair: all metrics of all probes, each beside the reference's."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from codeneedle import frames
from codeneedle.errors import RequestError, UnknownName
from codeneedle.grid import Pair, most_precise
from codeneedle.metrics import Metric
from codeneedle.probe import Probe
from codeneedle.records import CellRecord, Run
from codeneedle.report.pricetable import FALLBACKS, Column, Entry, PriceTable, Row
from codeneedle.scored_rounds import Reading

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
    shown_alone: bool = False,
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
        shown_alone: Whether rows have entries of shown columns alone.

    Raises:
        UnknownName: If none of the columns is called *sort*.
        NeverRanks: If neither end of that metric is better.
    """
    reference = _reference(run)
    columns = tuple(_columns(run, probes, reading, reference, sort))
    _refuse_unsortable(sort, columns)
    recorded = {each.probe: _by_pair(each) for each in columns}
    filled = [each for each in columns if each.is_shown or not shown_alone]
    rows = [
        _row(pair, filled, recorded, reading, is_reference=pair == reference)
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
    return record.is_finished or fell_back


def _reference(run: Run) -> Pair | None:
    finished = [record.pair for record in run.records if record.is_finished]
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
    has_value = record is not None and record.is_finished
    value = _value(column, record, reading) if has_value else math.nan
    return replace(column, against=against, named=named, reference=value)


def _named_references(column: Column) -> tuple[Pair, ...]:
    finished = (record for record in column.run.records if record.is_finished)
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
