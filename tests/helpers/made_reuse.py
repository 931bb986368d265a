"""Makes records of the reuse probe: answers that differ as much as wished."""

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import Forced, Reply
from codeneedle.probes.observations import Answer, Observed
from codeneedle.probes.reuse.record import (
    NAME,
    REUSED,
    CacheState,
    ReuseQuestion,
)
from codeneedle.records.record import CellRecord, Status, as_json

TOKENS = 10


def made_question(function="abcd", *, gaps=None, replies=None, **away):
    """
    A question whose second right token moves by as many nats as *away* says of a way.

    Ways that *gaps* names have no answer; those of *replies*, another one.
    """
    replies, gaps = replies or {}, gaps or {}

    def answer(way):
        if way in gaps:
            return Answer(name=way, error=gaps[way])
        moved = (-0.5, -0.5 - away.get(way, 0.0), *(-0.5,) * (TOKENS - 2))
        cached = 0 if way is CacheState.COLD else 450
        return Answer(
            name=way,
            reply=Reply(
                text=replies.get(way, "a = 1\nb = 2\n"),
                finish="length",
                prompt_tokens=500,
                cached_tokens=cached,
            ),
            scores=Forced(
                logprobs=moved,
                leads=(1.0,) * TOKENS,
                ends=tuple(range(1, TOKENS + 1)),
                cached_tokens=cached,
            ),
        )

    answers = tuple(map(answer, (CacheState.COLD, *REUSED)))
    return ReuseQuestion(
        function=function, before="efgh", first="c = 3\n", answers=answers
    )


def reuse_record(pair, *questions):
    """A finished record with these questions."""
    return CellRecord(
        pair=Pair.parse(pair),
        probe=NAME,
        status=Status.FINISHED,
        started="2025-11-20T12:00:00+00:00",
        observation=as_json(
            Observed(
                answers={str(at): as_json(each) for at, each in enumerate(questions)},
                facts={"functions": 9},
            )
        ),
    )
