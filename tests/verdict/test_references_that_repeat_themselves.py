"""How far a reference may differ from itself, measured again."""

from types import SimpleNamespace

import pytest

from codeneedle.probes.metrics import Loss, LossKind
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.noise_floor import NoiseFloor, noise_floor

LIMITS = Limits(max_loss=0.02, max_lost=0.04, max_eval_lost=0.03)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        (LossKind.PROBABILITY, 0.02),
        (LossKind.NATS, 0.02),
        (LossKind.ANSWERS, 0.04),
        (LossKind.CHANGE, 0.06),
    ],
    ids=["probability", "nats", "answers", "change"],
)
def test_it_may_differ_by_the_limit_and_no_more(kind, limit, golden):
    assert LIMITS.of(kind) == pytest.approx(limit)
    assert "" == NoiseFloor(repeated=LIMITS.of(kind)).excess_phrase(kind, LIMITS)
    assert golden == NoiseFloor(repeated=limit + 0.001).excess_phrase(kind, LIMITS)


def test_scores_and_what_was_measured_once_differ_by_nothing():
    """Intervals of scores have the noise of sampling in them."""
    assert "" == NoiseFloor(repeated=0.5).excess_phrase(LossKind.SCORE, LIMITS)
    assert "" == NoiseFloor().excess_phrase(LossKind.PROBABILITY, LIMITS)


def loss_of(kind, lost_from=1.0):
    """A loss of values that lie so far below the reference's."""
    return Loss(kind=kind, lost_from=lost_from)


METRIC = SimpleNamespace(loss_values_by_unit=lambda record, _setup: record)
"""Of records that are units."""


def floor_of(kind, reference, again=(), on_cpu=()):
    return noise_floor(
        METRIC, loss_of(kind), reference, None, again=again, on_cpu=on_cpu
    )


def test_losses_are_those_of_the_units_that_both_have():
    first, second = {"a": 5.0, "b": 3.0, "c": 1.0}, {"c": 0.5, "a": 7.0, "d": 1.0}

    assert [-2.0, 0.5] == loss_of(LossKind.SCORE).unit_losses(first, second)


def test_a_mean_of_losses_and_gains_is_how_far_a_repetition_is_away():
    units = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    again = {"a": 0.5, "b": 1.25, "c": 1.5, "e": 9.0}
    floor = floor_of(LossKind.PROBABILITY, units, [again])

    assert [0.5, -0.25, -0.5] == floor.losses
    assert 0.25 / 3 == pytest.approx(floor.repeated)
    assert (None, {}) == (floor.moved, floor.on_cpu)


def test_answers_that_are_lost_and_won_both_count_as_away():
    units = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    again = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0}

    assert 0.5 == floor_of(LossKind.ANSWERS, units, [again]).repeated


def test_the_last_repetition_that_shares_units_counts():
    units = {"a": 1.0}
    found = floor_of(LossKind.PROBABILITY, units, [{"a": 0.5}, {"a": 0.75}, {"b": 0.0}])

    assert ([0.25], 0.25) == (found.losses, found.repeated)
    assert NoiseFloor() == floor_of(LossKind.PROBABILITY, units, [{"b": 0.0}])


def test_the_last_measurement_on_the_cpu_counts():
    units, on_cpu = {"a": 1.0}, [{"a": 0.5}, {"a": 0.75}]
    found = floor_of(LossKind.PROBABILITY, units, on_cpu=on_cpu)

    assert ({"a": 0.75}, 0.25, None) == (found.on_cpu, found.moved, found.repeated)
    none = floor_of(LossKind.PROBABILITY, units, on_cpu=[{"b": 1.0}])
    assert ({"b": 1.0}, None) == (none.on_cpu, none.moved)
