"""One HTML file about runs: verdict, grids, front, depths, answers, memory, facts."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from codeneedle.corpora.needles import ASKED_LINES
from codeneedle.grid import Pair
from codeneedle.models.kv_cache import kv_bytes, usual_contexts
from codeneedle.probes import PROBES, frames
from codeneedle.probes.metrics import LossKind
from codeneedle.probes.recall.alignment import score
from codeneedle.probes.recall.rounds import scored_rounds
from codeneedle.probes.retrieval.outcomes import outcomes
from codeneedle.probes.retrieval.record import NAME as RETRIEVAL
from codeneedle.records.record import CellRecord, Run
from codeneedle.report import captions
from codeneedle.report.answers import line_pairs
from codeneedle.report.compare import (
    CHANGE_HEADING,
    NOTHING_SHARED,
    Comparison,
    change_rows,
    compare,
    setup_rows,
)
from codeneedle.report.grid import RAMP, hex_of, value_scale
from codeneedle.report.plan import predictable, weights_of_run
from codeneedle.report.table import Column, PairTable, pair_table
from codeneedle.report.verdict import (
    Spell,
    front,
    headline,
    sentences,
    table_rows,
)
from codeneedle.text import (
    mib,
    one_line,
    or_null,
    sweep_command,
    visible,
    visible_lines,
)
from codeneedle.verdict.judge import Limits, Row, Standing, Verdict, judge

ANSWER_CHARACTERS = 700_000
"""Most characters of answers on a page: the pairs that lost most go first."""

DEPTH_BINS = 5
"""Columns of the map of recall by depth."""


def page(
    runs: Sequence[Run], limits: Limits | None, asks_for: Callable[[str], Spell]
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
    names = captions.names_of(runs)
    shown = [
        {
            "name": name,
            **_run_facts(run, judge(run, limits), asks_for(run.setup.engine)),
        }
        for name, run in zip(names, runs, strict=True)
    ]
    both = _comparison(compare(runs[0], runs[1])) if len(runs) == PAIR else {}
    folder = files("codeneedle.report")
    template = Environment(autoescape=True).from_string(
        folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        title=", ".join(names),
        data=_script_json(
            {"runs": shown, "comparison": both, "colours": [hex_of(c) for c in RAMP]}
        ),
        plotly=Markup(_closed(get_plotlyjs())),  # noqa: S704 - the library's own file
        script=Markup(folder.joinpath("page.js").read_text(encoding="utf-8")),  # noqa: S704 - ours
    )


PAIR = 2
"""Runs that are compared with each other on a page."""


def _comparison(found: Comparison) -> dict[str, Any]:
    """Names, what differs in the setups, and the changes by metric."""
    return {
        "names": captions.names_of([found.first, found.second]),
        "setups": [["setup", "first", "second"], *setup_rows(found)],
        "changes": [CHANGE_HEADING, *change_rows(found)] if found.changes else [],
        "none": "" if found.changes else NOTHING_SHARED,
    }


def _script_json(data: object) -> Markup:
    """*data* for a script element: no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for special, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(special, escape)
    return Markup(text)  # noqa: S704 - escaped above


def _closed(script: str) -> str:
    return script.replace("</script", "<\\/script")


def _run_facts(run: Run, found: Verdict, spell: Spell) -> dict[str, Any]:
    """All that the page shows of one run."""
    table = pair_table(run, tuple(PROBES.values()))
    return {
        "headline": headline(found, spell),
        "losses": table_rows(found, found.standings) if found.compared else [],
        "sentences": sentences(found),
        "reference": visible(str(found.reference)) if found.reference else "",
        "k": list(dict.fromkeys(visible(pair.k) for pair in table.pairs)),
        "v": list(dict.fromkeys(visible(pair.v) for pair in table.pairs)),
        "metrics": [
            _metric(column, table, found)
            for column in table.columns
            if column.has_values
        ],
        "front": _front(found),
        "maps": [*_recall_maps(run), *_task_maps(run)],
        "answers": _answers(run),
        "memory": _memory(run, table),
        "facts": [list(each) for each in captions.facts(run)],
        "sweep": visible_lines(run.sweep),
        "command": sweep_command(run.folder),
    }


def _metric(column: Column, table: PairTable, found: Verdict) -> dict[str, Any]:
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
        "note": found.silent.get(metric.name, ""),
        "cells": [_cell(column, pair, found) for pair in table.pairs],
    }


def _cell(column: Column, pair: Pair, found: Verdict) -> dict[str, Any]:
    cell, standing = column.cell(pair), found.standing(pair)
    row = standing.row(column.metric.name) if standing else None
    interval = ""
    if row and math.isfinite(row.bounds.high):
        ends = (row.bounds.low, row.bounds.high)
        interval = " .. ".join(found.limits.phrase(row.kind, end) for end in ends)
    return {
        "value": cell.value if cell.has_value else None,
        "n": cell.n,
        "loss": interval,
        "verdict": found.word(pair, column.metric.name),
        "word": "" if cell.has_value else captions.cell_word(cell),
        "why": visible(f"{cell.status or 'not run'} {one_line(cell.reason)}".strip()),
    }


def _front(found: Verdict) -> dict[str, Any]:
    """Memory against loss, and speed, of each pair that has them."""
    best = {each.pair for each in front(found)}
    return {
        "limit": found.limits.max_loss,
        "limitText": found.limits.phrase(LossKind.PROBABILITY, found.limits.max_loss),
        "points": [
            {
                "pair": visible(str(each.pair)),
                "memory": each.memory,
                "loss": row.bounds.mean,
                "low": or_null(row.bounds.low),
                "high": or_null(row.bounds.high),
                "speed": each.speed,
                "onFront": each.pair in best,
                "verdict": found.word(each.pair),
            }
            for each in found.compared
            if each.memory is not None and (row := _graded(each))
        ],
    }


