"""
Reads recorded conversations, the file that ``--transcript`` names, in OpenAI's or
ShareGPT's form; refuses one of which too many cannot be read.

Two forms, as JSON or JSON lines: OpenAI's ``messages`` (with ``tools``, ``tool_calls``,
replies of tools and ``reasoning_content``), and ShareGPT's ``conversations``; and the
exports that `exports` knows. All are converted to OpenAI's, which servers take. No
error quotes a conversation.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codeneedle.corpora.encodings import MARKS
from codeneedle.errors import BadInput
from codeneedle.probes.transcript import exports
from codeneedle.records.record import Json
from codeneedle.system.files import read_regular, reason_of
from codeneedle.text import plural, replace_surrogates, size_text

LARGEST_BYTES = 64 << 20
"""Largest file: about 15 million tokens, more than any context holds."""

MOST_CALLS = 1_000
"""Tool calls of one turn; each is searched behind those before it."""

MARK = "\ufeff"
"""A byte order mark, as text: nobody's word."""

MOST_UNREAD = 0.1
"""Most of all conversations that may be left out or cut, as they cannot be read; one
may be in any case."""

ROLES = ("system", "developer", "user", "assistant", "tool")

SHARE_GPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function_call": "function_call",
    "tool_call": "function_call",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""Values of ``from`` with OpenAI's roles; ``function_call`` is the assistant's."""

HINT = (
    "A file holds OpenAI's messages or ShareGPT's conversations, as JSON or JSON "
    f"lines, or is an export of {exports.PROGRAMS}. Convert others: "
    '{"messages": [{"role": "user", "content": "..."}, ...]} a line, one branch each.'
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str  # name of the function
    arguments: str
    """Verbatim from the recording: JSON, or text where the model wrote no JSON."""

    @property
    def argument_values(self) -> Any:
        """The arguments, decoded; the text itself where it is no JSON."""
        return json.loads(self.arguments) if self.has_json_arguments else self.arguments

    @property
    def has_json_arguments(self) -> bool:
        """Whether the arguments are JSON."""
        try:
            _parse_json(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation."""

    role: str  # one of `ROLES`
    content: str = ""  # its text; may be empty
    reasoning: str = ""  # the thought before it; empty if there is none
    calls: tuple[Call, ...] = ()  # tool calls
    others: Mapping[str, str] = field(default_factory=dict)
    """Further fields that templates read: ``name``, ``tool_call_id``."""

    def message(self) -> Json:
        """The message as OpenAI's API has it, with ids made for its calls."""
        message: Json = {"role": self.role, "content": self.content, **self.others}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{at:05}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for at, call in enumerate(self.calls)
            ]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A recorded conversation."""

    line: int  # first line in the file, from 1
    turns: tuple[Turn, ...]  # messages of all roles
    tools: tuple[Json, ...] = ()  # definitions of tools in the form of OpenAI's API
    aside: Mapping[str, int] = field(default_factory=dict)
    """What the file has and this has not, as phrases, with their numbers."""

    fault: str = ""
    """Why it, or what follows its turns, cannot be read; empty if it is whole."""


def read_hash_and_conversations(path: Path) -> tuple[str, tuple[Conversation, ...]]:
    """
    The SHA-256 of the file *path*, and its conversations.

    Raises:
        BadInput: If it cannot be read; names the line.
    """
    sha256, data = read_hash_and_bytes(path)
    return sha256, parse_and_check_conversations(data, path)


def read_hash_and_bytes(
    path: Path, *, option: str = "--transcript"
) -> tuple[str, bytes]:
    """
    The SHA-256 of the file *path*, which an *option* names, and what it holds.

    Raises:
        BadInput: If it cannot be read, or is too large.
    """
    try:
        is_large = path.is_file() and path.stat().st_size > LARGEST_BYTES
        data = None if is_large else read_regular(path)
    except OSError as error:
        raise _bad_file_error(path, reason_of(error), option) from error
    if data is None:
        limit = f"it has more than {size_text(LARGEST_BYTES)}"
        raise _bad_file_error(
            path, limit if is_large else "there is no such file", option
        )
    return hashlib.sha256(data).hexdigest(), data


def parse_and_check_conversations(
    data: bytes, path: Path, *, needs_assistant: bool = True
) -> tuple[Conversation, ...]:
    """
    The conversations in *data*, the contents of *path*.

    One that cannot be read has no turns, one with a message that cannot be read ends
    before it: both have a fault, which `unread_part_phrases` counts.

    Args:
        data: JSON or JSON lines.
        path: For errors.
        needs_assistant: Whether one must have a message of an assistant; if not, none
            may have a fault.

    Raises:
        BadInput: If more than `MOST_UNREAD` have a fault, naming the first line; if no
            assistant has a message.
    """
    values = exports.join_record_lines(_parse_json_or_json_lines(_decode(data, path)))
    conversations = tuple(_conversation_or_fault(value, line) for line, value in values)
    faulty = [conversation for conversation in conversations if conversation.fault]
    turns = (turn for conversation in conversations for turn in conversation.turns)
    has_assistant = any(turn.role == "assistant" for turn in turns)
    most = max(1, int(MOST_UNREAD * len(conversations))) if needs_assistant else 0
    if faulty and (len(faulty) > most or not has_assistant):
        raise _first_fault_error(faulty, len(conversations)).as_error(
            path, faulty[0].line
        )
    if needs_assistant and not has_assistant:
        raise _bad_file_error(path, "it has no message of an assistant")
    return conversations


def _decode(data: bytes, path: Path) -> str:
    """The text of *data*, by the byte order mark that it begins with; else UTF-8."""
    codec = next((name for mark, name in MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(codec).lstrip(MARK)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        what = codec.removesuffix("-sig").upper()
        raise _Wrong(f"it is not {what}").as_error(path, line) from error


def _first_fault_error(faulty: Sequence[Conversation], of: int) -> "_Wrong":
    """The error of the first fault, and how many conversations have one."""
    more = f"; {len(faulty):,} of {of:,} conversations have a fault" * (len(faulty) > 1)
    return _Wrong(f"{faulty[0].fault}{more}")


_ENTRY = "an entry that"
_OF_MESSAGE = "a conversation of which a message"
_REST = "what follows a message that"


def is_about_unreadable(phrase: str) -> bool:
    """Whether a phrase of `unread_part_phrases` is about what could not be read."""
    return phrase.startswith((_ENTRY, _OF_MESSAGE, _REST))


def unread_part_phrases(conversations: Iterable[Conversation]) -> list[str]:
    """What a file has and its *conversations* have not, each with its number."""
    counts: Counter[str] = Counter()
    for conversation in conversations:
        counts.update(conversation.aside)
    return [f"{what} ({plural(count, 'time')})" for what, count in counts.items()]


def unread_part_lines(phrases: Sequence[str]) -> Iterator[str]:
    """A line on what is not read of a file, by its `unread_part_phrases`; or none."""
    if phrases:
        yield f"not read of the conversations: {'; '.join(phrases)}"


def _bad_file_error(path: Path, reason: str, option: str = "--transcript") -> BadInput:
    return BadInput(source=f"{option} {path}", reason=reason, hint=HINT)


class _Wrong(ValueError):  # noqa: N818 - named after the fact
    """An error within a conversation, raised where its line is not known."""

    def as_error(self, path: Path, line: int) -> BadInput:
        """The error for the user."""
        return BadInput(source=f"{path}, line {line}", reason=str(self), hint=HINT)


# --- JSON and JSON lines


def _parse_json_or_json_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Each conversation, decoded, with its first line; a `_Wrong` if it is no JSON."""
    try:
        whole = _parse_json(text)
    except (ValueError, RecursionError) as error:
        yield from _parse_json_lines(text, error)
        return
    if isinstance(whole, list) and not _is_messages(whole):
        yield from _parse_list_members(text)
    else:
        yield _line_at(text, len(text) - len(text.lstrip())), whole


