"""Metrics of the throughput probe."""

import functools
from collections.abc import Sequence
from statistics import fmean

from codeneedle.probes.metrics import Metric
from codeneedle.probes.throughput.record import (
    DepthSpeeds,
    throughput_layout,
    throughput_of,
)
from codeneedle.records.record import CellRecord, Setup
from codeneedle.text import mib_of_bytes

TESTS = ("tg", "pp")
"""Writing and prompt reading; the headline first."""


def metrics_at_depths(setup: Setup) -> tuple[Metric, ...]:
    """
    Both speeds and the peak memory at each depth of *setup*.

    ``tg@0``, ``pp@0``, ``tg@4096`` ... and ``peak@0``, which not every tool reports.
    """
    settings = throughput_layout(setup)
    depths = settings.depths if settings else ()
    speeds = tuple(_speed_metric(test, depth) for depth in depths for test in TESTS)
    return (*speeds, *map(_peak_memory_metric, depths))


def is_measured_once(record: CellRecord) -> bool:
    """Whether a speed of *record* is a single measurement, of unknown noise."""
    speeds = throughput_of(record).speeds if record.has_numbers else ()
    return any(len(at.tg) == 1 or len(at.pp) == 1 for at in speeds)


def mean_speeds(record: CellRecord, test: str) -> dict[int, float]:
    """
    Mean speed of *test* by depth; a record without numbers and gaps have none.

    Raises:
        BadRecord: If the record has another layout.
    """
    if not record.has_numbers:
        return {}
    speeds = {at.depth: getattr(at, test) for at in throughput_of(record).speeds}
    return {
        depth: fmean(repetitions)
        for depth, repetitions in speeds.items()
        if repetitions
    }


def _speeds_at(
    record: CellRecord, setup: Setup, depth: int | None
) -> DepthSpeeds | None:
    """
    Speeds or gap of *record* at *depth*, None for the greatest of the setup.

    None if the record has neither.
    """
    settings = throughput_layout(setup)
    if settings is None:
        return None
    wanted = settings.depths[-1] if depth is None else depth
    found = (at for at in throughput_of(record).speeds if at.depth == wanted)
    return next(found, None)


def _test_speeds(
    record: CellRecord, setup: Setup, *, test: str, depth: int | None = None
) -> Sequence[float]:
    """Speeds of *test* at *depth*, None for the greatest; none of a gap."""
    at = _speeds_at(record, setup, depth)
    return getattr(at, test) if at else ()


def _gap_status_and_reason(
    record: CellRecord, setup: Setup, *, depth: int | None
) -> tuple[str, str] | None:
    """Status and reason of a gap at *depth*; None if there are speeds, or nothing."""
    at = _speeds_at(record, setup, depth)
    return (at.status, at.gap) if at and at.gap else None


def _speed_metric(test: str, depth: int | None) -> Metric:
    """The metric of *test* at *depth*; None for the whole, at the greatest depth."""
    return Metric(
        name=test if depth is None else f"{test}@{depth}",
        unit="tokens/s",
        better="higher",
        values=functools.partial(_test_speeds, test=test, depth=depth),
        gap=functools.partial(_gap_status_and_reason, depth=depth),
        quantity="speed",
        is_prompt_speed=test == "pp",
        of="" if depth is None else test,
        facet="" if depth is None else f"depth={depth}",
    )


def _peak_memory_metric(depth: int) -> Metric:
    """The metric of the most memory at *depth*; none where a tool does not tell."""

    def peak_mib(record: CellRecord, _setup: Setup) -> Sequence[float]:
        speeds = (at for at in throughput_of(record).speeds if at.depth == depth)
        return [
            mib_of_bytes(at.peak_bytes) for at in speeds if at.peak_bytes is not None
        ]

    return Metric(
        name=f"peak@{depth}",
        unit="MiB",
        better="lower",
        values=peak_mib,
        quantity="memory",
        of="peak",
        facet=f"depth={depth}",
    )


METRICS: tuple[Metric, ...] = tuple(_speed_metric(test, None) for test in TESTS)
"""Metrics of every setup; the first is the headline."""
