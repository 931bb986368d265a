"""Whole sweeps: the real program, the real llama-server, the built-in model."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from codeneedle.system.files import cache_folder

pytestmark = pytest.mark.real

CORPUS = """\
[generate]
functions = 3
value_length = 6
name_length = 5
seed = 7
"""
"""Three functions, so that a cell takes a second or two."""

SMALL = ("--corpus", "tiny", "--types", "q8_0,q4_0", "--context", "4096")
RUN = Path("sweeps/tiny/needle-nano")
FILE = "q8_0-q4_0.recall.json"


@pytest.fixture(autouse=True)
def tiny(tmp_path, llama_server, nano):
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


def wait_for(path: Path) -> str:
    """The contents of *path*, once there are any."""
    while not path.exists() or not path.read_text(encoding="utf-8"):
        pass
    return path.read_text(encoding="utf-8")


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


def test_a_sweep_fills_its_grid_and_is_shown(codeneedle, tmp_path):
    """
    Four servers, four finished records, a grid and a heatmap; a second start does
    nothing, and no process is left.
    """
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


def test_speculation_is_off_unless_asked_for(codeneedle, tmp_path):
    """
    With it drafts are counted and no margins are stored; such records and plain ones
    never share a folder.
    """
    one = (*SMALL, "--k-types", "q8_0", "--v-types", "q4_0")
    first = codeneedle("sweep", *one, "--speculate")
    plain = codeneedle("sweep", *one, "--out", "plain")
    mixed = codeneedle("sweep", *one)
    fast, slow = (
        json.loads((tmp_path / out / "tiny/needle-nano/cells" / FILE).read_text())
        for out in ("sweeps", "plain")
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


def test_a_record_tells_what_was_asked_and_what_ran(codeneedle, tmp_path):
    """
    Types, context, rotation and attention come from the log; the key is nowhere.
    """
    codeneedle("sweep", *SMALL, "--k-types", "q8_0", "--v-types", "q4_0")
    record = json.loads((tmp_path / RUN / "cells/q8_0-q4_0.recall.json").read_text())
    effective = record["effective"]

    assert [("q8_0", "q4_0")] == [
        (kv["k_type"], kv["v_type"]) for kv in effective["kv"]
    ]
    assert 4096 == effective["context"]
    assert "enabled" == effective["flash_attention"]
    assert 64 == effective["rotation_k"] == effective["rotation_v"]
    assert record["phases"]["ready_s"] > 0
    rounds = record["observation"]["rounds"]
    assert 3 == len(rounds)
    assert all(len(r["gaps"]) == len(r["logprobs"]) > 0 for r in rounds)
    assert not any("key" in word for word in record["command"])


def test_rounds_take_the_corpus_from_the_cache(codeneedle, tmp_path):
    """
    Only the priming round reads the corpus.
    """
    codeneedle("sweep", *SMALL, "--k-types", "q8_0", "--v-types", "q4_0")
    record = json.loads((tmp_path / RUN / "cells/q8_0-q4_0.recall.json").read_text())
    observation = record["observation"]

    assert observation["priming"]["cached_tokens"] == 0
    assert all(
        r["cached_tokens"] > 0.9 * r["prompt_tokens"] for r in observation["rounds"]
    )


def test_a_reply_ends_soon_after_its_answer(codeneedle, tmp_path):
    """
    A model that would copy on and on is cut, and says the same up to there.
    """
    codeneedle("sweep", *SMALL, "--k-types", "q8_0", "--v-types", "q8_0")
    record = json.loads((tmp_path / RUN / "cells/q8_0-q8_0.recall.json").read_text())

    for asked in record["observation"]["rounds"][:-1]:
        assert "cut" == asked["finish"]
        assert asked["reply"].count("\n") <= 20 + 8


def test_the_chat_form_recalls_like_the_completion_form(codeneedle, tmp_path):
    """
    The built-in model's template renders a question as a completion.
    """
    told = codeneedle(
        "sweep",
        *SMALL,
        "--k-types",
        "q8_0",
        "--v-types",
        "q8_0",
        "--prompt-form",
        "chat",
        "--out",
        "chats",
    )
    record = json.loads(
        (tmp_path / "chats/tiny/needle-nano/cells/q8_0-q8_0.recall.json").read_text()
    )
    setup = json.loads((tmp_path / "chats/tiny/needle-nano/setup.json").read_text())

    assert 0 == told.returncode, told.stderr
    assert "chat" == setup["prompt_form"]
    assert "enable_thinking=false" in setup["thinking"]
    truths = {needle["name"]: needle["lines"] for needle in setup["needles"]}
    for asked in record["observation"]["rounds"]:
        assert truths[asked["needle"]] == asked["reply"].split("\n")[:20]


def test_another_setup_is_refused_in_the_same_folder(codeneedle):
    """
    The key and both values are named, and nothing is overwritten.
    """
    codeneedle("sweep", *SMALL, "--k-types", "q8_0", "--v-types", "q8_0")
    refused = codeneedle("sweep", "--corpus", "tiny", "--context", "2048")

    assert 2 == refused.returncode
    assert "another context: 4096, now 2048" in refused.stderr


def test_a_corpus_that_is_too_long_is_trimmed_and_says_so(codeneedle, tmp_path):
    """
    Whole functions are kept, as many as fit with question and answer.
    """
    told = codeneedle(
        "sweep", "--corpus", "tiny", "--context", "2048", "--types", "q8_0"
    )
    refused = codeneedle(
        "sweep", "--corpus", "tiny", "--context", "2048", "--no-fit", "--out", "other"
    )
    setup = json.loads((tmp_path / RUN / "setup.json").read_text())

    assert 0 == told.returncode, told.stderr
    assert setup["corpus"]["functions"] < setup["corpus"]["functions_before"] == 3
    assert "trimmed to" in told.stderr
    assert "trimmed to" in codeneedle("grid", "tiny").stdout
    assert 2 == refused.returncode
    assert "--context" in refused.stderr


def test_a_plan_starts_nothing_and_tells_all(codeneedle, tmp_path):
    """
    Predicted memory, what is done, and what would be sent; no folder is made.
    """
    before = codeneedle("plan", *SMALL)

    assert 0 == before.returncode, before.stderr
    assert "predicted KV cache" in before.stdout
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--types", "q8_0,q9_0"), 2, "unknown K cache type 'q9_0'"),
        (("--model", "none.gguf"), 3, "none.gguf does not exist"),
        (("--context", "100000"), 2, "trained for"),
        (("--", "-ctk", "q8_0"), 2, "-ctk: this argument cannot be passed"),
        (("--", "-c", "100"), 2, "-c: this argument cannot be passed"),
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


def test_a_file_that_is_no_gguf_is_named_for_what_it_is(codeneedle, tmp_path):
    """
    The wrong download is recognised.
    """
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><html>Not found</html>")
    refused = codeneedle("sweep", "--corpus", "tiny", "--model", "page.gguf")

    assert 3 == refused.returncode
    assert "web page" in refused.stderr


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
    setup = json.loads((tmp_path / "sweeps/src/my-model/setup.json").read_text())

    assert 0 == told.returncode, told.stderr
    assert ["-ngl", "0", "-t", "1"] == setup["server_args"]
    assert ["first", "second"] == [needle["name"] for needle in setup["needles"]]
    assert "unseen" == setup["corpus"]["kind"]


def test_ctrl_c_once_ends_after_the_current_cell(codeneedle, tmp_path):
    """
    The cell under way is finished, the others are left for the next start.
    """
    with started(tmp_path, *SMALL) as sweep:
        wait_for(tmp_path / RUN / "logs" / "counting.log")
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_no_process_and_no_half_cell(
    codeneedle, tmp_path, number
):
    """
    A closed terminal or a shutdown is unwound like Ctrl-C.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        os.kill(sweep.pid, number)
        code = sweep.wait()

    assert 130 == code
    assert set(statuses(tmp_path)) <= {"finished", "interrupted"}
    assert [] == servers(tmp_path)
    assert 0 == codeneedle("sweep", *SMALL).returncode
    assert ["finished"] * 4 == statuses(tmp_path)


