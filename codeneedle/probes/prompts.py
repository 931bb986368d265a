"""The forms of prompts, and the request of a prompt in the form of a run."""

from dataclasses import dataclass
from enum import StrEnum

from codeneedle.engines.engine import Tokenizer
from codeneedle.engines.messages import Chat, Completion, Message
from codeneedle.records.record import Setup

NO_THINK_PREFILL = "<think>\n\n</think>\n\n"
"""Begins the answer with ``--prefill-no-think``: an empty, closed thought."""


NO_THINK_ARGS = {"enable_thinking": False}
"""Variables of chat templates that switch thinking off, if the template has them."""


class PromptForm(StrEnum):
    """How a needle is asked for."""

    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Prompts:
    """How prompts of a run are rendered and counted, before its first cell."""

    tokenizer: Tokenizer
    form: PromptForm
    prefill_no_think: bool = False  # whether answers are begun with an empty thought


def request(
    setup: Setup, *, prompt: str, messages: tuple[Message, ...], tokens: int
) -> Chat | Completion:
    """
    The request in the prompt form and with the seed of *setup*.

    Args:
        setup: Of the run.
        prompt: The text that a completion continues.
        messages: What a chat answers.
        tokens: Most tokens of the reply.
    """
    if setup.prompt_form == PromptForm.COMPLETION:
        return Completion(prompt=prompt, max_tokens=tokens, seed=setup.seed)
    return Chat(
        messages=messages,
        max_tokens=tokens,
        seed=setup.seed,
        template_args=NO_THINK_ARGS,
    )