def _parse_json_lines(text: str, whole: Exception) -> Iterator[tuple[int, Any]]:
    """
    The value of each line that is not blank; a `_Wrong` if it is no JSON.

    If the first line is not JSON, the file was probably meant as one value, and the
    error is *whole*, that of decoding all of it.
    """
    is_first = True
    for number, line in enumerate(text.split("\n"), start=1):
        stated = line.strip().lstrip(MARK)  # of files that were joined
        if not stated:
            continue
        place = number
        try:
            value = _parse_json(stated)
        except (ValueError, RecursionError) as error:
            cause = whole if is_first else error
            value = _Wrong(f"is no JSON: {getattr(cause, 'msg', 'it cannot be read')}")
            place = getattr(cause, "lineno", number) if is_first else number
        yield place, value
        is_first = False


def _parse_json(text: str) -> Any:
    """*text* as JSON; refuses NaN, Infinity, and numbers too large for a float."""
    return json.loads(
        text, parse_constant=_refuse_nan_and_infinity, parse_float=_parse_finite
    )


def _parse_finite(digits: str) -> float:
    """The number that *digits* write; one too large for a float is refused."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError(digits)
    return value


def _refuse_nan_and_infinity(name: str) -> None:
    """Refuse ``NaN`` and ``Infinity``."""
    raise ValueError(f"{name} is no JSON")


def _parse_list_members(text: str) -> Iterator[tuple[int, Any]]:
    """The members of *text*, a valid JSON list, each with its first line."""
    decoder, at = json.JSONDecoder(), text.index("[") + 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return
        value, end = decoder.raw_decode(text, at)
        yield _line_at(text, at), value
        at = end


def _line_at(text: str, at: int) -> int:
    """The line of the character *at* that place, from 1."""
    return text.count("\n", 0, at) + 1


# --- one conversation


def _is_messages(values: Sequence[Any]) -> bool:
    """Whether *values* are messages of one conversation: each has a role or sender."""
    return bool(values) and all(
        isinstance(value, dict) and {"role", "from"} & value.keys() for value in values
    )


_NUMBERED = re.compile(r"^message \d+ ")


def _conversation_or_fault(value: Any, line: int) -> Conversation:
    """The conversation that *value* is, as far as it can be read."""
    try:
        return _read_conversation(value, line)
    except _Wrong as wrong:
        rest = _NUMBERED.sub("", str(wrong))
        is_inner = rest != str(wrong)
        what = f"{_OF_MESSAGE} {rest}" if is_inner else f"{_ENTRY} {rest}"
        return Conversation(line=line, turns=(), aside={what: 1}, fault=str(wrong))


def _read_conversation(value: Any, line: int) -> Conversation:
    """
    The conversation that *value* is, up to the first message that cannot be read.

    Raises:
        _Wrong: If it is none, or has no message of an assistant before that.
    """
    if isinstance(value, _Wrong):
        raise value
    if isinstance(value, list) and _is_messages(value):
        value = {"conversations" if "from" in value[0] else "messages": value}
    if not isinstance(value, dict):
        raise _Wrong("is no conversation")
    try:
        value, found = exports.convert_conversation(value)
    except exports.BadExport as error:
        raise _Wrong(str(error)) from error
    messages = value.get("messages")
    if messages is None:
        messages = value.get("conversations")
    if not isinstance(messages, list):
        raise _Wrong("has neither 'messages' nor 'conversations'")
    if not messages:
        raise _Wrong("has no message")
    turns, fault = _read_turns_until_fault(messages)
    system = _content_text(value.get("system"))
    if system and turns[0].role != "system":
        turns.insert(0, Turn(role="system", content=system))
    tools = tuple(_tool_definitions(value.get("tools") or value.get("functions")))
    aside = dict(found)
    if fault:
        what = f"{_REST} {_NUMBERED.sub('', fault)}"
        aside[what] = 1
    return Conversation(
        line=line, turns=tuple(turns), tools=tools, aside=aside, fault=fault
    )


def _read_turns_until_fault(messages: Sequence[Any]) -> tuple[list[Turn], str]:
    """
    The turns up to the first that cannot be read, and why that is so.

    Raises:
        _Wrong: If none of an assistant comes before it.
    """
    turns: list[Turn] = []
    for number, message in enumerate(messages, start=1):
        try:
            turns.append(_read_turn(message, number))
        except _Wrong as wrong:
            if not any(turn.role == "assistant" for turn in turns):
                raise
            return turns, str(wrong)
    return turns, ""


def _read_turn(value: Any, number: int) -> Turn:
    """Message *number* in either form; raises a `_Wrong` that names that number."""
    if not isinstance(value, dict):
        raise _Wrong(f"message {number} is no object")
    try:
        return (
            _read_share_gpt_turn(value)
            if "from" in value
            else _read_open_ai_turn(value)
        )
    except _Wrong as wrong:
        raise _Wrong(f"message {number} {wrong}") from wrong


_THOUGHTS = ("reasoning_content", "reasoning")


def _read_open_ai_turn(value: Json) -> Turn:
    """A message of OpenAI's form; thoughts of others than the assistant are dropped."""
    role = value.get("role")
    if role == "function":
        role = "tool"
    if role not in ROLES:
        raise _Wrong(f"has no known role: {', '.join(ROLES)}")
    if not {"content", "tool_calls", "function_call", *_THOUGHTS} & value.keys():
        raise _Wrong("has no 'content'")
    reasoning = value.get("reasoning_content") or value.get("reasoning")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _Wrong("has 'tool_calls' that are no list")
    if len(calls) > MOST_CALLS:
        raise _Wrong(f"has {len(calls):,} tool calls, more than {MOST_CALLS:,}")
    if value.get("function_call"):
        calls = [*calls, value["function_call"]]
    if calls and role != "assistant":
        raise _Wrong("calls tools and is not the assistant's")
    others = {
        key: replace_surrogates(value[key])
        for key in ("name", "tool_call_id")
        if isinstance(value.get(key), str)
    }
    return Turn(
        role=role,
        content=_content_text(value.get("content")),
        reasoning=_content_text(reasoning) if role == "assistant" else "",
        calls=tuple(map(_read_call, calls)),
        others=others,
    )


