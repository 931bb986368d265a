"""Two runs side by side: how their setups differ, and what that costs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.analysis import retrieval, verdict
from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import ALPHA, Numbers
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.records.comparability import differences
from codeneedle.records.record import Json, Run, Setup
from codeneedle.report.captions import NO_VALUE_WORD, number, text_table
from codeneedle.report.table import Column, pair_table
from codeneedle.report.units import UnitScores, scored_metrics
from codeneedle.scoring.rounds import Reading
from codeneedle.text import json_text, or_null, visible

BY_PRODUCTS = ("decode",)
"""Metrics that are compared although tables leave them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    One metric of the second run less that of the first, over the pairs of both.

    Attributes:
        metric: The metric.
        values: By pair, its value in the first and in the second run.
        refused: Why the two must not be compared; empty if they may.
        untested: Why they are shown and not tested; empty if they are, or if their
            units differ.
        mean: Mean change over units, each averaged over the pairs; NaN where the
            units are not the same.
        half_width: Half of its 95 % interval.
        p: Two-sided, of a sign-flip test over units.
        alpha: What p is held against: 5 % shared among the metrics.
    """

    metric: Metric
    values: Mapping[Pair, tuple[float, float]]
    refused: str = ""
    untested: str = ""
    mean: float = math.nan
    half_width: float = math.nan
    p: float = math.nan
    alpha: float = ALPHA

    @property
    def words(self) -> str:
        """``better``, ``worse``, ``no difference shown``, or why nothing is said."""
        if self.refused:
            return self.refused
        if self.untested:
            return self.untested
        if math.isnan(self.p):
            unpaired = "not tested: the two do not share needles or chunks"
            return unpaired if self.metric.is_judged else "not tested"
        if self.p > self.alpha:
            return "no difference shown"
        return (
            "better" if (self.mean > 0) == (self.metric.better != "lower") else "worse"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    Two runs compared.

    Attributes:
        first: The run that is compared with.
        second: The run that is judged.
        setups: What differs: name, and the value in each.
        changes: One for each metric that both have.
    """

    first: Run
    second: Run
    setups: tuple[tuple[str, str, str], ...]
    changes: tuple[Change, ...]


def compare(first: Run, second: Run, reading: Reading) -> Comparison:
    """
    Compare *second* with *first*, pair by pair and metric by metric.

    Units (needles, chunks, questions) are paired by name where text and needles are the
    same; those count that both references answered. Speeds of different machines and
    memory of different contexts are refused, and probes with different settings.
    """
    probes = tuple(PROBES.values())
    ours, theirs = (pair_table(run, probes, reading) for run in (first, second))
    scored = [scored_metrics(table) for table in (ours, theirs)]
    tested = [name for name in scored[0] if name in scored[1]]
    others = {column.metric.name: column for column in theirs.columns}
    changes = []
    for column in ours.columns:
        other = others.get(column.metric.name)
        name = column.metric.name
        is_shown = column.is_shown or name in BY_PRODUCTS
        if other is None or not (is_shown and column.has_values):
            continue
        both = (scored[0][name], scored[1][name]) if name in tested else None
        changes.append(_change(column, other, both, (first, second), len(tested)))
    return Comparison(
        first=first,
        second=second,
        setups=tuple(differences(first.setup, second.setup)),
        changes=tuple(each for each in changes if each.values),
    )


def _change(
    ours: Column,
    theirs: Column,
    scored: tuple[UnitScores, UnitScores] | None,
    runs: tuple[Run, Run],
    tested: int,
) -> Change:
    setups = (runs[0].setup, runs[1].setup)
    values = {
        pair: (cell.value, theirs.cell(pair).value)
        for pair, cell in ours.cells.items()
        if cell.has_value and theirs.cell(pair).has_value
    }
    metric = ours.metric
    refused = _refused(metric, setups) or _refused_settings(ours.probe, runs)
    if refused or scored is None or not values or not _are_paired(*setups):
        return Change(metric=metric, values=values, refused=refused)
    silent = scored[0].silent or scored[1].silent
    if silent:
        return Change(metric=metric, values=values, untested=f"not tested: {silent}")
    gaps = _gaps(scored, list(values))
    if gaps is None:
        return Change(metric=metric, values=values)
    mean, half_width = verdict.mean_interval(gaps)
    p = min(1.0, 2 * min(verdict.sign_flip_p(gaps), verdict.sign_flip_p(-gaps)))
    return Change(
        metric=metric,
        values=values,
        mean=mean * scored[0].sign,
        half_width=half_width,
        p=p,
        alpha=ALPHA / max(tested, 1),
    )


def _gaps(
    scored: tuple[UnitScores, UnitScores], pairs: Sequence[Pair]
) -> Numbers | None:
    """What each unit of both gains, averaged over *pairs*; None without any."""
    others = set(scored[1].names)
    names = [name for name in scored[0].names if name in others]
    total, count = None, 0
    for pair in pairs:
        before, after = (each.of(pair, names) for each in scored)
        if before is None or after is None:
            continue
        gap: Numbers = after - before
        total, count = gap if total is None else total + gap, count + 1
    return None if total is None else total / count


