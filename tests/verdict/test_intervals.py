"""Intervals of losses and of lost shares, and how many units decide a pair."""

import functools
import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some
from made_losses import BEYOND, losing_run
from scipy.stats import beta, t

from codeneedle.cache_types import Pair
from codeneedle.verdict.judge import judge
from codeneedle.verdict.metric_phrases import p_value_phrase
from codeneedle.verdict.statistics import (
    ALPHA,
    MOST_UNITS,
    Bounds,
    Decision,
    answers_needed,
    disagreeing_pairs,
    error_share,
    lost_share_interval,
    mean_loss_interval,
    paired_p_value,
    units_needed,
)

LOSSES = some.lists(some.floats(-1, 1), min_size=2, max_size=40)
SHARES = some.builds(error_share, some.integers(0, 4), some.integers(1, 200))


def plain_width(losses, share):
    """Half the width of Student's interval."""
    count = len(losses)
    error = statistics.stdev(losses) / math.sqrt(count)
    return error * float(t.ppf(1 - share, count - 1))


# Shares


def test_the_shares_of_all_looks_add_up_to_five_per_cent_of_sweeps():
    """Of one pair, and of all pairs together."""
    for pairs in (1, 8, 35):
        of_one = [error_share(look, pairs) for look in range(60)]
        assert ALPHA == pytest.approx(pairs * math.fsum(of_one))
    assert [0.025, 0.0125] == [error_share(look, 1) for look in (0, 1)]


def test_a_run_without_other_pairs_has_a_share_too():
    assert error_share(0, 1) == error_share(0, 0)


# Losses


@pytest.mark.parametrize(("units", "expected"), [(12, 4.22), (16, 3.90)])
def test_the_quantiles_of_a_grid_of_36_pairs_are_those_of_the_design(units, expected):
    values = [-1.0, 1.0] * (units // 2)
    found = mean_loss_interval(values, error_share(0, 35))
    error = statistics.stdev(values) / math.sqrt(units)

    assert expected == round((found.high - found.mean) / error, 2)


def test_three_functions_can_show_nothing():
    """Their interval is seven times as wide as that of 12."""
    two_degrees = t.ppf(1 - error_share(0, 35), 2)
    losses = [0.0, 0.01, 0.02]

    found = mean_loss_interval(losses, error_share(0, 35))

    assert round(float(two_degrees), 1) == 26.4
    assert found.high - found.mean == pytest.approx(plain_width(losses, 0.025 / 35))
    assert Decision.OPEN is found.decision(0.01)


@given(LOSSES, SHARES)
def test_the_correction_for_skewness_only_widens(losses, share):
    """On the side of the longer tail; the other is that of Student."""
    assume(statistics.pstdev(losses) > 1e-9)
    found, plain = mean_loss_interval(losses, share), plain_width(losses, share)

    below, above = found.mean - found.low, found.high - found.mean

    assert min(below, above) == pytest.approx(plain)
    assert max(below, above) >= plain * (1 - 1e-9)


def test_the_correction_is_that_of_johnson():
    """By hand, for one long tail."""
    losses, share = [0.0] * 15 + [0.16], error_share(0, 1)
    mean, spread = 0.01, statistics.pstdev(losses)
    skewness = sum((x - mean) ** 3 for x in losses) / 16 / spread**3
    q = float(t.ppf(1 - share, 15))
    lean = skewness * (1 + 2 * q**2) / (6 * 4)

    found = mean_loss_interval(losses, share)

    error = statistics.stdev(losses) / 4
    assert found.high == pytest.approx(mean + error * (q + lean))
    assert found.low == pytest.approx(mean - error * q)


@given(LOSSES, SHARES)
def test_an_interval_of_gains_is_that_of_losses_turned_round(losses, share):
    ours, theirs = (
        mean_loss_interval(losses, share),
        mean_loss_interval([-x for x in losses], share),
    )

    assert (ours.mean, ours.low, ours.high) == pytest.approx(
        (-theirs.mean, -theirs.high, -theirs.low), abs=1e-9
    )


@given(LOSSES, SHARES, SHARES)
def test_an_interval_holds_its_mean_and_a_smaller_share_is_wider(losses, one, other):
    near, far = (
        mean_loss_interval(losses, each) for each in sorted((one, other), reverse=True)
    )

    assert near.low <= near.mean <= near.high
    assert far.low <= near.low
    assert near.high <= far.high


@given(some.floats(-1, 1), some.integers(2, 100), SHARES)
def test_equal_losses_have_no_width(loss, units, share):
    found = mean_loss_interval([loss] * units, share)

    assert (loss, loss, loss) == pytest.approx((found.mean, found.low, found.high))
    assert units == found.units


@pytest.mark.parametrize("loss", [1e-110, -1e-160, 1e-300])
def test_losses_too_small_for_their_cubes_are_none(loss):
    """Of tokens that are impossible with both: their variance is 0 by rounding."""
    found = mean_loss_interval([0.0, 0.0, loss], 0.01)

    assert (0, 0) == pytest.approx((found.low, found.high))


def test_a_single_unit_has_no_interval():
    found = mean_loss_interval([0.5], 0.01)

    assert Bounds(mean=0.5, low=-math.inf, high=math.inf, units=1) == found
    assert Decision.OPEN is found.decision(1.0)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.01, 0.0099, Decision.WITHIN),
        (0.0, 0.01, Decision.WITHIN),
        (0.01, 0.01, Decision.WITHIN),
        (0.0, 0.0101, Decision.OPEN),
        (0.01, 0.02, Decision.OPEN),
        (0.0101, 0.02, Decision.BEYOND),
    ],
)
def test_at_the_limit_is_within_it(low, high, word):
    assert word is Bounds(mean=low, low=low, high=high, units=9).decision(0.01)


