"""Recall and ordinary text are asked where no probe is named, if both can be."""

import pytest
from fake_engine import FakeEngine
from made_plans import made_world, planned

from codeneedle.engines.engine import Ability
from codeneedle.errors import CodeneedleError
from codeneedle.probes.divergence.probe import DivergenceSettings
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.request import Request, named_and_implied_probes, read_sweep

BOTH = ["divergence", "recall"]


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    made_world(tmp_path, monkeypatch)


def asked(**changes):
    """Names of what a plan asks, and what it says of ordinary text."""
    plan = planned(**{"probes": (), **changes})
    said = [note for note in notes_of_plan(plan) if "ordinary text" in note]
    return [probe.name for probe in plan.probes], said


@pytest.mark.parametrize("decide", [False, True])
def test_both_are_asked_and_the_quicker_one_first(decide):
    assert (BOTH, []) == asked(decide=decide)


def test_a_named_probe_is_asked_alone():
    assert (["recall"], []) == asked(probes=("recall",))
    assert (["divergence"], []) == asked(probes=("divergence",), decide=True)


def test_an_engine_that_scores_no_text_is_asked_recall_and_says_so(golden):
    engine = FakeEngine(abilities=frozenset({Ability.SPEED}))
    names, (note,) = asked(engine=engine)

    assert ["recall"] == names
    assert golden == note


def test_the_built_in_model_is_no_language_model():
    assert (["recall"], []) == asked(models=())


def test_a_setting_of_the_text_asks_for_it():
    """Where it cannot be read, that is an error and no silent half."""
    chosen = DivergenceSettings(contexts=(256,), chunks=(4,))
    engine = FakeEngine(abilities=frozenset({Ability.SPEED}))

    assert (BOTH, []) == asked(models=(), divergence=chosen)
    with pytest.raises(CodeneedleError):
        asked(engine=engine, divergence=chosen)


def test_a_run_folder_keeps_what_was_asked():
    """So that a later release, or another machine, goes on with the same."""
    assert tuple(BOTH) == planned(probes=()).kept.probes


def test_a_sweep_that_decides_measures_losses_first():
    named = Request(probes=("throughput", "recall", "divergence"), decide=True)

    ordered = named_and_implied_probes(named, is_named=True)

    assert ("recall", "divergence", "throughput") == ordered
    assert () == named_and_implied_probes(Request(decide=True), is_named=False)


@pytest.mark.parametrize("name", ["gradient", "row"])
def test_sweeps_that_are_compared_ask_both(name):
    assert {*BOTH} <= {*read_sweep(name).probes}
