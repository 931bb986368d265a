"""
What ``memory`` shows, and ``plan`` beside the sweep: caches that are predicted by
context, with the longest that fits, and memory as it was measured.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from codeneedle.cache_types import (
    Pair,
    most_precise_first,
)
from codeneedle.document import Document, Facts, Heading, Lines, Table
from codeneedle.models.kv_cache import (
    MemoryPlan,
    PairMemory,
)
from codeneedle.probes.cell_metrics import OF_CELL, context_tokens_or_zero
from codeneedle.records.record import CellRecord, Run
from codeneedle.report.captions import run_names_or_folders
from codeneedle.report.data import RunTable, run_tables
from codeneedle.report.shown import (
    CANNOT_SIGN,
    TRAINED,
    UNKNOWN_SIGN,
    UNKNOWN_SIZE,
    UNTOLD_SIZE,
    NumberMark,
    Shown,
    legend,
    refusal_mark,
    status_mark,
)
from codeneedle.report.tidy import loss_and_metric_rows
from codeneedle.text import (
    mib_of_bytes,
    number_text,
    size_text,
)

COLUMNS = {
    "kv-k": "K",
    "kv-v": "V",
    "kv-per-1k": "per 1K",
    "state": "state",
    "compute": "compute",
    "rss": "peak",
    "device": "device",
}
"""Metrics of measured memory, with their headings."""

OPTIONAL = {"state", "device"}
"""Those that are shown where any cell has them."""

_ONE_DECIMAL_FROM = 10
"""MiB per 1,000 tokens from which one decimal is shown, not three."""

_NO_DECIMALS_FROM = 1_000
"""MiB from which decimals are dropped, so that a row fits 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The memory of one cell as its log reports it."""

    pair: Pair  # the cache types
    probe: str  # name of the probe that measured it
    context: int  # context of the server or tool, in tokens
    sizes_mib: Mapping[str, float]
    """By the name of its metric, each size of memory; NaN if unknown."""


def predicted_memory_document(memory: MemoryPlan) -> Document:
    """A row per pair: its KV cache at each context, and the longest one."""
    yield Heading("predicted KV cache, MiB, by context in tokens")
    heading = ["K/V", *map(_token_count_text, memory.contexts), "longest"]
    rows = [_predicted_row(needed, memory) for needed in memory.pairs]
    yield _table_with_pair_names(heading, rows)
    yield Facts(legend(itertools.chain(*rows)))
    yield Lines(list(_memory_notes(memory)))


def _table_with_pair_names(
    heading: Sequence[str], rows: Sequence[Sequence[Shown]]
) -> Table:
    """A table of *rows*, each behind the name of its pair."""
    lines = [[str(row[0].pair), *(cell.text for cell in row)] for row in rows]
    return Table(heading, lines, words={"K/V"})


def measured_memory_document(run: Run) -> Document:
    """
    The memory of each finished pair of *run*.

    Of each pair, the record with the longest context is shown; one with the peak of a
    server goes first.
    """
    sizes = measured_memories(run)
    contexts = sorted({memory.context for memory in sizes})
    lengths = " or ".join(f"{context:,}" for context in contexts)
    where = f", context {lengths} tokens" if sizes else ""
    columns = {
        name: heading
        for name, heading in COLUMNS.items()
        if name not in OPTIONAL or any(memory.sizes_mib[name] > 0 for memory in sizes)
    }
    yield Heading(f"{run.name}: measured memory, MiB{where}")
    rows = [[_measured_size(memory, name) for name in columns] for memory in sizes]
    yield _table_with_pair_names(["K/V", *columns.values()], rows)
    yield Facts(legend(itertools.chain(*rows)))
    none = "no finished cell has the size of its KV cache in its log"
    left_out = (f"left out: {line}" for line in _left_out_pair_sentences(run))
    yield Lines([*([] if sizes else [none]), *left_out])


def measured_memory_objects(runs: Sequence[Run]) -> list[RunTable]:
    """The `measured_memories` of each run as rows; its notes say what was left out."""
    shown = {
        (name, str(memory.pair), memory.probe, metric)
        for name, run in zip(run_names_or_folders(runs), runs, strict=True)
        for memory in measured_memories(run)
        for metric in memory.sizes_mib
    }
    rows = [
        row
        for row in loss_and_metric_rows(runs)
        if (row.run, row.pair, row.probe, row.metric) in shown
    ]
    return [
        msgspec.structs.replace(of_run, notes=tuple(_left_out_pair_sentences(run)))
        for of_run, run in zip(run_tables(runs, rows), runs, strict=True)
    ]


def measured_memories(run: Run) -> list[Measured]:
    """
    The memory of each pair with a finished record that tells the size of its cache.

    The most precise comes first; of several records one of a server, then the one of
    the longest context.
    """
    usable = (r for r in run.records if r.has_numbers and r.effective.kv)
    chosen: dict[Pair, CellRecord] = {}
    for record in usable:
        known = chosen.get(record.pair)
        if known is None or _record_rank(record) > _record_rank(known):
            chosen[record.pair] = record
    return [
        Measured(
            pair=pair,
            probe=chosen[pair].probe,
            context=context_tokens_or_zero(chosen[pair].effective),
            sizes_mib={
                metric.name: next(
                    iter(metric.values(chosen[pair], run.setup)), math.nan
                )
                for metric in OF_CELL
                if metric.quantity == "memory"
            },
        )
        for pair in most_precise_first(chosen)
    ]


def _left_out_pair_sentences(run: Run) -> Iterator[str]:
    """The pairs without a finished record, with their status and reason."""
    finished = {record.pair for record in run.records if record.has_numbers}
    failed = [
        Shown(pair=pair, text="", marks=(status_mark(record.status, record.reason),))
        for pair in most_precise_first(
            {record.pair for record in run.records} - finished
        )
        for record in run.records
        if record.pair == pair
    ]
    yield from (meaning for _, meaning in legend(failed))


def _record_rank(record: CellRecord) -> tuple[bool, int]:
    """Order of the records of a pair: servers before tools, then by context."""
    return record.peak_rss_bytes is not None, context_tokens_or_zero(record.effective)


def _measured_size(measured: Measured, name: str) -> Shown:
    """The size of that *name*, or a dash."""
    size_mib = measured.sizes_mib[name]
    if math.isnan(size_mib):
        return lone_mark(measured.pair, UNTOLD_SIZE)
    return Shown(pair=measured.pair, text=_measured_text(name, size_mib))


def lone_mark(pair: Pair, mark: NumberMark) -> Shown:
    """A mark in place of a number."""
    return Shown(pair=pair, text=mark.sign, marks=(mark,))


def _measured_text(name: str, size_mib: float) -> str:
    if name == "kv-per-1k":
        return number_text(size_mib, digits=1 if size_mib >= _ONE_DECIMAL_FROM else 3)
    usual = 2 if name in {"kv-k", "kv-v"} else 1
    return f"{size_mib:,.{_size_digits(size_mib, usual)}f}"


def _size_digits(size_mib: float, usual: int) -> int:
    """Decimals of a size: none from `_NO_DECIMALS_FROM` on."""
    return 0 if size_mib >= _NO_DECIMALS_FROM else usual


def _token_count_text(context: int) -> str:
    """``4K``, or ``4,000`` if not a multiple of 1,024."""
    return f"{context:,}" if context % 1024 else f"{context // 1024}K"


def _predicted_row(pair_memory: PairMemory, memory: MemoryPlan) -> list[Shown]:
    """The size of its cache at each context, and the longest context that fits."""
    sizes = [_predicted_size(pair_memory, count) for count in pair_memory.kv_bytes]
    return [*sizes, _longest_context(pair_memory, memory)]


def _predicted_size(pair_memory: PairMemory, count: float | None) -> Shown:
    """A size in MiB; a question mark if it is unknown."""
    if count is None:
        # Of a pair that cannot run, the last column says why.
        marks = () if pair_memory.misfit else (UNKNOWN_SIZE,)
        return Shown(pair=pair_memory.pair, text=UNKNOWN_SIGN, marks=marks)
    size_mib = mib_of_bytes(count)
    return Shown(
        pair=pair_memory.pair, text=f"{size_mib:,.{_size_digits(size_mib, 1)}f}"
    )


def _longest_context(pair_memory: PairMemory, memory: MemoryPlan) -> Shown:
    """
    The longest context that fits, marked if it is that of the training.

    If none does, why.
    """
    if pair_memory.misfit:
        return lone_mark(
            pair_memory.pair, refusal_mark(CANNOT_SIGN, pair_memory.misfit)
        )
    longest = pair_memory.longest_context
    if longest is None:
        return lone_mark(pair_memory.pair, UNKNOWN_SIZE)
    marks = (TRAINED,) if longest == memory.training_context else ()
    sign = TRAINED.sign if marks else " "
    return Shown(pair=pair_memory.pair, text=f"{longest:,}{sign}", marks=marks)


def _memory_notes(memory: MemoryPlan) -> Iterator[str]:
    """What is kept free beside a longest context; if sizes are the header's alone."""
    low, high = memory.allowance_bytes[0], memory.allowance_bytes[-1]
    yield (
        f"longest: the context that fits into the {size_text(memory.room.size_bytes)} "
        f"{memory.room.where} with {size_text(memory.weights_bytes)} of weights and "
        f"{size_text(low)} to {size_text(high)} for compute buffers and a reserve, "
        "in tokens"
    )
    if memory.is_by_header:
        yield (
            "sizes are those of the header alone, at most so much: an architecture may "
            "have sliding windows that it does not state"
        )
