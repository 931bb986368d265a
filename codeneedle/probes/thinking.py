"""Thoughts of models: how they are switched off, and told from answers."""

import re

NO_THINK_PREFILL = "<think>\n\n</think>\n\n"
"""Begins the answer with ``--prefill-no-think``: an empty, closed thought."""

NO_THINK_ARGS = {"enable_thinking": False}
"""Variables of chat templates that switch thinking off, if the template has them."""

OPEN_THOUGHT = re.compile(r"<think>\s*\Z")
"""Ends a prompt whose template has begun a thought."""

THOUGHT_TAG = re.compile(r"</?think(?:ing)?>")
"""Begins or ends a thought in a reply."""

THOUGHT = re.compile(
    r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)|</think(?:ing)?>", re.DOTALL
)
"""A thought in a reply: up to its end or that of the reply, or its end alone."""

FIRST_THOUGHT = re.compile(rf"\A\s*(?:{THOUGHT.pattern})", re.DOTALL)
"""A `THOUGHT` before anything else."""

RECORDED_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
"""A thought at the beginning of the content, where a recording does not split them."""

_FINAL = re.compile(r"(?:assistant)?final")


def thought_and_answer(text: str) -> tuple[str, str]:
    """
    The thought in a reply to a rendered chat, empty without one, and what follows it.

    An open thought is all of a reply. gpt-oss writes both without its marks.
    """
    begun = text.lstrip()
    if begun.startswith("<think>"):
        thought, _, answer = begun.removeprefix("<think>").partition("</think>")
        return thought, answer.lstrip("\n")
    if begun.startswith("analysis") and (found := _FINAL.search(begun)):
        return begun[: found.start()].removeprefix("analysis"), begun[found.end() :]
    return "", text
