"""
Options of generation and its stored layout: answers in full, and of prompts their
hashes.
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from codeneedle.engines.messages import Reply
from codeneedle.probes.observations import (
    Observed,
    calibration_in,
    file_name_of,
    keep_results,
    observation_of,
    parse_answer_groups,
    settings_in,
)
from codeneedle.records.record import (
    MOST_TOKENS,
    CellRecord,
    Count,
    Nats,
    Setup,
)

NAME = "generation"
"""Of the probe."""

OPTION = "--prompts"

OWN = 8
"""Prompts that come with the program."""

MOST_PROMPTS = 1000

TOKENS = 1024
"""Most tokens of an answer; damage was seen after some hundred."""

LEAST_TOKENS = 16

# 1 - first version
# 2 - puzzle, parser and plan, on which a small model looped at once
WORDING = 2
"""Version of the prompts that come with the program; a condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """A prompt that every pair answers."""

    name: str  # ``plan``; the number in the user's file
    tokens: Count
    """Length in tokens; 0 where the engine does not count before the sweep."""

    sha256: str  # hash of what is sent, in UTF-8


class GenerationSettings(Struct, frozen=True):
    """What a user may choose."""

    file: Annotated[
        Path | None,
        Meta(
            description="Prompts that every pair answers at length, instead of those "
            "of the program: OpenAI's messages, as JSON or JSON lines, or a prompt in "
            "each line of text.",
            extra={"option": OPTION, "metavar": "FILE", "default": f"{OWN} of our own"},
        ),
    ] = None
    tokens: Annotated[
        Annotated[int, Meta(ge=LEAST_TOKENS, le=MOST_TOKENS)] | None,
        Meta(
            description="Most tokens of an answer of the probe generation, thinking "
            "included.",
            extra={
                "option": "--generation-tokens",
                "default": f"{TOKENS}, or what the context holds",
            },
        ),
    ] = None


class GenerationLayout(
    GenerationSettings, frozen=True, omit_defaults=True, kw_only=True
):
    """
    What a setup stores: settings, and what every pair of a run is asked.

    The path of the file is not stored, which is the user's own.
    """

    prompts: Annotated[tuple[PromptFacts, ...], Meta(max_length=MOST_PROMPTS)]
    """The prompts, in asking order."""

    thinking: str  # whether models may think before they answer, as a phrase
    sha256: str  # hash of the user's file; empty for the prompts of the program
    wording: int  # `WORDING` at the time; 0 with the user's file
    copies: Count = 0
    """Prompts of the file that are others once more, as they are sent; not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An answer that was written freely."""

    text: str  # all of it, its thought first, verbatim
    tokens: Count  # its length
    finish: Literal["stop", "length"]
    """Whether the model ended it, or its limit of tokens did."""

    lengths: tuple[Count, ...] = ()
    """
    Per token, the characters of the text that it added; empty if the server did not
    tell.
    """

    leads: tuple[Nats, ...] = ()
    """
    Per token, its log-probability minus that of the runner-up; empty if the server does
    not tell.
    """

    drafted: Count = 0  # tokens that the server drafted by speculation
    accepted: Count = 0  # of these, the ones that verification accepted

    @property
    def token_or_word_texts(self) -> list[str]:
        """
        The text of each token.

        Words where lengths of tokens do not make the text.
        """
        if sum(self.lengths) != len(self.text):
            return re.findall(r"\S+\s*|\s+", self.text)
        ends = itertools.accumulate(self.lengths, initial=0)
        return [self.text[start:end] for start, end in itertools.pairwise(ends)]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written, or nothing but white space."""
        return not self.text.strip()

    @property
    def has_ended(self) -> bool:
        """Whether the model ended it."""
        return self.finish == "stop"


def written_from(reply: Reply) -> Written:
    """
    What is stored of *reply*.

    A thought that a server separates stands before the answer; its tokens are then
    told by nothing but their number. So are those of an answer some of whose tokens
    were drafted, which come without probabilities.
    """
    text = f"{reply.reasoning}{reply.text}"
    is_whole = sum(reply.lengths) == len(text) and not reply.drafted
    lengths = reply.lengths if is_whole else ()
    is_told = len(reply.gaps) == len(lengths)
    return Written(
        text=text,
        tokens=reply.predicted_tokens or len(reply.lengths),
        finish="stop" if reply.finish == "stop" else "length",
        lengths=lengths,
        leads=tuple(round(gap, 3) for gap in reply.gaps) if is_told else (),
        drafted=reply.drafted,
        accepted=reply.accepted,
    )


def generation_layout(setup: Setup) -> GenerationLayout:
    """
    What *setup* stores of the probe.

    Raises:
        BadRecord: If it has another layout.
    """
    return settings_in(setup, NAME, GenerationLayout)


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """What the first cell, the reference, has written."""

    pair: str  # its cache types
    answers: dict[str, Written]  # its answers, by the name of the prompt


def reference_answers(setup: Setup) -> First | None:
    """
    The answers that others are compared with; None before they are written.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    return calibration_in(setup, NAME, First)


@keep_results()
def written_answers_by_prompt(record: CellRecord) -> dict[str, Written]:
    """
    The answers of *record*, by the name of the prompt.

    Raises:
        BadRecord: If it has another layout.
    """
    return parse_written_answers(
        observation_of(record, Observed), file=file_name_of(record)
    )


def parse_written_answers(stored: Observed, *, file: str) -> dict[str, Written]:
    """
    The answers that are *stored* of a cell; errors name the *file*.

    Raises:
        BadRecord: See `written_answers_by_prompt`.
    """
    groups = parse_answer_groups(stored, file=file).items()
    every = ((key, answer) for key, group in groups for answer in group.answers)
    return {key: written_from(answer.reply) for key, answer in every if answer.reply}
