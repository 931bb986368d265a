"""Whatever is missing becomes a problem with a command that mends it."""

import msgspec
import pytest
from gguf_files import SHAPE, write_gguf
from programs import llama_like, script

from codeneedle.cli import doctor
from codeneedle.cli.doctor import diagnose
from codeneedle.system import machine


@pytest.fixture(autouse=True)
def _empty_world(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: False)


def whats(found):
    return [problem.what for problem in found.problems]


def test_a_bare_machine_has_problems_but_no_error(tmp_path):
    """
    No llama.cpp and no weights: both are listed, each with its mend.
    """
    found = diagnose(model=tmp_path / "none.gguf")

    assert not found.is_ready
    assert found.programs is None
    assert found.model is None
    assert ["llama-server was not found on PATH or in the cache folder", True] == [
        found.problems[0].what,
        "codeneedle llama" in found.problems[0].mend,
    ]
    assert f"there are no weights at {tmp_path}/none.gguf" == whats(found)[1]
    assert {None} == {each.is_accepted for each in found.types}


def test_a_complete_installation_has_no_problems(tmp_path):
    """
    All three programs, a server that takes all types, and a model that fits.
    """
    server = llama_like(tmp_path / "llama-server")
    text = server.read_text()
    every = "allowed values: bf16, q8_0, q5_1, q5_0, q4_1, q4_0"
    for line in ("f32, f16, bf16, q8_0,", "f16, q8_0"):
        text = text.replace(f"allowed values: {line}\n", f"{every}\n")
    server.write_text(text)
    for name in ("llama-perplexity", "llama-bench"):
        script(tmp_path / name, "")

    found = diagnose(llama_server=server, model=write_gguf(tmp_path / "m.gguf"))

    assert [] == whats(found)
    assert found.is_ready
    assert found.model is not None
    assert 8192 == found.model.context
    assert 8192 * 4 * 2 * 64 * 4 == found.model.kv_bytes["bf16/bf16"]


def test_what_a_sweep_can_do_without_is_a_note(tmp_path):
    """
    Missing companions and refused types do not stop a sweep.
    """
    found = diagnose(
        llama_server=llama_like(tmp_path / "llama-server"),
        model=write_gguf(tmp_path / "m.gguf"),
    )

    assert found.is_ready
    assert [
        "there is no llama-perplexity beside llama-server; recall sweeps do without it",
        "there is no llama-bench beside llama-server; recall sweeps do without it",
        "this llama-server does not accept bf16, q5_1, q5_0, q4_1, q4_0",
    ] == whats(found)
    assert "codeneedle sweep --types q8_0" == found.problems[2].mend


def test_a_broken_server_is_a_problem_and_its_path_is_still_shown(tmp_path):
    """
    The programs were found, only their answers are missing.
    """
    found = diagnose(
        llama_server=script(tmp_path / "llama-server", "kill -4 $$"),
        model=write_gguf(tmp_path / "m.gguf"),
    )

    assert not found.is_ready
    assert found.programs is not None
    assert (str(tmp_path / "llama-server"), "") == (
        found.programs.server,
        found.programs.version,
    )
    assert "signal 4" in whats(found)[0]


def test_heads_that_do_not_fit_are_told_by_type(tmp_path):
    """
    Head size 80 takes bf16 alone.
    """
    keys = {
        **SHAPE,
        "llama.attention.key_length": 80,
        "llama.attention.value_length": 80,
    }
    found = diagnose(model=write_gguf(tmp_path / "m.gguf", keys))
    fits = {each.name: each.misfit for each in found.types}

    assert "" == fits["bf16"]
    assert "block of 32 does not divide head size 80" == fits["q8_0"]


def test_a_gpu_that_the_server_does_not_see_is_mentioned(tmp_path, monkeypatch):
    """
    A build for the processor on a machine with a GPU is worth a note.
    """
    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: True)

    found = diagnose(
        llama_server=llama_like(tmp_path / "llama-server"),
        model=write_gguf(tmp_path / "m.gguf"),
    )

    assert any("does not see it" in what for what in whats(found))


def test_too_little_memory_is_mentioned(tmp_path, monkeypatch):
    """
    Weights and the largest KV cache are held against what is free.
    """
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 1 << 20)

    found = diagnose(model=write_gguf(tmp_path / "m.gguf"))

    assert any("of memory 1.0 MiB is free" in what for what in whats(found))


def test_a_diagnosis_is_ready_for_json(tmp_path):
    """
    Every field survives the way to JSON and back.
    """
    found = diagnose(
        llama_server=llama_like(tmp_path / "llama-server"),
        model=write_gguf(tmp_path / "m.gguf"),
    )
    stored = msgspec.json.decode(msgspec.json.encode(found), type=type(found))

    assert found == stored
