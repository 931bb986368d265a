"""Tools that die, hang or print garbage: a cell without numbers, and a reason."""

import random
import signal

import pytest
from injections import put_corpus
from programs import server, tools
from started_sweeps import RUN, impatient, problem, record, struck

PROBES = {"perplexity": "divergence", "bench": "throughput"}
FAULTS = {
    ("perplexity", "signal=9"): ("out-of-memory", "SIGKILL"),
    ("perplexity", "half"): ("crashed", "without complete statistics"),
    ("perplexity", "error"): ("crashed", "failed to decode"),
    ("perplexity", "long"): ("finished", ""),
    ("bench", "signal=9"): ("out-of-memory", "SIGKILL"),
    ("bench", "half"): ("crashed", "1 result lines instead of 2"),
    ("bench", "escapes"): ("mismatched", "K is "),
    ("bench", "long"): ("finished", ""),
    ("bench", "deaf"): ("timed-out", "not done after"),
    ("perplexity", "deaf"): ("timed-out", "has written nothing"),
    ("perplexity", "die=3"): ("crashed", "exit code 3"),
    ("perplexity", "signal=15"): ("crashed", "SIGTERM"),
    ("perplexity", "garbage"): ("crashed", "without complete statistics"),
    ("perplexity", "silent"): ("crashed", "without complete statistics"),
    ("bench", "die=3"): ("crashed", "exit code 3"),
    ("bench", "signal=15"): ("crashed", "SIGTERM"),
    ("bench", "torn"): ("crashed", "cannot be read"),
    ("bench", "garbage"): ("crashed", "gave no result"),
    ("bench", "silent"): ("crashed", "0 result lines"),
    ("bench", "error"): ("crashed", "failed to create context"),
}
"""What a tool does, the status of its cell, and words of the reason."""

WORDS = {
    "signal=9": "is killed",
    "signal=15": "gets SIGTERM from outside",
    "half": "prints half of its results",
    "torn": "ends in the middle of a line",
    "error": "fails, and exits with 0",
    "escapes": "prints terminal escapes",
    "long": "prints 100 MB",
    "deaf": "hangs, and ignores signals",
    "die=3": "exits with an error",
    "garbage": "prints garbage",
    "silent": "prints nothing",
}

SWEEP = (
    *("sweep", "--corpus", "tiny", "--context", "4096", "--probe"),
    *("divergence,throughput", "--divergence-context", "512", "--chunks", "4"),
    *("--depths", "0", "--repetitions", "1", "--v-types", "f16"),
)
TYPES = ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "f32")


@pytest.fixture(autouse=True)
def _tiny(folder, nano):
    """A corpus of four chunks, and weights."""
    put_corpus(folder.path, functions=5)


def test_each_fault_of_a_tool_costs_its_own_cell_alone(folder, ledger, times):
    """
    A status and one line say why; nothing half is a result; what had finished stays,
    and another try, asked for, finishes the others.
    """
    path = folder.path
    tools(path, {name: {} for name in PROBES})
    command = (*SWEEP, "--llama-server", server(path, {}), "--k-types")
    first = impatient(path, *command, "f16")
    assert 0 == first.returncode, first.stderr
    left = [*FAULTS][: times(len(FAULTS), quick=8)]
    while left:
        folder.look()
        cells = _cells(left)
        left = [fault for fault in left if fault not in cells]
        _play(folder, ledger, cells, (*command, ",".join(TYPES)))
        for name, fault in cells:
            (_file(path, cells[name, fault], PROBES[name])).unlink()
        folder.finished.clear()


def _cells(left):
    """A cell for each of as many faults as there are types."""
    cells = {}
    for name in PROBES:
        # A type with llama.cpp's f32 is slow nowhere: nothing is computed here.
        of_tool = [fault for fault in left if fault[0] == name]
        cells |= {
            fault: f"{k}-f16" for fault, k in zip(of_tool, TYPES[1:], strict=False)
        }
    return cells


def _file(path, cell, probe):
    return path / RUN / "cells" / f"{cell}.{probe}.json"


def _play(folder, ledger, cells, command):
    path, chosen = folder.path, {name: {} for name in PROBES}
    for (name, fault), cell in cells.items():
        chosen[name][cell] = fault
    tools(path, chosen)
    told = impatient(path, *command)
    assert 1 == told.returncode, told.stderr
    assert "\x1b" not in told.stderr
    wrong = []
    for (name, fault), cell in cells.items():
        status, words = FAULTS[name, fault]
        stored = record(path, cell, PROBES[name])
        is_result = stored.get("observation") is not None
        is_told = status == stored["status"] and words in stored["reason"]
        if not is_told or is_result != (status == "finished"):
            wrong.append((name, fault, problem(stored)))
        ledger.note(f"llama-{name} {WORDS[fault]}", problem(stored), of=folder)
    assert [] == wrong
    tools(path, {name: {} for name in PROBES})
    folder.look()
    retried = impatient(path, *command, "--retry-failed")
    assert 0 == retried.returncode, retried.stderr
    assert 0 == folder.aftermath().cells_lost


@pytest.mark.real
@pytest.mark.parametrize("name", PROBES)
def test_a_real_tool_that_is_killed_or_frozen_leaves_nothing_half(
    name, folder, ledger, times, llama_server
):
    """
    At any moment: its cell has a reason or has finished, and the next start goes on.
    """
    command = (
        *("sweep", "--corpus", "tiny", "--context", "4096", "--types", "q8_0"),
        *("--probe", PROBES[name], "--divergence-context", "1024", "--chunks", "2"),
        *("--depths", "1024", "--repetitions", "2"),
    )
    delays = random.Random(name)  # noqa: S311 - no secret
    for at in range(times(8, quick=1)):
        number = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)[at % 3]
        told = struck(
            folder.path, command, f"llama-{name}", number, delays.random() / 2
        )
        stored = record(folder.path, "q8_0-q8_0", PROBES[name])

        assert told.returncode == int(stored["status"] != "finished"), told.stdout
        if stored["status"] != "finished":
            assert stored.get("observation") is None
            assert stored["reason"]
        folder.look()
        fault = f"the real llama-{name} gets {number.name}"
        ledger.note(fault, problem(stored), of=folder)
        again = impatient(
            folder.path, *command, "--retry-failed", silence_s=60, load_s=60
        )
        assert 0 == again.returncode, again.stderr
        _file(folder.path, "q8_0-q8_0", PROBES[name]).unlink()
        folder.finished.clear()
