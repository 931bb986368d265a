"""What may be concluded from cells."""

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codeneedle.analysis import frames, stats
from codeneedle.grid import BITS_PER_ELEMENT, DEFAULT_TYPES, Pair

PAIRS = [Pair(k, v) for k in DEFAULT_TYPES for v in DEFAULT_TYPES]

PUBLISHED = """
    19.25 19.38 19.44 18.38 19.19 19.44
    19.19 19.56 19.56 19.44 19.44 19.56
    19.44 19.31 19.62 19.38 19.56 19.12
    19.50 19.38 19.56 19.50 19.50 19.50
    19.31 19.56 19.56 19.44 19.06 19.25
    19.56 19.56 19.44 19.56 19.44 19.56
"""
"""A published grid of 36 pairs, K down and V across, most precise first."""


def cells(values: Iterable[float | str]) -> list[frames.Cell]:
    """A full 6x6 grid of *values*, in order; NaN are failed cells."""
    return [
        frames.Cell(
            pair=pair,
            value=value,
            status="crashed" if math.isnan(value) else "finished",
        )
        for pair, value in zip(PAIRS, map(float, values), strict=True)
    ]


def by_bits(slope: float) -> list[float]:
    return [
        10 + slope * (BITS_PER_ELEMENT[k] + BITS_PER_ELEMENT[v])
        for k in DEFAULT_TYPES
        for v in DEFAULT_TYPES
    ]


def test_a_published_grid_gives_the_published_numbers() -> None:
    """
    36 cells at 122K tokens: 19.40 +/- 0.22, from 18.38 to 19.62, no gradient.
    """
    published = cells(PUBLISHED.split())

    found = stats.spread(published)

    assert ("19.40", "0.22") == (f"{found.mean:.2f}", f"{found.sd:.2f}")
    assert (18.38, 19.62, 36) == (found.low, found.high, found.cells)
    assert "none" == stats.gradient(published).words


def test_the_spread_divides_by_the_number_of_cells() -> None:
    """
    One cell of 15 among 36 of 16 is 15.97 +/- 0.16, as published; n - 1 gives 0.17.
    Failed cells are not averaged; the spread of nothing is NaN.
    """
    found = stats.spread(cells([15, *[16] * 35]))
    some = stats.spread(cells([math.nan, *[20] * 35]))

    assert ("15.97", "0.16") == (f"{found.mean:.2f}", f"{found.sd:.2f}")
    assert (20.0, 0.0, 35) == (some.mean, some.sd, some.cells)
    assert math.isnan(stats.spread(cells([math.nan] * 36)).mean)


@pytest.mark.parametrize(("slope", "way"), [(1, "rises"), (-1, "falls")])
def test_values_that_follow_the_bits_have_a_gradient(slope: int, way: str) -> None:
    """
    A metric that follows precision is told with its direction; no share of random
    orders is zero: it is one of 10,000.
    """
    found = stats.gradient(cells(by_bits(slope)))

    assert (True, 1e-4) == (found.is_told, found.p)
    assert f"{way} with precision (rho {slope:+.2f}, p 0.0001)" == found.words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([20.0] * 36, "none"),
        ([*[20.0] * 35, 0.0], "none"),
        ([math.nan] * 36, "too few cells"),
        ([*by_bits(1)[:5], *[math.nan] * 31], "too few cells"),
    ],
    ids=["flat", "one bad cell", "nothing", "five"],
)
def test_a_grid_without_a_gradient_says_so(values: list[float], words: str) -> None:
    """
    Where all values are equal there is no order; ranks do not care how bad one cell
    is; a few cells cannot tell a gradient from chance.
    """
    found = stats.gradient(cells(values))

    assert (words, False) == (found.words, found.is_told)


def test_types_of_unknown_size_are_left_out() -> None:
    """
    A fork's type has no known place among the bits.
    """
    strange = [
        replace(cell, pair=Pair(cell.pair.k.replace("q4_0", "turbo3"), cell.pair.v))
        for cell in cells(by_bits(1))
    ]

    assert 30 == stats.gradient(strange).cells


def midranks(values):
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2
        for value in values
    ]


def correlation(x, y):
    return statistics.correlation(midranks(x), midranks(y))


def test_a_gradient_is_that_of_the_ranks_and_of_all_orders():
    """
    Rho is Pearson's on midranks; p comes near the share of all 720 orders of six cells
    that correlate at least as much, in either direction.
    """
    some = [cells([20, 19, 19, 12, 15, 18, *range(30)])[at] for at in range(6)]
    bits = [
        BITS_PER_ELEMENT[cell.pair.k] + BITS_PER_ELEMENT[cell.pair.v] for cell in some
    ]
    values = [cell.value for cell in some]
    rho = correlation(bits, values)
    orders = [correlation(bits, order) for order in itertools.permutations(values)]
    p = sum(abs(each) >= abs(rho) - 1e-9 for each in orders) / len(orders)

    found = stats.gradient(some)

    assert rho == pytest.approx(found.rho)
    assert p == pytest.approx(found.p, abs=0.02)
    assert 6 == found.cells
    assert found == stats.gradient(some)


def test_a_gradient_is_told_up_to_the_level_of_significance():
    """
    One in twenty is told, anything above is none.
    """
    at, above = (stats.Gradient(rho=0.5, p=p, cells=9) for p in (0.05, 0.0501))

    assert "rises with precision (rho +0.50, p 0.0500)" == at.words
    assert "none" == above.words


