"""The wording of recall prompts, as a chat or as a completion."""

from enum import StrEnum

NO_THINK_PREFILL = "<think>\n\n</think>\n\n"
"""Begins the answer with ``--prefill-no-think``: an empty, closed thought."""


NO_THINK_ARGS = {"enable_thinking": False}
"""Variables of chat templates that switch thinking off, if the template has them."""


class PromptForm(StrEnum):
    """How a needle is asked for."""

    CHAT = "chat"
    COMPLETION = "completion"
