"""Judges a run by all that was measured: what types cost, and which pair to set."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from codeneedle.analysis import verdict
from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.verdict import (
    ALPHA,
    AXIS_ALPHA,
    EFFECTS,
    LOST_SHARE,
    ODD_ALPHA,
    AxisFinding,
    Certificate,
    Numbers,
    OddCell,
)
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import Run
from codeneedle.report.captions import number
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.scoring.rounds import Reading
from codeneedle.text import visible

ANSWERED_SHARE = 0.9
"""A cell with fewer answers than this share of its rounds is unreliable."""

FLOOR_SHARE = 0.1
"""A metric says nothing where the reference has this little of its range, or less."""

FEWEST_UNITS = 2
"""Units that a test needs."""

AXES = ("K", "V")

NOTHING_LOST, WITHIN_LIMIT = "nothing lost", "within the limit"
SHOWN_GOALS = (NOTHING_LOST, WITHIN_LIMIT)
"""Goals that a pair reaches only by a certificate, or by an upper bound."""

SPEED = "tg"
"""The writing speed that advice may rest on: by-products of recall are too noisy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What a user is ready to lose.

    Attributes:
        max_changed: Tokens with another first choice, in per cent.
        max_kld: Mean KL divergence from the reference, in nats per token.
    """

    max_changed: float | None = None
    max_kld: float | None = None

    @property
    def by_metric(self) -> dict[str, float]:
        """The largest loss of each metric that is limited."""
        known = {"top1": self.max_changed, "kld": self.max_kld}
        return {name: limit for name, limit in known.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    What one metric says of the types of K and of V.

    Attributes:
        metric: The metric.
        types: The types of each axis that have numbers, most precise first.
        units: Needles, chunks or questions that every cell shares.
        reference: Mean of the reference.
        axes: One finding for each of `AXES`.
        odd: A cell that its types do not explain; left out of the axes.
        least: For each axis, the smallest effects that would have been found 9 times
            in 10, by kind; empty where the axis matters.
        silent: Why the metric has no say; empty if it has.
    """

    metric: Metric
    types: tuple[tuple[str, ...], tuple[str, ...]]
    units: int
    reference: float
    axes: tuple[AxisFinding, ...] = ()
    odd: OddCell | None = None
    least: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    silent: str = ""

    @property
    def odd_pair(self) -> Pair | None:
        """The types of the odd cell."""
        if self.odd is None:
            return None
        return Pair(self.types[0][self.odd.k], self.types[1][self.odd.v])

    def costing(self) -> set[tuple[str, str]]:
        """
        Axis and type of all that costs.

        All but the finest type of an axis that matters without a type being shown.
        """
        found = set()
        for axis, types, finding in zip(AXES, self.types, self.axes, strict=False):
            costly = [types[cost.index] for cost in finding.costs]
            if finding.matters:
                found |= {(axis, name) for name in costly or types[1:]}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """
    What is known of one pair.

    Attributes:
        pair: The cache types.
        memory: Of its KV cache, as a share of the reference's; None if unknown.
        speed: Of writing, likewise.
        losses: By metric, the mean loss against the reference and the half-width of
            its 95 % interval, over units; in the metric's unit.
        certificate: Of lost units; None where no metric can tell.
        trouble: Why nothing is said of its quality; empty if something is.
        is_on_front: Whether no other pair is as good in all and better in something.
    """

    pair: Pair
    memory: float | None
    speed: float | None
    losses: Mapping[str, tuple[float, float]]
    certificate: Certificate | None = None
    trouble: str = ""
    is_on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """
    One recommendation.

    Attributes:
        goal: ``nothing lost``, ``within the limit``, ``least memory`` or ``fastest``.
        pair: What to set; None where nothing can be recommended.
        reason: Why, as a sentence.
    """

    goal: str
    pair: Pair | None
    reason: str

    @property
    def is_shown(self) -> bool:
        """Whether it rests on what was shown, not on what was not found."""
        return self.pair is not None and self.goal in SHOWN_GOALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What a run allows to conclude.

    Attributes:
        run: The run.
        reference: The pair that all are compared with; None without numbers.
        judged: One for each metric that was tested, or that has no say.
        standings: One for each pair with a record, most precise first.
        advice: The recommendations, the first one first.
        certified: The metric behind the certificates; None where none can be given.
    """

    run: Run
    reference: Pair | None
    judged: tuple[Judged, ...] = ()
    standings: tuple[Standing, ...] = ()
    advice: tuple[Advice, ...] = ()
    certified: Metric | None = None

    def standing(self, pair: Pair) -> Standing:
        """What is known of *pair*, which has a record."""
        return next(each for each in self.standings if each.pair == pair)


def judge(
    run: Run,
    reading: Reading,
    limits: Limits | None = None,
    *,
    with_power: bool = True,
) -> Verdict:
    """
    Judge *run* by all that was measured.

    Everything is fixed before the numbers are looked at: the reference, what counts
    as lost, and 5 % of false alarms over the whole grid, shared among the metrics.
    Missing answers count as nothing recalled; a pair with fewer than nine answers in
    ten is not judged.

    Args:
        run: With the records of all probes.
        reading: How stored replies are read.
        limits: What the user can bear to lose.
        with_power: Whether to find the smallest effects that would have been found,
            which takes seconds.
    """
    table = pair_table(run, tuple(PROBES.values()), reading)
    reference = table.reference
    if reference is None:
        return Verdict(run=run, reference=None)
    scored = scored_metrics(table)
    speaking = [each for each in scored.values() if not each.silent]
    judged = tuple(
        each.judged(metrics=len(speaking), with_power=with_power)
        for each in scored.values()
    )
    certifying = next((e for e in speaking if e.metric.lost_from is not None), None)
    standings = _standings(table, scored, certifying)
    standings = _with_front(standings, reference)
    found = Verdict(
        run=run,
        reference=reference,
        judged=judged,
        standings=standings,
        certified=certifying.metric if certifying else None,
    )
    return replace(found, advice=tuple(_advice(found, table, limits or Limits())))


def scored_metrics(table: PairTable) -> dict[str, "UnitScores"]:
    """The judged metrics of *table* that have a value, by name."""
    return {
        column.metric.name: UnitScores(column, table)
        for column in table.columns
        if column.metric.is_judged and column.has_values
    }


class UnitScores:
    """The units of one metric in every cell, higher is better."""

    def __init__(self, column: Column, table: PairTable) -> None:
        self.metric = column.metric
        self._column = column
        self._cells = {
            pair: _units(column, table, pair)
            for pair in table.pairs
            if column.cell(pair).has_value
        }
        self.reference = column.reference or table.reference
        self._names = list(self._cells.get(self.reference or table.pairs[0], {}))
        self.units = len(self._names)

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.metric.better == "lower" else 1

    @property
    def silent(self) -> str:
        """Why the metric has no say; empty if it has."""
        if self.reference not in self._cells:
            return "has no value for the reference"
        if self.units < FEWEST_UNITS:
            return "has a single number per pair, so nothing is known of its noise"
        low, high = self.metric.bounds
        if low is None or high is None:
            return ""
        value = float(np.mean(list(self._cells[self.reference].values())))
        worst = high if self.metric.better == "lower" else low
        if abs(value - worst) <= FLOOR_SHARE * (high - low):
            return (
                f"the reference itself has {number(value, digits=2)} of {high:g}: "
                "too hard for this model, so losses cannot be seen"
            )
        return ""

    def of(self, pair: Pair) -> Numbers | None:
        """The units of *pair*, higher is better; None where they are not whole."""
        values = self._cells.get(pair, {})
        if not self._names or values.keys() != set(self._names):
            return None
        return np.array([values[name] for name in self._names]) * self.sign

    def losses(self, pair: Pair) -> tuple[float, float] | None:
        """Mean loss of *pair* against the reference, and half of its interval."""
        ours = self.of(pair)
        theirs = self.of(self.reference) if self.reference else None
        if ours is None or theirs is None:
            return None
        # A distance from the reference is a loss as it stands; its floor is noise.
        return verdict.mean_interval(theirs - ours)

    def judged(self, *, metrics: int, with_power: bool) -> Judged:
        """Test both axes, with an even share of the false alarms."""
        types = self._types()
        base = Judged(
            metric=self.metric,
            types=types,
            units=self.units,
            reference=self._column.reference_value,
            silent=self.silent,
        )
        if self.silent:
            return base
        scores = self._scores(types)
        odd = verdict.odd_cell(scores, alpha=ODD_ALPHA / metrics)
        if odd is not None:
            scores = verdict.without_cell(scores, odd)
        alpha = AXIS_ALPHA / metrics
        findings = tuple(
            verdict.axis_finding(scores, axis, alpha=alpha) for axis in (0, 1)
        )
        least = {
            name: self._least(scores, axis, alpha)
            for axis, name in enumerate(AXES)
            if with_power and findings[axis].p > alpha
        }
        return replace(base, axes=findings, odd=odd, least=least)

    def _types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        pairs = list(self._column.cells)
        measured = set(self._cells)
        k_types = dict.fromkeys(pair.k for pair in pairs if pair in measured)
        v_types = dict.fromkeys(pair.v for pair in pairs if pair in measured)
        v_order = [v for v in dict.fromkeys(pair.v for pair in pairs) if v in v_types]
        return tuple(k_types), tuple(v_order)

    def _scores(self, types: tuple[tuple[str, ...], tuple[str, ...]]) -> Numbers:
        shape = (len(types[0]), len(types[1]), self.units)
        scores = np.full(shape, math.nan)
        for at, k in enumerate(types[0]):
            for across, v in enumerate(types[1]):
                values = self.of(Pair(k, v))
                if values is not None:
                    scores[at, across] = values
        return scores

    def _least(self, scores: Numbers, axis: int, alpha: float) -> dict[str, float]:
        """The smallest effects that would have been found, by kind."""
        whole = verdict.type_table(scores, axis)
        if self.metric.unit == "lines":
            sizes: Sequence[float] = verdict.LINE_SIZES
            kinds: tuple[str, ...] = EFFECTS
        else:
            spread = float((whole - whole.mean(axis=1, keepdims=True)).std()) or 1.0
            sizes = [spread * step for step in (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2, 3)]
            kinds = ("shift",)
        filled = np.where(np.isnan(scores), np.nanmean(scores), scores)
        return {
            kind: verdict.detectable(filled, axis, kind, sizes=sizes, alpha=alpha)
            for kind in kinds
        }


def _units(column: Column, table: PairTable, pair: Pair) -> dict[str, float]:
    """
    The value of each unit of *pair*, by name: a needle, a chunk, or a text.

    Questions of one text share what makes the text hard: their mean is one unit.
    """
    record = table.records[pair, column.probe]
    metric, facts = column.metric, (record, table.run.setup, table.reading)
    whole = metric.units(*facts) if metric.units else ()
    values = whole or metric.values(*facts)
    if whole or metric.names is None:
        return {str(at): value for at, value in enumerate(values)}
    by_text: dict[str, list[float]] = {}
    for (text, name), value in zip(metric.names(record), values, strict=True):
        by_text.setdefault(text or name, []).append(value)
    return {name: math.fsum(each) / len(each) for name, each in by_text.items()}


def _answered(column: Column, table: PairTable, pair: Pair) -> float:
    """Share of the needles of *pair* that have an answer."""
    if column.metric.lost_from is None or column.metric.units is None:
        return 1.0
    return column.cell(pair).n / max(len(_units(column, table, pair)), 1)


def _standings(
    table: PairTable, scored: Mapping[str, UnitScores], certifying: UnitScores | None
) -> tuple[Standing, ...]:
    tried = {record.pair for record in table.run.records}
    pairs = [pair for pair in table.pairs if pair in tried]
    troubles = {pair: _trouble(table, pair, list(scored)) for pair in pairs}
    judged = [pair for pair in pairs if not troubles[pair] and pair != table.reference]
    return tuple(
        Standing(
            pair=pair,
            memory=_memory(table, pair),
            speed=_share(table, SPEED, pair),
            losses={
                name: loss
                for name, each in scored.items()
                if not each.silent and (loss := each.losses(pair))
            },
            certificate=_certificate(certifying, pair, comparisons=len(judged))
            if pair in judged
            else None,
            trouble=troubles[pair],
        )
        for pair in pairs
    )


def _trouble(table: PairTable, pair: Pair, metrics: Sequence[str]) -> str:
    """Why nothing is said of the quality of *pair*."""
    records = [table.records.get((pair, probe)) for probe in table.probes]
    failed = [each for each in records if each and not each.has_numbers]
    if failed:
        return visible(f"{failed[0].status.value}: {failed[0].reason}")
    for column in table.columns:
        if column.metric.name in metrics and pair in column.cells:
            record = table.records.get((pair, column.probe))
            if record and _answered(column, table, pair) < ANSWERED_SHARE:
                share = _answered(column, table, pair)
                return f"unreliable: {share:.0%} of its rounds have an answer"
    return ""


def _certificate(
    certifying: UnitScores | None, pair: Pair, *, comparisons: int
) -> Certificate | None:
    if certifying is None or certifying.reference is None:
        return None
    ours, theirs = certifying.of(pair), certifying.of(certifying.reference)
    if ours is None or theirs is None or certifying.metric.lost_from is None:
        return None
    return verdict.certificate(
        ours,
        theirs,
        comparisons=max(comparisons, 1),
        lost_from=certifying.metric.lost_from,
    )


def _memory(table: PairTable, pair: Pair) -> float | None:
    """The KV cache of *pair* by the reference's, as one probe measured both."""
    for probe in table.probes:
        ours = table.records.get((pair, probe))
        whole = table.records.get((table.reference or pair, probe))
        if ours and whole and ours.effective.context == whole.effective.context:
            size, of = ours.effective.kv_mib, whole.effective.kv_mib
            if size is not None and of:
                return size / of
    return None


