"""Sends the requests of a cell; what its server answered is not asked for again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from codeneedle.engines.engine import Served
from codeneedle.engines.messages import (
    Chat,
    Completion,
    Forced,
    PromptCut,
    Reply,
    ServerGone,
)
from codeneedle.probes.probe import ProbeContext
from codeneedle.text import one_line

BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

LEAST_READ = 0.5
"""
Least share of the corpus's tokens that a server reads of a prompt that holds it.

Where lengths are estimated they are a few percent too high, for uneven texts a third;
servers that cut prompts keep a fixed length, most often a small part.
"""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Asker:
    """
    Sends requests; retries broken connections, never a completed reply.

    Its methods raise CellError if the server fails, or if the connection breaks at each
    attempt.

    Attributes:
        served: The server.
        context: The cell.
        retries: Why attempts of the last request failed before it was answered.
    """

    served: Served
    context: ProbeContext
    retries: tuple[str, ...] = field(default=(), init=False)

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""
        self.retried(self.served.client.wait_idle)

    def written(
        self, question: Chat | Completion, enough: Callable[[str], bool]
    ) -> Reply:
        """The reply to *question*, ended once there is *enough* of it."""
        with self.context.asking():
            reply = self.retried(lambda: self.sent(question, enough))
        self._refuse_cut(question, reply.prompt_tokens)
        return reply

    def forced(self, question: Chat | Completion, right: str) -> Forced:
        """The scores of the *right* reply to *question*, token by token."""
        with self.context.asking():
            scores = self.retried(lambda: self.served.client.force(question, right))
        self._refuse_cut(question, scores.prompt_tokens)
        return scores

    def _refuse_cut(self, question: Chat | Completion, read: int) -> None:
        """
        Refuse an answer to a prompt of which the server has *read* too few tokens.

        Raises:
            PromptCut: If it counts far fewer than the corpus in the prompt has.
        """
        run = self.context.run
        tokens = run.setup.corpus.tokens
        is_few = 0 < read < LEAST_READ * tokens  # 0: it does not count
        if is_few and run.text and any(run.text in each for each in _texts(question)):
            raise PromptCut(
                f"it counts {read:,} tokens, the text alone has about {tokens:,}"
            )

    def sent(
        self,
        question: Chat | Completion,
        enough: Callable[[str], bool] = lambda _so_far: False,
    ) -> Reply:
        """The reply to *question*, at the first attempt."""
        client = self.served.client
        if isinstance(question, Chat):
            return client.chat(question, enough=enough)
        return client.complete(question, enough=enough)

    def retried(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask again if the connection breaks, as long as the server lives."""
        self.retries = ()
        for wait_s in BACK_OFF_S:
            try:
                return ask()
            except ServerGone as error:
                # A connection also breaks when a server dies, before it is gone.
                if self.served.ends_within(wait_s):
                    raise
                self.retries += (one_line(str(error)),)
        return ask()


def _texts(question: Chat | Completion) -> tuple[str, ...]:
    """The texts that *question* sends."""
    if isinstance(question, Chat):
        return tuple(message.content for message in question.messages)
    return (question.prompt,)
