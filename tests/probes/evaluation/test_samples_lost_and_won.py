"""Metrics of evaluations: scores, lost and won; how many samples it takes."""

from dataclasses import replace

from made_evaluations import evaluated, failing, made_evaluation, with_scores
from made_records import made_setup

from codeneedle.cache_types import Pair
from codeneedle.probes.evaluation.metrics import METRICS
from codeneedle.probes.evaluation.record import Sample
from codeneedle.probes.frames import cells_frame
from codeneedle.records.record import Run
from codeneedle.report.shown import legend, shown_cells

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


def test_a_sample_without_a_score_is_no_zero(golden):
    record = failing(evaluated("q8_0/q8_0", [1.0] * 20), [3], "no reply")
    setup = with_scores(SETUP, [1.0] * 20)
    most = failing(record, range(3), "no reply")

    assert [1.0] * 19 == SCORE.values(record, setup)
    assert [0] * 19 == LOST.values(record, setup)
    assert [] == SCORE.values(most, setup)
    (cell,) = (
        each
        for each in cells_frame(Run(name="r", setup=setup, records=(record,)), SCORE)
        if each.pair == record.pair
    )
    entries = legend(shown_cells(SCORE, [cell], setup=setup))
    assert golden == [text for name, text in entries if name == "left out"]


def test_units_are_groups_and_samples_with_all_of_their_tries():
    samples = (
        Sample(id="a", score=1.0, group="g"),
        Sample(id="b", score=0.0, group="g"),
        Sample(id="c", score=1.0, seed=1),
        Sample(id="c", score=0.5, seed=2),
    )
    record = replace(evaluated("q8_0/q8_0", []), observation=made_evaluation(samples))

    assert {"g": 0.5, "c": 0.75} == SCORE.loss_values_by_unit(record, SETUP)


def test_the_cell_that_others_are_compared_with_has_lost_and_won_nothing():
    record = evaluated("f16/f16", [1, 0, 1])

    assert Pair("f16", "f16") == record.pair
    assert [0, 0, 0] == LOST.values(record, with_scores(SETUP, [1, 0, 1]))
