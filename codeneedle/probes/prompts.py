"""
The forms of prompts, chat and completion, and the request in the form of a run; what a
chat template puts around texts, with the date of the first day.

A chat is rendered once for all cells, by what its template puts around texts: templates
may name the date, and servers of two days would be asked two things.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from codeneedle.engines.engine import ChatTemplate, Tokenizer
from codeneedle.engines.messages import (
    Chat,
    Completion,
    Message,
    Refused,
    Rendered,
)
from codeneedle.probes.thinking import NO_THINK_ARGS, NO_THINK_PREFILL, OPEN_THOUGHT
from codeneedle.records.record import Frame, Json, Setup


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


MARK = "codeneedle {} text"
"""Stands for the text of a message, by its number, while a template is read."""

AROUND = ("\n ", " \n")
"""White space around it, which some templates drop."""

TRIES = 3

CONTEXT_WORDS = 2
"""A blank, and the word behind it."""

SAMPLE = "def f(x):\n\treturn {'a': 1}  # {{ x }} <b> é\n---\nWhat does `f` do?"
"""A text whose rendering shows that a template leaves texts as they are."""


def find_chat_frame(
    tokenizer: Tokenizer, roles: str, *, begins_answers: bool = True
) -> Frame | None:
    """
    What the chat template of *tokenizer* makes of messages with these *roles*.

    With *begins_answers*, a last message of the assistant is to be continued. None
    where it does something else to texts than to put them somewhere, or takes no such
    messages.
    """
    names = roles.split()
    marks = [MARK.format(at) for at in range(len(names))]
    # A template that tells the time changes between two renderings, at times.
    for is_trimmed in (False, True) * TRIES:
        before, behind = AROUND
        said = [f"{before}{mark}{behind}" for mark in marks]
        text, shown = (
            _render_texts_or_empty(tokenizer, names, said),
            marks if is_trimmed else said,
        )
        pieces = _pieces_around_texts(text, shown)
        frame = Frame(pieces, is_trimmed) if pieces else None
        if frame and _is_frame_same_as_template(
            tokenizer, names, frame, begins_answers
        ):
            return frame
    return None


def _render_texts_or_empty(
    tokenizer: Tokenizer, roles: Sequence[str], texts: Sequence[str]
) -> str:
    """The prompt of messages with these *roles* and *texts*; empty if it is refused."""
    said = tuple(map(Message, roles, texts))
    try:
        return tokenizer.render(said, NO_THINK_ARGS)
    except Refused:
        return ""


def _pieces_around_texts(text: str, shown: Sequence[str]) -> tuple[str, ...]:
    """
    What stands around the texts *shown* in *text*.

    Empty if one is not there once.
    """
    pieces = []
    for part in shown:
        piece, found, text = text.partition(part)
        if not found or part in text:
            return ()
        pieces.append(piece)
    return (*pieces, text)


def _is_frame_same_as_template(
    tokenizer: Tokenizer, roles: Sequence[str], frame: Frame, begins_answers: bool
) -> bool:
    """Whether *frame* gives what the template does, maybe of a begun answer, too."""
    said = tuple(Message(role, SAMPLE) for role in roles)
    begun = (*said, Message("assistant", f"{NO_THINK_PREFILL}{SAMPLE}\n"))
    return all(
        fill_frame(frame, messages)
        == _render_texts_or_empty(
            tokenizer, [m.role for m in messages], [m.content for m in messages]
        )
        for messages in ((said, begun) if begins_answers else (said,))
    )


def fill_frame(frame: Frame, messages: Sequence[Message]) -> str:
    """
    The prompt of *messages*, their texts stripped if the frame has it so.

    Messages beyond those of the frame begin the answer: it is continued.
    """
    count = len(frame.pieces) - 1
    texts = [message.content for message in messages[:count]]
    if frame.is_trimmed:
        texts = [text.strip() for text in texts]
    first, *others = frame.pieces
    begun = "".join(message.content for message in messages[count:])
    parts = (text + piece for text, piece in zip(texts, others, strict=True))
    return f"{first}{''.join(parts)}{begun}"


@dataclass(frozen=True, slots=True)
class SteadyTemplate:
    """A chat template that names the day of another rendering in place of today."""

    template: ChatTemplate
    then: Frame  # that rendering
    now: Frame  # the same chat as it is rendered today

    def __getattr__(self, name: str) -> Any:
        """What the template itself has."""
        return getattr(self.template, name)

    def render_conversation(
        self,
        messages: Sequence[Json],
        tools: Sequence[Json],
        *,
        begins_reply: bool,
        thinking: bool,
    ) -> str:
        """Render a conversation, its words of today replaced by those of then."""
        text = self.template.render_conversation(
            messages, tools, begins_reply=begins_reply, thinking=thinking
        )
        for now, then in _changed_words(self.now, self.then):
            text = text.replace(now, then)
        return text


def template_with_past_date(template: ChatTemplate, then: Frame | None) -> ChatTemplate:
    """
    *template* as it rendered when it gave *then*.

    Itself where that is unknown, or today is no other.
    """
    now = _frame_today(template)
    if then is None or now is None or now == then:
        return template
    return cast("ChatTemplate", SteadyTemplate(template, then, now))


def _frame_today(template: ChatTemplate) -> Frame | None:
    """The frame of one message of the user, as it is rendered now; None if none."""
    return find_chat_frame(template, "user", begins_answers=False)


def _changed_words(before: Frame, after: Frame) -> Iterator[tuple[str, str]]:
    """
    The words that differ between two frames, from the first to the last of a piece.

    With the word behind them: a number of a day alone may stand anywhere.
    """
    for one, two in zip(before.pieces, after.pieces, strict=False):
        words, others = (re.findall(r"\w+|\W+", piece) for piece in (one, two))
        if words != others:
            first = _common_prefix_length(words, others)
            last = _common_prefix_length(words[first:][::-1], others[first:][::-1])
            last = max(0, last - CONTEXT_WORDS)
            yield tuple(  # type: ignore[misc]
                "".join(word[first : len(word) - last]) for word in (words, others)
            )


def _common_prefix_length(words: Sequence[str], others: Sequence[str]) -> int:
    """How many words two lists begin with alike."""
    both = zip(words, others, strict=False)
    return len(list(itertools.takewhile(lambda two: two[0] == two[1], both)))


def frame_roles_of(messages: Sequence[Message]) -> str:
    """The roles by which a frame is known: without a last one of the assistant."""
    roles = [message.role for message in messages]
    return " ".join(roles[:-1] if roles[-1] == "assistant" else roles)


def build_request(
    setup: Setup, *, prompt: str, messages: tuple[Message, ...], tokens: int
) -> Chat | Completion:
    """
    The request in the prompt form and with the seed of *setup*.

    A chat is sent rendered if the setup has its frame; an open thought is closed then.

    Args:
        setup: Of the run.
        prompt: The text that a completion continues.
        messages: What a chat answers.
        tokens: Most tokens of the reply.
    """
    if setup.prompt_form == PromptForm.COMPLETION:
        return Completion(prompt=prompt, max_tokens=tokens, seed=setup.seed)
    if frame := setup.frames.get(frame_roles_of(messages)):
        prompt = fill_frame(frame, messages)
        if OPEN_THOUGHT.search(prompt):
            # As the server's budget of no tokens for a thought does.
            prompt += "\n</think>\n\n"
        return Rendered(prompt=prompt, max_tokens=tokens, seed=setup.seed)
    return Chat(
        messages=messages,
        max_tokens=tokens,
        seed=setup.seed,
        template_args=NO_THINK_ARGS,
    )
