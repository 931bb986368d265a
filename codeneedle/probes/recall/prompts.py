"""The wording of recall prompts, as a chat or as a completion."""

from codeneedle.corpora.needles import NeedleFacts
from codeneedle.engines.messages import Message
from codeneedle.probes.thinking import NO_THINK_PREFILL

WORDING = 1
"""Raised with every change of wording; part of the setup."""


def completion_prompt(corpus: str, needle: NeedleFacts) -> str:
    """
    Corpus, then the signature again: the model continues with the body.

    Lines of the body before those that are asked for follow the signature. The corpus
    comes first and is the same for every needle, so that a server reads it once and
    takes it from its cache from then on.
    """
    return f"{corpus}\n\n# recall\n{needle.signature}\n{_lines_before_asked(needle)}"


def chat_messages(
    corpus: str, needle: NeedleFacts, *, prefill_no_think: bool = False
) -> tuple[Message, ...]:
    """
    Corpus and question as a message, and the beginning of the answer if there is one.

    That is the lines before those that are asked for, behind an empty thought where
    that is wanted.
    """
    message = Message("user", f"{corpus}\n---\n{question_text(needle)}")
    begun = NO_THINK_PREFILL * prefill_no_think + _lines_before_asked(needle)
    return (message, Message("assistant", begun)) if begun else (message,)


def _lines_before_asked(needle: NeedleFacts) -> str:
    """Lines of the body before those that are asked for, each with its line break."""
    return "".join(f"{line}\n" for line in needle.before)


def question_text(needle: NeedleFacts) -> str:
    """
    What a chat model is asked, the real signature quoted.

    It names the number of lines of the truth, blank ones and those with which the
    answer is begun included, so that a model that counts literally reproduces them.
    """
    lines = len(needle.before) + len(needle.lines)
    signature = _signature_in_question(needle)
    return (
        f"The text above contains a function that begins with {signature}. "
        f"Repeat the first {lines} lines of its body, beginning with the "
        "line right after that signature. Copy them verbatim: every character, "
        "comment and blank line, with the same indentation. Answer with these "
        "lines alone: no signature, no explanation, no code fence."
    )


def _signature_in_question(needle: NeedleFacts) -> str:
    """
    The signature between backticks.

    One that has some or several lines, in a fence.
    """
    signature = needle.signature.strip()
    if "\n" in signature or "`" in signature:
        return f"these lines:\n```\n{needle.signature}\n```\n"
    return f"`{signature}`"
