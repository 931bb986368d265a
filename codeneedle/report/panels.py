"""
Panels: for each pair, a map of the answers to a task by length and depth; and what
each pair lost and gained there against the reference.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text

from codeneedle.cache_types import Pair, pairs_phrase
from codeneedle.document import (
    Block,
    Document,
    Facts,
    Grid,
    Heading,
    Lines,
    ShownText,
)
from codeneedle.errors import BadInput
from codeneedle.probes import PROBES, frames, gap_lines
from codeneedle.probes.frames import CellValue
from codeneedle.probes.metrics import Metric, parse_facet
from codeneedle.records.record import Run, Status
from codeneedle.report import captions
from codeneedle.report.colours import Scale, cell_style, value_scale
from codeneedle.report.data import RunTable, run_tables
from codeneedle.report.display import display_of
from codeneedle.report.shown import (
    NO_ANSWER,
    REFERENCE,
    REFERENCE_MARK,
    Shown,
    legend,
    shown_value,
)
from codeneedle.report.tidy import (
    KINDS,
    NOT_RUN_STATUS,
    QUESTIONS,
    TableRow,
    asks_by_length,
    outcome_metric_name,
    task_facet_rows,
)
from codeneedle.text import number_text, sweep_command

_LOGP = "-logp"
_KIB = 1024

LengthDepth = tuple[int, float]
"""Length of the text in tokens, and depth from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The questions of one pair at one length and depth."""

    value: float  # mean of the metric; NaN where it has none
    counts: tuple[int, int, int, int]
    """Of questions, in the order of `KINDS`, against the reference."""

    questions: int = 0  # number of questions behind the value

    @property
    def shared_question_count(self) -> int:
        """Questions that both pairs were asked."""
        return sum(self.counts)


NOTHING = Spot(math.nan, (0, 0, 0, 0))
"""Where nothing was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The map of one pair."""

    pair: Pair  # the cache types
    status: str  # how the cell ended; empty if it was not run
    reason: str  # why it did not finish; empty if it did
    spots: Mapping[LengthDepth, Spot]  # by place; none where nothing was asked
    whole: Spot  # all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """The maps of all pairs of a run for one task."""

    task: str  # its name
    metric: Metric  # what the values are
    lengths: tuple[int, ...]
    """Of texts in tokens, ascending; also those that were left out."""

    depths: tuple[float, ...]  # from 0 to 1, ascending
    panels: tuple[Panel, ...]  # K slowest, most precise first
    reference: Pair | None
    """The pair that others are compared with; None if there is none."""

    notes: tuple[str, ...]  # what was left out and how hard the task was made
    left_out: tuple[str, ...]  # of these, what was left out

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
    reference = frames.reference_pair(frames.cells_frame(run, metric))
    by_task: dict[str, list[TableRow]] = {}
    for row in panel_rows([run], metric):
        by_task.setdefault(parse_facet(row.facet)["task"], []).append(row)
    return [
        _panels_of_task(run, metric, task, reference, rows)
        for task, rows in by_task.items()
    ]


def panel_rows(runs: Sequence[Run], metric: Metric) -> list[TableRow]:
    """
    The rows of *runs* for the tasks that *metric* is about, by length and depth.

    They are those of `tidy.task_facet_rows` without shares if *metric* is a
    log-probability, else without log-probabilities.

    Raises:
        BadInput, NothingToShow: See `panels_of`.
    """
    other = "" if metric.name.endswith(_LOGP) else _LOGP
    rows = task_facet_rows(runs)
    chosen: dict[str, Collection[str]] = {}
    for name, run in zip(captions.run_names_or_folders(runs), runs, strict=True):
        of_run = (parse_facet(row.facet)["task"] for row in rows if row.run == name)
        chosen[name] = _checked_tasks_of_metric(
            run, metric, list(dict.fromkeys(of_run))
        )
    return [
        row
        for row in rows
        if row.metric != f"{row.probe}{other}"
        if parse_facet(row.facet)["task"] in chosen[row.run]
    ]


def _checked_tasks_of_metric(
    run: Run, metric: Metric, tasks: Sequence[str]
) -> list[str]:
    """
    Those of *tasks* that *metric* is about: all of them for that of a probe.

    Raises:
        BadInput, NothingToShow: See `panels_of`.
    """
    name = metric.name.removesuffix(_LOGP)
    asking = [p.name for p in PROBES.values() if asks_by_length(p)]
    chosen = [task for task in tasks if name in {task, *asking}]
    if not tasks and any(name in run.setup.probes for name in asking):
        raise captions.nothing_to_show_error(run, "answers to tasks", "retrieval")
    if not chosen:
        known = [*asking, *(f"{task}{end}" for task in tasks for end in ("", _LOGP))]
        raise BadInput(
            source=run.name,
            reason=f"has no answers by length and depth for {metric.name}",
            hint=f"Choose a --metric of: {', '.join(known)}."
            if tasks
            else f"Ask: {sweep_command(run.folder, '--probe', *asking)}",
        )
    return chosen


def _panels_of_task(
    run: Run,
    metric: Metric,
    task: str,
    reference: Pair | None,
    rows: Sequence[TableRow],
) -> Panels:
    """The maps of *task*, a panel per pair, in the order of *rows*."""
    by_pair: dict[Pair, list[TableRow]] = {}
    for row in rows:
        by_pair.setdefault(Pair(row.k, row.v), []).append(row)
    return Panels(
        task=task,
        metric=metric,
        lengths=tuple(sorted({_length_and_depth(row)[0] for row in rows})),
        depths=tuple(sorted({_length_and_depth(row)[1] for row in rows})),
        panels=tuple(
            _panel_of_pair(pair, of_pair) for pair, of_pair in by_pair.items()
        ),
        reference=reference,
        notes=tuple(
            note for note in (*_remarks(run), *gap_lines(run)) if note.startswith(task)
        ),
        left_out=tuple(_left_out_length_sentences(by_pair)),
    )


def _remarks(run: Run) -> Iterator[str]:
    for probe in dict.fromkeys(record.probe for record in run.records):
        yield from PROBES[probe].remarks(run)


def _length_and_depth(row: TableRow) -> LengthDepth:
    facets = parse_facet(row.facet)
    return int(facets["length"]), float(facets["depth"])


def _left_out_length_sentences(
    by_pair: Mapping[Pair, Sequence[TableRow]],
) -> Iterator[str]:
    """A sentence for each length left out on purpose: for all pairs, then for some."""
    skipped = {
        pair: {
            _length_and_depth(row)[0]: row.reason for row in rows if _is_skipped(row)
        }
        for pair, rows in by_pair.items()
        if rows[0].status == Status.FINISHED
    }
    lengths = sorted({length for reasons in skipped.values() for length in reasons})
    pairs = {
        at: [p for p, reasons in skipped.items() if at in reasons] for at in lengths
    }
    of_all = [length for length in lengths if len(pairs[length]) == len(skipped)]
    for length in of_all:
        reason = skipped[pairs[length][0]][length]
        yield f"{length:,} tokens: asked of no pair, {reason}"
    for length in lengths:
        if length not in of_all:
            yield (
                f"{length:,} tokens: not asked of {pairs_phrase(pairs[length])}, with "
                "nothing right at a shorter length"
            )


def _is_skipped(row: TableRow) -> bool:
    """Whether *row* was not asked on purpose."""
    return row.status == Status.FINISHED and bool(row.reason)


def _panel_of_pair(pair: Pair, rows: Sequence[TableRow]) -> Panel:
    """The map of *pair*; without status if it was not run."""
    by_place: dict[LengthDepth, list[TableRow]] = {}
    for row in rows:
        if row.n:
            by_place.setdefault(_length_and_depth(row), []).append(row)
    spots = {place: _spot_of_rows(there) for place, there in by_place.items()}
    first = rows[0]
    return Panel(
        pair=pair,
        status="" if first.status == NOT_RUN_STATUS else first.status,
        reason="" if first.status == Status.FINISHED else first.reason,
        spots=spots,
        whole=_join_spots(spots.values()),
    )


def _spot_of_rows(rows: Sequence[TableRow]) -> Spot:
    """
    The *rows* of a pair at a place: a mean, and counts.

    NaN where nothing was scored.
    """
    counts = {row.metric: int(row.value or 0) for row in rows if row.unit == QUESTIONS}
    right, lost, gained, wrong = (
        counts.get(outcome_metric_name(kind), 0) for kind in KINDS
    )
    mean = next((row for row in rows if row.unit != QUESTIONS), None)
    if mean is None or mean.value is None:
        return Spot(math.nan, (right, lost, gained, wrong))
    return Spot(mean.value, (right, lost, gained, wrong), mean.n)


def _join_spots(spots: Collection[Spot]) -> Spot:
    """One spot for all of *spots*: their mean by question, and the sums of counts."""
    questions = sum(spot.questions for spot in spots)
    sums = math.fsum(spot.value * spot.questions for spot in spots if spot.questions)
    right, lost, gained, wrong = (
        sum(spot.counts[at] for spot in spots) for at in range(len(KINDS))
    )
    mean = sums / questions if questions else math.nan
    return Spot(mean, (right, lost, gained, wrong), questions)


def length_label(length: int) -> str:
    """``2K`` for 2,048 tokens; other numbers as they are."""
    return f"{length // _KIB}K" if length % _KIB == 0 else f"{length:,}"


def panels_heading(panels: Panels, *, difference: bool) -> str:
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
            hint="See why: "
            + captions.run_command_text("grid", run, "--metric", panels.metric.name),
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
        metric: See `panels_of`.
        difference: Whether to show what was lost and gained, instead of values.

    Raises:
        BadInput: As `panels_of`, or if there is nothing to compare with.
    """
    for run in runs:
        for panels in panels_of(run, metric):
            if difference:
                refuse_without_reference(panels, run)
            yield from _task_blocks(run, panels, difference=difference)
        yield Facts(captions.run_facts(run), is_quiet=True)


