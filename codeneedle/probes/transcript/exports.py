"""
Converts exports of chat programs, such as ChatGPT and Claude, to OpenAI's messages: the
branch that was shown at last; refuses a file that does not say which.

Such a file may hold more than what was said at last: answers that were thrown away,
branches that were left. The branch or answer that the program shows is taken; where the
file does not say which one that is, it is refused. What is passed over is counted.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from codeneedle.records.record import Json
from codeneedle.text import escape_invisible, replace_surrogates

PROGRAMS = "llama.cpp's page, ChatGPT, Claude, Open WebUI, LM Studio or SillyTavern"
"""Whose exports are read."""

OTHER_BRANCHES = "messages of other branches"

READ = frozenset(
    {
        *("role", "content", "name", "tool_calls", "tool_call_id", "function_call"),
        *("reasoning_content", "reasoning", "from", "value"),
    }
)
"""Keys of a message that are read."""

ABOUT = frozenset(
    {
        *("ancestors", "children", "childrenIds", "modelName", "model", "metadata"),
        *("timings", "usage", "logprobs", "finish_reason", "stop_reason", "meta"),
        *("created_at", "updated_at", "date", "send_date", "timestamp", "models"),
        *("annotations", "sender", "refusal_reason", "feedback", "annotation", "info"),
    }
)
"""Keys that say something about a message, and nothing in it."""


class BadExport(ValueError):  # noqa: N818 - named after the fact
    """A conversation that cannot be told from an export; the message says why."""


class Converted(NamedTuple):
    """A conversation in OpenAI's form, or in ShareGPT's, which has no branches."""

    value: Any
    aside: Counter[str]
    """What the file has and this has not, as phrases, with their numbers."""


def convert_conversation(value: Any) -> Converted:
    """
    *value*, one decoded conversation, in a form without branches.

    Raises:
        BadExport: If what was said at last cannot be told.
    """
    aside: Counter[str] = Counter()
    try:
        value = _convert_export(value, aside)
    except (AttributeError, LookupError, TypeError) as error:
        raise BadExport("is an export whose parts are not those we know") from error
    for message in _messages_of(value):
        aside.update(f"the key '{key}'" for key in _unread_keys(message))
    return Converted(value, +aside)


def _convert_export(value: Any, aside: Counter[str]) -> Any:
    """
    *value* as the first program converts it whose export it is; else as it is.

    What is passed over is counted in *aside*.

    Raises:
        BadExport: See `convert_conversation`.
    """
    for is_of, convert in _PROGRAMS if isinstance(value, dict) else ():
        if is_of(value):
            return convert(value, aside)
    _refuse_branches(_messages_of(value))
    return value


def _messages_of(value: Any) -> list[Json]:
    """
    Messages that are objects, of a list or of that in an object; none without a list.

    An object has it under ``messages`` or ``conversations``.
    """
    messages = value
    if isinstance(value, dict):
        messages = value.get("messages") or value.get("conversations")
    listed = messages if isinstance(messages, list) else []
    return [message for message in listed if isinstance(message, dict)]


def _unread_keys(message: Json) -> Iterator[str]:
    """Keys of *message*, safe to show, with words or parts that nothing reads."""
    for key, content in message.items():
        is_text = isinstance(content, str) and re.search(r"\S\s+\S", content)
        is_more = isinstance(content, list | dict) and content
        if key not in READ | ABOUT and (is_text or is_more):
            yield escape_invisible(replace_surrogates(key))[:40]


# --- files with a record in each line


def join_record_lines(values: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """
    Each conversation of *values*, with its line.

    Lines that are records of one conversation become one: a session and its messages
    of llama.cpp, the header and the messages of SillyTavern.
    """
    kept: tuple[int, list[Any]] | None = None
    for line, value in values:
        if _is_header(value):
            if kept:
                yield kept[0], _convert_records(kept[1])
            kept = line, [value]
        elif kept and _is_record(value):
            kept[1].append(value)
        else:
            if kept:
                yield kept[0], _convert_records(kept[1])
            kept = None
            yield line, value
    if kept:
        yield kept[0], _convert_records(kept[1])


def _is_header(value: Any) -> bool:
    """Whether *value* begins a file with a record in each line."""
    if not isinstance(value, dict):
        return False
    of_tavern = "chat_metadata" in value or {"user_name", "character_name"} <= {*value}
    return value.get("type") == "session" or of_tavern


def _is_record(value: Any) -> bool:
    """Whether *value* belongs to the conversation of a header before it."""
    if not isinstance(value, dict):
        return False
    return "mes" in value or ("type" in value and "role" not in value)


def _convert_records(records: Sequence[Json]) -> Json:
    """A conversation of a header and its records, in the form of its program."""
    header, *rest = records
    if header.get("type") != "session":
        return {TAVERN: rest}
    messages = [record.get("message") for record in rest if record["type"] == "message"]
    return {"conv": header, "messages": messages}


# --- trees


_PARENTS = ("parent", "parentId", "parent_id", "parentMessageId", "parent_message_uuid")
_IDS = ("id", "uuid", "messageId", "message_id")
_NOBODY = "00000000-"
"""How the parent of the first message begins in exports of Claude."""


def _first_value(message: Json, keys: Sequence[str]) -> Any:
    """What *message* has by the first of *keys* that is not None; None without any."""
    return next((message[key] for key in keys if message.get(key) is not None), None)


def _take_branch_and_count_others(
    messages: Sequence[Any], last: Any, aside: Counter[str], *, by: Sequence[str] = ()
) -> list[Json]:
    """
    The messages from the first one to the *last*, which is shown.

    Args:
        messages: All, in any order.
        last: Id of that message; None if the file does not say it.
        aside: Gets the number of those in other branches.
        by: Keys of the parent, if they are known.

    Raises:
        BadExport: If it cannot be told which messages these are.
    """
    nodes = {_first_value(message, _IDS): message for message in messages}
    parents = {key: _first_value(node, by or _PARENTS) for key, node in nodes.items()}
    if None in nodes or len(nodes) < len(messages):
        raise BadExport("has messages without an id of their own")
    at = _only_leaf(parents) if last is None else last
    shown: list[Json] = []
    while at in parents and len(shown) < len(nodes):
        shown.append(nodes[at])
        at = parents[at]
    if at in parents:
        raise BadExport("is a tree in which a message is its own ancestor")
    if not shown or not (at is None or str(at).startswith(_NOBODY)):
        raise BadExport("is a tree that lacks the message that is shown, or its parent")
    if others := len(messages) - len(shown):
        aside[OTHER_BRANCHES] += others
    return shown[::-1]


def _only_leaf(parents: Mapping[Any, Any]) -> Any:
    """
    Id of the message that is nobody's parent, if no message has two answers.

    Raises:
        BadExport: If there are several, or none.
    """
    leaves = parents.keys() - {*parents.values()}
    if len(leaves) != 1:
        raise BadExport(
            "is a tree with several branches, and does not say which one is shown"
        )
    return leaves.pop()


def _refuse_branches(messages: Sequence[Json]) -> None:
    """
    Stop at a list that is a tree, or holds several answers, of an unknown program.

    Raises:
        BadExport: If it is.
    """
    for message in messages:
        for key in ("versions", "swipes", "variants", "alternatives", "siblings"):
            if isinstance(message.get(key), list) and len(message[key]) > 1:
                raise BadExport(
                    f"has several answers in '{key}', and its program is not known"
                )
    parents = [_first_value(message, _PARENTS) for message in messages]
    given = [parent for parent in parents if isinstance(parent, str | int)]
    children = [m.get("children") or m.get("childrenIds") or () for m in messages]
    many = any(isinstance(c, list) and len(c) > 1 for c in children)
    if many or len({*given}) < len(given):
        raise BadExport(
            "is a tree with several branches of a program that is not known"
        )


# --- llama.cpp


def _is_llama(value: Json) -> bool:
    """Whether *value* is an export of llama.cpp's page."""
    conv = value.get("conv")
    return isinstance(value.get("messages"), list) and (
        isinstance(conv, dict) or "currNode" in value
    )


