"""What is kept of the gaps of an answer."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unhurried import unhurried

from codeneedle.scoring.rounds import Margins, margins, margins_of_all, percentile

GAPS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40)
REAL = st.lists(st.integers(0, 400_000).map(lambda gap: gap / 10_000), max_size=60)


def test_the_margins_of_an_answer_are_its_least_gaps_and_their_mean():
    """
    The smallest, the 5th percentile and the mean, in nats.
    """
    gaps = [float(gap) for gap in range(20, -1, -1)]

    assert Margins(least=0.0, fifth=1.0, mean=10.0) == margins(gaps)


def test_an_answer_without_gaps_has_no_margins():
    """
    Nothing is no zero.
    """
    assert None is margins([])
    assert [None, None] == margins_of_all([[], []])


@unhurried
@given(st.lists(GAPS | REAL, max_size=4))
def test_all_at_once_they_are_the_same_to_the_last_bit(answers):
    """
    Whatever the numbers, one by one or many of them.
    """
    try:
        expected = [margins(gaps) for gaps in answers]
    except OverflowError:
        return

    assert expected == margins_of_all(answers)


def test_long_answers_have_the_same_margins_all_at_once():
    """
    Sixteen of 450 tokens, with the decimals that are stored.
    """
    chance = random.Random(42)  # noqa: S311 - no secret
    answers = [
        [round(abs(chance.gauss(15, 3)), 4) for _ in range(450)] for _ in range(16)
    ]

    found = margins_of_all(answers)

    assert [margins(gaps) for gaps in answers] == found
    assert math.fsum(answers[0]) / 450 == found[0].mean


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0], 0.05, 0.5), ([7.0], 0.05, 7), ([9, 0], 1, 9)],
)
def test_percentiles_interpolate_between_order_statistics(values, share, expected):
    """
    The 5th percentile of 0 to 10 is 0.5; of a single value it is that value.
    """
    assert expected == percentile(values, share)
