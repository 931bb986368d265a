r"""
The turns of conversations as a model's chat template renders them.

A turn is a prompt, as the template makes it of all that came before, and the text that
the assistant wrote behind it. So the text of a turn is what rendering the conversation
up to and with this turn adds. Within it, the fields of the recording are searched: the
class of each part follows from where they are. What a template puts before a field
(``<think>``, ``<tool_call>{"name": "``) belongs to that field, and what it puts behind
the last one to that one; the marks that end a turn are not the model's text.

What a trial on llama-server b11434 showed, with SmolLM2's template and one for tools in
the manner of Qwen's:

- A last message of the assistant is continued: its end is missing, it begins with an
  empty thought under templates that know thoughts, and with tool calls it is refused.
  ``--no-prefill-assistant`` renders it like any other, so a server of its own with that
  option renders, and the servers of cells read texts alone.
- SmolLM2's template ignores ``tools``, ``tool_calls`` and ``reasoning_content``: a turn
  that only calls a tool is empty. Replies of tools are kept, with the role ``tool``.
- A template that drops earlier thoughts keeps those behind the last question: the
  thoughts of a tool's caller are there until the user speaks again, and the text of the
  next turn no longer continues what was read. Servers reuse what is equal and read the
  rest again, as in real use; so each turn brings its whole prompt.
- Arguments of calls become values and JSON again: ``{"a":1}`` comes back as
  ``{"a": 1}``, ``\u00e9`` as é. Where these are no JSON, the server fails, and quotes
  them in its log.
- Without thoughts switched off, a template may begin each answer with an empty one, or
  open one that the recording does not have. So thinking is allowed for turns that have
  a thought, and a turn begins where its prompt and its text part.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from codeneedle.engines.engine import Template
from codeneedle.engines.messages import Refused
from codeneedle.errors import BadInput
from codeneedle.probes.transcript.conversations import Call, Conversation, Turn
from codeneedle.records.record import Count


class Kind(StrEnum):
    """The classes of tokens."""

    TOOL = "tool"
    REASONING = "reasoning"
    CODE = "code"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Part:
    """
    A part of the text of a turn.

    Attributes:
        kind: Class of its tokens.
        start: Where it begins in the text, in characters.
        end: Where it ends.
        field: Where the recording has it: ``content``, ``reasoning``, ``name 0``,
            ``arguments 0``, ``argument 0 3``; empty for what the template adds.
    """

    kind: Kind
    start: Count
    end: Count
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTurn:
    """
    A turn of the assistant as its model would have written it.

    Attributes:
        name: Number of the conversation and of the turn in it, from 1: ``2.5``.
        prompt: What is read before it.
        text: What was written; empty if the template renders nothing of it.
        parts: The whole text, in order.
        dropped: What the recording has and the text lacks, as phrases.
    """

    name: str
    prompt: str
    text: str
    parts: tuple[Part, ...]
    dropped: tuple[str, ...] = ()


def rendered_turns(
    conversation: Conversation, number: int, template: Template
) -> Iterator[RenderedTurn]:
    """
    The turns of the assistant in the conversation of that *number*, from 1.

    Raises:
        BadInput: If the template does not take the conversation.
        CellError: If the server fails.
    """
    end = _turn_end(template)
    turn_number = 0
    for at, turn in enumerate(conversation.turns):
        if turn.role != "assistant":
            continue
        turn_number += 1
        renders = _Renders(template, conversation, at)
        try:
            prompt, text = renders.parted(end)
        except Refused as error:
            raise BadInput(
                source=f"conversation {number}, from line {conversation.line}",
                reason=f"the chat template does not take turn {turn_number} of the "
                f"assistant: {error.message or error}",
                hint="Leave the conversation out, or name another chat template in the "
                "arguments after '--'.",
            ) from error
        parts, dropped = parts_of(turn, text)
        dropped += _dropped_tools(conversation, prompt) if turn_number == 1 else ()
        yield RenderedTurn(
            name=f"{number}.{turn_number}",
            prompt=prompt,
            text=text if parts else "",
            parts=parts,
            dropped=dropped,
        )


# --- where a turn begins and ends


@dataclass(frozen=True, slots=True)
class _Renders:
    """The renderings around one turn of the assistant."""

    template: Template
    conversation: Conversation
    at: int

    def parted(self, end: str) -> tuple[str, str]:
        """
        What is read before the turn, and its text.

        Args:
            end: What the template puts behind an answer.
        """
        turn = self.conversation.turns[self.at]
        whole = self._rendered(self.at + 1)
        asked = self._rendered(self.at, begins_reply=True)
        begin = len(asked)
        if not whole.startswith(asked):
            before = self._rendered(self.at)
            begin = _beginning(whole, asked, before, turn)
        text = whole[begin:]
        if end and text.endswith(end):
            text = text[: -len(end)]
        return whole[:begin], text

    def _rendered(self, count: int, *, begins_reply: bool = False) -> str:
        """The first *count* messages."""
        conversation = self.conversation
        return self.template.render_conversation(
            [turn.message() for turn in conversation.turns[:count]],
            conversation.tools,
            begins_reply=begins_reply,
            thinking=bool(conversation.turns[self.at].reasoning),
        )


def _beginning(whole: str, asked: str, before: str, turn: Turn) -> int:
    """
    Where a turn begins in *whole* that does not begin with what asks for it.

    What asks for it may open a thought that the recording does not have. The turn then
    begins behind the last mark or line break that both have. Where what came *before*
    is rendered in another way because of the turn, it begins with its first field.
    """
    both = zip(whole, asked, strict=False)
    shared = next((at for at, (one, two) in enumerate(both) if one != two), len(whole))
    if shared >= len(before):
        marks = [before, *re.findall(r"[^\n>]*[\n>]", asked[len(before) : shared])]
        return len("".join(marks))
    parts, _ = parts_of(turn, whole[shared:])
    firsts = (part.start for part in parts if part.field)
    return shared + next(firsts, len(whole) - shared)


SAMPLE = "codeneedle"
"""An answer that occurs in no template."""


def _turn_end(template: Template) -> str:
    """What the template puts behind an answer; empty where that cannot be known."""
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": SAMPLE},
    ]
    try:
        whole = template.render_conversation(
            messages, (), begins_reply=False, thinking=False
        )
    except Refused:
        return ""
    return whole.rpartition(SAMPLE)[2] if SAMPLE in whole else ""


# --- fields in the text of a turn


FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A block of code in Markdown, its fences included; one without end goes on."""

THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
"""A thought at the beginning of an answer, where the recording does not part them."""


def parts_of(turn: Turn, text: str) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """
    The parts of the *text* that *turn* was rendered to, and what it lacks of it.

    Without any field there are no parts.
    """
    found: list[Part] = []
    dropped: list[str] = []
    for what, ways in _fields(turn):
        end = max((part.end for part in found), default=0)
        tried = (_located(way, text, at) for at in (end, 0) for way in ways)
        parts = next(filter(None, tried), [])
        if not parts or any(_overlap(one, two) for one in parts for two in found):
            dropped.append(what)
        else:
            found += parts
    found.sort(key=lambda part: part.start)
    return tuple(_filled(found, text)), tuple(dict.fromkeys(dropped))


def field_text(turn: Turn, field: str, length: int) -> str | None:
    """
    What the recording has in *field*, as it was rendered; None if it has none.

    Args:
        turn: The turn.
        field: As in a `Part`.
        length: Of the part, in characters.
    """
    forms = (
        form
        for _, ways in _fields(turn)
        for way in ways
        for each in way
        for key, form in each.forms
        if key == field
    )
    return next((form for form in forms if len(form) == length), None)


@dataclass(frozen=True, slots=True)
class _Field:
    """
    One thing to search for.

    Attributes:
        kind: Class of its tokens.
        forms: What it may look like, the most faithful first, each with its name.
    """

    kind: Kind
    forms: tuple[tuple[str, str], ...]


