"""The memory metrics: what the log of any served or measured cell says of its size."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from codeneedle.effective import Effective
from codeneedle.metrics import Metric
from codeneedle.records import CellRecord, Setup
from codeneedle.scored_rounds import Reading
from codeneedle.units import mib

__all__ = ["METRICS", "of_cell"]

Number = Callable[[CellRecord], float | None]


def of_cell(
    number: Number,
) -> Callable[[CellRecord, Setup, Reading], Sequence[float]]:
    """One value for the whole cell, or none."""

    def values(record: CellRecord, _setup: Setup, _reading: Reading) -> list[float]:
        value = number(record)
        return [] if value is None else [value]

    return values


def _k_mib(record: CellRecord) -> float | None:
    buffers = record.effective.kv
    return math.fsum(buffer.k_mib for buffer in buffers) if buffers else None


def _v_mib(record: CellRecord) -> float | None:
    buffers = record.effective.kv
    return math.fsum(buffer.v_mib for buffer in buffers) if buffers else None


def _mib_per_1k(record: CellRecord) -> float | None:
    """All of it over the context: with sliding windows, less the longer that is."""
    size, context = record.effective.kv_mib, _context(record.effective)
    return size / context * 1000 if size is not None and context else None


def _context(effective: Effective) -> int:
    """The context in tokens; where the log has no line for it, the longest cache's."""
    longest = max((buffer.cells for buffer in effective.kv), default=0)
    return effective.context or longest


def _rss_mib(record: CellRecord) -> float | None:
    peak = record.peak_rss_bytes
    return None if peak is None else mib(peak)


def _device_mib(record: CellRecord) -> float | None:
    held = record.device_bytes
    return None if held is None else mib(held)


_memory = partial(
    Metric, unit="MiB", better="lower", bounds=(0, None), digits=1, group="memory"
)

METRICS: tuple[Metric, ...] = (
    _memory(
        name="kv",
        label="KV cache",
        values=of_cell(lambda record: record.effective.kv_mib),
        in_table=True,
        relative=True,
    ),
    _memory(name="kv-k", label="K cache", values=of_cell(_k_mib), relative=True),
    _memory(name="kv-v", label="V cache", values=of_cell(_v_mib), relative=True),
    _memory(
        name="kv-per-1k",
        label="KV cache per 1,000 tokens",
        values=of_cell(_mib_per_1k),
        digits=2,
        relative=True,
    ),
    _memory(
        name="compute",
        label="compute buffers",
        values=of_cell(lambda record: record.effective.compute_mib),
    ),
    _memory(name="rss", label="peak of the process", values=of_cell(_rss_mib)),
    _memory(name="device", label="held on devices", values=of_cell(_device_mib)),
)
"""
All of them. They compare only between cells of the same context, so a table takes
each from the records of one probe.
"""
