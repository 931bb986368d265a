"""
A number as every report shows it, with its marks; and the legend of marks that occur.

A mark is made here, with what it means: reports place marks, and know none themselves.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TypeVar

from rich.text import Text

from codeneedle.cache_types import Pair, named_pairs
from codeneedle.document import Grid
from codeneedle.probes import frames
from codeneedle.probes.frames import Cells, CellValue
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Attention, Setup, Status
from codeneedle.report.colours import (
    LossScale,
    Rgb,
    Scale,
    hex_of,
    text_colour,
    value_scale,
)
from codeneedle.report.display import Display, display_of
from codeneedle.text import NO_VALUE_WORD, number, visible

NO_DECIMALS_FROM = 1_000
"""Values from which decimals are dropped."""

_T = TypeVar("_T")

PAIRS, WHY = "{pairs}", "{why}"
"""In what a mark means: the pairs that have it, and what tells of the first of them."""


@dataclass(frozen=True, slots=True)
class NumberMark:
    """What stands beside a number, or in its place: a sign, and what it means."""

    sign: str  # as it is shown: ``cpu``
    meaning: str
    """Of all pairs that have it; `PAIRS` and `WHY` stand for what differs."""

    why: str = field(default="", compare=False)  # what tells of this pair


class Style(Flag):
    """What a pair is; reports show it by colours, frames, letters or brackets."""

    PLAIN = 0
    REFERENCE = auto()  # the pair that others are compared with
    SET = auto()  # the pair to set
    BEYOND = auto()  # shown to lose more than the limit
    OPEN = auto()  # neither within the limit nor beyond it
    QUIET = auto()  # not run, or compared with none


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A number of a pair as reports show it, or why there is none."""

    pair: Pair
    text: str  # the number and what stands behind it, or a word in its place
    below: str = ""  # words below it
    note: str = ""  # what more there is to say of it: its interval
    marks: tuple[NumberMark, ...] = ()  # every mark of it
    place: float = math.nan  # of its colour, 0 to 1; NaN of a gap
    ground: Rgb | None = None  # its colour; None of a gap
    style: Style = Style.PLAIN

    @property
    def spelled(self) -> str:
        """The text where there is room for words: ``not run``, not a dot."""
        return "not run" if self.text == NOT_RUN_WORD else self.text

    def styled(self) -> Text:
        """The text for a grid; what is set in brackets, the reference with its mark."""
        # The blank aligns digits with those that have a mark.
        mark = REFERENCE_MARK if Style.REFERENCE in self.style else " "
        first = f"[{self.text}]" if Style.SET in self.style else f"{self.text}{mark}"
        below = f"\n{self.below} " if self.below else ""
        return Text(first + below, self._rich_style())

    def _rich_style(self) -> str:
        if self.ground is None:
            return "dim" if Style.QUIET in self.style else "italic yellow"
        bold = "bold " if self.style & (Style.SET | Style.BEYOND) else ""
        return f"{bold}{text_colour(*self.ground)} on {hex_of(self.ground)}"


def legend(shown: Iterable[Shown]) -> list[tuple[str, str]]:
    """Each mark that occurs, once, with what it means and the pairs that have it."""
    found: dict[str, tuple[NumberMark, dict[Pair, None]]] = {}
    for value in shown:
        for mark in value.marks:
            _, pairs = found.setdefault(mark.meaning, (mark, {}))
            pairs[value.pair] = None
    return [
        (mark.sign.rstrip(","), _meaning(mark, list(pairs)))
        for mark, pairs in found.values()
    ]


def _meaning(mark: NumberMark, pairs: Sequence[Pair]) -> str:
    why = f" ({visible(mark.why)})" if mark.why else ""
    return mark.meaning.replace(PAIRS, named_pairs(pairs)).replace(WHY, why)


def pivot(shown: Sequence[Shown]) -> Grid:
    """*shown*, in the order of cells, as a grid: K down and V across."""
    k_types, v_types = types_of(shown)
    texts = [value.styled() for value in shown]
    return Grid(k_types, v_types, rows_of(texts, len(v_types)))


def types_of(shown: Iterable[Shown]) -> tuple[list[str], list[str]]:
    """The K types and the V types of cells, in order."""
    pairs = [value.pair for value in shown]
    return (
        list(dict.fromkeys(pair.k for pair in pairs)),
        list(dict.fromkeys(pair.v for pair in pairs)),
    )


def rows_of(flat: Sequence[_T], across: int) -> list[Sequence[_T]]:
    """*flat* in rows of so many."""
    return [flat[at : at + across] for at in range(0, len(flat), across or 1)]


# --- marks


NOT_RUN_WORD = "."
"""Shown for a pair that was not run."""

NOT_RUN = NumberMark(NOT_RUN_WORD, "not run")

