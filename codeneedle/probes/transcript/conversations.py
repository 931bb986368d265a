"""
Reads recorded conversations, the file that ``--transcript`` names.

Two forms, as JSON or JSON lines: OpenAI's ``messages`` (with ``tools``, ``tool_calls``,
replies of tools and ``reasoning_content``), and ShareGPT's ``conversations``; and the
exports that `exports` knows. All are converted to OpenAI's, which servers take. No
error quotes a conversation.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codeneedle.errors import BadInput
from codeneedle.probes.transcript import exports
from codeneedle.records.record import Json
from codeneedle.system.files import read_regular, reason_of
from codeneedle.text import harmless, plural, size

LARGEST_BYTES = 64 << 20
"""Largest file: about 15 million tokens, more than any context holds."""

MOST_CALLS = 1_000
"""Tool calls of one turn; each is searched behind those before it."""

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
    f"lines, or is an export of {exports.PROGRAMS}."
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str  # name of the function
    arguments: str  # JSON, verbatim from the recording

    @property
    def parsed(self) -> Any:
        """The arguments, decoded."""
        return json.loads(self.arguments)


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
        """The message as OpenAI's API has it."""
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


def read_conversations(path: Path) -> tuple[str, tuple[Conversation, ...]]:
    """
    The SHA-256 of the file *path*, and its conversations.

    Raises:
        BadInput: If it cannot be read; names the line.
    """
    sha256, data = read_file(path)
    return sha256, conversations_of(data, path)


def read_file(path: Path, *, option: str = "--transcript") -> tuple[str, bytes]:
    """
    The SHA-256 of the file *path*, which an *option* names, and what it holds.

    Raises:
        BadInput: If it cannot be read, or is too large.
    """
    try:
        is_large = path.is_file() and path.stat().st_size > LARGEST_BYTES
        data = None if is_large else read_regular(path)
    except OSError as error:
        raise _bad_file(path, reason_of(error), option) from error
    if data is None:
        limit = f"it has more than {size(LARGEST_BYTES)}"
        raise _bad_file(path, limit if is_large else "there is no such file", option)
    return hashlib.sha256(data).hexdigest(), data


