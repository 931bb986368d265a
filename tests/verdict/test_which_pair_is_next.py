"""Which pair a sweep that decides asks next, and how it shares the error."""

import math
from dataclasses import replace

import pytest
from made_losses import OPEN, losing_run

from codeneedle.cache_types import (
    DEFAULT_TYPES,
    FIRST,
    Pair,
    bits_per_value,
    whole_grid,
)
from codeneedle.cli.sweep import step_phrase
from codeneedle.verdict.asking_order import (
    Order,
    PairState,
    StepTarget,
    Why,
    is_strictly_finer,
    next_target,
    pairs_ruled_out_by_finer,
)
from codeneedle.verdict.judge import judge
from codeneedle.verdict.next import NextStep
from codeneedle.verdict.statistics import ALPHA, Decision, error_share

EIGHT, MIXED, FOUR = FIRST


def state(decision, *, units=12, needed=None, is_below=False):
    """A pair of which so much was seen."""
    return PairState(decision=decision, units=units, needed=needed, is_below=is_below)


WITHIN, BEYOND = state(Decision.WITHIN), state(Decision.BEYOND)
OTHERS = whole_grid(DEFAULT_TYPES, DEFAULT_TYPES)[1:]
ORDER = Order(pairs=tuple(map(str, OTHERS)), looks=(12, 24, 48, 96))


def pair(text):
    return Pair.parse(text)


def is_open(*, needed=None, units=12, is_below=True):
    return state(Decision.OPEN, units=units, needed=needed, is_below=is_below)


def asked(seen, order=ORDER):
    """What is asked next: pairs as text, the goal and why."""
    found = next_target(order, {pair(text): each for text, each in seen.items()})
    return found and (" ".join(map(str, found.pairs)), found.goal, found.why)


def run_through(truth, order=ORDER):
    """The pairs that are asked in turn, with the words of *truth*."""
    seen, turns = {}, []
    while found := next_target(order, seen):
        seen |= {each: state(truth(each)) for each in found.pairs}
        turns.append((found.why, *map(str, found.pairs)))
    return seen, turns


# Sharing the error


def test_half_of_the_error_is_for_the_first_three_and_half_for_all_others():
    shares = [error_share(0, ORDER.error_sharing_count(each)) for each in OTHERS]

    assert ALPHA / 2 == pytest.approx(sum(shares))
    assert 6 == ORDER.error_sharing_count(EIGHT)
    assert 64 == ORDER.error_sharing_count(pair("q5_1/q5_1"))


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [(("q8_0/q8_0", "q4_0/q4_0"), 2), (("q5_1/q5_1", "q5_0/q5_0", "q4_1/q4_1"), 3)],
)
def test_without_others_or_without_first_ones_all_of_it_is_shared(pairs, expected):
    order = Order(pairs=pairs)

    assert {expected} == {
        order.error_sharing_count(each) for each in order.eligible_pairs
    }


def test_a_pair_that_a_grid_has_measured_as_well_shares_in_the_second_half():
    order = Order(pairs=("q8_0/q8_0", "q5_1/q5_1"))
    more = [pair("q5_0/q5_0"), pair("q5_1/q5_1")]

    assert [2, 4] == [
        order.error_sharing_count(each, more) for each in (EIGHT, more[0])
    ]


def test_looks_that_it_skips_have_shares_of_their_own_behind_all_others():
    order = Order(pairs=("q8_0/q8_0",), looks=(32, 40), skipped=2)

    assert [2, 3, 0, 1] == [order.look_number_in_order(look) for look in range(4)]
    assert [0, 1] == [ORDER.look_number_in_order(look) for look in range(2)]


# What follows from other pairs


@pytest.mark.parametrize(
    ("finer", "coarser", "expected"),
    [
        ("q8_0/q4_0", "q4_0/q4_0", True),
        ("q8_0/q4_0", "q8_0/q4_0", False),
        ("q8_0/q4_0", "q4_0/q8_0", False),
        ("bf16/q4_0", "f16/q4_0", False),
        ("q4_0/q4_0", "iq4_nl/q4_0", False),
        ("q8_0/q4_0", "odd/q4_0", False),
    ],
)
def test_a_pair_covers_what_is_less_precise(finer, coarser, expected):
    assert expected == is_strictly_finer(pair(finer), pair(coarser))


