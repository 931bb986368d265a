"""What is stored of transcripts: numbers and hashes, and nothing that was said."""

import bisect
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from codeneedle.engines.messages import Forced
from codeneedle.probes.transcript.rendering import Kind, Part
from codeneedle.records.record import (
    BadRecord,
    ByIdentity,
    CellRecord,
    Count,
    Setup,
    from_json,
)

NAME = "transcript"
"""Of the probe."""

MANY_CONVERSATIONS = 8
"""Conversations from which on these are the units of statistics, instead of turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """
    A turn of the assistant that every pair is forced to.

    Attributes:
        name: Number of the conversation and of the turn in it, from 1: ``2.5``.
        prompt_tokens: What is read before it, in tokens.
        tokens: Its text, in tokens.
        prompt_sha256: Of what is read before it, UTF-8.
        text_sha256: Of its text.
        parts: Of the text, by class.
    """

    name: str
    prompt_tokens: Count
    tokens: Count
    prompt_sha256: str
    text_sha256: str
    parts: tuple[Part, ...]

    @property
    def conversation(self) -> str:
        """Number of its conversation."""
        return self.name.partition(".")[0]

    def kind_at(self, place: int) -> Kind:
        """The class of the character at *place* of the text."""
        starts = [part.start for part in self.parts]
        return self.parts[max(0, bisect.bisect_right(starts, place) - 1)].kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """
    What every pair of a run is forced to, as a setup stores it.

    Attributes:
        sha256: Of the file.
        conversations: How many it holds.
        limit: Most tokens that were to be forced; None for all.
        turns: The turns, in order.
        left_out: Turns that are not measured, by name, and why.
        dropped: What the chat template drops, as phrases.
    """

    sha256: str
    conversations: Count
    limit: Count | None
    turns: tuple[TurnFacts, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def of_conversations(self) -> bool:
        """Whether the units of statistics are conversations."""
        return len({turn.conversation for turn in self.turns}) >= MANY_CONVERSATIONS

    def unit(self, turn: TurnFacts) -> str:
        """
        Name of the unit that *turn* belongs to.

        It begins with what is in the file: turns of two files are never compared.
        """
        name = turn.conversation if self.of_conversations else turn.name
        return f"{self.sha256[:8]} {name}"

    def units(self, kind: Kind | None = None) -> list[str]:
        """Names of the units that have tokens of that *kind*; None for any."""
        names = (
            self.unit(turn)
            for turn in self.turns
            if kind is None or any(part.kind is kind for part in turn.parts)
        )
        return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTurn(Forced):
    """
    The text of a turn, scored token by token.

    Attributes:
        turn: Its name.
        error: Why there are no scores; empty if there are.
        retries: Why earlier attempts failed before all were scored.
    """

    turn: str
    error: str = ""
    retries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """
    The observation of the probe.

    Attributes:
        turns: In the order of the setup.
        starts: Servers that it took.
    """

    turns: tuple[ForcedTurn, ...]
    starts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """
    A token of a turn.

    Attributes:
        kind: Its class.
        logprob: Natural logarithm of its probability, or an upper bound.
        lead: Log-probability minus that of the most probable other token.
        start: Where it begins in the text of the turn, in characters.
        end: Where it ends.
    """

    kind: Kind
    logprob: float
    lead: float
    start: int
    end: int


def conditions_of(setup: Setup) -> Conditions:
    """
    What *setup* says of transcripts.

    Raises:
        BadRecord: If it says nothing, or something that is none.
    """
    return _conditions_of(ByIdentity(setup))


def transcript_of(record: CellRecord) -> Transcript:
    """
    What the probe stored in *record*.

    Raises:
        BadRecord: If it is something else.
    """
    return _transcript_of(ByIdentity(record))


def scored_turns(
    record: CellRecord, setup: Setup
) -> dict[str, tuple[ScoredToken, ...]]:
    """
    The tokens of each turn of *record* that has scores, by its name.

    Raises:
        BadRecord: As of `conditions_of` and `transcript_of`.
    """
    return _scored_turns(ByIdentity(record), ByIdentity(setup))


# Small: all metrics of a record are read before the next record.
@functools.lru_cache(maxsize=16)
def _conditions_of(key: ByIdentity[Setup]) -> Conditions:
    chosen = from_json(key.value.probes.get(NAME, {}), Conditions, file="setup.json")
    if not all(turn.parts for turn in chosen.turns):
        raise BadRecord(file="setup.json", reason="a turn has no parts")
    return chosen


@functools.lru_cache(maxsize=16)
def _transcript_of(key: ByIdentity[CellRecord]) -> Transcript:
    record = key.value
    file = f"the {record.probe} record of {record.pair}"
    found = from_json(record.observation or {}, Transcript, file=file)
    for turn in found.turns:
        if not turn.is_even and not turn.error:
            raise BadRecord(file=file, reason=f"scores of turn {turn.turn} are missing")
    return found


@functools.lru_cache(maxsize=16)
def _scored_turns(
    record: ByIdentity[CellRecord], setup: ByIdentity[Setup]
) -> dict[str, tuple[ScoredToken, ...]]:
    turns = {turn.name: turn for turn in conditions_of(setup.value).turns}
    return {
        forced.turn: tuple(_tokens(turns[forced.turn], forced))
        for forced in transcript_of(record.value).turns
        if forced.is_even and forced.turn in turns
    }


def _tokens(turn: TurnFacts, forced: Forced) -> Iterator[ScoredToken]:
    start = 0
    scores = zip(forced.logprobs, forced.leads, forced.ends, strict=True)
    for logprob, lead, end in scores:
        yield ScoredToken(
            kind=turn.kind_at(start),
            logprob=logprob,
            lead=lead,
            start=start,
            end=end,
        )
        start = end
