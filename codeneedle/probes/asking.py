"""Sends the requests of a cell; what its server answered is not asked for again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from codeneedle.engines.engine import Served
from codeneedle.engines.messages import (
    Chat,
    Completion,
    Forced,
    Generation,
    PromptCut,
    Reply,
    ServerGone,
)
from codeneedle.probes.cell import ProbeContext
from codeneedle.probes.probe import Question
from codeneedle.text import one_line

BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

LEAST_READ = 0.9
"""
Least share of the tokens of a text that a server reads of a prompt that holds it.

Parts that are counted apart have some tokens more: each begins anew, maybe in a chat.
"""

PART_CHARACTERS = 2_000
"""Of a text, counted apart: engines that estimate lengths count so much exactly."""

_Answer = TypeVar("_Answer")
_Read = TypeVar("_Read", bound=Generation)


@dataclass(slots=True)
class Asker:
    """
    Sends requests; retries broken connections, never a completed reply.

    Its methods raise CellError if the server fails, or if the connection breaks at each
    attempt.
    """

    served: Served  # the server
    context: ProbeContext  # the cell
    retries: tuple[str, ...] = field(default=(), init=False)
    """Why attempts of the last request failed before it was answered."""

    def why_pointless(self, _question: Question) -> str:
        """Never: what is asked does not depend on other answers."""
        return ""

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""
        self.retried(self.served.client.wait_idle)

    def primed(self, text: str, tokens: int, ask: Callable[[], _Read]) -> _Read:
        """
        What *ask* returns: the first reply to a prompt that holds *text*.

        If too little seems to be read, the text is counted, and asked about again:
        lengths that an engine estimates are too high for uneven texts, by a third.
        One without a length is counted in any case.

        Args:
            text: What the prompt holds.
            tokens: Its length as it was counted or estimated; 0 if neither.
            ask: Sends the prompt.

        Raises:
            PromptCut: If the server counts fewer tokens in the prompt than in the text.
        """
        reply = ask()
        read, tokenizer = reply.prompt_tokens, self.served.tokenizer
        # 0: the server does not count.
        if not read or tokenizer is None or (tokens and read >= LEAST_READ * tokens):
            return reply
        is_estimated = bool(self.context.run.setup.lengths)
        size = PART_CHARACTERS if is_estimated else max(1, len(text))
        parts = (text[at : at + size] for at in range(0, len(text), size))
        counted = sum(map(tokenizer.count_tokens, parts))
        if read < LEAST_READ * counted:
            raise PromptCut(
                f"it counts {read:,} tokens, the text alone has about {counted:,}"
            )
        return ask() if tokens else reply

    def written(
        self, question: Chat | Completion, enough: Callable[[str], bool]
    ) -> Reply:
        """The reply to *question*, ended once there is *enough* of it."""
        with self.context.asking():
            return self.retried(lambda: self.sent(question, enough))

    def forced(self, question: Chat | Completion, right: str) -> Forced:
        """The scores of the *right* reply to *question*, token by token."""
        with self.context.asking():
            return self.retried(lambda: self.served.client.force(question, right))

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
