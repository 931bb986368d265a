"""Records of evaluations with the scores that a test wishes."""

from collections.abc import Sequence
from dataclasses import replace

from codeneedle.cache_types import Pair
from codeneedle.probes.evaluation.record import NAME, Evaluation, Sample
from codeneedle.records.record import (
    AGAIN,
    CellRecord,
    Json,
    Setup,
    Status,
    as_json,
)

REFERENCE = "f16/f16"


def made_evaluation(samples: Sequence[Sample]) -> Json:
    """What the probe stores of *samples*."""
    found = Evaluation(samples=tuple(samples), reader="lines", against=REFERENCE)
    return as_json(found)


def with_scores(setup: Setup, scores: Sequence[float]) -> Setup:
    """*setup*, with such scores of the reference."""
    return replace(setup, calibrated={NAME: made_evaluation(samples_of(scores))})


def failing(record: CellRecord, places: Sequence[int], error: str) -> CellRecord:
    """*record*, whose samples at these places have an *error* and no score."""
    stored = record.observation or {}
    samples = [
        {**each, "score": 0.0, "error": error} if at in places else each
        for at, each in enumerate(stored["samples"])
    ]
    return replace(record, observation={**stored, "samples": samples})


def samples_of(scores: Sequence[float]) -> list[Sample]:
    """A sample for each score."""
    return [Sample(id=f"s{at}", score=score) for at, score in enumerate(scores)]


def evaluated(pair: str, scores: Sequence[float], *, again: bool = False) -> CellRecord:
    """The record of a cell; *again* is the repetition of the reference."""
    return CellRecord(
        pair=Pair.parse(pair),
        probe=NAME,
        variant=AGAIN if again else "",
        status=Status.FINISHED,
        started="2026-11-01T12:00:00+00:00",
        observation=made_evaluation(samples_of(scores)),
    )
