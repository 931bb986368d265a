"""Shows questions asked with a cold cache and with a reused one, side by side."""

import functools
import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from codeneedle.document import Block, Document, Lines, ShownText, Table
from codeneedle.probes.answers import ScoredAnswer, View
from codeneedle.probes.observations import Answer
from codeneedle.probes.reuse.record import (
    REUSED,
    CacheState,
    ReuseQuestion,
    reuse_of,
)
from codeneedle.records.record import CellRecord
from codeneedle.text import escape_invisible_in_lines, number_text, plural

HEADINGS = ("question", "cache", "reused", "nats", "reply")

SAME, OTHER = "the same", "another"


def answers(record: CellRecord) -> Iterator[ScoredAnswer]:
    """The questions of *record*."""
    for question in reuse_of(record).questions:
        yield ScoredAnswer(
            name=question.function, show=functools.partial(_question_document, question)
        )


def _question_document(question: ReuseQuestion, _view: View) -> Document:
    return comparison_blocks([question])


def overview(record: CellRecord) -> Document:
    """Each way of each question of a reuse record, then the replies that differ."""
    questions = reuse_of(record).questions
    count = plural(len(questions), "question")
    yield Lines([f"{count} with a cold cache, and used again"])
    yield from comparison_blocks(questions)


def comparison_blocks(questions: Sequence[ReuseQuestion]) -> Document:
    """What each way changed; below, replies that differ, beside those from cold."""
    rows = [
        _answer_row(question, answer)
        for question in questions
        for answer in question.answers
    ]
    yield Table(HEADINGS, rows, words={"question", "cache", "reply"})
    for question in questions:
        yield from _differing_reply_blocks(question)


def _answer_row(question: ReuseQuestion, answer: Answer) -> list[str]:
    """Cells of an answer: counts, change of right lines, whether replies differ."""
    where, way = [question.function, answer.name], CacheState(answer.name)
    if answer.error:
        return [*where, "", "", f"not compared: {answer.error}"]
    counts = f"{answer.cached_tokens:,} of {answer.prompt_tokens:,}"
    if way is CacheState.COLD:
        return [*where, counts, "", ""]
    change = question.largest_token_nats_difference(way)
    nats = number_text(math.nan if change is None else change, digits=4)
    return [
        *where,
        counts,
        nats,
        OTHER if question.differs_from_cold_reply(way) else SAME,
    ]


def _differing_reply_blocks(question: ReuseQuestion) -> Iterator[Block]:
    """The cold reply to a question, beside those that differ; nothing without any."""
    cold = question.comparable_answer(CacheState.COLD)
    others = [
        answer
        for way in REUSED
        if question.differs_from_cold_reply(way)
        and (answer := question.comparable_answer(way)) is not None
    ]
    if cold is None or not others:
        return
    every = (cold, *others)
    heading = [question.function, *(answer.name for answer in every)]
    row: list[ShownText] = [
        "reply",
        *(Text(escape_invisible_in_lines(answer.text)) for answer in every),
    ]
    yield Table(heading, [row], words=heading)
