"""llama.cpp as an engine: abilities, counting."""

import signal
from dataclasses import replace

import pytest
from made_servers import PAIR, fake_llama_cpp

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability, CellSpec, LostText, ModelSpec
from codeneedle.engines.llama_cpp import engine as llama_cpp
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.arguments import (
    VISIBLE_DEVICES,
    on_host,
    threads,
    variables,
)
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import server_facts
from codeneedle.engines.messages import Message, Refused
from codeneedle.errors import BadInput, MachineError, ToolFailed, ToolMissing
from codeneedle.models.weights import read_header
from codeneedle.system import processes
from codeneedle.system.files import CACHE_VARIABLE

CELL = CellSpec(PAIR, 4096)
F16 = Pair("f16", "f16")


GPU = ("CUDA0 NVIDIA L4 (22563 MiB)",)


# Counting


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
    ("words", "status", "reason"),
    [
        ("error: invalid argument: -nlg", 1, "error: invalid argument: -nlg"),
        ('error while handling argument "-t": stoi', 1, 'handling argument "-t"'),
        ("error: unknown argument: -nlg", 1, "error: unknown argument: -nlg"),
        ("version: 0.6.0", 0, "exits, instead of serving"),
    ],
)
def test_an_argument_that_the_server_does_not_serve_with_is_refused(
    words, status, reason, tmp_path
):
    error = count(tmp_path, f"say={words}", f"die={status}")

    assert 2 == error.exit_code
    assert reason in str(error)
    assert "after '--'" in str(error)


def test_a_server_that_fails_to_count_is_an_error_of_the_machine(tmp_path):
    words = "llama_mmap: failed to map: Invalid argument"
    error = count(tmp_path, f"say={words}", "die=1")

    assert isinstance(error, ToolFailed)
    assert words in str(error)
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