def _convert_llama(value: Json, aside: Counter[str]) -> Json:
    """The branch that is shown, without its root."""
    about = value.get("conv", value)
    shown = _take_branch_and_count_others(
        value["messages"], about.get("currNode"), aside
    )
    kept = [message for message in shown if message.get("type") != "root"]
    return {"messages": [_llama_message(message, aside) for message in kept]}


def _llama_message(message: Json, aside: Counter[str]) -> Json:
    """
    A message by OpenAI's keys; attachments stand before its text.

    Tool calls that are no JSON are left out, and counted in *aside*.
    """
    renamed = {
        "reasoningContent": "reasoning_content",
        "thinking": "reasoning_content",
        "toolCallId": "tool_call_id",
    }
    made = {
        renamed.get(key, key): content for key, content in message.items() if content
    }
    calls, extra = made.pop("toolCalls", None), made.pop("extra", None)
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except (ValueError, RecursionError):
            aside["tool calls that are no JSON"] += 1
            calls = None
    if calls:
        made["tool_calls"] = calls
    if isinstance(extra, list) and extra:
        made["content"] = [
            *map(_attachment_text_or_picture_mark, extra),
            message.get("content") or "",
        ]
    return made


def _attachment_text_or_picture_mark(extra: Any) -> Any:
    """The text of an attachment below its name; for all else the mark of a picture."""
    content = extra.get("content") if isinstance(extra, dict) else None
    if not isinstance(content, str) or extra.get("processedAsImages"):
        return {"type": "image_url"}
    labels = {
        "PDF": "PDF File",
        "MCP_PROMPT": "MCP Prompt",
        "MCP_RESOURCE": "MCP Resource",
    }
    label = labels.get(str(extra.get("type")), "File")
    server = f" ({extra['serverName']})" if extra.get("serverName") else ""
    return f"\n\n--- {label}: {extra.get('name')}{server} ---\n{content}"


