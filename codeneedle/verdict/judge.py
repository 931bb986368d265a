"""
The verdict by all metrics together: each pair is within the limit, beyond it, or open;
which one with a kernel is set, else keep, nothing fits or no answer; the Pareto front.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from codeneedle.cache_types import (
    Pair,
    distinct_most_precise_first,
    finer_axes,
    most_precise_first,
)
from codeneedle.engines.memory_gain import Gain, memory_gain
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes import PROBES, frames
from codeneedle.probes.cell_metrics import caches_of, context_tokens_or_zero
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Effective,
    Run,
    Setup,
)
from codeneedle.verdict.asking_order import (
    JointOrder,
    JointRun,
    order_of,
    pairs_ruled_out_by_finer,
)
from codeneedle.verdict.budget_border import unmeasured_dominated_pairs
from codeneedle.verdict.lengths import LostFrom, lost_lengths
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_results import (
    CrossCheck,
    MetricResult,
    MetricUnits,
    counts_lost_and_won,
    metrics_by_unit,
)
from codeneedle.verdict.remark_kinds import Remark, RemarkKind
from codeneedle.verdict.statistics import Bounds, Decision


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
class PairResult:
    """All results for one pair."""

    pair: Pair  # the pair
    memory: float | None = None
    """Size of its KV cache relative to the reference's; None if unknown."""

    memory_bytes: float | None = None
    """Size of its KV cache at the context of `Limits`; None if unknown."""

    speed: float | None = None
    """Speed of writing relative to the reference's; None if not measured."""

    metric_results: tuple[MetricResult, ...] = ()
    """One per metric that compares it with the reference."""

    decision: Decision | None = None
    """Verdict by all of them; None for the reference and for a pair in trouble."""

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
    def has_all_deciding_metrics(self) -> bool:
        """Whether it has all that decides: more units of a part decide no pair."""
        return not (self.lacking or self.failed)

    @property
    def ran_as_usual(self) -> bool:
        """Whether its attention `is_usual`, or is unknown."""
        return self.attention is None or self.attention.is_usual

    @property
    def leading_result(self) -> MetricResult | None:
        """
        The result behind its decision; None without any.

        Of several with that decision, or of all where none has it, one of right tokens
        goes before others, then the worst by its limit.
        """
        every = self.metric_results
        rows = [row for row in every if row.decision is self.decision] or every
        graded = [row for row in rows if row.kind.is_of_right_tokens] or rows
        return max(graded, key=_severity_of_metric, default=None)

    @property
    def right_token_results(self) -> list[MetricResult]:
        """What whole metrics of right tokens say: of recall, of ordinary text."""
        return [
            row
            for row in self.metric_results
            if row.kind.is_of_right_tokens and not row.metric.of
        ]

    def metric_result(self, metric: str) -> MetricResult | None:
        """The result of the metric of that name; None without one."""
        return next(
            (row for row in self.metric_results if row.metric.name == metric), None
        )


