"""Speeds by depth, as a table and as JSON: each pair beside the reference."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pandas as pd

from codeneedle.cache_types import Pair, most_precise, most_precise_first
from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.errors import BadInput, NothingToShow
from codeneedle.probes.frames import CellValue, pairs_on_other_device
from codeneedle.probes.metrics import parse_facet
from codeneedle.probes.throughput.crossover import crossover_phrase
from codeneedle.probes.throughput.record import NAME
from codeneedle.records.record import Attention, Run, Status
from codeneedle.report import captions
from codeneedle.report.data import RunTable, run_tables
from codeneedle.report.display import SPEEDS, Display
from codeneedle.report.shown import REFERENCE_MARK, Shown, legend, shown_value
from codeneedle.report.tidy import (
    NOT_RUN_STATUS,
    TableRow,
    data_frame,
    loss_and_metric_rows,
)
from codeneedle.text import escape_invisible


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTable:
    """One speed of every pair of a run at every depth."""

    run: Run  # with the records of all probes
    test: str  # ``tg``, writing, or ``pp``, prompt reading
    frame: pd.DataFrame
    """
    Rows of the one table, one for each pair and depth, in tokens/s, with ``depth`` in
    tokens, ``ratio``, that to the reference at this depth, and ``compared``: cells
    without a kernel, and those of another device, keep their speed and are compared
    with none.
    """

    reference: Pair | None
    """The most precise pair that is compared; None if there is none."""

    crossed: Mapping[Pair, str]
    """From or until which depth each compared pair is faster."""

    @property
    def pairs(self) -> list[Pair]:
        """Those with a row, most precise first."""
        sides = zip(self.frame["k"], self.frame["v"], strict=True)
        return list(dict.fromkeys(Pair(k, v) for k, v in sides))

    @property
    def uncompared_rows(self) -> pd.DataFrame:
        """Rows of speeds that are shown and not compared."""
        return self.frame[self.frame["value"].notna() & ~self.frame["compared"]]


def is_speed_by_depth(metric: str) -> bool:
    """Whether *metric* is a speed that is measured by depth."""
    return metric in SPEEDS


def speed_table(run: Run, test: str) -> SpeedTable:
    """
    The speeds of *test* in *run*.

    Raises:
        BadInput: If there is no such test.
        NothingToShow: If no pair has a speed.
    """
    if test not in SPEEDS:
        raise BadInput(
            source="--metric",
            reason=f"'{test}' is no speed by depth: {' or '.join(SPEEDS)}",
            hint=f"Others: {captions.run_command_text('grid', run)} --metric METRIC",
        )
    measured_run = run.of_probe(NAME)
    records = {record.pair: record for record in measured_run.records}
    order = {str(pair): at for at, pair in enumerate(most_precise_first(records))}
    measured = (row for row in _depth_rows_of_test([run], test) if row.pair in order)
    rows = sorted(measured, key=lambda row: order[row.pair])
    elsewhere = pairs_on_other_device(measured_run)
    is_compared = [_is_compared(row, elsewhere) for row in rows]
    compared = {Pair(row.k, row.v) for row in itertools.compress(rows, is_compared)}
    reference = most_precise(compared) if compared else None
    frame = _speed_frame(rows, is_compared, reference)
    if not frame["value"].notna().any():
        raise captions.nothing_to_show_error(run, test, "throughput")
    crossed = {
        pair: crossover_phrase(record, records[reference], test)
        for pair, record in records.items()
        if reference and pair in compared - {reference}
    }
    return SpeedTable(
        run=run, test=test, frame=frame, reference=reference, crossed=crossed
    )


def _depth_rows_of_test(runs: Sequence[Run], test: str) -> list[TableRow]:
    """The rows of *test* at each depth, without that of the deepest alone."""
    rows = loss_and_metric_rows(runs, probe=NAME)
    return [row for row in rows if row.metric == test and row.facet]


def _speed_frame(
    rows: Sequence[TableRow], is_compared: Sequence[bool], reference: Pair | None
) -> pd.DataFrame:
    """The rows of a speed by depth, each beside that of the *reference*."""
    whole = data_frame(rows)
    frame = whole.assign(
        depth=[int(parse_facet(row.facet)["depth"]) for row in rows],
        compared=is_compared,
    )
    of_reference = frame[frame["pair"] == str(reference)]
    base = of_reference.set_index("depth")["value"]
    return frame.assign(ratio=frame["value"] / frame["depth"].map(base))


def _is_compared(row: TableRow, elsewhere: Collection[Pair]) -> bool:
    """Whether *row* may be compared: finished, ran as usual, and not *elsewhere*."""
    ran_as_usual = not row.attention or Attention(row.attention).is_usual
    is_here = Pair(row.k, row.v) not in elsewhere
    return row.status == Status.FINISHED and ran_as_usual and is_here


def nonempty_speed_tables(runs: Iterable[Run], test: str) -> list[SpeedTable]:
    """
    A `speed_table` of each of *runs* that has any.

    Raises:
        BadInput: See `speed_table`.
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
        yield Heading(f"{table.run.name}: {SPEEDS[table.test]} by depth, tokens/s")
        heading, *rows = _heading_and_rows(table)
        yield Table(heading, rows, words={heading[0], heading[-1]})
        yield Facts(speed_legend(table))
        yield Lines(captions.caution_and_gap_sentences(table.run), style="bold")
        yield Facts(captions.run_facts(table.run), is_quiet=True)