def conversations_of(
    data: bytes, path: Path, *, needs_assistant: bool = True
) -> tuple[Conversation, ...]:
    """
    The conversations in *data*, the contents of *path*.

    Args:
        data: JSON or JSON lines.
        path: For errors.
        needs_assistant: Whether one must have a message of an assistant.

    Raises:
        BadInput: If they cannot be read; names the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _Wrong("it is not UTF-8").at(path, line) from error
    conversations = []
    for line, value in exports.joined(_values(text, path)):
        try:
            conversations.append(_conversation(value, line))
        except _Wrong as wrong:
            raise wrong.at(path, line) from wrong
    turns = (turn for conversation in conversations for turn in conversation.turns)
    if needs_assistant and not any(turn.role == "assistant" for turn in turns):
        raise _bad_file(path, "it has no message of an assistant")
    return tuple(conversations)


def aside_phrases(conversations: Iterable[Conversation]) -> list[str]:
    """What a file has and its *conversations* have not, each with its number."""
    counts: Counter[str] = Counter()
    for conversation in conversations:
        counts.update(conversation.aside)
    return [f"{what} ({plural(count, 'time')})" for what, count in counts.items()]


def aside_lines(phrases: Sequence[str]) -> Iterator[str]:
    """One line on what is not read of a file, as of `aside_phrases`; or none."""
    if phrases:
        yield f"not read of the conversations: {'; '.join(phrases)}"


def _bad_file(path: Path, reason: str, option: str = "--transcript") -> BadInput:
    return BadInput(source=f"{option} {path}", reason=reason, hint=HINT)


class _Wrong(ValueError):  # noqa: N818 - named after the fact
    """An error within a conversation, raised where its line is not known."""

    def at(self, path: Path, line: int) -> BadInput:
        """The error for the user."""
        return BadInput(source=f"{path}, line {line}", reason=str(self), hint=HINT)


# --- JSON and JSON lines


def _values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """
    Each conversation, decoded, with its first line.

    Raises:
        BadInput: If a line is not JSON.
    """
    try:
        whole = _loads(text)
    except (ValueError, RecursionError) as error:
        yield from _lines(text, path, error)
        return
    if isinstance(whole, list) and not _is_messages(whole):
        yield from _members(text)
    else:
        yield _line_at(text, len(text) - len(text.lstrip())), whole


def _lines(text: str, path: Path, whole: Exception) -> Iterator[tuple[int, Any]]:
    """
    The value of each line that is not blank.

    If the first line is not JSON, the file was meant as one value, and the error is
    *whole*, that of decoding all of it.
    """
    is_first = True
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = _loads(line)
        except (ValueError, RecursionError) as error:
            cause = whole if is_first else error
            place = getattr(cause, "lineno", number) if is_first else number
            reason = getattr(cause, "msg", "it cannot be read")
            raise _Wrong(f"is no JSON: {reason}").at(path, place) from error
        yield number, value
        is_first = False


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _members(text: str) -> Iterator[tuple[int, Any]]:
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
    return text.count("\n", 0, at) + 1


# --- one conversation


def _is_messages(values: Sequence[Any]) -> bool:
    return bool(values) and all(
        isinstance(value, dict) and {"role", "from"} & value.keys() for value in values
    )


def _conversation(value: Any, line: int) -> Conversation:
    if isinstance(value, list) and _is_messages(value):
        value = {"conversations" if "from" in value[0] else "messages": value}
    if not isinstance(value, dict):
        raise _Wrong("is no conversation")
    try:
        value, aside = exports.converted(value)
    except exports.BadExport as error:
        raise _Wrong(str(error)) from error
    messages = value.get("messages")
    if messages is None:
        messages = value.get("conversations")
    if not isinstance(messages, list) or not messages:
        raise _Wrong("has neither 'messages' nor 'conversations'")
    turns = [_turn(message, at) for at, message in enumerate(messages, start=1)]
    system = _text(value.get("system"))
    if system and turns[0].role != "system":
        turns.insert(0, Turn(role="system", content=system))
    tools = tuple(_tools(value.get("tools") or value.get("functions")))
    return Conversation(line=line, turns=tuple(turns), tools=tools, aside=aside)


def _turn(value: Any, number: int) -> Turn:
    if not isinstance(value, dict):
        raise _Wrong(f"message {number} is no object")
    try:
        return _share_gpt(value) if "from" in value else _open_ai(value)
    except _Wrong as wrong:
        raise _Wrong(f"message {number} {wrong}") from wrong


_THOUGHTS = ("reasoning_content", "reasoning")


def _open_ai(value: Json) -> Turn:
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
        key: harmless(value[key])
        for key in ("name", "tool_call_id")
        if isinstance(value.get(key), str)
    }
    return Turn(
        role=role,
        content=_text(value.get("content")),
        reasoning=_text(reasoning) if role == "assistant" else "",
        calls=tuple(map(_call, calls)),
        others=others,
    )


def _share_gpt(value: Json) -> Turn:
    name = value.get("from")
    role = SHARE_GPT_ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        known = ", ".join(SHARE_GPT_ROLES)
        raise _Wrong(f"is 'from' nobody that is known: {known}")
    if not {"value", "content"} & value.keys():
        raise _Wrong("has no 'value'")
    content = value.get("value", value.get("content"))
    if role != "function_call":
        return Turn(role=role, content=_text(content))
    return Turn(role="assistant", calls=(_call(_parsed(content, "a call")),))


def _text(content: Any) -> str:
    """The text of a message, whose content may be a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return harmless(content)
    if not isinstance(content, list):
        raise _Wrong("has content that is no text")
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise _Wrong("has a part that is no text")
        parts.append(harmless(text))
    return "\n".join(parts)


def _call(value: Any) -> Call:
    inner = value.get("function", value) if isinstance(value, dict) else value
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise _Wrong("has a tool call without a name")
    name = inner["name"]
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        # Some servers write an empty text for no arguments.
        _parsed(arguments or "{}", "arguments of a tool call")
        return Call(harmless(name), harmless(arguments or "{}"))
    text = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return Call(harmless(name), harmless(text))


def _tools(value: Any) -> Iterator[Json]:
    """Definitions of tools; ShareGPT's are JSON in a text."""
    tools = _parsed(value, "'tools'") if isinstance(value, str) and value else value
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
        yield _loads(
            harmless(json.dumps({"type": "function", **inner}, ensure_ascii=False))
        )


def _parsed(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        raise _Wrong(f"has {what} that are no text")
    try:
        return _loads(text)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"has {what} that are no JSON") from error
