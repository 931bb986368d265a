"""
Records as data frames: one row per pair, K slowest, most precise first.

All functions but `of_probe` take a run that holds records of one probe alone.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from codeneedle.grid import Pair, by_precision, most_precise
from codeneedle.metrics import Metric, Reading
from codeneedle.records import CellRecord, Run

_Row = tuple[str, str, str, str, float, int, float, str]

NOT_RUN = ""
"""Status of a pair that nobody tried."""


def of_probe(run: Run, probe: str) -> Run:
    """The same run, with the records of *probe* alone."""
    return replace(
        run, records=tuple(record for record in run.records if record.probe == probe)
    )


def axes(run: Run) -> tuple[list[str], list[str]]:
    """The K types and the V types, asked for or recorded, most precise first."""
    pairs = [record.pair for record in run.records]
    k_types = by_precision([*run.setup.types_k, *(pair.k for pair in pairs)])
    v_types = by_precision([*run.setup.types_v, *(pair.v for pair in pairs)])
    return k_types, v_types


def cells_frame(run: Run, metric: Metric, reading: Reading) -> pd.DataFrame:
    """
    Every pair of the grid, whatever became of it.

    Returns:
        One row per pair, K slowest, most precise first, with the columns

        * k, v: the cache types;
        * status: how the cell ended, `NOT_RUN` if it was not tried;
        * reason: why it did not finish; empty if it did;
        * value: the cell's mean or sum; NaN unless it finished and has one;
        * n: observations behind the value;
        * sd: standard deviation of these (n - 1); NaN below two;
        * against: the pair that the record says it was measured against; empty
          unless it finished and says so.

    Raises:
        ValueError: If a pair has two records: the run was not narrowed to a probe.
    """
    return cells_frames(run, [metric], reading)[metric.name]


def cells_frames(
    run: Run, metrics: Sequence[Metric], reading: Reading
) -> dict[str, pd.DataFrame]:
    """A `cells_frame` for each of *metrics*, by name; faster than one by one."""
    recorded = _by_pair(run.records)
    k_types, v_types = axes(run)
    rows: dict[str, list[_Row]] = {metric.name: [] for metric in metrics}
    distinct = {metric.name: metric for metric in metrics}.values()
    # Records outermost: what a probe works out of one serves all its metrics.
    for pair in itertools.starmap(Pair, itertools.product(k_types, v_types)):
        for metric in distinct:
            row = _row(pair, recorded.get(pair), run, metric, reading)
            rows[metric.name].append(row)
    columns = ["k", "v", "status", "reason", "value", "n", "sd", "against"]
    return {name: pd.DataFrame(rows[name], columns=columns) for name in rows}


def reference(cells: pd.DataFrame) -> Pair | None:
    """
    The pair that others are compared with; None if there is none.

    It is the one that records say they were measured against, or else the most
    precise one. Either has a value. Where records name several, there is none.
    """
    having = cells[cells["value"].notna()]
    pairs = list(map(Pair, having["k"], having["v"]))
    named = named_references(cells)
    if named:
        return named[0] if len(named) == 1 and named[0] in pairs else None
    return most_precise(pairs) if pairs else None


def named_references(cells: pd.DataFrame) -> list[Pair]:
    """The pairs that finished records say they were measured against, each once."""
    return [Pair.parse(pair) for pair in sorted(set(cells["against"]) - {""})]


def reference_named_by(metric: Metric, record: CellRecord) -> str:
    """What *record* says it was measured against; empty if it says nothing."""
    return (metric.reference(record) or "") if metric.reference else ""


def value_at(cells: pd.DataFrame, pair: Pair) -> float:
    """The value of *pair* in a `cells_frame`; NaN if it has none."""
    its_row = cells[(cells["k"] == pair.k) & (cells["v"] == pair.v)]
    return float(its_row["value"].iloc[0])


def cell_value(metric: Metric, values: Iterable[float]) -> float:
    """The number of a cell: mean or sum of its observations; NaN if it has none."""
    observations = list(values)
    if not observations:
        return math.nan
    total = math.fsum(observations)
    return total if metric.is_sum else total / len(observations)


def _by_pair(records: Iterable[CellRecord]) -> dict[Pair, CellRecord]:
    recorded: dict[Pair, CellRecord] = {}
    for record in records:
        if record.pair in recorded:
            raise ValueError(f"two records of {record.pair}: narrow the run to a probe")
        recorded[record.pair] = record
    return recorded


def _status(record: CellRecord | None) -> str:
    return NOT_RUN if record is None else record.status.value


def _row(
    pair: Pair, record: CellRecord | None, run: Run, metric: Metric, reading: Reading
) -> _Row:
    if record is None or not record.is_finished:
        reason = "" if record is None else record.reason
        return (pair.k, pair.v, _status(record), reason, np.nan, 0, np.nan, "")
    values = metric.values(record, run.setup, reading)
    return (
        pair.k,
        pair.v,
        _status(record),
        "",
        cell_value(metric, values),
        len(values),
        statistics.stdev(values) if len(values) > 1 else np.nan,
        reference_named_by(metric, record),
    )
