"""The verdict of a run: each pair is within the limit, beyond it, or open."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from codeneedle.cache_types import (
    Pair,
    by_precision,
    finer_axes,
    most_precise_first,
)
from codeneedle.corpora.corpus import LIMIT
from codeneedle.engines.survey import Gain, gain_of
from codeneedle.errors import BadInput
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, frames
from codeneedle.probes.metrics import (
    ABLE,
    NOTABLE_LOSS,
    Loss,
    LossKind,
    Metric,
    caches_of,
    context_of,
    samples_needed,
)
from codeneedle.probes.probe import Probe
from codeneedle.records.record import (
    AGAIN,
    ON_CPU,
    Attention,
    CellRecord,
    Effective,
    Run,
    Setup,
)
from codeneedle.verdict.lengths import LostFrom, lost_from
from codeneedle.verdict.order import order_in, ruled_out, size_by_types
from codeneedle.verdict.remark_kinds import Remark, RemarkKind, joined
from codeneedle.verdict.statistics import (
    Bounds,
    Decision,
    answers_needed,
    disagreements,
    error_share,
    interval,
    lost_share,
    units_needed,
)

MAX_LOSS = 0.01
"""
Default limit of the loss: one of a hundred right tokens.

About the cost of 4-bit weights: Llama 3 8B loses 0.6 % of the probability of the right
token with Q4_K_M weights, 0.9 % with Q4_K_S, 1.6 % with Q4_0 (mean Δp on ordinary text,
from the tables in ``tools/perplexity/README.md`` of llama.cpp).
"""

MAX_LOST = 0.10
"""Default limit of the share of lost answers."""

MAX_EVAL_LOST = 0.02
"""Default limit of the loss of an evaluation's mean score: two of 100 samples."""

FEWEST_FLIPS = 6
"""
Differing samples from which on their spread is known.

With fewer, even if all lose, a two-sided exact test has no p below 0.05.
"""

CHANGE_BY_LOSS = 3.0
"""
Limit of the divergence in nats, per limit of the loss.

Q4_K_M weights diverge by 0.031 nats and lose 0.6 %; source as of `MAX_LOSS`.
"""

BOUNDED = 0.001
"""Share of tokens with only a bound up to which they are treated as exact."""

FEWEST_UNITS = 6
"""
Units from which on a pair can be within the limit.

Fewer may be alike by chance, and a trouble that hits a third of them goes unseen.
"""


