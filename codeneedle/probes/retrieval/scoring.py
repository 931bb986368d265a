"""
Scores answers to questions of tasks by rule on the payload, never on wording: right, or
how they fail (intrusion, near miss, repetition, refusal, salad).
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from codeneedle.probes.retrieval.tasks import Decoy, Shape, TextQuestion
from codeneedle.probes.thinking import THOUGHT


class Mode(StrEnum):
    """
    What an answer is: the first of these rules that it meets.

    Lines are looked at for loops before intrusions: each line of a loop belongs to
    some other place.
    """

    EMPTY = "empty"
    """Nothing but white space, or thoughts."""

    CORRECT = "correct"
    """All items are said; one item or items: not after a decoy; lines: first of all."""

    INTRUSION = "intrusion"
    """A payload that belongs to another key, twin or position is said instead."""

    NEAR_MISS = "near-miss"
    """A quarter of the characters of an item are wrong, a fifth of those of lines."""

    REPETITION = "repetition"
    """At least half of the words are one phrase, said three times or more."""

    REFUSAL = "refusal"
    """It says that it cannot, or that the text does not."""

    DEPARTS = "departs"
    """Of one that was read: greedy writing would leave it, nobody knows for what."""

    SALAD = "salad"
    """Three in five of at least eight words are such as *the* and *of*, or no words."""

    WRONG = "wrong"
    """Anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScore:
    """An answer beside its question."""

    mode: Mode  # what it is
    share: float  # of the items that are right, from 0 to 1
    decoy: str | None = None
    """Key of the first decoy that was given instead; None if none was."""

    away: float | None = None
    """Place of that decoy minus the place of the payload, from -1 to 1."""

    edits: int | None = None
    """
    Characters to insert, remove or replace in what was said instead of the payload, of
    an intrusion or a near miss; else None.
    """


NEAR = 0.25
"""Share of the characters of an item that may be wrong in a near miss; at least one."""

NEAR_LINES = 0.2
"""The same of lines; RepoQA passes what is similar to 0.8."""


def score_answer(question: TextQuestion, reply: str) -> AnswerScore:
    """Score *reply*, whose thoughts do not count; one of nothing else is empty."""
    answer = THOUGHT.sub("", reply).strip()
    if not answer:
        return AnswerScore(mode=Mode.EMPTY, share=0.0)
    return _BY_SHAPE[question.shape](question, answer)


def is_score_settled(question: TextQuestion, reply: str) -> bool:
    """Whether *reply*, of which more may come, scores as it will at its end."""
    if question.shape is Shape.LINES:
        return len(_answer_lines(question, reply)) > len(question.items)
    return score_answer(question, reply).mode in {Mode.CORRECT, Mode.INTRUSION}


def _edit_distance(one: str, other: str) -> int:
    """Characters to insert, delete or replace between two texts."""
    # Help on a sweep reads the settings of all probes, and does not wait for this.
    from rapidfuzz.distance.Levenshtein import distance

    return distance(one, other)


# --- one item, or several


def _score_items(question: TextQuestion, answer: str) -> AnswerScore:
    """
    Score an answer of items: the first that are said count, as many as are right.

    An item of a decoy among them is an intrusion before anything is a near miss.
    """
    said = _said_items_and_decoys(question, answer)[: len(question.items)]
    right = [item for item in question.items if item in said]
    share = len(right) / len(question.items)
    if share == 1:
        return AnswerScore(mode=Mode.CORRECT, share=1.0)
    missing = next(item for item in question.items if item not in right)
    decoys = {decoy.payload: decoy for decoy in question.decoys}
    given = next((payload for payload in said if payload in decoys), None)
    if given is not None:
        return _intrusion_score(
            question, decoys[given], share, _edit_distance(given, missing)
        )
    words = _CANDIDATE.findall(answer) or [""]
    nearest = min(_edit_distance(word, missing) for word in words)
    if nearest <= max(1, int(NEAR * len(missing))):
        return AnswerScore(mode=Mode.NEAR_MISS, share=share, edits=nearest)
    return AnswerScore(mode=_failure_mode(answer), share=share)


def _intrusion_score(
    question: TextQuestion, decoy: Decoy, share: float, edits: int
) -> AnswerScore:
    return AnswerScore(
        mode=Mode.INTRUSION,
        share=share,
        decoy=decoy.key,
        away=decoy.place - question.place,
        edits=edits,
    )


def _said_items_and_decoys(question: TextQuestion, answer: str) -> list[str]:
    """
    Items and payloads of decoys in *answer*, none twice, in order.

    A decoy behind the mention of its own key is told, not given as the answer: it
    comes after all others.
    """
    owner = {decoy.payload: decoy.key for decoy in question.decoys}
    keys = {key for key in owner.values() if key not in owner} | {question.key}
    payloads = {*question.items, *owner}
    given, told, key = [], [], question.key
    for word in _mentioned_words(keys | payloads, answer):
        if word not in payloads:
            key = word
        elif key != question.key and owner.get(word) == key:
            told.append(word)
        else:
            given.append(word)
    return list(dict.fromkeys([*given, *told]))


