"""Memory of KV caches: by hand, by the header, and as the real program answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import made_weights
from gguf_files import SHAPE, gguf_bytes

from codeneedle.cache_types import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    MOST_ROUNDED,
    ROUNDING_BYTES,
    Caches,
    bits_by_cache_type,
    caches_of_plain_attention,
    exact_k_and_v_bytes,
    why_cacheless,
    why_misfit,
)
from codeneedle.models.weights import weights_of
from codeneedle.records.record import KvBuffer

F16 = Pair("f16", "f16")
MIB = 1 << 20


def weights(**changes):
    """A small model; *changes* are keys of it without the architecture's name."""
    keys = {f"llama.{name}": value for name, value in changes.items()}
    header = parse(gguf_bytes({**SHAPE, **keys}))
    return weights_of(header, files=[Path("m.gguf")], size_bytes=0)


def plain_size(found, pair, context):
    """Size of the cache of *pair*, by the header alone."""
    return caches_of_plain_attention(found, 131_072).cache_bytes_at(
        context, Pair.parse(str(pair))
    )


@pytest.mark.parametrize(
    ("pair", "bytes_per_value"),
    [
        ("f16/f16", 4.0),
        ("q8_0/q8_0", 2 * 34 / 32),
        ("q8_0/q4_0", (34 + 18) / 32),
        ("q5_1/q4_1", (24 + 20) / 32),
    ],
)
@pytest.mark.parametrize(
    ("context", "cells"), [(1, 256), (256, 256), (257, 512), (4096, 4096)]
)
def test_each_layer_of_a_plain_model_keeps_its_kv_heads(
    pair, bytes_per_value, context, cells
):
    """4 layers with 2 KV heads of 64; a context is rounded up as llama.cpp does."""
    kept = 4 * 2 * 64 * bytes_per_value * cells

    assert kept == plain_size(weights(), pair, context)


@pytest.mark.parametrize(
    "key",
    [
        {"attention.sliding_window": 512},
        {"attention.shared_kv_layers": 2},
        {"attention.indexer.head_count": 2},
        {"full_attention_interval": 4},
        {"ssm.state_size": 64},
        {"shortconv.l_cache": 3},
        {"attention.head_count_kv": [2, 0, 2, 2]},
    ],
)
def test_a_header_alone_tells_no_size_of_caches_that_are_not_plain(key):
    assert None is caches_of_plain_attention(weights(**key), 1024)


def buffer(cells, *, layers=4, k_mib=4.0, v_mib=2.0, k_type="f16", v_type="f16"):
    """A cache in a log."""
    return KvBuffer(
        cells=cells,
        layers=layers,
        k_type=k_type,
        v_type=v_type,
        k_mib=k_mib,
        v_mib=v_mib,
    )


WINDOWED = Caches((buffer(4096), buffer(1024, k_mib=2.0)), 4096)
"""A cache of 1.5 KiB a token, and one of 4 KiB that holds 1,024 tokens."""


@pytest.mark.parametrize(
    ("context", "mib"),
    [(256, 1.375), (1024, 5.5), (2048, 7.0), (4096, 10.0), (8192, 16.0)],
)
def test_a_sliding_window_stays_as_it_is_at_a_longer_context(context, mib):
    assert mib * MIB == WINDOWED.cache_bytes_at(context)


def test_a_further_token_takes_what_grows():
    assert 6 * MIB / 4096 == WINDOWED.added_bytes_per_token


@pytest.mark.parametrize(("pair", "share"), [("q8_0/q8_0", 34 / 64), ("f16/f16", 1)])
def test_bits_of_types_tell_the_size_of_other_pairs(pair, share):
    assert 10 * MIB * share == WINDOWED.cache_bytes_at(4096, Pair.parse(pair))


@pytest.mark.parametrize(
    ("layers", "values", "told"), [(30, 192, 2.81), (36, 1024, 18.0), (7, 40, 0.14)]
)
def test_a_size_that_a_log_rounds_is_that_of_its_layers_and_heads(layers, values, told):
    """A log tells MiB with two digits, of 256 cells."""
    cache = buffer(256, layers=layers, k_mib=told, v_mib=told)

    assert 2 * layers * 256 * values * 2 == Caches((cache,), 256).cache_bytes_at(256)


def test_beyond_what_was_told_a_window_may_not_have_been_full():
    """Both caches hold all 1,024 tokens: which of them has a window is not known."""
    both = Caches((buffer(1024), buffer(1024)), 1024)

    assert 12 * MIB == both.cache_bytes_at(1024)
    assert None is both.cache_bytes_at(1025)


def test_a_type_of_unknown_size_has_no_prediction():
    assert None is WINDOWED.cache_bytes_at(1024, Pair("turbo3", "f16"))
    assert None is Caches((), 1024).cache_bytes_at(1024)


@pytest.mark.parametrize(("cells", "mib"), [(0, 0.0), (1, 6 * 256), (2, 3 * 256)])
def test_a_cache_has_the_size_of_its_cells_and_none_has_none(cells, mib):
    """Of 6 MiB as told; 256 cells are what a server makes."""
    assert mib * MIB == Caches((buffer(cells),), cells).cache_bytes_at(cells and 256)


