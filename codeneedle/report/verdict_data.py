"""The verdict as JSON: the types of all that it says."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from codeneedle.cache_types import PairFlags
from codeneedle.engines.memory_gain import Gain
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import Attention
from codeneedle.report import captions
from codeneedle.report.budget import budget_headline, budget_remarks
from codeneedle.report.verdict import headline_sentences
from codeneedle.verdict.asking_order import JointRun
from codeneedle.verdict.joint import bits_per_weight, weight_names
from codeneedle.verdict.judge import Outcome, PairResult, Verdict
from codeneedle.verdict.metric_results import MetricResult
from codeneedle.verdict.remark_kinds import Remark, RemarkKind
from codeneedle.verdict.remarks import remarks
from codeneedle.verdict.statistics import Decision

Number = float | None


class LimitsObject(msgspec.Struct, frozen=True, kw_only=True):
    """The losses that the user accepts."""

    max_loss: Annotated[float, Meta(description="Share of right tokens.")]
    max_lost: Annotated[float, Meta(description="Share of answers.")]
    max_eval_lost: Annotated[float, Meta(description="Of the mean score.")]
    max_change: Annotated[float, Meta(description="Divergence, in nats.")]
    max_memory_bytes: Annotated[int | None, Meta(description="KV cache; null for any.")]
    at: Annotated[int | None, Meta(description="Context of that size, in tokens.")]


class GainObject(msgspec.Struct, frozen=True, kw_only=True):
    """What a pair saves beside the reference; sizes in bytes."""

    pair: str
    context: Annotated[int, Meta(description="In tokens.")]
    weights: int
    reference: Annotated[float, Meta(description="KV cache of the reference.")]
    kv: Annotated[float, Meta(description="KV cache of the pair.")]
    recurrent: Annotated[int, Meta(description="State that cache types do not change.")]
    compute: Annotated[int, Meta(description="Buffers of the graph.")]
    is_least: Annotated[bool, Meta(description="Buffers of a shorter context: more.")]
    share: Annotated[float, Meta(description="Of all memory with the reference.")]
    tokens: Annotated[int, Meta(description="Further tokens in the same memory.")]


class RemarkObject(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence of the verdict, or a doubt about a number."""

    kind: Annotated[RemarkKind, Meta(description="What it is about.")]
    text: str
    pairs: Annotated[
        list[str], Meta(description="Empty of one about the run, a type or a metric.")
    ]


