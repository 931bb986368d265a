"""
A number as every report shows it, with its marks; and the legend of marks that occur.

A mark is made here, with what it means: reports place marks, and know none themselves.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TypeVar

from rich.text import Text

from codeneedle.cache_types import Pair, pairs_phrase
from codeneedle.document import Grid
from codeneedle.probes import frames
from codeneedle.probes.frames import Cells, CellValue
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Attention, Setup, Status
from codeneedle.report.colours import (
    LossScale,
    Rgb,
    Scale,
    difference_scale,
    hex_of,
    readable_text_colour,
    value_scale,
)
from codeneedle.report.display import Display, display_of
from codeneedle.text import NO_VALUE_WORD, escape_invisible, number_text

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
    def spelled_text(self) -> str:
        """The text where there is room for words: ``not run``, not a dot."""
        return "not run" if self.text == NOT_RUN_WORD else self.text

    def styled_text(self) -> Text:
        """The text for a grid; what is set in brackets, the reference with its mark."""
        # The blank aligns digits with those that have a mark.
        mark = REFERENCE_MARK if Style.REFERENCE in self.style else " "
        first = f"[{self.text}]" if Style.SET in self.style else f"{self.text}{mark}"
        below = f"\n{self.below} " if self.below else ""
        return Text(first + below, self._rich_style())

    def _rich_style(self) -> str:
        """The style for rich: its colour, or that of a gap."""
        if self.ground is None:
            return "dim" if Style.QUIET in self.style else "italic yellow"
        bold = "bold " if self.style & (Style.SET | Style.BEYOND) else ""
        return f"{bold}{readable_text_colour(*self.ground)} on {hex_of(self.ground)}"


def legend(
    shown: Iterable[Shown], *, is_spelled: bool = False
) -> list[tuple[str, str]]:
    """
    Each meaning of marks that occur, once, in order, with the pairs that have it.

    Args:
        shown: What has the marks.
        is_spelled: Whether `Shown.spelled_text` is shown, which says itself what was
            not run.
    """
    found: dict[str, tuple[NumberMark, dict[Pair, None]]] = {}
    for value in shown:
        for mark in value.marks:
            if is_spelled and mark == NOT_RUN:
                continue
            _, pairs = found.setdefault(mark.meaning, (mark, {}))
            pairs[value.pair] = None
    return [
        (mark.sign.rstrip(","), _meaning_of_mark(mark, list(pairs)))
        for mark, pairs in found.values()
    ]


def _meaning_of_mark(mark: NumberMark, pairs: Sequence[Pair]) -> str:
    why = f" ({escape_invisible(mark.why)})" if mark.why else ""
    return mark.meaning.replace(PAIRS, pairs_phrase(pairs)).replace(WHY, why)


def pivot(shown: Sequence[Shown]) -> Grid:
    """*shown*, in the order of cells, as a grid: K down and V across."""
    k_types, v_types = shown_k_and_v_types(shown)
    texts = [value.styled_text() for value in shown]
    return Grid(k_types, v_types, split_into_rows(texts, len(v_types)))


def shown_k_and_v_types(shown: Iterable[Shown]) -> tuple[list[str], list[str]]:
    """The K types and the V types of cells, in order."""
    pairs = [value.pair for value in shown]
    return (
        list(dict.fromkeys(pair.k for pair in pairs)),
        list(dict.fromkeys(pair.v for pair in pairs)),
    )


def split_into_rows(flat: Sequence[_T], across: int) -> list[Sequence[_T]]:
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

ALONE = NumberMark(NO_VALUE_WORD, f"nothing in common with the reference: {PAIRS}")

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
    """
    The mark in place of a number that a cell lacks; `NOT_RUN` without a *status*.

    *where* names the part of the run that ended so.
    """
    if not status:
        return NOT_RUN
    why = f": {escape_invisible(reason)}" if reason else ""
    if status == Status.FINISHED:
        without = f"finished, without a number: {PAIRS}"
        return NumberMark(NO_VALUE_WORD, f"{without}{why}")
    ended = f"{status} ({where})" if where else status
    return NumberMark(STATUS_WORDS[Status(status)], f"{PAIRS} {ended}{why}")


def no_value_mark(metric: Metric, setup: Setup | None) -> NumberMark:
    """The mark of a finished cell without a value of *metric*."""
    reason = metric.why_none(setup) if setup else ""
    why = f": {reason}" if reason else ""
    meaning = f"finished, without a value of {metric.name}{why}"
    return NumberMark(NO_VALUE_WORD, meaning)


def non_kernel_attention_marks(
    attention: Attention | None, evidence: str, *, is_ranked: bool = True
) -> Iterator[NumberMark]:
    """The mark of attention that ran in no kernel; mostly none."""
    if attention and attention.mark:
        apart = "" if is_ranked else "; such speeds are compared with none"
        meaning = f"{_ATTENTION_PHRASES[attention]} {PAIRS}{WHY}{apart}"
        yield NumberMark(attention.mark, meaning, evidence)


def unusual_place_marks(cell: CellValue) -> Iterator[NumberMark]:
    """The mark of where a number was measured, if that is not as usual."""
    marks = [
        *non_kernel_attention_marks(
            cell.attention, cell.evidence, is_ranked=cell.is_ranked
        )
    ]
    yield from marks
    if cell.is_elsewhere and not marks:
        yield _other_device_mark()


OTHER_SIGN = "other"
"""Behind a speed of another device than the reference's."""


