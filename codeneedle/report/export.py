"""Grids and tables as CSV, JSON and Markdown."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from codeneedle.analysis import frames
from codeneedle.analysis.frames import Cell, Cells
from codeneedle.analysis.metrics import Metric
from codeneedle.grid import Pair
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import (
    REFERENCE_MARK,
    incomplete_lines,
    legend_entries,
    unmeasured_lines,
)
from codeneedle.report.grid import (
    CORNER,
    grid_texts,
    judged_entries,
    summary_headings,
    summary_row,
)
from codeneedle.report.judgement import Verdict
from codeneedle.report.table import (
    HEADING,
    VERDICT,
    Column,
    PairTable,
    cell_texts,
    table_legend,
    title,
)
from codeneedle.scoring.rounds import Reading
from codeneedle.text import field, json_text, or_null, plain, table_lines, visible

NOT_RUN_STATUS = "not-run"
"""Status of a pair without a record; an empty field could be taken for missing data."""

_KEYS = ["k", "v", "status", "reason"]


def grid_csv(runs: Sequence[Run], metrics: Sequence[Metric], reading: Reading) -> str:
    """
    One row per run and pair, with a column for each of *metrics*.

    Values are unrounded and in the metrics' units; empty where there is none.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *_KEYS, *(metric.name for metric in metrics)])
    for run in runs:
        columns = frames.cells_frames(run, metrics, reading)
        for row in _rows(columns):
            keys = map(field, (run.name, *_keys(row[0])))
            writer.writerow([*keys, *(_field(cell.value) for cell in row)])
    return text.getvalue()


def grid_json(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    reading: Reading,
    found: Sequence[Verdict],
) -> str:
    """
    A list of runs: setup without the needles' text, metrics, and a cell per pair.

    Values are unrounded; null where there is none. *found* has a verdict on each run.
    """
    both = zip(runs, found, strict=True)
    return json_text([_run_object(run, metrics, reading, on) for run, on in both])


def grid_markdown(
    runs: Sequence[Run],
    metric: Metric,
    also: Sequence[Metric],
    reading: Reading,
    found: Sequence[Verdict],
) -> str:
    """The summary, then each grid with its legend, as GitHub renders tables."""
    both = list(zip(runs, found, strict=True))
    rows = [summary_row(run, metric, also, reading, on) for run, on in both]
    parts = [table_lines([summary_headings(runs, metric, also), *rows])]
    parts += [_grid_part(run, metric, reading, on) for run, on in both]
    return "\n".join(parts) + "\n"


def _rows(columns: Mapping[str, Cells]) -> Iterator[tuple[Cell, ...]]:
    """For each pair, its cell of every metric."""
    return zip(*columns.values(), strict=True)


def _keys(cell: Cell) -> tuple[str, str, str, str]:
    """What all metrics of a pair share, in the order of `_KEYS`."""
    return cell.pair.k, cell.pair.v, cell.status or NOT_RUN_STATUS, cell.reason


def _run_object(
    run: Run, metrics: Sequence[Metric], reading: Reading, found: Verdict
) -> dict[str, Any]:
    columns = frames.cells_frames(run, metrics, reading)
    reference = frames.reference(columns[metrics[0].name])
    return {
        "run": run.name,
        "setup": _setup_object(run),
        "reading": msgspec.to_builtins(reading),
        "reference": str(reference) if reference else None,
        "gradient": {name: found.axis_words(name) or None for name in columns},
        "metrics": [_metric_object(metric) for metric in metrics],
        "cells": [_cell_object(columns, row) for row in _rows(columns)],
    }


def _metric_object(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "label": metric.label,
        "unit": metric.unit,
        "better": metric.better,
        "is_sum": metric.is_sum,
    }


def _setup_object(run: Run) -> dict[str, Any]:
    """The setup, with the names of its needles instead of their text."""
    setup: dict[str, Any] = msgspec.to_builtins(run.setup)
    return {**setup, "needles": [needle.name for needle in run.setup.needles]}


def _cell_object(names: Iterable[str], row: Sequence[Cell]) -> dict[str, Any]:
    keys = zip(_KEYS, _keys(row[0]), strict=True)
    values = (or_null(cell.value) for cell in row)
    return {**dict(keys), "values": dict(zip(names, values, strict=True))}


def _field(value: float) -> float | str:
    return value if math.isfinite(value) else ""


def _grid_part(run: Run, metric: Metric, reading: Reading, found: Verdict) -> str:
    cells = frames.cells_frame(run, metric, reading)
    rows = [
        [k, *(text.plain.strip() for text in row)]
        for k, row in zip(frames.k_types(cells), grid_texts(cells, metric), strict=True)
    ]
    entries = [
        *legend_entries(run.setup, cells, metric),
        *judged_entries(found, metric),
        *captions.facts(run),
    ]
    sentences = [
        *unmeasured_lines(run, metric),
        *incomplete_lines(run, cells),
        *captions.cautions(run.setup),
    ]
    return "\n".join(
        [
            f"\n### {plain(run.name)}: {plain(metric.label)}\n",
            table_lines([[CORNER, *frames.v_types(cells)], *rows]),
            *(f"- {plain(line)}" for line in sentences),
            *(f"- {plain(word)}: {plain(phrase)}" for word, phrase in entries),
        ]
    )