class Outcome(StrEnum):
    """The answer of a verdict, for programs."""

    SET = "set"
    """A pair is within the limits, and fits."""

    KEEP = "keep"
    """
    No smaller cache is shown to be within the limits, and all were measured or ruled
    out; or the reference fits into a limited memory.
    """

    NOTHING_FITS = "nothing-fits"
    """Every cache that was measured is larger than the memory."""

    NO_ANSWER = "no-answer"
    """What was measured does not tell; also of a pair that fits and is not within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The losses that a user accepts."""

    max_loss: float = MAX_LOSS  # largest share of right tokens that may be lost
    max_lost: float = MAX_LOST
    """Largest share of the reference's answers that may be lost."""

    max_eval_lost: float = MAX_EVAL_LOST
    """Largest loss of the mean score of an evaluation."""

    max_memory_bytes: int | None = None  # largest KV cache; None for any
    at: int | None = None  # context of that size, in tokens; None for that of the run

    def __post_init__(self) -> None:
        """
        Refuse limits that no loss can be held against.

        Raises:
            BadInput: If one is not above 0 and at most 1.
        """
        for name in ("max_loss", "max_lost", "max_eval_lost"):
            limit = getattr(self, name)
            if not 0 < limit <= 1:
                percent = f"; {limit:g} % is {limit / 100:g}" if limit > 1 else ""
                raise BadInput(
                    source=f"{name}={limit}",
                    reason="is no share above 0 and up to 1",
                    hint=f"Write 3 % as 0.03{percent}.",
                )

    def of(self, kind: LossKind) -> float:
        """The limit for metrics of one *kind* of loss."""
        if kind is LossKind.ANSWERS:
            return self.max_lost
        if kind is LossKind.SCORE:
            return self.max_eval_lost
        if kind is LossKind.CHANGE:
            return CHANGE_BY_LOSS * self.max_loss
        return self.max_loss

    def phrase(self, kind: LossKind, loss: float) -> str:
        """
        A loss as text: ``0.9 %``, never ``-0.0 %``; ``0.0120 nats`` for a change,
        ``2.0 points`` of a score.

        Smaller limits have more digits.
        """
        digits = 1 - math.floor(math.log10(self.of(kind)))
        if kind is LossKind.CHANGE:
            return f"{loss:.{max(4, digits + 1)}f} nats"
        unit = "points" if kind is LossKind.SCORE else "%"
        return f"{100 * loss:z.{max(1, digits - 2)}f} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """The result of one metric for one pair."""

    metric: Metric  # the metric
    kind: LossKind  # kind of its losses
    bounds: Bounds  # interval of the mean loss; for answers, of the share lost
    limit: float  # the limit that applies
    word: Decision  # position of the interval relative to the limit
    needed: int | None = None
    """
    Estimated number of units that would decide an open pair; None if that is unknown,
    or the pair is not open.
    """

    lost: int = 0  # lost units, of answers and scores; 0 for other kinds
    won: int = 0  # units with a higher score; 0 for other kinds
    doubts: tuple[Remark, ...] = ()
    """About the bounds, some of which change the word; mostly none."""

    asked: int | None = None
    """
    Units that the reference was asked for, those left out included; None if each
    counts.
    """

    @property
    def remark(self) -> str:
        """Its doubts as a phrase; mostly empty."""
        return joined(self.doubts)

    @property
    def lacking(self) -> str:
        """What could not be measured, which widens the bounds; mostly empty."""
        return joined(e for e in self.doubts if e.kind is RemarkKind.UNMEASURED)

    @property
    def decidable(self) -> int | None:
        """Units that would show that an open pair is within; None if none do."""
        is_below = self.word is Decision.OPEN and self.bounds.mean < self.limit
        is_few = self.bounds.units < FEWEST_UNITS
        if not is_below or is_few or self.doubts or not self.needed:
            return None
        return self.needed if self.needed <= LIMIT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """All results for one pair."""

    pair: Pair  # the pair
    memory: float | None = None
    """Size of its KV cache relative to the reference's; None if unknown."""

    memory_bytes: float | None = None
    """Size of its KV cache at the context of `Limits`; None if unknown."""

    speed: float | None = None
    """Speed of writing relative to the reference's; None if not measured."""

    rows: tuple[
        MetricResult, ...
    ] = ()  # one row per metric that compares it with the reference
    word: Decision | None = None
    """Verdict by all rows; None for the reference and for a pair in trouble."""

    trouble: str = ""  # why it is not compared, status and reason; empty if it is
    failed: tuple[CellRecord, ...] = ()
    """
    Its records without numbers, of probes that measure losses; while there is one it is
    not within the limit.
    """

    lacking: tuple[str, ...] = ()
    """
    Names of metrics that other pairs have and it has not: of those that decide, and of
    what failed.
    """

    attention: Attention | None = None  # where its attention ran; None if nothing tells
    evidence: str = ""  # what tells it, as a phrase

    @property
    def in_kernel(self) -> bool:
        """True if its attention ran in a kernel, as far as is known."""
        return self.attention in {None, Attention.KERNEL}

    @property
    def leading(self) -> MetricResult | None:
        """The row that decides its word: of several, the worst by its limit."""
        rows = [row for row in self.rows if row.word is self.word] or list(self.rows)
        graded = [row for row in rows if row.kind.is_graded] or rows
        return max(graded, key=_severity, default=None)

    def row(self, metric: str) -> MetricResult | None:
        """The row of the metric of that name."""
        return next((row for row in self.rows if row.metric.name == metric), None)