def _graded(standing: Standing) -> Row | None:
    """What decides *standing*, if that is a loss."""
    row = standing.leading
    return row if row and row.kind.is_graded else None


def _recall_maps(run: Run) -> Iterator[dict[str, Any]]:
    """Matched lines by depth, of each pair that recalled."""
    pairs = {}
    for record in _finished(run, "recall"):
        bins: list[list[int]] = [[] for _ in range(DEPTH_BINS)]
        for asked in scored_rounds(record, run.setup):
            if not asked.error:
                at = min(int(asked.needle.depth * DEPTH_BINS), DEPTH_BINS - 1)
                bins[at].append(asked.counts.matched)
        if any(bins):
            pairs[visible(str(record.pair))] = [[_mean(values) for values in bins]]
    if pairs:
        edges = [round(100 * at / DEPTH_BINS) for at in range(DEPTH_BINS + 1)]
        yield {
            "name": f"recall: matched lines of {ASKED_LINES}",
            "rows": [f"{run.setup.corpus.tokens:,}"],
            "columns": [f"{low}-{high}%" for low, high in itertools.pairwise(edges)],
            "high": ASKED_LINES,
            "pairs": pairs,
        }


def _task_maps(run: Run) -> Iterator[dict[str, Any]]:
    """Right answers by length and depth, of each task and pair."""
    found: dict[str, dict[str, dict[tuple[int, float], list[float]]]] = {}
    for record in _finished(run, RETRIEVAL):
        for outcome in outcomes(record):
            of_pair = found.setdefault(outcome.task, {}).setdefault(
                visible(str(record.pair)), {}
            )
            place = (outcome.length, outcome.depth)
            of_pair.setdefault(place, []).append(outcome.score.share)
    for task, pairs in found.items():
        places = sorted({place for cells in pairs.values() for place in cells})
        lengths = sorted({length for length, _ in places})
        depths = sorted({depth for _, depth in places})
        yield {
            "name": f"{task}: share of right answers",
            "rows": [f"{length:,}" for length in lengths],
            "columns": [f"{depth:.0%}" for depth in depths],
            "high": 1,
            "pairs": {
                pair: [
                    [_mean(cells.get((length, depth), ())) for depth in depths]
                    for length in lengths
                ]
                for pair, cells in pairs.items()
            },
        }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _finished(run: Run, probe: str) -> Iterator[CellRecord]:
    return (each for each in run.records if each.probe == probe and each.has_numbers)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of a pair: the share of it that is right, and what differs."""

    pair: Pair
    name: str
    right: float
    said: str
    error: str
    rows: list[list[str | None]]


def _answers(run: Run) -> dict[str, Any]:
    """
    Answers beside what was expected: by pair and question, rows of two texts.

    One that is right has no rows. Answers that do not fit into `ANSWER_CHARACTERS`
    are counted.
    """
    found = [*_recalled(run), *_told(run)]
    left, left_out = ANSWER_CHARACTERS, 0
    pairs: dict[str, dict[str, Any]] = {}
    for answer in sorted(found, key=lambda each: each.right):
        rows = answer.rows
        left -= sum(len(text or "") for text in itertools.chain(*rows))
        if left < 0:
            left_out, rows = left_out + 1, []
        pairs.setdefault(visible(str(answer.pair)), {})[visible(answer.name)] = {
            "said": visible(answer.said),
            "isRight": answer.right == 1,
            "error": visible(answer.error),
            "rows": rows,
        }
    order = list(dict.fromkeys(visible(answer.name) for answer in found))
    return {"order": order, "pairs": pairs, "leftOut": left_out}


def _recalled(run: Run) -> Iterator[_Answer]:
    """Functions, in the order in which they were asked for."""
    for record in _finished(run, "recall"):
        for asked in scored_rounds(record, run.setup):
            matched, rows = asked.counts.matched, []
            if asked.error or matched < ASKED_LINES:
                scored = score(asked.needle, asked.round.reply)
                rows = [
                    [
                        _shown(each.expected.expected if each.expected else None),
                        _shown(each.produced.produced if each.produced else None),
                    ]
                    for each in line_pairs(asked.needle, scored)
                ]
            yield _Answer(
                record.pair,
                asked.needle.name,
                matched / ASKED_LINES,
                f"{matched} of {ASKED_LINES}",
                asked.error,
                rows,
            )


def _told(run: Run) -> Iterator[_Answer]:
    """Questions of tasks, likewise."""
    for record in _finished(run, RETRIEVAL):
        for outcome in outcomes(record):
            share, asked = outcome.score.share, outcome.answer
            lines = itertools.zip_longest(
                asked.payload.split("\n"), asked.reply.strip().split("\n")
            )
            rows = [[_shown(each) for each in line] for line in lines]
            yield _Answer(
                record.pair,
                outcome.question,
                share,
                outcome.score.mode.value,
                "",
                [] if share == 1 else rows,
            )


def _shown(line: str | None) -> str | None:
    return None if line is None else visible(line.replace("\t", "»   "))


def _memory(run: Run, table: PairTable) -> dict[str, Any]:
    """Predicted KV cache of each pair by context; empty without the weights' header."""
    weights = weights_of_run(run)
    if weights is None:
        return {"contexts": [], "pairs": {}}
    contexts = usual_contexts(weights.training_context)
    weights = predictable(weights, run.setup.server_args)
    sizes: Mapping[str, list[float | None]] = {
        visible(str(pair)): [_mib(kv_bytes(weights, pair, each)) for each in contexts]
        for pair in table.pairs
    }
    return {"contexts": list(contexts), "pairs": sizes}


def _mib(count: int | None) -> float | None:
    return None if count is None else round(mib(count), 3)
