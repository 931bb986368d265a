"""What ``plan`` shows: what a sweep would run, in which order, and how long."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from codeneedle.cache_types import (
    Pair,
    most_precise,
    pairs_phrase,
)
from codeneedle.document import Document, Facts, Grid, Heading
from codeneedle.engines.pace import Price
from codeneedle.engines.survey import Survey, survey_log
from codeneedle.models import pretrained
from codeneedle.models.kv_cache import (
    Buffers,
    Caches,
    MemoryPlan,
    available_memory,
    predict_memory,
    usual_contexts,
)
from codeneedle.probes.probe import Probe
from codeneedle.records.record import AGAIN, BadSetup, CellRecord, Setup, Status
from codeneedle.report.captions import corpus_line
from codeneedle.report.kernels import device_memory_document, kernels_document
from codeneedle.report.memory import (
    lone_mark,
    predicted_memory_document,
)
from codeneedle.report.served import (
    memory_gain_document,
    model_facts,
    note_block,
    program_fact,
    survey_document,
)
from codeneedle.report.shown import (
    CANNOT_SIGN,
    DONE,
    TWICE,
    UNKNOWN_SIGN,
    UNKNOWN_SIZE,
    Shown,
    legend,
    refusal_mark,
    split_into_rows,
    status_mark,
)
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.running_order import (
    measurable_pairs,
    pair_to_repeat,
    running_order,
)
from codeneedle.system import machine
from codeneedle.text import (
    duration_text,
    escape_invisible,
    mib_of_bytes,
    plural,
    size_text,
)
from codeneedle.verdict.trust import trusted_records

ROOM_TOKENS = 1024
"""Of a context, for a question and its answer."""

MOST_ROWS = 12
"""Pairs whose memory is shown by context; of more, those of one type."""

FIRST_PAIRS = 3
"""Pairs of the running order that are shown."""


def survey_plan_memory(plan: Plan) -> MemoryPlan:
    """
    The memory of the pairs of *plan*, on the device of a cell or else this machine.

    The engine is asked about one pair at the two longest usual contexts: its cells, and
    the bits of types, tell the others at all contexts, and both how buffers grow.
    """
    engine = plan.workers[0].engine  # of its device alone
    room = available_memory(engine.identity().devices, machine.facts().memory_bytes)
    contexts = usual_contexts(plan.weights.training_context)[-2:]
    told = [pair for pair in plan.possible_pairs if _caches_of(plan.survey, pair)]
    caches, buffers = plan.caches_by_header(contexts[-1]), None
    if told:
        pair = most_precise(told)
        asked = [
            engine.survey_attention_and_memory(
                [pair], context=context, log=survey_log()
            )
            for context in contexts
        ]
        caches = _caches_of(asked[-1], pair) or _caches_of(plan.survey, pair)
        buffers = _buffers_of(asked, pair)
    return predict_memory(
        plan.weights,
        caches,
        plan.pairs,
        room,
        buffers=buffers,
        refusal=plan.refusal,
    )


def _buffers_of(surveys: Sequence[Survey | None], pair: Pair) -> Buffers | None:
    """The compute buffers of *pair* by context; None if no survey tells them."""
    told = {
        survey.context: sum(device.compute for device in survey.pairs[pair].memory)
        for survey in surveys
        if survey and pair in survey.pairs and survey.pairs[pair].memory
    }
    return Buffers(told) if told else None


def _caches_of(survey: Survey | None, pair: Pair) -> Caches | None:
    """The caches of *pair* by *survey*; None if that does not tell them."""
    return survey.caches(pair) if survey else None


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of a probe."""

    probe: Probe  # what measures
    records: dict[Pair, CellRecord]  # of those that were tried, by pair
    repeated: Pair | None
    """The pair that is measured again after all others; None for none."""

    again: CellRecord | None  # the record of that; None if it was not tried
    total: int  # how many there are, the repeated one included

    @property
    def tried_records(self) -> list[CellRecord]:
        return [*self.records.values(), *([self.again] if self.again else [])]


