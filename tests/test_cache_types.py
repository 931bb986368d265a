"""Pairs, precision and running order."""

import pytest

from codeneedle.cache_types import (
    BITS_PER_ELEMENT,
    DEFAULT_TYPES,
    Pair,
    bits,
    by_precision,
    finer_axes,
    most_precise,
    most_precise_first,
    shuffled,
    whole_grid,
)
from codeneedle.errors import BadInput


def test_a_pair_reads_back_what_it_prints():
    pair = Pair("q8_0", "q4_0")

    assert "q8_0/q4_0" == str(pair)
    assert pair == Pair.parse(" q8_0/q4_0 ")


def test_a_type_takes_as_much_as_its_blocks_in_files_of_weights():
    gguf = pytest.importorskip("gguf")
    stored = {
        kind.name.lower(): 8 * size / values
        for kind, (values, size) in gguf.GGML_QUANT_SIZES.items()
    }
    types = BITS_PER_ELEMENT.keys() & stored.keys()

    assert {*DEFAULT_TYPES} <= types
    assert {k: stored[k] for k in types} == {k: BITS_PER_ELEMENT[k] for k in types}


@pytest.mark.parametrize("text", ["", "q8_0", "q8_0/", "/q4_0", "a/b/c"])
def test_anything_else_is_no_pair(text):
    with pytest.raises(BadInput, match="not a pair") as caught:
        Pair.parse(text)

    assert "q8_0/q4_0" in caught.value.hint


def test_types_are_ordered_by_precision_and_unknown_ones_come_last():
    assert ["f32", "bf16", "q8_0", "q4_0", "turbo"] == by_precision(
        ["turbo", "q4_0", "bf16", "q8_0", "f32", "q4_0"]
    )


def test_a_type_of_mlx_takes_half_a_bit_for_scale_and_bias():
    bits = {int(name[2:]): at for name, at in BITS_PER_ELEMENT.items() if "kv" in name}

    assert {each: each + 0.5 for each in (8, 6, 5, 4, 3, 2)} == bits


def test_types_of_other_engines_have_16_bits_at_most():
    assert [16.0, 16.0, None] == [bits(name) for name in ("auto", "x16", "x17")]


@pytest.mark.parametrize(
    "types",
    [
        ("auto", "fp8", "turboquant_4bit_nc"),
        ("bf16", "fp8_e5m2", "fp4_e2m1"),
        ("f16", "kv8", "kv6", "kv4", "kv2"),
        ("FP16", "Q8", "6", "4"),
        ("f16", "q8_0", "q6_1", "q3_0"),
    ],
)
def test_types_of_other_engines_are_ordered_by_the_bits_in_their_names(types):
    assert list(types) == by_precision(reversed(types))
    assert Pair(types[0], types[0]) == most_precise(Pair(t, t) for t in types[::-1])


def test_the_reference_among_types_of_equal_size_does_not_depend_on_their_order():
    """A sweep that goes on another day must not change its reference."""
    pairs = [Pair("fp8_e5m2", "fp8_e5m2"), Pair("fp8_e4m3", "fp8_e4m3")]

    assert most_precise(pairs) == most_precise(reversed(pairs))


def test_pairs_are_as_precise_as_the_coarser_of_k_and_v():
    pairs = [
        "bf16/bf16",
        "bf16/q8_0",
        "q8_0/bf16",
        "q8_0/q8_0",
        "bf16/q4_0",
        "q4_0/bf16",
    ]
    ordered = [Pair.parse(pair) for pair in pairs]

    assert ordered == most_precise_first(reversed(ordered))
    assert Pair("q8_0", "q8_0") == most_precise(ordered[3:])


@pytest.mark.parametrize(
    ("pair", "axes"),
    [
        ("bf16/q4_0", ["K"]),
        ("q4_0/bf16", ["V"]),
        ("f16/bf16", ["K", "V"]),
        ("q8_0/q4_0", []),
        ("turbo/q8_0", []),
    ],
)
def test_an_axis_is_finer_with_more_bits(pair, axes):
    assert axes == finer_axes(Pair.parse(pair), Pair("q8_0", "q8_0"))
    assert [] == finer_axes(Pair("f16", "f32"), Pair("bf16", "f16"))


def test_the_running_order_is_shuffled_whole_and_the_same_for_a_seed():
    order = shuffled(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=42)

    assert 36 == len(set(order)) == len(order)
    assert order != sorted(order)
    assert order == shuffled(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=42)
    assert order != shuffled(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=43)


def test_a_smaller_grid_keeps_the_order_of_what_is_left():
    """Growing a grid later does not reshuffle what was run."""
    few = shuffled(whole_grid(["q8_0", "q4_0"], ["q8_0", "q4_0"]), seed=1)
    many = shuffled(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=1)

    assert few == [pair for pair in many if pair in set(few)]
