"""Asks one server for needles: again where the line broke, never where it answered."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from codeneedle import prompts
from codeneedle.answers import ServerGone, StreamEnded
from codeneedle.client import Chat, Completion, Reply
from codeneedle.engine.llama_server import Served
from codeneedle.enough import enough_for
from codeneedle.probes.recall_leads import Leads, leads
from codeneedle.prompts import PromptForm
from codeneedle.records import NeedleFacts
from codeneedle.rounds import Round
from codeneedle.scoring import answer_end, answer_lines
from codeneedle.stage import Stage

BACK_OFF_S = (0.1, 0.5, 2.0)
"""How long to wait before each further attempt, in seconds."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Asker:
    """
    Asks one server for needles of one stage.

    Attributes:
        served: The server.
        stage: The cell.
        speculates: Whether the server drafts; it tells no probabilities then, and
            is asked for some.
    """

    served: Served
    stage: Stage
    speculates: bool = False
    _retries: list[str] = field(default_factory=list)

    def round(
        self, needle: NeedleFacts, *, tokens: int, with_leads: bool = True
    ) -> tuple[Round, tuple[int, ...]]:
        """
        Ask for *needle*, allowing *tokens* tokens of reply.

        Returns:
            The round, and the tokens of its reply where the server tells them.

        Raises:
            CellError: If the server fails, or the line breaks time and again.
        """
        question = self._question(needle, tokens=tokens)
        self._retries.clear()
        with self.stage.asking():
            reply = self._persistently(lambda: self._reply(question, needle))
            asked = _round(needle, _identity(question), reply)
            if self.speculates and with_leads and not asked.error:
                found = self._persistently(lambda: self._leads(question, needle, reply))
                asked = _with_leads(asked, found)
        return replace(asked, retries=tuple(self._retries)), reply.ids

    def settle(self) -> None:
        """Wait until the server is idle, before it is stopped."""
        self._persistently(self.served.client.settle)

    def _persistently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask again if the line breaks, as long as the server lives."""
        for wait_s in BACK_OFF_S:
            try:
                return ask()
            except (ServerGone, StreamEnded) as error:
                # A line also breaks when a server dies, a moment before it is gone.
                if self.served.ends_within(wait_s):
                    raise
                self._retries.append(" ".join(str(error).split()))
        return ask()

    def _reply(self, question: Chat | Completion, needle: NeedleFacts) -> Reply:
        enough = enough_for(needle)
        if isinstance(question, Chat):
            return self.served.client.chat(question, enough=enough)
        return self.served.client.complete(question, enough=enough)

    def _question(self, needle: NeedleFacts, *, tokens: int) -> Chat | Completion:
        setup, text = self.stage.setup, self.stage.text
        if setup.prompt_form == PromptForm.COMPLETION:
            prompt = prompts.completion_prompt(text, needle)
            return Completion(prompt=prompt, max_tokens=tokens, seed=setup.seed)
        prefill = self.stage.plan.request.prefill_no_think
        return Chat(
            messages=prompts.chat_messages(text, needle, prefill_no_think=prefill),
            max_tokens=tokens,
            seed=setup.seed,
            template_args=prompts.NO_THINK_ARGS,
        )

    def _leads(
        self, question: Chat | Completion, needle: NeedleFacts, reply: Reply
    ) -> Leads:
        client = self.served.client
        if isinstance(question, Chat):
            prompt = client.render(question.messages, question.template_args)
        else:
            prompt = str(question.prompt)
        answer = reply.text[: answer_end(needle, reply.text)]
        found = leads(client, prompt, answer, seed=question.seed)
        # A cache that cannot be cut back has the whole prompt read for each lead.
        self.speculates = not found.is_dear
        return found


def _identity(question: Chat | Completion) -> str:
    """SHA-256 of what was sent, each message on a line of its own."""
    if isinstance(question, Completion):
        text = str(question.prompt)
    else:
        text = "\n".join(f"{said.role}: {said.content}" for said in question.messages)
    return hashlib.sha256(text.encode()).hexdigest()


def _round(needle: NeedleFacts, identity: str, reply: Reply) -> Round:
    return Round(
        needle=needle.name,
        prompt_sha256=identity,
        reply=reply.text,
        error=_unanswered(needle, reply),
        finish=reply.finish,
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        prompt_ms=reply.prompt_ms,
        predicted_tokens=reply.predicted_tokens,
        predicted_ms=reply.predicted_ms,
        wall_s=reply.wall_s,
        logprobs=reply.logprobs,
        gaps=reply.gaps,
        lengths=reply.lengths,
        drafted=reply.drafted,
        accepted=reply.accepted,
    )


def _with_leads(asked: Round, found: Leads) -> Round:
    return replace(
        asked,
        logprobs=found.logprobs,
        gaps=found.gaps,
        lengths=(),
        places=found.places,
    )


def _unanswered(needle: NeedleFacts, reply: Reply) -> str:
    """Why there is nothing to score, if so: an error of the round, never a zero."""
    answer = answer_lines(reply.text, signature=needle.signature)
    if any(line.strip() for line in answer):
        return ""
    thought = reply.reasoning or reply.text.strip()
    if thought and reply.finish == "length":
        return f"all {reply.predicted_tokens} tokens went into reasoning"
    return "the answer is empty"
