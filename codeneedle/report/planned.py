"""What a sweep would do, on one screen, before anything is started."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.grid import Pair, by_precision
from codeneedle.kvmemory import kv_bytes, refusal
from codeneedle.planning import Plan
from codeneedle.records import CellRecord, Setup, Status
from codeneedle.report.cells import status_word
from codeneedle.report.headline import corpus_line
from codeneedle.report.memory import memory_view
from codeneedle.report.safetext import visible
from codeneedle.units import duration, mib, plural, size

DONE_MARK = "+"
"""Behind the size of a cell that has finished."""

FIRST_PAIRS = 3
"""Of the running order, those that are told."""


def plan_view(plan: Plan, *, probes: Sequence[str]) -> RenderableType:
    """
    The grid with its predicted KV memory, what is done, and what would be sent.

    Args:
        plan: A checked plan.
        probes: Names of the probes to run; what is done is told of the first.
    """
    stored = (plan.store.record(pair, probes[0]) for pair in plan.pairs)
    records = {record.pair: record for record in stored if record}
    setup = plan.store.setup()
    return Group(
        _facts(plan, setup, records),
        Text(),
        Text("predicted KV cache, MiB", style="bold"),
        _grid(plan, records),
        *(Text(line) for line in _legend(plan, records)),
        Text(),
        memory_view(plan),
        *(Text(f"note: {note}", style="yellow") for note in plan.notes),
    )


def _facts(plan: Plan, setup: Setup | None, records: dict[Pair, CellRecord]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for word, phrase in _phrases(plan, setup, records):
        table.add_row(word, visible(phrase))
    return table


def _phrases(
    plan: Plan, setup: Setup | None, records: dict[Pair, CellRecord]
) -> Iterator[tuple[str, str]]:
    yield "model", f"{plan.model}, {size(plan.weights.size_bytes)}"
    yield "corpus", corpus_line(setup) if setup else _corpus_estimate(plan)
    yield (
        "context",
        f"{plural(plan.context, 'token')}, {plan.prompt_form.value} prompt",
    )
    if plan.speculation and "recall" in plan.request.probes:
        yield "recall", f"speculation {plan.speculation.phrase}"
    yield "llama.cpp", f"{plan.server.version}, {plan.tools.server}"
    yield "records", str(plan.store.folder)
    yield "cells", _cells(plan, records)
    yield "time", _time(plan, records)
    yield "order", _order(plan)


def _corpus_estimate(plan: Plan) -> str:
    corpus = plan.corpus
    functions = plural(corpus.functions_in_all, "function")
    return (
        f"{corpus.name}: {corpus.origin}; {corpus.kind}; {size(corpus.size_bytes)}, "
        f"{functions} of 20 lines or more; tokens are counted, and it is trimmed to "
        "the context if need be, when the sweep starts"
    )


def _cells(plan: Plan, records: dict[Pair, CellRecord]) -> str:
    finished = sum(record.is_finished for record in records.values())
    failed = len(records) - finished
    said = f"{finished} of {len(plan.pairs)} finished"
    return f"{said}, {failed} without numbers" if failed else said


def _time(plan: Plan, records: dict[Pair, CellRecord]) -> str:
    spent = [r.phases.total_s for r in records.values() if r.is_finished]
    if not spent:
        return "known after the first cell"
    mean = sum(spent) / len(spent)
    # An interrupted cell is played again.
    done = sum(r.status is not Status.INTERRUPTED for r in records.values())
    left = len(plan.pairs) - done
    return f"about {duration(mean * left)} left, {duration(mean)} a cell"


def _order(plan: Plan) -> str:
    first = ", ".join(map(str, plan.pairs[:FIRST_PAIRS]))
    return first if len(plan.pairs) <= FIRST_PAIRS else f"{first}, ..."


def _grid(plan: Plan, records: dict[Pair, CellRecord]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("K \\ V", style="bold", no_wrap=True)
    columns = by_precision(plan.request.v_types)
    for v in columns:
        table.add_column(v, justify="right", no_wrap=True, min_width=8)
    for k in by_precision(plan.request.k_types):
        table.add_row(k, *(_cell(plan, Pair(k, v), records) for v in columns))
    return table


def _cell(plan: Plan, pair: Pair, records: dict[Pair, CellRecord]) -> str:
    if refusal(plan.weights, pair):
        return "cannot"
    record = records.get(pair)
    if record and not record.is_finished:
        return status_word(record.status)
    predicted = kv_bytes(plan.weights, pair, plan.context)
    shown = "?" if predicted is None else f"{mib(predicted):,.1f}"
    return f"{shown}{DONE_MARK if record else ' '}"


def _legend(plan: Plan, records: dict[Pair, CellRecord]) -> Iterator[str]:
    if any(record.is_finished for record in records.values()):
        yield f"{DONE_MARK} finished"
    reasons = {refusal(plan.weights, pair) for pair in plan.pairs} - {None}
    yield from (f"cannot: {reason}" for reason in sorted(filter(None, reasons)))
    for record in records.values():
        if not record.is_finished:
            yield visible(f"{record.pair} {record.status}: {record.reason}")