def _severity(row: MetricResult) -> float:
    return (
        row.bounds.low if row.word is Decision.BEYOND else row.bounds.high
    ) / row.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The loss of a pair that was measured another way, too."""

    kind: LossKind  # kind of its losses
    loss: float  # the mean loss, as all pairs are measured
    other: float  # that of the other way
    units: int  # units of the other way
    is_disagreement: bool  # whether the two differ by more than their noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusions from a run."""

    run: Run
    """The run."""

    limits: Limits
    """The limits that apply."""

    reference: Pair | None = None
    """The pair that all are compared with; None without numbers."""

    results: tuple[PairResult, ...] = ()
    """One per pair with a record, most precise first."""

    chosen: Pair | None = None
    """The pair to set, one with a kernel; None to keep the reference."""

    elsewhere: Pair | None = None
    """The pair that the losses alone would set, if it has no kernel; else None."""

    silent: Mapping[str, str] = field(default_factory=dict)
    """Metrics that do not enter the verdict, with the reason, by name."""

    repeats: Mapping[str, tuple[LossKind, float]] = field(default_factory=dict)
    """
    Distance of the reference from its repetition, with the kind of loss that it is
    measured as, by name of the metric.
    """

    on_cpu: Mapping[str, tuple[LossKind, float]] = field(default_factory=dict)
    """Distance of the reference from itself with attention on the CPU, as `repeats`."""

    flips: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """
    Units that the repetition of the reference lost and won, and all units, by name of
    the metric.
    """

    lost_from: tuple[LostFrom, ...] = ()
    """Lengths from which on pairs lose the answers to a task."""

    crosschecks: Mapping[Pair, CrossCheck] = field(default_factory=dict)
    """Pairs that were measured another way, too."""

    has_crosscheck: bool = False
    """Whether there is another way for this run."""

    @property
    def gain(self) -> Gain | None:
        """
        What the pair that is set saves; of none, the smallest pair that is compared.

        None without the sizes of both caches, or the size of the weights, and where
        every pair is larger than the reference.
        """
        pair = self.chosen
        smaller = [each for each in self.compared if cache_size(each) < 1]
        if pair is None and smaller:
            pair = min(smaller, key=cache_size).pair
        weights = self.run.setup.weights.size_bytes
        if pair is None or self.reference is None or not weights:
            return None
        theirs = _longest(self.reference, self.run.records)
        ours = _longest(pair, self.run.records)
        if theirs is None or ours is None:
            return None
        return gain_of(
            pair,
            caches_of(ours),
            caches_of(theirs),
            theirs,
            at=self.limits.at or self.run.setup.context,
            weights=weights,
        )

    def kv_bytes(self, pair: Pair, context: int) -> float | None:
        """Size of the KV cache of *pair* at *context* tokens; None if unknown."""
        return _kv_bytes(pair, self.run.records, context)

    @property
    def outcome(self) -> Outcome:
        """What to do, in a word."""
        chosen = self.result(self.chosen) if self.chosen else None
        if chosen:
            is_within = chosen.word is Decision.WITHIN
            return Outcome.SET if is_within else Outcome.NO_ANSWER
        own = self.result(self.reference) if self.reference else None
        kinds = {row.kind for each in self.compared for row in each.rows}
        can_tell = kinds - {LossKind.CHANGE} and self.has_kernel and not self.finer
        most = self.limits.max_memory_bytes
        sizes = [e.memory_bytes for e in self.results if e.memory_bytes is not None]
        if most is not None and sizes and min(sizes) > most:
            return Outcome.NOTHING_FITS
        if own is None or self.is_instrument or not can_tell:
            return Outcome.NO_ANSWER
        if most is None:
            return Outcome.NO_ANSWER if self.unasked else Outcome.KEEP
        fits = (own.memory_bytes or math.inf) <= most
        return Outcome.KEEP if fits else Outcome.NO_ANSWER

    @property
    def is_instrument(self) -> bool:
        """True if the built-in model was measured, a test fixture."""
        return self.run.setup.weights.name == BUILT_IN

    @property
    def has_kernel(self) -> bool:
        """False if attention of every pair with numbers ran in no kernel."""
        measured = [each for each in self.results if not each.trouble]
        return any(each.in_kernel for each in measured) or not measured

    @property
    def worth_compiling(self) -> tuple[Pair, ...]:
        """Pairs without a kernel, within the limit, and smaller than what is set."""
        chosen = self.result(self.chosen) if self.chosen else None
        most = cache_size(chosen) if chosen else 1.0
        return tuple(
            each.pair
            for each in sorted(self.compared, key=cache_size)
            if not each.in_kernel and each.word is Decision.WITHIN
            if cache_size(each) < most
        )

    @property
    def graded(self) -> bool:
        """True if a metric of the mean loss enters the verdict."""
        rows = (row for result in self.results for row in result.rows)
        return any(row.kind.is_graded or row.kind is LossKind.SCORE for row in rows)

    @property
    def main_rows(self) -> list[MetricResult]:
        """What the first graded metric says of each pair; without one, another one."""
        rows = [row for each in self.compared for row in each.rows]
        graded = [row for row in rows if row.kind.is_graded]
        scores = [row for row in rows if row.kind is LossKind.SCORE]
        answers = [row for row in rows if row.kind is LossKind.ANSWERS]
        names = [row.metric.name for row in (*graded, *scores, *answers, *rows)]
        return [row for row in rows if row.metric.name == names[0]]

    @property
    def compared(self) -> tuple[PairResult, ...]:
        """The pairs that are compared with the reference."""
        return tuple(each for each in self.results if each.word is not None)

    @property
    def inferred(self) -> Mapping[Pair, Pair]:
        """
        Pairs of a sweep that decides which were not measured, as a finer one is beyond.

        With that one. They have no numbers, and are never set.
        """
        order = order_in(self.run.setup)
        if order is None:
            return {}
        words = {each.pair: each.word for each in self.compared if each.word}
        tried = {each.pair for each in self.results}
        pairs = (pair for pair in order.every if pair not in tried)
        return ruled_out(words, pairs)

    @property
    def unasked(self) -> tuple[Pair, ...]:
        """Pairs smaller than the reference that were not measured, nor ruled out."""
        order, own = order_in(self.run.setup), self.reference
        known = {own, *self.inferred, *(each.pair for each in self.results)}
        pairs = order.every if order else self.run.setup.grid
        most = size_by_types(own) if own else math.inf
        return tuple(
            pair for pair in pairs if pair not in known and size_by_types(pair) < most
        )

    @property
    def finer(self) -> tuple[Pair, ...]:
        """
        The compared pairs with a finer K or V than the reference.

        Of those in a kernel where the reference is: others are no choice here.
        """
        own = self.result(self.reference) if self.reference else None
        if own is None:
            return ()
        return tuple(
            each.pair
            for each in self.compared
            if each.in_kernel >= own.in_kernel and finer_axes(each.pair, own.pair)
        )

    def result(self, pair: Pair) -> PairResult | None:
        """The result of *pair*; None if it has no record."""
        return next((each for each in self.results if each.pair == pair), None)

    def word(self, pair: Pair, metric: str = "") -> str:
        """
        The verdict on *pair*: ``within``, ``beyond`` or ``open``.

        Empty for the reference, and for a pair that is not compared.

        Args:
            pair: Any pair.
            metric: Name of a metric whose row is used; all of them if empty.
        """
        result = self.result(pair)
        if result is None or result.trouble:
            return ""
        if not metric:
            return result.word or ""
        row = result.row(metric)
        return row.word if row else ""

    def types_all(self, word: Decision, axis: str, metric: str = "") -> list[str]:
        """
        The types of *axis*, ``k`` or ``v``, whose pairs all have that *word*.

        Only types with at least two compared pairs, most precise first. By the *metric*
        of that name alone, or by all if empty.
        """
        by_type: dict[str, list[str]] = {}
        for result in self.compared:
            if verdict := self.word(result.pair, metric):
                by_type.setdefault(getattr(result.pair, axis), []).append(verdict)
        return by_precision(
            name
            for name, words in by_type.items()
            if len(words) > 1 and {*words} == {word}
        )


