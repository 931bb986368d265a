"""
Options and stored layout of transcripts, numbers and hashes and none of their text;
which turns are copies, and whether turns or conversations are the units.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from codeneedle.engines.messages import Forced
from codeneedle.probes.observations import (
    Answer,
    answers_of,
    keep_results,
    settings_in,
)
from codeneedle.probes.transcript.exports import PROGRAMS
from codeneedle.probes.transcript.rendering import Kind, Part
from codeneedle.records.record import (
    CellRecord,
    Count,
    Setup,
    refuse_unless_possible,
)
from codeneedle.records.store import SETUP

NAME = "transcript"
"""Of the probe."""

COPY = "copies of earlier ones: their prompts and texts are equal"
"""Why a turn is left out that was said before: what is asked twice is one unit."""

MANY_CONVERSATIONS = 8
"""From so many conversations on, they are the units of statistics; else turns are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """A turn of the assistant that every pair is forced to."""

    name: str  # number of the conversation and of the turn in it, from 1: ``2.5``
    prompt_tokens: Count  # length of the prompt before it, in tokens
    tokens: Count  # length of its text, in tokens
    prompt_sha256: str  # hash of the prompt in UTF-8
    text_sha256: str  # hash of its text
    parts: tuple[Part, ...]  # parts of the text, with their classes

    @property
    def conversation_number(self) -> str:
        """Number of its conversation."""
        return self.name.partition(".")[0]

    @property
    def question_key(self) -> tuple[str, str]:
        """What makes it another turn than others: hashes of its prompt and text."""
        return self.prompt_sha256, self.text_sha256

    def has_tokens_of_kind(self, kind: Kind | None) -> bool:
        """Whether it has tokens of one *kind*; None for any."""
        return kind is None or any(part.kind is kind for part in self.parts)

    def kind_at(self, place: int) -> Kind:
        """
        The class of the character at that *place* in the text.

        Of the last part where it is behind all.
        """
        starts = [part.start for part in self.parts]
        return self.parts[max(0, bisect.bisect_right(starts, place) - 1)].kind


class TranscriptSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose."""

    file: Annotated[
        Path | None,
        Meta(
            description="Recorded conversations whose answers are forced: OpenAI's "
            "messages or ShareGPT's conversations, as JSON or JSON lines, or an export "
            f"of {PROGRAMS}.",
            extra={"option": "--transcript", "metavar": "FILE", "default": "none"},
        ),
    ] = None
    tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Most tokens of answers to force in a cell: turns evenly "
            "spread over the conversations.",
            extra={"option": "--transcript-tokens", "default": "all"},
        ),
    ] = None


class TranscriptLayout(
    TranscriptSettings, frozen=True, omit_defaults=True, kw_only=True
):
    """
    What a setup stores: settings, and the turns that every pair of a run is forced to.

    The path of the file is not stored, which is the user's own.
    """

    sha256: str  # hash of the file
    conversations: Count  # number of conversations in it
    turns: tuple[TurnFacts, ...]  # the turns, in order
    left_out: tuple[tuple[str, str], ...] = ()
    """Names of turns that are not measured, with the reason."""

    dropped: tuple[str, ...] = ()  # fields that the chat template drops, as phrases
    aside: tuple[str, ...] = ()
    """What the file has that is not read, as phrases, such as other branches."""

    @property
    def has_conversation_units(self) -> bool:
        """Whether the units of statistics are conversations."""
        return (
            len({turn.conversation_number for turn in self.turns}) >= MANY_CONVERSATIONS
        )

    def unit_name(self, turn: TurnFacts) -> str:
        """
        Name of the unit that *turn* belongs to.

        It begins with the hash of the file: turns of two files are never paired.
        """
        name = turn.conversation_number if self.has_conversation_units else turn.name
        return f"{self.sha256[:8]} {name}"

    def unit_names(self, kind: Kind | None = None) -> list[str]:
        """Names of the units that have tokens of one *kind*; None for any."""
        names = (
            self.unit_name(turn) for turn in self.turns if turn.has_tokens_of_kind(kind)
        )
        return list(dict.fromkeys(names))

    def turns_by(
        self, name: Callable[[TurnFacts], str]
    ) -> Iterable[tuple[str, list[TurnFacts]]]:
        """The turns by the *name* that they share, in order of the first of each."""
        by_name: dict[str, list[TurnFacts]] = {}
        for turn in self.turns:
            by_name.setdefault(name(turn), []).append(turn)
        return by_name.items()


@keep_results()
def transcript_layout(setup: Setup) -> TranscriptLayout:
    """
    What *setup* stores of the probe, with turns that are copies as left out.

    Raises:
        BadRecord: If there are none, or they have another layout.
    """
    layout = settings_in(setup, NAME, TranscriptLayout)
    for turn in layout.turns:
        refuse_unless_possible(bool(turn.parts), "a turn has no parts", file=SETUP)
    copies = copied_turn_names(layout.turns)
    return structs.replace(
        layout,
        turns=tuple(turn for turn in layout.turns if turn.name not in copies),
        left_out=(*layout.left_out, *((name, COPY) for name in sorted(copies))),
    )


def copied_turn_names(turns: Iterable[TurnFacts]) -> frozenset[str]:
    """Names of the *turns* that were said before, behind the same prompt."""
    firsts: dict[tuple[str, str], str] = {}
    names = (
        (turn.name, firsts.setdefault(turn.question_key, turn.name)) for turn in turns
    )
    return frozenset(name for name, first in names if name != first)


def turn_answers(record: CellRecord) -> tuple[Answer, ...]:
    """
    The answers to turns that *record* was asked, with and without scores.

    Raises:
        BadRecord: If it has another layout.
    """
    return tuple(
        turn for group in answers_of(record).values() for turn in group.answers
    )


@keep_results()
def scores_by_turn(record: CellRecord, setup: Setup) -> dict[str, Forced]:
    """
    The scores of each turn of *record* that has some and is no copy, by its name.

    Raises:
        BadRecord: See `transcript_layout` and `turn_answers`.
    """
    names = {turn.name for turn in transcript_layout(setup).turns}
    every = (turn for turn in turn_answers(record) if turn.name in names)
    return {turn.name: turn.scores for turn in every if turn.scores}


def scores_of_kind(turn: TurnFacts, scores: Forced, kind: Kind | None) -> Forced:
    """The *scores* of tokens of one *kind* in a *turn*, without ends; None for all."""
    starts = (0, *scores.ends[:-1])
    is_of = [kind in {None, turn.kind_at(start)} for start in starts]
    return Forced(
        logprobs=tuple(itertools.compress(scores.logprobs, is_of)),
        leads=tuple(itertools.compress(scores.leads, is_of)),
    )
