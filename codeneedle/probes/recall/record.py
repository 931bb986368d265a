"""
The stored layout of recall: lines that were written, forced or read, of which the last
two are never mixed, and the unscored round before them.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from codeneedle.engines.messages import Forced
from codeneedle.probes.observations import (
    Answer,
    AnswerGroup,
    Observed,
    answers_of,
    file_name_of,
    keep_results,
    observation_of,
)
from codeneedle.probes.recall.settings import settings_of
from codeneedle.records.record import CellRecord, Setup, from_json

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
        """The written rounds, then the forced ones, then those that were read."""
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
    stored = observation_of(record, Observed)
    facts = from_json(stored.facts, RecallFacts, file=file_name_of(record))
    read = list(_groups_by_part(record, READ))
    return Recall(
        rounds=_answers_of_groups(_groups_by_part(record, WRITTEN)),
        forced=_answers_of_groups(_groups_by_part(record, FORCED)),
        read=_answers_of_groups(read),
        priming=facts.priming,
        starts=stored.starts,
        texts_s=tuple(group.text_s for group in read),
    )


def scores_by_function(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, Forced | None]]:
    """
    The scores of right lines by function, further ones of open pairs included.

    Of those that were read if *setup* reads, else forced, never both; None for a
    function without scores.
    """
    recall = recall_of(record)
    for answer in recall.read if settings_of(setup).reads else recall.forced:
        yield answer.name, answer.scores


def _groups_by_part(record: CellRecord, part: str) -> Iterator[AnswerGroup]:
    """The answers whose keys begin with *part*."""
    for key, group in answers_of(record).items():
        if key.startswith(f"{part} "):
            yield group


def _answers_of_groups(groups: Iterable[AnswerGroup]) -> tuple[Answer, ...]:
    return tuple(chain.from_iterable(group.answers for group in groups))