def judge(run: Run, limits: Limits | None = None) -> Verdict:
    """
    The verdict of *run* by all that was measured.

    How often it is wrong: `statistics.ALPHA`. Only the latest look at a pair counts.

    Args:
        run: With the records of all probes.
        limits: Losses that the user accepts.
    """
    limits = limits or Limits()
    measured = _measured(run)
    reference = next((each.reference for each in measured if each.reference), None)
    if reference is None:
        return Verdict(run=run, limits=limits)
    by_name = {each.metric.name: each for each in measured}
    reasons = {name: each.silence(limits) for name, each in by_name.items()}
    silent = {name: reason for name, reason in reasons.items() if reason}
    entering = [each for name, each in by_name.items() if name not in silent]
    every = lost_from(run, limits.max_lost)
    lost = [each for each in every if not finer_axes(each.pair, reference)]
    verdict = Verdict(
        run=run,
        limits=limits,
        reference=reference,
        results=tuple(_results(run, entering, reference, limits, lost)),
        silent=silent,
        repeats={
            name: (each.loss.kind, each.repeated)
            for name, each in by_name.items()
            if each.repeated is not None
        },
        on_cpu={
            name: (each.loss.kind, each.moved)
            for name, each in by_name.items()
            if each.moved is not None
        },
        flips={
            name: (*_counts(each.again), len(each.of_reference))
            for name, each in by_name.items()
            if each.again and each.loss.kind is LossKind.SCORE
        },
        lost_from=tuple(lost),
        crosschecks={p: e for each in entering for p, e in each.crosschecks().items()},
        has_crosscheck=any(
            further.checks(run.setup)
            for each in entering
            if (further := each.probe.further)
        ),
    )
    best = _chosen(verdict, verdict.results)
    here = [each for each in verdict.results if each.in_kernel]
    chosen = best if verdict.has_kernel else None
    if best and not any(each.pair == best for each in here):
        chosen = _chosen(verdict, here)
        return replace(verdict, chosen=chosen, elsewhere=best)
    return replace(verdict, chosen=chosen)


# --- metrics, unit by unit


