"""How text and question of retrieval are joined."""

import re

from codeneedle.engines.messages import Message
from codeneedle.probes.cell import RunContext
from codeneedle.probes.retrieval.tasks import QuestionFields, TaskText, TextQuestion
from codeneedle.probes.thinking import NO_THINK_PREFILL

# 1 - first version
WORDING = 1
"""Raised with every change of how text and question are joined; a condition."""


# --- wording


def question_and_begun_answer(
    run: RunContext, text: TaskText, question: TextQuestion
) -> tuple[Message, Message]:
    """The chat that asks a question of *text*, its answer begun."""
    thought = NO_THINK_PREFILL if run.prefill_no_think else ""
    return (
        Message("user", f"{text.text}---\n{question.prompt}"),
        # Small models go on with the text where no answer is begun.
        Message("assistant", f"{thought}{without_last_blank(question.begin)}"),
    )


def without_last_blank(begin: str) -> str:
    """*begin* without the blank behind a word, which is a part of the next token."""
    return begin[:-1] if re.search(r"\S $", begin) else begin


def right_answer_text(question: QuestionFields) -> str:
    """The right answer as it follows the prompt: with the blank that was left out."""
    return (
        f"{question.begin[len(without_last_blank(question.begin)) :]}{question.payload}"
    )
