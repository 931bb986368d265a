"""The benchmarks: arithmetic, what is compared with what, and that nothing is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import made_needle

from codeneedle.cache_types import Pair
from codeneedle.system.machine import Load

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.append(str(SCRIPTS))
import bench  # noqa: E402 - found in the folder just added
import published_protocol  # noqa: E402


def run(*arguments: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """The program, started without a terminal."""
    env = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "bench.py"), *arguments],
        env={name: value for name, value in env.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def turn(matched=(20, 20)):
    """One repetition: published 90 s, the command 15 s, the cell 10 s."""
    return bench.Turn(
        command_s=15.0,
        cell_s=10.0,
        overhead_s=0.5,
        matched=matched,
        published=published_protocol.PublishedCell(
            wall_s=90.0, tokens=3000, prompt_tokens=9100, matched=(20, 20)
        ),
    )


# --- arithmetic and tables


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([4.0, 1.0, 3.0], "3.0 (1.0 to 4.0)"),
        ([1234.5], "1,234.5"),
        ([2.0, 2.0], "2.0"),
        ([], "-"),
    ],
)
def test_a_spread_is_median_least_and_most(numbers, expected):
    assert expected == bench.spread(numbers)


def test_a_cell_stands_beside_the_published_one(golden):
    told = bench.cells_section({"q8_0/q8_0": [turn()]}, [0.1, 0.2, 0.3], where="here")
    other = bench.cells_section({"q8_0/q8_0": [turn((20, 19))]}, [], where="here")

    assert (("q8_0/q8_0", "90.0", "15.0", "10.0", "9.0", "0.50"),) == told.rows
    assert golden == [*told.notes[2:], other.notes[-1]]


def test_a_busy_machine_is_told_and_a_quiet_one_is_not(golden):
    assert golden == bench.busy_line(Load(1.1, cores=2))
    assert not bench.busy_line(Load(0.9, cores=2))


# --- the published protocol


def test_the_published_server_has_types_attention_and_context_and_nothing_else(nano):
    """Threads, slots and prompt cache are llama-server's own."""
    questions = published_protocol.Questions(text="", needles=(), context=4096)
    argv = published_protocol.command(
        Pair("q8_0", "q4_0"), questions, server=Path("/x"), weights=nano, port=1
    )

    assert [
        *("--model", "--host", "--port", "--ctx-size", "--flash-attn"),
        *("--cache-type-k", "--cache-type-v"),
    ] == [word for word in argv if word.startswith("--")]
    assert ["q8_0", "--cache-type-v", "q4_0"] == argv[-3:]


def test_the_published_question_is_a_greedy_chat_that_nothing_ends_early():
    needle = made_needle()
    questions = published_protocol.Questions(
        text="the corpus", needles=(needle,), context=4096
    )
    body = published_protocol.request_body(questions, needle)

    assert {"messages", "chat_template_kwargs", "max_tokens", "temperature"} == set(
        body
    )
    assert (1500, 0) == (body["max_tokens"], body["temperature"])
    assert body["messages"][0]["content"].startswith("the corpus\n---\n")


# --- the program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("sells", 2, ", ".join(bench.SECTIONS)),
        ("--pairs q8_0", 2, "--pairs"),
        ("--calls 0", 2, "a number from 1"),
        ("cells", 3, "codeneedle llama"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(tmp_path, words, code, said):
    told = run(
        *words.split(), CODENEEDLE_CACHE=str(tmp_path), PATH="", LLAMA_SERVER=None
    )

    assert code == told.returncode
    assert said in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.slow
def test_reports_of_made_records_are_timed_and_nothing_is_left(tmp_path):
    scratch, cache = tmp_path / "tmp", tmp_path / "cache"
    for folder in (scratch, cache):
        folder.mkdir()
    told = run(
        *("start-up", "records", "--calls", "1", "--repetitions", "1"),
        *("--records", "4"),
        CODENEEDLE_CACHE=str(cache),
        TMPDIR=str(scratch),
    )

    assert 0 == told.returncode, told.stderr
    for command in ("--help", "--version", "grid", "table", "table --csv", "heatmap"):
        assert f"\n {command}  " in told.stdout
    assert [] == list(cache.iterdir())
    assert [] == list(scratch.iterdir())


@pytest.mark.real
def test_both_sides_recall_the_same(llama_server, nano, tmp_path, golden):
    kept = tmp_path / "bench.json"
    told = run(
        *("cells", "--pairs", "q8_0/q8_0", "--repetitions", "1"),
        *("--functions", "2", "--reply-tokens", "600", "--json", str(kept)),
        LLAMA_SERVER=str(llama_server),
        OMP_WAIT_POLICY="passive",  # threads of the published server do not spin
    )

    assert 0 == told.returncode, told.stderr
    [compared] = [x for x in told.stdout.splitlines() if "same answers" in x]
    assert golden == compared
    (turn,) = json.loads(kept.read_text())["sections"]["cells"]["turns"]["q8_0/q8_0"]
    assert 1200 == turn["published"]["tokens"]
    assert 1200 < turn["published"]["prompt_tokens"] < 1400  # the corpus once