STATUS_WORDS: dict[Status, str] = {
    Status.FINISHED: NO_VALUE_WORD,
    Status.UNSUPPORTED: "unsupp.",
    Status.OUT_OF_MEMORY: "oom",
    Status.TIMED_OUT: "t/o",
    Status.CRASHED: "crash",
    Status.MISMATCHED: "mismatch",
    Status.UNVERIFIED: "unverif.",
    Status.INTERRUPTED: "intr.",
}
"""Short enough for a column."""

REFERENCE_MARK = "*"
"""Behind the value of the pair that others are compared with."""

REFERENCE = NumberMark(REFERENCE_MARK, f"the reference, {PAIRS}")

SET = NumberMark("set", f"the pair to set, {PAIRS}")

ERROR = NumberMark("±", "standard error")

DECISIONS = {
    "within": "its loss is at most the limit, by all that was measured",
    "beyond": "its loss is above the limit, by a metric at least",
    "open": "neither is shown; codeneedle verdict says what would decide it",
}
"""What the words of a verdict mean."""

STYLES = {"beyond": Style.BEYOND, "open": Style.OPEN}
"""How words of a verdict are shown."""

_ATTENTION_PHRASES = {
    Attention.CPU: "attention on the CPU: this backend has no kernel for",
    Attention.CONVERTED: "cache converted to f16 at each step: no kernel was built for",
    Attention.PLAIN: "no flash attention, which this model does not have, with",
}


def status_mark(status: str, reason: str, *, where: str = "") -> NumberMark:
    """The mark in place of a number that a cell lacks; *where* names a part of it."""
    if not status:
        return NOT_RUN
    if status == Status.FINISHED:
        return NumberMark(NO_VALUE_WORD, f"finished, without a number: {PAIRS}")
    ended = f"{status} ({where})" if where else status
    why = f": {visible(reason)}" if reason else ""
    return NumberMark(STATUS_WORDS[Status(status)], f"{PAIRS} {ended}{why}")


def no_value_mark(metric: Metric, setup: Setup | None) -> NumberMark:
    """The mark of a finished cell without a value of *metric*."""
    reason = metric.why_none(setup) if setup else ""
    why = f": {reason}" if reason else ""
    meaning = f"finished, without a value of {metric.name}{why}"
    return NumberMark(NO_VALUE_WORD, meaning)


def attention_marks(
    attention: Attention | None, evidence: str, *, is_ranked: bool = True
) -> Iterator[NumberMark]:
    """The mark of attention that ran in no kernel; mostly none."""
    if attention and attention.mark:
        apart = "" if is_ranked else "; such speeds are compared with none"
        meaning = f"{_ATTENTION_PHRASES[attention]} {PAIRS}{WHY}{apart}"
        yield NumberMark(attention.mark, meaning, evidence)


def place_marks(cell: CellValue) -> Iterator[NumberMark]:
    """The mark of where a number was measured, if that is not as usual."""
    marks = [*attention_marks(cell.attention, cell.evidence, is_ranked=cell.is_ranked)]
    yield from marks
    if cell.is_elsewhere and not marks:
        meaning = f"{PAIRS}: {frames.OTHER_DEVICE}; compared with none"
        yield NumberMark("other", meaning)


def count_mark(cell: CellValue) -> NumberMark:
    """``of 6``, or ``of 6/8`` where two of eight units have no score."""
    if cell.left_out:
        meaning = "over those of all that have a score of each answer"
        return NumberMark(f"of {cell.units:,}/{cell.units + cell.left_out:,}", meaning)
    return NumberMark(
        f"of {cell.units:,}", "over so many, other pairs over more or fewer"
    )


def decision_mark(word: str) -> NumberMark:
    """``within``, ``beyond`` or ``open``."""
    return NumberMark(word, DECISIONS[word])


def _lacking_marks(cell: CellValue) -> Iterator[NumberMark]:
    if cell.lacking:
        yield NumberMark("left out", f"{PAIRS}: {visible(cell.lacking)}")


# --- cells


def shown(
    cell: CellValue,
    display: Display,
    *,
    below: Iterable[NumberMark] = (),
    inferred: Mapping[Pair, Pair] | None = None,
    where: str = "",
) -> Shown:
    """
    *cell* with its marks.

    Args:
        cell: A number, or why there is none.
        display: How numbers of its metric are shown.
        below: Words below it; where it was measured then stands there, too.
        inferred: Pairs that were not measured, by a finer one that is beyond.
        where: Names the part of the run that it is of.
    """
    if not cell.has_value:
        return _gap(cell, [*below], inferred or {}, where)
    digits = 0 if abs(cell.value) >= NO_DECIMALS_FROM else display.digits
    error = cell.error if display.shows_error else math.nan
    text, places = with_error(cell.value, error, digits=digits), [*place_marks(cell)]
    signs, words = [mark.sign for mark in places], [*below]
    return Shown(
        pair=cell.pair,
        text=text if words else " ".join([text, *signs]),
        below=_joined([*words, *places]) if words else "",
        marks=(
            *words,
            *places,
            *((ERROR,) if math.isfinite(error) else ()),
            *_lacking_marks(cell),
        ),
        style=Style.PLAIN if cell.is_ranked else Style.QUIET,
    )


