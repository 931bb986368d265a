"""Which runs, probes and metrics a report is about."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.analysis.frames import of_probe
from codeneedle.analysis.metrics import Metric
from codeneedle.errors import UnknownName
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Probe
from codeneedle.records.record import Run
from codeneedle.records.store import find_runs
from codeneedle.report.comparison import PriceTable, price_table
from codeneedle.scoring.rounds import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """
    What a report is about.

    Attributes:
        runs: What the name covers, newest first; records of one probe each.
        probe: The probe that has the metric, and all that settings of *runs* make.
        metric: What to show.
        reading: How stored replies are read.
    """

    runs: tuple[Run, ...]
    probe: Probe
    metric: Metric
    reading: Reading

    @property
    def also(self) -> tuple[Metric, ...]:
        """What a summary tells beside the metric: good rounds out of all."""
        return tuple(
            metric
            for metric in self.probe.metrics
            if metric.is_sum and metric.better == "higher" and metric != self.metric
        )


def select(
    root: Path, name: str, metric: str, *, strict_indent: bool = False
) -> Selection:
    """
    Read the runs called *name* and look *metric* up.

    Args:
        root: Folder of all run folders.
        name: A corpus, ``corpus/model``, or a prefix.
        metric: Name of a metric of any probe.
        strict_indent: Whether leading white space counts.

    Raises:
        NoSuchRun: If nothing has that name.
        UnknownName: If no probe has that metric.
        BadRecord: If a file cannot be read.
    """
    found = read_runs(root, name)
    probe, chosen = metric_named(metric, found)
    return Selection(
        runs=tuple(of_probe(run, probe.name) for run in found),
        probe=_with_more_metrics(probe, found),
        metric=chosen,
        reading=Reading(strict_indent=strict_indent),
    )


def price_tables(
    root: Path,
    name: str,
    reading: Reading,
    *,
    sort: str | None,
) -> list[PriceTable]:
    """
    The price of each pair of the runs called *name*, by all probes.

    Args:
        root: Folder of all run folders.
        name: A corpus, ``corpus/model``, or a prefix.
        reading: How stored replies are read.
        sort: Name of the metric to sort by; None for the most precise first.

    Raises:
        NoSuchRun: If nothing has that name.
        UnknownName: If no probe has that metric.
        NeverRanks: If it is one that must not rank.
    """
    priced = functools.partial(
        price_table,
        probes=tuple(PROBES.values()),
        reading=reading,
    )
    runs = read_runs(root, name)
    try:
        return [priced(run, sort=sort) for run in runs]
    except UnknownName:
        # One of several runs may lack the metric; a metric that all lack is a typo.
        tables = [priced(run) for run in runs]
        if not any(_has(table, sort) for table in tables):
            raise
    return [
        priced(table.run, sort=sort if _has(table, sort) else None) for table in tables
    ]


def _has(table: PriceTable, metric: str | None) -> bool:
    return any(column.metric.name == metric for column in table.columns)


def read_runs(root: Path, name: str) -> list[Run]:
    """
    The runs called *name*, newest first, with the records of all probes.

    Args:
        root: Folder of all run folders.
        name: A corpus, ``corpus/model``, or a prefix.

    Raises:
        NoSuchRun: If nothing has that name.
    """
    return [run for store in find_runs(root, name) if (run := store.read())]


def metric_named(name: str, runs: Sequence[Run]) -> tuple[Probe, Metric]:
    """
    The metric called *name*, and the probe that has it.

    Args:
        name: Of a metric of any probe, or of one that settings of *runs* make.
        runs: Where it is to be shown.

    Raises:
        UnknownName: If no probe has it.
    """
    by_name = {
        metric.name: (probe, metric)
        for probe in PROBES.values()
        for metric in (*probe.metrics, *_more_metrics(probe, runs))
    }
    if name not in by_name:
        raise UnknownName(kind="metric", name=name, known=list(by_name))
    return by_name[name]


def _with_more_metrics(probe: Probe, runs: Sequence[Run]) -> Probe:
    """*probe* as a program wants it: no column is missing that can be asked for."""
    metrics = (*probe.metrics, *_more_metrics(probe, runs))
    by_name = {metric.name: metric for metric in metrics}
    return replace(probe, metrics=tuple(by_name.values()))


def _more_metrics(probe: Probe, runs: Sequence[Run]) -> Iterator[Metric]:
    for run in runs:
        if probe.name in run.setup.probes:
            yield from probe.more_metrics(run.setup)