def _memory_gain_document(plan: Plan, at: int | None) -> Document:
    """
    The memory to be gained at the context *at*, None for that of the plan.

    The engine is asked about any other context. Empty without a survey in *plan*.
    """
    if plan.survey is None:
        return ()
    engine = plan.workers[0].engine

    def survey_pairs(pairs: Sequence[Pair]) -> Survey | None:
        if not at or at == plan.context:
            return plan.survey
        return engine.survey_attention_and_memory(pairs, context=at, log=survey_log())

    return memory_gain_document(plan.possible_pairs, plan.weights, survey_pairs)


def plan_survey_document(plan: Plan, survey: Survey) -> Document:
    """Model and engine of *plan*, what *survey* tells of its grid, notes on weights."""
    yield Facts([*_model_and_engine_facts(plan)], is_quiet=True)
    rows, columns = plan.request.grid_k_types, plan.request.grid_v_types
    yield from survey_document(survey, rows, columns, plan.weights)
    yield note_block(plan.notes_of_weights)


def grid_and_survey_document(plan: Plan) -> Document:
    """The grid of *plan*: memory of each pair, where attention runs, what is gained."""
    yield from _cache_sizes_document(plan, _read_cells_of_probe(plan, plan.probes[0]))
    if plan.survey:
        rows, columns = plan.request.grid_k_types, plan.request.grid_v_types
        yield from survey_document(plan.survey, rows, columns, plan.weights)


def _model_and_engine_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """The model and what serves it."""
    yield from model_facts(_name_of_model(plan), plan.weights)
    engine = plan.engine.identity()
    yield program_fact(engine.name, engine.version, engine.program)


def plan_document(
    plan: Plan,
    *,
    at: int | None = None,
    tries_reference: bool = True,
) -> Document:
    """
    What a sweep would run: facts, the grid with predicted KV memory, and notes.

    Args:
        plan: A checked plan; finished cells are those of its first probe.
        at: Context for what there is to gain, in tokens; None for that of the plan.
        tries_reference: Whether the reference of a long grid is measured first.
    """
    yield from _memory_gain_document(plan, at)
    every = [_read_cells_of_probe(plan, probe) for probe in plan.probes]
    facts = _sweep_facts(plan, every, tries_reference=tries_reference)
    yield Facts(list(facts), is_quiet=True)
    yield from _cache_sizes_document(plan, every[0])
    if plan.survey:
        rows, columns = plan.request.grid_k_types, plan.request.grid_v_types
        yield from kernels_document(plan.survey, rows, columns)
        yield from device_memory_document(plan.survey)
    yield from predicted_memory_document(
        _one_type_pairs_if_long(survey_plan_memory(plan))
    )
    yield note_block(notes_of_plan(plan))


def _cache_sizes_document(plan: Plan, cells: _Cells) -> Document:
    """The grid of *plan*, with the size of each cell's cache, or why there is none."""
    request = plan.request
    yield Heading(f"predicted KV cache at {plan.context:,} tokens, MiB")
    shown = [
        _shown_cache_size(plan, Pair(k, v), cells)
        for k in request.grid_k_types
        for v in request.grid_v_types
    ]
    texts = split_into_rows([cell.text for cell in shown], len(request.grid_v_types))
    yield Grid(request.grid_k_types, request.grid_v_types, texts)
    yield Facts(legend(shown))