_ENDS = {
    LossKind.PROBABILITY: (-1.0, 1.0),
    LossKind.NATS: (-math.inf, 1.0),
    LossKind.CHANGE: (0.0, math.inf),
    LossKind.SCORE: (-1.0, 1.0),
}
"""The smallest and the largest possible loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MetricUnits:
    """One metric of all pairs, unit by unit."""

    metric: Metric  # the metric
    loss: Loss  # how it enters the verdict
    probe: Probe  # the probe that measured it
    setup: Setup  # of the run
    records: Mapping[Pair, CellRecord]  # records of the probe that have numbers
    units: Mapping[Pair, Mapping[str, float]]
    """
    Of each pair with values, the numbers that losses are computed of, by name of the
    unit.
    """

    reference: Pair | None
    """The pair that others are compared with; None if there is none."""

    again: Sequence[float] = ()
    """Losses of the repetition of the reference; empty without one."""

    repeated: float | None = None
    """Distance of the reference from its repetition; None without one."""

    on_cpu: Mapping[str, float] = field(default_factory=dict)
    """The units of the reference with attention on the CPU; empty without."""

    moved: float | None = None
    """Distance of the reference from itself there; None without one."""

    @property
    def of_reference(self) -> Mapping[str, float]:
        """The units of the reference."""
        return self.units[self.reference] if self.reference else {}

    def with_repetition(self, record: CellRecord) -> "_MetricUnits":
        """With the losses of the reference's repetition, if it shares units."""
        again = self.metric.by_unit(record, self.setup)
        losses = self._losses(self.of_reference, again)
        if not losses:
            return self
        apart = losses
        if self.loss.kind is LossKind.ANSWERS:  # lost or won
            apart = [*losses, *self._losses(again, self.of_reference)]
        repeated = abs(math.fsum(apart)) / len(losses)
        return replace(self, again=losses, repeated=repeated)

    def with_cpu(self, record: CellRecord) -> "_MetricUnits":
        """With the units of the reference measured with its attention on the CPU."""
        there = self.metric.by_unit(record, self.setup)
        found = self.with_repetition(record)
        return replace(self, on_cpu=there, moved=found.repeated)

    def _base_units(self, pair: Pair) -> Mapping[str, float]:
        """Units of the reference with attention where that of *pair* ran."""
        is_there = self.records[pair].attention is Attention.CPU if self.on_cpu else 0
        return self.on_cpu if is_there else self.of_reference

    def _losses(
        self, first: Mapping[str, float], second: Mapping[str, float]
    ) -> list[float]:
        """The losses of the *second*, of the units that both have."""
        names = (name for name in first if name in second)
        return [self.loss.of(second[name], first[name]) for name in names]

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
            if (losses := self._losses(there, units))
        }
        ours = {
            pair: losses
            for pair in others
            if (losses := self._losses(self.of_reference, self.units.get(pair, {})))
        }
        found = disagreements(ours, others)
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

    def silence(self, limits: Limits) -> str:
        """Why the metric does not enter the verdict; empty if it does."""
        if self.reference is None:
            return "the pair that others were measured against has no value"
        if reason := too_little(self.loss, self.records[self.reference], self.setup):
            return reason
        kind, repeated = self.loss.kind, self.repeated
        limit = limits.of(kind)
        # Intervals of scores include the noise of sampling.
        if kind is LossKind.SCORE or repeated is None or repeated <= limit:
            return ""
        return (
            f"{self.reference}, measured twice, differs from itself by "
            f"{limits.phrase(kind, repeated)}, more than the limit of "
            f"{limits.phrase(kind, limit)}: this engine does not repeat itself so "
            "closely"
        )

    def row(self, pair: Pair, limits: Limits) -> MetricResult | None:
        """The result for *pair*; None if it shares no unit with the reference."""
        losses = self._losses(
            self._base_units(pair) if pair in self.records else {},
            self.units.get(pair, {}),
        )
        if not losses:
            return None
        kind, limit = self.loss.kind, limits.of(self.loss.kind)
        look, pairs = self._look(pair), self._sharing(pair)
        share = error_share(look, pairs)
        lost, won = _counts(losses) if kind.is_counted else (0, 0)
        is_few = kind is LossKind.SCORE and lost + won < FEWEST_FLIPS
        if kind is LossKind.ANSWERS:
            bounds = lost_share(lost, len(losses), share)
        elif is_few:
            bounds = _by_counts(losses, share)
        else:
            bounds = interval(losses, share).clipped(*_ENDS[kind])
        if kind is LossKind.SCORE:
            bounds = bounds.widened(self._unmeasured(pair)).clipped(*_ENDS[kind])
        doubt, word = self._doubt(pair, losses, bounds.word(limit))
        is_loss = kind.is_graded or kind is LossKind.SCORE
        if word is Decision.WITHIN and is_loss and len(losses) < FEWEST_UNITS:
            word = Decision.OPEN
        doubts = [*([doubt] if doubt else []), *self._unmeasured_units(pair)]
        needed = None
        if word is Decision.OPEN and is_few:
            few = _too_few(lost + won, len(losses), share)
            doubts.append(Remark(RemarkKind.TOO_FEW, few, (pair,)))
        elif word is Decision.OPEN and kind is not LossKind.ANSWERS:
            needed = units_needed(losses, limit, look=look + 1, pairs=pairs)
        elif word is Decision.OPEN and not self.probe.further:
            # Of a new run, which asks every pair the same.
            needed = answers_needed(lost, len(losses), limit, share=share)
        return MetricResult(
            metric=self.metric,
            kind=kind,
            bounds=bounds,
            limit=limit,
            word=word,
            needed=needed,
            lost=lost,
            won=won,
            doubts=tuple(doubts),
            asked=self._asked(pair),
        )

    def _look(self, pair: Pair) -> int:
        """How often *pair* got further units, as of `error_share`."""
        further = self.probe.further
        look = further.look(self.records[pair], self.setup) if further else 0
        order = order_in(self.setup)
        return order.look(look) if order else look

    def _sharing(self, pair: Pair) -> int:
        """Among how many pairs the error is shared, as of `error_share`."""
        others = self.units.keys() - {self.reference}
        order = order_in(self.setup)
        return order.sharing(pair, others) if order else len(others)

    def _doubt(
        self, pair: Pair, losses: Sequence[float], word: Decision
    ) -> tuple[Remark | None, Decision]:
        """The first doubt about the bounds, and the word that it leaves of *word*."""
        reference = self.records[self.reference or pair]
        finer = finer_axes(pair, reference.pair)
        missing, of = self._missing(pair)
        if finer and word is Decision.BEYOND:
            kind, word = RemarkKind.COARSER_REFERENCE, Decision.OPEN
            axes = " and ".join(finer)
            text = f"{reference.pair} has a coarser {axes}: the loss may be its own"
        elif self.loss.bounded(reference) > BOUNDED and word is Decision.BEYOND:
            kind, word = RemarkKind.BOUND, Decision.OPEN
            words = "of some tokens of the reference only a bound is known"
            text = f"{words}: it may lose less"
        elif missing:
            kind = RemarkKind.MISSING
            text = f"answers missing: {missing} of {of} {self.metric.noun}"
            word = Decision.OPEN if word is Decision.WITHIN else word
        elif self.loss.bounded(self.records[pair]) > BOUNDED and word is (
            Decision.WITHIN
        ):
            kind, word = RemarkKind.BOUND, Decision.OPEN
            text = "of some tokens only a bound is known: it may lose more"
        elif not (self.loss.kind.is_counted or any(losses)):
            kind = RemarkKind.IDENTICAL
            text = "the same to the last digit: is this cache what it claims?"
        else:
            return None, word
        return Remark(kind, text, (pair,)), word

    def _unmeasured(self, pair: Pair) -> float:
        """Share of the units that the pair or the reference has no number of."""
        if self.loss.units is None:
            return 0.0
        names = {*self.loss.units(self.records[pair], self.setup)}
        both = self.of_reference.keys() & self.units[pair].keys()
        return len(names - both) / len(names)

    def _asked(self, pair: Pair) -> int | None:
        """How many units were asked for; None if the metric names those alone."""
        if self.loss.units is None:
            return None
        reference = self.records[self.reference or pair]
        return len(self.loss.units(reference, self.setup))

    def _unmeasured_units(self, pair: Pair) -> Iterator[Remark]:
        """What of the pair and of the reference could not be measured."""
        reference = self.records[self.reference or pair]
        if own := self.loss.lacking(self.records[pair]):
            yield Remark(RemarkKind.UNMEASURED, own, (pair,))
        if theirs := self.loss.lacking(reference):
            text = f"{reference.pair}: {theirs}"
            yield Remark(RemarkKind.UNMEASURED, text, (reference.pair,))

    def _missing(self, pair: Pair) -> tuple[int, int]:
        """Number of units that only the reference has, and of all that were asked."""
        # What has no score widens the bounds of an evaluation.
        if self.loss.units is None or self.loss.kind is LossKind.SCORE:
            return 0, 0
        names = self.loss.units(self.records[pair], self.setup)
        lacking = {*names} & self.of_reference.keys() - self.units[pair].keys()
        return len(lacking), len(names)


