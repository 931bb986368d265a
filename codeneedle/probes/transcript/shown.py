"""The tokens of a turn with both probabilities, and with their text from the file."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import BadInput
from codeneedle.grid import reference_among
from codeneedle.probes.transcript.conversations import Turn, read_conversations
from codeneedle.probes.transcript.record import (
    NAME,
    Conditions,
    TurnFacts,
    conditions_of,
    scored_turns,
)
from codeneedle.probes.transcript.rendering import Kind, field_text
from codeneedle.records.record import CellRecord, Run

UNKNOWN = "·"
"""Stands for a character that the template adds, and for text that is not known."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """
    A token and its loss.

    Attributes:
        text: Its part of the turn; `UNKNOWN` where that is not known.
        kind: Its class.
        probability: Its probability with the pair, from 0 to 1.
        reference: Its probability with the reference; None where that has no score.
    """

    text: str
    kind: Kind
    probability: float
    reference: float | None

    @property
    def loss(self) -> float:
        """Probability lost against the reference; negative for a gain."""
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
        name: Name of the turn.
        file: The transcript; None to show no text.

    Raises:
        BadInput: If the file is not the one that was measured.
    """
    chosen = conditions_of(run.setup)
    turn = next(turn for turn in chosen.turns if turn.name == name)
    text = _text(turn, _recorded(turn, chosen, file)) if file else ""
    tokens = scored_turns(record, run.setup)[name]
    records = {
        other.pair: other
        for other in run.records
        if other.probe == NAME and other.has_numbers
    }
    reference = reference_among(records.values())
    expected = (
        scored_turns(records[reference], run.setup).get(name) if reference else None
    )
    return tuple(
        ShownToken(
            text=text[token.start : token.end] or UNKNOWN,
            kind=token.kind,
            probability=math.exp(token.logprob),
            reference=math.exp(expected[at].logprob) if expected else None,
        )
        for at, token in enumerate(tokens)
    )


def is_measured(run: Run, file: Path) -> bool:
    """True if *file* exists and is the one that *run* measured."""
    try:
        sha256, _ = read_conversations(file)
    except BadInput:
        return False
    return sha256 == conditions_of(run.setup).sha256


def _recorded(turn: TurnFacts, chosen: Conditions, file: Path) -> Turn:
    """The recording of *turn* in *file*."""
    sha256, conversations = read_conversations(file)
    if sha256 != chosen.sha256:
        raise BadInput(
            source=f"--transcript {file}",
            reason="it is not the file that was measured, or has changed since",
            hint="Name the file as it was, or leave the option out.",
        )
    number, _, at = turn.name.partition(".")
    turns = conversations[int(number) - 1].turns
    return [turn for turn in turns if turn.role == "assistant"][int(at) - 1]


def _text(turn: TurnFacts, recorded: Turn) -> str:
    """The text of *turn*, with `UNKNOWN` for each character that the template adds."""
    pieces = []
    # Blocks of code split the content into several parts of one field.
    for field, group in itertools.groupby(turn.parts, key=lambda part: part.field):
        parts = list(group)
        length = parts[-1].end - parts[0].start
        pieces.append(field_text(recorded, field, length) or UNKNOWN * length)
    return "".join(pieces)
