"""Grids and tables as CSV, JSON and Markdown."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from codeneedle.analysis import frames, stats
from codeneedle.analysis.frames import Cell, Cells
from codeneedle.analysis.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import (
    REFERENCE_MARK,
    legend_entries,
    short_lines,
    unmeasured_lines,
)
from codeneedle.report.comparison import (
    Column,
    PriceTable,
    Row,
    Separation,
    separations,
)
from codeneedle.report.grid import CORNER, looks, summary_headings, summary_row
from codeneedle.report.table import (
    HEADING,
    SEPARATION_NOTE,
    entry_texts,
    separation_rows,
    table_legend,
)
from codeneedle.scoring.rounds import Reading
from codeneedle.text import field, visible

NOT_RUN_STATUS = "not-run"
"""What stands for no status, where an empty field might be read as a missing one."""

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


def grid_json(runs: Sequence[Run], metrics: Sequence[Metric], reading: Reading) -> str:
    """
    A list of runs: setup without the needles' text, metrics, and a cell per pair.

    Values are unrounded; null where there is none.
    """
    found = [_run_object(run, metrics, reading) for run in runs]
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def grid_markdown(
    runs: Sequence[Run], metric: Metric, also: Sequence[Metric], reading: Reading
) -> str:
    """The summary, then each grid with its legend, as GitHub renders tables."""
    rows = [summary_row(run, metric, also, reading) for run in runs]
    parts = [table_lines([summary_headings(runs, metric, also), *rows])]
    parts += [_grid_part(run, metric, reading) for run in runs]
    return "\n".join(parts) + "\n"


def _rows(columns: Mapping[str, Cells]) -> Iterator[tuple[Cell, ...]]:
    """For each pair its cell of every metric."""
    return zip(*columns.values(), strict=True)


def _keys(cell: Cell) -> tuple[str, str, str, str]:
    """What is the same for all metrics of a pair, in the order of `_KEYS`."""
    return cell.pair.k, cell.pair.v, cell.status or NOT_RUN_STATUS, cell.reason


def _run_object(
    run: Run, metrics: Sequence[Metric], reading: Reading
) -> dict[str, Any]:
    columns = frames.cells_frames(run, metrics, reading)
    setup = msgspec.to_builtins(run.setup)
    setup["needles"] = [needle.name for needle in run.setup.needles]
    reference = frames.reference(columns[metrics[0].name])
    return {
        "run": run.name,
        "setup": setup,
        "reading": msgspec.to_builtins(reading),
        "reference": str(reference) if reference else None,
        "gradient": {name: _gradient(cells) for name, cells in columns.items()},
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


def _gradient(cells: Cells) -> dict[str, Any]:
    found = stats.gradient(cells)
    return {
        "words": found.words,
        "rho": _or_null(found.rho),
        "p": _or_null(found.p),
    }


def _cell_object(names: Iterable[str], row: Sequence[Cell]) -> dict[str, Any]:
    keys = zip(_KEYS, _keys(row[0]), strict=True)
    values = (_or_null(cell.value) for cell in row)
    return {**dict(keys), "values": dict(zip(names, values, strict=True))}


def _or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _field(value: float) -> float | str:
    return value if math.isfinite(value) else ""


def _grid_part(run: Run, metric: Metric, reading: Reading) -> str:
    cells = frames.cells_frame(run, metric, reading)
    rows = [
        [k, *(look.text.strip() for look in row)]
        for k, row in zip(frames.k_types(cells), looks(cells, metric), strict=True)
    ]
    entries = [*legend_entries(cells, metric), *captions.facts(run)]
    sentences = [
        *unmeasured_lines(run, metric),
        *short_lines(cells),
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


def table_lines(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length, the first of them the heading, as a GitHub table."""
    heading, *others = ([plain(word) for word in row] for row in rows)
    rule = [":--", *["--:"] * (len(heading) - 1)]
    return (
        "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *others)) + "\n"
    )


def plain(text: str) -> str:
    """*text* in one line, without a meaning in Markdown or HTML."""
    text = visible(text)
    for special in "\\`*_|<>[]":
        text = text.replace(special, f"\\{special}")
    return text


SHARE = " / reference"
"""Behind a metric's name: the column of its values over the reference's."""


