"""What the recall probe stores of a cell."""

import math
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from codeneedle.probes.observations import (
    Answer,
    AnswerGroup,
    Observed,
    file_of,
    keep_results,
    observation_of,
    refuse_faults,
)
from codeneedle.records.record import CellRecord, from_json

_Layout = TypeVar("_Layout")

NAME = "recall"
"""Of the probe."""


WRITTEN, FORCED, READ = "written", "forced", "read"
"""
What keys of questions begin with; the name of the function follows.

Of those that were read, what makes their chunk another one: they are an `AnswerGroup`.
"""


@dataclass(frozen=True, slots=True)
class RecallFacts:
    """What holds for all answers of a cell."""

    priming: Answer | None = None
    """An unscored round before all others of the first server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What the recall probe has observed of a cell."""

    rounds: tuple[Answer, ...]
    """The written rounds, in asking order; empty if none were asked for."""

    forced: tuple[Answer, ...] = ()
    """Right lines scored as they were written, in asking order; empty without any."""

    read: tuple[Answer, ...] = ()
    """
    Right lines scored as they were read; empty without any. They are never compared
    with *forced*.
    """

    priming: Answer | None = None  # the unscored round before them, of the first server
    starts: int = 1  # servers that it took; each read the text once
    texts_s: tuple[float, ...] = ()
    """Seconds of each text that was read with questions, without these."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The written rounds, and behind them the forced ones."""
        return (*self.rounds, *self.forced, *self.read)

    @property
    def reading_s(self) -> float:
        """Seconds of all that was read, with the start of what read it."""
        return math.fsum((*self.texts_s, *(each.wall_s for each in self.read)))

    @property
    def scored_answers(self) -> tuple[Answer, ...]:
        """Right lines that were read, where any were; else those forced."""
        return self.read or self.forced


@keep_results()
def recall_of(record: CellRecord) -> Recall:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout, or scores of other tokens.
    """
    return recall_in(observation_of(record, Observed), file=file_of(record))


def recall_in(stored: Observed, *, file: str) -> Recall:
    """
    What was *stored* of a cell, or observed so far; errors name the *file*.

    Raises:
        BadRecord: As of `recall_of`.
    """
    facts = from_json(stored.facts, RecallFacts, file=file)
    read = _answers(stored, READ, AnswerGroup, file=file)
    recall = Recall(
        rounds=_answers(stored, WRITTEN, Answer, file=file),
        forced=_answers(stored, FORCED, Answer, file=file),
        read=tuple(chain.from_iterable(group.answers for group in read)),
        priming=facts.priming,
        starts=stored.starts,
        texts_s=tuple(group.text_s for group in read),
    )
    refuse_faults(recall.answers, file=file)
    return recall


def _answers(
    stored: Observed, part: str, layout: type[_Layout], *, file: str
) -> tuple[_Layout, ...]:
    """The answers whose keys begin with *part*."""
    return tuple(
        from_json(answer, layout, file=file)
        for key, answer in stored.answers.items()
        if key.startswith(f"{part} ")
    )
