"""Evaluations that fail, hang, lie, and end the server."""

import json
import sys
from pathlib import Path

from programs import script

HELPER = Path(__file__).parents[1] / "helpers" / "evaluation.py"
COMMAND = f"{sys.executable} {HELPER} ${{base_url}} ${{model}} ${{out}}"
CELLS = Path("sweeps/evaluation/needle-nano/cells")
FAULTS = {
    "fails": ("crashed", "ended with exit code 3: Traceback: no such task"),
    "ends the server": ("crashed", "SIGKILL"),
    "nothing": ("crashed", "it wrote no results.jsonl or"),
    "too much": ("crashed", "has written more than 512.0 MiB"),
    "other ids": ("mismatched", "'other-s0' is not one of f16/f16"),
    "half a line": ("crashed", "line 12: "),
    "beyond 1": ("crashed", "is 1.5, not from 0 to 1"),
    "missing": ("crashed", "2 of 12 samples have no score: missing"),
    "is killed": ("crashed", "ended with SIGKILL"),
    "hangs": ("timed-out", "is not done after"),
    "no number": ("crashed", "12 of 12 samples have no score: its score is NaN"),
    "twice": ("crashed", "two results of 's0'"),
    "errors": ("crashed", "12 of 12 samples have no score: no reply"),
    "a score of 400 digits": ("crashed", "results.jsonl, line 1: "),
}
"""What an evaluation does; the status of its cell, and words of the reason."""

TYPES = ("f16", "q8_0", "q5_1", "q4_0")


def test_each_fault_of_an_evaluation_costs_its_own_cell_alone(
    folder, ledger, times, codeneedle
):
    path = folder.path
    types = TYPES[: times(4, quick=3)]
    pairs = [f"{k}-{v}" for k in types for v in types][1:]
    faults = dict(zip(pairs, FAULTS, strict=False))
    command = (
        *("sweep", "--eval", COMMAND, "--eval-env", "FAULTS", "--eval-timeout", "8s"),
        *("--types", ",".join(types), "--context", "512"),
    )
    said = ",".join(f"{cell}:{fault}" for cell, fault in faults.items())

    done = codeneedle(*command, FAULTS=said)

    assert 1 == done.returncode, done.stderr
    for cell, fault in faults.items():
        stored = json.loads((path / CELLS / f"{cell}.eval.json").read_text())
        status, words = FAULTS[fault]
        assert (fault, status) == (fault, stored["status"]), stored["reason"]
        assert words in stored["reason"]
        if status in {"crashed", "timed-out"} and "no score" not in words:
            assert stored["log_excerpt"]
        ledger.note(fault, stored["reason"], of=folder)
    folder.look()
    mended = codeneedle(*command, "--retry-failed", FAULTS="")
    assert 0 == mended.returncode, mended.stderr
    ledger.note("is mended, and tried again", of=folder)


def test_a_program_that_is_missing_is_a_refusal_or_a_gap(
    folder, ledger, codeneedle, golden
):
    path = folder.path
    missing = codeneedle("sweep", "--eval", "no-such-evaluation")
    assert 3 == missing.returncode
    assert golden == missing.stderr.partition("error: ")[2]
    assert not (path / "sweeps").exists()
    ledger.note("is not there", missing.stderr.splitlines()[-2], of=folder)

    program = script(
        path / "once", f'{sys.executable} {HELPER} "$1" "$2" "$3" && rm {path}/once'
    )
    command = f"{program} ${{base_url}} ${{model}} ${{out}}"
    gone = codeneedle(
        "sweep", "--eval", command, "--types", "f16,q8_0", "--context", "512"
    )

    assert 1 == gone.returncode
    files = sorted((path / "sweeps" / "once").glob("*/cells/*.json"))
    stored = [json.loads(file.read_text()) for file in files]
    assert ["finished", *["crashed"] * 3] == [each["status"] for each in stored]
    assert "could not run" in stored[1]["reason"]
    ledger.note("goes meanwhile", stored[1]["reason"], of=folder)