def table_csv(tables: Sequence[PriceTable]) -> str:
    """
    One row per run and pair, with a column for each metric of each probe.

    Values are unrounded and in the metrics' units; empty where there is none.
    Beside those with a floor or a ratio stands the value over the reference's;
    each probe has a column for how its cell ended, and one for why.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    probes = list(dict.fromkeys(name for table in tables for name in table.probes))
    metrics = _metrics(tables)
    endings = [f"{probe} {what}" for probe in probes for what in ("status", "reason")]
    values = [heading for metric in metrics for heading in _headings(metric)]
    writer.writerow(["run", "k", "v", "reference", *endings, *values])
    for table in tables:
        for row in table.rows:
            writer.writerow(
                [
                    field(table.run.name),
                    field(row.pair.k),
                    field(row.pair.v),
                    int(row.is_reference),
                    *(field(word) for probe in probes for word in _ending(row, probe)),
                    *(each for metric in metrics for each in _numbers(row, metric)),
                ]
            )
    return text.getvalue()


def table_json(tables: Sequence[PriceTable], reading: Reading) -> str:
    """
    A list of runs: setup without the needles' text, metrics, rows, separation.

    Values are unrounded; null where there is none.
    """
    found = [_table_object(table, reading) for table in tables]
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def table_markdown(tables: Sequence[PriceTable], reading: Reading) -> str:
    """Each table with its legend and what separates its pairs, for GitHub."""
    return "\n".join(_part(table, reading) for table in tables)


def _metrics(tables: Sequence[PriceTable]) -> list[Metric]:
    """Those of all *tables*: runs may have been measured with different probes."""
    columns = (column for table in tables for column in table.columns)
    return list({column.metric.name: column.metric for column in columns}.values())


def _headings(metric: Metric) -> Iterator[str]:
    yield metric.name
    if metric.floor or metric.relative:
        yield f"{metric.name}{SHARE}"


def _numbers(row: Row, metric: Metric) -> Iterator[float | str]:
    entry = row.entries.get(metric.name)
    yield entry.value if entry and math.isfinite(entry.value) else ""
    if metric.floor or metric.relative:
        yield entry.beside if entry and math.isfinite(entry.beside) else ""


def _ending(row: Row, probe: str) -> tuple[str, str]:
    record = row.records.get(probe)
    if record is None:
        return NOT_RUN_STATUS, ""
    return record.status.value, visible(record.reason)


def _table_object(table: PriceTable, reading: Reading) -> dict[str, Any]:
    setup = msgspec.to_builtins(table.run.setup)
    setup["needles"] = [needle.name for needle in table.run.setup.needles]
    return {
        "run": table.run.name,
        "setup": setup,
        "reading": msgspec.to_builtins(reading),
        "reference": str(table.reference) if table.reference else None,
        "sorted_by": table.sorted_by,
        "metrics": [_table_metric_object(column) for column in table.columns],
        "rows": [_row_object(row, table) for row in table.rows],
        "separation": [_separation_object(e) for e in separations(table, reading)],
    }


def _table_metric_object(column: Column) -> dict[str, Any]:
    metric = column.metric
    return {
        "name": metric.name,
        "probe": column.probe,
        "label": metric.label,
        "unit": metric.unit,
        "better": metric.better,
        "group": metric.group,
        "is_sum": metric.is_sum,
        "against": str(column.against) if column.against else None,
        "reference": _number_or_null(column.reference),
        "floor": _number_or_null(column.reference) if metric.floor else None,
    }


def _row_object(row: Row, table: PriceTable) -> dict[str, Any]:
    endings = {probe: _ending(row, probe) for probe in table.probes}
    return {
        "k": row.pair.k,
        "v": row.pair.v,
        "probes": {
            probe: {"status": status, "reason": reason}
            for probe, (status, reason) in endings.items()
        },
        "values": {
            name: _number_or_null(each.value) for name, each in row.entries.items()
        },
        "over_reference": {
            name: each.beside
            for name, each in row.entries.items()
            if math.isfinite(each.beside)
        },
        "unranked": [
            name
            for name, each in row.entries.items()
            if math.isfinite(each.value) and not each.ranks
        ],
    }


def _separation_object(each: Separation) -> dict[str, Any]:
    return {
        "metric": each.metric.name,
        "pairs": each.compared,
        "told_apart": each.told,
        "most": str(each.pair),
        "difference": each.difference,
        "noise": _number_or_null(each.noise),
    }


def _part(table: PriceTable, reading: Reading) -> str:
    rows = [[HEADING, *(column.metric.name for column in table.shown)]]
    rows += [_texts(row, table.shown) for row in table.rows]
    found = list(separations(table, reading))
    entries = [*table_legend(table), *captions.facts(table.run)]
    parts = [f"### {plain(visible(table.run.name))}: the price of a pair\n"]
    parts.append(table_lines(rows))
    parts += [f"- {plain(line)}" for line in captions.cautions(table.run.setup)]
    parts += [f"- {plain(word)}: {plain(phrase)}" for word, phrase in entries]
    if found:
        parts += ["", table_lines(separation_rows(found)), plain(SEPARATION_NOTE)]
    return "\n".join(parts) + "\n"


def _texts(row: Row, columns: Sequence[Column]) -> list[str]:
    mark = REFERENCE_MARK if row.is_reference else ""
    metrics = (column.metric for column in columns)
    texts = (entry_texts(metric, row.entries[metric.name]) for metric in metrics)
    return [f"{visible(str(row.pair))}{mark}", *(" ".join(t).strip() for t in texts)]


def _number_or_null(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
