"""
The form of prompts: chat, unless the weights have no template; and where
``--prefill-no-think`` has an effect.
"""

from codeneedle.errors import BadInput
from codeneedle.models.weights import Weights
from codeneedle.probes.prompts import PromptForm
from codeneedle.sweep.request import Request


def default_prompt_form(request: Request, header: Weights) -> PromptForm:
    """Chat, unless the weights have no template; the built-in model completes text."""
    has_none = header.is_read and not header.chat_template
    if request.model is None or has_none:
        return PromptForm.COMPLETION
    return PromptForm.CHAT


def checked_prompt_form(request: Request, header: Weights) -> PromptForm:
    """
    The prompt form of *request*, else the default.

    Raises:
        BadInput: If an empty thought is to be prefilled, and nothing thinks in it.
    """
    form = request.prompt_form or default_prompt_form(request, header)
    what = ""
    if request.model is None:
        what = "the built-in model does not think"
    elif form is PromptForm.COMPLETION:
        what = "the completion form has no thinking"
    if request.prefill_no_think and what:
        raise BadInput(
            source="--prefill-no-think",
            reason=f"it has no effect here: {what}",
            hint="Drop it, or use it with --model and the chat form.",
        )
    return form
