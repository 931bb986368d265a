"""
Metrics of reuse: the largest difference from the cold answer, in nats per token, of
each way; none enters the verdict.
"""

from collections.abc import Sequence
from functools import partial

from codeneedle.probes.metrics import Metric, values_from_number
from codeneedle.probes.reuse.record import NAME, REUSED, CacheState, reuse_of
from codeneedle.records.record import CellRecord, Setup

PHRASES = {
    CacheState.PREFIX: "after another question",
    CacheState.TURN: "on a second turn",
    CacheState.RESTORE: "after saving and restoring",
}
"""What was done before a cache was used again, as phrases."""

_nats = partial(Metric, unit="nats", better="lower")


def _largest_nats_difference(
    record: CellRecord, ways: Sequence[CacheState]
) -> float | None:
    """Largest difference of *ways*, in nats; None if none can be compared."""
    largest = (reuse_of(record).largest_nats_difference(way) for way in ways)
    return max((nats for nats in largest if nats is not None), default=None)


def _difference_metric(way: CacheState) -> Metric:
    """The metric of the largest difference in one *way*."""
    return _nats(
        name=f"{NAME}@{way}",
        values=values_from_number(partial(_largest_nats_difference, ways=[way])),
        floor=True,
        of=NAME,
        facet=f"cache={way}",
    )


def _changed_reply_flags(record: CellRecord, _setup: Setup) -> Sequence[float]:
    """1.0 for each reply from a reused cache that differs from the cold one; else 0."""
    questions = reuse_of(record).questions
    differing = [
        question.differs_from_cold_reply(way)
        for question in questions
        for way in REUSED
    ]
    return [float(differs) for differs in differing if differs is not None]


METRICS: tuple[Metric, ...] = (
    _nats(
        name=NAME,
        values=values_from_number(partial(_largest_nats_difference, ways=REUSED)),
        floor=True,
    ),
    *map(_difference_metric, REUSED),
    Metric(
        name=f"{NAME}-replies",
        unit="",
        better="lower",
        values=_changed_reply_flags,
        is_sum=True,
    ),
)
"""
The first is the headline.

None enters the verdict. They compare a pair with itself: a difference shows that a
reused cache holds other values than a fresh one, not that answers are worse; and a
pair that loses every answer may agree with itself exactly.
"""
