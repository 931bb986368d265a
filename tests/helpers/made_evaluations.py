"""Records of evaluations with the scores that a test wishes."""

from collections.abc import Sequence

from codeneedle.grid import Pair
from codeneedle.probes.evaluation.record import NAME, Evaluation, Sample
from codeneedle.records.record import AGAIN, CellRecord, Json, Status, as_json

REFERENCE = "f16/f16"


def made_evaluation(samples: Sequence[Sample], against: str = REFERENCE) -> Json:
    """What the probe stores of *samples*."""
    return as_json(Evaluation(samples=tuple(samples), reader="lines", against=against))


def evaluated(
    pair: str,
    scores: Sequence[float],
    *,
    reference: Sequence[float] | None = None,
    again: bool = False,
) -> CellRecord:
    """
    The record of a cell.

    Args:
        pair: Its cache types.
        scores: Of its samples.
        reference: The scores of the reference; the same ones if None.
        again: Whether it is the repetition of the reference.
    """
    compared = scores if reference is None else reference
    samples = [
        Sample(id=f"s{at}", score=score, reference=was)
        for at, (score, was) in enumerate(zip(scores, compared, strict=True))
    ]
    return CellRecord(
        pair=Pair.parse(pair),
        probe=f"{NAME}{AGAIN if again else ''}",
        status=Status.FINISHED,
        started="2026-11-01T12:00:00+00:00",
        observation=made_evaluation(samples),
    )