def _share(table: PairTable, name: str, pair: Pair) -> float | None:
    """The value of *pair* as a share of the reference's; None where there is none."""
    column = next((c for c in table.columns if c.metric.name == name), None)
    if column is None or table.reference is None:
        return None
    whole = column.cell(table.reference).value
    share = column.cell(pair).value / whole if whole else math.nan
    return share if math.isfinite(share) else None


def _with_front(standings: Sequence[Standing], reference: Pair) -> tuple[Standing, ...]:
    """Mark the pairs that no other one beats in loss, memory and speed."""
    sound = [s for s in standings if not s.trouble and s.memory is not None]
    if not sound:
        return tuple(standings)
    names = [
        name
        for name in next(s for s in sound).losses
        if all(name in each.losses for each in sound)
    ][:1]
    costs, margins = [], []
    for each in sound:
        is_reference = each.pair == reference
        certificate = each.certificate
        upper = 0.0 if is_reference or not certificate else certificate.upper
        loss = [each.losses[name] for name in names]
        costs.append(
            [upper, *(at for at, _ in loss), each.memory or 1.0, -(each.speed or 0.0)]
        )
        margins.append([0.0, *(half for _, half in loss), 0.0, SPEED_MARGIN])
    rows = verdict.pareto_front(np.array(costs), np.array(margins))
    front = {sound[row].pair for row in rows}
    return tuple(replace(s, is_on_front=s.pair in front) for s in standings)


