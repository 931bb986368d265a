"""What the recall probe stores of a cell."""

import math
from dataclasses import dataclass
from typing import TypeVar

from codeneedle.engines.messages import Forced, Generation
from codeneedle.probes.observations import Observed, cached, file_of, observed
from codeneedle.records.record import (
    Amount,
    CellRecord,
    from_json,
    refuse_impossible,
)

NAME = "recall"
"""Of the probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Generation):
    """One needle asked of one cell."""

    needle: str  # name of the function
    prompt_sha256: str  # of the prompt's text as sent, UTF-8
    reply: str = ""  # the model's text, verbatim; empty on an error
    error: str = ""  # why there is no line to score; empty if there is one
    retries: tuple[str, ...] = ()
    """Why earlier attempts failed before a reply was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRound(Forced):
    """Right lines of one function, joined by newlines, scored token by token."""

    needle: str  # name of the function
    prompt_sha256: str
    """
    Of the prompt's text as sent, UTF-8; of lines that were read, of the whole text.
    """

    error: str = ""  # why there are no scores; empty if there are
    retries: tuple[str, ...] = ()  # why earlier attempts failed before all were scored


WRITTEN, FORCED, READ = "written", "forced", "read"
"""
What keys of questions begin with; the name of the function follows.

Of those that were read, behind what makes their chunk another one.
"""


@dataclass(frozen=True, slots=True)
class RecallFacts:
    """What holds for all answers of a cell."""

    priming: Round | None = None
    """An unscored round before all others of the first server."""

    texts_s: tuple[Amount, ...] = ()
    """Seconds of each text that was read with questions, without these."""


_Layout = TypeVar("_Layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What the recall probe has observed of a cell."""

    rounds: tuple[Round, ...]
    """The written rounds, in asking order; empty if none were asked for."""

    forced: tuple[ForcedRound, ...] = ()
    """Right lines scored as they were written, in asking order; empty without any."""

    read: tuple[ForcedRound, ...] = ()
    """
    Right lines scored as they were read; empty without any. They are never compared
    with *forced*.
    """

    priming: Round | None = None  # the unscored round before them, of the first server
    starts: int = 1  # servers that it took; each read the text once
    texts_s: tuple[float, ...] = ()  # as of `RecallFacts`

    @property
    def answers(self) -> "tuple[Round | ForcedRound, ...]":
        """The written rounds, and behind them the forced ones."""
        return (*self.rounds, *self.forced, *self.read)

    @property
    def reading_s(self) -> float:
        """Seconds of all that was read, with the start of what read it."""
        return math.fsum((*self.texts_s, *(each.wall_s for each in self.read)))

    @property
    def scored(self) -> tuple[ForcedRound, ...]:
        """Right lines that were read, where any were; else those forced."""
        return self.read or self.forced


@cached()
def recall_of(record: CellRecord) -> Recall:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout, or scores of other tokens.
    """
    return recall_in(observed(record, Observed), file=file_of(record))


def recall_in(stored: Observed, *, file: str) -> Recall:
    """
    What was *stored* of a cell, or observed so far; errors name the *file*.

    Raises:
        BadRecord: As of `recall_of`.
    """
    facts = from_json(stored.facts, RecallFacts, file=file)
    recall = Recall(
        rounds=_answers(stored, WRITTEN, Round, file=file),
        forced=_answers(stored, FORCED, ForcedRound, file=file),
        read=_answers(stored, READ, ForcedRound, file=file),
        priming=facts.priming,
        starts=stored.starts,
        texts_s=facts.texts_s,
    )
    for each in recall.answers:
        has_none = isinstance(each, ForcedRound) and bool(each.error)
        fault = "beside an error" * bool(each.logprobs) if has_none else each.fault
        what = f"the scores of {each.needle} are none: {fault}"
        refuse_impossible(not fault, what, file=file)
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
