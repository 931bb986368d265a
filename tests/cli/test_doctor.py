"""What would run here, what is missing, and how to fix it."""

import dataclasses
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf
from printing import printed
from programs import llama_like, script

from codeneedle.cli import doctor
from codeneedle.cli.doctor import (
    Diagnosis,
    Problem,
    diagnose,
    doctor_document,
    doctor_object,
)
from codeneedle.cli.engines import ENGINES
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import backends
from codeneedle.engines.llama_cpp.engine import UNSEEN_GPU, LlamaCpp
from codeneedle.engines.llama_cpp.installation import Program, ServerFacts, Tools
from codeneedle.models.gguf import parse
from codeneedle.models.pretrained import SMOLLM2
from codeneedle.models.weights import weights_of
from codeneedle.system import machine
from codeneedle.system.machine import MachineFacts

WEIGHTS = dataclasses.replace(
    weights_of(
        parse(gguf_bytes()),
        files=[Path("/home/me/models/qwen3-4b-q4_k_m.gguf")],
        size_bytes=2_500_000_000,
    ),
    architecture="qwen3",
    file_type="Q4_K_M",
    layers=36,
    kv_heads=(8,) * 36,
    key_length=128,
    value_length=128,
    chat_template="{{ messages }}",
)
SERVER = ServerFacts(
    version="0.6.0 (build 11434, commit abc)",
    build=11434,
    k_types=("f16", "q8_0"),
    v_types=("f16", "q8_0"),
    options=frozenset(),
    devices=("CUDA0 NVIDIA L4 (22563 MiB)",),
)
TOOLS = Tools(
    server=Program(Path("/usr/local/bin/llama-server")),
    perplexity=Program(Path("/usr/local/bin/llama-perplexity")),
    bench=None,
    source="PATH",
)


def served(facts=SERVER):
    return LlamaCpp(
        tools=TOOLS, facts=facts, model=ModelSpec(weights=WEIGHTS, name="qwen3")
    )


WHOLE = Diagnosis(
    machine=MachineFacts(
        system="Debian GNU/Linux 12",
        architecture="x86_64",
        processor="AMD EPYC 7B13",
        physical_cores=4,
        logical_cores=8,
        usable_cores=2,
        memory_bytes=64 << 30,
        available_bytes=60 << 30,
        python="3.12.1",
    ),
    cache=Path("/home/me/.cache/codeneedle"),
    cache_free_bytes=100 << 30,
    programs=TOOLS,
    served=served(),
    weights=WEIGHTS,
)


def screen(diagnosis, *, width=80):
    return printed(doctor_document(diagnosis), width=width).splitlines()


def test_all_facts_are_on_the_screen(golden):
    lines = screen(WHOLE, width=100)

    assert [
        f"llama.cpp         {SERVER.version}, /usr/local/bin/llama-server (from PATH)",
        "llama-perplexity  /usr/local/bin/llama-perplexity",
        "llama-bench       missing",
        "llama-fit-params  missing",
        "cache types       f16, q8_0",
        "devices           CUDA0 NVIDIA L4 (22563 MiB)",
    ] == lines[:6]
    assert golden == [line for line in lines if line.startswith(("threads", "shape"))]
    assert "chat template     yes" in lines
    assert "Nothing is missing." == lines[-1]
    assert lines == [line.rstrip() for line in lines]


def test_problems_come_last_with_what_mends_them():
    lines = screen(
        dataclasses.replace(
            WHOLE,
            programs=None,
            served=None,
            weights=None,
            problems=(
                Problem(what="no llama-server", hint="codeneedle llama", stops=True),
                Problem(what="little memory", hint="buy some", stops=False),
            ),
        )
    )

    assert lines[0].split() == ["llama-server", "missing"]
    assert [
        "error: no llama-server",
        "  hint: codeneedle llama",
        "note: little memory",
        "  hint: buy some",
    ] == lines[-4:]


