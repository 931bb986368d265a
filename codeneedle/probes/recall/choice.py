"""
What the reference chooses for all pairs: whether lines are written, read or forced.

It is forced for a few functions. Where reading the text with all questions may take
less time, it is read with these; where that took less time, so are all other pairs.
Where it writes too little back for any pair to lose, others write nothing.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from statistics import fmean

from codeneedle.corpora.corpus import LIMIT
from codeneedle.corpora.needles import WRITTEN_LINES, block_ends
from codeneedle.errors import CodeneedleError
from codeneedle.probes.estimates import Estimates
from codeneedle.probes.metrics import ABLE
from codeneedle.probes.observations import Observed, observed
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.metrics import reading_speed
from codeneedle.probes.recall.reading import (
    asked_tokens,
    chunks_read,
    groups,
    question_lines,
)
from codeneedle.probes.recall.record import READ, Recall, recall_of
from codeneedle.probes.recall.rounds import ScoredRound
from codeneedle.probes.recall.settings import (
    Ask,
    By,
    RecallCalibration,
    RecallSettings,
    functions_in,
    settings_of,
    stated_in,
    with_choice,
)
from codeneedle.records.record import CellRecord, Setup
from codeneedle.system.secrets import masked
from codeneedle.text import duration, number, one_line, plural

FORCED_BESIDE = 6
"""Functions of the reference that are forced before it is chosen."""

CELLS = 8
"""Pairs in which reading must have saved what the reference takes twice, at most."""

SCORING = 1.1
"""
How much longer a text takes whose second half is read with probabilities, about.

