"""The metrics of memory and time that a cell of any probe has."""

import math
from collections.abc import Callable
from functools import partial
from operator import itemgetter

from codeneedle.models.kv_cache import Caches, exact_k_and_v_bytes
from codeneedle.probes.metrics import Metric, values_from_number
from codeneedle.records.record import CellRecord, Effective
from codeneedle.text import mib_of_bytes


def _kv_mib(record: CellRecord) -> float | None:
    """Size of K and V of all caches; None if the log has none."""
    return _cache_part_mib(record, sum)


def _k_mib(record: CellRecord) -> float | None:
    """Size of K of all caches; None if the log has none."""
    return _cache_part_mib(record, itemgetter(0))


def _v_mib(record: CellRecord) -> float | None:
    """Size of V of all caches; None if the log has none."""
    return _cache_part_mib(record, itemgetter(1))


def _cache_part_mib(
    record: CellRecord, part: Callable[[tuple[float, float]], float]
) -> float | None:
    """
    The *part* of all caches, K, V or both, in MiB, by the types of their values.

    None if the log has none.
    """
    sizes = [part(exact_k_and_v_bytes(buffer)) for buffer in record.effective.kv]
    return mib_of_bytes(math.fsum(sizes)) if sizes else None


def _added_mib_per_1k_tokens(record: CellRecord) -> float | None:
    """MiB that 1,000 further tokens take; a sliding window does not grow."""
    caches = caches_of(record.effective)
    return mib_of_bytes(1000 * caches.added_bytes_per_token) if caches.buffers else None


def caches_of(effective: Effective) -> Caches:
    """The caches that a log tells."""
    return Caches(effective.kv, context_tokens_or_zero(effective))


def context_tokens_or_zero(effective: Effective) -> int:
    """The context in tokens; that of the longest cache if none is told, else 0."""
    longest = max((buffer.cells for buffer in effective.kv), default=0)
    return effective.context or longest


def _rss_mib(record: CellRecord) -> float | None:
    """Largest resident size of the server; None if it was not measured."""
    peak = record.peak_rss_bytes
    return None if peak is None else mib_of_bytes(peak)


def _device_mib(record: CellRecord) -> float | None:
    """Memory on devices by their driver, else by the log; None if neither tells."""
    held = record.device_bytes
    if held is None:
        held = sum(
            memory.weights + memory.context + memory.compute
            for memory in record.effective.memory
            if not memory.is_host
        )
    return mib_of_bytes(held) if held else None


def _device_peak_mib(record: CellRecord) -> float | None:
    """The most memory on devices; None if the engine does not tell."""
    peak = record.device_peak_bytes
    return None if peak is None else mib_of_bytes(peak)


_memory = partial(Metric, unit="MiB", better="lower", quantity="memory")


_seconds = partial(Metric, unit="s", better="lower", quantity="speed")


OF_CELL: tuple[Metric, ...] = (
    _memory(
        name="kv",
        values=values_from_number(_kv_mib),
    ),
    _memory(name="kv-k", values=values_from_number(_k_mib)),
    _memory(name="kv-v", values=values_from_number(_v_mib)),
    _memory(
        name="kv-per-1k",
        values=values_from_number(_added_mib_per_1k_tokens),
    ),
    _memory(
        name="compute",
        values=values_from_number(lambda record: record.effective.compute_mib),
    ),
    _memory(
        name="state",
        values=values_from_number(
            lambda record: mib_of_bytes(record.effective.recurrent_bytes) or None
        ),
    ),
    _memory(name="rss", values=values_from_number(_rss_mib)),
    _memory(name="device", values=values_from_number(_device_mib)),
    _memory(name="device-peak", values=values_from_number(_device_peak_mib)),
    _seconds(
        name="ready",
        values=values_from_number(lambda record: record.phases.ready_s),
    ),
    _seconds(
        name="time",
        values=values_from_number(
            lambda record: record.phases.total_from_launch_s or None
        ),
    ),
    _seconds(
        name="waiting",
        values=values_from_number(lambda record: record.phases.waiting_s or None),
    ),
)
"""
They compare only between cells of the same context, so a table takes each from the
records of one probe.
"""
