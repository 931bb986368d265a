"""``codeneedle verdict A B C``: which weights with which cache."""

import json
from dataclasses import replace

import pytest
from made_records import stored_run
from made_weights import three_runs

ALL = [run.name for run in three_runs()]


@pytest.fixture(name="runs")
def runs_fixture(tmp_path):
    for run in three_runs():
        stored_run(tmp_path / "sweeps", run)
    return tmp_path / "sweeps"


@pytest.mark.usefixtures("runs")
class TestSeveralRuns:
    def test_they_are_one_question(self, codeneedle):
        shown = codeneedle("verdict", *ALL, "--max-memory", "900MB", "--at", "8K")

        assert 0 == shown.returncode
        assert "Set: -m made-q6_k -ctk f16 -ctv f16" in shown.stdout

    def test_json_is_one_object(self, codeneedle):
        shown = codeneedle("verdict", *ALL, "--max-memory", "900MB", "--json")

        found = json.loads(shown.stdout)
        assert ("set", "Q6_K f16/f16") == (found["outcome"], found["set"])
        assert 3 == len(found["weights"])

    @pytest.mark.parametrize("option", [("--check", "q8_0/q8_0"), ("--form", "env")])
    def test_what_is_about_one_run_is_refused(self, codeneedle, option):
        refused = codeneedle("verdict", *ALL, *option)

        assert 2 == refused.returncode
        assert "about one run" in refused.stderr

    def test_the_same_run_twice_is_that_run(self, codeneedle):
        shown = codeneedle("verdict", ALL[0], ALL[0])

        assert 2 == shown.returncode
        assert "alone" in shown.stderr


def test_runs_of_two_tokenizers_are_refused_with_a_way_on(codeneedle, tmp_path):
    first, other, _ = three_runs()
    model = replace(other.setup.model, tokenizer="other")
    other = replace(other, setup=replace(other.setup, model=model))
    for run in (first, other):
        stored_run(tmp_path / "sweeps", run)

    refused = codeneedle("verdict", first.name, other.name)

    assert 2 == refused.returncode
    assert "another tokenizer" in refused.stderr
    assert "codeneedle compare" in refused.stderr
