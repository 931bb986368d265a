"""Pairs, precision and running order."""

import re
from types import SimpleNamespace

import pytest

from codeneedle.cache_types import (
    BITS_PER_ELEMENT,
    DEFAULT_TYPES,
    Pair,
    bits_per_value,
    distinct_most_precise_first,
    finer_axes,
    most_precise,
    most_precise_first,
    pairs_by,
    pairs_phrase,
    shuffle_pairs,
    whole_grid,
)
from codeneedle.errors import BadInput
from codeneedle.reference import reference_among


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

    assert "q8_0/q" in caught.value.hint


def test_types_are_ordered_by_precision_and_unknown_ones_come_last():
    assert ["f32", "bf16", "q8_0", "q4_0", "turbo"] == distinct_most_precise_first(
        ["turbo", "q4_0", "bf16", "q8_0", "f32", "q4_0"]
    )


def test_a_type_of_mlx_takes_half_a_bit_for_scale_and_bias():
    bits = {int(name[2:]): at for name, at in BITS_PER_ELEMENT.items() if "kv" in name}

    assert {each: each + 0.5 for each in (8, 6, 5, 4, 3, 2)} == bits


def test_a_cache_that_is_not_quantized_has_16_bits_whatever_it_is_called():
    assert [16.0, 16.0] == [bits_per_value(name) for name in ("auto", "BFloat16")]


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
    assert list(types) == distinct_most_precise_first(reversed(types))
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
    order = shuffle_pairs(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=42)

    assert 36 == len(set(order)) == len(order)
    assert order != sorted(order)
    assert order == shuffle_pairs(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=42)
    assert order != shuffle_pairs(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=43)


def test_a_smaller_grid_keeps_the_order_of_what_is_left():
    """Growing a grid later does not reshuffle what was run."""
    few = shuffle_pairs(whole_grid(["q8_0", "q4_0"], ["q8_0", "q4_0"]), seed=1)
    many = shuffle_pairs(whole_grid(DEFAULT_TYPES, DEFAULT_TYPES), seed=1)

    assert few == [pair for pair in many if pair in set(few)]


@pytest.mark.parametrize(
    ("count", "named"),
    [
        (1, "t0/f16"),
        (4, "t0/f16, t1/f16, t2/f16, t3/f16"),
        (5, "t0/f16, t1/f16, t2/f16, t3/f16 and 1 more"),
        (7, "t0/f16, t1/f16, t2/f16, t3/f16 and 3 more"),
    ],
)
def test_a_line_names_four_pairs_and_counts_those_beyond(count, named):
    assert named == pairs_phrase([Pair(f"t{at}", "f16") for at in range(count)])


def test_the_pairs_of_a_key_are_named_once_in_their_order():
    one, other = Pair("q8_0", "q8_0"), Pair("f16", "f16")
    keyed = [("b", one), ("a", other), ("b", other), ("b", one)]

    assert {"b": [one, other], "a": [other]} == pairs_by(keyed)


@pytest.mark.parametrize(
    ("in_kernel", "chosen"),
    [
        ({"f16": False, "q8_0": True, "q4_0": True}, "q8_0"),
        ({"f16": False, "q8_0": False}, "f16"),
        ({"f16": True, "q8_0": False}, "f16"),
    ],
)
def test_the_reference_is_in_a_kernel_if_any_pair_is(in_kernel, chosen):
    cells = [
        SimpleNamespace(pair=Pair(each, each), ran_as_usual=is_there)
        for each, is_there in in_kernel.items()
    ]

    assert Pair(chosen, chosen) == reference_among(cells[::-1])
    assert reference_among([]) is None


@pytest.mark.parametrize(
    ("pair", "is_plain"),
    [
        ("f16/bf16", True),
        ("f32/f32", True),
        ("auto/auto", True),
        ("f16/q8_0", False),
        ("q8_0/f16", False),
        ("turbo/f16", False),
    ],
)
def test_a_pair_without_quantized_types_is_plain(pair, is_plain):
    assert is_plain == Pair.parse(pair).is_unquantized


def test_a_pair_of_any_names_has_a_file_name_of_its_own():
    """Names are cut at 60 characters, those with other characters at 40."""
    longest, longer = "a" * 60, "a" * 61

    assert "q8_0-q4_0" == Pair("q8_0", "q4_0").slug
    assert longest == Pair(longest, "f16").slug.removesuffix("-f16")
    slugs = [Pair(each, "f16").slug for each in (longer, longest, "a/b", "a:b", "a_b")]
    assert 5 == len({*slugs})
    assert re.fullmatch(r"a{40}~[0-9a-f]{12}-f16", slugs[0])
    assert re.fullmatch(r"a_b~[0-9a-f]{12}-f16", slugs[2])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x0", None), ("x1", 1.0), ("x16", 16.0), ("x17", None), ("turbo", None)],
)
def test_a_number_in_the_name_of_a_type_is_its_bits_from_1_to_16(name, expected):
    assert expected == bits_per_value(name)


def test_types_of_unknown_size_are_finer_than_none_and_come_behind_all():
    assert ["kv2", "x1", "turbo"] == distinct_most_precise_first(["turbo", "x1", "kv2"])
    assert [] == finer_axes(Pair("turbo", "turbo"), Pair("x1", "x1"))
    assert ["K", "V"] == finer_axes(Pair("x1", "x1"), Pair("turbo", "turbo"))