NEEDLES = 16


def compared(ours, theirs, *, needles=NEEDLES, is_sum=False):
    return stats.difference(ours, theirs, needles=needles, is_sum=is_sum)


def test_a_pair_that_loses_the_same_everywhere_differs_for_certain():
    """
    Paired needle by needle, a constant loss has an interval of no width.
    """
    theirs = [float(at) for at in range(NEEDLES)]

    found = compared([value - 1 for value in theirs], theirs)

    expected = stats.Difference(mean=-1.0, low=-1.0, high=-1.0)
    assert expected == found
    assert found.is_told


def test_an_interval_covers_95_of_100_samples():
    """
    Of a loss of 1 in four of sixteen needles, the binomial quantiles are 1 and 8 lost.
    """
    found = compared([-1.0] * 4 + [0.0] * 12, [0.0] * 16)

    assert (-0.25, -0.5, -1 / 16) == (found.mean, found.low, found.high)


def test_pairing_takes_out_what_makes_a_needle_hard():
    """
    Needles differ by far more than the pairs do; drawn apart, the same is not told.
    """
    theirs = [4.0 + at for at in range(NEEDLES)]
    ours = [value - 1 - at % 2 for at, value in enumerate(theirs)]

    paired, apart = (compared(ours, theirs, needles=n) for n in (NEEDLES, 32))

    assert (True, False) == (paired.is_told, apart.is_told)
    assert paired.mean == pytest.approx(apart.mean) == -1.5
    assert apart.low < paired.low < -1.5 < paired.high < apart.high


@pytest.mark.parametrize(
    ("ours", "theirs"), [([9.0, 8.9], [5.0, 5.0]), ([5.0] * 3, [9.0, 8.9])]
)
def test_cells_that_are_far_apart_are_told_without_pairing(ours, theirs):
    """
    Whichever is the larger one; two values each are enough for an interval.
    """
    found = compared(ours, theirs)

    assert found.is_told
    assert found.low < found.high


@pytest.mark.parametrize(("needles", "low", "high"), [(NEEDLES, -5, 0), (99, -5, 1)])
def test_sums_are_compared_as_sums(needles, low, high):
    """
    Two rounds fewer of sixteen are a difference of two rounds, paired or not.
    """
    found = compared([0.0] * 2 + [1.0] * 14, [1.0] * 16, needles=needles, is_sum=True)

    assert (-2, low, high) == (found.mean, round(found.low), round(found.high))
    assert not found.is_told


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-9])
def test_a_border_at_zero_is_not_moved_by_rounding(scale):
    """
    Gaps that cancel out in more than one sample of forty leave zero in the interval.
    """
    gaps = np.array([0.1, 0.2, -0.3] + [0.0] * 13) * scale
    nothing = [0.0] * 16

    assert stats.Difference(mean=0.0, low=0.0, high=0.0) == compared(nothing, nothing)
    assert not compared(gaps, nothing).is_told
    assert not compared(abs(gaps), nothing).is_told
    assert 0.0 == compared(abs(gaps), nothing).low


def test_named_observations_are_compared_by_name_and_drawn_by_text():
    """
    What only one of two cells has does not count, and questions of one text are not
    independent; of a single text they are all there is, and without names needles are.
    """

    def cell(observed):
        facts = {"names": tuple(observed), "observations": tuple(observed.values())}
        return frames.Cell(pair=PAIRS[0], status="finished", value=0.0, **facts)

    def differ(ours, theirs, *, is_sum=False):
        return stats.cell_difference(ours, theirs, needles=2, is_sum=is_sum)

    one = {("t1", "a"): 1.0, ("t1", "b"): 2.0}
    ours = cell(one | {("t2", "a"): 4.0, ("t3", "c"): 9.0})
    theirs = cell({("t2", "a"): 1.0, ("t1", "b"): 0.0, ("t1", "a"): 0.0})
    bare = replace(cell(one), names=())

    assert stats.Difference(mean=2.0, low=2.0, high=2.0) == differ(ours, theirs)
    total = stats.Difference(mean=6.0, low=6.0, high=6.0)
    assert total == differ(ours, theirs, is_sum=True)
    alone = stats.Difference(mean=1.5, low=1.0, high=2.0)
    assert alone == differ(cell(one), theirs)
    assert 0.0 == differ(bare, bare).mean


@pytest.mark.parametrize(("ours", "theirs"), [([3.0], [2.0]), ([3.0], [2.0, 2.0])])
def test_single_numbers_have_no_interval(ours, theirs):
    """
    One size of a cache has no spread to draw from.
    """
    found = compared(ours, theirs, needles=1)

    assert 1 == found.mean
    assert math.isnan(found.low)
    assert not found.is_told


@pytest.mark.parametrize(
    ("count", "t"), [(2, 4.303), (3, 2.776), (5, 2.306), (16, 2.042)]
)
def test_few_observations_have_wide_intervals(count, t):
    """
    Student's t with 2 (n - 1) degrees of freedom, from tables.
    """
    values = [float(at) for at in range(count)]
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)

    found = stats.half_interval(values, values) / math.sqrt(2 * variance / count)

    assert pytest.approx(t, rel=0.11 if count == 2 else 0.03) == found


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
@example([0.0, 1e-160])
def test_an_interval_is_never_negative(values):
    """
    Nor does it underflow to an error.
    """
    assert 0 <= stats.half_interval(values, values)