def _read_share_gpt_turn(value: Json) -> Turn:
    """A message of ShareGPT's form; a call is one of the assistant's without text."""
    name = value.get("from")
    role = SHARE_GPT_ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        known = ", ".join(SHARE_GPT_ROLES)
        raise _Wrong(f"is 'from' nobody that is known: {known}")
    if not {"value", "content"} & value.keys():
        raise _Wrong("has no 'value'")
    content = value.get("value", value.get("content"))
    if role != "function_call":
        return Turn(role=role, content=_content_text(content))
    return Turn(
        role="assistant",
        calls=(_read_call(_parse_json_field(content, "a call that is")),),
    )


def _content_text(content: Any) -> str:
    """The text of *content*; of a list its parts, one a line; empty for None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return replace_surrogates(content)
    if not isinstance(content, list):
        raise _Wrong("has content that is no text")
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise _Wrong("has a part that is no text")
        parts.append(replace_surrogates(text))
    return "\n".join(parts)


def _read_call(value: Any) -> Call:
    """A call in either form; without arguments it has an empty object."""
    inner = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise _Wrong("has a tool call without a name")
    name = inner["name"]
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        # Some servers write an empty text for no arguments; a model may write no JSON.
        return Call(replace_surrogates(name), replace_surrogates(arguments or "{}"))
    text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return Call(replace_surrogates(name), replace_surrogates(text))


def _tool_definitions(value: Any) -> Iterator[Json]:
    """Definitions of tools in OpenAI's form; ShareGPT's are JSON in a text."""
    tools = (
        _parse_json_field(value, "'tools' that are")
        if isinstance(value, str) and value
        else value
    )
    if not tools:
        return
    if not isinstance(tools, list):
        raise _Wrong("has 'tools' that are no list")
    for tool in tools:
        if not isinstance(tool, dict):
            raise _Wrong("has a tool that is no object")
        inner = tool if isinstance(tool.get("function"), dict) else {"function": tool}
        if not isinstance(inner["function"].get("name"), str):
            raise _Wrong("has a tool without a name")
        # Lone surrogates cannot be sent.
        yield _parse_json(
            replace_surrogates(
                json.dumps({"type": "function", **inner}, ensure_ascii=False)
            )
        )


def _parse_json_field(text: Any, what: str) -> Any:
    """*text* as JSON; *what* begins what a `_Wrong` says of it."""
    if not isinstance(text, str):
        raise _Wrong(f"has {what} no text")
    try:
        return _parse_json(text)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"has {what} no JSON") from error
