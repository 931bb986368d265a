"""Memory of KV caches: by hand, by the header, and as the real program answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import made_weights
from gguf_files import SHAPE, gguf_bytes

from codeneedle.cache_types import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    CONTEXTS,
    AvailableMemory,
    Buffers,
    Caches,
    allowance_bytes,
    cache_bytes,
    cacheless,
    longest_context,
    misfit,
    plain_caches,
    predicted,
    room_of,
    stored_bits,
    type_misfit,
    usual_contexts,
)
from codeneedle.models.weights import weights_of
from codeneedle.records.record import KvBuffer

F16, Q4 = Pair("f16", "f16"), Pair("q4_0", "q4_0")


def weights(**changes):
    """A small model; *changes* are keys of it without the architecture's name."""
    keys = {f"llama.{name}": value for name, value in changes.items()}
    header = parse(gguf_bytes({**SHAPE, **keys}))
    return weights_of(header, files=[Path("m.gguf")], size_bytes=0)


def plain_size(found, pair, context):
    """Size of the cache of *pair*, by the header alone."""
    return plain_caches(found, 131_072).size(context, Pair.parse(str(pair)))


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
    assert None is plain_caches(weights(**key), 1024)


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
    assert mib * MIB == WINDOWED.size(context)


def test_a_further_token_takes_what_grows():
    assert 6 * MIB / 4096 == WINDOWED.per_token


@pytest.mark.parametrize(("pair", "share"), [("q8_0/q8_0", 34 / 64), ("f16/f16", 1)])
def test_bits_of_types_tell_the_size_of_other_pairs(pair, share):
    assert 10 * MIB * share == WINDOWED.size(4096, Pair.parse(pair))


@pytest.mark.parametrize(
    ("layers", "values", "told"), [(30, 192, 2.81), (36, 1024, 18.0), (7, 40, 0.14)]
)
def test_a_size_that_a_log_rounds_is_that_of_its_layers_and_heads(layers, values, told):
    """A log tells MiB with two digits, of 256 cells."""
    cache = buffer(256, layers=layers, k_mib=told, v_mib=told)

    assert 2 * layers * 256 * values * 2 == Caches((cache,), 256).size(256)


def test_beyond_what_was_told_a_window_may_not_have_been_full():
    """Both caches hold all 1,024 tokens: which of them has a window is not known."""
    both = Caches((buffer(1024), buffer(1024)), 1024)

    assert 12 * MIB == both.size(1024)
    assert None is both.size(1025)


def test_a_type_of_unknown_size_has_no_prediction():
    assert None is WINDOWED.size(1024, Pair("turbo3", "f16"))
    assert None is Caches((), 1024).size(1024)


def test_head_sizes_say_which_types_they_take():
    """Head size 80 takes no type with blocks of 32; a fork's type is for its server."""
    found = replace(weights(), key_length=80, value_length=80)

    assert "block of 32 does not divide head size 80" == type_misfit(found, "q4_0")
    assert "block of 32 does not divide head size 80" == misfit(
        found, Pair("f16", "q4_0")
    )
    assert misfit(found, F16) is None
    assert {None} == {type_misfit(found, "bf16"), type_misfit(weights(), "turbo3")}


def test_latent_attention_wants_equal_types():
    """DeepSeek's K and V are one; llama.cpp refuses two types for them."""
    found = replace(weights(), architecture="deepseek2", is_mla=True)

    assert "both types are equal" in (misfit(found, Pair("f16", "q8_0")) or "")
    assert 4 * 2 * 64 * 2 * 256 == plain_size(found, F16, 256)


GIB, MIB = 1 << 30, 1 << 20
SMALL = weights_of(
    parse(gguf_bytes(SHAPE)), files=[Path("m.gguf")], size_bytes=100 * MIB
)
LARGE = replace(
    SMALL,
    size_bytes=4 * GIB,
    layers=36,
    kv_heads=(8,) * 36,
    key_length=128,
    value_length=128,
    vocabulary=151_936,
    embedding=2560,
    training_context=131_072,
)
"""As large as a model of four billion parameters."""


def needed(weights, pair, context):
    """All that a server would take, in bytes."""
    cache = plain_size(weights, pair, context)
    return weights.size_bytes + cache + allowance_bytes(weights, context)


