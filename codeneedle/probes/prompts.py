"""The wording of recall prompts, as a chat or as a completion."""

from enum import StrEnum

from codeneedle.engines.messages import Message
from codeneedle.errors import BadInput
from codeneedle.records.record import NeedleFacts

# 1 - first version
PROMPT_VERSION = 1
"""Raised with every change of wording; part of the setup."""

NO_THINK_PREFILL = "<think>\n\n</think>\n\n"
"""Begins the answer with ``--prefill-no-think``: an empty, closed thought."""


NO_THINK_ARGS = {"enable_thinking": False}
"""Variables of chat templates that switch thinking off, if the template has them."""


class PromptForm(StrEnum):
    """How a needle is asked for."""

    CHAT = "chat"
    COMPLETION = "completion"


def lost_text(what: str) -> BadInput:
    """The error for a chat template whose prompt lacks *what* a model has to read."""
    return BadInput(
        source="the chat template of the weights",
        reason=f"the prompt that it renders lacks {what}",
        hint="Use --prompt-form completion, or another template: "
        "-- --chat-template-file FILE.",
    )


def completion_prompt(corpus: str, needle: NeedleFacts) -> str:
    """
    Corpus, then the signature again: the model continues with the body.

    The corpus comes first and is the same for every needle, so that a server
    reads it once and takes it from its cache from then on.
    """
    return f"{corpus}\n\n# recall\n{needle.signature}\n"


def chat_messages(
    corpus: str, needle: NeedleFacts, *, prefill_no_think: bool = False
) -> tuple[Message, ...]:
    """Corpus first, question last, for the same reason; maybe a prefilled answer."""
    asked = Message("user", f"{corpus}\n---\n{question(needle)}")
    if prefill_no_think:
        return (asked, Message("assistant", NO_THINK_PREFILL))
    return (asked,)


def question(needle: NeedleFacts) -> str:
    """
    What a chat model is asked, the real signature quoted.

    It names the number of lines of the truth, blank ones included, so that a model
    that counts literally reproduces all of them.
    """
    return (
        f"The text above contains a function that begins with {_quoted(needle)}. "
        f"Repeat the first {len(needle.lines)} lines of its body, beginning with the "
        "line right after that signature. Copy them verbatim: every character, "
        "comment and blank line, with the same indentation. Answer with these "
        "lines alone: no signature, no explanation, no code fence."
    )


def _quoted(needle: NeedleFacts) -> str:
    signature = needle.signature.strip()
    if "\n" in signature or "`" in signature:
        return f"these lines:\n```\n{needle.signature}\n```\n"
    return f"`{signature}`"