def _other_device_mark() -> NumberMark:
    """The mark of speeds of another device than the reference's."""
    meaning = f"{PAIRS}: {frames.OTHER_DEVICE}; compared with none"
    return NumberMark(OTHER_SIGN, meaning)


_OF_THOSE_SCORED = "over those of all that have a score of each answer"


def unit_count_mark(cell: CellValue) -> NumberMark:
    """``of 6``, or ``of 6/8`` where two of eight units have no score."""
    if cell.left_out:
        sign = f"of {cell.units:,}/{cell.units + cell.left_out:,}"
        return NumberMark(sign, _OF_THOSE_SCORED)
    return NumberMark(
        f"of {cell.units:,}", "over so many, other pairs over more or fewer"
    )


def decision_mark(word: str) -> NumberMark:
    """``within``, ``beyond`` or ``open``."""
    return NumberMark(word, DECISIONS[word])


KERNEL_WORDS = {
    Attention.KERNEL: "kernel",
    Attention.CPU: "cpu",
    Attention.CONVERTED: "f16",
    Attention.PLAIN: "plain",
}
"""Where attention of a pair runs."""

_KERNEL_MEANINGS = {
    Attention.KERNEL: "in a fast kernel of the backend",
    Attention.CPU: "on the CPU: losses count, speeds are compared with none",
    Attention.CONVERTED: "converted to f16 at each step: slower; losses count",
    Attention.PLAIN: "without flash attention, which this model does not have",
}


def attention_place_mark(attention: Attention, evidence: str) -> NumberMark:
    """Where attention of a pair would run."""
    meaning = f"{_KERNEL_MEANINGS[attention]}{WHY}"
    return NumberMark(KERNEL_WORDS[attention], meaning, evidence)


UNKNOWN_SIGN = "?"
"""In place of what nothing tells before a start."""

UNKNOWN_KERNEL = NumberMark(UNKNOWN_SIGN, "known after the first cell")

UNKNOWN_SIZE = NumberMark(UNKNOWN_SIGN, "known after the first start")

UNTOLD_SIZE = NumberMark(NO_VALUE_WORD, "not known of this cell")

REFUSED_SIGN = "-"
"""In place of where attention of a pair would run that the engine refuses."""

CANNOT_SIGN = "cannot"
"""In place of the size of a pair that cannot run."""


def refusal_mark(sign: str, reason: str) -> NumberMark:
    """In place of what a pair cannot have, with why."""
    return NumberMark(sign, f"{PAIRS}: {escape_invisible(reason)}")


DONE = NumberMark("+", "finished")
"""Behind the size of a cell that has finished."""

TWICE = NumberMark("=", "measured first and last: two values that differ by noise")
"""Behind that of the cell that is measured again after all others."""

TRAINED = NumberMark("*", "the context that the weights were trained for")
"""Behind a longest context."""

UNFIT = NumberMark("does not fit", "takes more memory than the budget")

NOT_IN_BOTH = NumberMark(NO_VALUE_WORD, "no value in both runs")

FEW_PAIRS = NumberMark(NO_VALUE_WORD, "the mean of fewer than two pairs")

NO_ANSWER = NumberMark(NO_VALUE_WORD, "not asked, or without a score of its answer")

NO_WHOLE_CACHE = NumberMark(
    NO_VALUE_WORD, "of a cache: not every layer keeps the whole context, or is known to"
)