@pytest.mark.parametrize(
    ("trained", "contexts"),
    [
        (0, CONTEXTS),
        (512, (512,)),
        (8192, (1024, 4096, 8192)),
        (131_072, tuple(1024 * times for times in (1, 4, 16, 32, 64, 128))),
        (262_144, (*CONTEXTS, 262_144)),
    ],
)
def test_the_contexts_go_up_to_the_training_context(trained, contexts):
    assert contexts == usual_contexts(trained)


def served(_pair):
    """No pair is refused."""
    return ""


def test_the_pairs_of_a_plan_have_an_order():
    names = ("f16/f16", "q8_0/q4_0", "q4_0/q8_0", "q4_0/q4_0", "turbo3/q8_0")
    wanted = [Pair.parse(name) for name in names]
    caches = plain_caches(LARGE, LARGE.training_context)

    plan = predicted(
        LARGE, caches, sorted(wanted), AvailableMemory(16 * GIB, "here"), refusal=served
    )

    assert wanted == [each.pair for each in plan.pairs]
    assert plain_size(LARGE, F16, 1024) == plan.pairs[0].kv_bytes[0]
    assert len(plan.contexts) == len(plan.allowance_bytes)
    assert {None} == {*plan.pairs[-1].kv_bytes, plan.pairs[-1].longest_context}


def longest(found, pair, room, *, most=None):
    """The longest context that fits, by the header alone."""
    most = most or found.training_context
    return longest_context(found, plain_caches(found, most), pair, room)


@pytest.mark.parametrize("gib", [5, 6, 8, 16])
@pytest.mark.parametrize("pair", [F16, Pair("q8_0", "q4_0")])
def test_the_longest_context_fits_and_the_next_one_does_not(pair, gib):
    """It is exact to the step of 256 tokens to which servers round."""
    room = AvailableMemory(gib * GIB, "here")
    found = longest(LARGE, pair, room)

    assert 0 == found % 256
    assert found == 0 or needed(LARGE, pair, found) <= room.size_bytes
    assert (
        found == LARGE.training_context
        or needed(LARGE, pair, found + 256) > room.size_bytes
    )


@pytest.mark.parametrize(
    ("found", "pair", "size_bytes", "expected"),
    [
        (replace(SMALL, training_context=5000), F16, 999 * GIB, 5000),
        (LARGE, Q4, 4 * GIB, 0),
    ],
)
def test_a_longest_context_has_limits(found, pair, size_bytes, expected):
    assert expected == longest(found, pair, AvailableMemory(size_bytes, "here"))


def test_an_odd_training_context_is_not_rounded_up():
    odd = replace(LARGE, training_context=5000)
    room = AvailableMemory(needed(odd, F16, 4864), "here")

    assert 4864 == longest(odd, F16, room)


COMPUTED = {256: 3, 1024: 7, 4096: 10, 8192: 14, 32768: 38}
"""MiB of buffers by context, as llama-fit-params of b11434 tells of a gemma3."""


def test_buffers_that_are_told_at_two_contexts_are_known_at_others():
    buffers = Buffers({each: COMPUTED[each] * MIB for each in (8192, 32_768)})

    sizes = {each: buffers.size(each) / MIB for each in COMPUTED}
    assert COMPUTED == pytest.approx({**sizes, 256: 3})
    assert COMPUTED[256] < sizes[256]  # less than a micro-batch of 512
    assert 14 * MIB == Buffers({8192: 14 * MIB}).size(1024)


def test_buffers_that_an_engine_tells_take_the_place_of_an_estimate():
    told = Buffers({4096: 9 * GIB})
    room = AvailableMemory(9 * GIB, "here")

    estimated = allowance_bytes(SMALL, 4096)
    assert allowance_bytes(SMALL, 4096, buffers=told) - estimated > 8 * GIB
    caches = plain_caches(SMALL, 8192)
    assert 8192 == longest_context(SMALL, caches, F16, room)
    assert 0 == longest_context(SMALL, caches, F16, room, told)


@pytest.mark.parametrize("context", [4096, 131_072])
def test_the_allowance_grows_with_vocabulary_and_context(context):
    """Scores, eight hidden states, a mask, one layer's K and V in f16, half a GiB."""
    batch = 4 * 151_936 + 8 * 4 * 2560 + 6 * context
    layer = context * 8 * (128 + 128) * 2

    assert 512 * batch + layer + (1 << 29) == allowance_bytes(LARGE, context)