def _severity_of_metric(row: MetricResult) -> float:
    """Loss / limit: of the lower end if *row* is beyond, else of the upper end."""
    return (
        row.bounds.low if row.decision is Decision.BEYOND else row.bounds.high
    ) / row.limit


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
    def reference_doubts_by_metric(self) -> dict[str, str]:
        """Why the reference is in doubt, by each metric by which it is."""
        return {
            row.metric.name: doubt.text
            for result in self.results
            for row in result.metric_results
            for doubt in row.doubts
            if doubt.kind is RemarkKind.DOUBTED_REFERENCE
        }

    @property
    def memory_saving(self) -> Gain | None:
        """
        The memory that the pair to set saves, else the smallest compared one.

        None without the sizes of both caches, or the size of the weights, where every
        pair is larger than the reference, and of several runs.
        """
        if isinstance(self.run, JointRun):
            # Each size is that of everything already.
            return None
        pair = self.chosen
        smaller = [
            result
            for result in self.compared_results
            if relative_cache_size(result) < 1
        ]
        if pair is None and smaller:
            pair = min(smaller, key=relative_cache_size).pair
        weights = self.run.setup.weights.size_bytes
        if pair is None or self.reference is None or not weights:
            return None
        theirs = _effective_at_longest(self.reference, self.run.records)
        ours = _effective_at_longest(pair, self.run.records)
        if theirs is None or ours is None:
            return None
        return memory_gain(
            pair,
            caches_of(ours),
            caches_of(theirs),
            theirs,
            at=self.limits.at or self.run.setup.context,
            weights=weights,
        )

    def kv_bytes(self, pair: Pair, context: int) -> float | None:
        """Bytes of the KV cache of *pair* at *context* tokens; None if no log tells."""
        return _kv_bytes_at(pair, self.run.records, context)

    @property
    def outcome(self) -> Outcome:
        """What to do, in a word."""
        chosen = self.result(self.chosen) if self.chosen else None
        if chosen and isinstance(self.run, JointRun):
            # Beside the loss of weights, a limit is none of the answer.
            return Outcome.SET
        if chosen:
            is_within = chosen.decision is Decision.WITHIN
            return Outcome.SET if is_within else Outcome.NO_ANSWER
        return (
            Outcome.KEEP if self.has_fitting_reference else self._outcome_without_pair
        )

    @property
    def _outcome_without_pair(self) -> Outcome:
        """The answer where no pair is set, nor the reference known to fit."""
        own = self.result(self.reference) if self.reference else None
        kinds = {
            row.kind
            for result in self.compared_results
            for row in result.metric_results
        }
        can_tell = kinds - {LossKind.CHANGE} and self.may_have_pair_in_kernel
        can_tell = can_tell and not (
            self.pairs_finer_than_reference or self.reference_doubts_by_metric
        )
        most = self.limits.max_memory_bytes
        sizes = [e.memory_bytes for e in self.results if e.memory_bytes is not None]
        is_over = most is not None and bool(sizes) and min(sizes) > most
        if is_over and not (self.fitting_candidates or self.newly_fitting_candidates):
            return Outcome.NOTHING_FITS
        if own is None or self.is_of_built_in_model or not can_tell:
            return Outcome.NO_ANSWER
        if most is None:
            is_open = self.unasked_pairs or self.newly_fitting_candidates
            return Outcome.NO_ANSWER if is_open else Outcome.KEEP
        fits = (own.memory_bytes or math.inf) <= most
        return Outcome.KEEP if fits else Outcome.NO_ANSWER

    def fits(self, result: PairResult) -> bool:
        """True unless it is known to be larger than the memory that is limited."""
        most, size = self.limits.max_memory_bytes, result.memory_bytes
        return most is None or size is None or size <= most

    @property
    def is_of_built_in_model(self) -> bool:
        """True if the built-in model was measured, a test fixture."""
        return self.run.setup.weights.name == BUILT_IN

    @property
    def may_have_pair_in_kernel(self) -> bool:
        """False if attention of every pair with numbers ran in no kernel."""
        measured = [result for result in self.results if not result.trouble]
        return any(result.ran_as_usual for result in measured) or not measured

    @property
    def worth_compiling(self) -> tuple[Pair, ...]:
        """Pairs without a kernel, within the limit, and smaller than what is set."""
        chosen = self.result(self.chosen) if self.chosen else None
        most = relative_cache_size(chosen) if chosen else 1.0
        return tuple(
            result.pair
            for result in sorted(self.compared_results, key=relative_cache_size)
            if not result.ran_as_usual and result.decision is Decision.WITHIN
            if relative_cache_size(result) < most
        )

    @property
    def has_mean_loss(self) -> bool:
        """True if a metric of a mean loss, or of scores, enters the verdict."""
        rows = (row for result in self.results for row in result.metric_results)
        return any(
            row.kind.is_of_right_tokens or row.kind is LossKind.SCORE for row in rows
        )

    @property
    def results_of_main_metric(self) -> list[MetricResult]:
        """
        What the first graded metric says of each compared pair; there must be one.

        Without a graded metric the first of scores, else of answers, else any.
        """
        rows = [
            row for result in self.compared_results for row in result.metric_results
        ]
        graded = [row for row in rows if row.kind.is_of_right_tokens]
        scores = [row for row in rows if row.kind is LossKind.SCORE]
        answers = [row for row in rows if row.kind is LossKind.ANSWERS]
        names = [row.metric.name for row in (*graded, *scores, *answers, *rows)]
        return [row for row in rows if row.metric.name == names[0]]

    @property
    def compared_results(self) -> tuple[PairResult, ...]:
        """The pairs that are compared with the reference."""
        return tuple(result for result in self.results if result.decision is not None)

    @property
    def inferred_pairs(self) -> Mapping[Pair, Pair]:
        """
        Pairs of a sweep that decides which were not measured, as a finer one is beyond.

        Each with that one; of candidates for a limited memory, with one that is taken
        to lose no more. They have no numbers, and are never set.
        """
        order = order_of(self.run)
        if order is None:
            return {}
        if self.limits.max_memory_bytes is not None and isinstance(order, JointOrder):
            return unmeasured_dominated_pairs(self.fitting_candidates, self.loss_bounds)
        decisions = {
            result.pair: result.decision
            for result in self.compared_results
            if result.decision
        }
        tried = {result.pair for result in self.results}
        pairs = (pair for pair in order.eligible_pairs if pair not in tried)
        return pairs_ruled_out_by_finer(decisions, pairs)

    @property
    def has_fitting_reference(self) -> bool:
        """Whether the reference of candidates fits: nothing else is to be known."""
        most, own = self.limits.max_memory_bytes, self.reference
        if own is None or not own.weights or not most:
            return False
        return own.size_to_compare <= most

    @property
    def fitting_candidates(self) -> tuple[Pair, ...]:
        """
        The candidates that fit into a limited memory, the reference not among them.

        Empty if that fits, too, without a limit, and of a run of one file of weights.
        """
        most, order = self.limits.max_memory_bytes, order_of(self.run)
        every = order.eligible_pairs if isinstance(order, JointOrder) and most else ()
        if self.has_fitting_reference:
            return ()
        return tuple(
            pair
            for pair in every
            if pair != self.reference and pair.size_to_compare <= (most or 0)
        )

    @property
    def newly_fitting_candidates(self) -> tuple[Pair, ...]:
        """
        The candidates that fit now, and did not when the order was fixed.

        Without a limited memory those that are smaller than what is set, or the
        reference. Not those that lose no less than one that was measured.
        """
        most, order = self.limits.max_memory_bytes, order_of(self.run)
        if not isinstance(order, JointOrder) or self.has_fitting_reference:
            return ()
        if most:
            pairs = [
                candidate
                for candidate in order.too_large
                if candidate.size_to_compare <= most
            ]
        else:
            best = self.chosen or self.reference
            below = best.size_to_compare if best else math.inf
            pairs = [
                candidate
                for candidate in order.too_large
                if candidate.size_to_compare < below
            ]
        decisions = {e.pair: e.decision for e in self.compared_results if e.decision}
        covered = (
            unmeasured_dominated_pairs(pairs, self.loss_bounds)
            if most
            else pairs_ruled_out_by_finer(decisions, pairs)
        )
        return tuple(pair for pair in pairs if pair not in covered)

    @property
    def loss_bounds(self) -> Mapping[Pair, Bounds]:
        """What is known of the loss of each compared pair, by the metric that leads."""
        return {
            result.pair: result.leading_result.bounds
            for result in self.compared_results
            if result.leading_result
        }

    @property
    def unasked_pairs(self) -> tuple[Pair, ...]:
        """Pairs smaller than the reference that were not measured, nor ruled out."""
        order, own = order_of(self.run), self.reference
        known = {own, *self.inferred_pairs, *(result.pair for result in self.results)}
        pairs = order.eligible_pairs if order else self.run.setup.grid
        most = own.size_to_compare if own else math.inf
        return tuple(
            pair for pair in pairs if pair not in known and pair.size_to_compare < most
        )

    @property
    def pairs_finer_than_reference(self) -> tuple[Pair, ...]:
        """
        The compared pairs with a finer K or V than the reference.

        Of those in a kernel where the reference is: others are no choice here.
        """
        own = self.result(self.reference) if self.reference else None
        if own is None:
            return ()
        return tuple(
            result.pair
            for result in self.compared_results
            if result.ran_as_usual >= own.ran_as_usual
            and finer_axes(result.pair, own.pair)
        )

    def result(self, pair: Pair) -> PairResult | None:
        """The result of *pair*; None if it has no record."""
        return next((result for result in self.results if result.pair == pair), None)

    def decision(self, pair: Pair, metric: str = "") -> str:
        """
        The verdict on *pair*: ``within``, ``beyond`` or ``open``.

        Empty for the reference, and for a pair that is not compared.

        Args:
            pair: Any pair.
            metric: Name of the metric that decides; all of them if empty.
        """
        result = self.result(pair)
        if result is None or result.trouble:
            return ""
        if not metric:
            return result.decision or ""
        row = result.metric_result(metric)
        return row.decision if row else ""

    def types_with_decision(
        self, decision: Decision, axis: str, metric: str = ""
    ) -> list[str]:
        """
        The types of *axis*, ``k`` or ``v``, whose pairs all have that *decision*.

        Only types with at least two compared pairs, most precise first. By the *metric*
        of that name alone, or by all if empty.
        """
        by_type: dict[str, list[str]] = {}
        for result in self.compared_results:
            if verdict := self.decision(result.pair, metric):
                by_type.setdefault(getattr(result.pair, axis), []).append(verdict)
        return distinct_most_precise_first(
            name
            for name, decisions in by_type.items()
            if len(decisions) > 1 and {*decisions} == {decision}
        )