# --- ChatGPT


def _is_chatgpt(value: Json) -> bool:
    """Whether *value* is a conversation of ChatGPT: a tree of messages."""
    return isinstance(value.get("mapping"), dict)


def _convert_chatgpt(value: Json, aside: Counter[str]) -> Json:
    """The branch that is shown, thoughts within the answers that follow them."""
    nodes = [node for node in value["mapping"].values() if isinstance(node, dict)]
    shown = _take_branch_and_count_others(
        nodes, value.get("current_node"), aside, by=("parent",)
    )
    said = (node.get("message") for node in shown)
    messages: list[Json] = []
    thoughts: list[str] = []
    for message in said:
        if isinstance(message, dict):
            made = _chatgpt_message(message, thoughts, aside)
            messages += [made] if made else []
    return {"messages": messages}


def _chatgpt_message(
    message: Json, thoughts: list[str], aside: Counter[str]
) -> Json | None:
    """
    A message with the *thoughts* before it; None if it says nothing.

    *thoughts* are kept for the next message of the assistant, which empties them.
    """
    author, content = message.get("author") or {}, message.get("content") or {}
    role, kind = author.get("role"), content.get("content_type")
    if kind == "thoughts":
        listed = content.get("thoughts") or ()
        thoughts += [str(thought.get("content") or "") for thought in listed]
        return None
    if kind == "reasoning_recap":
        return None
    parts = content.get("parts") if "parts" in content else [content.get("text")]
    said = [_chatgpt_part(part) for part in parts or () if part]
    if kind not in {"text", "multimodal_text", "code", "execution_output"}:
        aside[f"content of the type '{kind}'"] += 1
        return None
    if not said:
        return None
    made: Json = {"role": role, "content": said}
    if role == "assistant":
        made["reasoning_content"] = "\n".join(thoughts)
        thoughts.clear()
        recipient = message.get("recipient") or "all"
        if recipient != "all":
            arguments = "\n".join(part for part in said if isinstance(part, str))
            called = {"name": str(recipient), "arguments": arguments}
            made |= {"content": "", "tool_calls": [{"function": called}]}
    elif role == "tool" and author.get("name"):
        made["name"] = author["name"]
    return made


