"""What the reuse probe stores of a cell."""

from dataclasses import dataclass
from enum import StrEnum

from codeneedle.engines.messages import Forced
from codeneedle.records.record import CellRecord, from_json

NAME = "reuse"
"""Of the probe."""


class Way(StrEnum):
    """
    What is in the cache when a question is asked.

    cold: Nothing of the prompt.
    prefix: The text, which another question was asked of.
    turn: The text, a first question, and the answer as the model wrote it.
    restore: The text and another question, saved to a file and restored.
    """

    COLD = "cold"
    PREFIX = "prefix"
    TURN = "turn"
    RESTORE = "restore"


AGAIN = tuple(way for way in Way if way is not Way.COLD)
"""The ways in which the cache is used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseAnswer:
    """
    What one way of asking gave.

    Attributes:
        way: Which.
        reply: What the model wrote, verbatim.
        scored: The right lines, forced; None where nothing was asked.
        prompt_tokens: Length of the prompt, in tokens.
        cached_tokens: Of these, the fewest that were taken from the cache, when the
            reply was written and when the right lines were forced.
        gap: Why nothing can be compared; empty if it can.
    """

    way: Way
    reply: str = ""
    scored: Forced | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    gap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseQuestion:
    """
    One question, asked in each way.

    Attributes:
        function: Whose lines are asked for.
        before: Whose lines the first question of the conversation asks for.
        first: The answer to that, a part of the prompt in each way.
        answers: One for each way, the cold one first.
    """

    function: str
    before: str
    first: str
    answers: tuple[ReuseAnswer, ...]

    def answer(self, way: Way) -> ReuseAnswer | None:
        """What *way* gave, where it can be compared."""
        found = (each for each in self.answers if each.way is way and not each.gap)
        return next(found, None)

    def difference(self, way: Way) -> float | None:
        """
        The largest change of a right token's log-probability, in nats.

        None where *way* has nothing to compare.
        """
        cold, again = self.answer(Way.COLD), self.answer(way)
        if cold is None or again is None or not (cold.scored and again.scored):
            return None
        both = zip(cold.scored.logprobs, again.scored.logprobs, strict=False)
        return max((abs(one - other) for one, other in both), default=None)

    def differs(self, way: Way) -> bool | None:
        """Whether the reply is another one; None as of `difference`."""
        cold, again = self.answer(Way.COLD), self.answer(way)
        return None if cold is None or again is None else cold.reply != again.reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """
    The observation of the reuse probe.

    Attributes:
        functions: Functions of the text.
        questions: The questions, in asking order.
    """

    functions: int
    questions: tuple[ReuseQuestion, ...] = ()

    def largest(self, way: Way) -> float | None:
        """The largest difference of all questions; None where there is none."""
        found = (each.difference(way) for each in self.questions)
        return max((each for each in found if each is not None), default=None)

    def gaps(self, way: Way) -> list[str]:
        """Why questions could not be compared, each reason once."""
        answers = (each for question in self.questions for each in question.answers)
        return list(dict.fromkeys(a.gap for a in answers if a.way is way and a.gap))


def reuse_of(record: CellRecord) -> Reuse:
    """
    What the probe stored.

    Raises:
        BadRecord: If it is something else.
    """
    file = f"{record.pair.slug}.{record.probe}.json"
    return from_json(record.observation or {}, Reuse, file=file)