def judge(run: Run, limits: Limits | None = None) -> Verdict:
    """
    The verdict of *run* by all that was measured.

    How often it is wrong: `statistics.ALPHA`. Only the latest look at a pair counts.

    Args:
        run: With the records of all probes.
        limits: Losses that the user accepts.
    """
    return judge_units(run, metrics_by_unit(run), limits or Limits())


def judge_units(run: Run, measured: Sequence[MetricUnits], limits: Limits) -> Verdict:
    """The verdict of *run* by what was *measured* of each metric, unit by unit."""
    reference = next((units.reference for units in measured if units.reference), None)
    if reference is None:
        return Verdict(run=run, limits=limits)
    by_name = {units.metric.name: units for units in measured}
    reasons = {
        name: units.why_not_in_verdict(limits) for name, units in by_name.items()
    }
    silent = {name: reason for name, reason in reasons.items() if reason}
    entering = [units for name, units in by_name.items() if name not in silent]
    every = lost_lengths(run, limits.max_lost)
    lost = [loss for loss in every if not finer_axes(loss.pair, reference)]
    verdict = Verdict(
        run=run,
        limits=limits,
        reference=reference,
        results=tuple(_pair_results(run, entering, reference, limits, lost)),
        silent=silent,
        repeats={
            name: (units.loss.kind, units.noise.repeated)
            for name, units in by_name.items()
            if units.noise.repeated is not None
        },
        on_cpu={
            name: (units.loss.kind, units.noise.moved)
            for name, units in by_name.items()
            if units.noise.moved is not None
        },
        flips={
            name: (*counts_lost_and_won(units.noise.losses), len(units.reference_units))
            for name, units in by_name.items()
            if units.noise.losses and units.loss.kind is LossKind.SCORE
        },
        lost_from=tuple(lost),
        crosschecks={
            p: e for units in entering for p, e in units.crosschecks().items()
        },
        has_crosscheck=any(
            further.checks(run.setup)
            for units in entering
            if (further := units.probe.further)
        ),
    )
    best = _pair_to_set(verdict, verdict.results)
    here = [result for result in verdict.results if result.ran_as_usual]
    chosen = best if verdict.may_have_pair_in_kernel else None
    if best and not any(result.pair == best for result in here):
        chosen = _pair_to_set(verdict, here)
        return replace(verdict, chosen=chosen, elsewhere=best)
    return replace(verdict, chosen=chosen)


