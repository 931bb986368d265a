"""One HTML file about runs: verdict, grids, front, depths, answers, memory, facts."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from os.path import commonpath
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.document import Document, Facts, Lines
from codeneedle.errors import BadInput
from codeneedle.models.kv_cache import usual_contexts
from codeneedle.probes import PROBES
from codeneedle.probes.answers import ScoredAnswer
from codeneedle.records.record import Run
from codeneedle.report import answers, captions, compare
from codeneedle.report.budget import budget_headline, candidates_table_and_legend
from codeneedle.report.budget_chart import budget_chart
from codeneedle.report.charts import loss_by_memory_chart, memory_chart
from codeneedle.report.chosen_runs import LOSS
from codeneedle.report.colours import RAMP, hex_of, readable_text_colour
from codeneedle.report.data import with_none_for_non_finite
from codeneedle.report.html import html
from codeneedle.report.losses import Losses, losses_of
from codeneedle.report.shown import (
    REFERENCE_MARK,
    Shown,
    Style,
    legend,
    shown_cells,
    shown_k_and_v_types,
)
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.verdict import (
    answers_table,
    headline_sentences,
    remark_lines,
    verdict_table_and_legend,
)
from codeneedle.text import escape_invisible, sweep_command, without_folders
from codeneedle.verdict.joint import join_runs
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
    runs = list(_runs_without_local_folders(runs))
    names = captions.run_names_or_folders(runs)
    budget = joint_verdict_or_none(runs, limits or Limits())
    if budget and limits:
        # It is of the whole of all files; of one run it would be of the cache alone.
        limits = replace(limits, max_memory_bytes=None)
    verdicts = [judge(run, limits) for run in runs]
    losses = [losses_of(verdict) for verdict in verdicts]
    shown = [
        {
            "name": name,
            **_run_object(verdict, of, asks_for(verdict.run.setup.engine)),
            "answers": _wrong_answers_object(
                _answers_by_pair(verdict.run), ANSWER_BYTES // len(runs)
            ),
        }
        for name, verdict, of in zip(names, verdicts, losses, strict=True)
    ]
    both = (
        compare.comparison_summary(compare.compare(*runs)) if len(runs) == PAIR else ()
    )
    folder = files("codeneedle.report")
    template = Environment(autoescape=True).from_string(
        folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        title=", ".join(names),
        answers=html([answers_table(verdicts)] if runs[1:] else []),
        data=_script_json({"runs": shown, "colours": RAMP}),
        comparison=html(both),
        budget=html(candidates_table_and_legend(budget)) if budget else "",
        budget_lines=_budget_lines(budget, asks_for) if budget else (),
        budget_chart=budget_chart(budget) if budget else "",
        verdicts=[
            html(_verdict_document(verdict, asks_for(verdict.run.setup.engine)))
            for verdict in verdicts
        ],
        fronts=[loss_by_memory_chart(loss) if loss else "" for loss in losses],
        memories=list(map(_memory_markup, verdicts)),
        facts=[html(_facts_and_commands_document(run)) for run in runs],
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 - ours
    )


def joint_verdict_or_none(runs: Sequence[Run], limits: Limits) -> Verdict | None:
    """The verdict on *runs* together; None of one, or if they are not one question."""
    if not runs[1:]:
        return None
    try:
        return judge(join_runs(runs, limits.at), limits)
    except BadInput:
        return None


def _budget_lines(
    verdict: Verdict, asks_for: Callable[[str], PairFlags]
) -> tuple[str, ...]:
    """Which weights with which pair to set, and what they lose."""
    found = budget_headline(verdict, asks_for(verdict.run.setup.engine))
    return tuple(escape_invisible(line.strip()) for line in found)


def _runs_without_local_folders(runs: Sequence[Run]) -> Iterator[Run]:
    """*runs* without folders of this machine, which a page does not show others."""
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


def _verdict_document(verdict: Verdict, pair_flags: PairFlags) -> Document:
    """What pairs lose, if any is compared, and remarks; without what to set."""
    if verdict.compared_results:
        yield from verdict_table_and_legend(verdict, verdict.results)
    yield remark_lines(verdict, pair_flags)


def _facts_and_commands_document(run: Run) -> Document:
    """What a run was measured on, and how to measure it again."""
    yield Facts(captions.run_facts(run))
    yield Lines([sweep_command(run.folder)], copied="To go on with it")
    again = "To measure it again, save this and run: codeneedle sweep ./FILE.toml"
    yield Lines(run.sweep.splitlines(), copied=again)


def _script_json(data: object) -> Markup:
    """*data* for a script element: no text in it can end the element."""
    text = json.dumps(
        with_none_for_non_finite(data), allow_nan=False, separators=(",", ":")
    )
    for special, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(special, escape)
    return Markup(text)  # noqa: S704 - escaped above


def _run_object(
    verdict: Verdict, losses: Losses | None, pair_flags: PairFlags
) -> dict[str, Any]:
    """What the script shows of one run, but for its name and answers."""
    run = verdict.run
    table = pair_table(run, tuple(PROBES.values()))
    columns = [column for column in table.columns if column.has_values]
    return {
        "headline": headline_sentences(verdict, pair_flags),
        "reference": escape_invisible(str(verdict.reference))
        if verdict.reference
        else "",
        "metrics": [
            *([loss_object(losses)] if losses else []),
            *(_metric_object(column, table, verdict) for column in columns),
        ],
        "maps": list(_right_share_maps_by_task(_answers_by_pair(run))),
    }


def _answers_by_pair(run: Run) -> dict[Pair, list[ScoredAnswer]]:
    by_pair: dict[Pair, list[ScoredAnswer]] = {}
    for record in run.records:
        by_pair.setdefault(record.pair, []).extend(
            answers.scored_answers_of(run, record)
        )
    return by_pair


def loss_object(losses: Losses) -> dict[str, Any]:
    """The loss as a metric of the page's script, its first one."""
    shown = losses.shown_losses()
    label = f"{losses.label}; the colour turns at the limit of {losses.limit:g}"
    if any(not cell.text for cell in shown):
        label += "; an empty cell was not to be measured"
    return _grid_object(LOSS, label, shown)


