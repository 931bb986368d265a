"""Tools that die, hang or print garbage, and real programs that are killed."""

import json
import random
import signal

import pytest
from injections import BRIEF, SHORT, put_corpus
from programs import script, server, tools
from started_sweeps import RUN, impatient, problem, record, struck

from codeneedle.engines.llama_cpp import perplexity as perplexity_module

PROBES = {"perplexity": "divergence", "bench": "throughput"}
FAULTS = {
    ("perplexity", "is killed"): ("signal=9", "crashed", "SIGKILL"),
    ("perplexity", "prints half of its results"): ("half", "finished", ""),
    ("perplexity", "fails, and exits with 0"): ("error", "crashed", "failed to decode"),
    ("perplexity", "prints 100 MB"): ("long", "finished", ""),
    ("bench", "is killed"): ("signal=9", "crashed", "SIGKILL"),
    ("bench", "prints half of its results"): ("half", "crashed", "1 result lines"),
    ("bench", "prints terminal escapes"): ("escapes", "mismatched", "K is "),
    ("bench", "prints 100 MB"): ("long", "finished", ""),
    ("bench", "hangs, and ignores signals"): ("deaf", "timed-out", "not done after"),
    ("perplexity", "hangs, and ignores signals"): ("deaf", "timed-out", "nothing"),
    ("perplexity", "exits with an error"): ("die=3", "crashed", "exit code 3"),
    ("perplexity", "gets SIGTERM from outside"): ("signal=15", "crashed", "SIGTERM"),
    ("perplexity", "prints garbage"): ("garbage", "crashed", "log-probabilities"),
    ("perplexity", "prints nothing"): ("silent", "crashed", "log-probabilities"),
    ("bench", "exits with an error"): ("die=3", "crashed", "exit code 3"),
    ("bench", "gets SIGTERM from outside"): ("signal=15", "crashed", "SIGTERM"),
    ("bench", "ends in the middle of a line"): ("torn", "crashed", "cannot be read"),
    ("bench", "prints garbage"): ("garbage", "crashed", "gave no result"),
    ("bench", "prints nothing"): ("silent", "crashed", "0 result lines"),
    ("perplexity", "loses the end of its log"): ("cut=9999", "finished", ""),
    ("bench", "fails, and exits with 0"): ("error", "crashed", "create context"),
}
"""What a tool does, as its stand-in knows it; the status of its cell, and words."""

