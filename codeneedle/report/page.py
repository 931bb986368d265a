"""One HTML file about runs: verdict, grids, front, depths, answers, memory, facts."""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from statistics import fmean
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from codeneedle.document import Document, Facts, Lines
from codeneedle.grid import Pair
from codeneedle.models.kv_cache import kv_bytes, usual_contexts
from codeneedle.models.weights import Weights
from codeneedle.probes import PROBES, frames
from codeneedle.probes.answers import Answer
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import Run
from codeneedle.report import answers, captions, compare
from codeneedle.report.colours import RAMP, hex_of, value_scale
from codeneedle.report.data import strict
from codeneedle.report.html import html
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.verdict import Spell, front, headline, sentences
from codeneedle.report.verdict import table as losses
from codeneedle.text import mib, one_line, sweep_command, visible
from codeneedle.verdict.judge import Limits, Row, Standing, Verdict, judge

ANSWER_CHARACTERS = 700_000
"""Most characters of answers on a page: the pairs that lost most go first."""

DEPTH_BINS = 5
MOST_DEPTHS = 10
"""Columns of a map by depth; the first where there are more than the second."""


def page(
    runs: Sequence[Run],
    limits: Limits | None,
    asks_for: Callable[[str], Spell],
    weights_of: Callable[[Run], Weights | None],
) -> str:
    """
    The page of *runs*, which works without a network, a server or further files.

    Text of records is data on it, never markup: it is in a JSON block and is shown by
    the text property of elements alone; a content security policy forbids requests.

    Args:
        runs: The first one is shown first; of two, the second is compared with it.
        limits: What the user can bear to lose.
        asks_for: How a pair is asked for on the command line of an engine.
        weights_of: The header that predicts the caches of a run.
    """
    names = captions.names_of(runs)
    verdicts = [judge(run, limits) for run in runs]
    shown = []
    for name, each in zip(names, verdicts, strict=True):
        spell = asks_for(each.run.setup.engine)
        shown.append({"name": name, **_run_facts(each, spell, weights_of(each.run))})
    both = compare.summary(compare.compare(*runs)) if len(runs) == PAIR else ()
    folder = files("codeneedle.report")
    template = Environment(autoescape=True).from_string(
        folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        title=", ".join(names),
        data=_script_json({"runs": shown, "colours": [hex_of(c) for c in RAMP]}),
        comparison=html(both),
        verdicts=[html(_verdict(each)) for each in verdicts],
        facts=[html(_facts(run)) for run in runs],
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),  # noqa: S704 - the library's own file
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 - ours
    )


PAIR = 2
"""Runs that are compared with each other on a page."""


def _verdict(verdict: Verdict) -> Document:
    """What pairs lose; what to set stands above it."""
    if verdict.compared:
        yield losses(verdict, verdict.standings)
    yield Lines(sentences(verdict))


def _facts(run: Run) -> Document:
    """What a run was measured on, and how to measure it again."""
    yield Facts(captions.facts(run))
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
    verdict: Verdict, spell: Spell, weights: Weights | None
) -> dict[str, Any]:
    """What the script shows of one run."""
    run = verdict.run
    table = pair_table(run, tuple(PROBES.values()))
    by_pair: dict[Pair, list[Answer]] = {}
    for record in run.records:
        by_pair.setdefault(record.pair, []).extend(answers.of(run, record))
    return {
        "headline": headline(verdict, spell),
        "reference": visible(str(verdict.reference)) if verdict.reference else "",
        "k": list(dict.fromkeys(visible(pair.k) for pair in table.pairs)),
        "v": list(dict.fromkeys(visible(pair.v) for pair in table.pairs)),
        "metrics": [
            _metric(column, table, verdict)
            for column in table.columns
            if column.has_values
        ],
        "front": _front(verdict),
        "maps": list(_maps(by_pair)),
        "answers": _answers(by_pair),
        "memory": _memory(weights, table.pairs),
    }