def _task_blocks(run: Run, panels: Panels, *, difference: bool) -> Iterator[Block]:
    """The panels of a task as a grid, with notes and legends."""
    yield Heading(f"{run.name}  {panels_heading(panels, difference=difference)}")
    yield Lines(["length across in tokens, depth down"], style="dim")
    by_pair = {panel.pair: panel for panel in panels.panels}
    k_types = list(dict.fromkeys(pair.k for pair in by_pair))
    v_types = list(dict.fromkeys(pair.v for pair in by_pair))
    texts = {
        pair: _panel_text(panels, panel, difference=difference)
        for pair, panel in by_pair.items()
    }
    rows = [[texts.get(Pair(k, v), "") for v in v_types] for k in k_types]
    yield Grid(k_types, v_types, rows)
    yield Lines(panels.notes, style="dim")
    yield Facts(_change_legend() if difference else [])
    yield Facts(legend(shown_panels(panels, difference=difference)))


def shown_panels(panels: Panels, *, difference: bool) -> list[Shown]:
    """Each panel with marks: those of values, or with *difference* of what changed."""
    return [
        shown_panel(panels, panel, difference=difference) for panel in panels.panels
    ]


def shown_panel(panels: Panels, panel: Panel, *, difference: bool = False) -> Shown:
    """The mean of *panel* with its marks; without answers the word for its status."""
    if not panel.spots:
        missing = CellValue(pair=panel.pair, status=panel.status, reason=panel.reason)
        return shown_value(missing, display_of(panels.metric))
    places = itertools.product(panels.lengths, panels.depths)
    spots = [panel.spots.get(place, NOTHING) for place in places]
    gaps = [
        not spot.shared_question_count if difference else math.isnan(spot.value)
        for spot in spots
    ]
    said = (
        (REFERENCE, panel.pair == panels.reference),
        (NO_ANSWER, any(gaps)),
    )
    return Shown(
        pair=panel.pair,
        text=_plain_value_text(panels, panel.whole),
        marks=tuple(mark for mark, occurs in said if occurs),
    )