def _counts(losses: Sequence[float]) -> tuple[int, int]:
    """Numbers of units that lost and that won."""
    return sum(loss > 0 for loss in losses), sum(loss < 0 for loss in losses)


def _by_counts(losses: Sequence[float], share: float) -> Bounds:
    """
    The mean loss if too few units differ for their spread to be known.

    No unit loses more than 1, so the mean is at most the share that loses, and at least
    minus the share that wins.
    """
    (lost, won), units = _counts(losses), len(losses)
    return Bounds(
        mean=statistics.fmean(losses),
        low=-lost_share(won, units, share).high,
        high=lost_share(lost, units, share).high,
        units=units,
    )


def _too_few(flips: int, units: int, share: float) -> str:
    """A remark on too few differing samples, with the number that is needed."""
    needed = samples_needed(flips / units, share=share)
    return (
        f"too few: {flips} of {units} samples differ; about {needed:,} samples would "
        f"show a loss of {100 * NOTABLE_LOSS:.0f} points"
    )


def _measured(run: Run) -> list[_MetricUnits]:
    """The metrics that have a loss and values; graded ones first."""
    measured = []
    for probe in PROBES.values():
        of_probe = frames.of_probe(run, probe.name)
        records = {r.pair: r for r in of_probe.records if r.has_numbers}
        for metric in probe.metrics_of(run.setup) if records else ():
            units = {
                pair: of_pair
                for pair, record in records.items()
                if metric.loss and (of_pair := metric.by_unit(record, run.setup))
            }
            if not metric.loss or not units:
                continue
            of_metric = _MetricUnits(
                metric=metric,
                loss=metric.loss,
                probe=probe,
                setup=run.setup,
                records=records,
                units=units,
                reference=frames.chosen_reference(
                    [records[pair] for pair in units],
                    [metric.against(records[pair]) for pair in units],
                ),
            )
            for again in of_probe.again:
                if again.pair == of_metric.reference and again.has_numbers:
                    of_metric = of_metric.with_repetition(again)
            for there in of_probe.on_cpu:
                if there.pair == of_metric.reference and there.has_numbers:
                    of_metric = of_metric.with_cpu(there)
            measured.append(of_metric)
    return sorted(measured, key=lambda each: not each.loss.kind.is_graded)