def test_ends_are_cut_to_what_there_can_be_and_infinite_ones_stay():
    wide = Bounds(mean=0.0, low=-3.0, high=2.0, units=3)
    single = Bounds(mean=0.0, low=-math.inf, high=math.inf, units=1)

    assert (-1, 1) == (wide.clip(-1, 1).low, wide.clip(-1, 1).high)
    assert single == single.clip(-1, 1)


# Lost shares


@pytest.mark.parametrize(("pairs", "units"), [(1, 36), (3, 46), (8, 55), (35, 69)])
def test_functions_without_a_loss_that_it_takes_are_those_of_the_design(pairs, units):
    """One pair, three, 3 x 3 and 36 cells."""
    ends = [
        lost_share_interval(0, n, error_share(0, pairs)).high
        for n in (units - 1, units)
    ]

    assert ends[0] > 0.10 >= ends[1]


@pytest.mark.parametrize(("pairs", "high"), [(1, 0.21), (8, 0.30)])
def test_sixteen_functions_without_a_loss_are_open(pairs, high):
    found = lost_share_interval(0, 16, error_share(0, pairs))

    assert high == round(found.high, 2)
    assert Decision.OPEN is found.decision(0.10)


@pytest.mark.parametrize(
    ("texts", "low", "word"), [(4, 0.12, Decision.BEYOND), (3, 0.06, Decision.OPEN)]
)
def test_four_lost_texts_of_four_show_a_loss_at_a_length_and_three_do_not(
    texts, low, word
):
    """35 pairs at three lengths."""
    found = lost_share_interval(texts, texts, error_share(0, 35 * 3))

    assert low == round(found.low, 2)
    assert word is found.decision(0.10)


@given(some.integers(1, 120), some.data(), SHARES)
def test_the_bounds_of_a_share_are_those_of_clopper_and_pearson(units, data, share):
    lost = data.draw(some.integers(0, units))

    found = lost_share_interval(lost, units, share)

    assert found.mean == pytest.approx(lost / units)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    if lost:
        expected = beta.ppf(share, lost, units - lost + 1)
        assert found.low == pytest.approx(float(expected), abs=1e-9)
    if lost < units:
        expected = beta.ppf(1 - share, lost + 1, units - lost)
        assert found.high == pytest.approx(float(expected), abs=1e-9)


def test_nothing_is_known_of_the_share_of_no_units():
    assert Bounds(mean=0, low=0, high=1, units=0) == lost_share_interval(0, 0, 0.01)


# Units needed


@functools.cache
def quantiles(look, pairs, most):
    """Of Student's t, by degrees of freedom; one at a time they take milliseconds."""
    return t.ppf(1 - error_share(look, pairs), np.arange(1, most)).tolist()


