"""
Runs beside a first one: how setups differ, which metrics must not be compared and why,
and how far each of the others changed, with its interval.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from codeneedle.cache_types import Pair, pairs_phrase
from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.probes import PROBES
from codeneedle.probes.frames import CellValue
from codeneedle.probes.metrics import LossKind, Metric
from codeneedle.records.comparability import setup_differences
from codeneedle.records.record import Run, Setup
from codeneedle.report import captions
from codeneedle.report.display import display_of
from codeneedle.report.shown import NOT_IN_BOTH, unusual_place_marks
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.tidy import loss_and_metric_rows
from codeneedle.text import (
    NO_VALUE_WORD,
    escape_invisible,
    json_value_phrase,
    number_text,
)
from codeneedle.verdict.statistics import ALPHA, Bounds, mean_loss_interval

WALL = (
    "Divergence is measured against a base that each build writes itself: two builds, "
    "or processors with other features, were seen to differ on K-quant weights by "
    "0.027 to 0.035 nats, as much as a quantized cache can cost, and on Q8_0 weights "
    "by nothing. Measure with the same build on the same kind of processor, best with "
    "Q8_0 weights."
)
"""Why divergence is not compared. Source: antonellof/ferrox #102, #108, #110, #111."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One metric of the second run less that of the first, over the pairs of both."""

    metric: Metric
    probes: tuple[str, str]
    """Names of the probes that measured it in the first and in the second."""

    values: Mapping[Pair, tuple[float, float]]
    """By pair, its value in the first and in the second run."""

    refused: str = ""  # why the two must not be compared; empty if they may
    elsewhere: tuple[Pair, ...] = ()
    """
    Pairs whose attention did not run in the same place in both; their values stand side
    by side and are not tested.
    """

    bounds: Bounds | None = None
    """
    Mean change over units, each averaged over the pairs, with its interval, 5 % of
    error shared among the metrics; None where the units are not the same. Of forced
    recall, the change of the probability of a token.
    """

    @property
    def is_share_of_right_tokens(self) -> bool:
        """Whether its bounds are of a share of the right tokens, not of its values."""
        loss = self.metric.loss
        return loss is not None and loss.kind is LossKind.PROBABILITY

    @property
    def better_or_worse_phrase(self) -> str:
        """``better``, ``worse``, ``no difference shown``, or why nothing is said."""
        if self.refused:
            return self.refused
        if self.bounds is None and len(self.elsewhere) == len(self.values):
            return "not tested: attention ran in different places"
        if self.bounds is None:
            unpaired = "not tested: the two do not share functions, questions or chunks"
            return unpaired if self.metric.loss else "not tested"
        if self.bounds.low <= 0 <= self.bounds.high:
            return "no difference shown"
        is_more = self.bounds.low > 0
        return "better" if is_more == (self.metric.better != "lower") else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs compared."""

    first: Run  # the run that is compared with
    second: Run  # the run that is judged
    setups: tuple[tuple[str, str, str], ...]
    """What differs: name, and the value in each."""

    changes: tuple[Change, ...]  # one for each metric that both have

    @property
    def why_divergence_not_compared(self) -> str:
        """Why no divergence is compared across kernels; empty where none was."""
        refused = any(
            change.metric.is_distance and change.refused for change in self.changes
        )
        kernels = kernel_difference_phrase(self.first.setup, self.second.setup)
        return WALL if refused and kernels else ""


def compare(first: Run, second: Run) -> RunComparison:
    """
    Compare *second* with *first*, pair by pair and metric by metric.

    Metrics are those that the table of *first* shows, and those with `Display.is_kept`.
    Units (functions, chunks, questions) are paired by name; those count that both
    references answered. Refused are speeds of different machines, memory of different
    contexts, divergence across builds or CPU features, probes with different settings,
    and probes of which the corpus or the seed decides the text where that differs.
    """
    probes = tuple(PROBES.values())
    ours, theirs = (pair_table(run, probes) for run in (first, second))
    others = {column.metric.name: column for column in theirs.columns}
    shown = [
        column
        for column in ours.columns
        if column.metric.name in others and column.has_values
        if column.is_shown or display_of(column.metric).is_kept
    ]
    tested = sum(column.metric.loss is not None for column in shown)
    changes = (
        _metric_change((column, others[column.metric.name]), (ours, theirs), tested)
        for column in shown
    )
    return RunComparison(
        first=first,
        second=second,
        setups=tuple(
            (name, json_value_phrase(was), json_value_phrase(now))
            for name, was, now in setup_differences(first.setup, second.setup)
        ),
        changes=tuple(change for change in changes if change.values),
    )


def _metric_change(
    columns: tuple[Column, Column], tables: tuple[PairTable, PairTable], tested: int
) -> Change:
    """
    How one metric changed over the pairs that have a value in both.

    Not tested where it has no loss, or no unit in both; its share of error is one of
    *tested*.
    """
    ours, theirs = columns
    setups = (tables[0].run.setup, tables[1].run.setup)
    values = {
        pair: (cell.value, theirs.cell(pair).value)
        for pair, cell in ours.cells.items()
        if cell.has_value and theirs.cell(pair).has_value
    }
    elsewhere = tuple(
        pair
        for pair in values
        if _attention_place(ours.cell(pair)) != _attention_place(theirs.cell(pair))
    )
    change = Change(
        metric=ours.metric,
        probes=(ours.probe, theirs.probe),
        values=values,
        elsewhere=elsewhere,
    )
    if reason := next(_why_incomparable(ours, *setups), ""):
        return replace(change, refused=f"not compared: {reason}")
    tested_pairs = [pair for pair in values if pair not in elsewhere]
    if not ours.metric.loss or not tested_pairs:
        return change
    gaps = _mean_unit_differences(ours, tables, tested_pairs)
    if not gaps:
        return change
    return replace(change, bounds=mean_loss_interval(gaps, ALPHA / 2 / max(tested, 1)))


def _attention_place(cell: CellValue) -> str:
    """The signs of where *cell* was measured; empty in a kernel or if unknown."""
    return " ".join(mark.sign for mark in unusual_place_marks(cell))


def _mean_unit_differences(
    column: Column, tables: tuple[PairTable, PairTable], pairs: Sequence[Pair]
) -> list[float]:
    """
    The gain of each unit that all *pairs* of both runs have, averaged over pairs.

    In order of their names; a gain is a higher value, whichever is better.
    """
    gains: list[dict[str, float]] = []
    for pair in pairs:
        before, after = (
            _answered_values_by_unit(column, table, pair) for table in tables
        )
        gains.append(
            {name: after[name] - before[name] for name in before if name in after}
        )
    shared = set.intersection(*map(set, gains))
    return [fmean(gain[name] for gain in gains) for name in sorted(shared)]


def _answered_values_by_unit(
    column: Column, table: PairTable, pair: Pair
) -> dict[str, float]:
    """
    The values of *pair* by unit, without units that it gave no answer of.

    A server that broke is no change of a type's quality.
    """
    record, setup = table.records[pair, column.probe], table.run.setup
    units = column.metric.loss_values_by_unit(record, setup)
    silent = column.metric.units_without_value(record, setup)
    return {name: value for name, value in units.items() if name not in silent}


def _why_incomparable(column: Column, first: Setup, second: Setup) -> Iterator[str]:
    """Why values of *column* must not be compared; nothing if they may."""
    metric, probe = column.metric, PROBES[column.probe]
    if metric.is_distance and (kernels := kernel_difference_phrase(first, second)):
        yield f"other {escape_invisible(kernels)}"
    if metric.quantity == "speed" and first.machine != second.machine:
        yield "speeds of different machines"
    if metric.quantity == "memory" and first.context != second.context:
        yield "memory of different contexts"
    is_other = probe.makes_texts and first.seed != second.seed
    if metric.quantity == "quality" and is_other:
        yield "another text"
    ours, theirs = (probe.deciding_settings(setup) for setup in (first, second))
    other = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    if other:
        yield (
            f"{probe.name} with other settings: "
            f"{', '.join(map(escape_invisible, other))}"
        )
    refusal = probe.why_incomparable(first, second)
    if metric.quantity == "quality" and refusal:
        yield refusal


def kernel_difference_phrase(first: Setup, second: Setup) -> str:
    """Difference between the kernels of two runs, as a phrase; empty without one."""
    phrases = []
    if first.llama != second.llama:
        phrases.append(f"builds {first.llama or '-'} and {second.llama or '-'}")
    one, other = (setup.cpu_features.split() for setup in (first, second))
    if {*one} != {*other}:
        ours = [name for name in one if name not in other] or ["no others"]
        theirs = [name for name in other if name not in one] or ["no others"]
        phrases.append(
            f"CPU features ({' '.join(ours)} in the first, {' '.join(theirs)} in the "
            "second)"
        )
    return ", ".join(phrases)


NOTHING_SHARED = "They share no metric with values of the same pair."
"""Instead of a table of changes."""


def comparisons_document(comparisons: Sequence[RunComparison]) -> Document:
    """What changed in each of several runs, a column per run; then each by itself."""
    if comparisons[1:]:
        first, *others = captions.run_names_or_folders(
            [comparisons[0].first, *(comparison.second for comparison in comparisons)]
        )
        yield Heading(f"changes from {first}")
        columns = [name.replace("/", "/\n") for name in others]
        changes = [
            {change.metric.name: change for change in comparison.changes}
            for comparison in comparisons
        ]
        names = dict.fromkeys(name for of_run in changes for name in of_run)
        rows = [
            [name, *(_change_phrase(run.get(name)) for run in changes)]
            for name in names
        ]
        yield Table(["metric", *columns], rows, words={"metric", *columns})
        if any(name not in of_run for of_run in changes for name in names):
            yield Facts([(NOT_IN_BOTH.sign, NOT_IN_BOTH.meaning)])
    for comparison in comparisons:
        yield from comparison_document(comparison)


def _change_phrase(change: Change | None) -> str:
    """
    ``-2.5 % worse``; a mark where it is not in both runs.

    Without bounds ``not compared`` or ``not tested``, the reason of which stands below.
    """
    if change is None:
        return NOT_IN_BOTH.sign
    if change.bounds is None:
        return change.better_or_worse_phrase.partition(":")[0]
    return f"{_change_text(change, change.bounds.mean)} {change.better_or_worse_phrase}"


def comparison_document(comparison: RunComparison) -> Document:
    """Setups, then metrics over all pairs, then pair by pair."""
    yield from comparison_summary(comparison)
    for change in comparison.changes:
        if not change.refused:
            yield Heading(f"{change.metric.name}: {display_of(change.metric).label}")
            rows = list(_pair_rows(change))
            yield Table(["K/V", "first", "second", "change"], rows, words={"K/V"})
            if change.elsewhere:
                pairs = pairs_phrase(change.elsewhere)
                yield Lines([f"not tested, attention ran in different places: {pairs}"])


def comparison_summary(comparison: RunComparison) -> Document:
    """How the setups differ, and what changed over all pairs."""
    first, second = captions.run_names_or_folders([comparison.first, comparison.second])
    yield Heading(f"{second} compared with {first}")
    setups = comparison.setups or (("nothing differs", "", ""),)
    heading = ["setup", "first", "second"]
    yield Table(heading, setups, words=heading)
    heading = ["metric", "change", "from", "to", "the second is"]
    rows = list(_change_rows(comparison))
    yield Table(heading, rows, words={heading[0], heading[-1]})
    yield Lines([comparison.why_divergence_not_compared if rows else NOTHING_SHARED])


def comparison_object(comparison: RunComparison) -> dict[str, Any]:
    """
    One object; null where there is no number.

    Keys: ``first``, ``second`` (folders), ``setups`` (``name``, ``first``,
    ``second``), ``remark`` (why divergence is not compared, or empty), ``changes``
    (``metric``, ``facet``, ``refused``, ``change``, ``low``, ``high``, ``unit``,
    ``words``, ``not_tested``: pairs whose attention did not run in the same place in
    both) and ``rows``, those of the one table that are compared.
    """
    runs = (comparison.first, comparison.second)
    compared = {
        (name, probe, metric.of or metric.name, metric.facet, str(pair))
        for change in comparison.changes
        for metric in [change.metric]
        for name, probe in zip(
            captions.run_names_or_folders(runs), change.probes, strict=True
        )
        for pair in change.values
    }
    return {
        "first": str(comparison.first.folder),
        "second": str(comparison.second.folder),
        "setups": [
            {"name": name, "first": was, "second": now}
            for name, was, now in comparison.setups
        ],
        "remark": comparison.why_divergence_not_compared,
        "changes": [_change_object(change) for change in comparison.changes],
        "rows": [
            row
            for row in loss_and_metric_rows(runs)
            if (row.run, row.probe, row.metric, row.facet, row.pair) in compared
        ],
    }


def _change_object(change: Change) -> dict[str, Any]:
    return {
        "metric": change.metric.of or change.metric.name,
        "facet": change.metric.facet,
        "refused": change.refused,
        "change": change.bounds.mean if change.bounds else None,
        "low": change.bounds.low if change.bounds else None,
        "high": change.bounds.high if change.bounds else None,
        "unit": "share" if change.is_share_of_right_tokens else change.metric.unit,
        "words": change.better_or_worse_phrase,
        "not_tested": [str(pair) for pair in change.elsewhere],
    }


def _change_rows(comparison: RunComparison) -> Iterator[list[str]]:
    """What changed, a row per metric, or why it is not compared."""
    for change in comparison.changes:
        bounds = change.bounds
        ends = (bounds.mean, bounds.low, bounds.high) if bounds else (math.nan,) * 3
        yield [
            change.metric.name,
            *(_change_text(change, end) for end in ends),
            change.better_or_worse_phrase,
        ]


def _change_text(change: Change, value: float) -> str:
    """``-0.31``; ``-2.5 %`` of the right tokens."""
    if not math.isfinite(value):
        return NO_VALUE_WORD
    if change.is_share_of_right_tokens:
        return f"{number_text(100 * value, digits=1, sign=True)} %"
    return number_text(
        value, digits=max(display_of(change.metric).digits, 2), sign=True
    )


def _pair_rows(change: Change) -> Iterator[list[str]]:
    """Each pair with both values and the difference."""
    digits = display_of(change.metric).digits
    for pair, (first, second) in change.values.items():
        yield [
            str(pair),
            number_text(first, digits=digits),
            number_text(second, digits=digits),
            number_text(second - first, digits=digits, sign=True),
        ]
