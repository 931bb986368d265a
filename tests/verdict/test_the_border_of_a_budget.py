"""What fits and nothing finer does is asked; what that covers is inferred."""

import itertools
from dataclasses import replace

import pytest

from codeneedle.cache_types import Candidate
from codeneedle.verdict.asking_order import JointOrder, PairState, Why
from codeneedle.verdict.budget_border import (
    has_better_coarser_pair,
    next_budget_target,
    pair_of_least_upper_loss,
    undominated_pairs,
    unmeasured_dominated_pairs,
)
from codeneedle.verdict.statistics import Bounds, Decision

BITS = {"Q8_0": 8.5, "Q4_0": 4.5}
TYPES = {"bf16": 16.0, "f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}


def candidate(weights, k, v):
    size = BITS[weights] + (TYPES[k] + TYPES[v]) / 8
    return Candidate(k, v, weights=weights, weight_bits=BITS[weights], size=size)


USUAL = ("f16", "q8_0", "q4_0")
EVERY = tuple(itertools.starmap(candidate, itertools.product(BITS, USUAL, USUAL)))
ORDER = JointOrder(pairs=(), candidates=EVERY, looks=(8, 16, 32))


def bounds(low, high):
    return Bounds(mean=(low + high) / 2, low=low, high=high, units=8)


def state(decision=Decision.WITHIN, *, needed=None, units=8):
    return PairState(decision=decision, units=units, needed=needed, is_below=True)


def fitting(most):
    return [each for each in EVERY[1:] if each.size <= most]


def walked(losses, most, failing=()):
    """The targets of a whole walk, by what each candidate loses."""
    seen, known, targets = {}, {}, []
    while target := next_budget_target(ORDER, seen, known, fitting(most)):
        targets.append(target)
        (pair,) = target.pairs
        seen[pair] = state(None) if pair in failing else state()
        if pair not in failing:
            known[pair] = bounds(losses(pair) - 0.001, losses(pair) + 0.001)
    return targets, known


def plain(pair):
    return 0.1 - pair.size / 1000


def test_candidates_that_were_fixed_share_the_error_and_else_those_that_were_measured():
    grids = replace(ORDER, is_fixed=False)
    new = candidate("Q8_0", "bf16", "bf16")

    assert len(EVERY) - 1 == ORDER.error_sharing_count(EVERY[1], EVERY[1:3])
    assert len(EVERY) == ORDER.error_sharing_count(EVERY[1], [new])
    assert (2, 1) == (
        grids.error_sharing_count(EVERY[1], EVERY[1:3]),
        grids.error_sharing_count(EVERY[1]),
    )
    assert 1 == replace(ORDER, candidates=EVERY[:1]).error_sharing_count(EVERY[0])


class TestBorder:
    def test_no_one_on_it_covers_another_and_all_others_are_covered(self):
        pairs = fitting(10.0)
        found = undominated_pairs(pairs)

        assert {*pairs} == {
            *found,
            *unmeasured_dominated_pairs(pairs, dict.fromkeys(found, bounds(0, 1))),
        }

    def test_only_what_fits_is_asked(self):
        targets, _ = walked(plain, 9.0)

        assert all(pair.size <= 9.0 for target in targets for pair in target.pairs)

    def test_all_of_it_is_asked_and_of_the_rest_one_as_a_check(self):
        targets, _ = walked(plain, 10.0)

        asked = [target.pairs[0] for target in targets if target.why is Why.BORDER]
        assert undominated_pairs(fitting(10.0)) == asked
        assert [Why.CHECK] == [t.why for t in targets if t.why is not Why.BORDER]

    def test_one_that_fails_gives_way_to_those_behind_it(self):
        broken = undominated_pairs(fitting(10.0))[0]

        _, known = walked(plain, 10.0, failing={broken})

        behind = undominated_pairs([p for p in fitting(10.0) if p != broken])
        assert {*behind} <= known.keys()

    def test_a_check_that_loses_less_has_the_rest_asked(self):
        targets, known = walked(lambda pair: pair.size / 100, 10.0)

        assert Why.UNSURE in {target.why for target in targets}
        assert {*fitting(10.0)} == known.keys()

    def test_nothing_is_asked_where_nothing_fits(self):
        assert next_budget_target(ORDER, {}, {}, []) is None

    def test_the_best_is_asked_further_where_that_may_decide_it(self):
        pairs = fitting(10.0)
        seen = dict.fromkeys(pairs, state(Decision.OPEN, needed=12))
        known = {pair: bounds(0.0, 0.02 + plain(pair)) for pair in pairs}

        target = next_budget_target(ORDER, seen, known, pairs)

        assert (Why.MORE, 16) == (target.why, target.goal)
        assert (pair_of_least_upper_loss(known),) == target.pairs


class TestInference:
    FINE, COARSE = candidate("Q8_0", "q8_0", "q8_0"), candidate("Q4_0", "q8_0", "q4_0")

    @pytest.mark.parametrize(("high", "is_better"), [(0.02, False), (0.019, True)])
    def test_a_coarser_one_is_better_only_if_intervals_are_apart(self, high, is_better):
        known = {self.FINE: bounds(0.02, 0.04), self.COARSE: bounds(0.0, high)}

        assert is_better == has_better_coarser_pair(known)

    def test_coarser_weights_and_a_coarser_cache_lose_no_less(self):
        known = {self.FINE: bounds(0.0, 0.01)}

        assert {self.COARSE: self.FINE} == unmeasured_dominated_pairs(
            [self.COARSE], known
        )

    @pytest.mark.parametrize("other", [("Q8_0", "f16", "q4_0"), ("Q4_0", "f16", "f16")])
    def test_a_finer_cache_or_weights_alone_tell_nothing(self, other):
        known = {self.FINE: bounds(0.0, 0.01)}

        assert {} == unmeasured_dominated_pairs([candidate(*other)], known)

    def test_one_that_is_shown_to_lose_less_ends_all_inference(self):
        known = {self.FINE: bounds(0.02, 0.03), self.COARSE: bounds(0.0, 0.01)}
        coarsest = candidate("Q4_0", "q4_0", "q4_0")

        assert has_better_coarser_pair(known)
        assert {} == unmeasured_dominated_pairs([coarsest], known)

    def test_the_best_is_the_one_with_the_lowest_upper_end(self):
        known = {self.FINE: bounds(0.0, 0.03), self.COARSE: bounds(0.01, 0.02)}

        assert self.COARSE == pair_of_least_upper_loss(known)
        assert pair_of_least_upper_loss({self.FINE: bounds(0.0, float("inf"))}) is None