def test_head_sizes_say_which_types_they_take(golden):
    """Head size 80 takes no type with blocks of 32; a fork's type is for its server."""
    found = replace(weights(), key_length=80, value_length=80)

    def misfit(facts, name):
        return why_misfit(facts, Pair("f16", name))

    assert golden == misfit(found, "q4_0")
    assert misfit(found, "q4_0") == why_misfit(found, Pair("q4_0", "f16"))
    odd = replace(weights(), key_length=81, value_length=81)
    assert {""} == {
        misfit(found, "f16"),
        misfit(found, "bf16"),
        misfit(weights(), "turbo3"),
        misfit(odd, "bf16"),
        misfit(odd, "turbo3"),
    }


def test_latent_attention_wants_equal_types(golden):
    """DeepSeek's K and V are one; llama.cpp refuses two types for them."""
    found = replace(weights(), architecture="deepseek2", is_mla=True)

    flash = replace(weights(), architecture="deepseek4")

    for model in (found, flash):
        assert golden == why_misfit(model, Pair("f16", "q8_0"))
        assert "" == why_misfit(model, Pair("q8_0", "q8_0"))
    assert 4 * 2 * 64 * 2 * 256 == plain_size(found, F16, 256)


@pytest.mark.parametrize(
    ("pair", "equal"), [("kv8/kv4", "q8_0/q4_0"), ("f16/kv6", "f16/q6_0")]
)
def test_types_of_mlx_take_as_much_as_blocks_of_32_with_one_scale(pair, equal):
    """Two numbers of 16 bits for 64 values, as llama.cpp has one for 32."""
    found, expected = (plain_size(made_weights(), each, 4096) for each in (pair, equal))

    assert expected == found > 0


@pytest.mark.parametrize(
    ("keys", "has_cache"),
    [
        ({"bert.attention.causal": False}, False),
        ({"bert.attention.head_count": 0}, False),
        ({"bert.attention.head_count_kv": (0, 4)}, True),
    ],
    ids=["an encoder", "a state", "a cache"],
)
def test_weights_without_a_cache_are_told_by_their_header(keys, has_cache, golden):
    shape = {
        "general.architecture": "bert",
        "bert.block_count": 2,
        "bert.embedding_length": 256,
        "bert.attention.head_count": 4,
    }
    header = parse(gguf_bytes({**shape, **keys}))

    reason = why_cacheless(weights_of(header, files=[Path("bert.gguf")], size_bytes=1))

    assert has_cache == (not reason)
    assert golden == reason


def test_the_size_of_a_cache_is_exact_although_its_log_rounds_it():
    """512 cells of 4 layers with 160 values of K: 0.625 and 0.332 MiB."""
    plain, quantized = (
        KvBuffer(cells=512, layers=4, k_type=name, v_type=name, k_mib=size, v_mib=0.0)
        for name, size in (("bf16", 0.62), ("q8_0", 0.33))
    )

    assert (640 * 1024, 0.0) == exact_k_and_v_bytes(plain)
    assert (340 * 1024, 0.0) == exact_k_and_v_bytes(quantized)


def test_the_size_of_a_tiny_cache_is_that_of_round_heads():
    """256 cells of a layer with 128 values of K: 64 KiB, and 60 KiB is as near."""
    tiny = KvBuffer(
        cells=256, layers=1, k_type="f16", v_type="q8_0", k_mib=0.06, v_mib=0.03
    )

    assert (64 * 1024, 34 * 1024) == exact_k_and_v_bytes(tiny)


def cache(k, v, k_mib, v_mib, cells=4096):
    """A cache of 8 layers as a log states it."""
    return KvBuffer(cells=cells, layers=8, k_type=k, v_type=v, k_mib=k_mib, v_mib=v_mib)


def test_a_type_of_a_fork_has_the_bits_that_its_cache_takes():
    """Not those of its name: turbo3 stores 3.5 with its scales."""
    plain, fork = cache("f16", "q8_0", 64.0, 34.0), cache("turbo3", "f16", 14.0, 64.0)
    found = bits_by_cache_type([plain, fork])

    assert (3.5, 16.0, 8.5) == (found["turbo3"], found["f16"], found["q8_0"])


@pytest.mark.parametrize("values", [1024, 512, 256, 128, 64, 32, 16, 8])
def test_of_sizes_that_a_log_rounds_alike_that_of_the_roundest_heads_counts(values):
    """0.02 MiB are 16 KiB of so many values in each cell, or 20 KiB of fewer."""
    cells = 8192 // values
    tiny = KvBuffer(
        cells=cells, layers=1, k_type="f16", v_type="turbo3", k_mib=0.02, v_mib=0.02
    )

    assert (16 * 1024, 0.02 * MIB) == exact_k_and_v_bytes(tiny)


@pytest.mark.parametrize(
    ("mib", "is_known"),
    [(2.49, False), (ROUNDING_BYTES / MOST_ROUNDED / MIB, True), (2.51, True)],
    ids=["more", "as much", "less"],
)
def test_a_type_of_a_fork_is_measured_where_a_log_rounds_a_five_hundredth(
    mib, is_known
):
    """A hundredth of a MiB is the last digit: half of it of 2.5 MiB is 0.002."""
    caches = [cache("f16", "f16", 16.0, 16.0), cache("turbo3", "f16", mib, 16.0)]

    assert is_known == ("turbo3" in bits_by_cache_type(caches))


def test_a_type_of_a_fork_is_unknown_without_another_of_the_same_place():
    elsewhere = [cache("f16", "f16", 64.0, 64.0), cache("turbo3", "f16", 14.0, 64.0, 8)]

    assert "turbo3" not in bits_by_cache_type(elsewhere)
    assert "turbo3" not in bits_by_cache_type([cache("turbo3", "turbo3", 14.0, 14.0)])
