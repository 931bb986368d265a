"""What a build can serve, by its programs, options, devices and variables."""

from dataclasses import replace

import pytest
from made_servers import PAIR, fake_llama_cpp

from codeneedle.engines.engine import Ability, CellSpec, ModelSpec
from codeneedle.engines.llama_cpp import installation
from codeneedle.engines.llama_cpp.arguments import (
    VISIBLE_DEVICES,
    environment_for_model,
    thread_arguments,
)
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import Program, ask_server_facts
from codeneedle.engines.messages import Refused
from codeneedle.errors import BadInput, ToolMissing
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.system.files import CACHE_VARIABLE

CELL = CellSpec(PAIR, 4096)


def test_an_engine_has_the_abilities_of_the_programs_beside_the_server(
    tmp_path, golden
):
    engine = fake_llama_cpp()
    server = Program(tmp_path / "llama-server")
    engine = replace(engine, tools=replace(engine.tools, server=server))
    whole = replace(engine, tools=replace(engine.tools, bench=tmp_path))

    served = {Ability.LOG_PROBABILITIES, Ability.FORCED, Ability.ADDRESS}
    served.add(Ability.CHOSEN_ADDRESS)
    assert served == engine.abilities
    assert {*served, Ability.SPEED} == whole.abilities
    whole.require(Ability.SPEED)
    with pytest.raises(ToolMissing) as bench:
        engine.require(Ability.SPEED)
    assert golden == (str(bench.value), bench.value.hint)
    with pytest.raises(ToolMissing) as perplexity:
        engine.divergence_tool()
    assert golden == str(perplexity.value)


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
    model = ModelSpec(
        weights=read_weights_from_headers(nano), name="nano", is_tiny=True
    )
    engine = LlamaCpp(
        tools=installation.locate_tools(),
        facts=ask_server_facts(Program(llama_server)),
        model=model,
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

    assert "--reasoning-budget 0" == chat.thinking_off_option
    assert "" == fake_llama_cpp(options=options).thinking_off_option
    assert "" == fake_llama_cpp(thinking=False).thinking_off_option
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


def test_a_variable_that_would_change_all_cells_is_told(monkeypatch, golden):
    monkeypatch.delenv("LLAMA_ATTN_ROT_DISABLE", raising=False)
    assert () == fake_llama_cpp().notes()
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")

    monkeypatch.setenv("LLAMA_KV_CACHE_LAZY_QUANT", "1")

    assert golden == fake_llama_cpp().notes()


L4S = tuple(f"CUDA{n} NVIDIA L4 (22563 MiB)" for n in range(3))


@pytest.mark.parametrize(
    ("device", "lent", "seen"),
    [
        ("1", "", L4S[1:2]),
        ("7", "5,6,7", L4S[2:]),
        ("GPU-8f3a", "", L4S),
        ("3", "", None),
        ("1", "5,6,7", None),
    ],
    ids=["there", "lent", "by its UUID", "not there", "not lent"],
)
def test_a_device_is_one_that_is_there_and_lent_to_us(
    monkeypatch, device, lent, seen, golden
):
    for name in VISIBLE_DEVICES:
        monkeypatch.delenv(name, raising=False)
    if lent:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", lent)
    engine = fake_llama_cpp(devices=L4S, device=device)

    if seen is None:
        with pytest.raises(BadInput) as caught:
            engine.refuse_unusable_arguments()
        assert golden == str(caught.value)
    else:
        engine.refuse_unusable_arguments()
        assert seen == engine.identity().devices
        told = environment_for_model(engine.model, is_passive=False)
        assert {device} == {told[name] for name in VISIBLE_DEVICES}


def test_a_share_of_the_cores_is_passed_on():
    """The built-in model writes with one thread whatever its share is."""
    large = fake_llama_cpp(threads=3).model
    tiny = fake_llama_cpp(is_tiny=True, threads=3).model

    assert ["--threads", "3", "--threads-batch", "3"] == [*thread_arguments(large, ())]
    assert ["--threads", "1", "--threads-batch", "3"] == [*thread_arguments(tiny, ())]
