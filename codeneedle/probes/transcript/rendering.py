r"""
The turns of conversations as a model's chat template renders them: where each begins,
the class of its tokens, and which fields the template drops.

A turn is a prompt, which the template renders from all messages before it, and a text,
which rendering the turn itself adds. The fields of the recording are searched in that
text, and the class of each part follows from their places. What the template writes
before a field (``<think>``, ``<tool_call>{"name": "``) has the class of that field, and
what it writes after the last field has the class of the last one. The marks that end a
turn are not part of the text.

Observed on llama-server b11434, with SmolLM2's template and a tool template like
Qwen's:

- The server continues a final message of the assistant: its end is missing, templates
  that know thoughts begin it with an empty one, and with tool calls it is refused.
  ``--no-prefill-assistant`` renders it like any other message. So a separate server
  with that option renders, and the servers of cells only read texts.
- SmolLM2's template ignores ``tools``, ``tool_calls`` and ``reasoning_content``: a turn
  that only calls a tool is empty. Replies of tools are kept, with the role ``tool``.
- A template that drops earlier thoughts keeps those after the user's last message:
  thoughts beside tool calls remain until the user writes again, and then the prompt of
  the next turn does not begin with the earlier one. Servers reuse the equal beginning
  and read the rest again, as in real use; so every turn has its whole prompt.
- Arguments of calls are parsed and written as JSON again: ``{"a":1}`` becomes
  ``{"a": 1}``, ``\u00e9`` becomes é. Where they are not JSON, the server fails and
  quotes them in its log: so a stand-in is sent, and what the model wrote put in its
  place.
- Unless thoughts are switched off, a template may begin each answer with an empty
  thought, or open one that the recording does not have. So thinking is allowed for
  turns that have a thought, and a turn starts where its prompt and its text diverge.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from codeneedle.engines.engine import ChatTemplate
from codeneedle.engines.messages import Refused
from codeneedle.probes.thinking import RECORDED_THOUGHT
from codeneedle.probes.transcript.conversations import Call, Conversation, Turn
from codeneedle.records.record import Count, Json


class Kind(StrEnum):
    """The classes of tokens."""

    TOOL = "tool"
    REASONING = "reasoning"
    CODE = "code"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the text of a turn."""

    kind: Kind  # class of its tokens
    start: Count  # offset of its first character in the text
    end: Count  # offset behind its last character
    field: str = ""
    """
    Its field in the recording: ``content``, ``reasoning``, ``name 0``, ``arguments 0``,
    ``argument 0 3``; empty for text that the template adds.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedTurn:
    """A turn of the assistant as its model would have written it."""

    name: str  # number of the conversation and of the turn in it, from 1: ``2.5``
    prompt: str  # what is read before it
    text: str  # what the model wrote; empty if the template renders none of its fields
    parts: tuple[Part, ...]  # parts of the text, in order and without gaps
    dropped: tuple[str, ...] = ()
    """Fields of the recording that the text lacks, as phrases."""

    fault: str = ""
    """Why it has no text, as a phrase; empty if it has, or the template writes none."""

    detail: str = ""
    """What the server says of that; it may quote the conversation, so is not stored."""


def render_assistant_turns(
    conversation: Conversation, number: int, template: ChatTemplate
) -> Iterator[RenderedTurn]:
    """
    The turns of the assistant in the conversation of that *number*, from 1.

    One that the template does not take has a fault.

    Raises:
        CellError: If the server fails.
    """
    end = _render_end_of_turn(template)
    turns = conversation.turns
    places = [at for at, turn in enumerate(turns) if turn.role == "assistant"]
    for turn_number, at in enumerate(places, start=1):
        name = f"{number}.{turn_number}"
        try:
            prompt, text = _render_prompt_and_text(conversation, at, template, end)
        except Refused as error:
            yield _faulty_turn(name, NOT_TAKEN, error.message or str(error))
            continue
        except _NotJsonError:
            yield _faulty_turn(name, NO_JSON)
            continue
        parts, dropped = parts_and_dropped_fields(turns[at], text)
        tools = (tool["function"]["name"] for tool in conversation.tools)
        if turn_number == 1 and any(tool not in prompt for tool in tools):
            dropped += ("definitions of tools",)
        yield RenderedTurn(
            name=name,
            prompt=prompt,
            text=text if parts else "",
            parts=parts,
            dropped=dropped,
        )


# --- where a turn starts and ends


def _render_prompt_and_text(
    conversation: Conversation, at: int, template: ChatTemplate, end: str
) -> tuple[str, str]:
    """
    The prompt of one turn, and its text.

    Args:
        conversation: It holds the turn.
        at: Number of the turn, from 0, among those of all roles.
        template: Renders them.
        end: What the template writes after an answer.

    Raises:
        Refused: If the template does not take it.
        _NotJsonError: See `_restore_arguments`.
    """
    turn = conversation.turns[at]

    def render_first_turns(count: int, *, begins_reply: bool = False) -> str:
        turns = conversation.turns[:count]
        rendered = template.render_conversation(
            list(map(_sendable_message, turns)),
            conversation.tools,
            begins_reply=begins_reply,
            thinking=bool(turn.reasoning),
        )
        return _restore_arguments(rendered, turns)

    whole, prompt = (
        render_first_turns(at + 1),
        render_first_turns(at, begins_reply=True),
    )
    start = len(prompt)
    if not whole.startswith(prompt):
        start = _turn_start_offset(whole, prompt, render_first_turns(at), turn)
    return whole[:start], whole[start:].removesuffix(end)


NOT_TAKEN = "the chat template does not take it"

NO_JSON = (
    "a tool call before or in it has arguments that are no JSON, and the chat template "
    "writes no JSON"
)
"""Why turns are left out: what the model wrote has no place in the rendering."""


def _faulty_turn(name: str, fault: str, detail: str = "") -> RenderedTurn:
    return RenderedTurn(
        name=name, prompt="", text="", parts=(), fault=fault, detail=detail
    )


class _NotJsonError(Exception):
    """The template writes arguments of calls in a form that broken ones do not have."""


def _sendable_message(turn: Turn) -> Json:
    """
    The message of *turn*, with a stand-in for arguments that are no JSON.

    A server refuses to render those.
    """
    message = turn.message()
    for call, sent in zip(turn.calls, message.get("tool_calls", ()), strict=True):
        if not call.has_json_arguments:
            sent["function"]["arguments"] = json.dumps(
                {STAND_IN: _arguments_digest(call)}
            )
    return message


STAND_IN = "codeneedle_text"
"""Key of the object that is sent in the place of arguments that are no JSON."""


def _arguments_digest(call: Call) -> str:
    """What stands for the arguments of *call* in a stand-in."""
    return hashlib.sha256(call.arguments.encode()).hexdigest()[:16]


def _restore_arguments(text: str, turns: Iterable[Turn]) -> str:
    """
    The rendering *text* of *turns*, with what the model wrote for its stand-ins.

    Raises:
        _NotJsonError: If the template writes no JSON there.
    """
    for call in (call for turn in turns for call in turn.calls):
        if not call.has_json_arguments:
            pattern = rf'\{{\s*"{STAND_IN}"\s*:\s*"{_arguments_digest(call)}"\s*\}}'
            text = call.arguments.join(re.split(pattern, text))
            if _arguments_digest(call) in text:
                raise _NotJsonError
    return text


def _turn_start_offset(whole: str, prompt: str, before: str, turn: Turn) -> int:
    """
    Where *turn* starts in *whole*, a rendering that does not begin with its *prompt*.

    The prompt may open a thought that the recording does not have. Then the turn starts
    after the last mark or line break that both share. If the template renders the
    messages *before* the turn differently because of it, the turn starts at its first
    field.
    """
    both = zip(whole, prompt, strict=False)
    shared = next((at for at, (one, two) in enumerate(both) if one != two), len(whole))
    if shared >= len(before):
        marks = [before, *re.findall(r"[^\n>]*[\n>]", prompt[len(before) : shared])]
        return len("".join(marks))
    parts, _ = parts_and_dropped_fields(turn, whole[shared:])
    starts = (part.start for part in parts if part.field)
    return shared + next(starts, len(whole) - shared)


SAMPLE = "codeneedle"
"""An answer that occurs in no template."""


def _render_end_of_turn(template: ChatTemplate) -> str:
    """What the template writes after an answer; empty if that is unknown."""
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
    return whole.partition(SAMPLE)[2]


# --- fields in the text of a turn


FENCED = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""A Markdown block of code with its fences; an open one extends to the end."""