def _refused(metric: Metric, setups: tuple[Setup, Setup]) -> str:
    """Why values of *metric* must not be compared; empty if they may."""
    first, second = setups
    if metric.group == "speed" and first.machine != second.machine:
        return "not compared: speeds of different machines"
    if metric.group == "memory" and first.context != second.context:
        return "not compared: memory of different contexts"
    if metric.group == "quality" and first.corpus.sha256 != second.corpus.sha256:
        return "not compared: another text"
    return ""


def _refused_settings(probe: str, runs: tuple[Run, Run]) -> str:
    """Why what *probe* measured in two runs is not the same; empty if it is."""
    first, second = (_settings(probe, run.setup) for run in runs)
    other = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    if other:
        return f"not compared: other {', '.join(map(visible, other))} of {probe}"
    if probe == retrieval.NAME and len({*map(_dials, runs)} - {()}) > 1:
        return "not compared: tasks of another difficulty"
    return ""


def _settings(probe: str, setup: Setup) -> Json:
    """What *probe* was told, of what decides its answers."""
    stored = setup.probes.get(probe, {})
    return {key: value for key, value in stored.items() if key not in SAME_ANSWERS}


SAME_ANSWERS = {"ask"}
"""Settings of probes that change no answer: which parts of recall were asked."""


def _dials(run: Run) -> tuple[tuple[str, int], ...]:
    """The difficulty of each retrieval task of *run*; empty without numbers."""
    records = (r for r in run.records if r.probe == retrieval.NAME and r.has_numbers)
    found = next(filter(None, map(retrieval.retrieval_of, records)), None)
    dials = found.frozen.dials if found else ()
    return tuple((each.task, each.setting) for each in dials)


def _are_paired(first: Setup, second: Setup) -> bool:
    return [each.name for each in first.needles] == [
        each.name for each in second.needles
    ]


CHANGE_HEADING = ["metric", "change", "95%", "p", "the second is"]
"""Above the `change_rows`."""


def compare_view(found: Comparison) -> RenderableType:
    """Setups, then metrics over all pairs, then pair by pair."""
    names = [_name(found.first), _name(found.second)]
    parts: list[RenderableType] = [
        Text(f"{names[1]} compared with {names[0]}", style="bold"),
        Text(),
        _table(["setup", "first", "second"], setup_rows(found)),
        Text(),
        _table(CHANGE_HEADING, change_rows(found)),
    ]
    for change in found.changes:
        if not change.refused:
            rows = list(_pair_rows(change))
            heading = ["K/V", "first", "second", "change"]
            label = f"{change.metric.name}: {change.metric.label}"
            parts += [Text(), Text(visible(label), style="bold"), _table(heading, rows)]
    return Group(*parts)


def compare_json(found: Comparison) -> str:
    """
    One object; null where there is no number.

    Keys: ``first``, ``second``, ``setups`` (``name``, ``first``, ``second``) and
    ``metrics`` (``name``, ``unit``, ``refused``, ``mean``, ``half_width``, ``p``,
    ``alpha``, ``words``, ``pairs``: ``k``, ``v``, ``first``, ``second``).
    """
    return json_text(
        {
            "first": found.first.name,
            "second": found.second.name,
            "setups": [
                {"name": name, "first": was, "second": now}
                for name, was, now in found.setups
            ],
            "metrics": [_change_object(each) for each in found.changes],
        }
    )


def _change_object(each: Change) -> dict[str, Any]:
    return {
        "name": each.metric.name,
        "unit": each.metric.unit,
        "refused": each.refused,
        "mean": or_null(each.mean),
        "half_width": or_null(each.half_width),
        "p": or_null(each.p),
        "alpha": each.alpha,
        "words": each.words,
        "pairs": [
            {"k": pair.k, "v": pair.v, "first": first, "second": second}
            for pair, (first, second) in each.values.items()
        ],
    }


def _name(run: Run) -> str:
    return visible(run.name)


def setup_rows(found: Comparison) -> list[list[str]]:
    """What differs in the setups: a name, and the value in each."""
    if not found.setups:
        return [["nothing differs", "", ""]]
    return [[visible(each) for each in row] for row in found.setups]


def change_rows(found: Comparison) -> Iterator[list[str]]:
    """What changed, a row per metric, or why it is not compared."""
    for each in found.changes:
        digits = max(each.metric.digits, 2)
        is_tested = math.isfinite(each.p)
        yield [
            each.metric.name,
            number(each.mean, digits=digits, sign=True),
            f"+/- {number(each.half_width, digits=digits)}"
            if is_tested
            else NO_VALUE_WORD,
            f"{each.p:.3f}" if is_tested else NO_VALUE_WORD,
            each.words,
        ]


def _pair_rows(change: Change) -> Iterator[list[str]]:
    digits = change.metric.digits
    for pair, (first, second) in change.values.items():
        yield [
            visible(str(pair)),
            number(first, digits=digits),
            number(second, digits=digits),
            number(second - first, digits=digits, sign=True),
        ]


WORDS = dict.fromkeys(("setup", "first", "second", "metric", "K/V", "the second is"), 0)
"""Columns of words."""


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return text_table(heading, rows, words=WORDS)
