"""
Options and stored layout of reuse; the states of a cache (cold, prefix, turn, restore),
and how far an answer differs from the cold one.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.probes.observations import (
    Answer,
    Observed,
    file_name_of,
    observation_of,
    refuse_impossible_scores,
    settings_in,
)
from codeneedle.records.record import MOST_TOKENS, CellRecord, Setup, from_json

NAME = "reuse"

MOST_QUESTIONS = 1000

# 1 - first version
WORDING = 1
"""Version of the text, the questions and the ways; a condition."""


LENGTH = 2048
"""Tokens of the text: a build was broken at 2,048, not at 512 (llama.cpp #27506)."""

LEAST_LENGTH = 256

QUESTIONS = 3


class ReuseSettings(Struct, frozen=True):
    """What a user may choose; None for what the run folder holds, or a default."""

    length: Annotated[
        Annotated[int, Meta(ge=LEAST_LENGTH, le=MOST_TOKENS)] | None,
        Meta(
            description="Tokens of the text of the probe reuse, which asks the same "
            "question with a cold cache and with one that is used again: a difference "
            "is an error of the cache, and no loss of the pair.",
            extra={
                "option": "--reuse-length",
                "default": f"{LENGTH}, or what the context holds",
            },
        ),
    ] = None
    questions: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_QUESTIONS)] | None,
        Meta(
            description="Questions of the probe reuse.",
            extra={"option": "--reuse-questions", "default": str(QUESTIONS)},
        ),
    ] = None

    @property
    def text_tokens(self) -> int:
        """Approximate length of the text, in tokens."""
        return self.length or LENGTH

    @property
    def question_count(self) -> int:
        """Number of questions."""
        return self.questions or QUESTIONS


class ReuseLayout(ReuseSettings, frozen=True, kw_only=True):
    """The settings as a setup stores them, with the version of the wording."""

    wording: int = WORDING


class CacheState(StrEnum):
    """
    The contents of the cache when a question is asked.

    cold: Nothing of the prompt.
    prefix: The text, with another question after it.
    turn: The text, a first question, and the answer, in the tokens that were written.
    restore: The text and another question, saved to a file and restored.
    """

    COLD = "cold"
    PREFIX = "prefix"
    TURN = "turn"
    RESTORE = "restore"


REUSED = tuple(way for way in CacheState if way is not CacheState.COLD)
"""The ways that reuse the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseQuestion:
    """One question with its answers in all ways."""

    function: str  # function whose lines are requested
    before: str  # function that the first turn of the conversation requests
    first: str  # answer of the first turn, a part of the prompt in all ways
    answers: tuple[Answer, ...]
    """One per `CacheState`, its name; the cold one first."""

    def comparable_answer(self, way: CacheState) -> Answer | None:
        """The answer in one *way*; None if it cannot be compared."""
        answers = (a for a in self.answers if a.name == way and not a.error)
        return next(answers, None)

    def largest_token_nats_difference(self, way: CacheState) -> float | None:
        """
        The largest change of a right token's log-probability from cold, in nats.

        None where *way*, or the cold answer, has a gap.
        """
        cold, again = (
            self.comparable_answer(CacheState.COLD),
            self.comparable_answer(way),
        )
        if cold is None or again is None or not (cold.scores and again.scores):
            return None
        both = zip(cold.scores.logprobs, again.scores.logprobs, strict=False)
        return max((abs(one - other) for one, other in both), default=None)

    def differs_from_cold_reply(self, way: CacheState) -> bool | None:
        """Whether the reply differs from the cold one; None where one is missing."""
        cold, again = (
            self.comparable_answer(CacheState.COLD),
            self.comparable_answer(way),
        )
        return None if cold is None or again is None else cold.text != again.text


@dataclass(frozen=True, slots=True)
class ReuseFacts:
    """Number of *functions* in the text."""

    functions: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the reuse probe has observed of a cell."""

    questions: tuple[ReuseQuestion, ...] = ()  # the questions, in order

    def largest_nats_difference(self, way: CacheState) -> float | None:
        """The largest difference of all questions; None if all have gaps."""
        differences = (
            question.largest_token_nats_difference(way) for question in self.questions
        )
        return max((nats for nats in differences if nats is not None), default=None)

    def gap_reasons(self, way: CacheState) -> list[str]:
        """The distinct reasons why answers could not be compared."""
        answers = (a for question in self.questions for a in question.answers)
        errors = (a.error for a in answers if a.name == way)
        return list(dict.fromkeys(filter(None, errors)))


def reuse_of(record: CellRecord) -> Reuse:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return parse_stored_reuse(
        observation_of(record, Observed), file=file_name_of(record)
    )


def parse_stored_reuse(stored: Observed, *, file: str) -> Reuse:
    """
    What is *stored* of a cell; errors name the *file*.

    Raises:
        BadRecord: See `reuse_of`.
    """
    from_json(stored.facts, ReuseFacts, file=file)
    questions = tuple(
        from_json(answer, ReuseQuestion, file=file)
        for answer in stored.answers.values()
    )
    for question in questions:
        refuse_impossible_scores(question.answers, file=file)
    return Reuse(questions)


def reuse_layout(setup: Setup) -> ReuseLayout:
    """
    The settings of the probe in *setup*.

    Raises:
        BadRecord: If they have another layout.
    """
    return settings_in(setup, NAME, ReuseLayout)
