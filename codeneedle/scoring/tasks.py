"""Answers to questions of tasks, judged by rule on the payload, never on wording."""

import re
from dataclasses import dataclass
from enum import StrEnum

from codeneedle.corpora.tasks import Question

# 1 - first version
RULES_VERSION = 1
"""Raised with every change of a rule; stored with what was judged by it."""


class Mode(StrEnum):
    """What an answer is, by the first rule that it meets, in this order."""

    EMPTY = "empty"
    CORRECT = "correct"
    INTRUSION = "intrusion"
    NEAR_MISS = "near-miss"
    REPETITION = "repetition"
    REFUSAL = "refusal"
    SALAD = "salad"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """
    An answer beside its question.

    Attributes:
        mode: What it is.
        share: Of the items that are right, from 0 to 1.
        decoy: Key of the decoy that was given instead; None if none was.
        away: Place of that decoy minus the place of the payload, from -1 to 1.
        distance: Edits from the nearest that was said to the payload; None where
            nothing near it was said.
        first_wrong: Number of the first line that is wrong, from 0; None if none is
            or if the payload is no lines.
        rules: Version of the rules.
    """

    mode: Mode
    share: float
    decoy: str | None = None
    away: float | None = None
    distance: int | None = None
    first_wrong: int | None = None
    rules: int = RULES_VERSION


_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)


def judge(question: Question, reply: str) -> Judgement:
    """Judge *reply*, the answer behind `begin` or to `prompt`, verbatim."""
    answer = _THINKING.sub("", reply).strip()
    if not answer:
        return Judgement(mode=Mode.EMPTY, share=0.0)
    if _holds(answer, question.payload):
        return Judgement(mode=Mode.CORRECT, share=1.0)
    for decoy in question.decoys:
        if _holds(answer, decoy.payload):
            return Judgement(
                mode=Mode.INTRUSION,
                share=0.0,
                decoy=decoy.key,
                away=decoy.place - question.place,
            )
    return Judgement(mode=Mode.WRONG, share=0.0)


def _holds(answer: str, payload: str) -> bool:
    """Whether *payload* stands in *answer*, not as a part of a longer word."""
    return re.search(rf"(?<!\w){re.escape(payload)}(?!\w)", answer) is not None
