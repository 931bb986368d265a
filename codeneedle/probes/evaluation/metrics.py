"""Metrics of evaluations: mean score, samples lost, samples won."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from codeneedle.probes.evaluation.record import NAME, evaluation_of, first_of
from codeneedle.probes.metrics import Loss, LossKind, Metric
from codeneedle.records.record import CellRecord, Setup

USUAL_FLIPS = 0.1
"""
Share of samples whose score differs from the reference's, before it is measured.

It is 5 to 15 % in published comparisons of caches, also between two runs of the
reference.
"""


def _scores(record: CellRecord, _setup: Setup) -> Sequence[float]:
    return [sample.score for sample in evaluation_of(record).samples]


def _units(record: CellRecord, _setup: Setup) -> Sequence[str]:
    return [sample.unit for sample in evaluation_of(record).samples]


def _changed(record: CellRecord, setup: Setup, *, sign: int) -> Sequence[float]:
    """1.0 for each sample whose score is higher (*sign* 1) or lower (-1); else 0.0."""
    first = first_of(setup)
    scores = {sample.key: sample.score for sample in first.samples} if first else {}
    return [
        float(sign * (sample.score - scores[sample.key]) > 0)
        for sample in evaluation_of(record).samples
        if sample.key in scores
    ]


def _mean(record: CellRecord, _setup: Setup) -> float:
    return fmean([sample.score for sample in evaluation_of(record).samples] or [0])


def _change(name: str, label: str, sign: int) -> Metric:
    return Metric(
        name=name,
        label=label,
        unit="samples",
        better="lower" if sign < 0 else "neither",
        bounds=(0, None),
        digits=0,
        values=partial(_changed, sign=sign),
        is_sum=True,
        in_table=True,
        reference=lambda record: evaluation_of(record).against or None,
        noun="samples",
    )


METRICS: tuple[Metric, ...] = (
    Metric(
        name=NAME,
        label="mean score of the evaluation",
        unit="",
        better="higher",
        bounds=(0, 1),
        digits=3,
        values=_scores,
        in_table=True,
        names=_units,
        loss=Loss(kind=LossKind.SCORE, able=_mean),
        noun="samples",
    ),
    _change("eval-lost", "samples with a lower score than the reference's", -1),
    _change("eval-won", "samples with a higher score than the reference's", 1),
)
"""Metrics of every evaluation; the first is the headline."""