def speed_legend(table: SpeedTable) -> list[tuple[str, str]]:
    """Each mark and word of *table*, with its meaning."""
    entries = []
    if table.reference:
        reference = escape_invisible(str(table.reference))
        entries = [
            (REFERENCE_MARK, f"the reference, {reference}"),
            ("98%", "of the reference's speed at this depth"),
            ("faster", f"the depths at which it is faster than {reference}"),
        ]
    return [*entries, *legend(map(_shown_speed, table.frame.itertuples()))]


def _shown_speed(row: Any) -> Shown:
    """A row of `SpeedTable.frame` as reports show it, with its error and marks."""
    attention = Attention(row.attention) if row.attention else None
    is_apart = row.status == Status.FINISHED and not row.compared
    cell = CellValue(
        pair=Pair(row.k, row.v),
        status="" if row.status == NOT_RUN_STATUS else row.status,
        reason=row.reason,
        value=row.value,
        error=row.error,
        attention=attention,
        evidence=row.reason if is_apart else "",
        is_ranked=row.compared,
        is_elsewhere=is_apart,
    )
    return shown_value(cell, _SPEED)


_SPEED = Display(label="", digits=1, shows_error=True)


def _heading_and_rows(table: SpeedTable) -> Iterator[list[str]]:
    """The heading, and a row for each pair."""
    depths = list(dict.fromkeys(table.frame["depth"]))
    yield ["K/V", *(f"{depth:,}" for depth in depths), "faster"]
    for pair in table.pairs:
        is_of_pair = (table.frame["k"] == pair.k) & (table.frame["v"] == pair.v)
        mark = REFERENCE_MARK if pair == table.reference else ""
        cells = table.frame[is_of_pair].itertuples()
        texts = [_speed_and_ratio_text(row, has_ratio=not mark) for row in cells]
        yield [
            f"{escape_invisible(str(pair))}{mark}",
            *texts,
            table.crossed.get(pair, ""),
        ]


def _speed_and_ratio_text(row: Any, *, has_ratio: bool) -> str:
    """``31.2±0.3 98%``; behind a speed that is not compared, the word that says why."""
    has = has_ratio and row.compared and math.isfinite(row.ratio)
    return f"{_shown_speed(row).text}{f' {row.ratio:.0%}' if has else ''}"


def speed_rows(tables: Sequence[SpeedTable]) -> list[TableRow]:
    """Rows by depth of the runs of *tables*, which are all of one test."""
    runs = [table.run for table in tables]
    return _depth_rows_of_test(runs, tables[0].test) if tables else []


def speed_objects(tables: Sequence[SpeedTable]) -> list[RunTable]:
    """The rows and setup of each run, and from which depth a pair is faster."""
    found = run_tables([table.run for table in tables], speed_rows(tables))
    return [
        msgspec.structs.replace(
            of_run, faster={str(pair): word for pair, word in table.crossed.items()}
        )
        for of_run, table in zip(found, tables, strict=True)
    ]
