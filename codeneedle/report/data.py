"""Reports as data: rows of the one table as CSV, and as JSON with their setup."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report.captions import run_names_or_folders
from codeneedle.report.display import display_of
from codeneedle.report.tidy import COLUMNS, TableRow
from codeneedle.text import escape_invisible

_FORMULAS = ("=", "+", "-", "@")


class MetricFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a metric, or of a facet of it, are."""

    name: Annotated[str, Meta(description="As `--metric` takes it: `tg@4096`.")]
    metric: Annotated[str, Meta(description="As rows have it: `tg`.")]
    facet: Annotated[str, Meta(description="As rows have it: `depth=4096`.")]
    label: Annotated[str, Meta(description="What is measured, as a phrase.")]
    unit: Annotated[str, Meta(description="Of the values; empty for a pure number.")]
    better: Annotated[
        Literal["higher", "lower", "neither"],
        Meta(description="The good end of its scale."),
    ]
    is_sum: Annotated[
        bool, Meta(description="Whether a value is the sum of answers, not their mean.")
    ]


class RunTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of the one table, with what their run was measured on."""

    run: Annotated[str, Meta(description="Name of the run; its folder of namesakes.")]
    setup: Annotated[
        dict[str, Any],
        Meta(description="What must be equal for runs to be comparable."),
    ]
    metrics: Annotated[
        tuple[MetricFacts, ...], Meta(description="Of the rows, but for losses.")
    ]
    rows: tuple[TableRow, ...]
    sorted_by: Annotated[
        str | None,
        Meta(description="The metric that orders the pairs; precision if none."),
    ] = None
    faster: Annotated[
        dict[str, str],
        Meta(description="From or until which depth a pair is faster, in words."),
    ] = {}
    notes: Annotated[
        tuple[str, ...], Meta(description="What was left out, and why, in sentences.")
    ] = ()


def csv_text(rows: Iterable[TableRow]) -> str:
    """
    *rows* as CSV, whose header is `tidy.COLUMNS`.

    Text is on one line and never a formula; what is no number is empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_csv_field, msgspec.structs.astuple(row)) for row in rows)
    return text.getvalue()


def _csv_field(value: object) -> object:
    """*value* for CSV: text on one line, with a quote before what begins a formula."""
    if isinstance(value, str):
        shown = escape_invisible(value)
        return f"'{shown}" if shown.startswith(_FORMULAS) else shown
    return "" if value is None else value


def json_text(value: object) -> str:
    """
    *value* as JSON, with a line end; null for a number that is none.

    It is indented, but for the objects of a list that hold no others: rows are lines.
    """
    plain = with_none_for_non_finite(msgspec.to_builtins(value, str_keys=True))
    return f"{_indented_json(plain, '')}\n"


def _indented_json(value: Any, indent: str) -> str:
    """*value* of JSON, whose lines but for the first begin with *indent*."""
    inner = f"{indent}  "
    if not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    if isinstance(value, dict):
        members = (
            f"{json.dumps(key, ensure_ascii=False)}: {_indented_json(member, inner)}"
            for key, member in value.items()
        )
        return _json_block("{", members, "}", indent)
    items = (
        json.dumps(element, ensure_ascii=False, allow_nan=False)
        if isinstance(element, dict) and not _holds_containers(element)
        else _indented_json(element, inner)
        for element in value
    )
    return _json_block("[", items, "]", indent)


def _json_block(start: str, parts: Iterable[str], end: str, indent: str) -> str:
    lines = f",\n{indent}  ".join(parts)
    return f"{start}\n{indent}  {lines}\n{indent}{end}"


def _holds_containers(members: Mapping[str, Any]) -> bool:
    return any(isinstance(member, dict | list) for member in members.values())


def with_none_for_non_finite(value: Any) -> Any:
    """*value* of JSON, with None for each number that is none."""
    if isinstance(value, Mapping):
        return {key: with_none_for_non_finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [with_none_for_non_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_tables(runs: Sequence[Run], rows: Iterable[TableRow]) -> list[RunTable]:
    """The *rows* of each of *runs* with its setup."""
    by_run: dict[str, list[TableRow]] = {
        name: [] for name in run_names_or_folders(runs)
    }
    for row in rows:
        by_run[row.run].append(row)
    return [
        RunTable(
            run=name,
            setup=setup_object(run),
            metrics=tuple(_facts_of_row_metrics(run, by_run[name])),
            rows=tuple(by_run[name]),
        )
        for name, run in zip(by_run, runs, strict=True)
    ]


def _facts_of_row_metrics(run: Run, rows: Sequence[TableRow]) -> Iterator[MetricFacts]:
    """What the metrics of *rows* are, each once, in the order of probes; no losses."""
    shown = {(row.metric, row.facet) for row in rows}
    probes = {row.probe for row in rows}
    metrics = {
        (metric.of or metric.name, metric.facet): metric
        for probe in PROBES.values()
        if probe.name in probes
        for metric in probe.metrics_of(run.setup)
    }
    for key, metric in metrics.items():
        if key in shown:
            yield _facts_of_metric(metric)


def _facts_of_metric(metric: Metric) -> MetricFacts:
    """What JSON says of *metric*."""
    return MetricFacts(
        name=metric.name,
        metric=metric.of or metric.name,
        facet=metric.facet,
        label=display_of(metric).label,
        unit=metric.unit,
        better=metric.better,
        is_sum=metric.is_sum,
    )


def types_by_axis(pair: Pair) -> dict[str, str]:
    """Both types of *pair*, by axis."""
    return {"k": pair.k, "v": pair.v}


def attributes(source: object, *names: str) -> dict[str, Any]:
    """The attributes *names* of *source*, by name."""
    return {name: getattr(source, name) for name in names}


def setup_object(run: Run) -> dict[str, Any]:
    """
    The setup, with the names of functions instead of their text.

    Without what the reference has set, which may be all samples of an evaluation, and
    without the names of settings that may grow.
    """
    setup: dict[str, Any] = msgspec.to_builtins(run.setup)
    del setup["calibrated"]
    probes = {
        name: {key: _function_names_or_value(value) for key, value in stored.items()}
        for name, stored in run.setup.probes.items()
    }
    return {**setup, "probes": probes}


def _function_names_or_value(value: Any) -> Any:
    """*value*; of functions, which have lines, their names."""
    is_of_functions = isinstance(value, list) and all(
        isinstance(element, dict) and "lines" in element for element in value
    )
    return (
        [function["name"] for function in value] if value and is_of_functions else value
    )