RATIO = " / reference"
"""Behind a metric's name: the column of its values divided by the reference's."""


def table_csv(tables: Sequence[PairTable]) -> str:
    """
    One row per run and pair, with a column for each metric of each probe.

    Values are unrounded and in the metrics' units; empty where there is none.
    Metrics with a noise floor or a ratio have a second column, with the value divided
    by the reference's. Each probe has a column for its status, and one for the reason.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    probes = list(dict.fromkeys(name for table in tables for name in table.probes))
    # Runs may have been measured with different probes.
    columns = {c.metric.name: c.metric for table in tables for c in table.columns}
    metrics = list(columns.values())
    statuses = [f"{probe} {what}" for probe in probes for what in ("status", "reason")]
    values = [heading for metric in metrics for heading in _headings(metric)]
    writer.writerow(["run", "k", "v", "reference", VERDICT, *statuses, *values])
    for table in tables:
        by_name = {column.metric.name: column for column in table.columns}
        for pair in table.pairs:
            writer.writerow(
                [
                    *map(field, (table.run.name, pair.k, pair.v)),
                    int(pair == table.reference),
                    table.words.get(pair, ""),
                    *(field(w) for p in probes for w in _status(table, pair, p)),
                    *(
                        _field(value)
                        for metric in metrics
                        for value in _numbers(metric, by_name.get(metric.name), pair)
                    ),
                ]
            )
    return text.getvalue()


def table_json(tables: Sequence[PairTable]) -> str:
    """
    A list of runs: setup without the needles' text, metrics, and rows.

    Values are unrounded; null where there is none.
    """
    return json_text([_table_object(table) for table in tables])


def table_markdown(tables: Sequence[PairTable]) -> str:
    """Each table with its legend, for GitHub."""
    return "\n".join(_table_part(table) for table in tables)


def _headings(metric: Metric) -> Iterator[str]:
    yield metric.name
    if metric.floor or metric.relative:
        yield f"{metric.name}{RATIO}"


def _numbers(metric: Metric, column: Column | None, pair: Pair) -> Iterator[float]:
    """The value of *pair*, and its ratio if *metric* has any; NaN where missing."""
    yield column.cell(pair).value if column else math.nan
    if metric.floor or metric.relative:
        yield column.over_reference(pair) if column else math.nan


def _status(table: PairTable, pair: Pair, probe: str) -> tuple[str, str]:
    record = table.records.get((pair, probe))
    if record is None:
        return NOT_RUN_STATUS, ""
    return record.status.value, visible(record.reason)


def _table_object(table: PairTable) -> dict[str, Any]:
    return {
        "run": table.run.name,
        "setup": _setup_object(table.run),
        "reading": msgspec.to_builtins(table.reading),
        "reference": str(table.reference) if table.reference else None,
        "sorted_by": table.sorted_by,
        "metrics": [_column_object(column) for column in table.columns],
        "rows": [_row_object(table, pair) for pair in table.pairs],
    }


def _column_object(column: Column) -> dict[str, Any]:
    floor = column.reference_value if column.metric.floor else math.nan
    return {
        **_metric_object(column.metric),
        "probe": column.probe,
        "group": column.metric.group,
        "against": str(column.reference) if column.reference else None,
        "reference": or_null(column.reference_value),
        "floor": or_null(floor),
    }


def _row_object(table: PairTable, pair: Pair) -> dict[str, Any]:
    statuses = {probe: _status(table, pair, probe) for probe in table.probes}
    ratios = {c.metric.name: c.over_reference(pair) for c in table.columns}
    return {
        "k": pair.k,
        "v": pair.v,
        "verdict": table.words.get(pair, ""),
        "probes": {
            probe: {"status": status, "reason": reason}
            for probe, (status, reason) in statuses.items()
        },
        "values": {c.metric.name: or_null(c.cell(pair).value) for c in table.columns},
        "over_reference": {
            name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)
        },
    }


def _table_part(table: PairTable) -> str:
    last = [VERDICT] if table.words else []
    rows = [[HEADING, *(column.metric.name for column in table.shown), *last]]
    rows += [_texts(table, pair) for pair in table.pairs]
    entries = [*table_legend(table), *captions.facts(table.run)]
    parts = [f"### {plain(title(table))}\n", table_lines(rows)]
    sentences = [*table.remarks, *captions.cautions(table.run.setup)]
    parts += [f"- {plain(line)}" for line in sentences]
    parts += [f"- {plain(word)}: {plain(phrase)}" for word, phrase in entries]
    return "\n".join(parts) + "\n"


def _texts(table: PairTable, pair: Pair) -> list[str]:
    mark = REFERENCE_MARK if pair == table.reference else ""
    texts = (" ".join(cell_texts(column, pair)).strip() for column in table.shown)
    last = [table.words.get(pair, "")] if table.words else []
    return [f"{visible(str(pair))}{mark}", *texts, *last]