def parts_and_dropped_fields(
    turn: Turn, text: str
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """
    The parts of the *text* that *turn* was rendered to, and the fields that it lacks.

    A text without any field has no parts.
    """
    located: list[Part] = []
    dropped: list[str] = []
    for what, ways in _field_alternatives(turn):
        end = max((part.end for part in located), default=0)
        attempts = (_locate_fields(way, text, at) for at in (end, 0) for way in ways)
        parts = next(filter(None, attempts), [])
        overlaps = any(
            one.start < two.end and two.start < one.end
            for one in parts
            for two in located
        )
        if not parts or overlaps:
            dropped.append(what)
        else:
            located += parts
    located.sort(key=lambda part: part.start)
    return tuple(_absorb_gaps_and_split_code(located, text)), tuple(
        dict.fromkeys(dropped)
    )


def field_text_or_none(turn: Turn, name: str, length: int) -> str | None:
    """
    The text of a field of the recording, as it was rendered; None if no form fits.

    Args:
        turn: The turn.
        name: Of the field, as in a `Part`.
        length: Of the part, in characters.
    """
    forms = (
        form
        for _, ways in _field_alternatives(turn)
        for way in ways
        for field in way
        if field.name == name
        for form in field.forms
    )
    return next((form for form in forms if len(form) == length), None)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the recording that is searched in the text of a turn."""

    kind: Kind  # class of its tokens
    name: str  # as in a `Part`
    forms: tuple[str, ...]
    """Texts that a template may render it as, the most faithful first."""


def _field_alternatives(turn: Turn) -> Iterator[tuple[str, list[list[_Field]]]]:
    """
    The content of a turn in the usual order: a phrase for it, and the sequences of
    fields that a template may render it as.
    """
    if turn.reasoning:
        forms = _with_trimmed(turn.reasoning)
        yield "reasoning", [[_Field(Kind.REASONING, "reasoning", forms)]]
    thought = RECORDED_THOUGHT.match(turn.content)
    if thought:
        forms = _with_trimmed(thought.group())
        field = _Field(Kind.REASONING, "thought", forms)
        yield "reasoning within the content", [[field]]
    content = turn.content[thought.end() :] if thought else turn.content
    if content.strip():
        forms = _with_trimmed(content)
        yield "content", [[_Field(Kind.TEXT, "content", forms)]]
    for number, call in enumerate(turn.calls):
        name = _Field(Kind.TOOL, f"name {number}", (call.name,))
        forms = tuple(_json_forms(call))
        arguments = _Field(Kind.TOOL, f"arguments {number}", forms)
        yield "tool calls", [[name, arguments], [name, *_argument_fields(call, number)]]


def _with_trimmed(text: str) -> tuple[str, ...]:
    """*text*, and without the white space around it, which many templates drop."""
    return tuple(form for form in dict.fromkeys((text, text.strip())) if form)


def _json_forms(call: Call) -> Iterator[str]:
    """The arguments of *call* verbatim; if JSON, also as templates may write it."""
    yield call.arguments
    if not call.has_json_arguments:
        return
    for separators in ((", ", ": "), (",", ":")):
        for is_ascii in (False, True):
            yield json.dumps(
                call.argument_values, separators=separators, ensure_ascii=is_ascii
            )
    for indent in (2, 4):
        yield json.dumps(call.argument_values, indent=indent, ensure_ascii=False)


def _argument_fields(call: Call, number: int) -> Iterator[_Field]:
    """The arguments one by one, for templates that do not write JSON."""
    values = call.argument_values if isinstance(call.argument_values, dict) else {}
    for at, value in enumerate(values.values()):
        is_text = isinstance(value, str)
        form = value if is_text else json.dumps(value, ensure_ascii=False)
        if form:
            yield _Field(Kind.TOOL, f"argument {number} {at}", (form,))


def _locate_fields(fields: Sequence[_Field], text: str, at: int) -> list[Part] | None:
    """*fields* in *text* from *at* on, one after the other; None if one is missing."""
    parts = []
    for field in fields:
        places = ((text.find(form, at), len(form)) for form in field.forms)
        start, length = next((place for place in places if place[0] >= 0), (-1, 0))
        if start < 0:
            return None
        at = start + length
        parts.append(Part(field.kind, start, at, field.name))
    return parts


def _absorb_gaps_and_split_code(located: Sequence[Part], text: str) -> Iterator[Part]:
    """
    The parts of the whole *text*; blocks of code are split from other text.

    What stands before a part has its class; behind the last one, that of the last.
    """
    at = 0
    for part in located:
        if part.start > at:
            yield Part(part.kind, at, part.start)
        yield from _split_code_blocks(part, text)
        at = part.end
    if located and at < len(text):
        yield Part(located[-1].kind, at, len(text))


def _split_code_blocks(part: Part, text: str) -> Iterator[Part]:
    """*part*; one of text in pieces, blocks of code with their own class."""
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