def _grid_object(name: str, label: str, shown: Sequence[Shown]) -> dict[str, Any]:
    """The grid of a metric for the page's script, with what its marks mean."""
    k_types, v_types = shown_k_and_v_types(shown)
    return {
        "name": name,
        "label": label,
        "k": list(map(escape_invisible, k_types)),
        "v": list(map(escape_invisible, v_types)),
        "cells": list(map(_cell_as_list, shown)),
        "legend": [
            [_sign_on_page(sign), meaning]
            for sign, meaning in legend(shown, is_spelled=True)
        ],
    }


def _sign_on_page(sign: str) -> str:
    """A mark as the page has it: the reference is spelled, not starred."""
    return "reference" if sign == REFERENCE_MARK else sign


def _metric_object(
    column: Column, table: PairTable, verdict: Verdict
) -> dict[str, Any]:
    """A metric for the page's script: a cell per pair, with what a pointer shows."""
    metric = column.metric
    cells = list(column.cells.values())
    note = verdict.silent.get(metric.name, "")
    words = {cell.pair: verdict.decision(cell.pair, metric.name) for cell in cells}
    beyond = {pair for pair, word in words.items() if word == Decision.BEYOND}
    better = "" if metric.better == "neither" else f"; {metric.better} is better"
    bold = ". Bold: beyond the limit by this metric" if beyond else ""
    said = f"{': ' if note else ''}{note}{bold}"
    shown = shown_cells(metric, cells, setup=table.run.setup, beyond=beyond)
    return _grid_object(
        metric.name, f"{captions.label_with_unit(metric)}{better}{said}", shown
    )


_LETTERS = {Style.SET: "s", Style.BEYOND: "b", Style.OPEN: "o"}
"""Classes of a cell by what its pair is."""


def _cell_as_list(shown: Shown) -> list[Any]:
    """Text, text below and tip; then, unless it is a gap, ground, ink and classes."""
    own = (meaning for _, meaning in legend([shown]))
    tip = "; ".join(filter(None, [escape_invisible(str(shown.pair)), shown.note, *own]))
    cell = [shown.spelled_text, shown.below, tip if shown.text else ""]
    if shown.ground is None:
        return cell
    classes = (letter for style, letter in _LETTERS.items() if style in shown.style)
    ink = readable_text_colour(*shown.ground)
    return [*cell, hex_of(shown.ground), ink, "".join(classes)]


