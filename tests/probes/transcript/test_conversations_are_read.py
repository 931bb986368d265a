"""Recorded conversations: what is read, and what is wrong by its line."""

import codecs
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_conversations import TOOLS, made_conversation

from codeneedle.errors import BadInput
from codeneedle.probes.transcript import conversations
from codeneedle.probes.transcript.conversations import (
    Call,
    parse_and_check_conversations,
    read_hash_and_conversations,
    unread_part_phrases,
)

FILE = Path("said.json")
HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def read(value):
    """The conversations of *value* as JSON."""
    return parse_and_check_conversations(json.dumps(value).encode(), FILE)


def read_text(text):
    """The conversations of a file that holds *text*."""
    return parse_and_check_conversations(text.encode(), FILE)


def texts_of(conversation):
    """Roles and texts of a conversation."""
    return [(turn.role, turn.content) for turn in conversation.turns]


def refusal_of(data):
    """Why *data* cannot be read, with its place."""
    with pytest.raises(BadInput) as refused:
        parse_and_check_conversations(data.encode(), FILE)
    return str(refused.value)


def without_pythons_words(text):
    """*text* without what Python says of JSON, each version in its own words."""
    return re.sub(r"(?<=is no JSON): [^(;]*[^(; ]", "", text)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": HELLO},
        HELLO,
        [{"messages": HELLO}],
        [HELLO],
        {
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "gpt", "value": "Hello"},
            ]
        },
        [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
        {"messages": HELLO, "system": ""},
    ],
)
def test_one_conversation_is_read_in_each_form(value):
    (found,) = read(value)

    assert [("user", "Hi"), ("assistant", "Hello")] == texts_of(found)


def test_lines_of_json_are_conversations_that_know_their_line():
    line = json.dumps({"messages": HELLO})

    found = parse_and_check_conversations(f"{line}\n\n{line}\n".encode(), FILE)

    assert [1, 3] == [each.line for each in found]


@pytest.mark.parametrize("before", ["", "\n"], ids=["at once", "behind an empty line"])
def test_conversations_of_a_list_know_the_line_on_which_they_begin(before):
    text = before + json.dumps([{"messages": HELLO}, {"messages": HELLO}], indent=1)

    found = parse_and_check_conversations(text.encode(), FILE)

    lines = text.split("\n")
    assert [" {", " {"] == [lines[each.line - 1] for each in found]


def test_tools_thoughts_and_calls_are_read():
    (found,) = read(made_conversation(1))

    call = found.turns[2]
    assert tuple(TOOLS) == found.tools
    assert "assistant" == call.role
    assert call.reasoning.startswith("The ")
    assert ["look_up"] == [each.name for each in call.calls]
    assert {"tool_call_id": "c0"} == found.turns[3].others


def test_calls_of_share_gpt_and_of_older_apis_become_calls():
    of_share_gpt = {
        "conversations": [
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'}
        ],
        "tools": '[{"name": "f"}]',
        "system": "Be kind.",
    }
    older = [
        {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":1}'}}
    ]

    (shared,), (found,) = read(of_share_gpt), read(older)

    assert ("system", "Be kind.") == texts_of(shared)[0]
    assert (Call("f", '{"a": 1}'),) == shared.turns[1].calls
    assert "f" == shared.tools[0]["function"]["name"]
    assert (Call("f", '{"a":1}'),) == found.turns[0].calls


def test_a_message_may_have_a_thousand_tool_calls():
    calls = [{"name": "f", "arguments": {}}] * 1000

    (found,) = read([{"role": "assistant", "tool_calls": calls}])

    assert 1000 == len(found.turns[0].calls)


def test_parts_of_a_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    (found,) = read([{"role": "assistant", "content": parts}])

    assert "a\nb" == found.turns[0].content


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"role": "robot"}, id="role"),
        pytest.param({"role": "user", "text": "SECRET"}, id="no-content"),
        pytest.param({"from": "human", "text": "SECRET"}, id="no-value"),
        pytest.param({"from": "robot"}, id="sender"),
        pytest.param(7, id="number"),
        pytest.param({"role": "user", "content": 7}, id="content"),
        pytest.param({"role": "user", "content": [{"type": "image_url"}]}, id="part"),
        pytest.param({"role": "user", "tool_calls": [{"name": "f"}]}, id="of-a-user"),
        pytest.param({"role": "assistant", "tool_calls": [{}]}, id="no-name"),
        pytest.param({"role": "assistant", "tool_calls": 7}, id="no-list"),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"name": "f"}] * 1001}, id="many"
        ),
        pytest.param({"from": "function_call", "value": 7}, id="call"),
    ],
)
def test_a_message_that_is_wrong_is_named_with_its_line(message, golden):
    """The message is not quoted."""
    good = json.dumps({"messages": HELLO})
    bad = json.dumps([*HELLO, message])

    refusal = refusal_of(f"{good}\n{bad}\n{bad}\n")

    assert golden == refusal
    assert "SECRET" not in refusal


