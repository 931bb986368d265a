"""
Panels: for each pair, a map of the answers to a task by length and depth; and what
each pair lost and gained there against the reference.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from rich.text import Text

from codeneedle.document import Block, Document, Facts, Grid, Heading, Lines
from codeneedle.errors import BadInput
from codeneedle.grid import Pair
from codeneedle.probes import PROBES, answers_by_length, frames
from codeneedle.probes.answers import Answer
from codeneedle.probes.frames import Cell
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Probe
from codeneedle.records.record import Run
from codeneedle.report import captions, data
from codeneedle.report.captions import REFERENCE_MARK, named_pairs, status_word
from codeneedle.report.colours import Scale, cell_style, value_scale
from codeneedle.text import NO_VALUE_WORD, number, sweep_command

KINDS = ("both right", "lost", "gained", "both wrong")
"""What may become of a question that two pairs were asked, the reference first."""

_LOGP = "-logp"
_KIB = 1024

Place = tuple[int, float]
"""Length of the text in tokens, and depth from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Spot:
    """
    The questions of one pair at one length and depth.

    Attributes:
        value: Mean of the metric; NaN where it has none.
        counts: Of questions, in the order of `KINDS`, against the reference.
        questions: Number of questions behind the value.
    """

    value: float
    counts: tuple[int, int, int, int]
    questions: int = 0

    @property
    def n(self) -> int:
        """Questions that both pairs were asked."""
        return sum(self.counts)