def test_what_a_pair_beyond_covers_is_ruled_out_by_the_coarsest_such_pair():
    words = {pair("q5_0/bf16"): Decision.BEYOND, pair("q5_0/q5_1"): Decision.BEYOND}
    others = map(pair, ["q4_0/bf16", "q4_0/q5_0", "q8_0/q4_0"])

    assert {
        pair("q4_0/bf16"): pair("q5_0/bf16"),
        pair("q4_0/q5_0"): pair("q5_0/q5_1"),
    } == pairs_ruled_out_by_finer(words, others)


def test_nothing_is_ruled_out_once_a_measured_pair_contradicts():
    words = {pair("q5_0/q5_0"): Decision.BEYOND, pair("q4_0/q4_0"): Decision.WITHIN}

    assert {} == pairs_ruled_out_by_finer(words, [pair("q4_1/q4_1")])


# What is next


def test_the_first_three_come_first_those_that_there_are():
    few = Order(pairs=("q8_0/q8_0", "q5_1/q5_1", "q4_0/q4_0"), looks=(24, 48))

    assert ("q8_0/q8_0 q8_0/q4_0 q4_0/q4_0", 12, Why.FIRST) == asked({})
    assert ("q8_0/q8_0 q4_0/q4_0", 24, Why.FIRST) == asked({}, few)
    assert ("q4_0/q4_0", 24, Why.FIRST) == asked({"q8_0/q8_0": WITHIN}, few)


def test_then_pairs_smaller_than_what_is_within_that_settle_most_of_the_others():
    first = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": BEYOND, "q4_0/q4_0": BEYOND}
    name, goal, why = asked(first)

    assert (12, Why.SMALLER) == (goal, why)
    assert not is_strictly_finer(MIXED, pair(name))
    assert _bits(pair(name)) < _bits(EIGHT)


def test_a_pair_in_the_middle_settles_itself_and_those_on_its_side():
    few = ("q8_0/q8_0", "q5_1/q5_1", "q5_1/q5_0", "q5_0/q5_0")
    order = Order(pairs=few, looks=(12,))

    assert ("q5_1/q5_0", 12, Why.SMALLER) == asked({"q8_0/q8_0": WITHIN}, order)


def test_of_pairs_that_settle_as_many_the_smaller_one_is_asked():
    order = Order(pairs=("q5_1/q4_0", "q4_0/q5_0"), looks=(12,))

    assert ("q4_0/q5_0", 12, Why.SMALLER) == asked({}, order)
    order = Order(pairs=order.pairs[::-1], looks=(12,))
    assert ("q4_0/q5_0", 12, Why.SMALLER) == asked({}, order)


def test_an_open_pair_that_its_next_look_decides_comes_before_new_ones():
    first = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": is_open(needed=20), "q4_0/q4_0": BEYOND}

    assert ("q8_0/q4_0", 24, Why.MORE) == asked(first)
    far = first | {"q8_0/q4_0": is_open(needed=60)}
    assert Why.SMALLER is asked(far)[2]
    above = first | {"q8_0/q4_0": is_open(needed=20, is_below=False)}
    assert Why.SMALLER is asked(above)[2]


def test_while_nothing_is_within_the_open_pair_that_needs_fewest_is_asked():
    first = {"q8_0/q8_0": is_open(needed=60), "q4_0/q4_0": BEYOND}
    first |= {"q8_0/q4_0": is_open(needed=80)}

    assert ("q8_0/q8_0", 24, Why.MORE) == asked(first)
    further = first | {"q8_0/q8_0": is_open(needed=50, units=48)}
    assert ("q8_0/q8_0", 96, Why.MORE) == asked(further)
    last = first | {"q8_0/q8_0": is_open(needed=96, units=48), "q8_0/q4_0": BEYOND}
    assert ("q8_0/q8_0", 96, Why.MORE) == asked(last)
    never = first | {name: is_open(needed=200) for name in ("q8_0/q8_0", "q8_0/q4_0")}
    assert Why.SMALLER is asked(never)[2]


