"""The committed JSON schemas: those of the types, and real outputs hold to them."""

import json
import sys
from pathlib import Path

import pytest
from json_schemas import broken
from made_stores import hugging_face
from typer.testing import CliRunner

from codeneedle.cli.app import app

sys.path.append(str(Path(__file__).parents[1] / "scripts"))

import schemas
from golden import read

RUNS = Path(__file__).parent / "golden" / "runs"
NAMES = sorted(path.name for path in RUNS.iterdir())


def committed(name):
    return json.loads((schemas.FOLDER / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", schemas.TYPES)
def test_the_committed_schema_is_that_of_the_type(name):
    """After a change of the types: python scripts/schemas.py."""
    written = (schemas.FOLDER / f"{name}.json").read_text("utf-8")

    assert schemas.schema(name) == written


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, name) for command in ("verdict", "table") for name in NAMES),
        ("grid", "recall"),
        ("memory", "divergence"),
        ("panels", "retrieval"),
        ("table --metric tg", "divergence"),
    ],
)
def test_what_is_printed_holds_to_its_schema(command, name):
    run = str(RUNS / name / "golden" / "needle-nano")
    word, *options = command.split()
    printed = CliRunner().invoke(app, [word, run, *options, "--json"])

    kind = "verdict" if command == "verdict" else "table"
    assert [] == list(broken(json.loads(printed.stdout), committed(kind)))


@pytest.mark.parametrize("name", NAMES)
def test_stored_records_hold_to_their_schema(name):
    paths = sorted((RUNS / name / "golden" / "needle-nano" / "cells").rglob("*.json"))

    assert paths
    for path in paths:
        assert [] == list(broken(read(path), committed("record")))


def test_models_of_stores_hold_to_their_schema(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hugging_face(tmp_path, "org/repo", "m-Q4_0.gguf", "m-Q8_0.gguf")
    printed = CliRunner().invoke(app, ["weights", "--json"])
    rows = json.loads(printed.stdout)

    assert [] == list(broken(rows, committed("weights")))
    assert {"org/repo:Q4_0", "org/repo:Q8_0"} <= {row["name"] for row in rows}


def test_a_schema_tells_what_is_wrong():
    whole = committed("table")
    row = dict.fromkeys(whole["$defs"]["TableRow"]["required"], "")

    told = list(broken([{"run": "", "setup": {}, "metrics": [], "rows": [row]}], whole))

    assert any("rows[0].value" in each for each in told)
    assert any("lacks run" in each for each in broken([{}], whole))
