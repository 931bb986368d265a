"""Turns as a chat template renders them: where they are, and the class of each part."""

import json
from pathlib import Path

import pytest
from made_conversations import FakeTemplate, made_conversation

from codeneedle.engines.messages import Refused
from codeneedle.errors import BadInput
from codeneedle.probes.transcript.choice import render_and_count_turns
from codeneedle.probes.transcript.conversations import (
    Call,
    Turn,
    parse_and_check_conversations,
)
from codeneedle.probes.transcript.rendering import (
    NO_JSON,
    NOT_TAKEN,
    Kind,
    field_text_or_none,
    parts_and_dropped_fields,
    render_assistant_turns,
)


def conversation(value):
    """The one conversation of *value*."""
    (found,) = parse_and_check_conversations(
        json.dumps(value).encode(), Path("said.json")
    )
    return found


HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def turns(value, template=None):
    """The rendered turns of *value*."""
    return list(
        render_assistant_turns(conversation(value), 1, template or FakeTemplate())
    )


def classes(text, parts):
    """The parts of *text* with their classes, neighbours of one class joined."""
    found = []
    for part in parts:
        piece = text[part.start : part.end]
        if found and found[-1][0] is part.kind:
            found[-1] = (part.kind, found[-1][1] + piece)
        else:
            found.append((part.kind, piece))
    return found


def test_a_turn_is_what_rendering_adds_without_the_mark_of_its_end():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "See you"},
    ]

    first, second = turns(messages)

    assert ("<user>Hi<end><assistant>", "Hello") == (first.prompt, first.text)
    assert f"{first.prompt}Hello<end><user>Bye<end><assistant>" == second.prompt
    assert ["1.1", "1.2"] == [first.name, second.name]


def test_what_a_template_adds_belongs_to_the_field_behind_it():
    """And at the end, to the one before it."""
    call, answer = turns(made_conversation(1))

    assert [Kind.REASONING, Kind.TOOL] == [k for k, _ in classes(call.text, call.parts)]
    thought, tool = (text for _, text in classes(call.text, call.parts))
    assert thought.startswith("<think>The ")
    assert tool.startswith("</think><call>look_up {")
    assert tool.endswith("}</call>")
    kinds = [kind for kind, _ in classes(answer.text, answer.parts)]
    assert [Kind.REASONING, Kind.TEXT] == kinds
    assert () == call.dropped + answer.dropped


def test_thoughts_that_are_dropped_later_stand_in_their_own_turn():
    """The text of the next turn no longer continues what was read."""
    rendered = turns(made_conversation(2))

    thought = "<think>"
    assert all(each.text.startswith(thought) for each in rendered)
    assert 1 == rendered[1].prompt.count(thought)
    assert 0 == rendered[2].prompt.count(thought)
    assert not rendered[2].prompt.startswith(rendered[1].prompt)


def test_what_a_template_drops_is_named():
    template = FakeTemplate(drops=("tools", "tool_calls", "reasoning_content"))

    call, answer = turns(made_conversation(1), template)

    assert ("", ()) == (call.text, call.parts)
    assert ("reasoning", "tool calls", "definitions of tools") == call.dropped
    assert [Kind.TEXT] == [kind for kind, _ in classes(answer.text, answer.parts)]
    assert ("reasoning",) == answer.dropped


def test_a_turn_begins_where_its_text_and_what_asks_for_it_part():
    """A template that opens a thought does not make the recording have one."""
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<that"},
    ]

    (found,) = turns(messages, FakeTemplate(opens="<think>"))

    assert ("<user>Hi<end><assistant>", "<that") == (found.prompt, found.text)


def test_a_template_that_changes_what_came_before_gives_a_prompt_of_its_own():
    class Counting(FakeTemplate):
        def render_conversation(self, messages, tools, **options):
            rest = super().render_conversation(messages, tools, **options)
            return f"{len(messages)} messages: {rest}"

    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]

    (found,) = turns(messages, Counting())

    assert "2 messages: <user>Hi<end><assistant>" == found.prompt
    assert "Hello" == found.text


class Strict(FakeTemplate):
    """A template that refuses what the system says."""

    def render_conversation(self, messages, tools, **options):
        if any(each["role"] == "system" for each in messages):
            raise Refused(code=500, kind="server_error", message="no system role")
        return super().render_conversation(messages, tools, **options)