def test_what_is_covered_by_an_open_pair_above_the_limit_comes_last():
    few = ("q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0", "q5_1/q5_1", "q8_0/q5_1")
    order = Order(pairs=few, looks=(12,))
    first = {"q8_0/q8_0": WITHIN, "q4_0/q4_0": BEYOND}
    first |= {"q8_0/q4_0": WITHIN, "q8_0/q5_1": is_open(is_below=False)}

    assert ("q5_1/q5_1", 12, Why.UNLIKELY) == asked(first, order)


def test_an_open_pair_that_a_later_look_decides_comes_before_unlikely_ones():
    few = ("q8_0/q8_0", "q8_0/q5_1", "q5_1/q5_1", "q5_1/q5_0", "q4_0/q4_0")
    order = Order(pairs=few, looks=(12, 24, 48))
    seen = {
        "q8_0/q8_0": WITHIN,
        "q4_0/q4_0": BEYOND,
        "q5_1/q5_1": is_open(is_below=False),
    }

    assert ("q8_0/q5_1", 12, Why.SMALLER) == asked(seen, order)
    seen["q8_0/q5_1"] = is_open(needed=40)
    assert ("q8_0/q5_1", 48, Why.MORE) == asked(seen, order)
    seen["q8_0/q5_1"] = is_open(needed=60, units=48)
    assert ("q5_1/q5_0", 12, Why.UNLIKELY) == asked(seen, order)


def test_pairs_whose_k_is_predicted_to_lose_too_much_come_last():
    few = ("q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0", "q5_1/q4_0", "q8_0/q4_1")
    order = Order(pairs=few, looks=(12,), unborne=("q5_1", "q4_0"))

    assert (EIGHT, MIXED) == order.first_step_pairs
    assert ("q8_0/q8_0 q8_0/q4_0", 12, Why.FIRST) == asked({}, order)
    seen = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": BEYOND}
    assert ("q8_0/q4_1", 12, Why.SMALLER) == asked(seen, order)
    seen["q8_0/q4_1"] = BEYOND
    assert Why.CHECK is asked(seen, order)[2]
    seen = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": WITHIN}
    assert ("q5_1/q4_0", 12, Why.UNBORNE) == asked(seen, order)


def test_of_predicted_pairs_that_cover_none_the_smallest_is_asked():
    few = ("q8_0/f16", "q5_1/q4_0", "q4_0/q8_0")
    order = Order(pairs=few, looks=(12,), unborne=("q5_1", "q4_0"))

    assert ("q5_1/q4_0", 12, Why.UNBORNE) == asked({"q8_0/f16": WITHIN}, order)


def test_of_the_error_half_is_for_the_pairs_of_the_first_step_that_the_weights_bear():
    order = replace(ORDER, unborne=("q4_0",))

    assert 4 == order.error_sharing_count(EIGHT)
    assert 2 * (len(OTHERS) - 2) == order.error_sharing_count(FOUR)
    shares = [error_share(0, order.error_sharing_count(each)) for each in OTHERS]
    assert ALPHA / 2 == pytest.approx(sum(shares))


def test_each_reason_for_a_step_has_words_of_its_own():
    verdict = judge(losing_run({"q8_0/q8_0": [0.0] * 8}))
    said = [
        step_phrase(
            NextStep(asked=StepTarget((FOUR,), 12, why), goals={}, time_s=0), verdict
        )
        for why in Why
    ]

    assert len(Why) == len({*said})


def by_sum(limit):
    """Words of a truth in which K carries the damage."""
    k_loss = dict(zip(DEFAULT_TYPES, (0, 1, 10, 20, 60, 110), strict=True))
    v_loss = dict(zip(DEFAULT_TYPES, (0, 1, 2, 3, 6, 8), strict=True))

    def word(each):
        return (
            Decision.WITHIN
            if k_loss[each.k] + v_loss[each.v] <= limit
            else Decision.BEYOND
        )

    return word


