"""
The questions of a retrieval record with their scores; a right answer that was read
counts as right if all of its tokens are first choices.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from codeneedle.engines.messages import Forced
from codeneedle.probes.observations import file_name_of, keep_results
from codeneedle.probes.retrieval.record import (
    TextAnswer,
    TextRead,
    retrieval_of,
)
from codeneedle.probes.retrieval.scoring import AnswerScore, Mode, score_answer
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
    asked: TextAnswer  # the question and its answer, verbatim

    @property
    def scores(self) -> Forced | None:
        """Scores of the right answer, token by token; None if there are none."""
        return self.asked.answer.scores

    @property
    def rightness(self) -> float | None:
        """How much of the answer is right, from 0 to 1; None if there is none."""
        return None if is_unanswered(self.asked) else self.score.share

    @property
    def is_scored_without_reply(self) -> bool:
        """Whether the right answer was scored, and none was written."""
        return is_answer_scored_without_reply(self.asked)


def is_answer_scored_without_reply(asked: TextAnswer) -> bool:
    """Whether the right answer of *asked* was scored, and none was written."""
    return asked.answer.reply is None and asked.answer.scores is not None


def is_unanswered(asked: TextAnswer) -> bool:
    """Whether nothing came to *asked*: no answer was written, and none has scores."""
    return asked.answer.reply is None and asked.answer.scores is None


# All records of a large grid: a live one asks for all of them several times a second.
@keep_results(most=256)
def outcomes(record: CellRecord) -> tuple[QuestionOutcome, ...]:
    """
    What became of each question of *record*, in asking order; scored anew.

    Empty if it holds nothing of this probe.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    retrieval = retrieval_of(record)
    if retrieval is None:
        return ()
    try:
        return tuple(
            _outcome_of(text, answer)
            for text in retrieval.texts
            for answer in text.answers
        )
    except (IndexError, ValueError) as error:
        reason = f"a question is none: {error}"
        raise BadRecord(file=file_name_of(record), reason=reason) from error


def score_of(text: TextRead, asked: TextAnswer) -> AnswerScore:
    """
    What became of a question about *text*.

    Of a right answer that was read: whether greedy writing would give it.
    """
    scores = asked.answer.scores
    if scores and is_answer_scored_without_reply(asked):
        is_right = scores.leading_first_choices == len(scores.logprobs)
        return AnswerScore(
            mode=Mode.CORRECT if is_right else Mode.DEPARTS, share=float(is_right)
        )
    return score_answer(asked.question(text.number, text.decoys), asked.answer.text)


def _outcome_of(text: TextRead, asked: TextAnswer) -> QuestionOutcome:
    return QuestionOutcome(
        task=text.task,
        length=text.length,
        depth=asked.depth,
        question=asked.name,
        text=text.key.name,
        number=text.number,
        score=score_of(text, asked),
        asked=asked,
    )


def answer_survival_share(results: Iterable[QuestionOutcome], tokens: int) -> float:
    """
    Share of answers that greedy writing has right for *tokens* tokens, from 0 to 1.

    Answers that are not that long do not count; NaN if none is.
    """
    scores = [result.scores for result in results if result.scores]
    long = [
        score.leading_first_choices for score in scores if len(score.logprobs) >= tokens
    ]
    return fmean(kept >= tokens for kept in long) if long else math.nan
