"""Metrics of the reuse probe."""

from collections.abc import Sequence
from functools import partial

from codeneedle.probes.metrics import Metric, of_cell
from codeneedle.probes.reuse.record import AGAIN, NAME, Way, reuse_of
from codeneedle.records.record import CellRecord, Setup

LABELS = {
    Way.PREFIX: "after another question",
    Way.TURN: "on a second turn",
    Way.RESTORE: "after saving and restoring",
}
"""The ways, as headings say."""

_nats = partial(Metric, unit="nats", better="lower", bounds=(0, None), digits=4)


def _largest(record: CellRecord, ways: Sequence[Way]) -> float | None:
    found = (reuse_of(record).largest(way) for way in ways)
    return max((each for each in found if each is not None), default=None)


def _of_way(way: Way) -> Metric:
    return _nats(
        name=f"{NAME}@{way}",
        label=f"largest change of a right token's log-probability {LABELS[way]}",
        values=of_cell(partial(_largest, ways=[way])),
        in_table=True,
        floor=True,
    )


def _other_replies(record: CellRecord, _setup: Setup) -> Sequence[float]:
    """Of each reply from a cache that was used again, whether it is another one."""
    found = [each.differs(way) for each in reuse_of(record).questions for way in AGAIN]
    return [float(differs) for differs in found if differs is not None]


METRICS: tuple[Metric, ...] = (
    _nats(
        name=NAME,
        label="largest change of a right token's log-probability in a cache used again",
        values=of_cell(partial(_largest, ways=AGAIN)),
        floor=True,
    ),
    *map(_of_way, AGAIN),
    Metric(
        name=f"{NAME}-replies",
        label="replies that differ from those of a cold cache",
        unit="",
        better="lower",
        bounds=(0, None),
        digits=0,
        values=_other_replies,
        is_sum=True,
        in_table=True,
    ),
)
"""
All of them; the first is the headline.

None enters the verdict. They compare a pair with itself: a difference tells that its
cache does not hold what a fresh one would, not that an answer got worse; and a pair
that loses every answer may agree with itself to the last digit.
"""
