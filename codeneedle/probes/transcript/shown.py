"""The tokens of a turn beside the reference, with their text if the file is there."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import BadInput
from codeneedle.grid import most_precise
from codeneedle.probes.transcript.conversations import Turn, read_conversations
from codeneedle.probes.transcript.record import (
    NAME,
    Conditions,
    TurnFacts,
    conditions_of,
    scored_turns,
)
from codeneedle.probes.transcript.rendering import Kind, Part, field_text
from codeneedle.records.record import CellRecord, Run

UNKNOWN = "·"
"""Stands for a character of the template's, and for text that is not there."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """
    A token and what it lost.

    Attributes:
        text: Its part of the turn; `UNKNOWN` where that is not known.
        kind: Its class.
        probability: With the pair, from 0 to 1.
        reference: With the reference; None where it has no score.
    """

    text: str
    kind: Kind
    probability: float
    reference: float | None

    @property
    def loss(self) -> float:
        """What its probability lost against the reference; negative for a gain."""
        if self.reference is None:
            return 0.0
        return self.reference - self.probability


def shown_tokens(
    run: Run, record: CellRecord, name: str, file: Path | None
) -> tuple[ShownToken, ...]:
    """
    The tokens of the turn called *name*, as *record* scored them.

    Args:
        run: The run of the record.
        record: A finished one, which has scores of the turn.
        name: Of the turn.
        file: The transcript; None where its text is not to be shown.

    Raises:
        BadInput: If the file is another one than that which was measured.
    """
    chosen = conditions_of(run.setup)
    (turn,) = (each for each in chosen.turns if each.name == name)
    text = _text(turn, _recorded(turn, chosen, file)) if file else ""
    tokens = scored_turns(record, run.setup)[name]
    reference = _reference(run)
    theirs = scored_turns(reference, run.setup).get(name) if reference else None
    return tuple(
        ShownToken(
            text=text[token.start : token.end] or UNKNOWN,
            kind=token.kind,
            probability=math.exp(token.logprob),
            reference=math.exp(theirs[at].logprob) if theirs else None,
        )
        for at, token in enumerate(tokens)
    )


def _reference(run: Run) -> CellRecord | None:
    """The record of the most precise pair that has finished."""
    records = {
        record.pair: record
        for record in run.records
        if record.probe == NAME and record.has_numbers
    }
    return records[most_precise(records)] if records else None


def is_measured(run: Run, file: Path) -> bool:
    """Whether *file* is there, and what *run* measured."""
    try:
        data, _ = read_conversations(file)
    except BadInput:
        return False
    return hashlib.sha256(data).hexdigest() == conditions_of(run.setup).sha256


def _recorded(turn: TurnFacts, chosen: Conditions, file: Path) -> Turn:
    data, conversations = read_conversations(file)
    if hashlib.sha256(data).hexdigest() != chosen.sha256:
        raise BadInput(
            source=f"--transcript {file}",
            reason="it is not the file that was measured, or has changed since",
            hint="Name the file as it was, or leave the option out.",
        )
    number, _, at = turn.name.partition(".")
    every = conversations[int(number) - 1].turns
    return [each for each in every if each.role == "assistant"][int(at) - 1]


def _text(turn: TurnFacts, recorded: Turn) -> str:
    """The text of *turn*, with `UNKNOWN` for each character of the template's."""
    pieces = []
    for parts in _by_field(turn.parts):
        length = parts[-1].end - parts[0].start
        text = field_text(recorded, parts[0].field, length)
        pieces.append(UNKNOWN * length if text is None else text)
    return "".join(pieces)


def _by_field(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """*parts*, those of one field together: content is parted by code."""
    group: list[Part] = []
    for part in parts:
        if group and (not part.field or part.field != group[-1].field):
            yield group
            group = []
        group.append(part)
    if group:
        yield group
