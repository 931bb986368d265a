"""The evaluation probe: by a small program of ours, on the real llama-server."""

import json
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from injections import processes_in
from made_contexts import made_outlook

from codeneedle.cli.command_line import resolve_request
from codeneedle.engines.engine import Ability
from codeneedle.errors import CodeneedleError, ToolMissing, UnknownName
from codeneedle.probes.evaluation.probe import PROBE, EvaluationSettings
from codeneedle.sweep.request import named_and_implied_probes, parse_request_toml

HELPER = Path(__file__).parents[2] / "helpers" / "evaluation.py"
COMMAND = f"{sys.executable} {HELPER} ${{base_url}} ${{model}} ${{out}}"
RUN = Path("sweeps/evaluation/needle-nano")


def swept(codeneedle, *words, **variables):
    """A sweep of one evaluation."""
    return codeneedle("sweep", "--context", "1024", *words, **variables)


def stored(folder, cell):
    """The record of a cell."""
    return json.loads((folder / RUN / "cells" / f"{cell}.eval.json").read_text())


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="no-command"),
        pytest.param({"command": "no-such"}, id="no-program"),
        pytest.param({"command": "sh", "score": "sh ${model}"}, id="no-placeholder"),
        pytest.param({"command": "sh", "timeout": "2"}, id="no-time"),
        pytest.param({"command": "sh", "env": ("no name",)}, id="no-variable"),
    ],
)
def test_settings_are_checked_before_anything_starts(settings, golden):
    with pytest.raises(CodeneedleError) as caught:
        PROBE.adapt(EvaluationSettings(**settings), made_outlook())
    assert golden == str(caught.value)


def test_an_unknown_reader_is_refused_with_the_nearest(golden):
    with pytest.raises(UnknownName) as caught:
        PROBE.adapt(EvaluationSettings(command="sh", read="lm_eval"), made_outlook())

    assert golden == caught.value.hint


def test_a_plan_says_how_many_samples_it_takes(codeneedle, golden):
    shown = codeneedle("plan", "--eval", COMMAND, "--types", "f16,q8_0")

    assert 0 == shown.returncode, shown.stderr
    _, note, said = " ".join(shown.stdout.split()).partition("note: eval: ")
    assert note
    assert golden == said.partition(" note: ")[0]


# Cells


@pytest.mark.real
def test_an_evaluation_is_a_probe_like_others(codeneedle, tmp_path, golden):
    words = ("--eval", COMMAND, "--types", "f16,q4_0")
    done = swept(codeneedle, *words)
    assert 0 == done.returncode, done.stderr

    record = stored(tmp_path, "q4_0-q4_0")
    samples = record["observation"]["samples"]
    assert 12 == len(samples)
    assert "f16/f16" == record["observation"]["against"]
    assert {each["id"] for each in samples} == {f"s{at}" for at in range(12)}
    setup = json.loads((tmp_path / RUN / "setup.json").read_text())
    conditions = {"command": COMMAND, "score": "", "read": "auto"}
    assert conditions == setup["probes"]["eval"]
    settled = json.loads((tmp_path / RUN / "settled.json").read_text())
    assert stored(tmp_path, "f16-f16")["observation"] == settled["calibrated"]["eval"]
    assert (tmp_path / RUN / "evaluations" / "q4_0-q4_0" / "results.jsonl").is_file()
    log = (tmp_path / RUN / "logs" / "q4_0-q4_0.eval.log").read_text()
    assert f"evaluated 12 samples with {'*' * 47}\n" == log

    table = codeneedle("table", str(RUN.relative_to("sweeps")), "--json")
    (found,) = json.loads(table.stdout)
    assert {"eval", "eval-lost", "eval-won"} <= {*json.dumps(found).split('"')}
    verdict = codeneedle("verdict", "evaluation", "--max-eval-lost", "2%", "--json")
    said = json.loads(verdict.stdout)
    (row,) = said["pairs"][-1]["metrics"]
    assert ("eval", "score", 0.02, 12) == (
        row["name"],
        row["kind"],
        row["limit"],
        row["units"],
    )

    again = swept(codeneedle, *words)
    (line,) = (each for each in again.stderr.splitlines() if "done already" in each)
    assert golden == line
    assert [] == processes_in(tmp_path)


@pytest.mark.real
def test_a_grader_runs_once_the_server_has_ended_and_alone_if_it_fails(
    codeneedle, tmp_path, golden
):
    grader = tmp_path / "grade.py"
    grader.write_text("import sys; print('no compiler'); sys.exit(2)")
    words = (
        *("--eval", COMMAND, "--types", "f16"),
        *("--eval-score", f"{sys.executable} ${{here}}/grade.py ${{out}}"),
    )
    failed = swept(codeneedle, *words)
    assert 1 == failed.returncode
    reason = stored(tmp_path, "f16-f16")["reason"]
    assert golden == reason
    assert reason in failed.stderr

    out = tmp_path / RUN / "evaluations" / "f16-f16"
    (out / "mark").touch()
    grader.write_text(
        "import os, pathlib\n"
        "assert 'OPENAI_BASE_URL' not in os.environ\n"
        'pathlib.Path(\'results.jsonl\').write_text(\'{"id": "x", "score": 1}\')\n'
    )
    mended = swept(codeneedle, *words, "--retry-failed")
    assert 0 == mended.returncode, mended.stderr

    record = stored(tmp_path, "f16-f16")
    assert ["x"] == [each["id"] for each in record["observation"]["samples"]]
    assert (out / "mark").exists()
    assert record["effective"]["kv"]


@pytest.mark.parametrize(
    ("probes", "expected"),
    [({}, ("eval",)), ({"probes": ("recall",)}, ("recall", "eval"))],
)
def test_options_of_an_evaluation_ask_for_it(probes, expected):
    request, _ = resolve_request({"eval__command": "sh x", **probes})

    assert expected == request.probes
    assert "sh x" == request.eval.command


def test_a_sweep_file_has_a_table_of_it():
    request = parse_request_toml(
        '[eval]\ncommand = "sh x"\ntimeout = "30m"', source="x.toml"
    )

    assert ("eval",) == named_and_implied_probes(request, is_named=False)
    assert EvaluationSettings(command="sh x", timeout="30m") == request.eval


def test_an_engine_without_the_api_is_refused(golden):
    assert frozenset({Ability.ADDRESS}) == PROBE.needs
    with pytest.raises(ToolMissing) as caught:
        FakeEngine(abilities=frozenset()).require(Ability.ADDRESS)
    assert golden == str(caught.value)