@pytest.mark.parametrize(
    ("devices", "mib", "where"),
    [
        (["CUDA0 NVIDIA L4 (22563 MiB)"], 22563, "of CUDA"),
        (["CUDA0 A (100 MiB)", "CUDA1 A (50 MiB)"], 150, "of CUDA, 2 devices"),
        (["CUDA0 A (100 MiB)", "Vulkan0 A (101 MiB)"], 101, "of Vulkan"),
        (["MTL0 Apple M3 (Pro) (12124 MiB)", "BLAS Accelerate (0 MiB)"], 12124, None),
        (["Metal Apple M3 (12124 MiB)"], 12124, "of Metal"),
        (["RPC0[10.0.0.2:50052] RPC (4000 MiB)"], 4000, None),
        ([], 8192, "of this machine"),
        (["BLAS Accelerate (0 MiB)", "something else"], 8192, "of this machine"),
    ],
)
def test_devices_tell_their_memory(devices, mib, where):
    """One device listed by two backends counts once; two of one backend add up."""
    room = room_of(devices, 8 * GIB)

    assert mib * MIB == room.size_bytes
    assert where in {None, room.where}


@pytest.mark.parametrize(
    ("pair", "equal"), [("kv8/kv4", "q8_0/q4_0"), ("f16/kv6", "f16/q6_0")]
)
def test_types_of_mlx_take_as_much_as_blocks_of_32_with_one_scale(pair, equal):
    """Two numbers of 16 bits for 64 values, as llama.cpp has one for 32."""
    found, expected = (plain_size(made_weights(), each, 4096) for each in (pair, equal))

    assert expected == found > 0


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"bert.attention.causal": False}, "bert is an encoder: it has no cache"),
        (
            {"bert.attention.head_count": 0},
            "bert keeps a state instead of K and V: cache types change nothing",
        ),
        ({"bert.attention.head_count_kv": (0, 4)}, ""),
    ],
)
def test_weights_without_a_cache_are_told_by_their_header(keys, reason):
    shape = {
        "general.architecture": "bert",
        "bert.block_count": 2,
        "bert.embedding_length": 256,
        "bert.attention.head_count": 4,
    }
    header = parse(gguf_bytes({**shape, **keys}))

    assert reason == cacheless(
        weights_of(header, files=[Path("bert.gguf")], size_bytes=1)
    )


def test_the_size_of_a_cache_is_exact_although_its_log_rounds_it():
    """512 cells of 4 layers with 160 values of K: 0.625 and 0.332 MiB."""
    plain, quantized = (
        KvBuffer(cells=512, layers=4, k_type=name, v_type=name, k_mib=size, v_mib=0.0)
        for name, size in (("bf16", 0.62), ("q8_0", 0.33))
    )

    assert (640 * 1024, 0.0) == cache_bytes(plain)
    assert (340 * 1024, 0.0) == cache_bytes(quantized)


def test_the_size_of_a_tiny_cache_is_that_of_round_heads():
    """256 cells of a layer with 128 values of K: 64 KiB, and 60 KiB is as near."""
    tiny = KvBuffer(
        cells=256, layers=1, k_type="f16", v_type="q8_0", k_mib=0.06, v_mib=0.03
    )

    assert (64 * 1024, 34 * 1024) == cache_bytes(tiny)


def cache(k, v, k_mib, v_mib, cells=4096):
    """A cache of 8 layers as a log states it."""
    return KvBuffer(cells=cells, layers=8, k_type=k, v_type=v, k_mib=k_mib, v_mib=v_mib)


def test_a_type_of_a_fork_has_the_bits_that_its_cache_takes():
    """Not those of its name: turbo3 stores 3.5 with its scales."""
    plain, fork = cache("f16", "q8_0", 64.0, 34.0), cache("turbo3", "f16", 14.0, 64.0)
    found = stored_bits([plain, fork])

    assert (3.5, 16.0, 8.5) == (found["turbo3"], found["f16"], found["q8_0"])


def test_a_type_of_a_fork_is_unknown_without_another_of_the_same_place():
    elsewhere = [cache("f16", "f16", 64.0, 64.0), cache("turbo3", "f16", 14.0, 64.0, 8)]

    assert "turbo3" not in stored_bits(elsewhere)
    assert "turbo3" not in stored_bits([cache("turbo3", "turbo3", 14.0, 14.0)])
