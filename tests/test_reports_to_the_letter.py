"""Reports of stored runs, to the letter: a move of code changes none of them."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "golden.py"
sys.path.append(str(SCRIPT.parent))

spec = importlib.util.spec_from_file_location("golden", SCRIPT)
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)


@pytest.mark.parametrize("name", golden.SWEEPS)
def test_reports_of_a_golden_run_stay_as_they_are(name):
    expected = (golden.GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert expected == golden.report(name)


def test_verdicts_on_made_runs_stay_as_they_are():
    expected = (golden.GOLDEN / "verdicts.txt").read_text(encoding="utf-8")
    assert expected == golden.verdicts()


def test_refusals_stay_as_they_are():
    expected = (golden.GOLDEN / "refusals.txt").read_text(encoding="utf-8")
    assert expected == golden.refusals()
