"""
Finds finished cells whose own numbers show that attention fell back to the CPU or to
f16.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from codeneedle.analysis.metrics import Metric
from codeneedle.grid import Pair, most_precise
from codeneedle.records.record import CellRecord, Setup, Status, Trouble
from codeneedle.scoring.rounds import Reading
from codeneedle.text import plural

SLOWEST_SHARE = 0.25
"""
Least plausible prompt speed, as a share of the fastest symmetric pair's.

Kernels for quantized caches cost some tens of percent; pairs without a kernel were
reported to be 8 to 45 times slower.
"""

Speed = Callable[[CellRecord], float | None]
"""How fast a cell read prompts, in tokens per second; None if its record has none."""


def suspects(
    records: Iterable[CellRecord], *, speed: Speed, has_device: bool
) -> dict[Pair, Trouble]:
    """
    The finished cells whose own numbers show that they fell back, and why.

    A graph in more parts than another pair's means that some of it runs on another
    device. On an accelerator, reading prompts many times slower means the same; on a
    CPU it does not, because quantized attention is that slow there. A cell with another
    number of layers on the accelerator than most is compared with no other.

    Args:
        records: Of one probe, at most one per pair; those not finished do not count.
        speed: How fast a cell read prompts.
        has_device: Whether the machine has an accelerator.
    """
    finished = [record for record in records if record.has_numbers]
    elsewhere = dict(_otherwise_offloaded(finished))
    alike = [record for record in finished if record.pair not in elsewhere]
    slow = dict(_slow(alike, speed)) if has_device else {}
    # llama.cpp's scheduler reports the parts itself: the stronger evidence.
    return slow | dict(_in_more_parts(alike)) | elsewhere


def _otherwise_offloaded(
    finished: Sequence[CellRecord],
) -> Iterator[tuple[Pair, Trouble]]:
    layers = {
        record.pair: record.effective.offloaded_layers
        for record in finished
        if record.effective.offloaded_layers is not None
    }
    if not layers:
        return
    times = Counter(layers.values())
    most = max(times.values())
    # Of two equally frequent numbers, the most precise pair's is taken.
    usual = most_precise(pair for pair in layers if times[layers[pair]] == most)
    for pair, count in layers.items():
        if count != layers[usual]:
            reason = (
                f"{plural(count, 'layer')} on the accelerator, "
                f"{layers[usual]} for {usual}"
            )
            yield pair, Trouble(Status.MISMATCHED, reason)


def _in_more_parts(finished: Sequence[CellRecord]) -> Iterator[tuple[Pair, Trouble]]:
    parts = {
        record.pair: record.effective.graph_splits
        for record in finished
        if record.effective.graph_splits is not None
    }
    fewest = min(parts.values(), default=0)
    for pair, count in parts.items():
        if count > fewest:
            whole = most_precise(each for each in parts if parts[each] == fewest)
            reason = f"the graph falls into {count} parts, {fewest} for {whole}"
            yield pair, Trouble(Status.FALLBACK_CPU, reason)


def _slow(
    finished: Sequence[CellRecord], speed: Speed
) -> Iterator[tuple[Pair, Trouble]]:
    # Of those whose KV cache may be on an accelerator.
    on_device = (each for each in finished if set(each.effective.devices) != {"CPU"})
    found = {record.pair: speed(record) for record in on_device}
    speeds = {pair: value for pair, value in found.items() if value}
    symmetric = [pair for pair in speeds if pair.k == pair.v]
    if not symmetric:
        return
    fastest = max(symmetric, key=lambda pair: speeds[pair])
    for pair, value in speeds.items():
        if value < SLOWEST_SHARE * speeds[fastest]:
            reason = (
                f"it reads {value:,.0f} tokens/s of a prompt, "
                f"{fastest} reads {speeds[fastest]:,.0f}"
            )
            yield pair, Trouble(Status.FALLBACK_CPU, reason)


PROMPT_SPEEDS = frozenset({"prefill", "pp", "reading"})
"""Names of the metrics of prompt speed, in tokens per second."""


def prompt_speed(metrics: Iterable[Metric], setup: Setup) -> Speed:
    """
    How fast a cell read prompts, by the first of *metrics* that measures it.

    Of several values the slowest counts: a fallback slows down every prompt.
    """
    metric = next((each for each in metrics if each.name in PROMPT_SPEEDS), None)

    def speed(record: CellRecord) -> float | None:
        if metric is None:
            return None
        return min(metric.values(record, setup, Reading()), default=None)

    return speed
