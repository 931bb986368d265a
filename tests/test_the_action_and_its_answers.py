"""The scripts of the action and of the workflow that answers receipts, on files."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.records.store import Store
from codeneedle.report.receipt import receipt_markdown

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "runs" / "divergence" / "golden" / "needle-nano"

SWEEP = """\
corpus = "random-bodies-mini"
contexts = [1024]
pairs = ["f16/f16", "q8_0/q8_0"]
[recall]
way = ["force"]
functions = 2
"""


def script(name, *words, folder, **variables):
    """What a script ends with, as a runner calls it in *folder*."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ("/usr/bin/env", "bash", ROOT / "scripts" / name, *words),
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_receipt_in_an_issue_is_answered_with_its_row(tmp_path):
    body = f"### Receipt\n\nBy ada.\n\n{receipt_markdown(Store(GOLDEN).read_run())}"
    (tmp_path / "issue.md").write_text(body, encoding="utf-8")

    done = script("answer_row.sh", "issue.md", folder=tmp_path)

    assert 0 == done.returncode, done.stderr
    assert "### needle-nano (3319a9a0): 1 row" in done.stdout
    assert "| q4\\_0/f16 | 1 | open |" in done.stdout
    assert "By ada." in done.stdout


@pytest.mark.parametrize(
    "body",
    ["_No response_", "~~~text\n$(touch x) `touch x` codeneedle receipt 3: x"],
    ids=["none", "commands"],
)
def test_what_is_no_receipt_is_answered_with_what_is_wrong(tmp_path, body, golden):
    (tmp_path / "issue.md").write_text(body, encoding="utf-8")

    done = script("answer_row.sh", "issue.md", folder=tmp_path)

    assert 2 == done.returncode
    assert golden == done.stdout
    assert 2 == done.stdout.count("~~~")
    assert ["issue.md"] == [each.name for each in tmp_path.iterdir()]


def test_an_answer_fits_into_a_comment(tmp_path):
    run = Store(GOLDEN).read_run()
    machine = "x" * 1500 + run.setup.machine
    setups = [replace(run.setup, seed=at, machine=machine) for at in range(30)]
    body = "".join(receipt_markdown(replace(run, setup=setup)) for setup in setups)
    (tmp_path / "issue.md").write_text(body, encoding="utf-8")

    done = script("answer_row.sh", "issue.md", folder=tmp_path)

    assert 0 == done.returncode, done.stderr
    assert 60_000 < len(done.stdout) < 65_536


@pytest.mark.real
def test_the_action_sweeps_and_its_exit_code_is_that_of_the_check(
    tmp_path, llama_server, nano
):
    (tmp_path / "mine.toml").write_text(SWEEP, encoding="utf-8")
    files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    asked = {**files, "SWEEP": "./mine.toml", "SERVER": str(llama_server)}

    open_ = script("sweep_and_check.sh", folder=tmp_path, CHECK="q4_0/q4_0", **asked)
    within = script(
        "sweep_and_check.sh", folder=tmp_path, CHECK="f16/f16", MAX_LOSS="50%", **asked
    )
    refused = script(
        "sweep_and_check.sh", folder=tmp_path, CHECK="f16", **{**asked, "SWEEP": "no"}
    )

    assert (4, 0, 2) == (open_.returncode, within.returncode, refused.returncode)
    assert "outcome=open\n" in (tmp_path / "output").read_text(encoding="utf-8")
    assert "q8\\_0/q8\\_0" in (tmp_path / "summary").read_text(encoding="utf-8")
