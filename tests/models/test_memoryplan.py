"""Memory, planned: what every pair takes, and how long a context may be."""

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes

from codeneedle.grid import DEFAULT_TYPES, Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    CONTEXTS,
    LONGEST_CONTEXT,
    RESERVE_BYTES,
    Room,
    allowance_bytes,
    kv_bytes,
    kv_parts,
    longest_context,
    predicted,
    room_of,
    usual_contexts,
)
from codeneedle.models.weights import weights_of

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
F16, Q4 = Pair("f16", "f16"), Pair("q4_0", "q4_0")


def needed(weights, pair, context):
    """All that a server would take, in bytes."""
    cache = kv_bytes(weights, pair, context)
    return weights.size_bytes + cache + allowance_bytes(weights, context)


def test_the_contexts_go_up_to_the_training_context():
    """
    Longer ones cannot be served, so they are not offered.
    """
    assert (1024, 4096, 8192) == usual_contexts(8192)
    assert CONTEXTS == usual_contexts(131_072)
    assert (*CONTEXTS, 262_144) == usual_contexts(262_144)
    assert (512,) == usual_contexts(512)


def test_weights_that_do_not_say_get_all_contexts():
    """
    An unknown training context forbids nothing.
    """
    assert CONTEXTS == usual_contexts(0)


def test_the_largest_pair_comes_first():
    """
    A plan has every pair, sorted by what it takes.
    """
    plan = predicted(LARGE, [Q4, Pair("q8_0", "q4_0"), F16], Room(16 * GIB, "here"))

    assert [F16, Pair("q8_0", "q4_0"), Q4] == [each.pair for each in plan.pairs]
    assert kv_bytes(LARGE, F16, 1024) == plan.pairs[0].kv_bytes[0]
    assert len(plan.contexts) == len(plan.allowance_bytes)


def test_pairs_of_equal_size_have_an_order():
    """
    The more precise K comes first, whatever the running order is.
    """
    pairs = [Pair("q4_0", "q8_0"), Pair("q8_0", "q4_0")]

    plan = predicted(LARGE, pairs, Room(16 * GIB, "here"))

    assert pairs[::-1] == [each.pair for each in plan.pairs]


def test_pairs_that_cannot_be_predicted_come_last():
    """
    A type that only a fork knows is a gap, not a zero.
    """
    plan = predicted(LARGE, [Pair("turbo3", "q8_0"), F16], Room(16 * GIB, "here"))
    last = plan.pairs[-1]

    assert Pair("turbo3", "q8_0") == last.pair
    assert {None} == {*last.kv_bytes, last.longest_context}


def test_a_refused_pair_says_why():
    """
    Blocks that do not divide the head size are known before anything starts.
    """
    odd = replace(LARGE, key_length=80, value_length=80)

    plan = predicted(odd, [Q4], Room(16 * GIB, "here"))

    assert "block of 32 does not divide head size 80" == plan.pairs[0].refusal
    assert None is plan.pairs[0].longest_context


@pytest.mark.parametrize("gib", [5, 6, 8, 12, 16])
@pytest.mark.parametrize("pair", [F16, Q4, Pair("q8_0", "q4_0")])
def test_the_longest_context_fits_and_the_next_one_does_not(pair, gib):
    """
    It is exact to the step of 256 tokens to which servers round.
    """
    room = Room(gib * GIB, "here")
    found = longest_context(LARGE, pair, room)

    assert 0 == found % 256
    assert found == 0 or needed(LARGE, pair, found) <= room.size_bytes
    assert (
        found == LARGE.training_context
        or needed(LARGE, pair, found + 256) > room.size_bytes
    )


def test_smaller_pairs_allow_longer_contexts():
    """
    That is what people quantize a cache for.
    """
    room = Room(8 * GIB, "here")

    assert longest_context(LARGE, F16, room) < longest_context(LARGE, Q4, room)


def test_the_training_context_is_the_limit():
    """
    Memory in plenty allows what the weights were trained for, even an odd number.
    """
    odd = replace(SMALL, training_context=5000)

    assert 5000 == longest_context(odd, F16, Room(999 * GIB, "here"))


def test_an_odd_training_context_is_not_rounded_up():
    """
    What nearly fits ends at a step below it.
    """
    odd = replace(LARGE, training_context=5000)
    room = Room(needed(odd, F16, 4864), "here")

    assert 4864 == longest_context(odd, F16, room)


def test_weights_that_do_not_say_end_somewhere():
    """
    Without a training context, there is still a longest one.
    """
    unknown = replace(SMALL, training_context=0)

    assert LONGEST_CONTEXT == longest_context(unknown, F16, Room(1 << 60, "here"))


def test_weights_that_do_not_fit_allow_nothing():
    """
    Zero tokens say so.
    """
    assert 0 == longest_context(LARGE, Q4, Room(4 * GIB, "here"))


def test_the_allowance_grows_with_vocabulary_and_context():
    """
    Scores of 151,936 tokens take 297 MiB for a micro-batch, whatever the context.
    """
    short = allowance_bytes(LARGE, 4096)

    assert short > RESERVE_BYTES + 296 * MIB
    assert allowance_bytes(LARGE, 131_072) > short


@pytest.mark.parametrize("v", DEFAULT_TYPES)
@pytest.mark.parametrize("k", DEFAULT_TYPES)
def test_k_and_v_are_predicted_apart(k, v):
    """
    With equal heads, each takes what its type does.
    """
    k_bytes, v_bytes = kv_parts(LARGE, Pair(k, v), 4096)

    assert kv_bytes(LARGE, Pair(k, k), 4096) == 2 * k_bytes
    assert kv_bytes(LARGE, Pair(v, v), 4096) == 2 * v_bytes


def test_a_latent_attention_keeps_no_v():
    """
    All of its cache is K.
    """
    latent = replace(LARGE, is_mla=True)

    assert (kv_bytes(latent, Q4, 4096), 0.0) == kv_parts(latent, Q4, 4096)
    assert None is kv_parts(latent, Pair("q8_0", "q4_0"), 4096)


def test_without_devices_the_machine_is_the_room():
    """
    A server on the processor fills the machine's memory.
    """
    assert Room(8 * GIB, "of this machine") == room_of([], 8 * GIB)


@pytest.mark.parametrize(
    ("devices", "mib", "where"),
    [
        (["CUDA0 NVIDIA L4 (22563 MiB)"], 22563, "of CUDA"),
        (["CUDA0 A (100 MiB)", "CUDA1 A (50 MiB)"], 150, "of CUDA, 2 devices"),
        (["CUDA0 A (100 MiB)", "Vulkan0 A (101 MiB)"], 101, "of Vulkan"),
        (["MTL0 Apple M3 (Pro) (12124 MiB)", "BLAS Accelerate (0 MiB)"], 12124, None),
        (["Metal Apple M3 (12124 MiB)"], 12124, "of Metal"),
        (["RPC0[10.0.0.2:50052] RPC (4000 MiB)"], 4000, None),
    ],
)
def test_devices_tell_their_memory(devices, mib, where):
    """
    One device listed by two backends counts once; two of one backend add up.
    """
    room = room_of(devices, 8 * GIB)

    assert mib * MIB == room.size_bytes
    assert where in {None, room.where}


def test_devices_that_tell_nothing_leave_the_machine():
    """
    A library for the processor lists itself with no memory at all.
    """
    devices = ["BLAS Accelerate (0 MiB)", "something else"]

    assert 8 * GIB == room_of(devices, 8 * GIB).size_bytes
