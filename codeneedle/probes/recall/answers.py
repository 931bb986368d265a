"""
Shows the answers of recall: written lines beside the right ones, a mark before each,
and scores of forced or read lines.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein
from rich.cells import cell_len, chop_cells
from rich.text import Text

from codeneedle.corpora.needles import WRITTEN_LINES, NeedleFacts
from codeneedle.document import Document, Lines, Table
from codeneedle.probes import forced
from codeneedle.probes.answers import Beside, ScoredAnswer, View
from codeneedle.probes.recall.alignment import AlignedLine, Alignment, Mark
from codeneedle.probes.recall.record import RightLineAnswer, right_line_answers
from codeneedle.probes.recall.rounds import (
    ScoredRound,
    margins_of_gaps,
    scored_rounds,
)
from codeneedle.probes.recall.settings import NAME, recall_layout, settings_of
from codeneedle.records.record import CellRecord, Run
from codeneedle.text import escape_invisible, number_text, plural


def answers(run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
    """The functions of *record* that were written, then those forced or read."""
    for asked in scored_rounds(record, run.setup):
        matched = asked.line_counts_by_mark[Mark.MATCHED]
        yield ScoredAnswer(
            name=asked.needle.name,
            show=functools.partial(_round_document, asked),
            task=NAME,
            length=run.setup.corpus.tokens,
            depth=asked.needle.depth,
            right=matched / WRITTEN_LINES,
            outcome=f"{matched} of {WRITTEN_LINES}",
            error=asked.error,
            beside=functools.partial(_lines_side_by_side, asked),
        )
    right = {
        needle.name: "\n".join(needle.lines)
        for needle in recall_layout(run.setup).forced
    }
    yield from forced.scored_answers(
        run,
        record,
        lambda of: {
            name: answer.scores
            for name, answer in right_line_answers(of, run.setup)
            if answer
        },
        right.__getitem__,
    )


def _round_document(asked: ScoredRound, view: View) -> Document:
    """The lines of a written answer beside the right ones, or why there is none."""
    if asked.error:
        return [Lines([f"no answer: {asked.error}"])]
    scored = asked.alignment
    return side_by_side_document(asked.needle, scored, width=view.width)


def _lines_side_by_side(asked: ScoredRound) -> Beside:
    """Right line and written line side by side; None where one of them has none."""
    scored = asked.alignment
    return [
        (
            line_pair.expected.expected if line_pair.expected else None,
            line_pair.produced.produced if line_pair.produced else None,
        )
        for line_pair in line_pairs(asked.needle, scored)
    ]


def overview(run: Run, record: CellRecord) -> Document:
    """
    A line per written function, with score or error.

    Then one per function with scores of its right lines, forced or read.
    """
    rounds = scored_rounds(record, run.setup)
    scored = [answer for _, answer in right_line_answers(record, run.setup) if answer]
    if rounds:
        answered = sum(not asked.error for asked in rounds)
        yield Lines([f"{answered} of {plural(len(rounds), 'round')} answered"])
        rows = [overview_row(asked) for asked in rounds]
        yield Table(OVERVIEW_HEADINGS, rows, words={"needle", "ended"})
    if scored:
        bounds = sum(len(answer.scores.bounds) for answer in scored)
        unlisted = f"; {plural(bounds, 'token')} of unlisted probability"
        of = plural(len(scored), "needle")
        is_read = settings_of(run.setup).reads_instead_of_forcing
        how = "read" if is_read else "scored token by token"
        told = f"right lines of {of} {how}"
        yield Lines([f"{told}{unlisted if bounds else ''}"])
        yield Table(
            FORCED_HEADINGS,
            [_forced_row(answer) for answer in scored],
            words={"needle"},
        )


def _forced_row(answer: RightLineAnswer) -> list[str]:
    """The cells of `FORCED_HEADINGS` for one function."""
    of_leads = margins_of_gaps(answer.scores.leads)
    least = of_leads.least if of_leads else math.nan
    return [
        *_place_cells(answer.needle),
        str(answer.lines_before_break),
        number_text(answer.scores.mean_logprob, digits=3),
        number_text(100 * answer.scores.first_choice_share, digits=1),
        number_text(least, digits=2),
    ]


PLACE = ("needle", "depth", "line")
"""Columns that tell needles apart."""

FORCED_HEADINGS = (*PLACE, "breaks at", "logp", "right %", "smallest lead")

OVERVIEW_HEADINGS = (
    *PLACE,
    "matched",
    "missing",
    "mispl.",
    "halluc.",
    "bonus",
    "overrun",
    "margin",
    "ended",
)


def _place_cells(needle: NeedleFacts) -> list[str]:
    """The cells of `PLACE`."""
    # Without its class, which would take several lines; the line number identifies it.
    return [needle.name.rpartition(".")[2], f"{needle.depth:.0%}", str(needle.line)]


def overview_row(asked: ScoredRound) -> list[str]:
    """The cells of `OVERVIEW_HEADINGS` for one round, or its error in the last."""
    where = _place_cells(asked.needle)
    if asked.error:
        return [*where, *[""] * 7, f"error: {asked.error}"]
    lines = [str(asked.line_counts_by_mark[mark]) for mark in Mark]
    margin = f"{asked.margins.least:.2f}" if asked.margins else "-"
    ended = asked.round.reply.finish if asked.round.reply else ""
    return [*where, *lines, margin, ended]


# --- lines beside each other


MARKS: dict[Mark, str] = {
    Mark.MATCHED: " ",
    Mark.MISSING: "-",
    Mark.MISPLACED: ">",
    Mark.HALLUCINATED: "+",
    Mark.BONUS: "*",
    Mark.OVERRUN: "~",
}
"""Shown left of a line, so that no colour is needed."""

STYLES: dict[Mark, str] = {
    Mark.MATCHED: "green",
    Mark.MISSING: "red",
    Mark.MISPLACED: "blue",
    Mark.HALLUCINATED: "magenta",
    Mark.BONUS: "cyan",
    Mark.OVERRUN: "yellow",
}

DIFFERING = "bold underline"
"""Style of the characters in which a hallucinated line differs from a missing one."""

SIMILAR = 0.6
"""Similarity, from 0 to 1, from which the differing characters are highlighted."""

LEAST_WIDTH = 12
"""Least width of either side, in columns."""

TAB = "»   "
"""Shown for a tab, to distinguish it from spaces."""


@dataclass(frozen=True, slots=True)
class LinePair:
    """One line of the display."""

    number: int | None  # of the expected line in the corpus, as an editor counts
    expected: AlignedLine | None  # an expected line; None next to a superfluous line
    produced: AlignedLine | None  # a line of the reply; None next to a missing line


def side_by_side_document(
    needle: NeedleFacts, score: Alignment, *, width: int
) -> Document:
    """
    Expected lines on the left, produced ones on the right, a mark before each.

    Args:
        needle: The function that was asked for.
        score: The reply, aligned with it.
        width: Columns of the terminal; longer lines continue in the next row.
    """
    rows = line_pairs(needle, score)
    digits = max((len(str(row.number)) for row in rows if row.number), default=1)
    # Number, mark and blank on the left; bar, mark and blank between the halves.
    room = max((width - digits - 3 - 5) // 2, LEAST_WIDTH)
    lines = [_title_text(needle), _heading_text(digits, room)]
    for row in rows:
        lines += _row_lines(row, digits=digits, room=room)
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return [Lines(lines), Lines([_tally_text(score)])]


def line_pairs(needle: NeedleFacts, score: Alignment) -> list[LinePair]:
    """
    The aligned lines; a missing line next to a superfluous one in its place.

    Where one side has more of these, the rest stands alone.
    """
    numbers = iter(_lines_with_numbers(needle))
    pairs: list[LinePair] = []
    for missing, extra, both in _lines_between_matches(score.rows):
        for at in range(max(len(missing), len(extra))):
            expected = missing[at] if at < len(missing) else None
            produced = extra[at] if at < len(extra) else None
            pairs.append(
                LinePair(_next_line_number(numbers, expected), expected, produced)
            )
        if both:
            pairs.append(LinePair(_next_line_number(numbers, both), both, both))
    return pairs


def _lines_between_matches(
    rows: Iterable[AlignedLine],
) -> Iterator[tuple[list[AlignedLine], list[AlignedLine], AlignedLine | None]]:
    """Missing lines, superfluous lines, and the match behind them; None at the end."""
    missing: list[AlignedLine] = []
    extra: list[AlignedLine] = []
    for row in rows:
        if row.expected is not None and row.produced is not None:
            yield missing, extra, row
            missing, extra = [], []
        elif row.expected is not None:
            missing.append(row)
        else:
            extra.append(row)
    yield missing, extra, None


def _lines_with_numbers(needle: NeedleFacts) -> Iterator[tuple[int, str]]:
    """Lines of the body, those behind the asked ones, too, by number in the text."""
    first = needle.line + needle.signature.count("\n") + 1
    return iter(enumerate((*needle.lines, *needle.more), start=first))


def _next_line_number(
    numbers: Iterator[tuple[int, str]], row: AlignedLine | None
) -> int | None:
    """
    The line number of *row*; None of a superfluous line.

    Rows are passed in ascending order: *numbers* are used up.
    """
    if row is None:
        return None
    return next((at for at, line in numbers if line == row.expected), None)


def _title_text(needle: NeedleFacts) -> Text:
    where = f"line {needle.line:,}, depth {needle.depth:.0%}"
    text = Text(escape_invisible(needle.name), style="bold")
    return text.append(f"  {where}", style="not bold dim")


def _heading_text(digits: int, room: int) -> Text:
    """Heading of the two columns, behind *digits* for numbers of lines."""
    return Text(f"{'':{digits}}   {'expected':{room}} |   produced", style="dim")


def _row_lines(row: LinePair, *, digits: int, room: int) -> Iterator[Text]:
    """One line of the display, or several where a side is too long."""
    left, right = _highlighted_side_texts(row)
    left_parts, right_parts = _wrap(left, room), _wrap(right, room)
    for at in range(max(len(left_parts), len(right_parts), 1)):
        number = str(row.number) if row.number and not at else ""
        line = Text().append(number.rjust(digits), style="dim")
        is_both = row.expected is row.produced
        line.append_text(_mark_text(None if is_both or at else row.expected))
        line.append_text(_pad_part(left_parts, at, room))
        line.append(" |", style="dim")
        line.append_text(_mark_text(None if at else row.produced))
        line.append_text(right_parts[at] if at < len(right_parts) else Text())
        line.rstrip()
        yield line


def _highlighted_side_texts(row: LinePair) -> tuple[Text, Text]:
    """
    Both sides, coloured; in similar lines, the difference is highlighted.

    A misplaced line has the number of its line behind it.
    """
    left = _side_text(row.expected, row.expected.expected if row.expected else None)
    right = _side_text(row.produced, row.produced.produced if row.produced else None)
    if row.expected is not row.produced and _are_similar(left.plain, right.plain):
        for edit in Levenshtein.opcodes(left.plain, right.plain):
            if edit.tag != "equal":
                left.stylize(DIFFERING, edit.src_start, edit.src_end)
                right.stylize(DIFFERING, edit.dest_start, edit.dest_end)
    if row.produced and row.produced.place:
        right.append(f"  line {row.produced.place:,}", style="dim")
    return left, right


def _are_similar(left: str, right: str) -> bool:
    """Whether to highlight differences; else all of both would be highlighted."""
    return Levenshtein.normalized_similarity(left, right) >= SIMILAR


def _side_text(row: AlignedLine | None, line: str | None) -> Text:
    """*line* in the colour of its mark; empty without one."""
    if row is None or line is None:
        return Text()
    return Text(_line_text(line), style=STYLES[row.mark])


def _line_text(line: str) -> str:
    """*line* with tabs as `TAB`, and other invisible characters escaped."""
    return TAB.join(escape_invisible(part) for part in line.rstrip("\r").split("\t"))


def _wrap(text: Text, room: int) -> list[Text]:
    """*text* in pieces of at most *room* columns; a wide character takes two."""
    if not text.plain:
        return []
    lengths = map(len, chop_cells(text.plain, room))
    return list(text.divide([*itertools.accumulate(lengths)][:-1]))


def _pad_part(parts: Sequence[Text], at: int, room: int) -> Text:
    """
    The piece *at* that place, filled up to *room* columns.

    Blanks if there is none.
    """
    part = parts[at].copy() if at < len(parts) else Text()
    part.pad_right(room - cell_len(part.plain))
    return part


def _mark_text(row: AlignedLine | None) -> Text:
    """The sign of a mark between blanks; blanks without one."""
    if row is None:
        return Text("   ")
    return Text(f" {MARKS[row.mark]} ", style=STYLES[row.mark])


def _tally_text(score: Alignment) -> Text:
    """
    The number of lines of each mark that occurs, with its sign.

    Matched ones always.
    """
    text = Text()
    for mark, sign in MARKS.items():
        count = score.count(mark)
        if not count and mark is not Mark.MATCHED:
            continue
        legend = f"{sign} " if sign.strip() else ""
        text.append(f"{legend}{mark.value} {count}", style=STYLES[mark])
        text.append("   ")
    text.rstrip()
    return text