def _fields(turn: Turn) -> Iterator[tuple[str, list[list[_Field]]]]:
    """
    What the turn consists of, in the usual order: what it is called, and the fields
    that it may be rendered as, one way or another.
    """
    if turn.reasoning:
        forms = _trimmed("reasoning", turn.reasoning)
        yield "reasoning", [[_Field(Kind.REASONING, forms)]]
    thought = THOUGHT.match(turn.content)
    if thought:
        forms = _trimmed("thought", thought.group())
        yield "reasoning within the content", [[_Field(Kind.REASONING, forms)]]
    content = turn.content[thought.end() :] if thought else turn.content
    if content.strip():
        yield "content", [[_Field(Kind.TEXT, _trimmed("content", content))]]
    for number, call in enumerate(turn.calls):
        name = _Field(Kind.TOOL, ((f"name {number}", call.name),))
        forms = tuple((f"arguments {number}", form) for form in _json_forms(call))
        yield (
            "tool calls",
            [[name, _Field(Kind.TOOL, forms)], [name, *_values(call, number)]],
        )


def _trimmed(key: str, text: str) -> tuple[tuple[str, str], ...]:
    """*text*, or without the white space around it, which many templates drop."""
    return tuple((key, form) for form in dict.fromkeys((text, text.strip())) if form)


def _json_forms(call: Call) -> Iterator[str]:
    """The arguments as templates write them."""
    yield call.arguments
    for separators in ((", ", ": "), (",", ":")):
        for is_ascii in (False, True):
            yield json.dumps(call.parsed, separators=separators, ensure_ascii=is_ascii)
    for indent in (2, 4):
        yield json.dumps(call.parsed, indent=indent, ensure_ascii=False)


def _values(call: Call, number: int) -> Iterator[_Field]:
    """The arguments one by one, for templates that do not write JSON."""
    values = call.parsed if isinstance(call.parsed, dict) else {}
    for at, value in enumerate(values.values()):
        form = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
        if form:
            yield _Field(Kind.TOOL, ((f"argument {number} {at}", form),))


def _located(fields: Sequence[_Field], text: str, at: int) -> list[Part] | None:
    """*fields* in *text* from *at* on, one behind the other; None if one is not."""
    parts = []
    for each in fields:
        placed = ((key, form, text.find(form, at)) for key, form in each.forms)
        key, form, start = next((p for p in placed if p[2] >= 0), ("", "", -1))
        if start < 0:
            return None
        at = start + len(form)
        parts.append(Part(each.kind, start, at, key))
    return parts


def _overlap(one: Part, other: Part) -> bool:
    return one.start < other.end and other.start < one.end


def _filled(found: Sequence[Part], text: str) -> Iterator[Part]:
    """*found*, in order, with what stands between them; code apart from other text."""
    at = 0
    for part in found:
        if part.start > at:
            yield Part(part.kind, at, part.start)
        yield from _code_apart(part, text)
        at = part.end
    if found and at < len(text):
        yield Part(found[-1].kind, at, len(text))


def _code_apart(part: Part, text: str) -> Iterator[Part]:
    if part.kind is not Kind.TEXT:
        yield part
        return
    at = part.start
    for block in FENCED.finditer(text[part.start : part.end]):
        start, end = part.start + block.start(), part.start + block.end()
        if start > at:
            yield replace(part, start=at, end=start)
        yield replace(part, kind=Kind.CODE, start=start, end=end)
        at = end
    if at < part.end:
        yield replace(part, start=at)


def _dropped_tools(conversation: Conversation, prompt: str) -> tuple[str, ...]:
    """Whether the definitions of tools are missing in what is read."""
    names = (tool["function"]["name"] for tool in conversation.tools)
    is_missing = any(name not in prompt for name in names)
    return ("definitions of tools",) if is_missing else ()
