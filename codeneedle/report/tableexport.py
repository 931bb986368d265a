"""The price of every pair for other programs: CSV, JSON, a table for GitHub."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from codeneedle.metrics import Metric
from codeneedle.report import headline
from codeneedle.report.export import NOT_RUN_STATUS, plain
from codeneedle.report.export import table_lines as github_table
from codeneedle.report.legend import REFERENCE_MARK
from codeneedle.report.pricetable import Column, PriceTable, Row
from codeneedle.report.safetext import field, visible
from codeneedle.report.separation import Separation, separations
from codeneedle.report.table import (
    HEADING,
    SEPARATION_NOTE,
    entry_texts,
    legend_entries,
    separation_rows,
)
from codeneedle.scored_rounds import Reading

SHARE = " / reference"
"""Behind a metric's name: the column of its values over the reference's."""


def to_csv(tables: Sequence[PriceTable]) -> str:
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


def to_json(tables: Sequence[PriceTable], reading: Reading) -> str:
    """
    A list of runs: setup without the needles' text, metrics, rows, separation.

    Values are unrounded; null where there is none.
    """
    found = [_table_object(table, reading) for table in tables]
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(tables: Sequence[PriceTable], reading: Reading) -> str:
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
        "metrics": [_metric_object(column) for column in table.columns],
        "rows": [_row_object(row, table) for row in table.rows],
        "separation": [_separation_object(e) for e in separations(table, reading)],
    }


def _metric_object(column: Column) -> dict[str, Any]:
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
        "reference": _or_null(column.reference),
        "floor": _or_null(column.reference) if metric.floor else None,
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
        "values": {name: _or_null(each.value) for name, each in row.entries.items()},
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
        "noise": _or_null(each.noise),
    }


def _part(table: PriceTable, reading: Reading) -> str:
    rows = [[HEADING, *(column.metric.name for column in table.shown)]]
    rows += [_texts(row, table.shown) for row in table.rows]
    found = list(separations(table, reading))
    entries = [*legend_entries(table), *headline.facts(table.run)]
    parts = [f"### {plain(visible(table.run.name))}: the price of a pair\n"]
    parts.append(github_table(rows))
    parts += [f"- {plain(line)}" for line in headline.cautions(table.run.setup)]
    parts += [f"- {plain(word)}: {plain(phrase)}" for word, phrase in entries]
    if found:
        parts += ["", github_table(separation_rows(found)), plain(SEPARATION_NOTE)]
    return "\n".join(parts) + "\n"


def _texts(row: Row, columns: Sequence[Column]) -> list[str]:
    mark = REFERENCE_MARK if row.is_reference else ""
    metrics = (column.metric for column in columns)
    texts = (entry_texts(metric, row.entries[metric.name]) for metric in metrics)
    return [f"{visible(str(row.pair))}{mark}", *(" ".join(t).strip() for t in texts)]


def _or_null(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
