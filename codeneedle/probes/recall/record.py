"""
The stored layout of recall: the unscored round, lines that were written, and right
lines by function, forced or read, which are never mixed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from codeneedle.corpora.needles import NeedleFacts
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
from codeneedle.probes.recall.settings import recall_layout, settings_of
from codeneedle.records.record import BadRecord, CellRecord, Setup, from_json

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
        return math.fsum((*self.texts_s, *(answer.wall_s for answer in self.read)))

    @property
    def scored_answers(self) -> tuple[Answer, ...]:
        """Right lines that were read, where any were; else those forced."""
        return self.read or self.forced


@dataclass(frozen=True)
class RightLineAnswer:
    """The right lines of a needle, as a pair scored their tokens."""

    needle: NeedleFacts  # what they are of
    scores: Forced  # of their tokens

    @property
    def lines_before_break(self) -> int:
        """
        Lines, blank ones not counted, before the first token that was no first choice.

        All of them where there is none. Until then greedy writing gives the same
        tokens: it would leave the truth in the line after these.
        """
        kept, lines = self.scores.leading_first_choices, self.needle.lines
        if kept < len(self.scores.ends):
            # A line break belongs to the line that it ends.
            before = "\n".join(lines)[: max(0, self.scores.ends[kept] - 1)]
            lines = lines[: before.count("\n")]
        return sum(bool(line.strip()) for line in lines)

    @property
    def right_line_flags(self) -> tuple[bool, ...]:
        """
        Whether all tokens of each line that has some were first choices.

        Right tokens stand before each of them, so that a line is right by itself.
        """
        text = "\n".join(self.needle.lines)
        by_line: dict[int, bool] = {}
        for end, lead in zip(self.scores.ends, self.scores.leads, strict=True):
            # A line break belongs to the line that it ends.
            line = text[: max(0, end - 1)].count("\n")
            by_line[line] = by_line.get(line, True) and lead > 0
        return tuple(by_line.values())


@keep_results()
def recall_of(record: CellRecord) -> Recall:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout, or scores of other tokens.
    """
    stored = observation_of(record, Observed)
    facts = from_json(stored.facts, RecallFacts, file=file_name_of(record))
    read = list(_groups_of_part(record, READ))
    return Recall(
        rounds=_answers_of_groups(_groups_of_part(record, WRITTEN)),
        forced=_answers_of_groups(_groups_of_part(record, FORCED)),
        read=_answers_of_groups(read),
        priming=facts.priming,
        starts=stored.starts,
        texts_s=tuple(group.text_s for group in read),
    )


def right_line_answers(
    record: CellRecord, setup: Setup
) -> Iterator[tuple[str, RightLineAnswer | None]]:
    """
    The right lines by function, further ones of open pairs included, in asking order.

    Those that were read if *setup* reads, else forced, never both; None for a function
    without scores.

    Raises:
        BadRecord: If it asks for a needle that *setup* does not have.
    """
    by_name = {needle.name: needle for needle in recall_layout(setup).forced}
    recall = recall_of(record)
    for answer in (
        recall.read if settings_of(setup).reads_instead_of_forcing else recall.forced
    ):
        needle = needle_named(by_name, answer.name, record)
        yield (
            answer.name,
            RightLineAnswer(needle, answer.scores) if answer.scores else None,
        )


def needle_named(
    by_name: Mapping[str, NeedleFacts], name: str, record: CellRecord
) -> NeedleFacts:
    """The needle of that *name*; a record of another one is refused."""
    if name not in by_name:
        reason = f"its setup has no needle '{name}'"
        raise BadRecord(file=file_name_of(record), reason=reason)
    return by_name[name]


def _groups_of_part(record: CellRecord, part: str) -> Iterator[AnswerGroup]:
    """The groups of answers of one *part*: `WRITTEN`, `FORCED` or `READ`."""
    for key, group in answers_of(record).items():
        if key.startswith(f"{part} "):
            yield group


def _answers_of_groups(groups: Iterable[AnswerGroup]) -> tuple[Answer, ...]:
    return tuple(chain.from_iterable(group.answers for group in groups))