def plan_object(plan: Plan) -> dict[str, Any]:
    """
    The plan for JSON; times are estimates in seconds, null where nothing is known.

    Keys: ``model``, ``corpus``, ``context`` (tokens), ``prompt_form``, ``engine``,
    ``folder``, ``order`` (pairs), ``probes`` (``name``, ``cells``, ``finished``,
    ``cell_s``, ``left_s``, ``read_tokens`` and ``written_tokens`` of a cell),
    ``left_s``, ``next`` (what a run that there is goes on with: ``probe``, ``pairs``,
    ``how`` and ``units``; else null), ``steps`` of a sweep that decides (``what``,
    ``read_tokens``, ``forced_tokens``, ``time_s``), ``memory`` (``k``, ``v``,
    ``kv_bytes`` by context, ``longest_context``, ``misfit``) and ``notes``.
    """
    every = [_read_cells_of_probe(plan, probe) for probe in plan.probes]
    memory = survey_plan_memory(plan)
    return {
        "model": plan.model,
        "corpus": plan.corpus.name,
        "context": plan.context,
        "prompt_form": plan.prompt_form.value,
        "engine": plan.engine.identity().name,
        "folder": str(plan.store.folder),
        "order": list(map(str, running_order(plan, plan.probes[0]))),
        "probes": [_cells_object(plan, cells) for cells in every],
        "left_s": _seconds_left_in_all(plan, every),
        "next": _next_task_object(plan),
        "steps": _steps_object(plan),
        "memory": [
            {
                "k": needed.pair.k,
                "v": needed.pair.v,
                "kv_bytes": {
                    context: None if count is None else round(count)
                    for context, count in zip(
                        memory.contexts, needed.kv_bytes, strict=True
                    )
                },
                "longest_context": needed.longest_context,
                "misfit": needed.misfit,
            }
            for needed in memory.pairs
        ],
        "notes": list(notes_of_plan(plan)),
    }


def _next_task_object(plan: Plan) -> dict[str, Any] | None:
    """What the run goes on with, for JSON; None if there is nothing."""
    task = plan.going_on
    if task is None:
        return None
    return {
        "probe": task.probe,
        "pairs": list(map(str, task.pairs)),
        "how": task.how.removeprefix(", "),
        "units": task.units,
    }


def _steps_object(plan: Plan) -> list[dict[str, Any]]:
    """The steps of a sweep that decides, for JSON; None for what is unknown."""
    return [
        {
            "what": step.what,
            "read_tokens": round(step.price.read) if step.price else None,
            "forced_tokens": round(step.price.written) if step.price else None,
            "time_s": plan.seconds_of_price(step.price),
        }
        for step in plan.steps
    ]


def _cells_object(plan: Plan, cells: _Cells) -> dict[str, Any]:
    """The cells of a probe, for JSON; None for what is unknown."""
    left_s, cell_s = _seconds_left_and_per_cell(plan, cells)
    bill = plan.bill(cells.probe)
    finished = [
        tried_record for tried_record in cells.tried_records if tried_record.has_numbers
    ]
    return {
        "name": cells.probe.name,
        "cells": cells.total,
        "finished": len(finished),
        "cell_s": cell_s,
        "left_s": left_s,
        "read_tokens": round(bill.price.read) if bill else None,
        "written_tokens": round(bill.price.written) if bill else None,
    }


def _one_type_pairs_if_long(memory: MemoryPlan) -> MemoryPlan:
    """*memory*; of more than `MOST_ROWS` pairs only those with K like V, if any."""
    alike = tuple(n for n in memory.pairs if n.pair.k == n.pair.v)
    is_long = len(memory.pairs) > MOST_ROWS and alike
    return replace(memory, pairs=alike) if is_long else memory


def _read_cells_of_probe(plan: Plan, probe: Probe) -> _Cells:
    """The cells of *probe* in the plan, with the records that there are."""
    stored = trusted_records(plan.store, probe.name)
    repeated = pair_to_repeat(plan, probe)
    pairs = len(measurable_pairs(plan) if plan.request.decide else plan.possible_pairs)
    return _Cells(
        probe=probe,
        records={pair: stored[pair] for pair in plan.pairs if pair in stored},
        repeated=repeated,
        again=plan.store.read_record_if_there(repeated, probe.name, AGAIN)
        if repeated
        else None,
        total=pairs + bool(repeated),
    )


def _name_of_model(plan: Plan) -> str:
    """The name of the file of weights if `Plan.model` begins it; else the latter."""
    name = plan.weights.path.name
    is_short = name.lower().startswith(plan.model) and plan.model != pretrained.BUILT_IN
    return escape_invisible(name) if is_short else plan.model


