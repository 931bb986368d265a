"""
From which depth on a pair is faster than the reference: where the ratio of their speeds
crosses 1 for the last time.
"""

import itertools
from statistics import stdev

from codeneedle.probes.throughput.metrics import is_measured_once, mean_speeds
from codeneedle.probes.throughput.record import throughput_of
from codeneedle.records.record import CellRecord


def crossover_phrase(
    record: CellRecord, reference: CellRecord, test: str = "tg"
) -> str:
    """
    The depths at which the pair of *record* is faster at *test* than *reference*.

    The ratio of mean speeds is interpolated linearly between depths. Its last crossing
    of 1 counts: beyond it, up to the greatest depth of both, one of the two stays
    ahead. A ratio of exactly 1 is not faster. Only depths count at which the means are
    at least as far apart as the standard deviations of both together.

    Returns:
        ``from 4,096 tokens`` if the pair overtakes there, ``until 4,096 tokens`` if it
        falls behind there, ``always`` or ``never`` if there is no crossing; empty if
        no depth of both tells them apart, or one of them was measured once or did not
        run as usual.

    Raises:
        BadRecord: If one of them has another layout.
    """
    both = (record, reference)
    if any(map(is_measured_once, both)) or not all(r.ran_as_usual for r in both):
        return ""
    speeds, others = mean_speeds(record, test), mean_speeds(reference, test)
    points = [
        (depth, speeds[depth] / others[depth])
        for depth in sorted(speeds.keys() & others.keys())
        if _differ_beyond_noise(record, reference, test, depth)
    ]
    if not points:
        return ""
    ends_faster = points[-1][1] > 1
    for left, right in reversed(list(itertools.pairwise(points))):
        if (left[1] > 1) != ends_faster:
            trend = "from" if ends_faster else "until"
            return f"{trend} {_crossing_depth(left, right):,.0f} tokens"
    return "always" if ends_faster else "never"


def _differ_beyond_noise(
    record: CellRecord, reference: CellRecord, test: str, depth: int
) -> bool:
    """Whether the speeds of two cells differ by the noise of both, or more."""
    means = [mean_speeds(cell, test)[depth] for cell in (record, reference)]
    noise: float = sum(
        stdev(getattr(at, test))
        for cell in (record, reference)
        for at in throughput_of(cell).speeds
        if at.depth == depth
    )
    return bool(abs(means[0] - means[1]) >= noise)


def _crossing_depth(left: tuple[int, float], right: tuple[int, float]) -> float:
    """The depth at which the line through two points crosses 1."""
    share = (1 - left[1]) / (right[1] - left[1])
    return left[0] + share * (right[0] - left[0])