def _chatgpt_part(part: Any) -> Any:
    """*part*; one without text, such as a sound, becomes a picture."""
    has_text = isinstance(part, str) or "text" in part
    return part if has_text else {"type": "image_url"}


# --- Claude, and Anthropic's API


def _is_claude(value: Json) -> bool:
    return isinstance(value.get("chat_messages"), list)


def _convert_claude(value: Json, aside: Counter[str]) -> Json:
    """The branch that is shown; texts of attached files stand before the message."""
    said = value["chat_messages"]
    if any(_first_value(m, _PARENTS) for m in said if isinstance(m, dict)):
        said = _take_branch_and_count_others(
            said, value.get("current_leaf_message_uuid"), aside
        )
    messages: list[Json] = []
    for message in said:
        role = {"human": "user"}.get(message.get("sender"), message.get("sender"))
        parts = message.get("content") or [
            {"type": "text", "text": message.get("text")}
        ]
        files = message.get("attachments") or ()
        texts = [file.get("extracted_content") for file in files]
        attached = [{"type": "text", "text": text} for text in texts if text]
        aside["attached files without a text"] += texts.count(None)
        aside["attached files without a text"] += len(message.get("files") or ())
        messages += _messages_by_part(role, [*attached, *parts])
    return {"messages": messages}