@pytest.mark.parametrize("unborne", [(), ("q4_1", "q4_0"), DEFAULT_TYPES[2:]])
@pytest.mark.parametrize("limit", [0, 1, 2, 5, 9, 12, 30, 68, 150])
def test_it_finds_the_smallest_pair_and_checks_one_that_is_ruled_out(limit, unborne):
    """Whether what is predicted of K is true or not."""
    truth = by_sum(limit)
    seen, turns = run_through(truth, replace(ORDER, unborne=unborne))
    size = {each: _bits(each) for each in OTHERS}
    good = [each for each in OTHERS if truth(each) is Decision.WITHIN]
    found = [each for each, was in seen.items() if was.decision is Decision.WITHIN]

    best = min((size[each] for each in good), default=None)
    assert best == min((size[each] for each in found), default=None)
    assert len(turns) <= 13
    checks = [turn for turn in turns if turn[0] is Why.CHECK]
    assert len(checks) <= 1
    out = pairs_ruled_out_by_finer(
        {p: each.decision for p, each in seen.items()}, OTHERS
    )
    assert all(truth(each) is Decision.BEYOND for each in out)


def _bits(each):
    return bits_per_value(each.k) + bits_per_value(each.v)


def test_a_check_that_comes_out_within_opens_what_was_ruled_out():
    few = ("q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0", "q5_1/q4_0", "q5_0/q4_0")
    order = Order(pairs=few, looks=(12,))
    first = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": BEYOND, "q4_0/q4_0": BEYOND}

    assert ("q5_1/q4_0", 12, Why.CHECK) == asked(first, order)
    assert asked(first | {"q5_1/q4_0": BEYOND}, order) is None
    assert ("q5_0/q4_0", 12, Why.SMALLER) == asked(first | {"q5_1/q4_0": WITHIN}, order)


def test_a_pair_that_failed_is_not_asked_again():
    few = Order(pairs=("q8_0/q8_0", "q4_0/q4_0"), looks=(12,))
    seen = {
        "q8_0/q8_0": state(None, units=0),
        "q4_0/q4_0": state(None, units=0),
    }

    assert asked(seen, few) is None


def test_a_check_that_failed_is_asked_of_another_pair_that_is_ruled_out():
    few = ("q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0", "q5_1/q4_0", "q5_0/q4_0")
    order = Order(pairs=few, looks=(12,))
    seen = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": BEYOND, "q4_0/q4_0": BEYOND}
    failed = state(None, units=0)

    assert ("q5_0/q4_0", 12, Why.CHECK) == asked(seen | {"q5_1/q4_0": failed}, order)
    both = {"q5_1/q4_0": failed, "q5_0/q4_0": failed}
    assert asked(seen | both, order) is None


def test_what_is_larger_than_the_reference_is_not_asked():
    order = Order(pairs=("bf16/q4_0", "q5_1/q5_1", "q4_0/q4_0"), looks=(12,))
    found = next_target(order, {pair("q4_0/q4_0"): BEYOND}, EIGHT)

    assert (pair("q5_1/q5_1"),) == found.pairs
    seen = {pair("q4_0/q4_0"): BEYOND, pair("q5_1/q5_1"): BEYOND}
    assert next_target(order, seen, EIGHT) is None


def test_a_type_of_unknown_size_is_asked_as_it_may_be_smaller():
    order = Order(pairs=("q8_0/q8_0", "odd/odd", "q4_0/q4_0"), looks=(12,))
    first = {"q8_0/q8_0": WITHIN, "q4_0/q4_0": BEYOND}

    assert ("odd/odd", 12, Why.SMALLER) == asked(first, order)
    assert asked(first | {"odd/odd": WITHIN}, order) is None


def test_last_open_pairs_are_asked_that_more_functions_decide():
    few = Order(pairs=("q8_0/q8_0", "q8_0/q4_0"), looks=(12, 24, 48))
    seen = {"q8_0/q8_0": WITHIN, "q8_0/q4_0": is_open(needed=40)}

    assert ("q8_0/q4_0", 48, Why.MORE) == asked(seen, few)
    assert asked(seen | {"q8_0/q4_0": is_open(needed=50)}, few) is None
    assert asked(seen | {"q8_0/q4_0": is_open(needed=60, units=48)}, few) is None


FIRST_THREE = Order(pairs=tuple(map(str, FIRST)), looks=(12, 24, 48, 96))


@pytest.mark.parametrize(
    ("needed", "units", "goal"),
    [
        (12, 12, None),
        (13, 12, 24),
        (24, 12, 24),
        (25, 12, 48),
        (48, 12, 48),
        (96, 12, 96),
        (97, 12, None),
        (24, 13, 24),
        (25, 24, 48),
        (None, 12, None),
    ],
)
def test_an_open_pair_is_asked_at_the_look_that_is_likely_to_decide_it(
    needed, units, goal
):
    seen = {
        "q8_0/q8_0": WITHIN,
        "q8_0/q4_0": is_open(needed=needed, units=units),
        "q4_0/q4_0": BEYOND,
    }

    assert (goal and ("q8_0/q4_0", goal, Why.MORE)) == asked(seen, FIRST_THREE)


