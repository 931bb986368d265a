"""Metrics of evaluations: mean score, samples lost, samples won."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

from codeneedle.probes.evaluation.record import (
    NAME,
    Sample,
    evaluation_of,
    has_too_many_unscored,
    phrase_of_unscored,
    reference_evaluation,
)
from codeneedle.probes.metrics import Loss, LossKind, Metric, UnitKind, metric_by_unit
from codeneedle.records.record import CellRecord, Setup

SAMPLES = UnitKind(
    noun="samples", more="samples of the evaluation", others="other tasks"
)

USUAL_FLIPS = 0.1
"""
Share of samples whose score differs from the reference's, before it is measured.

It is 5 to 15 % in published comparisons of caches, also between two runs of the
reference.
"""


def _samples_of_whole_units(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of units without a gap; none if too many *samples* have no score."""
    without = {sample.unit for sample in samples if sample.error}
    is_gap = has_too_many_unscored(samples)
    return (
        [] if is_gap else [sample for sample in samples if sample.unit not in without]
    )


def _samples_by_unit(
    record: CellRecord, _setup: Setup
) -> Iterator[tuple[str, Sample | None]]:
    """Each sample by its unit, None without a score; nothing if too many have none."""
    samples = evaluation_of(record).samples
    for sample in () if has_too_many_unscored(samples) else samples:
        yield sample.unit, None if sample.error else sample


def _all_unit_names(record: CellRecord, _setup: Setup) -> Sequence[str]:
    """The units of all samples of *record*, each once, in order."""
    return list(dict.fromkeys(sample.unit for sample in evaluation_of(record).samples))


def _score_change_flags(
    record: CellRecord, setup: Setup, *, sign: int
) -> Sequence[float]:
    """1.0 per sample scored above the reference (*sign* 1) or below it (-1); else 0."""
    first = reference_evaluation(setup)
    scores = (
        {e.attempt_key: e.score for e in _samples_of_whole_units(first.samples)}
        if first
        else {}
    )
    return [
        float(sign * (sample.score - scores[sample.attempt_key]) > 0)
        for sample in _samples_of_whole_units(evaluation_of(record).samples)
        if sample.attempt_key in scores
    ]


def _mean_score(record: CellRecord, _setup: Setup) -> float:
    """Mean score of the samples of units without gaps; 0 without any."""
    samples = _samples_of_whole_units(evaluation_of(record).samples)
    return fmean([sample.score for sample in samples] or [0])


def _change_metric(name: str, sign: int) -> Metric:
    """The metric of samples whose score changed in the direction of *sign*."""
    return Metric(
        name=name,
        unit="samples",
        better="lower" if sign < 0 else "neither",
        values=partial(_score_change_flags, sign=sign),
        is_sum=True,
        reference=lambda record: evaluation_of(record).against or None,
        unit_kind=SAMPLES,
    )


METRICS: tuple[Metric, ...] = (
    metric_by_unit(_samples_by_unit, lambda sample: sample.score)(
        name=NAME,
        unit="",
        better="higher",
        loss=Loss(
            kind=LossKind.SCORE,
            units=_all_unit_names,
            lacking=lambda record: phrase_of_unscored(evaluation_of(record).samples),
            able=_mean_score,
        ),
        unit_kind=SAMPLES,
    ),
    _change_metric("eval-lost", -1),
    _change_metric("eval-won", 1),
)
"""Metrics of every evaluation; the first is the headline."""
