"""
Metrics of divergence: KLD, precision in percent, first choices, perplexity and why it
is missing; and ``text-logp`` with the loss of ordinary text, chunk by chunk.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import msgspec

from codeneedle.engines.tools import ChunkValues, Estimate, Statistics
from codeneedle.probes.divergence.record import (
    NAME,
    ContextComparison,
    divergence_of,
    stored_chunks_by_context,
)
from codeneedle.probes.metrics import (
    Loss,
    LossKind,
    Metric,
    UnitKind,
    Values,
    metric_by_unit,
)
from codeneedle.records.record import BadRecord, CellRecord, Setup, Status
from codeneedle.text import plural

CHUNKS = UnitKind(
    noun="chunks",
    more="--chunks",
    others="another text",
    others_by="--text",
    place="in this text",
)

Numbers = Callable[[ContextComparison, Statistics], Sequence[float]]


def _values_reader(numbers: Numbers, context: int | None = None) -> Values:
    """Returns what reads *numbers* at *context*, the first for None; empty without."""

    def values_at_context(record: CellRecord, setup: Setup) -> Sequence[float]:
        compared = _comparison_with_statistics(record, setup, context)
        return numbers(*compared) if compared else ()

    return values_at_context


def _comparison_at(
    record: CellRecord, setup: Setup, context: int | None
) -> ContextComparison | None:
    """
    What *record* was compared by at *context*, None for the first.

    None without one.
    """
    divergence = divergence_of(record)
    sizes = stored_chunks_by_context(setup.probes.get(NAME, {}))
    return divergence.comparison_at(context, sizes) if divergence else None


def _comparison_with_statistics(
    record: CellRecord, setup: Setup, context: int | None
) -> tuple[ContextComparison, Statistics] | None:
    """`_comparison_at` with its statistics; None without either."""
    compared = _comparison_at(record, setup, context)
    statistics = compared.statistics if compared else None
    return (compared, statistics) if compared and statistics else None


def _reference_pair_name(record: CellRecord) -> str | None:
    """The pair that *record* was compared with; None if with none."""
    divergence = divergence_of(record)
    return divergence.reference if divergence else None


def _chunk_values_reader(value: Callable[[ChunkValues], float]) -> Numbers:
    """Returns what reads the *value* of each chunk that is no copy of another."""
    return lambda compared, _: [
        value(chunk)
        for at, chunk in enumerate(compared.by_chunk)
        if at not in compared.copied_chunks
    ]


@dataclass(frozen=True, slots=True)
class _AtContext:
    """A metric before it is bound to a context."""

    metric: Metric
    numbers: Numbers
    is_compared: bool = True
    by_chunk: Callable[[ChunkValues], float] | None = None
    estimate: Callable[[Statistics], Estimate | None] | None = None
    why_missing: Callable[[ContextComparison, Statistics], str] | None = None
    """Why a comparison has no such number, as a phrase; empty if it has one."""

    def metric_at(self, context: int | None) -> Metric:
        """The metric at *context*; None for the first, which alone keeps its loss."""
        suffix = "" if context is None else f"@{context}"
        return replace(
            self.metric,
            name=f"{self.metric.name}{suffix}",
            values=_values_reader(self.numbers, context),
            reference=_reference_pair_name if self.is_compared else None,
            loss=self.metric.loss if context is None else None,
            units=_values_reader(_chunk_values_reader(self.by_chunk), context)
            if self.by_chunk
            else None,
            of="" if context is None else self.metric.name,
            facet="" if context is None else f"context={context}",
            error=_standard_error_reader(self.estimate, context)
            if self.estimate
            else None,
            gap=_gap_reader(self.why_missing, context) if self.why_missing else None,
        )


def _standard_error_reader(
    estimate: Callable[[Statistics], Estimate | None], context: int | None
) -> Callable[[CellRecord, Setup], float | None]:
    """Returns what reads the standard error of an *estimate*; None if untold."""

    def stated_standard_error(record: CellRecord, setup: Setup) -> float | None:
        compared = _comparison_with_statistics(record, setup, context)
        told = estimate(compared[1]) if compared else None
        return told.error if told else None

    return stated_standard_error


def _gap_reader(
    why_missing: Callable[[ContextComparison, Statistics], str], context: int | None
) -> Callable[[CellRecord, Setup], tuple[str, str] | None]:
    """Returns what tells status and reason of a missing number; None without one."""

    def gap_status_and_reason(
        record: CellRecord, setup: Setup
    ) -> tuple[str, str] | None:
        compared = _comparison_with_statistics(record, setup, context)
        why = why_missing(*compared) if compared else ""
        return (Status.FINISHED, why) if why else None

    return gap_status_and_reason


def _metric_with_error(
    metric: Metric,
    estimate: Callable[[Statistics], Estimate | None],
    *,
    is_compared: bool = True,
    by_chunk: Callable[[ChunkValues], float] | None = None,
    why_missing: Callable[[ContextComparison, Statistics], str] | None = None,
) -> _AtContext:
    """A *metric* of what the tool estimates, with the standard error."""

    def estimated_values(
        _: ContextComparison, statistics: Statistics
    ) -> Sequence[float]:
        told = estimate(statistics)
        return (told.value,) if told else ()

    return _AtContext(
        metric,
        estimated_values,
        is_compared=is_compared,
        by_chunk=by_chunk,
        estimate=estimate,
        why_missing=why_missing,
    )


_divergence = partial(
    Metric,
    better="lower",
    values=_values_reader(lambda *_: ()),
    unit_kind=CHUNKS,
    unit="nats",
)
_percent = partial(_divergence, unit="%", better="higher")


def precision_percent(kld: float, floor: float) -> float:
    """
    100 * exp(floor - KLD), in percent: guides quote it of the mean and the 99.9th
    percentile.

    Args:
        kld: Of the pair, in nats.
        floor: Of the reference, measured again in the same run; NaN without one.

    Returns:
        100 of the reference itself, more below the floor; NaN without a floor.

    Source:
        The form of the tables of llama.cpp issue #24139, whose rows it reproduces:
        0.078709 and 0.023258 are 94.61 %.
    """
    return 100 * math.exp(floor - kld)


UNTOLD_REFERENCE = "the end of the reference's log, with its perplexity, was missing"
"""Why the reference has no perplexity, as a phrase."""


def why_no_perplexity(compared: ContextComparison, statistics: Statistics) -> str:
    """Why a pair has no perplexity, as a phrase; empty if it has one."""
    if statistics.ppl is not None:
        return ""
    runs = plural(compared.retries + 1, "run")
    return f"the end of the log, with the perplexity, is missing after {runs}"


def _why_no_ratio(compared: ContextComparison, statistics: Statistics) -> str:
    """Why one of both perplexities is missing, as a phrase; empty if none is."""
    if compared.reference_ppl:
        return why_no_perplexity(compared, statistics)
    return UNTOLD_REFERENCE


def _ppl_ratio(compared: ContextComparison, statistics: Statistics) -> Sequence[float]:
    """Perplexity of a pair by that of the reference; empty if one is missing."""
    if statistics.ppl is None or not compared.reference_ppl:
        return ()
    return (statistics.ppl.value / compared.reference_ppl,)


_AT_CONTEXT: tuple[_AtContext, ...] = (
    _metric_with_error(
        _divergence(name="kld", floor=True, loss=Loss(kind=LossKind.CHANGE)),
        lambda statistics: statistics.kld,
        by_chunk=lambda chunk: chunk.kld,
    ),
    _AtContext(
        _divergence(name="kld999", floor=True),
        lambda _, statistics: (statistics.kld_999,),
    ),
    _AtContext(
        _percent(name="precision", over_floor=precision_percent),
        lambda _, statistics: (statistics.kld.value,),
    ),
    _AtContext(
        _percent(name="precision999", over_floor=precision_percent),
        lambda _, statistics: (statistics.kld_999,),
    ),
    _metric_with_error(
        _percent(name="top1"),
        lambda statistics: statistics.same_top,
        by_chunk=lambda chunk: chunk.same_top,
    ),
    _AtContext(
        _divergence(name="kld-median", floor=True),
        lambda _, statistics: (statistics.kld_median,),
    ),
    _AtContext(
        _divergence(name="kld-max", floor=True),
        lambda _, statistics: (statistics.kld_max,),
    ),
    _metric_with_error(
        _divergence(name="dp-rms", unit="%", floor=True),
        lambda statistics: statistics.dp_rms,
    ),
    _metric_with_error(
        _divergence(name="ppl", unit="", better="neither"),
        lambda statistics: statistics.ppl,
        is_compared=False,
        why_missing=why_no_perplexity,
    ),
    _AtContext(
        _divergence(name="ppl-ratio", unit="", better="neither"),
        _ppl_ratio,
        why_missing=_why_no_ratio,
    ),
)


def _logprobs_with_chunk_names(
    record: CellRecord, setup: Setup, part: int | None = None
) -> Iterator[tuple[str, float | None]]:
    """
    Number of the chunk, the unit of a loss, and log-probability of each right token.

    Chunks without a score come first, once, with None; copies are left out.

    Of the first context, as all losses are. Stretches of a chunk are no units: where
    much is lost, chunks differ by more than their stretches explain. Source:
    RESULTS.md.

    Args:
        record: A finished one.
        setup: Of the run.
        part: Which of `DivergenceLayout.parts` they are of; None for all.
    """
    compared = _comparison_at(record, setup, None)
    parts = max(1, len(text_part_names(setup)))
    if compared is None:
        return
    lost = {*map(int, compared.unscored)} - compared.copied_chunks
    unscored = ((chunk, None) for chunk in sorted(lost))
    for chunk, logprob in (*unscored, *compared.logprobs_with_chunks()):
        if part in {None, chunk % parts}:
            yield str(chunk), logprob


def _mean_probability_by_chunk(
    record: CellRecord, setup: Setup, part: int | None = None
) -> dict[str, float]:
    """Mean probability of the right tokens, by chunk that has some."""
    found: dict[str, list[float]] = {}
    for name, logprob in _logprobs_with_chunk_names(record, setup, part):
        if logprob is not None:
            found.setdefault(name, []).append(math.exp(logprob))
    return {name: fmean(values) for name, values in found.items()}


def _chunk_names(record: CellRecord, setup: Setup) -> list[str]:
    """Names of all chunks that are no copies; those without a score come first."""
    return [
        *dict.fromkeys(name for name, _ in _logprobs_with_chunk_names(record, setup))
    ]


def _first_choice_share(record: CellRecord, setup: Setup) -> float:
    """Share of right tokens that are first choices, at the first context."""
    compared = _comparison_at(record, setup, None)
    return compared.first_choices / 100 if compared else 0.0


def _largest_bounded_token_share(record: CellRecord) -> float:
    """Largest share of tokens at any context of which only a bound is known, 0 to 1."""
    divergence = divergence_of(record)
    every = divergence.answers.values() if divergence else ()
    return max((comparison.bounded / 100 for comparison in every), default=0.0)


def text_part_names(setup: Setup) -> tuple[str, ...]:
    """What the chunks of a text are of, in turn; empty for one text."""
    return tuple(setup.probes.get(NAME, {}).get("parts", ()))


def _text_logp_metric(name: str, part: int | None = None, **facts: Any) -> Metric:
    """The log-probability of right tokens of a text, or of a *part* of it."""
    found = metric_by_unit(
        partial(_logprobs_with_chunk_names, part=part), lambda logprob: logprob
    )
    return found(
        name=name,
        unit="nats",
        better="higher",
        unit_kind=CHUNKS,
        reference=_reference_pair_name,
        **facts,
    )


TEXT_LOGP = _text_logp_metric(
    "text-logp",
    loss=Loss(
        kind=LossKind.PROBABILITY,
        what="ordinary text",
        by_unit=_mean_probability_by_chunk,
        units=_chunk_names,
        able=_first_choice_share,
        bounded=_largest_bounded_token_share,
    ),
)
"""How likely the right tokens of ordinary text are: what a pair loses of them."""

METRICS: tuple[Metric, ...] = tuple(
    unbound_metric.metric_at(None) for unbound_metric in _AT_CONTEXT
)
"""Those of the first context; the first of them is the headline."""


def metrics_of_parts(setup: Setup) -> tuple[Metric, ...]:
    """Log-probability of right tokens of each part of a text: ``text-logp@prose``."""
    return tuple(
        _text_logp_metric(
            f"{TEXT_LOGP.name}@{name}",
            part=number,
            of=TEXT_LOGP.name,
            facet=f"part={name}",
        )
        for number, name in enumerate(text_part_names(setup))
    )


def metrics_if_several_contexts(setup: Setup) -> tuple[Metric, ...]:
    """
    Metrics of each context, where a run has several: ``kld@512``.

    Raises:
        BadRecord: If what is stored as contexts is no list of numbers.
    """
    named = setup.probes.get(NAME, {}).get("contexts", [])
    try:
        contexts = msgspec.convert(named, type=tuple[int, ...])
    except msgspec.ValidationError as error:
        reason = f"the contexts of {NAME} are none: {error}"
        raise BadRecord(file="setup.json", reason=reason) from error
    if len(contexts) < 2:  # noqa: PLR2004 - several
        return ()
    return tuple(
        unbound_metric.metric_at(context)
        for context in contexts
        for unbound_metric in _AT_CONTEXT
    )