def decided_at(losses, limit, *, look, pairs, most):
    """By brute force: as many units, of the same mean, spread and skewness."""
    count, mean = len(losses), statistics.fmean(losses)
    spread, sd = statistics.pstdev(losses), statistics.stdev(losses)
    third = sum((x - mean) ** 3 for x in losses) / count
    skewness = third / spread**3 if spread else 0.0
    for units in range(count + 1, most):
        q = quantiles(look, pairs, most)[units - 2]
        lean = skewness * (1 + 2 * q**2) / (6 * math.sqrt(units))
        error = sd / math.sqrt(units)
        if mean + error * (q + max(0, lean)) <= limit:
            return units
        if mean - error * (q + max(0, -lean)) > limit:
            return units
    return None


@given(
    some.lists(some.sampled_from([-0.02, 0.0, 0.01, 0.03]), min_size=3, max_size=16),
    some.sampled_from([0.005, 0.0101]),
    some.integers(1, 3),
    some.sampled_from([1, 8, 35]),
)
def test_the_units_needed_are_the_fewest_that_decide(losses, limit, look, pairs):
    expected = decided_at(losses, limit, look=look, pairs=pairs, most=400)

    found = units_needed(losses, limit, look=look, pairs=pairs)

    if expected is None:
        assert found is None or found >= 400
    else:
        assert expected == found


def test_two_units_are_enough_to_say_how_many_are_needed():
    losses = [0.0, 0.004]

    expected = decided_at(losses, 0.01, look=1, pairs=1, most=400)

    assert expected == units_needed(losses, 0.01, look=1, pairs=1)


def last_told(needed, *, told, untold):
    """What *needed* tells of the last limit that it tells something of."""
    for _ in range(50):
        middle = (told + untold) / 2
        if needed(middle) is None:
            untold = middle
        else:
            told = middle
    return needed(told)


@pytest.mark.parametrize("limit", [0.01, -0.005])
def test_one_further_unit_is_told_and_more_than_the_most_are_not(limit):
    """A fourth loss like these three decides: within 1 %, or beyond -0.5 %."""
    losses = [0.0021, 0.0022, 0.0023]
    assert 4 == units_needed(losses, limit, look=1, pairs=1)

    def needed(nearer):
        return units_needed([0.0, 0.004], nearer, look=1, pairs=1)

    assert MOST_UNITS == last_told(needed, told=limit, untold=0.002)


def test_more_answers_than_the_most_are_not_told():
    share = error_share(0, 3)
    assert 46 == answers_needed(0, 8, 0.1, share=share)

    def needed(limit):
        return answers_needed(0, 8, limit, share=share)

    assert MOST_UNITS == last_told(needed, told=0.1, untold=0.0)


def test_what_lies_at_the_limit_is_never_decided():
    losses = [0.0, 0.02] * 8

    assert units_needed(losses, 0.01, look=1, pairs=1) is None


@pytest.mark.parametrize("losses", [[], [0.3]])
def test_fewer_than_two_units_say_nothing_of_how_many_are_needed(losses):
    assert units_needed(losses, 0.01, look=1, pairs=1) is None


@pytest.mark.parametrize(
    ("read", "written", "disagree"),
    [
        (0.2, 0.2, False),
        (0.2, 0.0, True),
        (0.0, 0.2, True),
        (0.2, -0.2, True),
        (-0.2, 0.0, True),
        (0.2, 0.08, True),
        (0.2, 0.15, False),
        (-0.2, -0.08, True),
        (-0.2, -0.15, False),
        (0.0, 0.0, False),
    ],
)
def test_pairs_on_which_reading_and_writing_disagree_are_found(read, written, disagree):
    """One loses significantly, and the other by its interval less than half."""
    pair, noise = Pair("q4_0", "f16"), [0.001 * (-1) ** at for at in range(8)]
    by_reading = {pair: [read + each for each in noise]}
    by_writing = {pair: [written + each for each in noise[:4]]}

    found = disagreeing_pairs(by_reading, by_writing)

    assert disagree == (pair in found)
    if disagree:
        assert pytest.approx((read, written)) == found[pair]
    assert {} == disagreeing_pairs(by_reading, {}) == disagreeing_pairs({}, by_writing)


