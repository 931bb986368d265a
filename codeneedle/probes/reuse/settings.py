"""Settings and conditions of the reuse probe."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.probes.reuse.record import NAME
from codeneedle.records.record import MOST_TOKENS, Length, Setup, from_json

LENGTH = 2048
"""Tokens of the text: a build was broken at 2,048, not at 512 (llama.cpp #27506)."""

LEAST_LENGTH = 256

QUESTIONS = 3
MOST_QUESTIONS = 1000

ROOM = 512
"""Tokens beside the text: two questions, two answers, right lines, chat template."""

# 1 - first version
WORDING = 1
"""Version of the text, the questions and the ways; a condition."""


_Length = Annotated[int, Meta(ge=LEAST_LENGTH, le=MOST_TOKENS)]


class ReuseSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    length: Annotated[
        _Length | None,
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
        int,
        Meta(
            ge=1,
            le=MOST_QUESTIONS,
            description="Questions of the probe reuse.",
            extra={"option": "--reuse-questions", "default": str(QUESTIONS)},
        ),
    ] = QUESTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseConditions:
    """
    Conditions that must match for records to be comparable.

    Attributes:
        length: Approximate length of the text, in tokens.
        questions: Number of questions.
        wording: `WORDING` at the time.
    """

    length: Length
    questions: Annotated[int, Meta(ge=1, le=MOST_QUESTIONS)]
    wording: int = WORDING


def chosen(settings: ReuseSettings, context: int) -> ReuseConditions:
    """The conditions that *settings* mean in a *context* of that many tokens."""
    length = settings.length or min(LENGTH, context - ROOM)
    return ReuseConditions(length=length, questions=settings.questions)


def conditions_of(setup: Setup) -> ReuseConditions:
    """
    The conditions of the probe in *setup*.

    Raises:
        BadRecord: If they have another layout.
    """
    return from_json(setup.probes[NAME], ReuseConditions, file="setup.json")