# --- pairs


def _results(
    run: Run,
    measured: Sequence[_MetricUnits],
    reference: Pair,
    limits: Limits,
    lost: Sequence[LostFrom],
) -> Iterator[PairResult]:
    records = [r for r in run.records if not r.probe.endswith((AGAIN, ON_CPU))]
    pairs = most_precise_first({record.pair for record in records})
    context = limits.at or run.setup.context
    sizes = {pair: _kv_bytes(pair, records, context) for pair in pairs}
    speeds = _speeds(run)
    for pair in pairs:
        has_losses = any(pair in each.units for each in measured)
        failed = tuple(
            record
            for record in records
            if record.pair == pair and not record.has_numbers
            if _has_losses(record.probe, run.setup)
        )
        attention, evidence = _attention(pair, records)
        result = PairResult(
            pair=pair,
            memory=_ratio(sizes[pair], sizes.get(reference)),
            memory_bytes=sizes[pair],
            speed=_ratio(speeds.get(pair), speeds.get(reference)),
            rows=tuple(
                row
                for of_metric in measured
                if pair != of_metric.reference and (row := of_metric.row(pair, limits))
            ),
            trouble=_failure_phrase(failed[0]) if failed and not has_losses else "",
            failed=failed,
            attention=attention,
            evidence=evidence,
        )
        if pair == reference or not result.rows:
            yield result
        else:
            yield _with_word(result, measured, [e for e in lost if e.pair == pair])


def _with_word(
    result: PairResult, measured: Sequence[_MetricUnits], lost: Sequence[LostFrom]
) -> PairResult:
    """*result* with its word by all rows, and the metrics that it lacks."""
    deciding = _deciding(measured)
    rows = _with_lost_lengths(result.rows, lost)
    word, names = _word(rows, deciding), {row.metric.name for row in rows}
    failed = {record.probe for record in result.failed}
    of_failed = [e.metric.name for e in measured if e.probe.name in failed]
    required = dict.fromkeys([*deciding, *of_failed])
    return replace(
        result,
        rows=tuple(rows),
        word=Decision.OPEN if failed and word is Decision.WITHIN else word,
        lacking=tuple(name for name in required if name not in names),
    )


def _deciding(measured: Sequence[_MetricUnits]) -> list[str]:
    """Names of the metrics that must be within: graded ones or answers, and scores."""
    kinds = {each.loss.kind for each in measured}
    graded = {kind for kind in kinds if kind.is_graded}
    deciding = (graded or {LossKind.ANSWERS}) | {LossKind.SCORE}
    return [each.metric.name for each in measured if each.loss.kind in deciding]


def _word(rows: Sequence[MetricResult], deciding: Sequence[str]) -> Decision:
    """Beyond if one metric is; within if all that are *deciding* and divergence are."""
    words = {row.metric.name: row.word for row in rows}
    if Decision.BEYOND in words.values():
        return Decision.BEYOND
    change = [row.metric.name for row in rows if row.kind is LossKind.CHANGE]
    is_within = all(words.get(name) is Decision.WITHIN for name in (*deciding, *change))
    return Decision.WITHIN if deciding and is_within else Decision.OPEN