def chosen_turns(*conversations, template):
    return render_and_count_turns(conversations, template, context=4096, limit=None)


def test_conversations_that_a_template_refuses_are_left_out_or_named():
    """One at least, or a tenth of them; not all."""
    refused, taken = conversation(made_conversation(1)), conversation(HELLO)

    counted = chosen_turns(refused, taken, template=Strict())

    assert {NOT_TAKEN, ""} == {each.left_out for each in counted}
    for many in ([refused], [refused, refused, taken]):
        with pytest.raises(BadInput, match=r"conversation 1, from line 1") as caught:
            chosen_turns(*many, template=Strict())
        assert "no system role" in str(caught.value)


class Xml(FakeTemplate):
    """A template that writes each argument of a call apart."""

    def render_conversation(self, messages, tools, **options):
        written = super().render_conversation(messages, tools, **options)
        return written.replace('{"', "<").replace('": "', ">").replace('"}', "</>")


BROKEN = [
    HELLO[0],
    {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "w", "arguments": '{"path": "a'}}],
    },
    {"role": "tool", "content": "bad JSON"},
    {"role": "assistant", "content": "sorry"},
]


def test_arguments_that_are_no_json_are_rendered_as_the_model_wrote_them():
    first, second = chosen_turns(conversation(BROKEN), template=FakeTemplate())

    assert 'w {"path": "a</call>' in first.turn.text
    assert 'w {"path": "a</call>' in second.turn.prompt
    assert ["", ""] == [first.left_out, second.left_out]


def test_what_stands_behind_broken_arguments_is_left_out_where_no_json_is_written():
    made = [conversation(BROKEN), conversation(HELLO)]

    assert [NO_JSON, NO_JSON, ""] == [
        each.left_out for each in chosen_turns(*made, template=Xml())
    ]


# Fields


def test_code_is_apart_from_other_text():
    content = "Look:\n```python\nx = 1\n```\nDone.\n~~~\nopen"

    parts, _ = parts_and_dropped_fields(
        Turn(role="assistant", content=content), content
    )

    assert [
        (Kind.TEXT, "Look:\n"),
        (Kind.CODE, "```python\nx = 1\n```"),
        (Kind.TEXT, "\nDone.\n"),
        (Kind.CODE, "~~~\nopen"),
    ] == classes(content, parts)


def test_a_thought_at_the_beginning_of_the_content_is_reasoning():
    content = "<think>Hm.</think>Yes."

    parts, _ = parts_and_dropped_fields(
        Turn(role="assistant", content=content), content
    )

    expected = [(Kind.REASONING, "<think>Hm.</think>"), (Kind.TEXT, "Yes.")]
    assert expected == classes(content, parts)


def test_white_space_around_a_field_may_be_dropped():
    parts, dropped = parts_and_dropped_fields(
        Turn(role="assistant", content=" Yes.\n"), "Yes."
    )

    assert [(0, 4)] == [(part.start, part.end) for part in parts]
    assert () == dropped


@pytest.mark.parametrize(
    "rendered",
    [
        'f {"a":"é","b":[1,2]}',
        'f {"a": "é", "b": [1, 2]}',
        'f {"a": "\\u00e9", "b": [1, 2]}',
        'f {"a":"\\u00e9","b":[1,2]}',
        'f {\n  "a": "é",\n  "b": [\n    1,\n    2\n  ]\n}',
        "<f><a>é</a><b>[1, 2]</b></f>",
    ],
)
def test_arguments_are_recognized_however_a_template_writes_them(rendered):
    turn = Turn(role="assistant", calls=(Call("f", '{"a":"é","b":[1,2]}'),))

    parts, dropped = parts_and_dropped_fields(turn, rendered)

    assert () == dropped
    assert {Kind.TOOL} == {part.kind for part in parts}
    for part in parts:
        shown = field_text_or_none(turn, part.field, part.end - part.start)
        assert not part.field or rendered[part.start : part.end] == shown


def test_a_field_is_not_searched_within_another():
    turn = Turn(role="assistant", reasoning="Is it so? Yes", content="Yes")

    parts, dropped = parts_and_dropped_fields(turn, "<think>Is it so? Yes</think>")

    assert ("content",) == dropped
    assert {Kind.REASONING} == {part.kind for part in parts}