def test_a_template_without_end_is_stopped_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(llama_cpp, "COUNT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(processes, "GRACES_S", ((signal.SIGKILL, 60.0),))
    with (
        pytest.raises(ToolFailed, match=r"said nothing for 0\.3 s") as rendered,
        fake_llama_cpp("slow-headers").tokenizing(log=tmp_path / "log") as tokenizer,
    ):
        tokenizer.render((Message("user", "hi"),))
    monkeypatch.setattr(llama_cpp, "COUNT_LOAD_TIMEOUT_S", 1.0)
    started = count(tmp_path, "loading")

    assert "after 1 s" in str(started)
    assert "chat template" in started.hint
    assert "chat template" in rendered.value.hint


@pytest.mark.real
@pytest.mark.parametrize("args", [("-nlg", "99"), ("-t", "many")])
def test_the_real_server_refuses_arguments(llama_server, nano, args, tmp_path):
    engine = real_llama_cpp(llama_server, nano, arguments=args)

    with pytest.raises(BadInput), engine.tokenizing(log=tmp_path / "counting.log"):
        raise AssertionError("entered")


# The engine


def real_llama_cpp(llama_server, nano, **spec):
    """The engine on the real server and the built-in model."""
    engine = fake_llama_cpp(weights=read_header(nano), is_tiny=True, **spec)
    tools = replace(engine.tools, server=llama_server)
    return replace(engine, tools=tools, facts=server_facts(llama_server))


def test_an_engine_has_the_abilities_of_the_programs_beside_the_server(tmp_path):
    engine = fake_llama_cpp()
    whole = replace(engine, tools=replace(engine.tools, bench=tmp_path))

    served = {Ability.LOG_PROBABILITIES, Ability.FORCED, Ability.ADDRESS}
    served.add(Ability.CHOSEN_ADDRESS)
    assert served == engine.abilities
    assert {*served, Ability.SPEED} == whole.abilities
    whole.require(Ability.SPEED)
    with pytest.raises(ToolMissing, match="llama-bench is not beside") as caught:
        engine.require(Ability.SPEED)
    assert "codeneedle llama" in caught.value.hint
    with pytest.raises(ToolMissing, match="llama-perplexity is not beside"):
        engine.divergence_tool()


def test_a_server_that_is_too_old_to_render_answers_is_named():
    engine = fake_llama_cpp()

    assert Ability.CONVERSATIONS not in engine.abilities
    with pytest.raises(ToolMissing, match="has no --no-prefill-assistant"):
        engine.require(Ability.CONVERSATIONS)


@pytest.mark.real
def test_what_the_real_server_cannot_render_is_left_in_no_file(
    llama_server, nano, tmp_path, monkeypatch
):
    """Its log quotes some of it; the folder of the log goes with the server."""
    model = ModelSpec(weights=read_header(nano), name="nano", is_tiny=True)
    engine = LlamaCpp(
        tools=installation.find(), facts=server_facts(llama_server), model=model
    )
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with engine.templating() as template:
        with pytest.raises(Refused):
            template.render_conversation(
                [{"role": "user", "content": 7}],
                (),
                begins_reply=True,
                thinking=False,
            )
        assert list(tmp_path.rglob("rendering.log"))

    assert [] == list(tmp_path.rglob("*.log"))


def test_thinking_is_switched_off_where_the_binary_can(tmp_path):
    options = {"--reasoning-budget"}
    chat = fake_llama_cpp(options=options, thinking=False)

    assert "--reasoning-budget 0" == chat.thinking_off
    assert "" == fake_llama_cpp(options=options).thinking_off
    assert "" == fake_llama_cpp(thinking=False).thinking_off
    with chat.serving(CELL, log=tmp_path / "log") as served:
        at = served.command.index("--reasoning-budget")
        assert "0" == served.command[at + 1]


def test_a_cell_may_think_whatever_the_run_says(tmp_path):
    chat = fake_llama_cpp(options={"--reasoning-budget"}, thinking=False)

    with chat.serving(replace(CELL, thinks=True), log=tmp_path / "log") as served:
        assert "--reasoning-budget" not in served.command
        port = served.command[served.command.index("--port") + 1]
        assert f"http://127.0.0.1:{port}/v1" == served.address.url
        assert served.address.model in served.command
        assert served.address.key
        assert served.address.key not in repr(served.address)


def test_a_variable_that_would_change_all_cells_is_told(monkeypatch):
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    assert () == fake_llama_cpp().notes()
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")

    monkeypatch.setenv("LLAMA_KV_CACHE_LAZY_QUANT", "1")

    rotating, lazy = fake_llama_cpp().notes()
    assert "--rotation off" in rotating
    assert "LLAMA_KV_CACHE_LAZY_QUANT is not passed on" in lazy


L4S = tuple(f"CUDA{n} NVIDIA L4 (22563 MiB)" for n in range(3))


@pytest.mark.parametrize(
    ("device", "lent", "seen"),
    [
        ("1", "", L4S[1:2]),
        ("7", "5,6,7", L4S[2:]),
        ("GPU-8f3a", "", L4S),
        ("3", "", "there are CUDA0 NVIDIA L4"),
        ("1", "5,6,7", "the environment lends only 5,6,7"),
    ],
)
def test_a_device_is_one_that_is_there_and_lent_to_us(monkeypatch, device, lent, seen):
    for name in VISIBLE_DEVICES:
        monkeypatch.delenv(name, raising=False)
    if lent:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", lent)
    engine = fake_llama_cpp(devices=L4S, device=device)

    if isinstance(seen, str):
        with pytest.raises(BadInput, match=seen):
            engine.refuse_arguments()
    else:
        engine.refuse_arguments()
        assert seen == engine.identity().devices
        told = variables(engine.model, is_passive=False)
        assert {device} == {told[name] for name in VISIBLE_DEVICES}


def test_a_share_of_the_cores_is_passed_on():
    """The built-in model writes with one thread whatever its share is."""
    large = fake_llama_cpp(threads=3).model
    tiny = fake_llama_cpp(is_tiny=True, threads=3).model

    assert ["--threads", "3", "--threads-batch", "3"] == [*threads(large, ())]
    assert ["--threads", "1", "--threads-batch", "3"] == [*threads(tiny, ())]


def test_a_template_that_loses_the_text_can_be_replaced(tmp_path):
    with (
        pytest.raises(LostText, match="lacks the corpus") as caught,
        fake_llama_cpp().tokenizing(log=tmp_path / "counting.log"),
    ):
        raise LostText("the corpus")

    assert "--prompt-form completion" in caught.value.hint
    assert "-- --chat-template-file FILE" in caught.value.hint


@pytest.mark.parametrize(
    "arguments",
    [("-ngl", "0"), ("--no-kv-offload",), ("--n-gpu-layers=0",), ("-dev", "none")],
)
def test_arguments_that_keep_attention_on_the_cpu_are_told(arguments):
    asked = fake_llama_cpp(devices=GPU, arguments=arguments)

    assert "keep the cache off the accelerator" in " ".join(asked.notes())
    assert asked.on_cpu(F16) is None


@pytest.mark.parametrize(
    ("devices", "arguments", "is_told"),
    [
        ((), "-ngl 99", True),
        (GPU, "-ngl 99", False),
        ((), "-ngl 0", False),
        ((), "", 0),
    ],
)
def test_layers_for_an_accelerator_that_is_not_there_are_told(
    devices, arguments, is_told
):
    asked = fake_llama_cpp(devices=devices, arguments=tuple(arguments.split()))

    assert bool(is_told) == any(
        "this llama-server has none" in e for e in asked.notes()
    )


def test_attention_is_moved_to_the_cpu_and_nothing_else():
    engine = fake_llama_cpp(devices=GPU, arguments=("-ngl", "20"))
    moved = engine.on_cpu(F16)

    assert () == engine.notes()
    assert moved.is_on_cpu
    assert ("-ngl", "20") == moved.model.arguments
    assert fake_llama_cpp().on_cpu(F16) is None


def test_attention_on_the_cpu_is_not_flash_attention_which_stays_on_the_device():
    """With flash attention and the cache on the CPU, Vulkan computes the same bits."""
    moved = fake_llama_cpp(devices=GPU).on_cpu(F16)

    assert ("--no-kv-offload", "--flash-attn", "off") == on_host(moved.model)
    assert () == on_host(fake_llama_cpp(devices=GPU).model)


def test_a_quantized_v_cannot_do_without_flash_attention():
    assert fake_llama_cpp(devices=GPU).on_cpu(Pair("f16", "q8_0")) is None
    assert fake_llama_cpp(devices=GPU).on_cpu(Pair("q8_0", "f16"))