@pytest.mark.parametrize(
    ("message", "reason"), [(7, "is no object"), ({"role": "robot"}, "has no known")]
)
def test_a_message_that_is_wrong_is_named_with_its_number(message, reason):
    wrong = {"messages": [HELLO[0], message]}

    assert f"line 1: message 2 {reason}" in refusal_of(json.dumps(wrong))


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


def test_a_conversation_that_cannot_be_read_is_left_out_and_counted(golden):
    """A tenth of all, and one in any case."""
    good, bad = json.dumps({"messages": HELLO}), json.dumps({"messages": [IMAGE]})
    lines = [good] * 18 + [bad, '{"cut off at the e']

    few, many = read_text(f"{bad}\n{good}"), read_text("\n".join(lines))

    assert [0, 2] == [len(each.turns) for each in few]
    assert [18, 2] == [
        sum(bool(e.turns) is kind for e in many) for kind in (True, False)
    ]
    assert golden == [*map(without_pythons_words, unread_part_phrases(many))]
    assert any("is no JSON: " in each for each in unread_part_phrases(many))
    assert "3 of 21 conversations" in refusal_of("\n".join([*lines, bad]))


def test_a_conversation_ends_before_a_message_that_cannot_be_read(golden):
    said = [*HELLO, IMAGE, {"role": "assistant", "content": "a cat"}]

    (found,) = read(said)

    assert HELLO == [turn.message() for turn in found.turns]
    assert golden == unread_part_phrases([found])


def test_arguments_that_are_no_json_are_text_as_the_model_wrote_it():
    call = {"function": {"name": "write", "arguments": '{"path": "a'}}

    (found,) = read([HELLO[0], {"role": "assistant", "tool_calls": [call]}])

    (told,) = found.turns[1].calls
    assert ('{"path": "a', False) == (told.arguments, told.has_json_arguments)


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_byte_order_mark_is_dropped_wherever_files_were_joined(codec):
    line = json.dumps({"messages": HELLO})
    text = f"{line}\n\ufeff{line}"
    data = codecs.BOM_UTF16_LE * (codec == "utf-16-le") + text.encode(codec)

    assert [2, 2] == [
        len(each.turns) for each in parse_and_check_conversations(data, FILE)
    ]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param('{"messages": []}\n', id="no-messages"),
        pytest.param('[\n {"messages": 1}\n,]', id="comma"),
        pytest.param('{"messages": NaN}', id="nan"),
        pytest.param('{"messages": [], "tools": [1e999]}', id="infinity"),
        pytest.param('[{"role": "user", "content": ""}]\n{', id="broken-line"),
        pytest.param('{"messages": [{"role": "user", "content": "x"}]}', id="user"),
        pytest.param(
            '{"messages": [{"role": "assistant", "content": ""}], "tools": "x"}',
            id="tools",
        ),
        pytest.param(
            '{"messages": [{"role": "assistant", "content": ""}], "tools": [7]}',
            id="tool",
        ),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("", id="empty"),
    ],
)
def test_what_is_no_transcript_is_refused_with_its_line(data, golden):
    assert golden == without_pythons_words(refusal_of(data))


def test_bytes_that_are_no_utf_8_are_refused_with_their_line(golden):
    with pytest.raises(BadInput) as refused:
        parse_and_check_conversations(b"{}\n\xff", FILE)

    assert golden == str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path, golden):
    with pytest.raises(BadInput) as refused:
        read_hash_and_conversations(tmp_path / "none.json")

    assert golden == str(refused.value)


def test_a_file_is_refused_from_one_byte_more_than_the_most(
    tmp_path, monkeypatch, golden
):
    file = tmp_path / "said.json"
    file.write_text(json.dumps(HELLO))
    monkeypatch.setattr(conversations, "LARGEST_BYTES", file.stat().st_size)
    assert read_hash_and_conversations(file)

    file.write_text(json.dumps(HELLO) + " ")
    with pytest.raises(BadInput) as refused:
        read_hash_and_conversations(file)
    assert golden == refused.value.reason


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--transcript"):
        read_hash_and_conversations(tmp_path)


def test_lone_surrogates_can_be_sent():
    value = [{"role": "assistant", "content": "\ud800"}]
    tools = [{"type": "function", "function": {"name": "\ud800"}}]

    (found,) = read({"messages": value, "tools": tools})

    assert "\ufffd" == found.turns[0].content
    assert "\ufffd" == found.tools[0]["function"]["name"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("messages", "conversations", "role", "content", "from", "value"),
                    *("tools", "tool_calls", "function", "name", "arguments", "text"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_json_is_conversations_or_refused(value):
    try:
        found = read(value)
    except BadInput:
        return
    assert any(turn.role == "assistant" for each in found for turn in each.turns)
