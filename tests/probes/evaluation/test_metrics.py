"""Metrics of evaluations: scores, lost and won; how many samples it takes."""

from dataclasses import replace

import pytest
from made_evaluations import evaluated, made_evaluation, with_scores
from made_records import made_setup

from codeneedle.grid import Pair
from codeneedle.probes.evaluation.metrics import METRICS, samples_needed
from codeneedle.probes.evaluation.record import Sample

SCORE, LOST, WON = METRICS
SETUP = made_setup()


def test_a_cell_has_a_score_and_counts_of_what_differs():
    record = evaluated("q8_0/q8_0", [1, 0, 0.5, 0])
    setup = with_scores(SETUP, [1, 1, 0, 0])

    assert [1, 0, 0.5, 0] == SCORE.values(record, setup)
    assert [0, 1, 0, 0] == LOST.values(record, setup)
    assert [0, 0, 1, 0] == WON.values(record, setup)
    assert [] == LOST.values(record, SETUP)
    assert "f16/f16" == LOST.reference(record)


def test_units_are_groups_and_samples_with_all_of_their_tries():
    samples = (
        Sample(id="a", score=1.0, group="g"),
        Sample(id="b", score=0.0, group="g"),
        Sample(id="c", score=1.0, seed=1),
        Sample(id="c", score=0.5, seed=2),
    )
    record = replace(evaluated("q8_0/q8_0", []), observation=made_evaluation(samples))

    assert {"g": 0.5, "c": 0.75} == SCORE.by_unit(record, SETUP)


@pytest.mark.parametrize(("samples", "points"), [(240, 5.7), (1319, 2.5)])
def test_published_sizes_tell_what_they_can(samples, points):
    """Of one sample in ten that differs, at 80 % power: two sizes of test sets."""
    needed = samples_needed(0.1, share=0.025, loss=points / 100)

    assert samples == pytest.approx(needed, rel=0.06)


def test_more_pairs_take_more_samples_and_few_flips_no_fewer_than_the_loss():
    assert samples_needed(0.1, share=0.025 / 35) > samples_needed(0.1, share=0.025)
    assert samples_needed(0.0, share=0.025) == samples_needed(0.05, share=0.025)


def test_the_cell_that_others_are_compared_with_has_lost_and_won_nothing():
    record = evaluated("f16/f16", [1, 0, 1])

    assert Pair("f16", "f16") == record.pair
    assert [0, 0, 0] == LOST.values(record, with_scores(SETUP, [1, 0, 1]))
