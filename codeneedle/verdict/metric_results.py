"""
What one metric decides of each pair: losses beside the reference, unit by unit, with
their interval; what leaves it open (too few units, missing answers, impossible gains, a
reference in doubt); and why a metric has no say.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from codeneedle.cache_types import Pair, finer_axes, most_precise
from codeneedle.corpora.corpus import LIMIT
from codeneedle.probes import PROBES
from codeneedle.probes.metrics import (
    ABLE,
    Loss,
    LossKind,
    Metric,
    Units,
)
from codeneedle.probes.probe import Probe
from codeneedle.records.record import (
    AGAIN,
    ON_CPU,
    Attention,
    CellRecord,
    Run,
    Setup,
)
from codeneedle.reference import choose_reference_pair
from codeneedle.text import plural
from codeneedle.verdict.asking_order import JointRun, Order, order_of_deciding_sweep
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.noise_floor import NoiseFloor, noise_floor
from codeneedle.verdict.remark_kinds import Remark, RemarkKind, joined_texts
from codeneedle.verdict.statistics import (
    Bounds,
    Decision,
    answers_needed,
    disagreeing_pairs,
    error_share,
    lost_share_interval,
    mean_loss_interval,
    units_needed,
)

FEWEST_FLIPS = 6
"""
Differing samples from which on their spread is known.

With fewer, even if all lose, a two-sided exact test has no p below 0.05.
"""

BOUNDED = 0.001
"""Share of tokens with only a bound up to which they are treated as exact."""

FEWEST_UNITS = 6
"""
Units from which on a pair can be within the limit.

Fewer may be alike by chance, and a problem that affects a third of them may be missed.
"""
NOTABLE_GAIN = 0.1
"""
Share of the limit from which on a shown gain counts as one: the last digit that reports
show. Rounding makes a text likelier by less.
"""

WEIGHTS_MAY_GAIN = 0.05
"""
What coarser weights may gain on one text, as another model may: five of 100 right
tokens. Beyond it the finest ones are broken.

