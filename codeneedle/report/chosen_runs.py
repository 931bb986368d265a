"""
Which runs a report is about by the names that are given, and which probe and metric
where none is named.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from codeneedle.errors import BadInput, UnknownName
from codeneedle.probes import PROBES
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import Run
from codeneedle.records.store import SETUP, Store, find_stores_or_refuse, setup_files_of
from codeneedle.report.display import display_of
from codeneedle.report.table import PairTable, pair_table
from codeneedle.system.files import expand_home, refuse_unreadable
from codeneedle.verdict.shares import read_runs_joining_shares

if TYPE_CHECKING:
    from codeneedle.verdict.judge import Verdict
    from codeneedle.verdict.limits import Limits

LOSS = "loss"
"""Name of the loss among metrics: what the verdict says of each pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a report is about."""

    runs: tuple[Run, ...]
    """The runs, newest first, each with the records of *probe* alone."""

    whole: tuple[Run, ...]  # the same with the records of all probes
    probe: Probe  # the probe of the metric, with the metrics that only these runs have
    metric: Metric  # the metric to show
    companions: tuple[Metric, ...] = ()
    """
    Metrics to show beside it, where the user named none: of lines that were written and
    of lines that were forced, the headline of the other.
    """

    limits: "Limits | None" = None
    """What the verdicts hold pairs against; None for the default."""

    asks_loss: bool = False
    """Whether to show the loss instead of *metric* where a run has one."""

    @property
    def shown_metrics(self) -> tuple[Metric, ...]:
        """The metrics to show, *metric* last."""
        return (*self.companions, self.metric)

    @property
    def has_values(self) -> bool:
        """Whether any pair has a value of a metric that is shown."""
        return any(
            _is_measured(self.probe, shown_metric, self.runs)
            for shown_metric in self.shown_metrics
        )

    @property
    def verdicts(self) -> list["Verdict"]:
        """The verdict on each run, judged anew at each call."""
        from codeneedle.verdict.judge import judge

        return [judge(run, self.limits) for run in self.whole]

    @property
    def summary_metrics(self) -> tuple[Metric, ...]:
        """
        The other metrics of a summary that have values: sums of rounds of which more
        is better, such as ``pass``, and the companions of the metric.
        """
        named = display_of(self.metric).companions
        return tuple(
            metric
            for metric in self.probe.metrics
            if (metric.is_sum and metric.better == "higher") or metric.name in named
            if metric != self.metric and _is_measured(self.probe, metric, self.runs)
        )


def read_selection(
    root: Path,
    *names: str | None,
    metric: str | None = None,
    limits: "Limits | None" = None,
) -> Selection:
    """
    Read the runs called *names* and look *metric* up.

    Args:
        root: Folder of all run folders.
        names: See `read_runs`.
        metric: Name of a metric of any probe, or ``loss``; None for the loss, and the
            `default_metric_name` of runs without one.
        limits: What the verdicts hold pairs against.

    Raises:
        BadInput: If nothing has that name.
        UnknownName: If no probe has that metric.
        BadRecord: If a file cannot be read.
    """
    whole = read_runs(root, *names)
    named = None if metric == LOSS else metric
    probe, chosen = probe_and_metric(named or default_metric_name(whole), whole)
    selection = Selection(
        runs=tuple(run.of_probe(probe.name) for run in whole),
        whole=tuple(whole),
        probe=_with_metrics_from_setups(probe, whole),
        metric=chosen,
        limits=limits,
        asks_loss=named is None,
    )
    if metric is None:
        # Forced recall alone has no values of what is written.
        companions = display_of(chosen).companions
        measured = tuple(
            probe_metric
            for probe_metric in probe.metrics
            if probe_metric.name in companions
            and _is_measured(probe, probe_metric, whole)
        )
        return replace(selection, companions=measured)
    return selection


def default_metric_name(runs: Sequence[Run]) -> str:
    """
    Name of the headline of the first probe that has a value in *runs*, newest first.

    Where it has none, of uninformative tasks alone, that of the first task. Without
    any value it is the headline of all probes' first.
    """
    for probe in PROBES.values():
        firsts = (probe.metrics_of(run.setup)[0] for run in runs)
        for metric in (*firsts, probe.metrics[0], *_metrics_from_setups(probe, runs)):
            if _is_measured(probe, metric, runs):
                return metric.name
    return next(iter(PROBES.values())).metrics[0].name


def read_and_judge_pair_tables(
    root: Path,
    name: str | None,
    *,
    sort: str | None,
    limits: "Limits | None" = None,
) -> list[PairTable]:
    """
    All metrics of each pair of the runs called *name*, newest first.

    Args:
        root: Folder of all run folders.
        name: See `read_runs`.
        sort: Name of the metric to sort by; None for the most precise first. A run
            without it is not sorted.
        limits: What the verdict holds pairs against.

    Raises:
        BadInput: If nothing has that name.
        UnknownName: If no run has that metric.
        BadInput: If neither end of that metric is better.
    """
    build = functools.partial(pair_table, probes=tuple(PROBES.values()))
    tables: list[PairTable] = []
    unknown: UnknownName | None = None
    for run in read_runs(root, name):
        try:
            tables.append(build(run, sort=sort))
        except UnknownName as error:
            unknown = error
            tables.append(build(run))
    if unknown and not any(table.sorted_by for table in tables):
        raise unknown
    # Not at the top: commands that judge nothing do not wait for statistics.
    from codeneedle.verdict.judge import judge

    return [replace(table, verdict=judge(table.run, limits)) for table in tables]


def read_runs(root: Path, *names: str | None) -> list[Run]:
    """
    The runs of all *names*, each once, with the records of all probes.

    Those of one name are in order of their change, newest first. Shares of a run are
    read as one.

    Args:
        root: Folder of all run folders.
        names: Corpora, ``corpus/model``, prefixes, or folders of one run or several;
            None, or no name, for the only run in *root*.

    Raises:
        BadInput: If one of them names nothing, or none is named and there are several.
    """
    stores = [store for name in names or (None,) for store in _stores_named(root, name)]
    by_folder = {store.folder.resolve(): store for store in stores}
    return read_runs_joining_shares(list(by_folder.values()))


def _stores_named(root: Path, name: str | None) -> list[Store]:
    """
    The run folders that *name* names: a path, else a name in *root*.

    Of a folder of several, the last changed first.
    """
    if name is None:
        return _stores_of_only_run(root)
    folder = expand_home(name)
    if folder.is_absolute():
        refuse_unreadable(folder)
    if stores := [Store(path.parent) for path in setup_files_of(folder)]:
        return stores
    inside = [*folder.glob(f"*/{SETUP}"), *folder.glob(f"*/*/{SETUP}")]
    if inside and ".." not in folder.parts:
        stores = [Store(path.parent) for path in inside]
        return sorted(stores, key=Store.changed_at, reverse=True)
    if folder.is_dir() and folder.is_absolute():
        raise BadInput(
            source=f"'{name}'",
            reason="is no run folder: it has no setup.json",
            hint="Name sweeps/CORPUS/MODEL, as a sweep made it.",
        )
    return find_stores_or_refuse(root, name)


def _stores_of_only_run(root: Path) -> list[Store]:
    """
    The store of the only run in *root*, or those of its shares.

    Raises:
        BadInput: If there is no run, or several.
    """
    stores = [Store(path.parent) for path in sorted(root.glob(f"*/*/{SETUP}"))]
    if not stores:
        refuse_unreadable(root, *root.glob("*"), *root.glob("*/*"))
        raise BadInput(
            source=f"{root}/",
            reason="there is no run in it",
            hint="Run 'codeneedle sweep' first, or name a run folder.",
        )
    names = dict.fromkeys(store.run_name for store in stores)
    if len(names) > 1:
        raise BadInput(
            source=f"{root}/",
            reason=f"{len(names)} runs are in it",
            hint=f"Name one: {', '.join(names)}.",
        )
    return stores


def read_single_run(root: Path, name: str | None) -> Run:
    """
    The only run called *name*; see `read_runs`.

    Raises:
        BadInput: If there is none, or several.
    """
    runs = read_runs(root, name)
    if len(runs) > 1:
        raise BadInput(
            source=f"'{name}'",
            reason=f"is the name of {len(runs)} runs",
            hint=f"Name one: {', '.join(run.name for run in runs)}.",
        )
    return runs[0]


def read_runs_and_output_folder(
    root: Path, names: Sequence[str]
) -> tuple[list[Run], Path]:
    """
    The runs of all *names*, and the folder that a file about them goes to.

    That is the run folder of a single run in *root*, and *root* itself for others.

    Args:
        root: Folder of all run folders.
        names: See `read_runs`; empty for the only run.

    Raises:
        BadInput: If one of them names nothing.
    """
    runs = read_runs(root, *names)
    alone = root / runs[0].name
    return runs, alone if len(runs) == 1 and alone.is_dir() else root


def probe_and_metric(name: str, runs: Sequence[Run]) -> tuple[Probe, Metric]:
    """
    The metric called *name*, and the first probe that has it, with values if any has.

    Args:
        name: Of a metric of any probe, or of one that only settings of *runs* have.
        runs: The runs to show it for.

    Raises:
        UnknownName: If no probe has it.
    """
    by_name: dict[str, list[tuple[Probe, Metric]]] = {}
    for probe in PROBES.values():
        metrics = (*probe.metrics, *_metrics_from_setups(probe, runs))
        for metric in {metric.name: metric for metric in metrics}.values():
            by_name.setdefault(metric.name, []).append((probe, metric))
    if name not in by_name:
        raise UnknownName(kind="metric", name=name, known=[LOSS, *by_name])
    known = by_name[name]
    return next(
        (candidate for candidate in known if _is_measured(*candidate, runs)), known[0]
    )


def _is_measured(probe: Probe, metric: Metric, runs: Sequence[Run]) -> bool:
    """Whether any record of *probe* in *runs* has a value of *metric*."""
    return any(
        metric.values(record, run.setup)
        for run in runs
        for record in run.of_probe(probe.name).records
        if record.has_numbers
    )


def _with_metrics_from_setups(probe: Probe, runs: Sequence[Run]) -> Probe:
    """*probe* with the metrics that settings of *runs* add, its headline first."""
    of_runs = (probe.metrics_of(run.setup)[:1] for run in runs)
    metrics = (*chain(*of_runs), *probe.metrics, *_metrics_from_setups(probe, runs))
    by_name = {metric.name: metric for metric in metrics}
    return replace(probe, metrics=tuple(by_name.values()))


def _metrics_from_setups(probe: Probe, runs: Sequence[Run]) -> Iterator[Metric]:
    """Metrics of *probe* that only the settings of *runs* have; one may come twice."""
    for run in runs:
        if probe.name in run.setup.probes:
            known = {metric.name for metric in probe.metrics}
            every = probe.metrics_of(run.setup)
            yield from (metric for metric in every if metric.name not in known)
