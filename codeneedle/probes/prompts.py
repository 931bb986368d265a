"""The wording of recall prompts, as a chat or as a completion."""

from enum import StrEnum

from codeneedle.errors import BadInput

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
