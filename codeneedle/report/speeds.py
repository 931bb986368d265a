"""Speeds by depth: each pair beside the reference, and where it is the faster one."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput, NothingToShow
from codeneedle.grid import Pair, most_precise_first, reference_among
from codeneedle.probes.frames import OTHER_DEVICE, of_probe, standard_error
from codeneedle.probes.throughput.metrics import LABELS, crossover, mean_speeds
from codeneedle.probes.throughput.record import NAME, conditions_of, throughput_of
from codeneedle.records.record import Attention, CellRecord, Run, Status
from codeneedle.report import captions, data
from codeneedle.report.captions import status_word
from codeneedle.text import visible

COLUMNS = (
    *("k", "v", "depth", "speed", "error", "ratio", "compared", "status", "reason"),
    "attention",
)
"""Of the frame, and with the run before them those of CSV."""

ELSEWHERE = "other"
"""The word of a cell that was measured on another device than the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """
    One speed of every pair of a run at every depth.

    Attributes:
        run: With the records of all probes.
        test: ``tg``, writing, or ``pp``, prompt reading.
        frame: `COLUMNS`, a row for each pair and depth. Speeds and their standard
            errors are in tokens/s, NaN where there is none; ``ratio`` is that to the
            reference at this depth. Cells without a kernel, and those of another
            device, keep their speed and are not ``compared``.
        reference: The most precise pair that is compared; None if there is none.
        crossed: From or until which depth each compared pair is faster.
    """

    run: Run
    test: str
    frame: pd.DataFrame
    reference: Pair | None
    crossed: Mapping[Pair, str]

    @property
    def pairs(self) -> list[Pair]:
        """Those with a row, most precise first."""
        sides = zip(self.frame["k"], self.frame["v"], strict=True)
        return list(dict.fromkeys(Pair(k, v) for k, v in sides))

    @property
    def apart(self) -> pd.DataFrame:
        """Rows of speeds that are shown and not compared."""
        return self.frame[self.frame["speed"].notna() & ~self.frame["compared"]]


def has_depths(metric: str) -> bool:
    """Whether *metric* is a speed that is measured by depth."""
    return metric in LABELS