SPEED_MARGIN = 0.03
"""Shares of speed closer than this are not told apart: machines are noisy."""


def _advice(found: Verdict, table: PairTable, limits: Limits) -> Iterator[Advice]:
    """The recommendations, the one to follow first."""
    sound = [each for each in found.standings if not each.trouble]
    smaller = sorted(
        (s for s in sound if s.memory is not None and s.memory < 1),
        key=lambda s: (s.memory, s.pair.k),
    )
    if limits.by_metric:
        yield _within(smaller, table, limits)
    free = [s for s in smaller if s.certificate and s.certificate.verdict == "free"]
    yield _nothing_lost(found, smaller, free)
    candidates = [s for s in smaller if _shows_no_loss(found, s)]
    if not smaller:
        yield Advice(
            goal="least memory",
            pair=None,
            reason="no smaller cache was measured, or no log tells its size",
        )
    elif candidates:
        yield Advice(
            goal="least memory",
            pair=candidates[0].pair,
            reason="the smallest cache of which no loss was shown; that is no proof "
            "that nothing is lost",
        )
    else:
        yield Advice(
            goal="least memory",
            pair=None,
            reason="of every smaller cache a loss was seen, or nothing could be; state "
            "what you can bear: --max-changed 2% or --max-kld 0.01",
        )
    speeds = [s for s in [*candidates, found.standing(_known(found))] if s.speed]
    if speeds:
        yield Advice(
            goal="fastest",
            pair=max(speeds, key=lambda s: s.speed or 0).pair,
            reason="writes fastest of those of which no loss was shown",
        )


