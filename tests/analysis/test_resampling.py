"""Bootstrap intervals, for one cell or for thousands at once."""

import numpy as np
import pytest

from codeneedle.analysis.stats import are_told, paired_difference

CHANCE = np.random.default_rng(7)
NEEDLES = 16


def gaps_of(shift, *, decimals):
    """What the needles of a cell lose or gain, *shift* on average."""
    return CHANCE.normal(shift, 1, NEEDLES).round(decimals)


def rare_gaps():
    """A cell that differs in a round or three."""
    gaps = np.zeros(NEEDLES)
    gaps[: CHANCE.integers(4)] = CHANCE.integers(-3, 2)
    return gaps


@pytest.mark.parametrize("is_sum", [False, True])
def test_many_cells_at_once_are_judged_like_one_by_one(is_sum):
    """
    Of whole numbers and of others, near the border and far from it.
    """
    gaps = [gaps_of(at / 40, decimals=at % 5) for at in range(60)]
    gaps += [rare_gaps() for _ in range(20)]
    gaps += [np.zeros(NEEDLES), np.full(NEEDLES, 1e-12), np.full(NEEDLES, -1e300)]

    expected = [paired_difference(each, is_sum=is_sum).is_told for each in gaps]

    assert expected == are_told(gaps, is_sum=is_sum)
    assert {True, False} == set(expected)


def test_the_border_is_where_the_interval_ends():
    """
    Cells whose interval just leaves out zero, or just not, are told apart.
    """
    base = gaps_of(0.0, decimals=4)
    low = paired_difference(base, is_sum=False).low
    shifts = [-low + step * 1e-6 for step in range(-20, 21)]

    expected = [
        paired_difference(base + shift, is_sum=False).is_told for shift in shifts
    ]

    assert expected == are_told([base + shift for shift in shifts], is_sum=False)
    assert {True, False} == set(expected)


def test_no_cells_have_no_verdicts():
    """
    A grid of a single pair compares nothing.
    """
    assert [] == are_told([], is_sum=False)
