"""Scales that do not stretch noise."""

import math

import pytest

from codeneedle.analysis.recall import METRICS
from codeneedle.report.cells import Scale, difference_scale, value_scale

METRIC = {metric.name: metric for metric in METRICS}


def test_natural_ends_win_over_the_values() -> None:
    """
    19.94 and 20.00 of 20 lines are nearly the same colour.
    """
    assert Scale(0, 20) == value_scale(METRIC["matched"], [19.94, 20.0])


def test_zoom_takes_the_values_alone() -> None:
    """
    Who asks for it sees the values spread over the colours.
    """
    assert Scale(15, 20) == value_scale(METRIC["matched"], [15.0, 20.0], zoom=True)


def test_a_sum_has_room_for_all_rounds() -> None:
    """
    Passes of 16 rounds go from 0 to 16.
    """
    assert Scale(0, 16) == value_scale(METRIC["pass"], [15.0], rounds=16)


def test_an_open_end_is_that_of_the_values() -> None:
    """
    Speeds start at zero and end at the fastest; gaps do not count.
    """
    assert Scale(0, 800) == value_scale(METRIC["decode"], [700.0, math.nan, 800.0])


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [0.0, 0.0]])
def test_a_scale_is_never_empty(values: list[float]) -> None:
    """
    Its ends differ, so that a place on it exists.
    """
    scale = value_scale(METRIC["margin"], values)

    assert scale.low < scale.high
    assert 0 == scale.place(scale.low)


def test_nearly_equal_values_are_not_stretched() -> None:
    """
    Even zoomed in, half a per mille of difference stays in the middle.
    """
    scale = value_scale(METRIC["decode"], [999.5, 1000.5], zoom=True)

    assert 0.4 < scale.place(999.5) < scale.place(1000.5) < 0.6


def test_differences_are_centred_on_zero() -> None:
    """
    Both ends are as far away as the largest difference.
    """
    gaps = [-4.0, 1.0, math.nan]

    assert Scale(-4, 4) == difference_scale(METRIC["matched"], gaps, reference=20)


def test_small_differences_stay_pale() -> None:
    """
    One missed line in 320 is not painted like a catastrophe.
    """
    gaps = [-0.0625, 0.0]

    assert Scale(-1, 1) == difference_scale(METRIC["matched"], gaps, reference=20)


def test_values_beyond_the_ends_take_the_ends() -> None:
    """
    A place is never outside the scale.
    """
    assert (0, 1) == (Scale(0, 1).place(-3), Scale(0, 1).place(7))