def _pair_results(
    run: Run,
    measured: Sequence[MetricUnits],
    reference: Pair,
    limits: Limits,
    lost: Sequence[LostFrom],
) -> Iterator[PairResult]:
    """
    The result of each pair with a record, most precise first, with its decision.

    Args:
        run: With the records of all probes.
        measured: The metrics that enter the verdict.
        reference: The pair that the others are compared with.
        limits: Losses that the user accepts.
        lost: Lengths from which on pairs lose the answers to a task.
    """
    records = list(run.records)
    pairs = most_precise_first({record.pair for record in records})
    context = limits.at or run.setup.context
    sizes = {pair: _memory_bytes(pair, records, context) for pair in pairs}
    speeds = _writing_speeds(run)
    rows = [(metric_units, metric_units.results(limits)) for metric_units in measured]
    for pair in pairs:
        has_losses = any(pair in metric_units.units for metric_units in measured)
        failed = tuple(
            record
            for record in records
            if record.pair == pair and not record.has_numbers
            if _has_losses(record.probe, run.setup)
        )
        attention, evidence = _attention_and_evidence(pair, records)
        result = PairResult(
            pair=pair,
            memory=_ratio(sizes[pair], sizes.get(reference)),
            memory_bytes=sizes[pair],
            speed=_ratio(speeds.get(pair), speeds.get(reference)),
            metric_results=tuple(
                of_metric[pair] for _, of_metric in rows if pair in of_metric
            ),
            trouble=_failure_phrase(failed[0]) if failed and not has_losses else "",
            failed=failed,
            attention=attention,
            evidence=evidence,
        )
        if pair == reference or not result.metric_results:
            yield result
        else:
            yield _with_decision(result, measured, [e for e in lost if e.pair == pair])