def _metric(column: Column, table: PairTable, verdict: Verdict) -> dict[str, Any]:
    """One metric of the switch: a cell per pair, with what a pointer shows of it."""
    metric, cells = column.metric, list(column.cells.values())
    rounds = frames.most_observations(cells)
    scale = value_scale(metric, [each.value for each in cells], rounds=rounds)
    return {
        "name": metric.name,
        "label": captions.described(metric),
        "better": metric.better,
        "digits": metric.digits,
        "ends": [scale.low, scale.high],
        "note": verdict.silent.get(metric.name, ""),
        "cells": [_cell(column, pair, verdict) for pair in table.pairs],
    }


def _cell(column: Column, pair: Pair, verdict: Verdict) -> dict[str, Any]:
    cell, standing = column.cell(pair), verdict.standing(pair)
    row = standing.row(column.metric.name) if standing else None
    interval = ""
    if row and math.isfinite(row.bounds.high):
        ends = (row.bounds.low, row.bounds.high)
        interval = " .. ".join(verdict.limits.phrase(row.kind, end) for end in ends)
    return {
        "value": cell.value if cell.has_value else None,
        "n": cell.n,
        "loss": interval,
        "verdict": verdict.word(pair, column.metric.name),
        "word": "" if cell.has_value else captions.cell_word(cell),
        "why": visible(f"{cell.status or 'not run'} {one_line(cell.reason)}".strip()),
    }


def _front(verdict: Verdict) -> dict[str, Any]:
    """Memory against loss, and speed, of each pair that has them."""
    best = {each.pair for each in front(verdict)}
    return {
        "limit": verdict.limits.max_loss,
        "limitText": verdict.limits.phrase(
            LossKind.PROBABILITY, verdict.limits.max_loss
        ),
        "points": [
            {
                "pair": visible(str(each.pair)),
                "memory": each.memory,
                "loss": row.bounds.mean,
                "low": row.bounds.low,
                "high": row.bounds.high,
                "speed": each.speed,
                "onFront": each.pair in best,
                "verdict": verdict.word(each.pair),
            }
            for each in verdict.compared
            if each.memory is not None and (row := _graded(each))
        ],
    }


def _graded(standing: Standing) -> Row | None:
    """What decides *standing*, if that is a loss."""
    row = standing.leading
    return row if row and row.kind.is_graded else None


Answers = Mapping[Pair, Sequence[Answer]]


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


def _answers(by_pair: Answers) -> dict[str, Any]:
    """
    Answers beside what was expected: by pair and question, rows of two texts.

    One that is right has no rows. Answers that do not fit into `ANSWER_CHARACTERS`
    are counted.
    """
    left, left_out = ANSWER_CHARACTERS, 0
    flat = [(pair, each) for pair, of in by_pair.items() for each in of if each.beside]
    pairs: dict[str, dict[str, Any]] = {}
    for pair, answer in sorted(flat, key=lambda each: each[1].right):
        beside = answer.beside() if answer.beside and answer.right < 1 else ()
        rows = [[_shown(text) for text in line] for line in beside]
        left -= sum(len(text or "") for text in itertools.chain(*rows))
        if left < 0:
            left_out, rows = left_out + 1, []
        pairs.setdefault(visible(str(pair)), {})[visible(answer.name)] = {
            "outcome": visible(answer.outcome),
            "isRight": answer.right == 1,
            "error": visible(answer.error),
            "rows": rows,
        }
    order = list(dict.fromkeys(visible(answer.name) for _, answer in flat))
    return {"order": order, "pairs": pairs, "leftOut": left_out}


def _shown(line: str | None) -> str | None:
    return None if line is None else visible(line.replace("\t", "»   "))


def _memory(weights: Weights | None, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Predicted KV cache of each pair by context; empty without the weights' header."""
    if weights is None:
        return {"contexts": [], "pairs": {}}
    contexts = usual_contexts(weights.training_context)
    sizes = {
        visible(str(pair)): [_mib(kv_bytes(weights, pair, each)) for each in contexts]
        for pair in pairs
    }
    return {"contexts": list(contexts), "pairs": sizes}


def _mib(count: int | None) -> float | None:
    return None if count is None else round(mib(count), 3)