Answers = Mapping[Pair, Sequence[ScoredAnswer]]


def _right_share_maps_by_task(by_pair: Answers) -> Iterator[dict[str, Any]]:
    """
    A map for each task: each pair's share of right answers by length and depth.

    Shares are from 0 to 1, None where there is none; failed answers are left out.
    """
    scored = {
        pair: [answer for answer in of_pair if answer.task and not answer.error]
        for pair, of_pair in by_pair.items()
    }
    for task in dict.fromkeys(answer.task for of in scored.values() for answer in of):
        of_task = {
            escape_invisible(str(pair)): [
                answer for answer in of_pair if answer.task == task
            ]
            for pair, of_pair in scored.items()
        }
        every = [answer for of_pair in of_task.values() for answer in of_pair]
        lengths = sorted({answer.length for answer in every})
        columns = _column_label_by_depth(sorted({answer.depth for answer in every}))
        yield {
            "name": f"{task}: share of right answers",
            "rows": [f"{length:,}" for length in lengths],
            "columns": list(dict.fromkeys(columns.values())),
            "pairs": {
                pair: [
                    [
                        _mean(
                            answer.right
                            for answer in of_pair
                            if answer.length == length
                            and columns[answer.depth] == column
                        )
                        for column in dict.fromkeys(columns.values())
                    ]
                    for length in lengths
                ]
                for pair, of_pair in of_task.items()
                if of_pair
            },
        }


def _column_label_by_depth(depths: Sequence[float]) -> dict[float, str]:
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
    """The mean of *values*; None without any."""
    known = list(values)
    return fmean(known) if known else None


def _wrong_answers_object(by_pair: Answers, most_bytes: int) -> dict[str, Any]:
    """
    Answers that are not right beside what was expected: by pair and question.

    Right ones are counted by pair. Of the others the least right go first; those that
    do not fit into *most_bytes* of JSON are counted, of all pairs together.
    """
    flat = [
        (pair, answer) for pair, of in by_pair.items() for answer in of if answer.beside
    ]
    right = Counter(
        escape_invisible(str(pair)) for pair, answer in flat if answer.right == 1
    )
    left, left_out = most_bytes, 0
    pairs: dict[str, dict[str, Any]] = {}
    wrong = [(pair, answer) for pair, answer in flat if answer.right < 1]
    for pair, answer in sorted(wrong, key=lambda entry: entry[1].right):
        shown = _answer_object(answer)
        left -= len(json.dumps(shown)) + len(answer.name)
        if left < 0:
            left_out += 1
            continue
        pairs.setdefault(escape_invisible(str(pair)), {})[
            escape_invisible(answer.name)
        ] = shown
    order = list(dict.fromkeys(escape_invisible(answer.name) for _, answer in wrong))
    return {"order": order, "pairs": pairs, "right": right, "leftOut": left_out}


def _answer_object(answer: ScoredAnswer) -> dict[str, Any]:
    """What the page has of an answer: outcome, error, and lines beside each other."""
    beside = answer.beside() if answer.beside else ()
    return {
        "outcome": escape_invisible(answer.outcome),
        "error": escape_invisible(answer.error),
        "rows": [[_safe_line_or_none(text) for text in line] for line in beside],
    }


def _safe_line_or_none(line: str | None) -> str | None:
    """*line* as it is safe to show, tabs made visible; None for none."""
    return None if line is None else escape_invisible(line.replace("\t", "»   "))


def _memory_markup(verdict: Verdict) -> Markup:
    """
    A chart of KV caches by context; empty where no size is known.

    Up to the context of the training or of the run, whichever is longer; up to the
    longest usual one where the former is unknown.
    """
    setup = verdict.run.setup
    trained = setup.training_context
    contexts = usual_contexts(max(trained, setup.context) if trained else 0)
    sizes = {
        result.pair: [verdict.kv_bytes(result.pair, context) for context in contexts]
        for result in verdict.results
    }
    return memory_chart(verdict, contexts, sizes)