def _with_decision(
    result: PairResult, measured: Sequence[MetricUnits], lost: Sequence[LostFrom]
) -> PairResult:
    """*result* with its decision by metrics and *lost* lengths, and what it lacks."""
    deciding = _deciding_metrics(measured)
    rows = _with_lost_lengths(result.metric_results, lost)
    names = {row.metric.name for row in rows}
    decision = _decision_of(rows, deciding, _superseded_divergences(measured))
    failed = {record.probe for record in result.failed}
    of_failed = [e.metric.name for e in measured if e.probe.name in failed]
    required = dict.fromkeys([*deciding, *of_failed])
    return replace(
        result,
        metric_results=tuple(rows),
        decision=Decision.OPEN if failed and decision is Decision.WITHIN else decision,
        lacking=tuple(name for name in required if name not in names),
    )


def _deciding_metrics(measured: Sequence[MetricUnits]) -> list[str]:
    """Names of the metrics that must be within: graded ones or answers, and scores."""
    kinds = {units.loss.kind for units in measured}
    graded = {kind for kind in kinds if kind.is_of_right_tokens}
    deciding = (graded or {LossKind.ANSWERS}) | {LossKind.SCORE}
    return [units.metric.name for units in measured if units.loss.kind in deciding]


def _superseded_divergences(measured: Sequence[MetricUnits]) -> set[str]:
    """Names of divergences of a text whose loss is known, which is what counts."""
    graded = {
        units.probe.name for units in measured if units.loss.kind.is_of_right_tokens
    }
    return {
        units.metric.name
        for units in measured
        if units.loss.kind is LossKind.CHANGE and units.probe.name in graded
    }


def _decision_of(
    rows: Sequence[MetricResult], deciding: Sequence[str], superseded: Collection[str]
) -> Decision:
    """
    Beyond if one metric is; within if all that are *deciding* and divergence are, and
    no other one gains what it cannot. Those that are *superseded* decide nothing.

    That a pair is within by each metric at its own level needs no correction for their
    number: an intersection-union test. Source: Berger, Multiparameter Hypothesis
    Testing and Acceptance Sampling, Technometrics 24, 1982.
    """
    rows = [row for row in rows if row.metric.name not in superseded]
    decisions = {row.metric.name: row.decision for row in rows}
    if Decision.BEYOND in decisions.values():
        return Decision.BEYOND
    further = [
        row.metric.name
        for row in rows
        if row.kind is LossKind.CHANGE or row.has_gain_or_reference_doubt
    ]
    is_within = all(
        decisions.get(name) is Decision.WITHIN for name in (*deciding, *further)
    )
    return Decision.WITHIN if deciding and is_within else Decision.OPEN


def _with_lost_lengths(
    rows: Sequence[MetricResult], lost: Sequence[LostFrom]
) -> list[MetricResult]:
    """*rows* of a pair; that of texts is beyond, and says why, if any is *lost*."""
    doubts = tuple(
        Remark(
            RemarkKind.LENGTHS,
            f"{loss.task}: lost from {loss.length:,} tokens on",
            (loss.pair,),
        )
        for loss in lost
    )
    return [
        replace(row, decision=Decision.BEYOND, doubts=doubts)
        if doubts and row.kind is LossKind.ANSWERS and row.metric.unit_noun == "texts"
        else row
        for row in rows
    ]


def _has_losses(probe: str, setup: Setup) -> bool:
    """Whether a metric of the probe of that name enters the verdict."""
    known = PROBES.get(probe)
    return known is not None and any(metric.loss for metric in known.metrics_of(setup))


def _failure_phrase(record: CellRecord) -> str:
    """Status and reason of a record that failed."""
    return f"{record.status.value}: {record.reason}"


def _attention_and_evidence(
    pair: Pair, records: Iterable[CellRecord]
) -> tuple[Attention | None, str]:
    """
    Where attention of *pair* ran, and what tells it; None and empty if nothing does.

    In no kernel if that is so of any probe.
    """
    told = [r for r in records if r.pair == pair and r.has_numbers and r.attention]
    told.sort(key=lambda record: record.ran_as_usual)
    first = told[0] if told else None
    return (
        (first.attention, first.effective.attention_evidence) if first else (None, "")
    )


