"""
Asks a server for lines of a function, written or forced; when a written reply is ended
early, and why one has no line to score.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from typing_extensions import override

from codeneedle.corpora.needles import WRITTEN_LINES, NeedleFacts
from codeneedle.engines.messages import BrokenOff, Chat, Completion, Reply
from codeneedle.probes.observations import Answer, AnswerGroup
from codeneedle.probes.probe import Answering, Asker, Question, prompt_sha256
from codeneedle.probes.prompts import build_request
from codeneedle.probes.reading import Read
from codeneedle.probes.recall.alignment import align_reply, answer_lines
from codeneedle.probes.recall.prompts import chat_messages, completion_prompt
from codeneedle.probes.recall.record import FORCED
from codeneedle.probes.recall.settings import Way, settings_of
from codeneedle.text import one_line

TAIL_LINES = 2
"""Lines after a complete answer that are still read, to see whether it runs on."""

SLACK_LINES = 8
"""Lines beyond the asked ones that an answer with slips in it may take."""


@dataclass(slots=True)
class FunctionAsker(Asker):
    """Asks for functions of the text; the body of a question is its way and needle."""

    @override
    def ask(self, question: Question) -> Answer:
        """Its lines, written, or else their scores."""
        way, needle = question.body
        if way is Way.WRITE:
            return self.ask_for_needle(needle, tokens=needle.budget)
        asked = self._build_needle_request(needle, tokens=needle.budget)
        return self.score_reply(needle.name, asked, "\n".join(needle.lines))

    def ask_for_needle(self, needle: NeedleFacts, *, tokens: int) -> Answer:
        """
        Ask for *needle*, allowing *tokens* tokens of reply.

        One that is broken off, or has no line to score, is an answer with an error.

        Raises:
            CellError: If the server fails, or the connection breaks at each attempt.
        """
        question = self._build_needle_request(needle, tokens=tokens)
        blank = Answer(name=needle.name, prompt_sha256=prompt_sha256(question))
        try:
            reply = self.request_reply(question, self._configured_stop_test(needle))
        except BrokenOff as error:
            # Of this function alone: a filter reads what is asked for.
            return replace(blank, error=one_line(str(error)), retries=self.retries)
        why = _why_no_line(needle, reply)
        if reply.drafted:
            # Of drafted tokens the server tells no probabilities: some are missing.
            reply = replace(reply, logprobs=(), gaps=(), lengths=())
        return replace(blank, reply=reply, error=why, retries=self.retries)

    def _configured_stop_test(self, needle: NeedleFacts) -> Callable[[str], bool]:
        """`stop_test_for_needle`; one that never stops if replies have a set limit."""
        has_limit = settings_of(self.context.run.setup).reply_tokens is not None
        return (lambda _so_far: False) if has_limit else stop_test_for_needle(needle)

    def _build_needle_request(
        self, needle: NeedleFacts, *, tokens: int
    ) -> Chat | Completion:
        """The request for *needle*, in the form of prompts that the run has."""
        run = self.context.run
        prefill = run.prefill_no_think
        return build_request(
            run.setup,
            prompt=completion_prompt(run.text, needle),
            messages=chat_messages(run.text, needle, prefill_no_think=prefill),
            tokens=tokens,
        )


@dataclass(frozen=True, slots=True)
class FunctionReader(Answering):
    """Has functions read behind the text; the body of a question is a way and group."""

    read: Read  # what reads them
    text: str  # the text as it is sent

    @override
    def ask(self, question: Question) -> AnswerGroup:
        _, group = question.body
        return self.read(group, self.text)


def forcing_question(needle: NeedleFacts) -> Question:
    """The question for right lines of *needle*, forced, with its key in records."""
    key = f"{FORCED} {needle.name}"
    return Question(key, phrase=key, body=(Way.FORCE, needle))


def stop_test_for_needle(needle: NeedleFacts) -> Callable[[str], bool]:
    """
    A judge of the reply so far: true once reading on would tell nothing more.

    That is when every asked line has matched and `TAIL_LINES` more have come, or
    when the answer is `SLACK_LINES` longer than what was asked. Only complete
    lines are looked at, so the verdict does not depend on how tokens fall.
    """
    judge = functools.lru_cache(maxsize=1)(functools.partial(_is_enough, needle))

    def is_enough(so_far: str) -> bool:
        # Blank lines change no verdict, and a model may write them without end.
        return judge(so_far.rpartition("\n")[0].rstrip())

    return is_enough


def _is_enough(needle: NeedleFacts, complete: str) -> bool:
    """What `stop_test_for_needle` says of a reply of *complete* lines."""
    if complete.count("\n") + 1 < WRITTEN_LINES:
        return False
    answer = answer_lines(needle, complete)
    if len(answer) >= WRITTEN_LINES + SLACK_LINES:
        return True
    if (
        len(answer) < WRITTEN_LINES
        or align_reply(needle, complete).matched_line_count < WRITTEN_LINES
    ):
        return False
    # Of any kind: prose after a closed fence is a tail, too.
    lines = sum(bool(line.strip()) for line in complete.split("\n"))
    return lines >= WRITTEN_LINES + TAIL_LINES


def _why_no_line(needle: NeedleFacts, reply: Reply) -> str:
    """Why the reply has no line to score, as a phrase; empty if it has one."""
    if answer_lines(needle, reply.text):
        return ""
    thought = reply.reasoning or reply.text.strip()
    if thought and reply.finish == "length":
        return f"all {reply.predicted_tokens} tokens went into reasoning"
    return "the answer is empty"
