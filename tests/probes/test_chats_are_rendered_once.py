"""A chat is rendered once for all cells, whatever the day; its text is what is sent."""

import itertools
from dataclasses import replace

import pytest
from fake_engine import ByteTokenizer, FakeEngine
from made_records import made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CellSpec, ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.messages import Chat, Completion, Message, Refused, Rendered
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.probes import PROBES
from codeneedle.probes.prompts import (
    build_request,
    fill_frame,
    find_chat_frame,
    template_with_past_date,
)
from codeneedle.probes.thinking import NO_THINK_ARGS, thought_and_answer
from codeneedle.records.comparability import merge_compatible_setups, setup_differences
from codeneedle.records.record import Frame

USER = Message("user", "What?\n")
BEGUN = Message("assistant", "It is ")
ROLES = sorted({roles for probe in PROBES.values() for roles in probe.chats})


class Template(ByteTokenizer):
    """A chat template that names the day; a begun answer is continued."""

    def __init__(self, day="26 Nov", change=lambda text: text):
        super().__init__()
        self.day, self.change = day, change

    def render(self, messages, template_args=None):
        said = list(messages)
        begun = said.pop().content if said[-1].role == "assistant" else ""
        turns = (f"<{m.role}>{self.change(m.content)}</>\n" for m in said)
        return f"<system>{self.day}</>\n{''.join(turns)}<assistant>{begun}"

    def render_conversation(self, messages, tools, *, begins_reply, thinking):
        turns = (f"<{each['role']}>{each['content']}</>\n" for each in messages)
        return f"<system>{tools} on {self.day}, friend</>\n{''.join(turns)}"


class Refusing(Template):
    """Takes no such messages."""

    def render(self, messages, template_args=None):
        raise Refused(code=400, kind="invalid", message="no")


@pytest.mark.parametrize(
    "change", [lambda text: text, str.strip], ids=["as is", "trim"]
)
@pytest.mark.parametrize("roles", ROLES)
def test_what_stands_around_texts_gives_what_the_template_gives(roles, change):
    template = Template(change=change)
    frame = find_chat_frame(template, roles)
    said = tuple(Message(role, f" {role} \n") for role in roles.split())

    for messages in (said, (*said, BEGUN)):
        assert template.render(messages) == fill_frame(frame, messages)


@pytest.mark.parametrize(
    "template",
    [
        Template(change=str.upper),
        Template(change=lambda text: text.replace("<b>", "&lt;b&gt;")),
        Template(change=lambda _text: ""),
        Template(change=lambda text: text * 2),
        Refusing(),
    ],
    ids=["other letters", "escapes", "drops", "twice", "refuses"],
)
def test_a_template_that_changes_texts_has_none(template):
    assert None is find_chat_frame(template, "user")


def test_a_chat_is_sent_as_it_was_rendered_on_the_first_day():
    frames = {"user": find_chat_frame(Template("26 Nov"), "user")}
    setup = replace(made_setup(), prompt_form="chat", frames=frames)
    question = build_request(setup, prompt="", messages=(USER, BEGUN), tokens=8)

    assert isinstance(question, Rendered)
    assert Template("26 Nov").render((USER, BEGUN)) == question.prompt
    assert Template("27 Nov").render((USER, BEGUN)) != question.prompt


def test_a_server_renders_chats_where_nothing_is_known_of_its_template():
    chat = replace(made_setup(), prompt_form="chat")
    text = replace(made_setup(), prompt_form="completion")

    assert isinstance(build_request(chat, prompt="", messages=(USER,), tokens=8), Chat)
    assert type(build_request(text, prompt="a", messages=(), tokens=8)) is Completion


def test_a_conversation_is_rendered_as_on_the_day_on_which_a_run_began():
    first, today = Template("26 Nov 2026"), Template("27 Dec 2026")
    then = find_chat_frame(first, "user", begins_answers=False)
    said = ([{"role": "user", "content": "What?"}], "tools")
    asked = {"begins_reply": True, "thinking": False}

    assert first.render_conversation(*said, **asked) == (
        template_with_past_date(today, then).render_conversation(*said, **asked)
    )
    assert today is template_with_past_date(today, None)
    assert first is template_with_past_date(first, then)


def test_a_thought_that_the_template_opens_is_closed():
    frame = Frame(("<user>", "<assistant><think>\n"), is_trimmed=False)
    setup = replace(made_setup(), prompt_form="chat", frames={"user": frame})
    question = build_request(setup, prompt="", messages=(USER,), tokens=8)

    assert question.prompt.endswith("<think>\n\n</think>\n\n")


def test_folders_go_on_with_the_first_day_and_are_not_merged_with_another():
    one, two = (
        replace(made_setup(), frames={"user": Frame((day, ""), is_trimmed=False)})
        for day in ("26", "27")
    )

    assert [("rendered chat", "26", "27")] == [*setup_differences(one, two)]
    assert [] == [*setup_differences(one, made_setup())]
    assert one.frames == merge_compatible_setups(one, made_setup()).frames


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an answer", ("", "an answer")),
        ("<think>\nwell\n</think>\n\nan answer", ("\nwell\n", "an answer")),
        ("<think>\nwell", ("\nwell", "")),
        ("analysiswell, thenassistantfinalan answer", ("well, then", "an answer")),
    ],
)
def test_a_thought_is_no_part_of_an_answer(text, expected):
    assert expected == thought_and_answer(text)


def test_engines_render_or_say_that_they_do_not():
    assert not FakeEngine().renders_chats
    assert {"recall", "retrieval", "reuse", "transcript", "generation"} == {
        name for name, probe in PROBES.items() if probe.chats
    }


@pytest.mark.real
def test_a_rendered_chat_has_the_very_tokens_that_the_server_makes_of_it(
    smollm2, tmp_path
):
    found = installation.locate_tools()
    engine = LlamaCpp(
        tools=found,
        facts=installation.ask_server_facts(found.server),
        model=ModelSpec(
            weights=read_weights_from_headers(smollm2), name="smollm2", is_chat=True
        ),
    )
    with engine.serving(CellSpec(Pair("f16", "f16"), 1024), log=tmp_path / "l") as it:
        for roles, begun in itertools.product(ROLES, (False, True)):
            frame = find_chat_frame(it.client, roles)
            said = tuple(Message(role, "Count: 1, 2.\n") for role in roles.split())
            messages = (*said, BEGUN) if begun else said
            chat = it.client.chat(
                Chat(messages=messages, max_tokens=4, template_args=NO_THINK_ARGS)
            )
            text = it.client.complete(
                Rendered(prompt=fill_frame(frame, messages), max_tokens=4)
            )

            assert chat.prompt_tokens == text.prompt_tokens > 0
            assert chat.text.endswith(text.text)