def _memory_bytes(
    pair: Pair, records: Iterable[CellRecord], context: int
) -> float | None:
    """Bytes of the KV cache of *pair*, of a candidate those of all; None if unknown."""
    return pair.memory_bytes(lambda: _kv_bytes_at(pair, records, context))


def _kv_bytes_at(
    pair: Pair, records: Iterable[CellRecord], context: int
) -> float | None:
    """Bytes of the KV cache of *pair* at *context* tokens; None if no log tells."""
    told = _effective_at_longest(pair, records)
    return caches_of(told).cache_bytes_at(context) if told else None


def _effective_at_longest(
    pair: Pair, records: Iterable[CellRecord]
) -> Effective | None:
    """What ran of *pair* at its longest context; None where no log tells of caches."""
    told = (r.effective for r in records if r.pair == pair and r.effective.kv)
    return max(told, key=context_tokens_or_zero, default=None)


def _writing_speeds(run: Run) -> dict[Pair, float]:
    """Tokens per second of writing, by pair, of those whose speed is ranked."""
    return {
        cell.pair: cell.value
        for probe in PROBES.values()
        if probe.is_timed
        for cell in frames.cells_frame(run.of_probe(probe.name), probe.metrics[0])
        if cell.has_value and cell.is_ranked
    }


def _ratio(value: float | None, reference: float | None) -> float | None:
    """*value* / *reference*; None if one is unknown, or the reference is 0."""
    return None if value is None or not reference else value / reference


def _pair_to_set(verdict: Verdict, results: Sequence[PairResult]) -> Pair | None:
    """
    The pair of *results* to set: the smallest within, or the best that fits.

    None to keep the reference, and where that is in doubt.
    """
    if verdict.is_of_built_in_model or verdict.reference_doubts_by_metric:
        return None
    most = verdict.limits.max_memory_bytes
    if most is None:
        within = [result for result in results if result.decision is Decision.WITHIN]
        smaller = [result for result in within if relative_cache_size(result) < 1]
        return min(smaller, key=relative_cache_size).pair if smaller else None
    fitting = [
        result
        for result in results
        if result.memory_bytes is not None and result.memory_bytes <= most
        if not result.failed
    ]
    if any(result.pair == verdict.reference for result in fitting):
        return None
    # No recommendation by divergence alone.
    candidates = [
        result
        for result in fitting
        if any(row.kind is not LossKind.CHANGE for row in result.metric_results)
        if not any(row.has_gain_or_reference_doubt for row in result.metric_results)
    ]
    if isinstance(verdict.run, JointRun):
        candidates = [
            candidate
            for candidate in candidates
            if math.isfinite(_relative_upper_loss(candidate))
        ]
    if not candidates:
        return None
    return min(
        candidates,
        key=lambda candidate: (
            _relative_upper_loss(candidate),
            _relative_mean_loss(candidate),
        ),
    ).pair


def _relative_upper_loss(result: PairResult) -> float:
    """Upper end of loss / limit of the leading metric; infinite without one."""
    row = result.leading_result
    return row.bounds.high / row.limit if row else math.inf


def _relative_mean_loss(result: PairResult) -> float:
    """Mean loss / limit of the leading metric; infinite without one."""
    row = result.leading_result
    return row.bounds.mean / row.limit if row else math.inf


def relative_cache_size(result: PairResult) -> float:
    """
    Size of a pair's cache relative to the reference's.

    Without a log it is computed from the bits of the types; infinite if these are
    unknown.
    """
    if result.memory is not None:
        return result.memory
    return result.pair.size_to_compare


def pareto_front_with_chosen_pair(verdict: Verdict) -> list[PairResult]:
    """The reference, what is set, and pairs of which none as small loses less."""
    # What one probe has measured of all pairs tells less than all probes of a few.
    compared = verdict.compared_results
    complete = [result for result in compared if not result.lacking]
    best = _unbeaten_results(complete or compared)
    named = {verdict.reference, verdict.chosen, *(result.pair for result in best)}
    return [result for result in verdict.results if result.pair in named]


def _unbeaten_results(results: Sequence[PairResult]) -> list[PairResult]:
    """
    The pairs that no other beats in both size and loss, the smallest first.

    Losses are relative to the limits of their metrics.
    """
    best: list[PairResult] = []
    for result in sorted(
        results,
        key=lambda result: (
            relative_cache_size(result),
            _relative_mean_loss(result),
            str(result.pair),
        ),
    ):
        if _relative_mean_loss(result) < (
            _relative_mean_loss(best[-1]) if best else math.inf
        ):
            best.append(result)
    return best