K_DOWN_TO = NumberMark(
    "K down to",
    "the coarsest type of K that is predicted, from the weights alone, to lose at most "
    "1 of 100 right tokens of ordinary text in a rotated cache (RESULTS.md)",
)
"""Of a column."""

NOT_PREDICTED = NumberMark(
    NO_VALUE_WORD, "of K: not predicted, and without biases that stand out"
)

UNTOLD_HEADER = NumberMark(NO_VALUE_WORD, "of the rest: its file does not tell")

MLX_FOLDER = NumberMark("(mlx)", "a folder, for --engine mlx")

NO_INTERVAL = NumberMark(NO_VALUE_WORD, "no interval: of too few")


def trouble_mark(trouble: str) -> NumberMark:
    """In place of a decision, of what is told as ``crashed: exit code 1``."""
    word, _, reason = trouble.partition(": ")
    why = f": {escape_invisible(reason)}" if reason else ", for want of numbers"
    return NumberMark(word, f"{PAIRS}{why}")


def parse_marks(text: str) -> Iterator[NumberMark]:
    """
    The marks in a *text* of a number that somebody else was shown.

    What told them is not known: their pairs have no reasons.
    """
    words = text.translate(str.maketrans("()", "  ")).split()
    signs = {sign: status for status, sign in STATUS_WORDS.items()}
    places = {place.mark: place for place in Attention if place.mark}
    for word in dict.fromkeys(words):
        if word == NO_VALUE_WORD and words[1:]:
            yield NO_INTERVAL
        elif word in signs:
            yield status_mark(signs[word], "")
        elif word in places:
            yield from non_kernel_attention_marks(places[word], "")
        elif word == OTHER_SIGN:
            yield _other_device_mark()
        elif word in DECISIONS:
            yield decision_mark(word)
    yield from (mark for mark in (ERROR, NOT_RUN) if mark.sign in words)
    if found := _LEFT_OUT.search(text):
        yield NumberMark(found[0], _OF_THOSE_SCORED)


_LEFT_OUT = re.compile(r"\bof [\d,]+/[\d,]+")


def _left_out_marks(cell: CellValue) -> Iterator[NumberMark]:
    """The mark of a cell of which something is left out; mostly none."""
    if cell.lacking:
        yield NumberMark("left out", f"{PAIRS}: {escape_invisible(cell.lacking)}")


# --- cells