def _is_anthropic(value: Json) -> bool:
    """Whether *value* has parts that only Anthropic's API has."""
    kinds = {"tool_use", "tool_result", "thinking"}
    contents = (message.get("content") for message in _messages_of(value))
    return any(
        isinstance(part, dict) and part.get("type") in kinds
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def _convert_anthropic(value: Json, _aside: Counter[str]) -> Json:
    """*value*, its messages split by parts into those of OpenAI's form."""
    messages: list[Json] = []
    for message in _messages_of(value):
        content = message.get("content")
        parts = content if isinstance(content, list) else [content or ""]
        messages += _messages_by_part(message.get("role"), parts)
    return {**value, "messages": messages}


def _messages_by_part(role: Any, parts: Sequence[Any]) -> Iterator[Json]:
    """
    Messages of *parts*: thoughts, texts and calls in that order are one message.

    A result of a tool is a message of its own.
    """
    made: Json = {}
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else "text"
        if kind == "tool_result":
            yield from (made,) if made else ()
            made = {}
            yield {
                "role": "tool",
                "content": part.get("content") or "",
                "tool_call_id": part.get("tool_use_id") or "",
            }
            continue
        if made and (kind == "thinking" or (kind == "text" and "tool_calls" in made)):
            yield made
            made = {}
        made = made or {"role": role, "content": []}
        if kind == "thinking":
            made["reasoning_content"] = part.get("thinking") or ""
        elif kind == "tool_use":
            call = {"name": part.get("name"), "arguments": part.get("input")}
            made["tool_calls"] = [*made.get("tool_calls", ()), {"function": call}]
        elif kind != "token_budget":
            made["content"].append(part)
    yield from (made,) if made else ()


# --- Open WebUI


def _is_open_webui(value: Json) -> bool:
    """Whether *value* is a chat of Open WebUI, alone or in its envelope."""
    chat = value.get("chat", value)
    history = chat.get("history") if isinstance(chat, dict) else None
    return isinstance(history, dict) and isinstance(history.get("messages"), dict)


def _convert_open_webui(value: Json, aside: Counter[str]) -> Json:
    """The branch that is shown, with the system prompt of the chat."""
    chat = value.get("chat", value)
    history = chat["history"]
    shown = _take_branch_and_count_others(
        [*history["messages"].values()], history.get("currentId"), aside
    )
    messages = [_open_webui_message(message) for message in shown]
    params = chat.get("params")
    system = params.get("system") if isinstance(params, dict) else None
    return {"messages": messages, "system": system or chat.get("system")}


_DETAILS = re.compile(
    r'<details type="(?P<kind>\w+)"[^>]*>\s*(?:<summary>.*?</summary>)?(?P<text>.*?)'
    r"</details>\s*",
    re.DOTALL,
)


def _open_webui_message(message: Json) -> Json:
    """
    A message, with the thoughts that its text holds as a folded block.

    Raises:
        BadExport: If it holds other blocks: what the model wrote there is not kept.
    """
    content = message.get("content")
    if not isinstance(content, str):
        return message
    blocks = [*_DETAILS.finditer(content)]
    for block in blocks:
        if block["kind"] != "reasoning":
            raise BadExport(
                f"has a block '{block['kind']}' of Open WebUI in a text, which is not "
                "what a model wrote"
            )
    texts = (html.unescape(block["text"]).strip() for block in blocks)
    thoughts = (re.sub(r"^> ?", "", text, flags=re.MULTILINE) for text in texts)
    return {
        **message,
        "content": _DETAILS.sub("", content),
        "reasoning_content": "\n".join(thoughts),
    }


# --- LM Studio


def _is_lm_studio(value: Json) -> bool:
    return any("versions" in message for message in _messages_of(value))


def _convert_lm_studio(value: Json, aside: Counter[str]) -> Json:
    """The version of each message that is shown, with the system prompt."""
    messages: list[Json] = []
    for message in _messages_of(value):
        versions, at = message.get("versions"), message.get("currentlySelected", 0)
        try:
            shown = versions[at]  # type: ignore[index]
        except (TypeError, LookupError) as error:
            raise BadExport("does not say which of its answers is shown") from error
        aside["answers that are not shown"] += len(message["versions"]) - 1
        messages.append(_lm_studio_message(shown))
    return {"messages": messages, "system": value.get("systemPrompt")}


def _lm_studio_message(shown: Json) -> Json:
    """A version by its blocks: those of thoughts apart from others."""
    if "steps" not in shown:
        return {"role": shown.get("role"), "content": shown.get("content")}
    content: list[Any] = []
    thoughts: list[str] = []
    for step in shown["steps"]:
        if step.get("type") != "contentBlock":
            continue
        parts = step.get("content") or ()
        if (step.get("style") or {}).get("type") == "thinking":
            thoughts += [str(part.get("text") or "") for part in parts]
        else:
            content += parts
    role = shown.get("role", "assistant")
    reasoning = "".join(thoughts)
    return {"role": role, "content": content, "reasoning_content": reasoning}


# --- SillyTavern


TAVERN = "messages of SillyTavern"
"""Our name for what its lines are, which have none."""


def _is_tavern(value: Json) -> bool:
    return isinstance(value.get(TAVERN), list)


def _convert_tavern(value: Json, aside: Counter[str]) -> Json:
    """
    Messages as they are shown, without those that were hidden from the model.

    The card of the character is in another file.
    """
    messages = []
    for message in value[TAVERN]:
        extra = message.get("extra") if isinstance(message.get("extra"), dict) else {}
        aside["answers that are not shown"] += max(
            len(message.get("swipes") or ()) - 1, 0
        )
        if message.get("is_system"):
            aside["messages that were hidden from the model"] += 1
            continue
        role = "user" if message.get("is_user") else "assistant"
        role = "system" if extra.get("type") == "narrator" else role
        reasoning = extra.get("reasoning") or ""
        messages.append(
            {
                "role": role,
                "content": message.get("mes"),
                "reasoning_content": reasoning,
            }
        )
    return {"messages": messages}


_PROGRAMS: Sequence[
    tuple[Callable[[Json], bool], Callable[[Json, Counter[str]], Json]]
] = (
    (_is_llama, _convert_llama),
    (_is_chatgpt, _convert_chatgpt),
    (_is_claude, _convert_claude),
    (_is_open_webui, _convert_open_webui),
    (_is_lm_studio, _convert_lm_studio),
    (_is_tavern, _convert_tavern),
    (_is_anthropic, _convert_anthropic),
)