def _joined(marks: Sequence[NumberMark]) -> str:
    """Words below a number: ``set, open cpu``; the reference's mark stands above."""
    return visible(" ".join(mark.sign for mark in marks if mark != REFERENCE))


def _gap(
    cell: CellValue,
    words: Sequence[NumberMark],
    inferred: Mapping[Pair, Pair],
    where: str,
) -> Shown:
    """A word in place of a number that is missing; nothing where none was asked for."""
    mark = status_mark(cell.status, cell.reason, where=where)
    if not cell.status and cell.pair in inferred:
        as_finer = f"beyond, as {visible(str(inferred[cell.pair]))} is"
        mark = NumberMark(NOT_RUN_WORD, f"not measured, {as_finer}: {PAIRS}")
    is_asked = not cell.is_hole or bool(cell.status)
    return Shown(
        pair=cell.pair,
        text=mark.sign if is_asked else "",
        below=_joined(words),
        marks=(mark, *words, *_lacking_marks(cell)) if is_asked else (),
        style=Style.PLAIN if cell.status else Style.QUIET,
    )


def with_error(
    value: float, error: float | None, *, digits: int, mark: str = ERROR.sign
) -> str:
    """``16.52±0.31``; ``16.52`` where the *error* is unknown."""
    text = number(value, digits=digits)
    if error is None or not math.isfinite(error):
        return text
    return f"{text}{mark}{number(error, digits=digits)}"


def painted(value: Shown, level: float, scale: Scale | LossScale) -> Shown:
    """*value* in the colour of *level*; a gap where it is compared with none."""
    if math.isnan(level) or Style.QUIET in value.style:
        return value
    return replace(value, place=scale.place(level), ground=scale.colour(level))


def shown_cells(
    metric: Metric,
    cells: Cells,
    *,
    display: Display | None = None,
    setup: Setup | None = None,
    inferred: Mapping[Pair, Pair] | None = None,
    beyond: Collection[Pair] = (),
    where: str = "",
) -> list[Shown]:
    """
    The *cells* of *metric* beside each other.

    Args:
        metric: What is shown.
        cells: All cells of a grid.
        display: How; as usual if None.
        setup: Says why finished cells have no value.
        inferred: Pairs that are beyond as finer ones are, and were not measured.
        beyond: Pairs that are beyond the limit by this metric.
        where: Names the part of the run that did not finish.
    """
    reference = frames.reference(cells)
    counts = _units_differ(metric, cells)
    ranked = [cell.value for cell in cells if cell.is_ranked]
    scale = value_scale(metric, ranked, rounds=frames.most_observations(cells))
    found = []
    for cell in cells:
        how = display or display_of(metric)
        value = shown(cell, how, inferred=inferred, where=where)
        if cell.status == Status.FINISHED and not cell.has_value:
            marks = (no_value_mark(metric, setup), *_lacking_marks(cell))
            value = replace(value, marks=marks)
        if counts and cell.has_value:
            mark = count_mark(cell)
            value = replace(value, below=mark.sign, marks=(*value.marks, mark))
        if cell.has_value:
            value = replace(value, note=f"n {cell.n}")
        if cell.pair == reference:
            value = _as_reference(value, metric, cell)
        if cell.pair in beyond:
            value = replace(value, style=value.style | Style.BEYOND)
        found.append(painted(value, cell.value, scale))
    return found


def _units_differ(metric: Metric, cells: Cells) -> bool:
    """Whether values are over other numbers of units, or lack any that were asked."""
    valued = [cell for cell in cells if cell.has_value]
    is_alike = len({cell.units for cell in valued}) < 2  # noqa: PLR2004
    is_whole = is_alike and not any(cell.left_out for cell in valued)
    return metric.quantity == "quality" and not is_whole


def _as_reference(value: Shown, metric: Metric, cell: CellValue) -> Shown:
    marks = [*value.marks, REFERENCE]
    if metric.floor:
        floor = small_number(cell.value, display_of(metric).digits)
        what = f"noise floor {floor}: the reference compared with itself"
        marks.append(NumberMark(REFERENCE_MARK, what))
    return replace(value, marks=tuple(marks), style=value.style | Style.REFERENCE)


def small_number(value: float, digits: int) -> str:
    """``0.50``, or ``3e-10`` of what *digits* decimals would show as nothing."""
    if 0 < abs(value) < 10**-digits:
        return f"{value:.1g}"
    return number(value, digits=digits)