def _with_lost_lengths(
    rows: Sequence[MetricResult], lost: Sequence[LostFrom]
) -> list[MetricResult]:
    """*rows* of a pair; that of lost texts is beyond if lengths are *lost*."""
    doubts = tuple(
        Remark(
            RemarkKind.LENGTHS,
            f"{each.task}: lost from {each.length:,} tokens on",
            (each.pair,),
        )
        for each in lost
    )
    return [
        replace(row, word=Decision.BEYOND, doubts=doubts)
        if doubts and row.kind is LossKind.ANSWERS and row.metric.noun == "texts"
        else row
        for row in rows
    ]


def too_little(loss: Loss, record: CellRecord, setup: Setup) -> str:
    """Why nothing can be lost beside the reference of *record*; empty if it can."""
    able = loss.able(record, setup)
    if able >= ABLE:
        return ""
    right = loss.right.format(able=f"{able:.0%}", pair=record.pair)
    return f"{right}, so there is little to lose"


def _has_losses(probe: str, setup: Setup) -> bool:
    """Whether a metric of the probe of that name enters the verdict."""
    known = PROBES.get(probe)
    return known is not None and any(each.loss for each in known.metrics_of(setup))


def _failure_phrase(record: CellRecord) -> str:
    """Status and reason of a record that failed."""
    return f"{record.status.value}: {record.reason}"


def _attention(
    pair: Pair, records: Iterable[CellRecord]
) -> tuple[Attention | None, str]:
    """Where attention of *pair* ran: in no kernel if that is so of any probe."""
    told = [r for r in records if r.pair == pair and r.has_numbers and r.attention]
    told.sort(key=lambda record: record.in_kernel)
    first = told[0] if told else None
    return (
        (first.attention, first.effective.attention_evidence) if first else (None, "")
    )


def _kv_bytes(pair: Pair, records: Iterable[CellRecord], context: int) -> float | None:
    """Size of the KV cache of *pair* at *context* tokens, from its log."""
    told = _longest(pair, records)
    return caches_of(told).size(context) if told else None


def _longest(pair: Pair, records: Iterable[CellRecord]) -> Effective | None:
    """What ran at the longest context of *pair*, where its log tells of caches."""
    told = (r.effective for r in records if r.pair == pair and r.effective.kv)
    return max(told, key=context_of, default=None)


def _speeds(run: Run) -> dict[Pair, float]:
    """Tokens per second of writing, by pair."""
    return {
        cell.pair: cell.value
        for probe in PROBES.values()
        if probe.is_timed
        for cell in frames.cells_frame(
            frames.of_probe(run, probe.name), probe.metrics[0]
        )
        if cell.has_value and cell.is_ranked
    }


def _ratio(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


def _chosen(verdict: Verdict, results: Sequence[PairResult]) -> Pair | None:
    """The pair of *results* to set: the smallest within, or the best that fits."""
    if verdict.is_instrument:
        return None
    most = verdict.limits.max_memory_bytes
    if most is None:
        within = [each for each in results if each.word is Decision.WITHIN]
        smaller = [each for each in within if cache_size(each) < 1]
        return min(smaller, key=cache_size).pair if smaller else None
    fitting = [
        each
        for each in results
        if each.memory_bytes is not None and each.memory_bytes <= most
        if not each.failed
    ]
    if any(each.pair == verdict.reference for each in fitting):
        return None
    # No recommendation by divergence alone.
    candidates = [
        each
        for each in fitting
        if any(row.kind is not LossKind.CHANGE for row in each.rows)
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda each: (_largest(each), _mean(each))).pair


def _largest(result: PairResult) -> float:
    """Upper end of its loss relative to the limit; infinite without a row."""
    row = result.leading
    return row.bounds.high / row.limit if row else math.inf


def _mean(result: PairResult) -> float:
    """Its mean loss relative to the limit; infinite without a row."""
    row = result.leading
    return row.bounds.mean / row.limit if row else math.inf


def cache_size(result: PairResult) -> float:
    """
    Size of a pair's cache relative to the reference's.

    Without a log it is computed from the bits of the types; infinite if these are
    unknown.
    """
    if result.memory is not None:
        return result.memory
    return size_by_types(result.pair)


def best_by_size(results: Sequence[PairResult]) -> list[PairResult]:
    """
    The pairs that no other beats in both size and loss, the smallest first.

    Losses are relative to the limits of their metrics.
    """
    best: list[PairResult] = []
    for result in sorted(
        results, key=lambda each: (cache_size(each), _mean(each), str(each.pair))
    ):
        if _mean(result) < (_mean(best[-1]) if best else math.inf):
            best.append(result)
    return best
