"""Metrics of evaluations: scores, lost and won; how many samples it takes."""

from dataclasses import replace

from made_evaluations import evaluated, made_evaluation, with_scores
from made_records import made_setup

from codeneedle.grid import Pair
from codeneedle.probes.evaluation.metrics import METRICS
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


def test_the_cell_that_others_are_compared_with_has_lost_and_won_nothing():
    record = evaluated("f16/f16", [1, 0, 1])

    assert Pair("f16", "f16") == record.pair
    assert [0, 0, 0] == LOST.values(record, with_scores(SETUP, [1, 0, 1]))
