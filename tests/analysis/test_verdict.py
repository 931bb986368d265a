"""The verdict: axes, odd cells, certificates, what could have been found."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.analysis.verdict import (
    PERMUTATIONS,
    Certificate,
    _contrasts,
    _log_cost_evidence,
    _ranks,
    _standardised,
    axis_finding,
    certificate,
    detectable,
    mean_interval,
    odd_cell,
    pareto_front,
    sign_flip_p,
    type_table,
    upper_share,
    with_effect,
    without_cell,
)

K, V = 0, 1


def flat(*, k=6, v=6, needles=16, value=20.0):
    return np.full((k, v, needles), value)


def noisy(seed=3, **shape):
    chance = np.random.default_rng(seed)
    scores = flat(**shape)
    return scores - (chance.random(scores.shape) < 0.2)


def test_on_a_flat_grid_nothing_is_found():
    """
    All answers alike: p is 1, no type costs, no cell is odd.
    """
    for axis in (K, V):
        finding = axis_finding(flat(), axis)
        assert (1.0, (), False) == (finding.p, finding.costs, finding.matters)
    assert odd_cell(flat()) is None


def test_a_coarse_v_that_costs_is_found_on_v_alone():
    """
    Two lines lost with the coarsest V: V matters, K does not, the type is named.
    """
    scores = noisy()
    scores[:, 5] -= 2.0

    assert not axis_finding(scores, K).matters
    finding = axis_finding(scores, V)
    assert finding.matters
    assert 5 == finding.costs[0].index
    assert 1.8 < finding.costs[0].loss < 2.2


def test_types_are_named_from_the_coarsest_on_until_one_is_not_shown():
    """
    A fixed sequence: what lies behind the first type that fails is not tested.
    """
    scores = noisy()
    scores[4:] -= 2.0

    assert (5, 4) == tuple(cost.index for cost in axis_finding(scores, K).costs)

    scores[5] += 2.0
    assert () == axis_finding(scores, K).costs


def test_where_no_single_type_is_shown_the_coarser_ones_are_named_together():
    """
    Three needles: no sign flip has a p below 1/8, but labels of six types can be
    permuted in many ways. The two coarsest lose half a line.
    """
    scores = noisy(needles=3, seed=1)
    scores[4:] -= 0.5

    finding = axis_finding(scores, K)

    assert (True, (), 4) == (finding.matters, finding.costs, finding.split)
    assert 0.5 == pytest.approx(finding.gap, abs=0.1)


def test_a_better_coarse_type_is_no_finding():
    """
    The test is one-sided: coarser types that score more cost nothing.
    """
    scores = noisy()
    scores[:, 3:] += 2.0

    assert axis_finding(scores, V).p > 0.5


def test_one_bad_cell_is_named_and_taken_out_before_the_axes_are_tested():
    """
    A cell that lost most lines makes neither of its types look bad.
    """
    scores = noisy()
    scores[4, 3] = 2.0

    odd = odd_cell(scores)

    assert odd is not None
    assert (4, 3, 1 / (1 + PERMUTATIONS)) == (odd.k, odd.v, odd.p)
    mended = without_cell(scores, odd)
    assert mended[4, 3].mean() > 19.0
    assert not axis_finding(mended, K).matters
    assert not axis_finding(mended, V).matters


@pytest.mark.parametrize("shape", [{"k": 2}, {"v": 2}, {}])
def test_a_grid_that_is_small_or_has_gaps_has_no_odd_cell(shape):
    """
    Two types leave nothing to tell a cell from; a gap is no shortfall.
    """
    scores = noisy(**shape)
    scores[1, 1] = 2.0
    if not shape:
        scores[4, 3, 5] = math.nan

    assert None is odd_cell(scores)


def test_standardised_contrasts_have_a_variance_of_one_over_all_permutations():
    """
    Of three values in a row, six orders; equal values share the middle of their ranks.
    """
    table = np.array([[5.0, 1.0, 1.0]])
    ranks = _ranks(table)
    orders = np.array([list(itertools.permutations(ranks[0]))]).transpose(1, 0, 2)

    found = _standardised(
        orders[:, np.newaxis], ranks[np.newaxis, :, :], _contrasts(types=3)
    )

    assert [[3.0, 1.5, 1.5]] == ranks.tolist()
    assert [1.0] * 2 == pytest.approx((found[:, 0] ** 2).mean(axis=0).tolist())


def test_the_reference_is_never_the_odd_cell():
    """
    All others are compared with it; nor is another one named for standing beside it.
    """
    scores = noisy()
    scores[0, 0] = 2.0

    assert odd_cell(scores) is None
    found = odd_cell(scores, reference=(1, 1))
    assert found is not None
    assert (0, 0) == (found.k, found.v)


def test_the_missing_cell_is_estimated_from_an_additive_table_exactly():
    """
    Where rows and columns explain everything, the estimate is the lost value.
    """
    rows, columns = np.arange(4.0), np.array([0.0, 3.0, 1.0])
    additive = (rows[:, None] + columns)[..., None] + np.array([10.0, 12.0])
    odd = odd_cell(flat())
    assert odd is None

    spoilt = additive.copy()
    spoilt[2, 1] = -50.0
    found = without_cell(spoilt, type("At", (), {"k": 2, "v": 1})())

    assert np.allclose(additive, found)


def test_types_of_the_other_axis_with_gaps_are_left_out_of_the_means():
    """
    Every mean of a table is over the same cells.
    """
    scores = noisy()
    scores[2, 4] = math.nan

    table = type_table(scores, V)

    assert np.allclose(np.delete(scores, 2, axis=0).mean(axis=0).T, table)


def test_an_axis_of_one_type_or_a_grid_of_one_needle_has_no_p():
    """
    Nothing can be compared, and that is no "matters".
    """
    for scores in (flat(v=1), flat(needles=1)):
        finding = axis_finding(scores, V)
        assert math.isnan(finding.p)
        assert not finding.matters


@pytest.mark.parametrize(
    ("losses", "p"),
    [
        ([1.0] * 4 + [0.0] * 12, 1 / 16),
        ([1.0, 2.0], 1 / 4),
        ([0.0] * 5, 1.0),
        ([-1.0, -1.0], 1.0),
        ([1.0, -1.0], 3 / 4),
        ([1.0] * 14, 1 / 2**14),
    ],
)
def test_sign_flips_are_exact_for_few_differences(losses, p):
    """
    Zeros say nothing; n differences of one sign have a p of 1 in 2 to the n.
    """
    assert p == pytest.approx(sign_flip_p(np.array(losses)))


def test_many_sign_flips_are_sampled_close_to_the_normal_tail():
    """
    Twenty differences: the sample agrees with the exact binomial tail.
    """
    losses = np.array([1.0] * 15 + [-1.0] * 5)
    exact = sum(math.comb(20, i) for i in range(15, 21)) / 2**20

    assert exact == pytest.approx(sign_flip_p(losses), abs=0.004)


def test_sixteen_clean_needles_decide_nothing_and_say_how_many_would():
    """
    For three comparisons at 5 %, 43 clean needles are needed; 27 more than 16.
    """
    clean = np.full(16, 20.0)

    found = certificate(clean, clean, comparisons=3, lost_from=4)

    assert ("undecided", 27) == (found.verdict, found.more)
    assert (
        "free"
        == certificate(
            np.full(43, 20.0), np.full(43, 20.0), comparisons=3, lost_from=4
        ).verdict
    )


def test_a_lost_needle_costs_two_dozen_clean_ones():
    """
    Evidence is a product of bets: a loss divides it by ten.
    """
    reference = np.full(43, 20.0)
    ours = reference.copy()
    ours[0] = 16.0

    found = certificate(ours, reference, comparisons=3, lost_from=4)

    assert ("undecided", 1, 26) == (found.verdict, found.lost, found.more)
    ours[0] = 17.0
    assert "free" == certificate(ours, reference, comparisons=3, lost_from=4).verdict


def test_a_needle_that_could_be_lost_whole_is_evidence():
    """
    The reference has exactly as much of it as makes a loss.
    """
    just = np.full(43, 4.0)

    found = certificate(just, just, comparisons=3, lost_from=4)

    assert ("free", 43) == (found.verdict, found.needles)
    less = certificate(just - 0.1, just - 0.1, comparisons=3, lost_from=4)
    assert 0 == less.needles


def test_evidence_of_a_cost_is_a_fair_bet_where_there_is_none():
    """
    Over all signs of six losses, equally likely, the wealth is 1 on average. A single
    loss is bet on at six stakes, and at shares whose mean is 3 in 4.
    """
    sizes = np.array([0.1, 0.5, 1.0, 1.0, 1.5, 3.0])
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=6)))
    wealth = [math.exp(_log_cost_evidence(each * sizes)) for each in signs]

    assert 1.0 == pytest.approx(math.fsum(wealth) / len(wealth))
    bets = (1 + (0.05 + 0.1 + 0.2 + 0.4 + 0.6 + 0.8) / 6 / 2, 2 * 0.75)
    one = math.exp(_log_cost_evidence(np.array([1.0])))
    assert sum(bets) / 2 == pytest.approx(one)


def test_the_interval_of_a_mean_is_students():
    """
    Of two losses, 12.706 standard errors; of one, nothing is known.
    """
    mean, half_width = mean_interval([1.0, 3.0])

    assert (2.0, 12.706) == (mean, pytest.approx(half_width, abs=0.001))
    assert (3.0, math.inf) == mean_interval([3.0])


def test_without_a_needle_that_can_be_lost_all_further_ones_are_asked():
    """
    Nothing is known of how many of them would count.
    """
    nothing = Certificate(needles=0, lost=0, verdict="undecided", upper=1.0)

    assert 0 == nothing.whole
    assert 8 == replace(nothing, more=5, asked=3).whole


def test_needles_that_the_reference_could_not_lose_are_no_evidence():
    """
    The reference recalls 7 of 49: those count, and seven in 49 of the next will.
    """
    reference = np.array([20.0] * 7 + [3.0] * 42)

    found = certificate(reference, reference, comparisons=1, lost_from=4)

    assert ("undecided", 7, 49) == (found.verdict, found.needles, found.asked)
    assert found.whole == 49 + 7 * found.more
    assert found.upper > 0.3
    raised = certificate(
        reference - 20, reference - 20, comparisons=1, lost_from=4, lowest=-20
    )
    assert raised == found


def test_lucky_answers_of_the_reference_are_no_cost():
    """
    Each of two equal pairs has half of its needles at random: where the reference was
    lucky the other one has less, and where it was not, more.
    """
    chance = np.random.default_rng(5)
    ours, theirs = 20.0 * (chance.random((2, 60)) < 0.5)

    assert "undecided" == certificate(ours, theirs, comparisons=1, lost_from=4).verdict


def test_a_pair_that_loses_nearly_everywhere_costs():
    """
    Sixteen needles, each six lines shorter: decided.
    """
    reference = np.full(16, 20.0)

    assert (
        "costs"
        == certificate(reference - 6, reference, comparisons=5, lost_from=4).verdict
    )
    assert (
        "undecided"
        == certificate(
            reference + 6, reference + 12, comparisons=10**9, lost_from=4
        ).verdict
    )


def test_a_pair_that_gains_is_never_called_costly():
    """
    Gains are evidence against a cost.
    """
    reference = np.full(60, 12.0)

    assert (
        "free"
        == certificate(reference + 5, reference, comparisons=3, lost_from=4).verdict
    )


@given(lost=st.integers(0, 30), more=st.integers(1, 60))
def test_the_upper_bound_is_where_so_few_losses_have_a_chance_of_5_percent(lost, more):
    """
    Clopper and Pearson's bound, by its definition.
    """
    needles = lost + more
    share = upper_share(lost, needles)
    tail = sum(
        math.comb(needles, i) * share**i * (1 - share) ** (needles - i)
        for i in range(lost + 1)
    )

    assert 0.05 == pytest.approx(tail, rel=1e-6)


def test_sixteen_of_sixteen_still_allow_17_percent():
    """
    The rule of three, exactly: 1 - 0.05 ** (1 / 16).
    """
    assert 1 - 0.05 ** (1 / 16) == pytest.approx(upper_share(0, 16))
    assert 1.0 == upper_share(3, 3)


@pytest.mark.parametrize("kind", ["thin", "lumpy", "consistent"])
@pytest.mark.parametrize("axis", [K, V])
def test_an_effect_costs_its_size_between_the_finest_and_the_coarsest(kind, axis):
    """
    Simulated losses are as large as they are said to be, on the axis asked for.
    """
    chance = np.random.default_rng(5)
    scores = flat(needles=4_000)
    lowered = with_effect(scores, axis, kind=kind, size=2.0, chance=chance)
    means = type_table(lowered, axis).mean(axis=0)

    assert 20.0 == means[0]
    assert 2.0 == pytest.approx(means[0] - means[-1], abs=0.25)
    other = type_table(lowered, 1 - axis).mean(axis=0)
    assert np.ptp(other) < 0.2
    stepped = with_effect(
        scores, axis, kind=kind, size=2.0, chance=chance, is_step=True
    )
    means = type_table(stepped, axis).mean(axis=0)
    assert [20.0] * 5 == list(means[:-1])
    assert 18.0 == pytest.approx(means[-1], abs=0.25)


def test_what_could_have_been_found_shrinks_with_more_needles():
    """
    More needles show smaller effects; thin ones are the easiest.
    """
    few = detectable(noisy(needles=8), V, "lumpy", trials=20)
    many = detectable(noisy(needles=64), V, "lumpy", trials=20)

    assert many < few
    assert detectable(noisy(), V, "thin", trials=20) <= 0.3


def test_a_pair_leaves_the_front_only_if_another_is_better_beyond_the_interval():
    """
    Ties and differences within the noise leave both.
    """
    costs = np.array([[0.0, 10.0], [0.1, 5.0], [0.1, 6.0], [5.0, 4.9]])
    exact = np.zeros_like(costs)

    assert [0, 1, 3] == pareto_front(costs, exact)
    assert [0, 1, 2, 3] == pareto_front(costs, exact + np.array([0.0, 1.0]))