NOTHING = Spot(math.nan, (0, 0, 0, 0))
"""Where nothing was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """
    The map of one pair.

    Attributes:
        pair: The cache types.
        status: How the cell ended; empty if it was not run.
        reason: Why it did not finish; empty if it did.
        spots: By place; none where nothing was asked.
        whole: All of them together.
        not_asked: Why it was not asked at a length, by length.
    """

    pair: Pair
    status: str
    reason: str
    spots: Mapping[Place, Spot]
    whole: Spot
    not_asked: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """
    The maps of all pairs of a run for one task.

    Attributes:
        task: Its name.
        metric: What the values are.
        lengths: Of texts in tokens, ascending; also those that were left out.
        depths: From 0 to 1, ascending.
        panels: K slowest, most precise first.
        reference: The pair that others are compared with; None if there is none.
        notes: What was left out and how hard the task was made.
        left_out: Of these, what was left out.
    """

    task: str
    metric: Metric
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    panels: tuple[Panel, ...]
    reference: Pair | None
    notes: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def scale(self) -> Scale:
        """The colour scale of all values."""
        spots = (spot for panel in self.panels for spot in panel.spots.values())
        return value_scale(self.metric, [spot.value for spot in spots])


def panels_of(run: Run, metric: Metric) -> list[Panels]:
    """
    The panels of each task of *run* that *metric* is about.

    Args:
        run: Records of one probe.
        metric: A share of right answers or a log-probability: of all tasks of the probe
            (``retrieval``), or of one (``nth-logp``).

    Raises:
        BadInput: If it is another one.
        NothingToShow: If nothing was answered.
    """
    name = metric.name.removesuffix(_LOGP)
    answers = answers_by_length(run)
    every = itertools.chain.from_iterable(answers.values())
    tasks = list(dict.fromkeys(each.task for each in every))
    asking = [p.name for p in PROBES.values() if _skips(p)]
    chosen = [task for task in tasks if name in {task, *asking}]
    if not tasks and any(name in run.setup.probes for name in asking):
        raise captions.nothing_to_show(run, "answers to tasks", "retrieval")
    if not chosen:
        known = [*asking, *(f"{task}{end}" for task in tasks for end in ("", _LOGP))]
        raise BadInput(
            source=run.name,
            reason=f"has no answers by length and depth for {metric.name}",
            hint=f"Choose a --metric of: {', '.join(known)}."
            if tasks
            else f"Ask: {sweep_command(run.folder, '--probe', *asking)}",
        )
    cells = frames.cells_frame(run, metric)
    return [_panels(run, metric, task, answers, cells) for task in chosen]


def _panels(
    run: Run,
    metric: Metric,
    task: str,
    answers: Mapping[Pair, Sequence[Answer]],
    cells: Sequence[Cell],
) -> Panels:
    of_task = {
        pair: [each for each in of_pair if each.task == task]
        for pair, of_pair in answers.items()
    }
    flat = [each for of_pair in of_task.values() for each in of_pair]
    reference = frames.reference(cells)
    base = of_task.get(reference, []) if reference else []
    is_logp = metric.name.endswith(_LOGP)
    not_asked = _not_asked(run, task)
    every = list(not_asked.values())
    of_none = {
        length: reason
        for length, reason in (every[0].items() if every else ())
        if all(length in reasons for reasons in every)
    }
    without: dict[int, list[Pair]] = {}
    for pair, reasons in not_asked.items():
        for length in reasons.keys() - of_none.keys():
            without.setdefault(length, []).append(pair)
    return Panels(
        task=task,
        metric=metric,
        lengths=tuple(sorted({*of_none, *(each.length for each in flat)})),
        depths=tuple(sorted({each.depth for each in flat})),
        panels=tuple(
            replace(
                _panel(cell, of_task.get(cell.pair, []), base, is_logp=is_logp),
                not_asked={**of_none, **not_asked.get(cell.pair, {})},
            )
            for cell in cells
        ),
        reference=reference,
        notes=tuple(
            note
            for probe in dict.fromkeys(record.probe for record in run.records)
            for note in PROBES[probe].remarks(run)
            if note.startswith(task)
        ),
        left_out=(
            *(
                f"{length:,} tokens: asked of no pair, {reason}"
                for length, reason in sorted(of_none.items())
            ),
            *(
                f"{length:,} tokens: not asked of {named_pairs(pairs)}, with nothing "
                "right at a shorter length"
                for length, pairs in sorted(without.items())
            ),
        ),
    )


def _skips(probe: Probe) -> bool:
    """Whether there are questions that *probe* does not ask on purpose."""
    return type(probe).skipped is not Probe.skipped


def _not_asked(run: Run, task: str) -> dict[Pair, dict[int, str]]:
    """Why *task* was not asked of each pair with numbers, by length."""
    return {
        record.pair: {
            each.length: each.reason
            for each in PROBES[record.probe].skipped(run, record)
            if each.task == task
        }
        for record in run.records
        if record.has_numbers and _skips(PROBES[record.probe])
    }


def _panel(
    cell: Cell, answers: Sequence[Answer], base: Sequence[Answer], *, is_logp: bool
) -> Panel:
    theirs = {each.name: each.right == 1 for each in base}
    by_place: dict[Place, list[Answer]] = {}
    for each in answers:
        by_place.setdefault((each.length, each.depth), []).append(each)
    return Panel(
        pair=cell.pair,
        status=cell.status,
        reason=cell.reason,
        spots={
            place: _spot(there, theirs, is_logp=is_logp)
            for place, there in by_place.items()
        },
        whole=_spot(answers, theirs, is_logp=is_logp),
    )


def _spot(
    answers: Iterable[Answer], theirs: Mapping[str, bool], *, is_logp: bool
) -> Spot:
    values, kinds = [], []
    for each in answers:
        value = each.logp if is_logp else each.right
        if value is not None:
            values.append(value)
        if each.name in theirs:
            kinds.append(kind_of(theirs[each.name], each.right == 1))
    mean = fmean(values) if values else math.nan
    right, lost, gained, wrong = map(kinds.count, KINDS)
    return Spot(mean, (right, lost, gained, wrong), len(values))


def kind_of(theirs: bool, ours: bool) -> str:
    """Which of `KINDS` a question is: right with the reference, right with the pair."""
    if theirs:
        return KINDS[0] if ours else KINDS[1]
    return KINDS[2] if ours else KINDS[3]


def length_word(length: int) -> str:
    """``2K`` for 2,048 tokens; other numbers as they are."""
    return f"{length // _KIB}K" if length % _KIB == 0 else f"{length:,}"


def headline(panels: Panels, *, difference: bool) -> str:
    """What is shown: values, or a comparison with the reference."""
    what = "right answers"
    if difference:
        what = f"answers lost and gained against {panels.reference}"
    elif panels.metric.name.endswith(_LOGP):
        what = "log-probability of the right answer, nats per token"
    return f"{panels.task}: {what}"


def refuse_without_reference(panels: Panels, run: Run) -> None:
    """
    Stop where there is nothing to compare with.

    Raises:
        BadInput: If no pair is the reference.
    """
    if panels.reference is None:
        raise BadInput(
            source="--difference",
            reason=f"no pair of {run.name} has answers to compare the others with",
            hint=f"See why: codeneedle grid {run.name} --metric {panels.metric.name}",
        )


# --- for a terminal


LETTERS = {
    "lost": ("L", "#000000 on #e9a15b"),
    "gained": ("G", "#ffffff on #6a51a3"),
}
"""Letter and style of what changed; the same colours as in pictures."""

UNCHANGED, WRONG = "=", "w"


def panels_document(
    runs: Sequence[Run], metric: Metric, *, difference: bool
) -> Document:
    """
    All panels of *runs*.

    Args:
        runs: Records of the probe of *metric* alone.
        metric: As of `panels_of`.
        difference: Whether to show what was lost and gained, instead of values.

    Raises:
        BadInput: As `panels_of`, or if there is nothing to compare with.
    """
    for run in runs:
        for panels in panels_of(run, metric):
            if difference:
                refuse_without_reference(panels, run)
            yield from _task(run, panels, difference=difference)
        yield Facts(captions.facts(run), is_quiet=True)


def _task(run: Run, panels: Panels, *, difference: bool) -> Iterator[Block]:
    yield Heading(f"{run.name}  {headline(panels, difference=difference)}")
    yield Lines(["length across in tokens, depth down"], style="dim")
    by_pair = {each.pair: each for each in panels.panels}
    k_types = list(dict.fromkeys(pair.k for pair in by_pair))
    v_types = list(dict.fromkeys(pair.v for pair in by_pair))
    texts = {
        pair: _panel_text(panels, panel, difference=difference)
        for pair, panel in by_pair.items()
    }
    rows = [[texts.get(Pair(k, v), "") for v in v_types] for k in k_types]
    yield Grid(k_types, v_types, rows)
    yield Lines(panels.notes, style="dim")
    yield Lines(_legend() if difference else [])
    yield Lines(
        [
            captions.failure_phrase([each.pair], each.status, each.reason)
            for each in panels.panels
            if each.reason
        ]
    )


def _legend() -> list[Text]:
    text = Text()
    for kind, (letter, style) in LETTERS.items():
        text.append(f"{letter}", style=style).append(f" {kind}   ")
    text.append(f"{UNCHANGED} nothing lost or gained   {WRONG} all wrong with both")
    return [text, Text("right, wrong: questions with which both pairs were so")]


def _panel_text(panels: Panels, panel: Panel, *, difference: bool) -> Text:
    """The map of a pair, a line for each depth, all lines as long."""
    mark = REFERENCE_MARK if panel.pair == panels.reference else ""
    if not panel.spots:
        return Text(status_word(panel.status), style="yellow")
    right, lost, gained, wrong = panel.whole.counts
    if difference:
        above = [Text(f"-{lost} +{gained}{mark}")]
        above.append(Text(f"right {right}, wrong {wrong}", style="dim"))
    else:
        above = [Text(f"{_number(panels, panel.whole)}{mark}")]
    rows = [[Text(), *(Text(length_word(each)) for each in panels.lengths)]]
    for depth in panels.depths:
        spots = [panel.spots.get((each, depth), NOTHING) for each in panels.lengths]
        shown = [_letters(s) if difference else _value(panels, s) for s in spots]
        rows.append([Text(f"{depth:g}", style="dim"), *shown])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        for text, width in zip(row, widths, strict=True):
            text.pad_left(width - len(text))
    lines = [*above, *(Text(" ").join(row) for row in rows), Text()]
    widest = max(map(len, lines))
    for line in lines:
        line.pad_right(widest - len(line))
    return Text("\n").join(lines)


def _number(panels: Panels, spot: Spot) -> str:
    return number(spot.value, digits=panels.metric.digits)


def _value(panels: Panels, spot: Spot) -> Text:
    if math.isnan(spot.value):
        return Text(NO_VALUE_WORD, style="dim")
    style = cell_style(panels.metric, spot.value, panels.scale)
    return Text(_number(panels, spot), style=style)


def _letters(spot: Spot) -> Text:
    """``3L1G``, or that nothing changed."""
    if not spot.n:
        return Text(NO_VALUE_WORD, style="dim")
    text = Text()
    for kind, count in zip(KINDS, spot.counts, strict=True):
        if count and kind in LETTERS:
            letter, style = LETTERS[kind]
            text.append(f"{count if spot.n > 1 else ''}{letter}", style=style)
    return text or Text(UNCHANGED if spot.counts[0] else WRONG, style="dim")


# --- as data


def panel_rows(runs: Sequence[Run], metric: Metric) -> Iterator[data.Row]:
    """
    A row per run, pair, task, length and depth.

    ``value`` is unrounded and empty where there is none, ``n`` counts its questions;
    ``both_right``, ``lost``, ``gained`` and ``both_wrong`` count them against the
    reference. ``reason`` says why a pair has no record, or was not asked at a length.
    """
    for run in runs:
        for panels in panels_of(run, metric):
            for row in _rows(panels):
                yield {**data.run_row(run), **row}


def panel_objects(runs: Sequence[Run], metric: Metric) -> list[dict[str, Any]]:
    """A list of runs and tasks: the reference, and the rows as of `panel_rows`."""
    return [
        {
            "run": run.name,
            "task": panels.task,
            "metric": metric.name,
            "reference": str(panels.reference) if panels.reference else None,
            "notes": panels.notes,
            "rows": list(_rows(panels)),
        }
        for run in runs
        for panels in panels_of(run, metric)
    ]


def _rows(panels: Panels) -> Iterator[dict[str, Any]]:
    """A row per pair, length and depth."""
    for panel in panels.panels:
        for length, depth in itertools.product(panels.lengths, panels.depths):
            spot = panel.spots.get((length, depth), NOTHING)
            yield {
                **data.sides(panel.pair),
                "status": panel.status or data.NOT_RUN_STATUS,
                "reason": panel.reason or panel.not_asked.get(length, ""),
                "task": panels.task,
                "length": length,
                "depth": depth,
                "metric": panels.metric.name,
                "value": spot.value,
                "n": spot.questions,
                **{
                    kind.replace(" ", "_"): count
                    for kind, count in zip(KINDS, spot.counts, strict=True)
                },
            }
