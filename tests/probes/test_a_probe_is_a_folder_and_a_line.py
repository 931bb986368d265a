"""A probe of a new kind: nothing else of the program has to know it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from calls import VARIABLES

import codeneedle

TOY = Path(__file__).parents[1] / "helpers" / "toy_probe.py"
CHEAP = ("--k-types", "f16", "--v-types", "f16,q4_0", "--context", "512")


def with_toy(folder: Path) -> Path:
    """A copy of the program with one folder and one line more."""
    program = folder / "program" / "codeneedle"
    shutil.copytree(Path(codeneedle.__file__).parent, program)
    probes = program / "probes"
    (probes / "toy").mkdir()
    (probes / "toy" / "__init__.py").touch()
    shutil.copy(TOY, probes / "toy" / "probe.py")
    listed = probes / "__init__.py"
    text = listed.read_text(encoding="utf-8")
    imported = "from codeneedle.probes.toy.probe import PROBE as TOY\n"
    place = "from codeneedle.records.record import"
    text = text.replace(place, f"{imported}{place}", 1)
    listed.write_text(text.replace("    RECALL,\n", "    TOY,\n    RECALL,\n", 1))
    return program.parent


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Runs the program that has the probe, in one folder; what it printed."""
    folder = tmp_path_factory.mktemp("toy")
    program = with_toy(folder)

    def run(*arguments):
        ended = subprocess.run(
            [sys.executable, "-m", "codeneedle", *arguments],
            cwd=folder,
            env={**os.environ, **VARIABLES, "PYTHONPATH": str(program)},
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout, ended.stderr

    return run


def test_its_name_purpose_and_option_are_in_the_help(toy):
    _, told, _ = toy("sweep", "--help")

    assert "--people" in told
    assert "toy (ages" in " ".join(told.split())


@pytest.mark.real
def test_it_is_planned_measured_resumed_judged_and_shown(toy, golden):
    asked = ("--probe", "toy", "--people", "4", *CHEAP)
    _, told, _ = toy("plan", *asked, "--json")
    assert ["toy", 2] == [
        json.loads(told)[0]["probes"][0][k] for k in ("name", "cells")
    ]

    first, again = toy("sweep", "--no-wait", *asked), toy("sweep", "--no-wait", *asked)
    assert "0 of 2" not in first[1]
    assert first[0] == again[0]

    _, told, _ = toy("table", "--json")
    rows = [row for row in json.loads(told)[0]["rows"] if row["metric"] == "toy-logp"]
    assert {"f16/f16", "f16/q4_0"} == {row["pair"] for row in rows}
    assert all(row["n"] == 4 and row["value"] < 0 for row in rows)

    _, told, _ = toy("verdict")
    (line,) = (each for each in told.splitlines() if "people like" in each)
    assert golden == line

    _, told, _ = toy("show", "f16/q4_0", "Ann")
    assert "token" in told
    assert "31" in told
