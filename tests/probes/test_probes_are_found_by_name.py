"""Probes by name, and the settings that each one has."""

import pytest
from made_contexts import run_context

from codeneedle.probes import PROBES, checked_probes_by_name, probes_named
from codeneedle.probes.divergence.probe import DivergenceSettings
from codeneedle.probes.probe import NoSettings, Probe
from codeneedle.probes.throughput.probe import ThroughputSettings


def test_settings_that_were_not_chosen_are_the_defaults(tmp_path):
    chosen = ThroughputSettings(depths=(0,))
    settings = {"throughput": chosen, "divergence": chosen}
    run = run_context(tmp_path, settings=settings)

    assert chosen == run.chosen_or_default_settings(ThroughputSettings, "throughput")
    assert NoSettings() == run.chosen_or_default_settings(NoSettings, "recall")
    with pytest.raises(TypeError, match="ThroughputSettings"):
        run.chosen_or_default_settings(DivergenceSettings, "divergence")


def test_every_setting_has_a_default_and_an_option():
    for probe in PROBES.values():
        assert probe.settings()
        for name, described in probe.settings.__annotations__.items():
            (meta,) = described.__metadata__
            assert meta.extra["option"].startswith("--"), name
            assert meta.description


def test_probes_whose_answers_may_vary_measure_their_reference_once_more():
    assert {"recall", "retrieval", "transcript", "generation", "eval"} == {
        name for name, probe in PROBES.items() if probe.repeats
    }


def test_probes_are_found_by_name_once_each():
    found = probes_named(("throughput", "recall", "throughput"))

    assert ["throughput", "recall"] == [probe.name for probe in found]


@pytest.mark.parametrize(
    "name",
    ["first-token", "first_token", "First", ""],
    ids=["hyphen", "underscore", "capital", "empty"],
)
def test_the_name_of_a_probe_is_one_word(name, golden):
    """Others would not be found in the names of files that hold its cells."""
    with pytest.raises(ValueError, match="one word") as caught:
        checked_probes_by_name(Probe(name=name, purpose="", metrics=()))
    assert golden == str(caught.value)


def test_no_two_probes_have_one_name(golden):
    with pytest.raises(ValueError, match="that name") as caught:
        checked_probes_by_name(PROBES["recall"], PROBES["recall"])
    assert golden == str(caught.value)
