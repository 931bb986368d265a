"""Runs of the transcript probe whose tokens have what a test wishes."""

import math
from dataclasses import replace

from made_losses import losing_setup
from made_records import sized

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Forced
from codeneedle.probes.observations import Answer, Observed
from codeneedle.probes.transcript.record import (
    NAME,
    TranscriptLayout,
    TurnFacts,
)
from codeneedle.probes.transcript.rendering import Kind, Part
from codeneedle.records.record import CellRecord, Run, Status, as_json

TEXT = "say f(1)"
"""Of each turn: four characters of text, and four of a call; a token each."""

PARTS = (Part(Kind.TEXT, 0, 4, "content"), Part(Kind.TOOL, 4, 8, "arguments 0"))


def made_conditions(turns=16, *, conversations=1):
    """*turns* in each of the conversations."""
    return TranscriptLayout(
        sha256="ab" * 32,
        conversations=conversations,
        tokens=None,
        turns=tuple(
            TurnFacts(
                name=f"{conversation + 1}.{turn + 1}",
                prompt_tokens=100 * (turn + 1),
                tokens=len(TEXT),
                prompt_sha256=f"{conversation:032}{turn:032}",
                text_sha256="ef" * 32,
                parts=PARTS,
            )
            for conversation in range(conversations)
            for turn in range(turns)
        ),
    )


def forced_turn(name, probability, *, behind=()):
    """
    A turn whose tokens have the *probability* that is given for their place.

    Those *behind* are no first choices, but at most as likely as another.
    """
    places = range(len(TEXT))

    def lead(at):
        return min(0.0, math.log(probability(at) / (1 - probability(at))))

    scores = Forced(
        logprobs=tuple(math.log(probability(at)) for at in places),
        leads=tuple(lead(at) if at in behind else 4.0 for at in places),
        ends=tuple(at + 1 for at in places),
    )
    return Answer(name=name, scores=scores)


def by_conversation(turns):
    """The answers that forced *turns* are, by conversation."""
    answers = {}
    for turn in turns:
        name = turn.name.partition(".")[0]
        answers.setdefault(name, {"answers": []})["answers"].append(as_json(turn))
    return answers


def transcript_record(pair, turns):
    """A finished record with these forced *turns*."""
    return sized(
        CellRecord(
            pair=Pair.parse(pair),
            probe=NAME,
            status=Status.FINISHED,
            started="2025-11-20T12:00:00+00:00",
            observation=as_json(Observed(answers=by_conversation(turns))),
        )
    )


def transcript_run(probabilities, conditions=None):
    """A run with *probabilities* of each pair, by number of turn and place of token."""
    chosen = conditions or made_conditions()
    setup = replace(losing_setup(list(probabilities)), probes={NAME: as_json(chosen)})
    records = [
        transcript_record(
            pair,
            [
                forced_turn(turn.name, lambda at, n=number, p=probability: p(n, at))
                for number, turn in enumerate(chosen.turns)
            ],
        )
        for pair, probability in probabilities.items()
    ]
    return Run(name="corpus/model", setup=setup, records=tuple(records))