class MetricObject(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one metric for one pair: a share, or nats of a change."""

    name: str
    kind: Annotated[LossKind, Meta(description="How losses are computed.")]
    decision: Decision
    loss: Annotated[Number, Meta(description="The mean over units.")]
    low: Annotated[Number, Meta(description="Lower end of its interval.")]
    high: Annotated[Number, Meta(description="Upper end of its interval.")]
    limit: float
    units: int
    left_out: Annotated[
        int, Meta(description="Units that the pair or the reference has no score of.")
    ]
    noun: Annotated[str, Meta(description="What the units are.")]
    lost: Annotated[int, Meta(description="Units lost, of answers and scores.")]
    won: Annotated[int, Meta(description="Units with a higher score.")]
    needed: Annotated[int | None, Meta(description="Units that would decide it.")]
    doubts: Annotated[
        list[RemarkObject], Meta(description="About the interval; mostly none.")
    ]


class PairObject(msgspec.Struct, frozen=True, kw_only=True):
    """All results for one pair."""

    k: str
    v: str
    weights: Annotated[
        str | None, Meta(description="Of several files, as `name` of one of them.")
    ]
    decision: Annotated[
        Decision | None, Meta(description="Null of the reference, and in trouble.")
    ]
    memory: Annotated[Number, Meta(description="KV cache by the reference's.")]
    speed: Annotated[Number, Meta(description="Of writing, by the reference's.")]
    trouble: Annotated[str, Meta(description="Why it is not compared, or empty.")]
    memory_bytes: Annotated[int | None, Meta(description="KV cache.")]
    attention: Annotated[Attention | None, Meta(description="Where it ran.")]
    lacking: Annotated[tuple[str, ...], Meta(description="Metrics that others have.")]
    metrics: tuple[MetricObject, ...]


class WeightsObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file of weights among those that are judged together."""

    name: Annotated[str, Meta(description="Its quantization, where that tells it.")]
    run: Annotated[str, Meta(description="The run that has measured its pairs.")]
    quant: Annotated[str, Meta(description="Empty if the file does not say.")]
    sha256: str
    size_bytes: int
    bits_per_weight: Annotated[Number, Meta(description="Null if unknown.")]


class FlipsObject(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that the reference lost and won when it was evaluated again."""

    lost: int
    won: int


class LostFromObject(msgspec.Struct, frozen=True, kw_only=True):
    """A length from which on a pair loses the answers to a task."""

    task: str
    length: Annotated[int, Meta(description="In tokens.")]
    k: str
    v: str


class VerdictObject(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a run; null where there is no number."""

    run: str
    outcome: Outcome
    headline: Annotated[list[str], Meta(description="The answer, a line each.")]
    reference: Annotated[
        str | None, Meta(description="The pair others are held against.")
    ]
    set: Annotated[str | None, Meta(description="The pair to set.")]
    gain: Annotated[
        GainObject | None, Meta(description="Of that pair, or of the smallest.")
    ]
    without_kernels: Annotated[
        str | None,
        Meta(description="What the losses alone would set, if it has no kernel here."),
    ]
    worth_compiling: Annotated[
        list[str], Meta(description="Within, without a kernel, and smaller.")
    ]
    is_instrument: Annotated[
        bool, Meta(description="True of the built-in model, which recommends nothing.")
    ]
    weights: Annotated[
        list[WeightsObject],
        Meta(description="The most precise first; empty of one run alone."),
    ]
    limits: LimitsObject
    silent: Annotated[
        dict[str, str], Meta(description="Metrics that have no say, with the reason.")
    ]
    repeats: Annotated[
        dict[str, Number],
        Meta(description="By metric, how far the reference differs from itself."),
    ]
    on_cpu: Annotated[
        dict[str, Number],
        Meta(
            description="By metric, how far the reference with attention on the CPU "
            "differs from that in a kernel."
        ),
    ]
    flips: dict[str, FlipsObject]
    pairs: Annotated[list[PairObject], Meta(description="Most precise first.")]
    lost_from: list[LostFromObject]
    remarks: Annotated[
        list[RemarkObject], Meta(description="What it says beside the answer.")
    ]
    facts: Annotated[
        dict[str, str], Meta(description="What it was measured on, a phrase by word.")
    ]


def verdict_objects(
    of_runs: Sequence[Verdict], pair_flags_of: Callable[[str], PairFlags]
) -> list[VerdictObject]:
    """The verdicts for JSON; for *pair_flags_of* see `verdict.verdicts_document`."""
    return [
        _verdict_object(verdict, pair_flags_of(verdict.run.setup.engine))
        for verdict in of_runs
    ]


def _verdict_object(verdict: Verdict, pair_flags: PairFlags) -> VerdictObject:
    """*verdict* for JSON; sentences of several runs are those of one budget."""
    gain = None if verdict.is_of_built_in_model else verdict.memory_saving
    joint = isinstance(verdict.run, JointRun)
    beside = budget_remarks(verdict) if joint else remarks(verdict, pair_flags)
    return VerdictObject(
        run=verdict.run.name,
        outcome=verdict.outcome,
        headline=(budget_headline if joint else headline_sentences)(
            verdict, pair_flags
        ),
        reference=str(verdict.reference) if verdict.reference else None,
        set=str(verdict.chosen) if verdict.chosen else None,
        gain=_gain_object(gain) if gain else None,
        without_kernels=str(verdict.elsewhere) if verdict.elsewhere else None,
        worth_compiling=[str(pair) for pair in verdict.worth_compiling],
        is_instrument=verdict.is_of_built_in_model,
        weights=[*_weights_objects(verdict)],
        limits=_limits_object(verdict),
        silent=dict(verdict.silent),
        repeats={
            name: _finite_or_none(loss) for name, (_, loss) in verdict.repeats.items()
        },
        on_cpu={
            name: _finite_or_none(loss) for name, (_, loss) in verdict.on_cpu.items()
        },
        flips={
            name: FlipsObject(lost=lost, won=won)
            for name, (lost, won, _) in verdict.flips.items()
        },
        pairs=[_pair_object(result) for result in verdict.results],
        lost_from=[
            LostFromObject(
                task=length_loss.task,
                length=length_loss.length,
                k=length_loss.pair.k,
                v=length_loss.pair.v,
            )
            for length_loss in verdict.lost_from
        ],
        remarks=list(map(_remark_object, beside)),
        facts=dict(captions.run_facts(verdict.run)),
    )


def _weights_objects(verdict: Verdict) -> Iterator[WeightsObject]:
    """Each file of weights that is judged with others; none of one run alone."""
    runs = verdict.run.runs if isinstance(verdict.run, JointRun) else ()
    for name, run in zip(weight_names(runs), runs, strict=True):
        facts = run.setup.weights
        yield WeightsObject(
            name=name,
            run=run.name,
            quant=run.setup.quant,
            sha256=facts.sha256,
            size_bytes=facts.size_bytes,
            bits_per_weight=_finite_or_none(bits_per_weight(run.setup)),
        )


def _remark_object(remark: Remark) -> RemarkObject:
    pairs = [str(pair) for pair in remark.pairs]
    return RemarkObject(kind=remark.kind, text=remark.text, pairs=pairs)


def _finite_or_none(value: float | None) -> Number:
    """*value*; None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _limits_object(verdict: Verdict) -> LimitsObject:
    limits = verdict.limits
    return LimitsObject(
        max_loss=limits.max_loss,
        max_lost=limits.max_lost,
        max_eval_lost=limits.max_eval_lost,
        max_change=limits.of(LossKind.CHANGE),
        max_memory_bytes=limits.max_memory_bytes,
        at=limits.at,
    )


def _gain_object(gain: Gain) -> GainObject:
    return GainObject(
        pair=str(gain.pair),
        context=gain.context,
        weights=gain.weights,
        reference=gain.reference,
        kv=gain.kv,
        recurrent=gain.recurrent,
        compute=gain.compute,
        is_least=gain.is_least,
        share=gain.saved_share,
        tokens=gain.further_tokens_in_saved_memory,
    )


def _pair_object(result: PairResult) -> PairObject:
    """The result of a pair as it is published; NaN becomes null."""
    return PairObject(
        k=result.pair.k,
        v=result.pair.v,
        weights=result.pair.weights or None,
        decision=result.decision,
        memory=_finite_or_none(result.memory),
        speed=_finite_or_none(result.speed),
        trouble=result.trouble,
        memory_bytes=None
        if result.memory_bytes is None
        else round(result.memory_bytes),
        attention=result.attention,
        lacking=tuple(result.lacking),
        metrics=tuple(map(_metric_object, result.metric_results)),
    )


def _metric_object(row: MetricResult) -> MetricObject:
    """The result of a metric as it is published; NaN becomes null."""
    return MetricObject(
        name=row.metric.name,
        kind=row.kind,
        decision=row.decision,
        loss=_finite_or_none(row.bounds.mean),
        low=_finite_or_none(row.bounds.low),
        high=_finite_or_none(row.bounds.high),
        limit=row.limit,
        units=row.bounds.units,
        left_out=row.left_out,
        noun=row.metric.unit_noun,
        lost=row.lost,
        won=row.won,
        needed=row.needed,
        doubts=list(map(_remark_object, row.doubts)),
    )
