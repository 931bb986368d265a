"""What a server that only counts is asked, and what its failures mean."""

from dataclasses import replace

import pytest
from made_plans import made_world, planned
from made_records import made_needle
from made_servers import FAKE

from codeneedle.errors import MachineError, RequestError
from codeneedle.probes.prompts import NO_THINK_ARGS, PromptForm
from codeneedle.sweep.prepare import BadServerArguments, CannotCount, Counter, counting

NEEDLE = made_needle()


class Bytes:
    """A client of a server whose tokens are bytes; keeps what it was asked."""

    def __init__(self):
        self.template_args = []

    def count_tokens(self, text):
        return len(text.encode())

    def counts(self, texts):
        return [len(text.encode()) for text in texts]

    def render(self, messages, template_args):
        self.template_args.append(template_args)
        return "".join(f"<{each.role}>{each.content}" for each in messages)


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A folder with a corpus and weights."""
    made_world(tmp_path, monkeypatch)


def failed(*faults, args=()):
    """How counting fails on the fake server with *faults*."""
    extra = tuple(word for fault in faults for word in ("--fake", fault))
    plan = planned(server_args=(*extra, *args))
    plan = replace(plan, tools=replace(plan.tools, server=FAKE))
    with pytest.raises((RequestError, MachineError)) as caught, counting(plan):
        raise AssertionError("entered")
    return caught.value


def test_a_chat_is_counted_as_the_template_renders_it():
    """
    With the empty thought that begins its answer.
    """
    chat = planned(prompt_form=PromptForm.CHAT)
    completion, plain, prefilled = (
        Counter(Bytes(), plan).prompt("text", NEEDLE)
        for plan in (
            replace(chat, prompt_form=PromptForm.COMPLETION),
            chat,
            replace(chat, request=replace(chat.request, prefill_no_think=True)),
        )
    )

    assert completion < plain < prefilled


def test_a_template_is_rendered_as_it_is_in_rounds():
    """
    Switched off, thinking may take more tokens than it does on.
    """
    client = Bytes()

    Counter(client, planned(prompt_form=PromptForm.CHAT)).prompt("text", NEEDLE)

    assert [NO_THINK_ARGS] == client.template_args


@pytest.mark.parametrize(
    "words",
    [
        "error: invalid argument: -nlg",
        'error while handling argument "-t": stoi',
        "error: unknown argument: -nlg",
    ],
)
def test_an_argument_that_the_server_does_not_take_is_the_person_s_to_mend(words):
    """
    It is refused as any other mistake in the request is.
    """
    error = failed(f"say={words}", "die=1")

    assert isinstance(error, BadServerArguments)
    assert 2 == error.exit_code
    assert words in str(error)
    assert "after '--'" in error.hint


def test_arguments_that_end_the_server_at_once_are_refused():
    """
    Asked for its version, it tells that and ends well.
    """
    error = failed("say=version: 0.6.0", "die=0")

    assert isinstance(error, BadServerArguments)
    assert "ends, instead of serving" in str(error)


def test_a_server_that_fails_is_a_matter_of_the_machine(tmp_path):
    """
    The message is kept, and the hint names the log; a file's own error is none of
    the command line.
    """
    words = "llama_mmap: failed to map: Invalid argument"
    error = failed(f"say={words}", "die=1")

    assert isinstance(error, CannotCount)
    assert 3 == error.exit_code
    assert words in str(error)
    assert "counting.log" in error.hint
    assert (tmp_path / "sweeps/tiny/model/logs/counting.log").exists()


@pytest.mark.real
@pytest.mark.parametrize("args", [("-nlg", "99"), ("-t", "many"), ("--version",)])
def test_the_real_server_refuses_arguments(llama_server, nano, args):
    """
    Misspelled ones, wrong values, and those that ask for something else.
    """
    plan = planned(models=(nano,), server_args=args)
    plan = replace(plan, tools=replace(plan.tools, server=llama_server))

    with pytest.raises(BadServerArguments), counting(plan):
        raise AssertionError("entered")
