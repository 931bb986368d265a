"""One HTML file about runs: verdict, grids, front, depths, answers, memory, facts."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from os.path import commonpath
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.document import Document, Facts, Lines, Table
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import usual_contexts
from codeneedle.probes import PROBES, frames
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.probes.frames import CellValue
from codeneedle.records.record import Run
from codeneedle.report import answers, captions, compare
from codeneedle.report.budget import budget_lines, candidate_table
from codeneedle.report.budget_chart import budget_charts
from codeneedle.report.charts import front_charts, memory_charts
from codeneedle.report.colours import (
    RAMP,
    Rgb,
    cell_colour,
    hex_of,
    loss_scale,
    text_colour,
    value_scale,
)
from codeneedle.report.data import strict
from codeneedle.report.display import Display, display_of
from codeneedle.report.html import html
from codeneedle.report.losses import Losses, losses_of
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.verdict import answers_table, headline, remark_lines
from codeneedle.report.verdict import verdict_table as losses
from codeneedle.text import number, one_line, sweep_command, visible, without_folders
from codeneedle.verdict.joint import joined
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.statistics import Decision

ANSWER_BYTES = 400_000
"""Most bytes of answers on a page: a page with all else has at most 1 MB."""

DEPTH_BINS = 5
MOST_DEPTHS = 10
"""Columns of a map by depth; the first where there are more than the second."""


def page(
    runs: Sequence[Run],
    limits: Limits | None,
    asks_for: Callable[[str], PairFlags],
) -> str:
    """
    The page of *runs*, which works without a network, a server or further files.

    Text of records is data on it, never markup: it is in a JSON block and is shown by
    the text property of elements alone; a content security policy forbids requests.

    Args:
        runs: The first one is shown first; of two, the second is compared with it.
        limits: What the user can bear to lose.
        asks_for: How a pair is asked for on the command line of an engine.
    """
    runs = list(_passed_on(runs))
    names = captions.names_of(runs)
    verdicts = [judge(run, limits) for run in runs]
    losses = [losses_of(each) for each in verdicts]
    shown = [
        {
            "name": name,
            **_run_facts(each, of, asks_for(each.run.setup.engine)),
            "answers": _answers(_by_pair(each.run), ANSWER_BYTES // len(runs)),
        }
        for name, each, of in zip(names, verdicts, losses, strict=True)
    ]
    both = (
        compare.comparison_summary(compare.compare(*runs)) if len(runs) == PAIR else ()
    )
    budget = one_budget(runs, limits or Limits())
    folder = files("codeneedle.report")
    template = Environment(autoescape=True).from_string(
        folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        title=", ".join(names),
        answers=html([answers_table(verdicts)] if runs[1:] else []),
        data=_script_json({"runs": shown, "colours": RAMP}),
        comparison=html(both),
        budget=html(_budget(budget, asks_for)) if budget else "",
        budget_chart=budget_charts(budget) if budget else "",
        verdicts=[
            html(_verdict(each, asks_for(each.run.setup.engine))) for each in verdicts
        ],
        fronts=[
            front_charts(each, number=at) if each else ""
            for at, each in enumerate(losses)
        ],
        memories=[_memory(each, number=at) for at, each in enumerate(verdicts)],
        facts=[html(_facts(run)) for run in runs],
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 - ours
    )


def one_budget(runs: Sequence[Run], limits: Limits) -> Verdict | None:
    """The verdict on *runs* together; None of one, or if they are not one question."""
    if not runs[1:]:
        return None
    try:
        return judge(joined(runs, limits.at), limits)
    except BadInput:
        return None


def _budget(
    verdict: Verdict, asks_for: Callable[[str], PairFlags]
) -> Iterator[Lines | Table]:
    """Which weights with which pair to set, and a row for each candidate."""
    yield budget_lines(verdict, asks_for(verdict.run.setup.engine))
    if verdict.compared:
        yield candidate_table(verdict)


def _passed_on(runs: Sequence[Run]) -> Iterator[Run]:
    """*runs* without folders of this machine: a page is for others, too."""
    roots = [run.root for run in runs if run.root and run.root.is_absolute()]
    above = Path(commonpath(roots)) if roots else Path()
    for run in runs:
        root = run.root
        if root in roots:
            root = Path(root.name) if root == above else root.relative_to(above)
        yield _without_folders(replace(run, root=root))


def _without_folders(run: Run) -> Run:
    """*run*; of paths in its setup, sweep file and reasons, the last name alone."""
    arguments = tuple(map(without_folders, run.setup.server_args))
    return replace(
        run,
        sweep=without_folders(run.sweep),
        setup=replace(run.setup, server_args=arguments),
        records=tuple(
            replace(record, reason=without_folders(record.reason))
            for record in run.records
        ),
    )


PAIR = 2
"""Runs that are compared with each other on a page."""


def _verdict(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """What pairs lose; what to set stands above it."""
    if verdict.compared:
        yield losses(verdict, verdict.results)
    yield remark_lines(verdict, pair_flags)


def _facts(run: Run) -> Document:
    """What a run was measured on, and how to measure it again."""
    yield Facts(captions.run_facts(run))
    yield Lines([sweep_command(run.folder)], copied="To go on with it")
    again = "To measure it again, save this and run: codeneedle sweep ./FILE.toml"
    yield Lines(run.sweep.splitlines(), copied=again)


def _script_json(data: object) -> Markup:
    """*data* for a script element: no text in it can end the element."""
    text = json.dumps(strict(data), allow_nan=False, separators=(",", ":"))
    for special, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(special, escape)
    return Markup(text)  # noqa: S704 - escaped above


def _run_facts(
    verdict: Verdict, losses: Losses | None, pair_flags: PairFlags
) -> dict[str, Any]:
    """What the script shows of one run."""
    run = verdict.run
    table = pair_table(run, tuple(PROBES.values()))
    columns = [column for column in table.columns if column.has_values]
    return {
        "headline": headline(verdict, pair_flags),
        "reference": visible(str(verdict.reference)) if verdict.reference else "",
        "metrics": [
            *([loss_facts(losses)] if losses else []),
            *(_metric(column, table, verdict) for column in columns),
        ],
        "maps": list(_maps(_by_pair(run))),
    }


def _by_pair(run: Run) -> dict[Pair, list[ScoredAnswer]]:
    by_pair: dict[Pair, list[ScoredAnswer]] = {}
    for record in run.records:
        by_pair.setdefault(record.pair, []).extend(answers.of(run, record))
    return by_pair


def loss_facts(losses: Losses) -> dict[str, Any]:
    """The loss as the first metric of the switch."""
    cells = losses.cells()
    scale = loss_scale(losses.limit, [cell.value for cell in cells])
    shown = [
        _cell(
            cell,
            losses.display,
            partial(cell_colour, losses.metric, scale=scale),
            word=losses.word(cell.pair),
            below=captions.loss_word(losses, cell),
            tips=_ends(losses, cell),
        )
        for cell in cells
    ]
    label = f"{losses.display.label}; the colour turns at the limit of {losses.limit:g}"
    if any(cell.is_hole for cell in cells):
        label += "; an empty cell was not to be measured"
    return _grid(losses.metric.name, label, cells, shown)


def _grid(
    name: str, label: str, cells: Sequence[CellValue], shown: Sequence[list[Any]]
) -> dict[str, Any]:
    """A metric of the switch: what is *shown* of each of *cells*, as of `_cell`."""
    return {
        "name": name,
        "label": label,
        "k": [visible(each) for each in frames.k_types(cells)],
        "v": [visible(each) for each in frames.v_types(cells)],
        "cells": shown,
    }


def _ends(losses: Losses, cell: CellValue) -> list[str]:
    row = losses.rows.get(cell.pair)
    if row is None or not math.isfinite(row.bounds.high):
        return []
    ends = (row.bounds.low, row.bounds.high)
    low, high = (losses.verdict.limits.phrase(row.kind, end) for end in ends)
    return [f"{low} to {high}, {row.bounds.units} {row.metric.noun}"]


def _metric(column: Column, table: PairTable, verdict: Verdict) -> dict[str, Any]:
    """One metric of the switch: a cell per pair, with what a pointer shows of it."""
    metric = column.metric
    cells = [column.cell(pair) for pair in table.pairs]
    rounds = frames.most_observations(cells)
    ranked = [each.value for each in cells if each.is_ranked]
    scale = value_scale(metric, ranked, rounds=rounds)
    note = verdict.silent.get(metric.name, "")
    words = {each.pair: verdict.decision(each.pair, metric.name) for each in cells}
    better = "" if metric.better == "neither" else f"; {metric.better} is better"
    is_beyond = Decision.BEYOND in words.values()
    bold = ". Bold: beyond the limit by this metric" if is_beyond else ""
    counts = captions.unit_counts(metric, cells)
    said = f"{': ' if note else ''}{note}{bold}"
    shown = [
        _cell(
            cell,
            display_of(metric),
            partial(cell_colour, metric, scale=scale),
            below=counts.get(cell.pair, ""),
            is_bold=words[cell.pair] == Decision.BEYOND,
            tips=[f"n {cell.n}", words[cell.pair]] if cell.has_value else [],
        )
        for cell in cells
    ]
    label = f"{captions.described(metric)}{better}{said}"
    return _grid(metric.name, label, cells, shown)


def _cell(
    cell: CellValue,
    display: Display,
    painted: Callable[[float], Rgb],
    *,
    word: str = "",
    below: str = "",
    is_bold: bool = False,
    tips: Sequence[str] = (),
) -> list[Any]:
    """Text, text below, tip, ground, ink and marks: shorter than names for each."""
    pair = visible(str(cell.pair))
    if not cell.has_value:
        is_missing = cell.status == frames.NOT_RUN and not cell.is_hole
        why = visible(f"{cell.status or 'not run'} {one_line(cell.reason)}".strip())
        return [
            "not run" if is_missing else captions.cell_word(cell),
            below,
            "" if cell.is_hole else f"{pair}: {why}",
        ]
    tip = "; ".join(filter(None, [pair, word, *tips, visible(cell.evidence)]))
    if not cell.is_ranked:
        return [captions.value_text(cell, display), below, tip]
    value = number(cell.value, digits=display.digits)
    ground = painted(cell.value)
    marks = "b" * (is_bold or word == Decision.BEYOND) + "s" * word.startswith("set")
    return [
        value if below else captions.value_text(cell, display),
        below,
        tip,
        hex_of(ground),
        text_colour(*ground),
        marks + "o" * (word == Decision.OPEN),
    ]


Answers = Mapping[Pair, Sequence[ScoredAnswer]]


def _maps(by_pair: Answers) -> Iterator[dict[str, Any]]:
    """How much of the answers is right by length and depth, of each task and pair."""
    scored = {
        pair: [each for each in of_pair if each.task and not each.error]
        for pair, of_pair in by_pair.items()
    }
    for task in dict.fromkeys(each.task for of in scored.values() for each in of):
        of_task = {
            visible(str(pair)): [each for each in of_pair if each.task == task]
            for pair, of_pair in scored.items()
        }
        every = [each for of_pair in of_task.values() for each in of_pair]
        lengths = sorted({each.length for each in every})
        columns = _columns(sorted({each.depth for each in every}))
        yield {
            "name": f"{task}: share of right answers",
            "rows": [f"{length:,}" for length in lengths],
            "columns": list(dict.fromkeys(columns.values())),
            "pairs": {
                pair: [
                    [
                        _mean(
                            each.right
                            for each in of_pair
                            if each.length == length and columns[each.depth] == column
                        )
                        for column in dict.fromkeys(columns.values())
                    ]
                    for length in lengths
                ]
                for pair, of_pair in of_task.items()
                if of_pair
            },
        }


def _columns(depths: Sequence[float]) -> dict[float, str]:
    """The column of each depth: its own, or a part of the text where there are many."""
    if len(depths) <= MOST_DEPTHS:
        return {depth: f"{depth:.0%}" for depth in depths}
    columns = {}
    for depth in depths:
        at = min(int(depth * DEPTH_BINS), DEPTH_BINS - 1)
        low, high = (round(100 * end / DEPTH_BINS) for end in (at, at + 1))
        columns[depth] = f"{low}-{high}%"
    return columns


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _answers(by_pair: Answers, most_bytes: int) -> dict[str, Any]:
    """
    Answers that are not right beside what was expected: by pair and question.

    Right ones are counted, by pair. So are those that do not fit into *most_bytes* of
    JSON; the pairs that lost most go first.
    """
    flat = [(pair, each) for pair, of in by_pair.items() for each in of if each.beside]
    right = Counter(visible(str(pair)) for pair, each in flat if each.right == 1)
    left, left_out = most_bytes, 0
    pairs: dict[str, dict[str, Any]] = {}
    wrong = [(pair, each) for pair, each in flat if each.right < 1]
    for pair, answer in sorted(wrong, key=lambda each: each[1].right):
        shown = _answer(answer)
        left -= len(json.dumps(shown)) + len(answer.name)
        if left < 0:
            left_out += 1
            continue
        pairs.setdefault(visible(str(pair)), {})[visible(answer.name)] = shown
    order = list(dict.fromkeys(visible(answer.name) for _, answer in wrong))
    return {"order": order, "pairs": pairs, "right": right, "leftOut": left_out}


def _answer(answer: ScoredAnswer) -> dict[str, Any]:
    beside = answer.beside() if answer.beside else ()
    return {
        "outcome": visible(answer.outcome),
        "error": visible(answer.error),
        "rows": [[_shown(text) for text in line] for line in beside],
    }


def _shown(line: str | None) -> str | None:
    return None if line is None else visible(line.replace("\t", "»   "))


def _memory(verdict: Verdict, *, number: int) -> Markup:
    """KV cache up to the context of the training, as logs tell of it at one."""
    setup = verdict.run.setup
    trained = setup.training_context
    contexts = usual_contexts(max(trained, setup.context) if trained else 0)
    sizes = {
        each.pair: [verdict.kv_bytes(each.pair, context) for context in contexts]
        for each in verdict.results
    }
    return memory_charts(verdict, contexts, sizes, number=number)
