"""Metrics of the throughput probe."""

import functools
import itertools
import math
from collections.abc import Sequence

from codeneedle.grid import ENGINE
from codeneedle.probes.metrics import Metric
from codeneedle.probes.throughput.record import (
    conditions_of,
    throughput_of,
)
from codeneedle.records.record import CellRecord, Setup
from codeneedle.text import mib

LABELS = {"tg": "writing", "pp": "prompt reading"}
"""The two tests, as the field calls them, and as headings say; headline first."""


def at_depths(setup: Setup) -> tuple[Metric, ...]:
    """
    Both speeds at each depth of *setup*: ``tg@0``, ``pp@0``, ``tg@4096``, ...

    And ``peak@0``, the memory, but of llama.cpp, whose llama-bench does not tell it.
    """
    settings = conditions_of(setup)
    depths = settings.depths if settings else ()
    speeds = tuple(_metric(test, depth) for depth in depths for test in LABELS)
    told = () if setup.engine == ENGINE else depths
    return (*speeds, *map(_peak, told))


def crossover(record: CellRecord, reference: CellRecord) -> str:
    """
    From or until which depth the pair of *record* writes faster than *reference*.

    The ratio of the mean speeds is taken as linear between depths. What counts is
    the last time that it crosses 1: behind that, to the deepest depth that both
    have, one of the two stays ahead. A ratio of exactly 1 is not faster.

    Returns:
        ``from 4,096 tokens`` if the pair overtakes there, ``until 4,096 tokens`` if it
        falls behind there, ``always`` or ``never`` if there is no crossing; empty if
        the two have no depth in common.

    Raises:
        BadRecord: If either holds something else than speeds.
    """
    ours, theirs = _writing(record), _writing(reference)
    points = [
        (depth, ours[depth] / theirs[depth])
        for depth in sorted(ours.keys() & theirs.keys())
    ]
    if not points:
        return ""
    ends_faster = points[-1][1] > 1
    for left, right in reversed(list(itertools.pairwise(points))):
        if (left[1] > 1) != ends_faster:
            trend = "from" if ends_faster else "until"
            return f"{trend} {_crossing(left, right):,.0f} tokens"
    return "always" if ends_faster else "never"


def _crossing(left: tuple[int, float], right: tuple[int, float]) -> float:
    """Where the line through two points, one above 1 and one not, meets 1."""
    share = (1 - left[1]) / (right[1] - left[1])
    return left[0] + share * (right[0] - left[0])


def _writing(record: CellRecord) -> dict[int, float]:
    """Mean writing speed by depth, of a finished record."""
    if not record.has_numbers:
        return {}
    measured = (at for at in throughput_of(record).speeds if at.tg)
    return {at.depth: math.fsum(at.tg) / len(at.tg) for at in measured}


def _values(
    record: CellRecord,
    setup: Setup,
    *,
    test: str,
    depth: int | None = None,
) -> Sequence[float]:
    """Speeds of *test* at *depth*; None is the deepest of the settings."""
    settings = conditions_of(setup)
    if settings is None:
        return ()
    wanted = settings.depths[-1] if depth is None else depth
    for at in throughput_of(record).speeds:
        if at.depth == wanted:
            speeds: tuple[float, ...] = getattr(at, test)
            return speeds
    return ()


def _metric(test: str, depth: int | None) -> Metric:
    where = "the deepest depth" if depth is None else f"depth {depth:,}"
    return Metric(
        name=test if depth is None else f"{test}@{depth}",
        label=f"{LABELS[test]} at {where}",
        unit="tokens/s",
        better="higher",
        bounds=(0, None),
        digits=1,
        values=functools.partial(_values, test=test, depth=depth),
        group="speed",
        in_table=depth is None,
        relative=True,
        shows_error=True,
    )


def _peak(depth: int) -> Metric:
    def values(record: CellRecord, _setup: Setup) -> Sequence[float]:
        found = (at for at in throughput_of(record).speeds if at.depth == depth)
        return [mib(at.peak_bytes) for at in found if at.peak_bytes is not None]

    return Metric(
        name=f"peak@{depth}",
        label=f"peak memory at depth {depth:,}",
        unit="MiB",
        better="lower",
        bounds=(0, None),
        digits=0,
        values=values,
        group="memory",
        in_table=True,
        relative=True,
    )


METRICS: tuple[Metric, ...] = tuple(_metric(test, None) for test in LABELS)
"""Those of every setup; the first is the headline."""