def _known(found: Verdict) -> Pair:
    if found.reference is None:  # judge() gives no advice without one
        raise ValueError("there is no reference")
    return found.reference


def _shows_no_loss(found: Verdict, standing: Standing) -> bool:
    """
    Whether a pair was compared with the reference and nothing speaks against it.

    Against it speaks an interval without zero, a certificate, its type of K or of V,
    or that it is odd. A pair that no metric could compare has shown nothing.
    """
    certificate = standing.certificate
    sides = {("K", standing.pair.k), ("V", standing.pair.v)}
    return (
        bool(standing.losses)
        and all(loss <= half for loss, half in standing.losses.values())
        and not (certificate and certificate.verdict == "costs")
        and not any(
            sides & each.costing() or each.odd_pair == standing.pair
            for each in found.judged
        )
    )


def _nothing_lost(
    found: Verdict, smaller: Sequence[Standing], free: Sequence[Standing]
) -> Advice:
    goal = NOTHING_LOST
    if free:
        words = _lost_words(found, free[0])
        return Advice(goal=goal, pair=free[0].pair, reason=words)
    if found.certified is None:
        return Advice(
            goal=goal,
            pair=None,
            reason="no pair can be called free: recall or a task that the model can "
            "do was not measured",
        )
    more = [
        s.certificate.more
        for s in smaller
        if s.certificate and s.certificate.verdict == "undecided"
    ]
    if not more:
        reason = "every smaller cache that was measured loses something"
        return Advice(goal=goal, pair=None, reason=reason)
    return Advice(
        goal=goal,
        pair=None,
        reason=f"not shown of any pair: it takes {min(more)} more functions, none of "
        f"them lost, to show that fewer than {LOST_SHARE:.0%} are",
    )