def test_ctrl_c_twice_ends_at_once(codeneedle, tmp_path):
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


def test_a_server_is_killed_with_its_sweep(codeneedle, tmp_path):
    """
    Hole 4: after our own SIGKILL it lived on, seen by a sweep of that folder alone.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        while not (server := noted_pid(sweep)):
            pass
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait()
    psutil.wait_procs([psutil.Process(server)] if psutil.pid_exists(server) else [], 60)

    assert [] == servers(tmp_path)
    told = codeneedle("sweep", *SMALL)
    assert 0 == told.returncode, told.stderr
    assert "left behind" not in told.stderr
    assert ["finished"] * 4 == statuses(tmp_path)


def test_a_sweep_in_a_copied_folder_spares_the_server_of_the_original(
    codeneedle, tmp_path
):
    """
    Hole 1: it ended that server as one that was left behind.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        while not noted_pid(sweep):
            pass
        shutil.copytree(tmp_path / "sweeps", tmp_path / "copy")
        told = codeneedle("sweep", *SMALL, "--out", "copy")
        code = sweep.wait()

    assert (0, 0) == (told.returncode, code), told.stderr
    assert "left behind" not in told.stderr
    assert ["finished"] * 4 == statuses(tmp_path)


def test_two_sweeps_never_share_a_folder(codeneedle, tmp_path):
    """
    The second one is told, and the first is not disturbed.
    """
    with started(tmp_path, *SMALL) as sweep:
        said(sweep, "[ 1/4]")
        refused = codeneedle("sweep", *SMALL)
        code = sweep.wait()

    assert 2 == refused.returncode
    assert "another sweep is running" in refused.stderr
    assert 0 == code


def test_a_probe_that_cannot_run_leaves_no_setup_behind(codeneedle, tmp_path):
    """
    Mending the request is enough; the folder does not hold it to the first try.
    """
    refused = codeneedle(
        *("sweep", *SMALL, "--probe", "divergence"),
        *("--divergence-context", "4096", "--chunks", "50"),
    )
    mended = codeneedle(
        "sweep", "--corpus", "tiny", "--types", "q8_0", "--context", "2048"
    )

    assert 2 == refused.returncode
    assert 0 == mended.returncode, mended.stderr


def test_a_trimmed_run_is_not_continued_where_trimming_is_forbidden(codeneedle):
    """
    The flag holds for what is there already, too.
    """
    few = ("--corpus", "tiny", "--context", "2048", "--types", "q8_0")
    codeneedle("sweep", *few)
    refused = codeneedle("sweep", *few, "--no-fit")

    assert 2 == refused.returncode
    assert "was trimmed" in refused.stderr


def test_two_models_of_one_name_are_refused_before_a_server_starts(
    codeneedle, tmp_path, nano
):
    """
    Their records would share a folder.
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in ("a", "b"):
        (tmp_path / folder / "m.gguf").write_bytes(nano.read_bytes())
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "both.toml").write_text(
        'corpus = "tiny"\nmodels = ["a/m.gguf", "b/m.gguf"]\ntypes = ["q8_0"]\n'
    )
    refused = codeneedle("sweep", "both")

    assert 2 == refused.returncode
    assert "both write to tiny/m" in refused.stderr


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
