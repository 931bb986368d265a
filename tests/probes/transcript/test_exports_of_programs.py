"""Exports of chat programs: what was shown at last is read, or the file is refused."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.errors import BadInput
from codeneedle.probes.transcript.conversations import (
    Call,
    parse_and_check_conversations,
    unread_part_lines,
    unread_part_phrases,
)

FILE = Path("export.json")
SAID = [("user", "Port it."), ("assistant", "Ported.")]
BRANCHES = {"messages of other branches": 1}


def read(value):
    """The only conversation of *value*: JSON, or JSON lines of a list of records."""
    text = value if isinstance(value, str) else json.dumps(value)
    (found,) = parse_and_check_conversations(text.encode(), FILE)
    return found


def said_in(conversation):
    return [(turn.role, turn.content) for turn in conversation.turns]


def lines_of(records):
    return "\n".join(map(json.dumps, records))


def refusal_of(value):
    with pytest.raises(BadInput) as refused:
        read(value)
    return refused.value


# --- llama.cpp


def llama_messages(**of_call):
    """A tree: an answer that was thrown away, and one with a call and its result."""
    call = {"id": "x", "function": {"name": "read", "arguments": '{"path":"a"}'}}
    nodes = [
        ("m0", None, ["m1"], "system", {"type": "root", "content": ""}),
        ("m1", "m0", ["m2", "m3"], "user", {"content": "Port it."}),
        ("m2", "m1", [], "assistant", {"content": "Thrown away."}),
        (
            *("m3", "m1", ["m4"], "assistant"),
            {
                "content": "",
                "reasoningContent": "Read it first.",
                "toolCalls": json.dumps([call]),
                **of_call,
            },
        ),
        ("m4", "m3", ["m5"], "tool", {"content": "for", "toolCallId": "x"}),
        ("m5", "m4", [], "assistant", {"content": "Ported."}),
    ]
    return [
        {"id": id_, "parent": parent, "children": children, "role": role, **more}
        for id_, parent, children, role, more in nodes
    ]


def llama_forms():
    conv = {"id": "c", "name": "port", "currNode": "m5"}
    messages = llama_messages()
    parsed = llama_messages(toolCalls=json.loads(messages[3]["toolCalls"]))
    records = [
        {"harness": "llama.app", "type": "session", **conv},
        *({"type": "message", "message": message} for message in parsed),
        {"type": "of a later version"},
    ]
    return {
        "a conversation": {"conv": conv, "messages": messages},
        "a list": [{"conv": conv, "messages": messages}],
        "the older page": {**conv, "messages": messages},
        "in another order": {"conv": conv, "messages": messages[::-1]},
        "lines": lines_of(records),
    }


@pytest.mark.parametrize("form", llama_forms())
def test_llamas_page_is_read_along_the_branch_that_is_shown(form):
    found = read(llama_forms()[form])

    user, called, result, answered = found.turns
    assert ("user", "Port it.") == (user.role, user.content)
    assert "Read it first." == called.reasoning
    assert (Call("read", '{"path":"a"}'),) == called.calls
    assert {"tool_call_id": "x"} == result.others
    assert "Ported." == answered.content
    assert BRANCHES == found.aside


def test_another_branch_is_read_where_that_one_is_shown():
    value = {"conv": {"currNode": "m2"}, "messages": llama_messages()}

    assert [("user", "Port it."), ("assistant", "Thrown away.")] == said_in(read(value))


def test_several_sessions_in_lines_are_several_conversations():
    lines = llama_forms()["lines"]
    found = parse_and_check_conversations(f"{lines}\n{lines}".encode(), FILE)

    assert [1, 1 + len(lines.split("\n"))] == [each.line for each in found]
    assert [4, 4] == [len(each.turns) for each in found]


def test_attached_texts_are_read_as_the_page_sends_them():
    messages = llama_messages()
    messages[1]["extra"] = [{"type": "TEXT", "name": "a.sh", "content": "for"}]
    found = read({"conv": {"currNode": "m5"}, "messages": messages})

    assert "\n\n--- File: a.sh ---\nfor\nPort it." == found.turns[0].content


def test_calls_that_are_no_json_are_counted(golden):
    messages = llama_messages(toolCalls="[{")
    found = read({"conv": {"currNode": "m5"}, "messages": messages})

    assert golden == found.aside


# --- others


def chatgpt():
    def node(id_, parent, role=None, content=None, **more):
        author = {"role": role, "name": more.pop("name", None)}
        message = {"author": author, "content": content, **more} if role else None
        return {"id": id_, "parent": parent, "children": [], "message": message}

    def text(*parts):
        return {"content_type": "text", "parts": parts}

    thoughts = {"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}
    code = {"content_type": "code", "text": '{"a": 1}'}
    nodes = [
        node("r", None),
        node("s", "r", "system", text("")),
        node("u", "s", "user", text("Port it.")),
        node("x", "u", "assistant", text("Thrown away.")),
        node("t", "u", "assistant", thoughts),
        node("c", "t", "assistant", code, recipient="python"),
        node("o", "c", "tool", text("1"), name="python"),
        node("a", "o", "assistant", text("Ported."), recipient="all"),
    ]
    return {"mapping": {each["id"]: each for each in nodes}, "current_node": "a"}


def test_chatgpt_is_read_along_its_current_node():
    found = read([chatgpt()])

    user, called, result, answered = found.turns
    assert ("user", "Port it.") == (user.role, user.content)
    assert ("Hm.", (Call("python", '{"a": 1}'),)) == (called.reasoning, called.calls)
    assert ("tool", "1", {"name": "python"}) == (
        result.role,
        result.content,
        result.others,
    )
    assert "Ported." == answered.content
    assert BRANCHES == found.aside


def open_webui():
    thought = (
        '<details type="reasoning" done="true" duration="5">\n'
        "<summary>Thought for 5 seconds</summary>\n&gt; Hm.\n> So.\n</details>\n"
    )
    nodes = [
        ("a", None, "user", "Port it."),
        ("b", "a", "assistant", "Thrown away."),
        ("c", "a", "assistant", f"{thought}Ported."),
    ]
    messages = {
        id_: {"id": id_, "parentId": parent, "role": role, "content": content}
        for id_, parent, role, content in nodes
    }
    history = {"messages": messages, "currentId": "c"}
    return {"id": "1", "chat": {"history": history, "messages": [*messages.values()]}}


def test_open_webui_is_read_along_its_current_id_with_thoughts_apart():
    found = read([open_webui()])

    assert SAID == said_in(found)
    assert "Hm.\nSo." == found.turns[1].reasoning
    assert BRANCHES == found.aside


def test_a_block_of_open_webui_that_no_model_wrote_is_refused(golden):
    value = open_webui()
    messages = value["chat"]["history"]["messages"]
    messages["c"]["content"] = '<details type="tool_calls" name="f">x</details>'

    assert golden == str(refusal_of(value))


def lm_studio():
    def version(role, text):
        content = [{"type": "text", "text": text}]
        if role == "user":
            return {"type": "singleStep", "role": role, "content": content}
        thought = {
            "type": "contentBlock",
            "style": {"type": "thinking"},
            "content": [{"type": "text", "text": "Hm."}],
        }
        steps = [thought, {"type": "contentBlock", "content": content}]
        return {"type": "multiStep", "steps": [*steps, {"type": "debugInfoBlock"}]}

    answers = [version("assistant", "Thrown away."), version("assistant", "Ported.")]
    return {
        "systemPrompt": "Be brief.",
        "messages": [
            {"versions": [version("user", "Port it.")], "currentlySelected": 0},
            {"versions": answers, "currentlySelected": 1},
        ],
    }


def test_lm_studio_is_read_by_what_is_selected(golden):
    found = read(lm_studio())

    assert [("system", "Be brief."), *SAID] == said_in(found)
    assert "Hm." == found.turns[2].reasoning
    assert golden == found.aside


def tavern():
    swipes = ["Thrown away.", "Ported."]
    return [
        {"user_name": "U", "character_name": "C", "chat_metadata": {}},
        {"name": "U", "is_user": True, "mes": "Port it."},
        {"name": "S", "is_user": False, "is_system": True, "mes": "Hidden."},
        {
            "name": "C",
            "is_user": False,
            "mes": "Ported.",
            "swipes": swipes,
            "swipe_id": 1,
            "extra": {"reasoning": "Hm."},
        },
    ]


@pytest.mark.parametrize("form", [lines_of, json.dumps], ids=["lines", "a list"])
def test_sillytavern_is_read_by_the_swipe_that_is_shown(form, golden):
    found = read(form(tavern()))

    assert SAID == said_in(found)
    assert "Hm." == found.turns[1].reasoning
    assert golden == found.aside


def claude():
    nobody = "00000000-0000-4000-8000-000000000000"
    nodes = [
        ("a", nobody, "human", [{"type": "text", "text": "Port it."}]),
        ("b", "a", "assistant", [{"type": "text", "text": "Thrown away."}]),
        (
            *("c", "a", "assistant"),
            [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "tool_use", "name": "read", "input": {"a": 1}},
                {"type": "tool_result", "content": [{"type": "text", "text": "for"}]},
                {"type": "text", "text": "Ported."},
            ],
        ),
    ]
    said = [
        {"uuid": id_, "parent_message_uuid": parent, "sender": role, "content": content}
        for id_, parent, role, content in nodes
    ]
    said[0]["attachments"] = [{"file_name": "a", "extracted_content": "A text."}]
    return {"chat_messages": said, "current_leaf_message_uuid": "c"}


def test_claude_is_read_part_by_part():
    found = read([claude()])

    assert [
        ("user", "A text.\nPort it."),
        ("assistant", ""),
        ("tool", "for"),
        ("assistant", "Ported."),
    ] == said_in(found)
    assert "Hm." == found.turns[1].reasoning
    assert (Call("read", '{"a": 1}'),) == found.turns[1].calls
    assert BRANCHES == found.aside


def test_a_claude_export_without_parents_is_a_list():
    said = [
        {"uuid": "a", "sender": "human", "text": "Port it.", "content": []},
        {"uuid": "b", "sender": "assistant", "text": "Ported.", "content": []},
    ]

    assert SAID == said_in(read({"chat_messages": said}))


def test_messages_of_anthropics_api_are_read():
    parts = [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
    found = read(
        {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Port it."},
                {"role": "assistant", "content": parts},
                {"role": "user", "content": [result]},
                {"role": "assistant", "content": "Ported."},
            ],
        }
    )

    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert roles == [turn.role for turn in found.turns]
    assert {"tool_call_id": "t"} == found.turns[3].others


# --- what is refused, and what is named


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"conv": {}, "messages": llama_messages()}, id="no-leaf"),
        pytest.param(
            {"conv": {"currNode": "m9"}, "messages": llama_messages()}, id="leaf"
        ),
        pytest.param(
            {"conv": {"currNode": "m5"}, "messages": llama_messages()[2:]}, id="root"
        ),
        pytest.param({**chatgpt(), "current_node": None}, id="no-current-node"),
        pytest.param({"messages": llama_messages()}, id="program"),
        pytest.param(
            {"messages": [{"role": "user", "content": "a", "swipes": ["a", "b"]}]},
            id="swipes",
        ),
        pytest.param(
            {"conv": {"currNode": "a"}, "messages": [{"id": "a", "parent": "a"}]},
            id="circle",
        ),
        pytest.param(
            {"conv": {"currNode": "a"}, "messages": [{"role": "user"}]}, id="no-id"
        ),
        pytest.param(
            {"messages": [{"versions": [], "currentlySelected": 0}]}, id="versions"
        ),
        pytest.param(
            {"mapping": {"a": {"id": "a", "message": {"content": 7}}}}, id="parts"
        ),
    ],
)
def test_what_was_said_at_last_is_never_guessed(value, golden):
    refused = refusal_of(value)

    assert golden == str(refused)
    assert "export of llama.cpp's page" in refused.hint


def test_a_line_of_messages_with_parents_is_no_tree():
    said = [
        {"id": "a", "parentId": None, "role": "user", "content": "Port it."},
        {"id": "b", "parentId": "a", "role": "assistant", "content": "Ported."},
    ]

    assert SAID == said_in(read({"messages": said}))


def test_keys_with_content_that_nothing_reads_are_named_and_others_are_not(golden):
    said = {
        "role": "assistant",
        "content": "a",
        "attachments": [{"name": "a"}],
        "note": "Two words.",
        "id": "x1",
        "model": "q",
        "usage": {"n": 1},
        "refusal": None,
        "empty": [],
    }
    found = read({"messages": [said, said]})

    assert {"the key 'attachments'": 2, "the key 'note'": 2} == found.aside
    assert golden == [*unread_part_lines(unread_part_phrases([found]))]


def test_a_key_is_named_as_it_may_be_shown_and_stored():
    said = {"role": "assistant", "content": "a", "\ud800\x1b[31m": ["b"]}
    found = read({"messages": [said]})

    assert all(what.isprintable() and what.encode() for what in found.aside)


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "conv",
                        "currNode",
                        "messages",
                        "id",
                        "parent",
                        "children",
                        "type",
                    ),
                    *(
                        "mapping",
                        "current_node",
                        "message",
                        "author",
                        "content",
                        "parts",
                    ),
                    *("chat_messages", "sender", "chat", "history", "currentId", "mes"),
                    *("versions", "steps", "swipes", "extra", "toolCalls", "role"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_whatever_an_export_holds_it_is_read_or_refused(value):
    with contextlib.suppress(BadInput):
        parse_and_check_conversations(json.dumps(value).encode(), FILE)