The output layer, of which a prompt needs the last row alone, is a quarter of SmolLM2.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the cells of a run take either way, in tokens."""

    text: int  # of the text
    right: float  # of the right lines of a function, a mean
    chunks: Callable[[int], Sequence[int]]
    """Gives the lengths of the chunks that so many functions are read in."""

    functions: int  # functions of each cell
    looks: Sequence[int] = ()
    """Larger numbers that may be read in their place, ascending."""

    cells: int  # pairs beside the reference
    has_server: bool = False
    """Whether a server reads the text in any case, for lines to write."""

    def read_s(self, functions: int, speeds: "ReferenceTimes") -> float:
        """Seconds of a cell that reads so many *functions*, about."""
        chunks = self.chunks(functions)
        text_s = SCORING * speeds.reading_s * sum(chunks)
        return len(chunks) * speeds.start_s + text_s

    def forced_s(self, functions: int, speeds: "ReferenceTimes") -> float:
        """Seconds of a cell that forces so many *functions*."""
        text_s = speeds.start_s + self.text * speeds.reading_s
        lines_s = functions * self.right * speeds.forcing_s
        return lines_s if self.has_server else text_s + lines_s

    def choice(self, speeds: "ReferenceTimes") -> RecallCalibration:
        """
        How it is likely to be scored: by reading where all pairs take less time so.

        The reference takes both, and a pair is forced for a few functions, to be
        checked. Where more functions may be read, as many are as take no longer than
        those of the settings by writing.
        """
        few = min(FORCED_BESIDE, self.functions)
        cells = min(self.cells, CELLS)
        read_s = self.read_s(self.functions, speeds)
        forced_s = self.forced_s(self.functions, speeds)
        check_s = self.forced_s(few, speeds)
        rest_s = (self.functions - few) * self.right * speeds.forcing_s
        is_read = (cells + 1) * read_s + check_s < cells * forced_s + rest_s
        looks = self.looks if is_read else ()
        at = bisect.bisect_right(
            looks, forced_s, key=lambda look: self.read_s(look, speeds)
        )
        functions = looks[at - 1] if at else None
        return RecallCalibration(
            by=By.READING if is_read else By.WRITING,
            functions=functions,
            reading_s=round(speeds.reading_s, 8),
            forcing_s=round(speeds.forcing_s, 7),
            read_cell_s=round(self.read_s(functions or self.functions, speeds), 3),
            forced_cell_s=round(forced_s, 3),
        )

    def is_read(self, read_s: float, speeds: "ReferenceTimes") -> bool:
        """
        Whether all other pairs are read, once the reference was, in *read_s* seconds.

        Else a server is started for it once more, and forces the rest.
        """
        few = min(FORCED_BESIDE, self.functions)
        cells = min(self.cells, CELLS)
        reading_s = cells * read_s + self.forced_s(few, speeds)
        rest_s = self.forced_s(self.functions - few, speeds)
        return reading_s < cells * self.forced_s(self.functions, speeds) + rest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTimes:
    """How long the reference takes, in seconds."""

    reading_s: float  # a token of the text
    forcing_s: float  # a right token that is forced
    start_s: float = 0.0
    """A server, until it is ready, and its end; a tool is taken to start as fast."""


def planned_choice(
    settings: RecallSettings, estimates: Estimates
) -> RecallCalibration | None:
    """What a reference is likely to choose; None if it chooses nothing by then."""
    setup, corpus, pace = estimates.setup, estimates.corpus, estimates.pace
    chosen = with_choice(settings, setup)
    is_new = setup is None or not setup.probes
    is_automatic = chosen.by is By.AUTOMATIC or (is_new and chosen.by is None)
    if not (is_automatic and can_choose(chosen, estimates)) or pace is None:
        return None
    a_line = estimates.tokens(len(corpus.text)) / corpus.line_count
    each = question_lines(corpus, chosen.line_count) * a_line
    text, context = estimates.text_tokens, estimates.context
    there = math.floor(estimates.share * len(corpus.of_length(chosen.line_count)))
    functions = min(chosen.function_count, there)
    if not functions:
        return None
    load = Load(
        text=text,
        right=chosen.line_count * a_line,
        chunks=lambda count: chunks_read(text, count * each, count, context),
        functions=functions,
        looks=_looks(functions, there) if estimates.may_grow else (),
        cells=estimates.cells - 1,
        has_server=Ask.WRITTEN in chosen.parts,
    )
    speeds = ReferenceTimes(
        reading_s=pace.of_text(text) / max(text, 1),
        forcing_s=pace.of_answers(1, text),
        start_s=pace.start_s,
    )
    return load.choice(speeds)


def can_choose(chosen: RecallSettings, estimates: Estimates) -> bool:
    """Whether a reference may choose how lines of *chosen* settings are scored."""
    return (
        Ask.FORCED in chosen.parts and estimates.can_read and not estimates.is_built_in
    )


def seen_choice(setup: Setup, recall: Recall, *, may_grow: bool) -> RecallCalibration:
    """
    What the reference chooses, by what it has written and forced.

    Reading is chosen to be tried: `tried_choice` has the last word.

    Args:
        setup: Of the run.
        recall: What it wrote and forced.
        may_grow: Whether more functions may be read than the settings say.
    """
    asked = _asked(setup, recall)
    if stated_in(setup).by is not By.AUTOMATIC:
        return asked
    load, speeds = _load(setup, recall, asked.ask, may_grow=may_grow), _speeds(recall)
    if load is None or speeds is None:
        return replace(asked, by=By.WRITING)
    found = load.choice(speeds)
    return replace(
        found, ask=asked.ask, matched=asked.matched, written_s=asked.written_s
    )


def tried_choice(
    setup: Setup, choice: RecallCalibration, recall: Recall, *, start_s: float
) -> RecallCalibration:
    """
    What the reference has chosen, once it was forced and read: what took less time.

    Args:
        setup: Of the run.
        choice: Which is to be tried.
        recall: What it forced and read.
        start_s: Seconds of its server, until it was ready, and of its end.
    """
    load, speeds = _load(setup, recall, choice.ask, may_grow=False), _speeds(recall)
    if load is None or speeds is None:
        return replace(choice, is_tried=True)
    # The settings say how many are forced; it may have chosen to read more.
    functions = min(stated_in(setup).function_count, len(functions_in(setup).forced))
    load = replace(load, functions=functions)
    speeds = replace(speeds, start_s=start_s)
    is_read = load.is_read(recall.reading_s, speeds)
    return replace(
        choice,
        by=By.READING if is_read else By.WRITING,
        functions=choice.functions if is_read else None,
        read_cell_s=round(recall.reading_s, 3),
        forced_cell_s=round(load.forced_s(functions, speeds), 3),
        is_tried=True,
    )


def known_choice(setup: Setup, others: Sequence[CellRecord]) -> RecallCalibration:
    """What was chosen, by what *others* than the reference have answered."""
    stated, every = stated_in(setup), [recall_of(each) for each in others]
    keys = {key for each in others for key in observed(each, Observed).answers}
    read = {key for key in keys if key.startswith(f"{READ} ")}
    ask = Ask.BOTH if any(each.rounds for each in every) else Ask.FORCED
    return RecallCalibration(
        by=(By.READING if read else By.WRITING) if stated.by is By.AUTOMATIC else None,
        ask=ask if stated.ask is Ask.AUTOMATIC else None,
        functions=_first_read(setup, read) if read else None,
    )


def _first_read(setup: Setup, keys: AbstractSet[str]) -> int | None:
    """Functions of the first step, of which the chunks with these *keys* follow."""
    there = len(functions_in(setup).forced)
    firsts = block_ends(min(settings_of(setup).function_count, there), there)
    for first in firsts:
        every = groups(setup, block_ends(first, there))
        if keys <= {each.key_of(needle) for each in every for needle in each.needles}:
            return first
    return None


def without_reading(
    choice: RecallCalibration, error: CodeneedleError
) -> RecallCalibration:
    """*choice* of a reference that could not be read, for this *error*."""
    reason = masked(one_line(str(error)))
    return replace(choice, by=By.WRITING, functions=None, unread=reason)


def _asked(setup: Setup, recall: Recall) -> RecallCalibration:
    """
    What others are asked: nothing written where the reference writes too little.

    Where none of its lines could be forced, what is written is all that there is.
    """
    if stated_in(setup).ask is not Ask.AUTOMATIC:
        return RecallCalibration()
    by_name = {needle.name: needle for needle in functions_in(setup).written}
    scored = [ScoredRound(by_name[each.needle], each) for each in recall.rounds]
    matched = [each.counts[Mark.MATCHED] for each in scored if not each.error]
    if not matched:
        return RecallCalibration(ask=Ask.BOTH)
    is_able = fmean(matched) >= ABLE * WRITTEN_LINES
    is_forced = any(each.logprobs for each in recall.forced)
    return RecallCalibration(
        ask=Ask.FORCED if is_forced and not is_able else Ask.BOTH,
        matched=round(fmean(matched), 2),
        written_s=round(math.fsum(each.wall_s for each in recall.rounds), 3),
    )


def _speeds(recall: Recall) -> ReferenceTimes | None:
    """How fast the reference read and forced, without a start; None if unknown."""
    scored = [each for each in recall.forced if each.logprobs]
    speed = reading_speed(recall.priming) if recall.priming else None
    tokens = sum(len(each.logprobs) for each in scored)
    if not (speed and tokens):
        return None
    forced_s = math.fsum(each.wall_s for each in scored)
    return ReferenceTimes(reading_s=1 / speed, forcing_s=forced_s / tokens)


def _load(
    setup: Setup, recall: Recall, ask: Ask | None, *, may_grow: bool
) -> Load | None:
    """What the cells of a run take where *ask* is asked, by what was forced."""
    chosen, needles, text = (
        settings_of(setup),
        functions_in(setup).forced,
        setup.corpus.tokens,
    )
    tokens = [len(each.logprobs) for each in recall.forced if each.logprobs]
    if not tokens:
        return None
    functions = min(chosen.function_count, len(needles))
    return Load(
        text=text,
        right=fmean(tokens),
        chunks=lambda count: chunks_read(
            text, asked_tokens(setup, count), count, setup.context
        ),
        functions=functions,
        looks=_looks(functions, len(needles)) if may_grow else (),
        cells=len(setup.grid) - 1,
        has_server=Ask.WRITTEN in (ask.parts if ask else chosen.parts),
    )


def _looks(functions: int, there: int) -> Sequence[int]:
    """Numbers of functions beyond *functions*, of those that are *there*."""
    return block_ends(functions, min(max(there, functions), LIMIT))[1:]


def ask_phrase(choice: RecallCalibration, cells: int) -> str:
    """That *cells* others force alone, and why; empty if that is not so."""
    if choice.ask is not Ask.FORCED or choice.matched is None:
        return ""
    each_s, lines = choice.written_s or 0.0, number(choice.matched, digits=1)
    return (
        f"lines are forced alone from here on: the reference wrote {lines} of "
        f"{WRITTEN_LINES} lines back, too few for any pair to lose; this saves about "
        f"{duration(each_s)} a cell, {duration(each_s * cells)} in all (--ask both, "
        "with another --out, asks for both)"
    )


def choice_phrase(choice: RecallCalibration) -> str:
    """What was chosen, and why, as a sentence; empty if nothing was seen."""
    if choice.unread:
        return f"right lines are forced: they could not be read, {choice.unread}"
    if not (choice.reading_s and choice.forcing_s):
        return ""
    speeds = (
        f"the reference read {number(1 / choice.reading_s, digits=0)} tokens/s, and "
        f"forced {number(1 / choice.forcing_s, digits=1)}"
    )
    read, forced = (
        duration(each or 0.0) for each in (choice.read_cell_s, choice.forced_cell_s)
    )
    of = f" of {plural(choice.functions, 'function')}" if choice.functions else ""
    if choice.by is By.READING:
        took = "took it" if choice.is_tried else "about"
        return (
            f"right lines are read from here on: {speeds}; a cell{of} {took} {read} "
            f"by reading, about {forced} by writing"
        )
    took = "took it" if choice.is_tried else "about"
    return (
        f"right lines are forced: {speeds}; a cell takes about {forced} by writing, "
        f"and {took} {read} by reading"
    )
