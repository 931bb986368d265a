"""What became of each question of a record, scored when it is read."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from codeneedle.probes.observations import cached, file_of
from codeneedle.probes.retrieval.record import (
    TextAnswer,
    TextRead,
    retrieval_of,
)
from codeneedle.probes.retrieval.scoring import AnswerScore, score_answer
from codeneedle.records.record import BadRecord, CellRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOutcome:
    """What became of a question."""

    task: str  # name of the task
    length: int  # of the text as it was asked for, in tokens
    depth: float  # the depth that was asked for, from 0 to 1
    question: str  # its name; the same for every pair
    text: str  # name of the text that it shares with other questions
    number: int  # of that text among those of its task and length
    score: AnswerScore  # what the answer is
    logp: float | None
    """
    Mean log-probability of the tokens of the right answer, in nats; None if they were
    not forced.
    """

    is_bound: bool  # whether that is only an upper bound
    greedy_tokens: int | None
    """
    Tokens of the right answer before the first that the model would not choose: as many
    are right in greedy writing. None if not forced.
    """

    tokens: int  # tokens of the right answer; 0 if not forced
    answer: TextAnswer  # the question and its answer, verbatim


# All records of a large grid: a live one asks for all of them several times a second.
@cached(most=256)
def outcomes(record: CellRecord) -> tuple[QuestionOutcome, ...]:
    """
    What became of each question of *record*, in asking order; scored anew.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    retrieval = retrieval_of(record)
    if retrieval is None:
        return ()
    try:
        return tuple(
            _outcome(text, answer)
            for text in retrieval.texts
            for answer in text.answers
        )
    except (IndexError, ValueError) as error:
        reason = f"a question is none: {error}"
        raise BadRecord(file=file_of(record), reason=reason) from error


def _outcome(text: TextRead, answer: TextAnswer) -> QuestionOutcome:
    scored = answer.scored if answer.scored and answer.scored.logprobs else None
    return QuestionOutcome(
        task=text.task,
        length=text.length,
        depth=answer.depth,
        question=answer.name,
        text=text.key.name,
        number=text.number,
        score=score_answer(answer.question(text.number, text.decoys), answer.reply),
        logp=fmean(scored.logprobs) if scored else None,
        is_bound=bool(scored and scored.bounds),
        greedy_tokens=_first_choices(scored.leads) if scored else None,
        tokens=len(scored.logprobs) if scored else 0,
        answer=answer,
    )


def _first_choices(leads: Sequence[float]) -> int:
    """How many tokens come before the first that was no first choice."""
    return next((at for at, lead in enumerate(leads) if lead <= 0), len(leads))


def survival(results: Iterable[QuestionOutcome], tokens: int) -> float:
    """
    Share of answers that greedy writing has right for *tokens* tokens, from 0 to 1.

    Answers that are not that long do not count; NaN if none is.
    """
    long = [
        each
        for each in results
        if each.greedy_tokens is not None and each.tokens >= tokens
    ]
    right = sum(
        each.greedy_tokens is not None and each.greedy_tokens >= tokens for each in long
    )
    return right / len(long) if long else math.nan
