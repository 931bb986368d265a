"""Makes records of the generation probe: answers of as many words as wished."""

from dataclasses import replace

from made_records import made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Reply
from codeneedle.probes.generation.record import (
    NAME,
    WORDING,
    First,
    GenerationLayout,
    PromptFacts,
    Written,
)
from codeneedle.probes.observations import Answer, Observed
from codeneedle.records.record import CellRecord, Status, as_json


def written(text, *, finish="stop", lead=1.0):
    """An answer whose tokens are words, each chosen with the same *lead*."""
    words = text.split(" ")
    lengths = tuple(len(word) + (at > 0) for at, word in enumerate(words))
    return Written(
        text=text,
        tokens=len(words),
        finish=finish,
        lengths=lengths,
        leads=(lead,) * len(words),
    )


def generation_setup(reference, answers):
    """A setup whose reference has written these *answers*, by prompt."""
    prompts = tuple(PromptFacts(name=name, tokens=9, sha256="ab") for name in answers)
    layout = GenerationLayout(
        prompts=prompts, tokens=512, thinking="", sha256="", wording=WORDING
    )
    first = First(pair=reference, answers=answers)
    return replace(
        made_setup(),
        probes={NAME: as_json(layout)},
        calibrated={NAME: as_json(first)},
    )


def _answer(name, made):
    """As a server told it."""
    reply = Reply(
        text=made.text,
        finish=made.finish,
        predicted_tokens=made.tokens,
        lengths=made.lengths,
        gaps=made.leads,
        drafted=made.drafted,
        accepted=made.accepted,
    )
    return Answer(name=name, reply=reply)


def generation_record(pair, answers, *, reference="f16/f16", probe=NAME):
    """A finished record with these *answers*, by prompt."""
    observed = Observed(
        answers={name: as_json(_answer(name, each)) for name, each in answers.items()},
        facts={"against": reference},
    )
    return CellRecord(
        pair=Pair.parse(pair),
        probe=probe,
        status=Status.FINISHED,
        started="2025-11-20T12:00:00+00:00",
        observation=as_json(observed),
    )
