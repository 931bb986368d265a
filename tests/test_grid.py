"""Pairs, precision and running order."""

import pytest

from codeneedle.errors import BadInput
from codeneedle.grid import (
    DEFAULT_TYPES,
    Pair,
    by_precision,
    most_precise,
    shuffled_grid,
)


def test_a_pair_reads_back_what_it_prints():
    """
    The text form of a pair is its name everywhere.
    """
    pair = Pair("q8_0", "q4_0")

    assert "q8_0/q4_0" == str(pair)
    assert pair == Pair.parse(" q8_0/q4_0 ")


@pytest.mark.parametrize("text", ["", "q8_0", "q8_0/", "/q4_0", "a/b/c"])
def test_anything_else_is_no_pair(text):
    """
    A mistyped pair is refused with the right form as hint.
    """
    with pytest.raises(BadInput, match="not a pair") as caught:
        Pair.parse(text)

    assert "q8_0/q4_0" in caught.value.hint


def test_types_are_ordered_by_precision_and_unknown_ones_come_last():
    """
    A fork's types are accepted, after all that are known.
    """
    assert ["f32", "bf16", "q8_0", "q4_0", "turbo3"] == by_precision(
        ["turbo3", "q4_0", "bf16", "q8_0", "f32", "q4_0"]
    )


def test_the_most_precise_pair_is_the_reference():
    """
    K decides before V.
    """
    pairs = [Pair("q4_0", "bf16"), Pair("bf16", "q4_0"), Pair("bf16", "q8_0")]

    assert Pair("bf16", "q8_0") == most_precise(pairs)


def test_the_running_order_is_shuffled_whole_and_the_same_for_a_seed():
    """
    Every pair once, not in order of precision, and again the same tomorrow.
    """
    order = shuffled_grid(DEFAULT_TYPES, DEFAULT_TYPES, seed=42)

    assert 36 == len(set(order)) == len(order)
    assert order != sorted(order)
    assert order == shuffled_grid(DEFAULT_TYPES, DEFAULT_TYPES, seed=42)
    assert order != shuffled_grid(DEFAULT_TYPES, DEFAULT_TYPES, seed=43)


def test_a_smaller_grid_keeps_the_order_of_what_is_left():
    """
    Growing a grid later does not reshuffle what was run.
    """
    few = shuffled_grid(["q8_0", "q4_0"], ["q8_0", "q4_0"], seed=1)
    many = shuffled_grid(DEFAULT_TYPES, DEFAULT_TYPES, seed=1)

    assert few == [pair for pair in many if pair in set(few)]
