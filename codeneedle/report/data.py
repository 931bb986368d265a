"""Reports as data: rows for CSV, objects for JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from codeneedle.grid import Pair
from codeneedle.probes.frames import Cell
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.text import visible

Row = Mapping[str, object]

NOT_RUN_STATUS = "not-run"
HOLE_STATUS = "not-in-grid"
"""Status of a pair without a record; an empty field could be taken for missing data."""

_FORMULAS = ("=", "+", "-", "@")


def csv_text(rows: Iterable[Row]) -> str:
    """
    *rows* as CSV, a column for each key, which are spelled as variables are.

    Text is on one line and never a formula; what is missing or no number is empty.
    """
    lines = [{csv_name(key): _field(row[key]) for key in row} for row in rows]
    names = dict.fromkeys(name for line in lines for name in line)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _field(value: object) -> object:
    if isinstance(value, str):
        shown = visible(value)
        return f"'{shown}" if shown.startswith(_FORMULAS) else shown
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def csv_name(name: str) -> str:
    """*name* as a variable is called: ``tg_4096`` for ``tg@4096``."""
    return re.sub(r"\W+", "_", name)


def json_text(value: object) -> str:
    """*value* as indented JSON, with a line end; null for a number that is none."""
    whole = json.dumps(strict(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{whole}\n"


def strict(value: Any) -> Any:
    """*value* of JSON, with None for each number that is none."""
    if isinstance(value, Mapping):
        return {key: strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_row(run: Run) -> dict[str, str]:
    """Which run a row is of."""
    setup = run.setup
    return {
        "run": run.name,
        "model": setup.weights.name,
        "corpus": setup.corpus.name,
        "context": str(setup.context),
    }


def sides(pair: Pair) -> dict[str, str]:
    """Both types of *pair*, by axis."""
    return {"k": pair.k, "v": pair.v}


def attributes(source: object, *names: str) -> dict[str, Any]:
    """The attributes *names* of *source*, by name."""
    return {name: getattr(source, name) for name in names}


def cell_row(metric: Metric, cell: Cell) -> dict[str, object]:
    """The value of *metric*, its standard error, and the units that this is over."""
    n = cell.units if cell.has_value else ""
    name = metric.name
    return {name: cell.value, f"{name}_se": cell.error, f"{name}_n": n}


def metric_object(metric: Metric) -> dict[str, Any]:
    """What JSON says of *metric*."""
    return attributes(metric, "name", "label", "unit", "better", "is_sum")


def setup_object(run: Run) -> dict[str, Any]:
    """
    The setup, with the names of its needles instead of their text.

    Without what the reference has set, which may be all samples of an evaluation, and
    without the names of settings that may grow.
    """
    setup: dict[str, Any] = msgspec.to_builtins(run.setup)
    del setup["calibrated"], setup["grows"]
    named = {
        "needles": [needle.name for needle in run.setup.needles],
        "forced": [needle.name for needle in run.setup.forced],
    }
    return {**setup, **named}
