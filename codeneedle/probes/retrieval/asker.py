"""
Asks about texts, behind an unscored question for each: how long a reply may be, and
when it is ended; right answers are forced, or read behind a text.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from codeneedle.engines.messages import Chat, Completion, Reply
from codeneedle.probes.observations import Answer
from codeneedle.probes.probe import Answering, Asker, Question
from codeneedle.probes.prompts import PromptForm, build_request
from codeneedle.probes.reading import Group, Passage, Read
from codeneedle.probes.retrieval.dial import TOLERANCE
from codeneedle.probes.retrieval.gate import Gate
from codeneedle.probes.retrieval.prompts import (
    WORDING,
    question_and_begun_answer,
    right_answer_text,
    without_last_blank,
)
from codeneedle.probes.retrieval.record import TextAnswer, TextKey, TextRead
from codeneedle.probes.retrieval.scoring import is_score_settled
from codeneedle.probes.retrieval.settings import ANSWER_EXTRA_TOKENS, ANSWER_FACTOR
from codeneedle.probes.retrieval.tasks import (
    Decoy,
    QuestionFields,
    Shape,
    TaskText,
    TextQuestion,
)
from codeneedle.probes.retrieval.texts import make_text_of_key
from codeneedle.records.record import shared_field_values

PRIMING_TOKENS = 1
"""Enough to make the server read a text; the reply is not scored."""


@dataclass(slots=True)
class TextAsker(Asker):
    """Reads texts and asks about them; the body of a question is the key of a text."""

    gate: Gate = field(kw_only=True)  # says which texts are not asked

    @override
    def ask(self, question: Question) -> TextRead:
        """The text of *question* with all answers; the gate gets to know them."""
        return self.gate.keep_text_and_set_gate(
            question.body, self._ask_questions_of_text(question.body)
        )

    @override
    def why_pointless(self, question: Question) -> str:
        return self.gate.why_pointless(question.body)

    def ask_for_reply(self, text: TaskText, question: TextQuestion) -> Reply:
        """The written reply to *question*, cut off if far longer than the right one."""
        tokenizer = self.served.tokenizer
        right = question.payload
        tokens = (
            tokenizer.token_counts_without_special([right])[0]
            if tokenizer
            else len(right)
        )
        budget = math.ceil(ANSWER_FACTOR * tokens) + ANSWER_EXTRA_TOKENS
        return self._ask_until_enough(text, question, tokens=budget)

    def _ask_questions_of_text(self, key: TextKey) -> TextRead:
        """Ask all questions of a text, after an unscored one that makes it be read."""
        text = make_text_of_key(self.context.run.setup, key)
        what = f"{key.task} at {key.length:,} tokens"
        # Each scored question then finds the text in the cache, and nothing else.
        priming = self.ask_and_refuse_cut_prompt(
            text.text,
            round((1 - TOLERANCE) * key.length),
            lambda: self._ask_priming_question(text, text.questions[-1]),
        )
        decoys = _decoys(text)
        answers = []
        for question in text.questions:
            self.context.report_substep(f"{what}: {question.key}")
            answers.append(
                self._ask_and_score_question(key.length, text, question, decoys)
            )
        return TextRead(
            **key._asdict(),
            characters=len(text.text),
            sha256=hashlib.sha256(text.text.encode()).hexdigest(),
            decoys=decoys,
            prompt_tokens=priming.prompt_tokens,
            cached_tokens=priming.cached_tokens,
            prompt_ms=priming.prompt_ms,
            answers=tuple(answers),
        )

    def _ask_and_score_question(
        self,
        length: int,
        text: TaskText,
        question: TextQuestion,
        decoys: Sequence[Decoy],
    ) -> TextAnswer:
        """
        Ask *question*, and force its right answer, too, if the engine can.

        The result is named ``LENGTH-NAME``, and names wrong answers by their numbers
        among *decoys*, those of the text.
        """
        named = replace(question, name=f"{length}-{question.name}")
        reply = self.ask_for_reply(text, question)
        answer = Answer(name=named.name, reply=reply, retries=self.retries)
        if not self.gate.chosen.graded:
            right = self._force_right_answer(text, question)
            answer = replace(answer, scores=right.scores, error=right.error)
        return _answer_to_store(named, answer, decoys)

    def _ask_priming_question(self, text: TaskText, question: TextQuestion) -> Reply:
        """The beginning of the reply to a question that makes *text* be read."""
        return self._ask_until_enough(text, question, tokens=PRIMING_TOKENS)

    def _force_right_answer(self, text: TaskText, question: TextQuestion) -> Answer:
        """The scores of the right answer to *question*, forced; or an error instead."""
        asked = self._request(text, question, tokens=1)
        return self.score_reply(question.name, asked, right_answer_text(question))

    def _ask_until_enough(
        self, text: TaskText, question: TextQuestion, *, tokens: int
    ) -> Reply:
        """The reply of at most *tokens*, ended where more would tell nothing."""
        enough = enough_for_question(question, self.context.run.setup.prompt_form)
        return self.request_reply(self._request(text, question, tokens=tokens), enough)

    def _request(
        self, text: TaskText, question: TextQuestion, *, tokens: int
    ) -> Chat | Completion:
        """The request for *question*, in the form of prompts that the run has."""
        run = self.context.run
        return build_request(
            run.setup,
            prompt=f"{text.text}\n{without_last_blank(question.begin)}",
            messages=question_and_begun_answer(run, text, question),
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class TextReader(Answering):
    """Has right answers about texts read behind them; a body is the key of a text."""

    gate: Gate  # says which texts are not asked
    read: Read  # what reads them

    @override
    def ask(self, question: Question) -> TextRead:
        """The text of *question* with all scores; the gate gets to know them."""
        key, setup = question.body, self.gate.context.run.setup
        return self.gate.keep_text_and_set_gate(
            key, score_answers_behind_text(key, make_text_of_key(setup, key), self.read)
        )

    @override
    def why_pointless(self, question: Question) -> str:
        return self.gate.why_pointless(question.body)


def score_answers_behind_text(key: TextKey, text: TaskText, read: Read) -> TextRead:
    """*text* with the scores of its right answers, read where they stand behind it."""
    sha256 = hashlib.sha256(text.text.encode()).hexdigest()
    named = [replace(q, name=f"{key.length}-{q.name}") for q in text.questions]
    passages = [
        Passage(q.name, f"\n\n{without_last_blank(q.begin)}", right_answer_text(q))
        for q in named
    ]
    group = Group.of(passages, str(WORDING), sha256)
    found = read(group, text.text.removesuffix("\n"))
    first, *_ = (answer.scores for answer in found.answers)
    return TextRead(
        **key._asdict(),
        characters=len(text.text),
        sha256=sha256,
        decoys=_decoys(text),
        prompt_tokens=first.prompt_tokens if first else 0,
        cached_tokens=0,
        prompt_ms=1000 * found.text_s,
        answers=tuple(
            _answer_to_store(question, answer, _decoys(text))
            for question, answer in zip(named, found.answers, strict=True)
        ),
    )


def _decoys(text: TaskText) -> tuple[Decoy, ...]:
    """The wrong answers of all questions of *text*, each once."""
    return tuple(
        dict.fromkeys(d for question in text.questions for d in question.decoys)
    )


def _answer_to_store(
    question: TextQuestion, answer: Answer, decoys: Sequence[Decoy]
) -> TextAnswer:
    """*answer* to *question*, whose decoys are stored as numbers among *decoys*."""
    return TextAnswer(
        **shared_field_values(question, QuestionFields),
        decoys=tuple(map(decoys.index, question.decoys)),
        answer=answer,
    )


def enough_for_question(question: TextQuestion, form: str) -> Callable[[str], bool]:
    """
    A judge of a reply so far: true once reading on would tell nothing more.

    Args:
        question: What it answers.
        form: Of the prompt. A completion has answered with its first line that is
            not blank; behind it, the text goes on. A chat may begin with a preamble.
    """
    if form == PromptForm.COMPLETION and question.shape is not Shape.LINES:
        return _has_complete_line
    return functools.partial(is_score_settled, question)


def _has_complete_line(so_far: str) -> bool:
    """Whether a whole line that is not blank has come."""
    return any(line.strip() for line in so_far.split("\n")[:-1])