def test_of_one_unit_nothing_is_known_to_disagree():
    pair = Pair("q4_0", "f16")

    assert {} == disagreeing_pairs({pair: [0.5]}, {pair: [0.0, 0.0]})


def test_intervals_of_disagreements_are_shared_among_pairs():
    """What one pair alone would show is chance among a hundred."""
    pair, read, written = Pair("q4_0", "f16"), [0.2, 0.25, 0.3, 0.25], [0.0] * 4
    others = {Pair(f"q{at}", "f16"): [0.0] * 4 for at in range(100)}

    assert [pair] == list(disagreeing_pairs({pair: read}, {pair: written}))
    many = disagreeing_pairs({pair: read, **others}, {pair: written, **others})
    assert {} == many


@pytest.mark.parametrize(
    ("lost", "units", "pairs", "needed"),
    [(0, 8, 1, 36), (0, 8, 3, 46), (0, 8, 8, 55), (0, 8, 35, 69), (8, 8, 3, 9)],
)
def test_so_many_answers_of_that_kind_decide(lost, units, pairs, needed):
    """The numbers without a loss are those of the page on the verdict."""
    share = error_share(0, pairs)

    assert needed == answers_needed(lost, units, 0.1, share=share)
    of_all = needed if lost else 0
    assert lost_share_interval(of_all, needed, share).decision(0.1) is not Decision.OPEN


@pytest.mark.parametrize(
    ("lost", "units", "limit"),
    [(1, 100, 0.0005), (1, 4, 0.1), (3, 8, 0.2), (0, 5, 0.1)],
)
def test_the_answers_needed_are_the_fewest_that_decide(lost, units, limit):
    share = error_share(0, 1)
    counts = itertools.count(units + 1)
    decided = (
        count
        for count in counts
        if lost_share_interval(round(count * lost / units), count, share).decision(
            limit
        )
        is not Decision.OPEN
    )

    assert next(decided) == answers_needed(lost, units, limit, share=share)


def test_a_share_at_the_limit_is_never_decided():
    assert answers_needed(1, 10, 0.1, share=error_share(0, 1)) is None


def test_the_formula_of_the_documentation_gives_both_ends():
    """Skewed losses of a pair among two, asked once."""
    losses = tuple(0.02 * (at % 5 == 0) + 0.001 * at for at in range(16))
    run = losing_run({"q8_0/q8_0": losses, "q4_0/q4_0": BEYOND})
    row = judge(run).result(Pair.parse("q8_0/q8_0")).leading_result

    mean, spread, count = statistics.fmean(losses), statistics.stdev(losses), 16
    third = statistics.fmean((loss - mean) ** 3 for loss in losses)
    skewness = third / statistics.pstdev(losses) ** 3
    wide = float(t.ppf(1 - 0.05 / 2 / 2, count - 1))
    lean = skewness * (1 + 2 * wide**2) / (6 * math.sqrt(count))
    error = spread / math.sqrt(count)

    assert mean == pytest.approx(row.bounds.mean)
    assert mean - error * (wide + max(0, -lean)) == pytest.approx(row.bounds.low)
    assert mean + error * (wide + max(0, lean)) == pytest.approx(row.bounds.high)


# Samples that differ


@given(some.integers(0, 60), some.integers(0, 60))
def test_the_paired_test_counts_half_of_what_was_seen(lost, won):
    """By the binomial distribution, summed."""
    differ, fewer = lost + won, min(lost, won)
    ways = sum(math.comb(differ, each) for each in range(fewer))
    expected = (2 * ways + math.comb(differ, fewer)) / 2**differ

    assert pytest.approx(expected) == paired_p_value(lost, won)


@given(some.integers(0, 10_000), some.integers(0, 10_000))
def test_lost_and_won_change_places_in_the_paired_test(lost, won):
    assert paired_p_value(won, lost) == paired_p_value(lost, won)
    assert 0 <= paired_p_value(lost, won) <= 1


@pytest.mark.parametrize(("lost", "told"), [(9, "0.002"), (10, "< 0.001")])
def test_a_thousandth_is_the_least_that_a_test_tells(lost, told):
    assert told == p_value_phrase(lost, 0)