@pytest.mark.parametrize("is_fetched", [False, True])
def test_models_by_name_are_listed_with_size_and_licence(
    monkeypatch, tmp_path, is_fetched, golden
):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))
    if is_fetched:
        SMOLLM2.path.parent.mkdir(parents=True)
        with SMOLLM2.path.open("wb") as file:
            file.truncate(SMOLLM2.size_bytes)
    [line] = [x for x in screen(WHOLE, width=200) if "--model smollm2" in x]

    assert golden == line
    assert is_fetched is doctor_object(WHOLE)["models"][0]["is_fetched"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_is_one_screen(width):
    path = Path("/m/[red]a\x1b[2J" + "x" * 200 + ".gguf")
    long = dataclasses.replace(
        WHOLE,
        weights=dataclasses.replace(WEIGHTS, files=(path,)),
        problems=(Problem(what="w " * 60, hint="m " * 60, stops=True),) * 2,
    )
    lines = screen(long, width=width)

    assert len(lines) <= 40
    assert max(map(len, lines)) <= width
    assert any("/m/[red]a\\x1b[2Jx" in line for line in lines)


def test_types_and_heads_that_differ_for_k_and_v_are_both_shown(golden):
    """A fork may take other types for V; numbers of heads may differ between layers."""
    fork = dataclasses.replace(SERVER, v_types=("f16",))
    odd = dataclasses.replace(WEIGHTS, kv_heads=(8, 4), value_length=64)
    lines = screen(
        dataclasses.replace(WHOLE, served=served(fork), weights=odd), width=120
    )

    assert "for V             f16" in lines
    [shape] = [line for line in lines if line.startswith("shape")]
    assert golden == shape


# --- looking at a machine


@pytest.fixture(autouse=True)
def _empty_world(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr(backends, "has_nvidia_gpu", lambda: False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path):
    """Weights that are there."""
    return write_gguf(tmp_path / "m.gguf")


@pytest.fixture
def server(tmp_path):
    """A llama-server that answers, alone in its folder."""
    return llama_like(tmp_path / "llama-server")


def whats(found):
    return [problem.what for problem in found.problems]


def test_a_bare_machine_has_problems_but_no_error(tmp_path, golden):
    found = diagnose(model=tmp_path / "none.gguf")

    assert not found.is_ready
    assert found.llama_cpp_tools is None
    assert found.weights is None
    assert found.plan is None
    assert golden == found.left_out
    assert golden == whats(found)
    assert "codeneedle llama" in found.problems[0].hint


def test_a_complete_installation_has_no_problems(server, model, tmp_path, golden):
    text = server.read_text()
    every = "allowed values: bf16, q8_0, q5_1, q5_0, q4_1, q4_0"
    for line in ("f32, f16, bf16, q8_0,", "f16, q8_0"):
        text = text.replace(f"allowed values: {line}\n", f"{every}\n")
    server.write_text(text)
    for name in ("llama-perplexity", "llama-bench", "llama-fit-params"):
        script(tmp_path / name, "")

    found = diagnose(llama_server=server, model=model)

    assert [] == whats(found)
    assert found.is_ready
    facts = doctor_object(found)["model"]
    assert 8192 == facts["context"]
    assert 8192 * 4 * 2 * 64 * 4 == facts["kv_bytes"]["bf16/bf16"]
    [heading] = [line for line in screen(found) if "KV cache" in line]
    assert golden == heading


def test_types_of_a_fork_are_listed_with_what_shows_where_they_run(server, model):
    text = server.read_text()
    every = "allowed values: bf16, q8_0, q5_1, q5_0, q4_1, q4_0, turbo4"
    for line in ("f32, f16, bf16, q8_0,", "f16, q8_0"):
        text = text.replace(f"allowed values: {line}\n", f"{every}\n")
    server.write_text(text)

    lines = screen(diagnose(llama_server=server, model=model), width=200)

    assert any("q4_0, turbo4" in line for line in lines)
    assert any("codeneedle kernels --types f16,turbo4" in line for line in lines)


def test_an_engine_is_planned_with_its_versions_and_its_own_types(monkeypatch):
    pytest.importorskip("safetensors", reason="mlx-lm, which brings it, is not here")
    from made_mlx import nano_folder

    from codeneedle.engines.mlx.engine import Mlx
    from codeneedle.engines.mlx.settings import MlxSettings

    versions = {"mlx": "0.32.4", "mlx-lm": "0.32.2"}
    made = dataclasses.replace(
        ENGINES["mlx"],
        find=lambda *_: versions,
        engine_for=lambda *_: (
            lambda model: Mlx(versions=versions, model=model, settings=MlxSettings())
        ),
    )
    monkeypatch.setitem(ENGINES, "mlx", made)

    found = diagnose(engine="mlx", model=nano_folder())

    assert found.is_ready
    assert "kv4/kv4" in doctor_object(found)["model"]["kv_bytes"]
    assert "0.32.4, mlx-lm 0.32.2" in screen(found, width=200)[0]


def test_what_a_sweep_can_do_without_is_a_note(server, model, golden):
    found = diagnose(llama_server=server, model=model)

    assert found.is_ready
    assert [
        f"{name} is not beside {server}" for name in ("llama-perplexity", "llama-bench")
    ] == whats(found)
    marks = ("llama-fit-params is", "has no bf16")
    lines = screen(found, width=300)
    assert golden == [x for x in lines if any(mark in x for mark in marks)]


def test_a_broken_server_is_a_problem_and_its_path_is_still_shown(model, tmp_path):
    found = diagnose(
        llama_server=script(tmp_path / "llama-server", "kill -4 $$"),
        model=model,
    )

    assert not found.is_ready
    assert found.served is None
    assert f"{tmp_path}/llama-server (from" in " ".join(screen(found, width=300))
    assert str(tmp_path / "llama-server") == doctor_object(found)["programs"]["server"]
    assert "SIGILL" in whats(found)[0]


@pytest.mark.parametrize(
    ("engine", "lacks"),
    [("endpoint", "needs --url"), ("command", "needs the command")],
    ids=["endpoint", "command"],
)
def test_settings_that_only_a_sweep_takes_are_no_problem(engine, lacks, golden):
    found = diagnose(engine=engine, model=Path("org/model"))

    assert ([], None) == (whats(found), found.plan)
    assert lacks in found.left_out
    [line] = [x for x in screen(found) if x.startswith("model ")]
    assert golden == line


def test_heads_that_do_not_fit_are_told_by_pair(server, tmp_path, golden):
    """Head size 80 takes bf16 alone."""
    keys = {
        **SHAPE,
        "llama.attention.key_length": 80,
        "llama.attention.value_length": 80,
    }
    found = diagnose(llama_server=server, model=write_gguf(tmp_path / "m.gguf", keys))
    refused = doctor_object(found)["model"]["refused"]

    assert "bf16/bf16" not in refused
    assert golden == refused["q8_0/q8_0"]


def test_every_step_that_fails_is_told_at_once(model, tmp_path, leave_free, golden):
    """The folder for records is checked where there is no plan, too."""
    leave_free(1)
    missing = tmp_path / "none.gguf"
    found = diagnose(llama_server=script(tmp_path / "s", "exit 3"), model=missing)

    assert 3 == len([problem for problem in found.problems if problem.stops])
    assert all(problem.hint for problem in found.problems)
    assert golden == whats(found)[2]
    found = diagnose(model=model)
    assert golden == whats(found)[1]


def test_what_a_sweep_would_suffer_from_is_mentioned(
    server, model, monkeypatch, golden
):
    left = [doctor.orphans.Orphan("llama-server", 4711)]
    monkeypatch.setattr(backends, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 1 << 20)
    monkeypatch.setattr(doctor.orphans, "orphans", lambda: left)

    found = diagnose(llama_server=server, model=model)
    lines = screen(found, width=300)
    said = " ".join(lines)

    assert UNSEEN_GPU in said
    [note] = [line for line in lines if "1.0 MiB of memory" in line]
    assert golden == note
    assert "still running: pid 4711" in said
    assert "kill 4711" == found.problems[-1].hint[-9:]


def test_the_json_has_all_facts():
    found = doctor_object(dataclasses.replace(WHOLE, weights=None))
    model = doctor_object(WHOLE)["model"]

    assert set(found) == {
        *("codeneedle", "machine", "cache", "cache_free_bytes"),
        *("engine", "programs", "model", "models", "kept_models", "kernels"),
        *("notes", "left_out", "problems"),
    }
    assert ["smollm2"] == [each["name"] for each in found["models"]]
    assert {
        "server": "/usr/local/bin/llama-server",
        "source": "PATH",
        "perplexity": "/usr/local/bin/llama-perplexity",
        "bench": None,
        "fit_params": None,
        "version": SERVER.version,
        "build": 11434,
        "k_types": SERVER.k_types,
        "v_types": SERVER.v_types,
        "devices": SERVER.devices,
    } == found["programs"]
    assert found["model"] is None
    assert ([8], True) == (model["kv_heads"], model["has_chat_template"])


def test_a_model_without_a_cache_stops_a_sweep(server, tmp_path, golden):
    keys = {**SHAPE, "llama.attention.head_count": 0}
    del keys["llama.attention.head_count_kv"]
    found = diagnose(
        llama_server=server, model=write_gguf(tmp_path / "state.gguf", keys)
    )

    assert not found.is_ready
    assert golden == whats(found)[0]