def _mentioned_words(words: set[str], answer: str) -> list[str]:
    """
    The *words* that stand in *answer* whole, in order; of nested ones the longer.

    Numbers are also read without commas; the reading that has more is taken.
    """
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer)
    readings = [
        re.findall(rf"(?<!\w)(?:{either})(?!\w)", text) for text in (answer, plain)
    ]
    return max(readings, key=len)


# --- lines


def _score_lines(question: TextQuestion, answer: str) -> AnswerScore:
    """
    Score an answer of lines: right if all agree in order.

    Else its share are those that are anywhere in it.
    """
    said = _answer_lines(question, answer)[: len(question.items)]
    wanted = [line.strip() for line in question.items]
    agreed = [a == b for a, b in zip(said, wanted, strict=False)]
    first = agreed.index(False) if False in agreed else len(agreed)
    if first == len(wanted):
        return AnswerScore(mode=Mode.CORRECT, share=1.0)
    mode, decoy, edits = _failure_of_lines(question, said, first)
    return AnswerScore(
        mode=mode,
        share=sum(line in said for line in wanted) / len(wanted),
        decoy=decoy.key if decoy else None,
        away=decoy.place - question.place if decoy else None,
        edits=edits,
    )


def _failure_of_lines(
    question: TextQuestion, said: Sequence[str], first: int
) -> tuple[Mode, Decoy | None, int | None]:
    """
    How *said* lines fail, with the decoy that the *first* wrong one is of, and edits.

    No edits where it is neither an intrusion nor a near miss.
    """
    wanted = [line.strip() for line in question.items]
    pairs = itertools.zip_longest(said, wanted, fillvalue="")
    edits = sum(itertools.starmap(_edit_distance, pairs))
    failure = _failure_mode("\n".join(said))
    if failure is not Mode.REPETITION and first < len(said):
        for decoy in question.decoys:
            if said[first] in map(str.strip, decoy.payload.split("\n")):
                return Mode.INTRUSION, decoy, edits
    if edits <= NEAR_LINES * len("".join(wanted)):
        return Mode.NEAR_MISS, None, edits
    return failure, None, None


def _answer_lines(question: TextQuestion, answer: str) -> list[str]:
    """Lines that are not blank, without fences and the repeated beginning."""
    lines = [line.strip() for line in answer.split("\n")]
    lines = [line for line in lines if line and not line.startswith("```")]
    begin = question.begin.strip()
    return lines[1:] if lines[:1] == [begin] else lines


_BY_SHAPE: Mapping[Shape, Callable[[TextQuestion, str], AnswerScore]] = {
    Shape.ONE: _score_items,
    Shape.ITEMS: _score_items,
    Shape.LINES: _score_lines,
}


# --- failures that no payload explains

_CANDIDATE = re.compile(r"\w+(?:-\w+)*")
_REFUSAL = re.compile(
    r"\bI(?:'m| am) (?:sorry|unable|not able)|\bI can(?:no|')t|\bI could not"
    r"|\bas an AI\b|\bI do(?:n't| not) (?:know|have|see)|\bthere is no\b"
    r"|\bno (?:mention|information)\b"
    r"|(?:\bnot|n't) (?:mention|contain|provide|specif|state|include|say)",
    re.IGNORECASE,
)
_FUNCTION_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "from", "i", "i'm",
    "in", "is", "it", "of", "on", "or", "that", "the", "this", "to", "was", "were",
    "with",
})  # fmt: skip

LOOPS = 3
"""Times that a phrase is said from which it is a loop."""

SALAD_WORDS = 8
"""Words below which nothing is called a salad."""

SALAD_SHARE = 0.6
"""Share of function words, or of characters that are no letters, digits or spaces."""


def _failure_mode(answer: str) -> Mode:
    """What an answer is that no payload explains: loop, refusal, salad, or wrong."""
    words = re.findall(r"[\w']+", answer.lower())
    # The last word may have been cut by the limit of the reply.
    if _ends_in_loop(words) or _ends_in_loop(words[:-1]):
        return Mode.REPETITION
    if _REFUSAL.search(answer):
        return Mode.REFUSAL
    if len(words) >= SALAD_WORDS:
        empty = sum(word in _FUNCTION_WORDS for word in words)
        if empty >= SALAD_SHARE * len(words):
            return Mode.SALAD
    signs = sum(not (sign.isalnum() or sign.isspace()) for sign in answer)
    is_salad = len(answer) >= SALAD_WORDS and signs >= SALAD_SHARE * len(answer)
    return Mode.SALAD if is_salad else Mode.WRONG


def _ends_in_loop(words: Sequence[str]) -> bool:
    """Whether the end of *words*, half of them or more, is one phrase said over."""
    for period in range(1, len(words) // LOOPS + 1):
        run = 0
        while run < len(words) - period and words[-1 - run] == words[-1 - run - period]:
            run += 1
        if run + period >= max(LOOPS * period, len(words) / 2, LOOPS + 1):
            return True
    return False