A choice: no gain of coarser weights was measured to set it by. Three files made of
Qwen2.5-Coder-0.5B Q4_K_M have lost 0.2 to 0.4 beside it.
"""

MANY = 3
"""Pairs whose gains have the reference in common, and put it in doubt."""

_ENDS = {
    LossKind.PROBABILITY: (-1.0, 1.0),
    LossKind.NATS: (-math.inf, 1.0),
    LossKind.CHANGE: (0.0, math.inf),
    LossKind.SCORE: (-1.0, 1.0),
}
"""The smallest and the largest possible loss."""


_IMPOSSIBLE = {RemarkKind.BETTER, RemarkKind.DOUBTED_REFERENCE}

_LASTING = {
    RemarkKind.BETTER,
    RemarkKind.SEEMS_BETTER,
    RemarkKind.COARSER_REFERENCE,
    RemarkKind.BOUND,
}
"""Doubts that more units would not take away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """The result of one metric for one pair."""

    metric: Metric  # the metric
    kind: LossKind  # kind of its losses
    bounds: Bounds  # interval of the mean loss; for answers, of the share lost
    limit: float  # the limit that applies
    decision: Decision  # position of the interval relative to the limit
    needed: int | None
    """
    Estimated number of units that would decide an open pair; None if that is unknown,
    or the pair is not open.
    """

    lost: int  # lost units, of answers and scores; 0 for other kinds
    won: int  # units that are better by as much, of these; 0 for other kinds
    mean_square: float
    """
    Of the losses of its units: of scores of 0 and 1 the share that differs, of finer
    ones less.
    """

    gain: Bounds
    """What is lost and won, together: another interval than `bounds` for answers."""

    doubts: tuple[Remark, ...]
    """About the bounds, some of which change the decision; mostly none."""

    asked: int | None
    """
    Units that the reference was asked for, those left out included; None if each
    counts.
    """

    left_out: int = 0
    """Units asked for that the pair, or the reference, has no score of."""

    @property
    def doubts_phrase(self) -> str:
        """Its doubts as a phrase; mostly empty."""
        return joined_texts(self.doubts)

    @property
    def unmeasured_phrase(self) -> str:
        """What could not be measured, which widens the bounds; mostly empty."""
        return joined_texts(e for e in self.doubts if e.kind is RemarkKind.UNMEASURED)

    @property
    def what_is_lost(self) -> str:
        """What is lost, as a phrase: ``recall``; empty of a metric without loss."""
        return self.metric.loss.what if self.metric.loss else ""

    @property
    def has_gain_above_limit(self) -> bool:
        """Whether the pair gains more than the limit."""
        return self.gain.is_gain_above(self.limit)

    @property
    def accepting_limit(self) -> float:
        """The smallest limit that an open pair is within, as far as its numbers go."""
        # Of counted units, one that is exceeded by what was won is none, either.
        return max(self.bounds.high, -self.gain.mean)

    @property
    def has_gain_or_reference_doubt(self) -> bool:
        """Whether it gains what it cannot, or is beside a reference in doubt."""
        kinds = {doubt.kind for doubt in self.doubts}
        return not kinds.isdisjoint(_IMPOSSIBLE)

    @property
    def units_to_decide(self) -> int | None:
        """Units that would show that an open pair is within; None if none do."""
        is_below = self.decision is Decision.OPEN and self.bounds.mean < self.limit
        is_few = self.bounds.units < FEWEST_UNITS
        if not is_below or is_few or self.doubts or not self.needed:
            return None
        return self.needed if self.needed <= LIMIT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The loss of a pair that was measured another way, too."""

    kind: LossKind  # kind of its losses
    loss: float  # the mean loss, as all pairs are measured
    other: float  # that of the other way
    units: int  # units of the other way
    is_disagreement: bool  # whether the two differ by more than their noise


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricUnits:
    """One metric of all pairs, unit by unit."""

    metric: Metric  # the metric
    loss: Loss  # how it enters the verdict
    probe: Probe  # the probe that measured it
    setup: Setup  # of the run
    records: Mapping[Pair, CellRecord]  # records of the probe that have numbers
    units: Mapping[Pair, Units]
    """
    Of each pair with values, the numbers that losses are computed of, by name of the
    unit.
    """

    reference: Pair | None
    """The pair that others are compared with; None if there is none."""

    noise: NoiseFloor  # how far the reference differs from itself
    order: Order | None = None
    """Of a sweep that decides: how the error is shared; None of a grid."""

    @property
    def reference_units(self) -> Units:
        """The units of the reference; empty without one."""
        return self.units[self.reference] if self.reference else {}

    @property
    def _record_of_reference(self) -> CellRecord:
        """The record of the reference, which there is wherever a pair is compared."""
        return self.records[cast("Pair", self.reference)]

    def _reference_units_for(self, pair: Pair) -> Units:
        """Units of the reference with attention where *pair* had it, if measured so."""
        is_there = self.records[pair].attention is Attention.CPU
        return (self.noise.on_cpu if is_there else {}) or self.reference_units

    def crosschecks(self) -> dict[Pair, CrossCheck]:
        """The pairs that were measured another way beside the reference, too."""
        if self.loss.crosschecked is None or self.reference is None:
            return {}
        other = {
            p: self.loss.crosschecked(r, self.setup) for p, r in self.records.items()
        }
        there = other.pop(self.reference)
        others = {
            pair: losses
            for pair, units in other.items()
            if (losses := self.loss.unit_losses(there, units))
        }
        ours = {
            pair: losses
            for pair in others
            if (
                losses := self.loss.unit_losses(
                    self.reference_units, self.units.get(pair, {})
                )
            )
        }
        found = disagreeing_pairs(ours, others)
        return {
            pair: CrossCheck(
                kind=self.loss.kind,
                loss=statistics.fmean(losses),
                other=statistics.fmean(others[pair]),
                units=len(others[pair]),
                is_disagreement=pair in found,
            )
            for pair, losses in ours.items()
        }

    def why_not_in_verdict(self, limits: Limits) -> str:
        """Why the metric does not enter the verdict; empty if it does."""
        if self.reference is None:
            return "the pair that others were measured against has no value"
        if reason := why_little_to_lose(
            self.loss, self.records[self.reference], self.setup
        ):
            return reason
        reason = self.noise.excess_phrase(self.loss.kind, limits)
        return f"{self.reference}, measured twice, {reason}" if reason else ""

    def results(self, limits: Limits) -> dict[Pair, MetricResult]:
        """
        The result of each pair that shares a unit with the reference.

        Where the reference is in doubt, each has this doubt, and none is within.
        """
        others = [pair for pair in self.units if pair != self.reference]
        rows = {p: row for p in others if (row := self._result(p, limits))}
        text = self._why_reference_in_doubt(rows)
        if not text:
            return rows
        return {
            pair: _with_reference_doubt(row, text, pair) for pair, row in rows.items()
        }

    def _why_reference_in_doubt(self, rows: Mapping[Pair, MetricResult]) -> str:
        """
        Why the reference is in doubt, as a phrase; empty if it is not.

        It is where half or more of the pairs are measured better by more than they
        may be, and not by units that flip by chance, or `MANY` are shown to be better
        at all. Those beyond the limit do not count, nor those with a finer K or V than
        the reference, which may gain. Other weights, another model on any one text,
        are looked at by themselves.
        """
        near = {
            pair: row
            for pair, row in rows.items()
            if row.decision is not Decision.BEYOND
            if not (self.reference and finer_axes(pair, self.reference))
        }
        own = {p: row for p, row in near.items() if not self._has_other_weights(p)}
        others = {p: row for p, row in near.items() if p not in own}
        gaining = sum(
            row.gain.is_gain_above(NOTABLE_GAIN * row.limit) for row in own.values()
        )
        for of, shown in ((own, gaining), (others, 0)):
            better = sum(
                self._has_mean_gain_above_allowed(pair, row.gain, row.limit)
                for pair, row in of.items()
            )
            is_half = better > 0 and 2 * better >= len(of)
            if shown >= MANY or (is_half and self._is_gain_beyond_chance(of)):
                most = max(better, shown)
                gain = "gains" if most == 1 else "gain"
                pairs = plural(len(of), "pair")
                return f"{most} of {pairs} {gain}: the reference is in doubt"
        return ""

    def _is_gain_beyond_chance(self, pairs: Collection[Pair]) -> bool:
        """
        Whether *pairs* together gain more than by units that any cache may flip.

        Graded losses hardly vary by chance, and a reference that is broken in some
        units leaves them no interval that is sure: there it always is none.
        """
        if not self.loss.kind.has_counted_outcomes:
            return True
        net: dict[str, list[float]] = defaultdict(list)
        for pair in pairs:
            theirs, ours = self._reference_units_for(pair), self.units[pair]
            for name in theirs.keys() & ours.keys():
                lost = self.loss.unit_loss(ours[name], theirs[name])
                net[name].append(lost - self.loss.unit_loss(theirs[name], ours[name]))
        losses = [statistics.fmean(net[name]) for name in sorted(net)]
        return mean_loss_interval(losses, error_share(0, 1)).is_gain_above(0)

    def _has_mean_gain_above_allowed(
        self, pair: Pair, gain: Bounds, limit: float
    ) -> bool:
        """Whether *pair* is measured better by more than it may be, maybe by chance."""
        return round(gain.mean, 9) < -self._allowed_gain(pair, limit)

    def _has_counted_gain_above_allowed(
        self, pair: Pair, gain: Bounds, limit: float
    ) -> bool:
        """Whether *pair*, no finer one, seems better by units that are counted."""
        is_finer = self.reference and finer_axes(pair, self.reference)
        is_counted = self.loss.kind.has_counted_outcomes and not is_finer
        return is_counted and self._has_mean_gain_above_allowed(pair, gain, limit)

    def _units_needed(
        self, pair: Pair, losses: Sequence[float], limit: float
    ) -> int | None:
        """
        Estimated units that would decide *losses*, at least as many as can be within.

        None if none would, and of answers where a pair can be asked further units.
        """
        look, pairs = self._look_number(pair), self._error_sharing_count(pair)
        share, count = error_share(look, pairs), len(losses)
        if self.loss.kind is LossKind.ANSWERS:
            lost, _ = counts_lost_and_won(losses)
            # Of a new run, which asks every pair the same.
            is_new = not self.probe.further
            return answers_needed(lost, count, limit, share=share) if is_new else None
        if self.loss.kind is not LossKind.SCORE:
            needed = units_needed(losses, limit, look=look + 1, pairs=pairs)
            return needed and max(needed, FEWEST_UNITS)
        # By so much both ends stay wider, however many others have a score.
        missing, flips = self._share_without_number(pair), sum(map(bool, losses))
        mean = statistics.fmean(losses)
        nearest = limit - missing if mean < limit else limit + missing
        if (mean < limit) != (mean < nearest):
            return None
        if not flips:
            return answers_needed(0, count, nearest, share=share)
        needed = units_needed(losses, nearest, look=look + 1, pairs=pairs)
        return needed and max(needed, math.ceil(FEWEST_FLIPS * count / flips))

    def _has_other_weights(self, pair: Pair) -> bool:
        return self.reference is not None and pair.weights != self.reference.weights

    def _allowed_gain(self, pair: Pair, limit: float) -> float:
        """What *pair* may gain beside the reference, as a share."""
        other = self._has_other_weights(pair)
        return max(limit, WEIGHTS_MAY_GAIN) if other else limit

    def _result(self, pair: Pair, limits: Limits) -> MetricResult | None:
        """The result for *pair*; None if it shares no unit with the reference."""
        losses = self.loss.unit_losses(
            self._reference_units_for(pair) if pair in self.records else {},
            self.units.get(pair, {}),
        )
        if not losses:
            return None
        kind, limit = self.loss.kind, limits.of(self.loss.kind)
        share = error_share(self._look_number(pair), self._error_sharing_count(pair))
        lost, won = counts_lost_and_won(losses) if kind.has_counted_outcomes else (0, 0)
        is_few = kind is LossKind.SCORE and lost + won < FEWEST_FLIPS
        bounds = gain = self._bounds(pair, losses, share)
        if kind is LossKind.ANSWERS:
            won = self._units_won(pair)
            gain = _net_loss(bounds, lost_share_interval(won, len(losses), share))
        is_allowed = gain.is_gain_above(limit) and self._has_other_weights(pair)
        by_bounds = Decision.WITHIN if is_allowed else bounds.decision(limit)
        doubt, decision = self._first_doubt(pair, losses, by_bounds)
        if gain.is_gain_above(self._allowed_gain(pair, limit)):
            doubt, decision = self._remark_on_gain(pair), Decision.OPEN
        elif decision is not Decision.BEYOND and self._has_counted_gain_above_allowed(
            pair, gain, limit
        ):
            doubt, decision = doubt or self._remark_on_chance(pair), Decision.OPEN
        is_loss = kind.is_of_right_tokens or kind is LossKind.SCORE
        if decision is Decision.WITHIN and is_loss and len(losses) < FEWEST_UNITS:
            decision = Decision.OPEN
        doubts = [*([doubt] if doubt else []), *self._remarks_on_unmeasured(pair)]
        needed = None
        if decision is Decision.OPEN and not (doubt and doubt.kind in _LASTING):
            needed = self._units_needed(pair, losses, limit)
        if decision is Decision.OPEN and is_few:
            few = _too_few_phrase(lost + won, len(losses), needed)
            doubts.append(Remark(RemarkKind.TOO_FEW, few, (pair,)))
        return MetricResult(
            metric=self.metric,
            kind=kind,
            bounds=bounds,
            limit=limit,
            decision=decision,
            needed=needed,
            lost=lost,
            won=won,
            mean_square=statistics.fmean(loss * loss for loss in losses),
            gain=gain,
            doubts=tuple(doubts),
            asked=self._units_asked(),
            left_out=self._missing_and_asked(pair)[0],
        )

    def _bounds(self, pair: Pair, losses: Sequence[float], share: float) -> Bounds:
        """The interval of *losses* of *pair*, by the kind of loss."""
        kind = self.loss.kind
        if kind is LossKind.ANSWERS:
            return lost_share_interval(
                counts_lost_and_won(losses)[0], len(losses), share
            )
        if kind is not LossKind.SCORE:
            return mean_loss_interval(losses, share).clip(*_ENDS[kind])
        is_few = sum(counts_lost_and_won(losses)) < FEWEST_FLIPS
        bounds = (
            _bounds_by_counts(losses, share)
            if is_few
            else mean_loss_interval(losses, share)
        )
        ends = _ENDS[kind]
        return bounds.clip(*ends).widen(self._share_without_number(pair)).clip(*ends)

    def _units_won(self, pair: Pair) -> int:
        """Units that the reference loses beside *pair*, of answers."""
        theirs, ours = self._reference_units_for(pair), self.units[pair]
        return counts_lost_and_won(self.loss.unit_losses(ours, theirs))[0]

    def _remark_on_gain(self, pair: Pair) -> Remark:
        """The remark that *pair* gains more than the limit, and what that says."""
        finer = finer_axes(pair, self.reference) if self.reference else ()
        why = self._suspect_behind_gain(pair)
        if finer:
            why = f"{self.reference} has a coarser {' and '.join(finer)}"
        text = f"better than its reference by more than the limit: {why}"
        return Remark(RemarkKind.BETTER, text, (pair,))

    def _remark_on_chance(self, pair: Pair) -> Remark:
        """The remark that *pair* seems better by more than the limit, and why."""
        fault = self._suspect_behind_gain(pair)
        text = f"better by more than the limit: chance, or {fault}"
        return Remark(RemarkKind.SEEMS_BETTER, text, (pair,))

    def _suspect_behind_gain(self, pair: Pair) -> str:
        """What is wrong where *pair* gains what it cannot."""
        if self._has_other_weights(pair):
            return f"something is wrong with {self.reference}, or with these weights"
        return "something is wrong with the reference's cell"

    def _look_number(self, pair: Pair) -> int:
        """How often *pair* got further units; see `error_share`."""
        further = self.probe.further
        if further is None:
            return 0
        look = further.look_number(self.records[pair], self.setup)
        return self.order.look_number_in_order(look) if self.order else look

    def _error_sharing_count(self, pair: Pair) -> int:
        """Among how many pairs the error is shared; see `error_share`."""
        others = self.units.keys() - {self.reference}
        return (
            self.order.error_sharing_count(pair, others) if self.order else len(others)
        )

    def _first_doubt(
        self, pair: Pair, losses: Sequence[float], decision: Decision
    ) -> tuple[Remark | None, Decision]:
        """The first doubt about the bounds, and what it leaves of the *decision*."""
        reference = self._record_of_reference
        finer = finer_axes(pair, reference.pair)
        missing, of = self._missing_and_asked(pair)
        # What has no score widens the bounds of an evaluation.
        is_widened = self.loss.kind is LossKind.SCORE
        if finer and decision is Decision.BEYOND:
            kind, decision = RemarkKind.COARSER_REFERENCE, Decision.OPEN
            axes = " and ".join(finer)
            text = f"{reference.pair} has a coarser {axes}: the loss may be its own"
        elif self.loss.bounded(reference) > BOUNDED and decision is Decision.BEYOND:
            kind, decision = RemarkKind.BOUND, Decision.OPEN
            words = "of some tokens of the reference only a bound is known"
            text = f"{words}: it may lose less"
        elif missing and not is_widened:
            kind = RemarkKind.MISSING
            text = f"answers missing: {missing} of {of} {self.metric.unit_noun}"
            if theirs := len(self.metric.units_without_value(reference, self.setup)):
                text += f" ({reference.pair}: {theirs})"
            decision = Decision.OPEN if decision is Decision.WITHIN else decision
        elif self.loss.bounded(self.records[pair]) > BOUNDED and decision is (
            Decision.WITHIN
        ):
            kind, decision = RemarkKind.BOUND, Decision.OPEN
            text = "of some tokens only a bound is known: it may lose more"
        elif not (self.loss.kind.has_counted_outcomes or any(losses)):
            kind = RemarkKind.IDENTICAL
            text = (
                "identical to the reference in every digit: check that the type took "
                "effect"
            )
        else:
            return None, decision
        return Remark(kind, text, (pair,)), decision

    def _share_without_number(self, pair: Pair) -> float:
        """Share of the units that the pair or the reference has no number of."""
        if self.loss.units is None:
            return 0.0
        names = {*self.loss.units(self.records[pair], self.setup)}
        both = self.reference_units.keys() & self.units[pair].keys()
        return len(names - both) / len(names)

    def _units_asked(self) -> int | None:
        """How many units were asked for; None if the metric names those alone."""
        if self.loss.units is None:
            return None
        return len(self.loss.units(self._record_of_reference, self.setup))

    def _remarks_on_unmeasured(self, pair: Pair) -> Iterator[Remark]:
        """What of the pair and of the reference could not be measured."""
        reference = self._record_of_reference
        if own := self.loss.lacking(self.records[pair]):
            yield Remark(RemarkKind.UNMEASURED, own, (pair,))
        if theirs := self.loss.lacking(reference):
            text = f"{reference.pair}: {theirs}"
            yield Remark(RemarkKind.UNMEASURED, text, (reference.pair,))

    def _missing_and_asked(self, pair: Pair) -> tuple[int, int]:
        """Numbers of units that *pair* or the reference lacks, and of all asked."""
        if self.loss.units is None:
            return 0, 0
        ours, theirs = self.records[pair], self._record_of_reference
        names = self.loss.units(ours, self.setup)
        unscored = {
            *(self.reference_units.keys() - self.units[pair].keys()),
            *self.metric.units_without_value(ours, self.setup),
            *self.metric.units_without_value(theirs, self.setup),
        }
        return len({*names} & unscored), len(names)


def _with_reference_doubt(row: MetricResult, text: str, pair: Pair) -> MetricResult:
    """*row*, made open by *text*, a doubt about the reference, unless it is beyond."""
    if row.decision is Decision.BEYOND:
        return row
    doubt = Remark(RemarkKind.DOUBTED_REFERENCE, text, (pair,))
    doubts = (*(remark for remark in row.doubts if row.has_gain_above_limit), doubt)
    return replace(row, decision=Decision.OPEN, doubts=doubts, needed=None)


def _net_loss(lost: Bounds, won: Bounds) -> Bounds:
    """The share of units that are lost, less that of those that are won."""
    return Bounds(
        mean=lost.mean - won.mean,
        low=lost.low - won.high,
        high=lost.high - won.low,
        units=lost.units,
    )


def counts_lost_and_won(losses: Sequence[float]) -> tuple[int, int]:
    """Numbers of units that lost and that won."""
    return sum(loss > 0 for loss in losses), sum(loss < 0 for loss in losses)


def _bounds_by_counts(losses: Sequence[float], share: float) -> Bounds:
    """
    The mean loss if too few units differ for their spread to be known.

    No unit loses more than 1, so the mean is at most the share that loses, and at least
    minus the share that wins.
    """
    (lost, won), units = counts_lost_and_won(losses), len(losses)
    return Bounds(
        mean=statistics.fmean(losses),
        low=-lost_share_interval(won, units, share).high,
        high=lost_share_interval(lost, units, share).high,
        units=units,
    )


def _too_few_phrase(flips: int, units: int, needed: int | None) -> str:
    """A remark on too few differing samples, with the number that is *needed*."""
    more = f"; about {needed:,} samples would decide it" if needed else ""
    return f"too few: {flips} of {units:,} samples differ{more}"


def metrics_by_unit(run: Run) -> list[MetricUnits]:
    """
    The metrics of *run* that have a loss and values; those of right tokens first.

    Of several files of weights, only those with one scale and the finest reference.
    """
    measured = []
    order, is_joint = order_of_deciding_sweep(run), isinstance(run, JointRun)
    for probe in PROBES.values():
        of_probe = run.of_probe(probe.name)
        records = {r.pair: r for r in of_probe.records if r.has_numbers}
        for metric in probe.metrics_of(run.setup) if records else ():
            units = {
                pair: of_pair
                for pair, record in records.items()
                if metric.loss
                and (of_pair := metric.loss_values_by_unit(record, run.setup))
            }
            if not metric.loss or not units:
                continue
            if not _is_on_one_scale(run, probe, metric.loss):
                continue
            reference = choose_reference_pair(
                [records[pair] for pair in units],
                []
                if is_joint
                else [metric.pair_measured_against(records[pair]) for pair in units],
            )
            noise = noise_floor(
                metric,
                metric.loss,
                units[reference] if reference else {},
                run.setup,
                again=[
                    again
                    for again in of_probe.variants
                    if again.variant == AGAIN
                    if again.pair == reference and again.has_numbers
                ],
                on_cpu=[
                    there
                    for there in of_probe.variants
                    if there.variant == ON_CPU
                    if there.pair == reference and there.has_numbers
                ],
            )
            of_metric = MetricUnits(
                metric=metric,
                loss=metric.loss,
                probe=probe,
                setup=run.setup,
                records=records,
                units=units,
                reference=reference,
                noise=noise,
                order=order,
            )
            measured.append(of_metric)
    if isinstance(run, JointRun):
        measured = _metrics_with_finest_reference(measured)
    return sorted(
        measured, key=lambda metric_units: not metric_units.loss.kind.is_of_right_tokens
    )


def _is_on_one_scale(run: Run, probe: Probe, loss: Loss) -> bool:
    """Whether what *probe* loses in *run* stands on one scale for all weights."""
    if not isinstance(run, JointRun):
        return True
    # A change is that of each file of weights, held against itself.
    asked = all(probe.name in single_run.setup.probes for single_run in run.runs)
    return (
        asked
        and loss.kind is not LossKind.CHANGE
        and probe.name not in run.incomparable_probes
    )


def _metrics_with_finest_reference(
    measured: Sequence[MetricUnits],
) -> list[MetricUnits]:
    """Those of *measured* whose reference is the most precise of all."""
    references = [units.reference for units in measured if units.reference]
    finest = most_precise(references) if references else None
    return [units for units in measured if units.reference == finest]


def why_little_to_lose(loss: Loss, record: CellRecord, setup: Setup) -> str:
    """Why a reference with this *record* has little to lose; empty if it has more."""
    able = loss.able(record, setup)
    if able < ABLE:
        reason = loss.right.format(able=f"{able:.0%}", pair=record.pair)
    else:
        reason = loss.why_guessed(record, setup)
    return reason and f"{reason}, so there is little to lose"