SWEEP = (
    *("sweep", "--corpus", "tiny", "--context", "4096", "--probe"),
    *("divergence,throughput", "--divergence-context", "512", "--chunks", "4"),
    *("--depths", "0", "--repetitions", "1", "--v-types", "f16"),
)
NUMBERS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM)
TYPES = ("f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "f32")


@pytest.fixture(autouse=True)
def _tiny(folder, nano):
    put_corpus(folder.path, functions=5)


def test_each_fault_of_a_tool_costs_its_own_cell_alone(folder, ledger, times):
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
        used = [each for each in TYPES if f"{each}-f16" in {*cells.values()}]
        _play(folder, ledger, cells, (*command, ",".join(["f16", *used])))
        for (name, _), cell in cells.items():
            (path / RUN / "cells" / f"{cell}.{PROBES[name]}.json").unlink()
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


def _play(folder, ledger, cells, command):
    path, chosen = folder.path, {name: {} for name in PROBES}
    for (name, fault), cell in cells.items():
        chosen[name][cell] = FAULTS[name, fault][0]
    tools(path, chosen)
    told = impatient(path, *command)
    assert 1 == told.returncode, told.stderr
    assert "\x1b" not in told.stderr
    wrong = []
    for (name, fault), cell in cells.items():
        _, status, words = FAULTS[name, fault]
        stored = record(path, cell, PROBES[name])
        is_result = stored.get("observation") is not None
        is_told = status == stored["status"] and words in stored["reason"]
        if not is_told or is_result != (status == "finished"):
            wrong.append((name, fault, problem(stored)))
        ledger.note(f"llama-{name} {fault}", problem(stored), of=folder)
    assert [] == wrong
    tools(path, {name: {} for name in PROBES})
    folder.look()
    retried = impatient(path, *command, "--retry-failed")
    assert 0 == retried.returncode, retried.stderr
    assert 0 == folder.aftermath().cells_lost


ROWS = {
    "dies in the middle of its rows": ("dies", "SIGKILL"),
    "hangs in the middle of its rows": ("hangs", "has written nothing"),
    "ends its rows early": ("short", "complete log-probabilities"),
    "writes another model's rows": ("foreign", "its header is that of another file"),
    "reads another text": ("other-text", "of its text is 7"),
    "writes noise for rows": ("noise", "is none"),
    "writes more than its rows": ("long", "it has more than"),
    "writes no rows": ("none", "complete log-probabilities"),
}
"""What becomes of the rows of llama-perplexity while they are read; words of it."""

READING = (
    *("sweep", "--corpus", "tiny", "--context", "4096"),
    *("--way", "read", "--pairs"),
)


@pytest.mark.real
def test_rows_that_end_or_are_others_while_they_are_read_cost_their_cell_alone(
    folder, ledger, times, llama_server
):
    path, perplexity = folder.path, llama_server.with_name("llama-perplexity")
    put_corpus(path, functions=3, of=BRIEF)
    script(path / "bin" / "llama-server", f'exec "{llama_server}" "$@"')
    pairs = ("f16-f16", *(f"{each}-f16" for each in TYPES[1:8]), "q8_0-q8_0")
    chosen = [*ROWS.items()][: times(len(ROWS), quick=3)]
    cells = dict(zip(pairs[1:], chosen, strict=False))
    whole = dict.fromkeys(pairs, f"real=whole:{perplexity}")
    faults = {at: f"real={how}:{perplexity}" for at, (_, (how, _)) in cells.items()}
    hanging = [at for at, (_, (how, _)) in cells.items() if how == "hangs"]
    others = [at for at in pairs[: 1 + len(cells)] if at not in hanging]
    tail = ("--llama-server", str(path / "bin" / "llama-server"))
    command = (*READING, ",".join([*others, *hanging]).replace("-", "/"), *tail)
    tools(path, {"perplexity": whole | faults})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perplexity_module, "RETRIES", 1)
        first = (*READING, ",".join(others).replace("-", "/"), *tail)
        assert 1 == impatient(path, *first, silence_s=600, load_s=60).returncode
        # Only what hangs is waited for with little patience.
        told = impatient(path, *command, silence_s=2.0, load_s=60.0)

    assert 1 == told.returncode, told.stderr
    assert "finished" == record(path, "f16-f16")["status"], told.stderr
    for cell, (fault, (_, words)) in cells.items():
        stored = record(path, cell)
        assert words in stored["reason"], problem(stored)
        assert not (stored.get("observation") or {}).get("answers")
        ledger.note(f"llama-perplexity {fault}", problem(stored), of=folder)
    folder.look()
    tools(path, {"perplexity": whole})
    again = impatient(path, *command, "--retry-failed", silence_s=60, load_s=60)
    assert 0 == again.returncode, again.stderr
    assert 0 == folder.aftermath().cells_lost
    assert [] == [*path.rglob("base/*.kld*")]


PROGRAMS = {
    "llama-server": (20, "--way write --k-types q8_0,q4_0 --v-types q4_0"),
    "llama-perplexity": (8, "--probe divergence --divergence-context 1024 --chunks 2"),
    "llama-bench": (8, "--probe throughput --depths 1024 --repetitions 2"),
    "llama-perplexity that is read": (8, "--way force --way read"),
    "llama-server that generates": (8, "--probe generation --generation-tokens 256"),
}
"""How often a program is struck, and what it measures."""


@pytest.mark.real
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_real_program_that_is_killed_or_frozen_leaves_nothing_half(
    name, folder, ledger, times, llama_server
):
    path, (often, measures) = folder.path, PROGRAMS[name]
    program = name.partition(" ")[0]
    if name == "llama-server":
        put_corpus(path, functions=2, of=SHORT)
    command = ("sweep", "--corpus", "tiny", "--context", "4096", "--types", "q8_0")
    command = (*command, *measures.split())
    chance = random.Random(name)  # noqa: S311 - no secret
    strikes, missed, wanted = 0, 0, times(often, quick=1)
    while strikes < wanted:
        number = NUMBERS[strikes % len(NUMBERS)]
        told = struck(path, command, program, number, chance.random() ** 2)
        folder.look()
        files = sorted(path.rglob("cells/*.json"))
        if told is None:
            missed += 1
            assert missed <= 20 * wanted, "no program was struck"
            files[-1].unlink()
            folder.finished.clear()
            folder.look()
            continue
        strikes += 1
        stored = [json.loads(file.read_bytes()) for file in files]
        failed = [each for each in stored if each["status"] != "finished"]
        saw = "".join(map(problem, failed[:1]))
        assert told.returncode == int(bool(failed)), told.stdout
        assert all(each["reason"] for each in failed)
        # A tool gives all of its numbers or none; a server one answer after the other.
        assert program == "llama-server" or not any(
            e.get("observation") for e in failed
        )
        ledger.note(f"the real {name} gets {number.name}", saw, of=folder)
        again = impatient(path, *command, "--retry-failed", silence_s=60, load_s=60)
        assert 0 == again.returncode, again.stderr
        files[-1].unlink()
        folder.finished.clear()
        folder.look()