@pytest.mark.parametrize(("needed", "is_near"), [(24, True), (25, False)])
def test_a_new_pair_comes_before_an_open_one_whose_next_look_decides_nothing(
    needed, is_near
):
    seen = {
        "q8_0/q8_0": WITHIN,
        "q8_0/q4_0": is_open(needed=needed),
        "q4_0/q4_0": BEYOND,
    }

    assert (Why.MORE if is_near else Why.SMALLER) is asked(seen)[2]


@pytest.mark.parametrize(("needed", "goal"), [(24, 24), (25, 24), (96, 24)])
def test_while_nothing_is_within_an_open_pair_is_asked_at_its_next_look(needed, goal):
    seen = {
        "q8_0/q8_0": is_open(needed=needed),
        "q8_0/q4_0": BEYOND,
        "q4_0/q4_0": BEYOND,
    }

    assert ("q8_0/q8_0", goal, Why.MORE) == asked(seen)


def test_a_pair_above_the_limit_is_not_asked_for_more():
    seen = {
        "q8_0/q8_0": WITHIN,
        "q8_0/q4_0": is_open(needed=24, is_below=False),
        "q4_0/q4_0": BEYOND,
    }

    assert asked(seen, FIRST_THREE) is None


def test_without_looks_every_pair_is_asked_the_same():
    order = Order(pairs=("q8_0/q8_0", "q4_1/q4_1"))

    assert ("q8_0/q8_0", 0, Why.FIRST) == asked({}, order)
    assert ("q4_1/q4_1", 0, Why.SMALLER) == asked({"q8_0/q8_0": WITHIN}, order)
    within = {"q8_0/q8_0": WITHIN, "q4_1/q4_1": is_open(needed=24)}
    assert asked(within, order) is None


@pytest.mark.parametrize(
    ("candidate", "reference", "is_asked"),
    [
        ("bf16/bf16", None, False),
        ("bf16/q8_0", None, True),
        ("f32/f16", None, False),
        ("q8_0/q4_1", "q8_0/q4_1", False),
        ("q5_0/q5_0", "q8_0/q4_1", True),
        ("bf16/bf16", "f32/f16", True),
    ],
)
def test_while_nothing_is_within_pairs_smaller_than_the_reference_are_asked(
    candidate, reference, is_asked
):
    """Without one, smaller than what is not quantized."""
    order = Order(pairs=(candidate,))
    found = next_target(order, {}, reference and pair(reference))

    assert is_asked == (found is not None)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("f16/f16", 1.0),
        ("q8_0/q4_0", 13 / 32),
        ("f32/f16", 1.5),
        ("turbo/f16", math.inf),
        ("f16/turbo", math.inf),
    ],
)
def test_the_size_of_a_pair_is_that_of_its_bits_beside_sixteen(name, size):
    assert size == pair(name).size_to_compare


def test_a_pair_settles_itself_whichever_way_it_comes_out():
    """Within, the smaller one settles both; beyond, itself alone."""
    order = Order(pairs=("q5_1/q5_1", "q5_0/q5_0"))

    assert ("q5_0/q5_0", 0, Why.SMALLER) == asked({}, order)


def test_a_lost_order_is_shared_by_all_of_the_grid():
    """Among the few that were measured, intervals would be narrower than they are."""
    run = losing_run({"q8_0/q8_0": OPEN})
    types = ("bf16", "q8_0", "q4_0")
    setup = replace(run.setup, pairs=(), types_k=types, types_v=types)
    run = replace(run, setup=setup)

    def high(sweep):
        row = judge(replace(run, sweep=sweep)).result(Pair.parse("q8_0/q8_0"))
        return row.leading_result.bounds.high

    assert high("decide = true\n") > high("") == high("decide = [")


def test_an_order_without_pairs_shares_the_error_among_one():
    assert 1 == Order(pairs=()).error_sharing_count(EIGHT)
