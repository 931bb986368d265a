"""Runs for other programs, as text: CSV, JSON, and tables for GitHub."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from codeneedle import frames, stats
from codeneedle.frames import Cell, Cells
from codeneedle.metrics import Metric
from codeneedle.records import Run
from codeneedle.report import headline
from codeneedle.report.grid import CORNER, looks, summary_headings, summary_row
from codeneedle.report.legend import legend_entries, short_lines, unmeasured_lines
from codeneedle.report.safetext import field, visible
from codeneedle.scored_rounds import Reading

NOT_RUN_STATUS = "not-run"
"""What stands for no status, where an empty field might be read as a missing one."""

_KEYS = ["k", "v", "status", "reason"]


def to_csv(runs: Sequence[Run], metrics: Sequence[Metric], reading: Reading) -> str:
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


def to_json(runs: Sequence[Run], metrics: Sequence[Metric], reading: Reading) -> str:
    """
    A list of runs: setup without the needles' text, metrics, and a cell per pair.

    Values are unrounded; null where there is none.
    """
    found = [_run_object(run, metrics, reading) for run in runs]
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(
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
    entries = [*legend_entries(cells, metric), *headline.facts(run)]
    sentences = [
        *unmeasured_lines(run, metric),
        *short_lines(cells),
        *headline.cautions(run.setup),
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