def shown_value(
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
        inferred: Of pairs that were not measured, the finer one that is beyond.
        where: Names the part of the run that it is of.
    """
    if not cell.has_value:
        return _shown_gap(cell, [*below], inferred or {}, where)
    digits = 0 if abs(cell.value) >= NO_DECIMALS_FROM else display.digits
    error = cell.error if display.shows_error else math.nan
    text = value_and_error_text(
        cell.value, error, digits=digits, has_sign=display.has_sign
    )
    places, words = [*unusual_place_marks(cell)], [*below]
    signs = [mark.sign for mark in places]
    return Shown(
        pair=cell.pair,
        text=text if words else " ".join([text, *signs]),
        below=_join_signs([*words, *places]) if words else "",
        marks=(
            *words,
            *places,
            *((ERROR,) if math.isfinite(error) else ()),
            *_left_out_marks(cell),
        ),
        style=Style.PLAIN if cell.is_ranked else Style.QUIET,
    )


def _join_signs(marks: Sequence[NumberMark]) -> str:
    """Words below a number: ``set, open cpu``; the reference's mark stands above."""
    return escape_invisible(" ".join(mark.sign for mark in marks if mark != REFERENCE))


def _shown_gap(
    cell: CellValue,
    words: Sequence[NumberMark],
    inferred: Mapping[Pair, Pair],
    where: str,
) -> Shown:
    """A word in place of a number that is missing; nothing where none was asked for."""
    mark = status_mark(cell.status, cell.reason, where=where)
    if not cell.status and cell.pair in inferred:
        as_finer = f"beyond, as {escape_invisible(str(inferred[cell.pair]))} is"
        mark = NumberMark(NOT_RUN_WORD, f"not measured, {as_finer}: {PAIRS}")
    is_asked = not cell.is_hole or bool(cell.status)
    return Shown(
        pair=cell.pair,
        text=mark.sign if is_asked else "",
        below=_join_signs(words),
        marks=(mark, *words, *_left_out_marks(cell)) if is_asked else (),
        style=Style.PLAIN if cell.status else Style.QUIET,
    )


def value_and_error_text(
    value: float,
    error: float | None,
    *,
    digits: int,
    mark: str = ERROR.sign,
    has_sign: bool = False,
) -> str:
    """``16.52±0.31``; ``16.52`` where the *error* is unknown."""
    text = number_text(value, digits=digits, sign=has_sign)
    if error is None or not math.isfinite(error):
        return text
    return f"{text}{mark}{number_text(error, digits=digits)}"


def with_colour_of_level(value: Shown, level: float, scale: Scale | LossScale) -> Shown:
    """*value* in the colour of *level*; a gap where it is compared with none."""
    if math.isnan(level) or Style.QUIET in value.style:
        return value
    return replace(value, place=scale.place(level), ground=scale.colour(level))


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is shown of the cells of a grid, how it is written, and its colours."""

    cells: Cells  # values, or differences from the reference's
    display: Display
    scale: Scale


def values_to_show(
    metric: Metric, cells: Cells, display: Display | None = None
) -> Numbers:
    """The values of *cells*; the colours are of those that are compared."""
    ranked = [cell.value for cell in cells if cell.is_ranked]
    rounds = frames.largest_observation_count(cells) or 1
    scale = value_scale(metric, ranked, rounds=rounds)
    return Numbers(cells, display or display_of(metric), scale)


def changes_to_show(metric: Metric, cells: Cells, first: CellValue) -> Numbers:
    """By how much each of *cells* differs from *first*, with its sign."""
    changes = [frames.cell_with_change(cell, first) for cell in cells]
    scale = difference_scale(
        metric,
        [change.value for change in changes if change.is_ranked],
        reference=first.value,
        rounds=frames.largest_observation_count(cells),
    )
    return Numbers(changes, replace(display_of(metric), has_sign=True), scale)


def shown_cells(
    metric: Metric,
    cells: Cells,
    *,
    numbers: Numbers | None = None,
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
        numbers: What is shown of them; their values if None.
        setup: Says why finished cells have no value.
        inferred: See `shown_value`.
        beyond: Pairs that are beyond the limit by this metric.
        where: Names the part of the run that did not finish.
    """
    reference, numbers = (
        frames.reference_pair(cells),
        numbers or values_to_show(metric, cells),
    )
    counts = _needs_unit_counts(metric, numbers.cells)
    found = []
    for cell, seen in zip(cells, numbers.cells, strict=True):
        value = shown_value(seen, numbers.display, inferred=inferred, where=where)
        is_explained = bool(cell.reason) and not cell.has_value
        is_missing = cell.status == Status.FINISHED and not seen.has_value
        if is_missing and not is_explained:
            mark = ALONE if cell.has_value else no_value_mark(metric, setup)
            value = replace(value, marks=(mark, *_left_out_marks(cell)))
        if counts and seen.has_value:
            mark = unit_count_mark(seen)
            value = replace(value, below=mark.sign, marks=(*value.marks, mark))
        if seen.has_value:
            value = replace(value, note=f"n {cell.observation_count}")
        if cell.pair == reference:
            value = _with_reference_mark(value, metric, cell)
        if cell.pair in beyond:
            value = replace(value, style=value.style | Style.BEYOND)
        found.append(with_colour_of_level(value, seen.value, numbers.scale))
    return found


def _needs_unit_counts(metric: Metric, cells: Cells) -> bool:
    """Whether values are over other numbers of units, or lack any that were asked."""
    valued = [cell for cell in cells if cell.has_value]
    is_alike = len({cell.units for cell in valued}) < 2  # noqa: PLR2004
    is_whole = is_alike and not any(cell.left_out for cell in valued)
    return metric.quantity == "quality" and not is_whole


def _with_reference_mark(value: Shown, metric: Metric, cell: CellValue) -> Shown:
    """*value* with the mark of the reference, and the noise floor if it shows one."""
    marks = [*value.marks, REFERENCE]
    if metric.floor:
        floor = small_number_text(cell.value, display_of(metric).digits)
        what = f"noise floor {floor}: the reference compared with itself"
        marks.append(NumberMark(REFERENCE_MARK, what))
    return replace(value, marks=tuple(marks), style=value.style | Style.REFERENCE)


def small_number_text(value: float, digits: int) -> str:
    """``0.50``, or ``3e-10`` of what *digits* decimals would show as nothing."""
    if 0 < abs(value) < 10**-digits:
        return f"{value:.1g}"
    return number_text(value, digits=digits)