def speed_table(run: Run, test: str) -> SpeedTable:
    """
    The speeds of *test* in *run*.

    Raises:
        BadInput: If there is no such test.
        NothingToShow: If no pair has a speed.
    """
    if test not in LABELS:
        raise BadInput(
            source="--metric",
            reason=f"'{test}' is no speed by depth: {' or '.join(LABELS)}",
            hint=f"Others: codeneedle grid {visible(run.name)} --metric METRIC",
        )
    records = {record.pair: record for record in of_probe(run, NAME).records}
    finished = [
        record
        for record in records.values()
        if mean_speeds(record, test) and record.in_kernel
    ]
    reference = reference_among(finished)
    first = records[reference] if reference else None
    rows = [
        row
        for pair in most_precise_first(records)
        for row in _rows(run, records[pair], first, test)
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    if not frame["speed"].notna().any():
        raise captions.nothing_to_show(run, test, "throughput")
    crossed = {
        pair: crossover(record, first, test)
        for pair, record in records.items()
        if first and _is_compared(record, first)
        if pair != reference
    }
    return SpeedTable(
        run=run, test=test, frame=frame, reference=reference, crossed=crossed
    )


def _is_compared(record: CellRecord, reference: CellRecord | None) -> bool:
    is_here = reference is not None and record.device == reference.device
    return record.has_numbers and record.in_kernel and is_here


def _rows(
    run: Run, record: CellRecord, reference: CellRecord | None, test: str
) -> Iterator[tuple[Any, ...]]:
    """A row for each depth; of a cell without any speeds, too."""
    conditions = conditions_of(run.setup)
    stored = throughput_of(record).speeds if record.observation else ()
    measured = {at.depth: at for at in stored}
    base = mean_speeds(reference, test) if reference else {}
    compared = _is_compared(record, reference)
    for depth in conditions.depths if conditions else ():
        at = measured.get(depth)
        values: Sequence[float] = getattr(at, test) if at else ()
        speed = statistics.fmean(values) if values else math.nan
        status, reason = record.status.value, record.reason
        if at and at.gap:
            status, reason = at.status, at.gap
        elif not record.in_kernel:
            reason = record.effective.attention_evidence
        elif record.has_numbers and not compared:
            reason = OTHER_DEVICE
        yield (
            record.pair.k,
            record.pair.v,
            depth,
            speed,
            standard_error(values),
            speed / base.get(depth, math.nan),
            compared,
            status,
            reason,
            record.attention.value if record.attention else None,
        )


def speed_tables(runs: Iterable[Run], test: str) -> list[SpeedTable]:
    """
    A `speed_table` of each of *runs* that has any.

    Raises:
        UnknownName: As of `speed_table`.
        NothingToShow: If no run has any.
    """
    tables: list[SpeedTable] = []
    empty: NothingToShow | None = None
    for run in runs:
        try:
            tables.append(speed_table(run, test))
        except NothingToShow as error:
            empty = error
    if empty and not tables:
        raise empty
    return tables


def speeds_document(tables: Iterable[SpeedTable]) -> Document:
    """Each of *tables* with its legend and its facts."""
    for table in tables:
        yield Heading(f"{table.run.name}: {LABELS[table.test]} by depth, tokens/s")
        heading, *rows = _texts(table)
        yield Table(heading, rows, words={heading[0], heading[-1]})
        yield Facts(legend(table))
        yield Lines(captions.cautions(table.run.setup), style="bold")
        yield Facts(captions.facts(table.run), is_quiet=True)


def legend(table: SpeedTable) -> list[tuple[str, str]]:
    """Each mark and word of *table*, with its meaning."""
    entries = []
    if table.reference:
        reference = visible(str(table.reference))
        entries = [
            (captions.REFERENCE_MARK, f"the reference, {reference}"),
            ("98%", "of the reference's speed at this depth"),
            ("faster", f"the depths at which it is faster than {reference}"),
        ]
    if table.frame["error"].notna().any():
        entries.append(captions.ERROR_ENTRY)
    marked = captions.pairs_by(
        ((word, str(row.status), str(row.reason)), Pair(str(row.k), str(row.v)))
        for row in table.frame.itertuples()
        if (word := _word(row))
    )
    for (word, status, reason), pairs in marked.items():
        phrase = "" if status == Status.FINISHED else status
        entries.append((word, captions.failure_phrase(pairs, phrase, reason)))
    return entries


def _texts(table: SpeedTable) -> Iterator[list[str]]:
    """The heading, and a row for each pair."""
    depths = list(dict.fromkeys(table.frame["depth"]))
    yield ["K/V", *(f"{depth:,}" for depth in depths), "faster"]
    for pair in table.pairs:
        is_of_pair = (table.frame["k"] == pair.k) & (table.frame["v"] == pair.v)
        mark = captions.REFERENCE_MARK if pair == table.reference else ""
        cells = table.frame[is_of_pair].itertuples()
        texts = [_text(row, has_ratio=not mark) for row in cells]
        yield [f"{visible(str(pair))}{mark}", *texts, table.crossed.get(pair, "")]


def _text(row: Any, *, has_ratio: bool) -> str:
    """``31.2±0.3 98%``; behind a speed that is not compared, the word that says why."""
    parts = []
    if math.isfinite(row.speed):
        parts = [captions.with_error(row.speed, row.error, digits=1)]
        if has_ratio and math.isfinite(row.ratio):
            parts.append(f"{row.ratio:.0%}")
    return " ".join([*parts, *filter(None, [_word(row)])])


def _word(row: Any) -> str:
    """Why a cell has no speed, or one that is not compared; empty of others."""
    if row.status != Status.FINISHED or math.isnan(row.speed):
        return status_word(row.status)
    if row.compared:
        return ""
    attention = Attention(row.attention) if row.attention else None
    return captions.attention_mark(attention) or ELSEWHERE


def speed_rows(tables: Iterable[SpeedTable]) -> Iterator[data.Row]:
    """A row per run, pair and depth; numbers unrounded."""
    for table in tables:
        for row in _objects(table):
            yield {**data.run_row(table.run), "metric": table.test, **row}


def speed_objects(tables: Iterable[SpeedTable]) -> list[dict[str, Any]]:
    """A list of runs: setup, reference, crossovers, and a row per pair and depth."""
    return [
        {
            "run": table.run.name,
            "setup": data.setup_object(table.run),
            "metric": table.test,
            "reference": str(table.reference) if table.reference else None,
            "faster": {str(pair): word for pair, word in table.crossed.items()},
            "rows": _objects(table),
        }
        for table in tables
    ]


def _objects(table: SpeedTable) -> list[dict[str, Any]]:
    rows = table.frame.astype(object).itertuples(index=False)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]