def _change_legend() -> list[tuple[str, ShownText]]:
    """What letters and words mean, in the colours that they have in maps."""
    return [
        *((letter, Text(kind, style)) for kind, (letter, style) in LETTERS.items()),
        (UNCHANGED, "nothing lost or gained"),
        (WRONG, "all wrong with both"),
        ("right", "questions that both pairs answered right"),
        ("wrong", "questions that both pairs answered wrong"),
    ]


def _panel_text(panels: Panels, panel: Panel, *, difference: bool) -> Text:
    """
    The map of a pair below its mean or counts: a line for each depth, of equal length.

    The word for its status alone if it has no answers.
    """
    mark = REFERENCE_MARK if panel.pair == panels.reference else ""
    if not panel.spots:
        return Text(shown_panel(panels, panel).text, style="yellow")
    right, lost, gained, wrong = panel.whole.counts
    if difference:
        above = [Text(f"-{lost} +{gained}{mark}")]
        above.append(Text(f"right {right}, wrong {wrong}", style="dim"))
    else:
        above = [Text(f"{_plain_value_text(panels, panel.whole)}{mark}")]
    rows = [[Text(), *(Text(length_label(length)) for length in panels.lengths)]]
    for depth in panels.depths:
        spots = [panel.spots.get((length, depth), NOTHING) for length in panels.lengths]
        shown = [
            _change_letters(s) if difference else _coloured_value_text(panels, s)
            for s in spots
        ]
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


def _plain_value_text(panels: Panels, spot: Spot) -> str:
    return number_text(spot.value, digits=display_of(panels.metric).digits)


def _coloured_value_text(panels: Panels, spot: Spot) -> Text:
    """The value of *spot* in its colour; a dash in a gap."""
    if math.isnan(spot.value):
        return Text(NO_ANSWER.sign, style="dim")
    style = cell_style(spot.value, panels.scale)
    return Text(_plain_value_text(panels, spot), style=style)


def _change_letters(spot: Spot) -> Text:
    """
    ``3L1G``: lost and gained; without changes ``=``, or ``w`` if none is right.

    A dash where nothing was asked.
    """
    if not spot.shared_question_count:
        return Text(NO_ANSWER.sign, style="dim")
    text = Text()
    for kind, count in zip(KINDS, spot.counts, strict=True):
        if count and kind in LETTERS:
            letter, style = LETTERS[kind]
            text.append(
                f"{count if spot.shared_question_count > 1 else ''}{letter}",
                style=style,
            )
    return text or Text(UNCHANGED if spot.counts[0] else WRONG, style="dim")


# --- as data


def panel_objects(runs: Sequence[Run], metric: Metric) -> list[RunTable]:
    """The rows of `panel_rows` with the setup of each run, and notes of its panels."""
    found = run_tables(runs, panel_rows(runs, metric))
    return [
        msgspec.structs.replace(
            of_run,
            notes=tuple(
                note for panel in panels_of(run, metric) for note in panel.notes
            ),
        )
        for of_run, run in zip(found, runs, strict=True)
    ]
