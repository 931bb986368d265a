"""Questions that were asked with a cold cache and again, beside each other."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.probes.reuse.record import (
    AGAIN,
    ReuseAnswer,
    ReuseQuestion,
    Way,
    reuse_of,
)
from codeneedle.records.record import CellRecord
from codeneedle.report.captions import number, text_table
from codeneedle.text import plural, visible, visible_lines

HEADINGS = ("question", "cache", "reused", "nats", "reply")

SAME, OTHER = "the same", "another"


def reuse_overview(record: CellRecord) -> Group:
    """Each way of each question of a reuse record, then the replies that differ."""
    found = reuse_of(record).questions
    said = f"{plural(len(found), 'question')} with a cold cache, and used again"
    return Group(Text(), Text(said), Text(), reuse_view(found))


def reuse_view(found: Sequence[ReuseQuestion]) -> Group:
    """What each way of *found* changed; below, replies beside those of a cold cache."""
    rows = [_row(question, answer) for question in found for answer in question.answers]
    table = text_table(HEADINGS, rows, words={"question": 8, "cache": 7, "reply": 12})
    return Group(table, *(part for question in found for part in _replies(question)))


def _row(question: ReuseQuestion, answer: ReuseAnswer) -> list[str]:
    where = [visible(question.function), answer.way.value]
    counts = f"{answer.cached_tokens:,} of {answer.prompt_tokens:,}"
    if answer.gap:
        return [*where, "", "", visible(f"not compared: {answer.gap}")]
    if answer.way is Way.COLD:
        return [*where, counts, "", ""]
    change = question.difference(answer.way)
    nats = number(math.nan if change is None else change, digits=4)
    return [*where, counts, nats, OTHER if question.differs(answer.way) else SAME]


def _replies(question: ReuseQuestion) -> Iterator[RenderableType]:
    """The cold reply to a question, beside those that are not the same."""
    cold = question.answer(Way.COLD)
    others = [
        answer
        for way in AGAIN
        if question.differs(way) and (answer := question.answer(way)) is not None
    ]
    if cold is None or not others:
        return
    yield Text()
    yield Text(f"{visible(question.function)}: replies", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for each in (cold, *others):
        table.add_column(each.way.value, overflow="fold", ratio=1)
    table.add_row(*(Text(visible_lines(each.reply)) for each in (cold, *others)))
    yield table