def _sweep_facts(
    plan: Plan, every: Sequence[_Cells], *, tries_reference: bool
) -> Iterator[tuple[str, str]]:
    """What a sweep would run, of what, and for how long, a word and a phrase each."""
    setup = plan.store.read_setup()
    yield from _model_and_engine_facts(plan)
    if plan.reads_corpus:
        known = corpus_line(setup) if setup else ""
        yield "corpus", known or _corpus_phrase_before_counting(plan)
    if plan.reads_corpus and plan.estimates.sent_corpus_share < 1:
        yield "", _context_for_corpus_phrase(plan)
    yield (
        "context",
        f"{plural(plan.context, 'token')}, {plan.prompt_form.value} prompt",
    )
    yield "records", str(plan.store.folder)
    most = "at most, " if plan.request.decide else ""
    for cells in every:
        yield cells.probe.name, _cell_questions_phrase(plan, setup, cells.probe)
        yield "cells", f"{most}{_finished_count_phrase(cells)}"
        yield "time", f"{most}{_probe_time_phrase(plan, cells)}"
        yield (
            "order",
            _first_pairs_phrase(plan, cells.probe, tries_reference=tries_reference),
        )
    yield from _resume_facts(plan)
    yield from _step_facts(plan)
    if plan.probes[1:] and (left_s := _seconds_left_in_all(plan, every)) is not None:
        yield "all", f"about {duration_text(left_s)} left"


