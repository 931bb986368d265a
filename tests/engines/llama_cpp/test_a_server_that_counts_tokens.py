"""A server that counts tokens is small, and ended if a template has no end."""

import signal
from dataclasses import replace

import pytest
from made_servers import fake_llama_cpp

from codeneedle.engines.engine import LostText
from codeneedle.engines.llama_cpp import engine as llama_cpp
from codeneedle.engines.llama_cpp.installation import Program, ask_server_facts
from codeneedle.engines.messages import Message
from codeneedle.errors import BadInput, MachineError, ToolFailed
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.system import processes

pytestmark = pytest.mark.slow


def count(folder, *faults):
    """How counting fails on the fake server with *faults*."""
    with (
        pytest.raises((BadInput, MachineError)) as caught,
        fake_llama_cpp(*faults).tokenizing(log=folder / "counting.log"),
    ):
        raise AssertionError("entered")
    return caught.value


def test_what_counts_is_the_smallest_server(tmp_path):
    engine = fake_llama_cpp(arguments=("-ngl", "99", "-t", "1"))
    log = tmp_path / "log"

    with engine.tokenizing(log=log) as tokenizer:
        assert 3 == tokenizer.count_tokens("abc")

    assert "n_ctx_seq             = 512" in log.read_text()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("error: invalid argument: -nlg", 1),
        ('error while handling argument "-t": stoi', 1),
        ("error: unknown argument: -nlg", 1),
        ("version: 0.6.0", 0),
    ],
    ids=["invalid", "a value that is none", "unknown", "no server"],
)
def test_an_argument_that_the_server_does_not_serve_with_is_refused(
    words, status, tmp_path, golden
):
    error = count(tmp_path, f"say={words}", f"die={status}")

    assert 2 == error.exit_code
    assert golden == str(error)


def test_a_server_that_fails_to_count_is_an_error_of_the_machine(tmp_path, golden):
    words = "llama_mmap: failed to map: Invalid argument"
    error = count(tmp_path, f"say={words}", "die=1")

    assert isinstance(error, ToolFailed)
    assert golden == str(error)
    assert "counting.log" in error.hint


ENDLESS = "{% for i in range(1000000000) %}x{% endfor %}"


@pytest.mark.real
def test_a_template_that_fills_the_memory_is_stopped_and_named(
    llama_server, nano, tmp_path, monkeypatch
):
    """At a bounded amount: a chat template is a program, and comes with the weights."""
    monkeypatch.setattr(llama_cpp, "COUNT_MEMORY_BYTES", 256 << 20)
    engine = real_llama_cpp(llama_server, nano, arguments=("--chat-template", ENDLESS))
    log = tmp_path / "counting.log"

    with (
        pytest.raises(ToolFailed, match="of memory") as caught,
        engine.tokenizing(log=log) as tokenizer,
    ):
        tokenizer.render((Message("user", "hi"),))
    assert "chat template" in caught.value.hint


def test_a_template_without_end_is_stopped_and_named(tmp_path, monkeypatch, golden):
    monkeypatch.setattr(llama_cpp, "COUNT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(processes, "GRACES_S", ((signal.SIGKILL, 60.0),))
    with (
        pytest.raises(ToolFailed) as rendered,
        fake_llama_cpp("slow-headers").tokenizing(log=tmp_path / "log") as tokenizer,
    ):
        tokenizer.render((Message("user", "hi"),))
    monkeypatch.setattr(llama_cpp, "COUNT_LOAD_TIMEOUT_S", 1.0)
    started = count(tmp_path, "loading")

    assert golden == (str(rendered.value), rendered.value.hint)
    assert "after 1 s" in str(started)
    assert golden == started.hint


@pytest.mark.real
@pytest.mark.parametrize("args", [("-nlg", "99"), ("-t", "many")])
def test_the_real_server_refuses_arguments(llama_server, nano, args, tmp_path):
    engine = real_llama_cpp(llama_server, nano, arguments=args)

    with pytest.raises(BadInput), engine.tokenizing(log=tmp_path / "counting.log"):
        raise AssertionError("entered")


def real_llama_cpp(llama_server, nano, **spec):
    """The engine on the real server and the built-in model."""
    engine = fake_llama_cpp(
        weights=read_weights_from_headers(nano), is_tiny=True, **spec
    )
    tools = replace(engine.tools, server=Program(llama_server))
    return replace(engine, tools=tools, facts=ask_server_facts(Program(llama_server)))


def test_a_template_that_loses_the_text_can_be_replaced(tmp_path):
    with (
        pytest.raises(LostText, match="lacks the corpus") as caught,
        fake_llama_cpp().tokenizing(log=tmp_path / "counting.log"),
    ):
        raise LostText("the corpus")

    assert "--prompt-form completion" in caught.value.hint
    assert "-- --chat-template-file FILE" in caught.value.hint