def _lost_words(found: Verdict, standing: Standing) -> str:
    certificate = standing.certificate
    if certificate is None or found.certified is None:
        return ""
    return (
        f"{certificate.lost} of {certificate.needles} lost "
        f"{found.certified.lost_from:g} {found.certified.unit} or more; fewer than "
        f"{LOST_SHARE:.0%} do ({ALPHA:.0%} error over the whole grid)"
    )


def _within(smaller: Sequence[Standing], table: PairTable, limits: Limits) -> Advice:
    """The smallest cache whose loss is surely within what the user can bear."""
    goal = WITHIN_LIMIT
    by_name = {column.metric.name: column for column in table.columns}
    missing = [name for name in limits.by_metric if name not in by_name]
    if missing:
        reason = f"{missing[0]} was not measured: sweep with --probe divergence"
        return Advice(goal=goal, pair=None, reason=reason)
    for standing in smaller:
        uppers = {
            name: _upper_loss(by_name[name], table, standing.pair)
            for name in limits.by_metric
        }
        if all(uppers[name] <= limit for name, limit in limits.by_metric.items()):
            words = ", ".join(
                f"{_loss_word(name)} at most {number(upper, digits=4)}"
                for name, upper in uppers.items()
            )
            reason = f"the smallest cache that is surely within: {words}"
            return Advice(goal=goal, pair=standing.pair, reason=reason)
    return Advice(
        goal=goal, pair=None, reason="no smaller cache is surely within the limit"
    )


def _loss_word(name: str) -> str:
    return {"top1": "tokens with another first choice (%)", "kld": "KLD (nats)"}[name]


def _upper_loss(column: Column, table: PairTable, pair: Pair) -> float:
    """Upper bound of a loss at 95 %, over chunks where they are stored."""
    units = np.array(list(_units(column, table, pair).values()))
    if column.metric.name == "top1":
        units = 100 - units
    mean, half = verdict.mean_interval(units, alpha=2 * ALPHA)
    if math.isfinite(half):
        return mean + half
    record = table.records[pair, column.probe]
    error = column.metric.error
    known = error(record, table.run.setup, table.reading) if error else None
    return mean + 1.64 * known if known is not None else math.inf