def _resume_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a run that there is goes on with: ``recall of q8_0/q8_0``."""
    if task := plan.going_on:
        most = f", up to {plural(task.units, 'function')}" if task.units else ""
        what = (
            f"{task.probe} of "
            f"{pairs_phrase(task.pairs)}{most}{escape_invisible(task.how)}"
        )
        yield "next", what


def _step_facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """The steps of a sweep that decides, with their tokens, and when it can answer."""
    for at, step in enumerate(plan.steps, start=1):
        yield f"step {at}", "".join((step.what, *_price_phrases(plan, step.price)))
    times = [plan.seconds_of_price(step.price) for step in plan.steps[:2]]
    known = [time_s for time_s in times if time_s is not None]
    if known[1:]:
        yield "", f"first answer after about {duration_text(math.fsum(known))}"


def _price_phrases(plan: Plan, price: Price | None) -> Iterator[str]:
    """What a step takes: ``: 5,078 tokens read, 238 forced, about 41.3 s``."""
    if price is None:
        return
    yield f": {plural(round(price.read), 'token')} read"
    if price.written:
        yield f", {round(price.written):,} forced"
    time_s = plan.seconds_of_price(price)
    if time_s is not None:
        yield f", about {duration_text(time_s)}"


def _context_for_corpus_phrase(plan: Plan) -> str:
    """The option for the context that holds all of a corpus that is cut, about."""
    needed = plan.estimates.tokens(len(plan.corpus.text)) + ROOM_TOKENS
    context = -(-needed // 1024) * 1024
    trained = plan.weights.training_context
    beyond = trained and context > trained and not plan.engine.stretches_context
    note = f"; these weights were trained for {trained:,}" if beyond else ""
    return f"whole corpus: --context {context}, about{note}"


def _cell_questions_phrase(plan: Plan, setup: Setup | None, probe: Probe) -> str:
    """What a cell of *probe* is asked, and the tokens that this takes."""
    bill = plan.bill(probe)
    if bill is None:
        return "each pair"
    about = "" if setup and setup.corpus.is_counted else "about "
    read, written = round(bill.price.read), round(bill.price.written)
    tokens = f"{about}{plural(read, 'token')} read a cell" if read else ""
    if read and written:
        tokens += f", about {written:,} written or forced"
    return "; ".join(filter(None, (bill.phrase, tokens))) or "each pair"


def _corpus_phrase_before_counting(plan: Plan) -> str:
    """The corpus before it is counted."""
    corpus = plan.corpus
    named = f"{corpus.name}: {corpus.origin}; {corpus.kind}"
    functions = plural(len(corpus.functions), "function")
    return (
        f"{named}; {size_text(corpus.size_bytes)}, {functions}; when "
        "the sweep starts, its tokens are counted and it is trimmed to the context if "
        "necessary"
    )


def _finished_count_phrase(cells: _Cells) -> str:
    """``3 of 37 finished, 1 without numbers; f16/f16 counts twice``."""
    finished = sum(record.has_numbers for record in cells.tried_records)
    failed = len(cells.tried_records) - finished
    return "".join(
        (
            f"{finished} of {cells.total} finished",
            f", {failed} without numbers" if failed else "",
            f"; {cells.repeated} counts twice" if cells.repeated else "",
        )
    )


def _seconds_left_and_per_cell(
    plan: Plan, cells: _Cells
) -> tuple[float | None, float | None]:
    """
    Seconds of the cells that are left, by workers side by side, and of one.

    None if nothing is known; interrupted cells are left.
    """
    cell_s = plan.cell_s(cells.probe, cells.tried_records)
    # An interrupted cell runs again.
    done = sum(
        record.status is not Status.INTERRUPTED for record in cells.tried_records
    )
    if cell_s is None:
        return None, None
    workers = 1 if cells.probe.is_timed else len(plan.workers)
    return cell_s * (cells.total - done) / workers, cell_s


def _seconds_left_in_all(plan: Plan, every: Sequence[_Cells]) -> float | None:
    """Seconds of all cells that are left; None if those of some are unknown."""
    lefts = [_seconds_left_and_per_cell(plan, cells)[0] for cells in every]
    known = [left_s for left_s in lefts if left_s is not None]
    return sum(known) if len(known) == len(lefts) else None


def sweep_time_phrase(plans: Sequence[Plan]) -> str:
    """
    What a sweep of all *plans* takes, before its first cell.

    Empty if that is unknown, or nothing is left.
    """
    total = 0.0
    for plan in plans:
        try:
            every = [_read_cells_of_probe(plan, probe) for probe in plan.probes]
        except BadSetup:  # moved aside and made anew when the sweep begins
            return ""
        left_s = _seconds_left_in_all(plan, every)
        if left_s is None:
            return ""
        total += left_s
    most = "at most " if any(plan.request.decide for plan in plans) else "about "
    return f"{most}{duration_text(total)} in all, by an estimate" if total else ""


def _probe_time_phrase(plan: Plan, cells: _Cells) -> str:
    """What is left of a probe, and what a cell takes, or that nothing is known."""
    left_s, mean = _seconds_left_and_per_cell(plan, cells)
    if left_s is None or mean is None:
        return "known after the first cell"
    remaining = f"about {duration_text(left_s)} left" if left_s else "nothing left"
    if any(record.has_numbers for record in cells.tried_records):
        return f"{remaining}, {duration_text(mean)} a cell"
    note = " (an estimate; the first cell tells more)"
    return f"{remaining}, {duration_text(mean)} a cell{note}"


def _first_pairs_phrase(plan: Plan, probe: Probe, *, tries_reference: bool) -> str:
    """``f16/f16, q8_0/q8_0, ...``: the first in running order that are not refused."""
    wanted = running_order(plan, probe, tries_reference=tries_reference)
    pairs = [pair for pair in wanted if not plan.refusal(pair)]
    first = ", ".join(map(str, pairs[:FIRST_PAIRS]))
    return first if len(pairs) <= FIRST_PAIRS else f"{first}, ..."


def _shown_cache_size(plan: Plan, pair: Pair, cells: _Cells) -> Shown:
    """The size of a cell, or why it has no numbers."""
    if pair not in plan.request.grid:
        return Shown(pair=pair, text="")
    record, reason = cells.records.get(pair), plan.refusal(pair)
    if reason or (record and not record.has_numbers):
        mark = refusal_mark(CANNOT_SIGN, reason)
        if record and not reason:
            mark = status_mark(record.status, record.reason)
        return lone_mark(pair, mark)
    predicted = plan.kv_bytes(pair)
    size_mib = UNKNOWN_SIGN if predicted is None else f"{mib_of_bytes(predicted):,.1f}"
    is_done = record is not None
    # Blanks align digits with those that have marks.
    twice = (TWICE.sign if pair == cells.repeated else " ") if cells.repeated else ""
    said = (
        (UNKNOWN_SIZE, predicted is None),
        (TWICE, pair == cells.repeated),
        (DONE, is_done),
    )
    return Shown(
        pair=pair,
        text=f"{size_mib}{twice}{DONE.sign if is_done else ' '}",
        marks=tuple(mark for mark, occurs in said if occurs),
    )
