"""Shows answers beside the reference's, from the first difference on, and loops."""

import functools
import textwrap
from collections.abc import Iterator

from rich.text import Text

from codeneedle.document import Document, Lines, ShownText, Table
from codeneedle.probes.answers import ScoredAnswer, View
from codeneedle.probes.generation.comparing import AnswerComparison, compared_answers
from codeneedle.probes.generation.loops import Loop
from codeneedle.probes.generation.record import Written, reference_answers
from codeneedle.records.record import CellRecord, Run
from codeneedle.text import escape_invisible_in_lines, number_text, one_line, plural

SHARED_CHARACTERS = 160
"""Of what both answers have in common, shown before the first difference."""

LEAST_COLUMN = 20
"""Characters of an answer in a line, on whatever terminal."""

GAP = 2
"""Characters between both answers."""

NGRAM_CHARACTERS = 40
"""Of an n-gram that fills a stretch, as a list shows it."""


def answers(run: Run, record: CellRecord) -> Iterator[ScoredAnswer]:
    """The prompts of *record*, with what became of each."""
    first = reference_answers(run.setup)
    pairs = (first.pair if first else "", str(record.pair))
    for compared_answer in compared_answers(record, run.setup):
        yield ScoredAnswer(
            name=compared_answer.prompt,
            show=functools.partial(_difference_document, compared_answer, pairs),
            outcome=outcome_phrase(compared_answer),
        )


def overview(run: Run, record: CellRecord) -> Document:
    """One line per prompt of *record*: where it differs, how it ends."""
    every = compared_answers(record, run.setup)
    yield Lines([f"{plural(len(every), 'answer')}, written freely"])
    rows = [
        [
            comparison.prompt,
            f"{comparison.ours.tokens:,}",
            f"{comparison.theirs.tokens:,}",
            f"{comparison.difference.tokens:,}" if comparison.difference else "never",
            _lead_phrase(comparison),
            _ending_phrase(comparison.ours),
            _loop_phrase(comparison.ours, comparison.loop),
        ]
        for comparison in every
    ]
    heading = ("prompt", "tokens", "reference", "differs at", "lead", "ends", "loop")
    yield Table(heading, rows, words={"prompt", "ends", "loop"})


def outcome_phrase(comparison: AnswerComparison) -> str:
    """What became of an answer: ``the same``, ``differs at token 45, loops``."""
    words = ["the same"]
    if comparison.difference:
        words = [f"differs at token {comparison.difference.tokens:,}"]
    if comparison.is_out:
        why = "loops" if comparison.reference_loop else "writes nothing"
        words.append(f"left out: the reference {why}")
    elif comparison.loop:
        words.append("loops")
    if comparison.ours.is_empty:
        words.append("empty")
    if not comparison.ours.has_ended:
        words.append("does not end")
    return ", ".join(words)


def _difference_document(
    comparison: AnswerComparison, pairs: tuple[str, str], view: View
) -> Document:
    """
    Both answers from their first difference on, and loops; one if they are the same.

    *pairs* are the names of the reference and of the other.
    """
    reference, pair = pairs
    if comparison.difference is None:
        yield Lines(
            [f"the same as {reference}: {_length_and_ending_phrase(comparison.ours)}"]
        )
        yield Lines([Text(escape_invisible_in_lines(comparison.ours.text))])
        return
    at, lead = comparison.difference.character, _lead_phrase(comparison)
    sure = f", where {reference} was ahead by {lead} nats" if lead else ""
    same = plural(comparison.difference.tokens, "token")
    yield Lines([f"the same as {reference} for {same}{sure}"])
    shared = comparison.theirs.text[:at]
    start = max(0, len(shared) - SHARED_CHARACTERS)
    begun = f"{'… ' if start else ''}{shared[start:]}"
    yield Lines([Text(escape_invisible_in_lines(begun), style="dim")])
    half = max(LEAST_COLUMN, (view.width - GAP) // 2)
    row: list[ShownText] = [
        Text(_fold_text(written.text[at:], half) or "(it ends here)")
        for written in (comparison.theirs, comparison.ours)
    ]
    yield Table([reference, pair], [row], words={reference, pair})
    for name, written, loop in (
        (reference, comparison.theirs, comparison.reference_loop),
        (pair, comparison.ours, comparison.loop),
    ):
        looped = f"; loops: {_loop_phrase(written, loop)}" if loop else ""
        yield Lines([f"{name}: {_length_and_ending_phrase(written)}{looped}"])


def _fold_text(text: str, width: int) -> str:
    """*text*, safe to show, in lines of at most *width* characters."""
    lines = escape_invisible_in_lines(text).split("\n")
    return "\n".join(_fold_line(line, width) for line in lines)


def _fold_line(line: str, width: int) -> str:
    """*line* in lines of *width* characters at most; blanks are kept."""
    return textwrap.fill(
        line, width, replace_whitespace=False, drop_whitespace=False, tabsize=4
    )


def _length_and_ending_phrase(written: Written) -> str:
    """Length of an answer, and how it ended: ``45 tokens, ended``."""
    return f"{plural(written.tokens, 'token')}, {_ending_phrase(written)}"


def _ending_phrase(written: Written) -> str:
    return "ended" if written.has_ended else "cut by the limit"


def _lead_phrase(comparison: AnswerComparison) -> str:
    """Lead of the reference where an answer leaves it, in nats; empty if unknown."""
    lead = comparison.difference.lead if comparison.difference else None
    return "" if lead is None else number_text(lead, digits=2)


def _loop_phrase(written: Written, loop: Loop | None) -> str:
    """What fills a stretch of an answer, how often, from where; empty without."""
    if loop is None:
        return ""
    pieces = written.token_or_word_texts[loop.start : loop.start + loop.ngram]
    ngram = one_line(escape_invisible_in_lines("".join(pieces)))[:NGRAM_CHARACTERS]
    times = loop.tokens // loop.ngram
    return f"'{ngram}' {times} times from token {loop.start:,}"
