"""Which context fits, by what caches and buffers take of the memory there is."""

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes

from codeneedle.cache_types import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    CONTEXTS,
    AvailableMemory,
    Buffers,
    Caches,
    available_memory,
    bytes_beside_weights_and_cache,
    caches_of_plain_attention,
    longest_context,
    predict_memory,
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
    return caches_of_plain_attention(found, 131_072).cache_bytes_at(
        context, Pair.parse(str(pair))
    )


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
    return weights.size_bytes + cache + bytes_beside_weights_and_cache(weights, context)


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
    caches = caches_of_plain_attention(LARGE, LARGE.training_context)

    plan = predict_memory(
        LARGE, caches, sorted(wanted), AvailableMemory(16 * GIB, "here"), refusal=served
    )

    assert wanted == [each.pair for each in plan.pairs]
    assert plain_size(LARGE, F16, 1024) == plan.pairs[0].kv_bytes[0]
    assert len(plan.contexts) == len(plan.allowance_bytes)
    assert {None} == {*plan.pairs[-1].kv_bytes, plan.pairs[-1].longest_context}


def buffer(cells, k_mib, v_mib):
    """A cache in f16 as a log states it."""
    types = {"k_type": "f16", "v_type": "f16"}
    return KvBuffer(cells=cells, layers=4, k_mib=k_mib, v_mib=v_mib, **types)


def test_the_largest_pair_of_a_plan_is_that_of_its_longest_context():
    """V is the larger one in a window, and K where the whole context is kept."""
    found = replace(SMALL, training_context=8192)
    caches = Caches((buffer(4096, 4.0, 1.0), buffer(1024, 1.0, 5.0)), 4096)
    pairs = [Pair("f16", "q4_0"), Pair("q4_0", "f16")]
    room = AvailableMemory(GIB, "here")
    plan = predict_memory(found, caches, pairs[::-1], room, refusal=served)

    assert pairs == [each.pair for each in plan.pairs]
    first, second = (each.kv_bytes for each in plan.pairs)
    assert [True, True, False] == [
        ours < theirs for ours, theirs in zip(first, second, strict=True)
    ]


def test_a_plan_tells_whether_an_engine_was_asked_and_which_pairs_are_refused():
    room = AvailableMemory(16 * GIB, "here")
    caches = caches_of_plain_attention(SMALL, 8192)
    told = replace(caches, is_by_header=False)
    plans = [
        predict_memory(
            SMALL, each, [F16, Q4], room, refusal=lambda pair: "no" * (pair == Q4)
        )
        for each in (caches, told, None)
    ]

    assert [True, False, False] == [plan.is_by_header for plan in plans]
    assert not Caches((), 256).is_by_header
    for plan in plans:
        assert {F16: None, Q4: "no"} == {each.pair: each.misfit for each in plan.pairs}
        refused = next(each for each in plan.pairs if each.pair == Q4)
        assert {None} == {*refused.kv_bytes, refused.longest_context}


def longest(found, pair, room, *, most=None):
    """The longest context that fits, by the header alone."""
    most = most or found.training_context
    return longest_context(found, caches_of_plain_attention(found, most), pair, room)


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

    sizes = {each: buffers.buffer_bytes_at(each) / MIB for each in COMPUTED}
    assert COMPUTED == pytest.approx({**sizes, 256: 3})
    assert COMPUTED[256] < sizes[256]  # less than a micro-batch of 512
    assert 14 * MIB == Buffers({8192: 14 * MIB}).buffer_bytes_at(1024)


def test_buffers_between_two_contexts_are_whole_bytes():
    assert [10, 14, 17, 20, 20] == [
        Buffers({2: 10, 5: 20}).buffer_bytes_at(context) for context in (2, 3, 4, 5, 6)
    ]
    assert 10 == Buffers({4: 10, 5: 20}).buffer_bytes_at(4)


def test_a_model_without_attention_is_allowed_no_layer_in_f16():
    batch = 4 * SMALL.vocabulary + 8 * 4 * SMALL.embedding + 6 * 4096

    found = bytes_beside_weights_and_cache(replace(SMALL, kv_heads=()), 4096)

    assert 512 * batch + (1 << 29) == found


def test_buffers_that_an_engine_tells_take_the_place_of_an_estimate():
    told = Buffers({4096: 9 * GIB})
    room = AvailableMemory(9 * GIB, "here")

    estimated = bytes_beside_weights_and_cache(SMALL, 4096)
    assert (
        bytes_beside_weights_and_cache(SMALL, 4096, buffers=told) - estimated > 8 * GIB
    )
    caches = caches_of_plain_attention(SMALL, 8192)
    assert 8192 == longest_context(SMALL, caches, F16, room)
    assert 0 == longest_context(SMALL, caches, F16, room, told)


@pytest.mark.parametrize("context", [4096, 131_072])
def test_the_allowance_grows_with_vocabulary_and_context(context):
    """Scores, eight hidden states, a mask, one layer's K and V in f16, half a GiB."""
    batch = 4 * 151_936 + 8 * 4 * 2560 + 6 * context
    layer = context * 8 * (128 + 128) * 2

    assert 512 * batch + layer + (1 << 29) == bytes_beside_weights_and_cache(
        LARGE, context
    )


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
    room = available_memory(devices, 8 * GIB)

    assert mib * MIB == room.size_bytes
    assert where in {None, room.where}


def cache(k, v, k_mib, v_mib, cells=4096):
    """A cache of 8 layers as a log states it."""
    return KvBuffer(cells=cells, layers=8, k_type=k, v_type=v, k_mib=k_mib, v_mib=v_mib)
