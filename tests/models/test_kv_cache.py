"""Predicted KV memory: by hand, by published numbers, and by a real server's log."""

import contextlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import made_weights
from gguf_files import SHAPE, gguf_bytes

from codeneedle.grid import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import (
    CONTEXTS,
    Room,
    allowance_bytes,
    cache_bytes,
    cacheless,
    kv_bytes,
    kv_parts,
    longest_context,
    misfit,
    predicted,
    room_of,
    stored_bits,
    type_misfit,
    usual_contexts,
)
from codeneedle.models.weights import weights_of
from codeneedle.records.record import KvBuffer
from codeneedle.system import processes
from codeneedle.system.environment import inherited
from codeneedle.text import mib

F16, Q4 = Pair("f16", "f16"), Pair("q4_0", "q4_0")


def weights(**changes):
    """A small model; *changes* are keys of it without the architecture's name."""
    architecture = changes.pop("architecture", "llama")
    shape = {
        name.replace("llama.", f"{architecture}."): value
        for name, value in SHAPE.items()
    }
    keys = {f"{architecture}.{name}": value for name, value in changes.items()}
    header = parse(gguf_bytes({**shape, "general.architecture": architecture, **keys}))
    return weights_of(header, files=[Path("m.gguf")], size_bytes=0)


def windowed(architecture, *, layers=8, **changes):
    found = weights(architecture=architecture, block_count=layers)
    return replace(found, sliding_window=1024, **changes)


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
def test_each_layer_keeps_its_kv_heads(pair, bytes_per_value, context, cells):
    """4 layers with 2 KV heads of 64; a context is rounded up as llama.cpp does."""
    kept = 4 * 2 * 64 * bytes_per_value * cells

    assert kept == kv_bytes(weights(), Pair.parse(pair), context)


@pytest.mark.parametrize(
    ("found", "layers"),
    [
        (replace(weights(), architecture="granitehybrid", kv_heads=(0, 0, 2, 0)), 1),
        (weights(architecture="qwen3next", block_count=8), 2),
    ],
)
def test_layers_that_keep_no_k_and_v_cost_nothing(found, layers):
    """All but every fourth layer of qwen3next are recurrent, whatever they state."""
    assert layers * 2 * 64 * 4 * 1024 == kv_bytes(found, F16, 1024)


EVERY_FOURTH = (
    *("afmoe", "cohere2", "exaone-moe", "laguna", "mellum"),
    *("muse-glimmer", "olmo2"),
)


@pytest.mark.parametrize(
    ("architecture", "changes", "full"),
    [
        ("gemma3", {}, 1),  # 8 layers, every 6th is full
        ("plamo3", {"layers": 56}, 7),
        ("gemma3", {"window_pattern": (True, False) * 4}, 4),
        ("gemma3", {"window_pattern": 4}, 2),
        ("gemma3", {"window_pattern": 1}, 8),
        ("gemma3", {"window_pattern": 0}, 0),
        ("llama", {}, 8),  # llama.cpp does not look at its window
    ],
)
def test_windows_hold_a_window_and_a_batch(architecture, changes, full):
    """Layers with a window keep 1,024 + 512 tokens of 16,384, the others all."""
    per_token = 2 * 64 * 4
    found = windowed(architecture, **changes)
    expected = per_token * (full * 16_384 + (found.layers - full) * 1536)

    assert expected == kv_bytes(found, F16, 16_384)


@pytest.mark.parametrize(
    ("architecture", "stated", "window"),
    [
        ("gemma2", None, 4096),
        ("gemma3", None, 0),
        ("llama4", None, 8192),
        ("llama4", 1024, 8192),
        ("smallthinker", None, 0),
        ("smallthinker", 1024, 4096),
        ("gemma2", 1024, 1024),
        ("gemma2", 0, 0),
    ],
)
def test_an_architecture_may_have_a_window_of_its_own(architecture, stated, window):
    """Half of the layers here have one; without one, the cache is that of llama."""
    found = windowed(architecture, window_pattern=(True, False) * 4)
    kept = window + 512 if window else 16_384
    expected = 2 * 64 * 4 * 4 * (16_384 + kept)

    assert expected == kv_bytes(replace(found, sliding_window=stated), F16, 16_384)


PERIODS = {
    2: ("gemma2", "gpt-oss"),
    4: ("cohere2moe", *EVERY_FOURTH),
    5: ("gemma3n",),
    6: ("gemma3",),
}


@pytest.mark.parametrize(
    ("architecture", "period"),
    [(name, period) for period, names in PERIODS.items() for name in names],
)
def test_of_so_many_layers_one_has_no_window(architecture, period):
    """The last of each period, or the first: the 21st layer is such a one."""
    more = architecture in {"cohere2moe", "laguna"}
    full = 20 // period + more
    cells = full * 16_384 + (20 + more - full) * 1536

    found = windowed(architecture, layers=20 + more)
    assert 2 * 64 * 4 * cells == kv_bytes(found, F16, 16_384)


@pytest.mark.parametrize(
    ("architecture", "window"), [("llama4", 8192), ("smallthinker", 4096)]
)
def test_of_twelve_layers_with_a_window_of_their_own_three_have_none(
    architecture, window
):
    cells = 3 * 16_384 + 9 * (window + 512)

    expected = 2 * 64 * 4 * cells
    assert expected == kv_bytes(windowed(architecture, layers=12), F16, 16_384)


def test_latent_attention_keeps_k_alone_and_wants_equal_types():
    """DeepSeek's K and V are one; llama.cpp refuses two types for them."""
    found = replace(weights(), architecture="deepseek2", is_mla=True)

    assert 4 * 2 * 64 * 2 * 256 == kv_bytes(found, F16, 256)
    assert kv_bytes(found, Pair("f16", "q8_0"), 256) is None
    assert "both types are equal" in (misfit(found, Pair("f16", "q8_0")) or "")


@pytest.mark.parametrize(
    "found",
    [
        replace(weights(), architecture="something-new"),
        replace(weights(), has_indexer=True),
        windowed("gemma4", window_pattern=None),
    ],
)
def test_what_is_not_known_is_not_guessed(found):
    assert kv_bytes(found, F16, 1024) is None


def test_a_type_that_does_not_fit_or_is_unknown_has_no_prediction():
    """Head size 80 takes no type with blocks of 32; a fork's type is for its server."""
    found = replace(weights(), key_length=80, value_length=80)

    assert "block of 32 does not divide head size 80" == type_misfit(found, "q4_0")
    assert "block of 32 does not divide head size 80" == misfit(
        found, Pair("f16", "q4_0")
    )
    assert misfit(found, F16) is None
    assert kv_bytes(found, Pair("f16", "q4_0"), 1024) is None
    assert kv_bytes(weights(), Pair("turbo3", "f16"), 1024) is None
    assert {None} == {type_misfit(found, "bf16"), type_misfit(weights(), "turbo3")}


LINE = re.compile(
    r"\( *(?P<cells>\d+) cells.*"
    r"K \(\w+\): +(?P<k>[\d.]+) MiB, V \(\w+\): +(?P<v>[\d.]+)"
)


def said_of_its_cache(argv, *, log):
    """The cells, and the MiB of K and V, that a server logs before it is ready."""
    command = [str(word) for word in argv]
    with processes.running(command, env=inherited(), log=log) as child:
        while child.poll() is None:
            if said := LINE.search(log.read_text(errors="replace")):
                return int(said["cells"]), float(said["k"]), float(said["v"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.02)
    pytest.fail(log.read_text(errors="replace"))


@pytest.mark.real
@pytest.mark.parametrize("pair", ["bf16/q5_1", "q8_0/q4_0"])
def test_the_prediction_is_what_a_real_server_takes(pair, llama_server, nano, tmp_path):
    wanted = Pair.parse(pair)
    header = parse(nano.read_bytes())
    found = weights_of(header, files=[nano], size_bytes=nano.stat().st_size)

    cells, k_mib, v_mib = said_of_its_cache(
        [
            *(llama_server, "-m", nano, "-c", 5000, "-np", 1, "-fa", "on", "-t", 1),
            *("-ctk", wanted.k, "-ctv", wanted.v, "--fit", "off", "-lv", 4),
            *("--no-warmup", "--log-colors", "off", "--port", 0),
        ],
        log=tmp_path / "server.log",
    )

    size_bytes = kv_bytes(found, wanted, 5000)
    assert size_bytes is not None
    assert 5120 == cells
    assert mib(size_bytes) == pytest.approx(k_mib + v_mib, abs=0.011)


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
    cache = kv_bytes(weights, pair, context)
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


def test_the_pairs_of_a_plan_have_an_order():
    names = ("f16/f16", "q8_0/q4_0", "q4_0/q8_0", "q4_0/q4_0", "turbo3/q8_0")
    wanted = [Pair.parse(name) for name in names]

    plan = predicted(LARGE, sorted(wanted), Room(16 * GIB, "here"))

    assert wanted == [each.pair for each in plan.pairs]
    assert kv_bytes(LARGE, F16, 1024) == plan.pairs[0].kv_bytes[0]
    assert len(plan.contexts) == len(plan.allowance_bytes)
    assert {None} == {*plan.pairs[-1].kv_bytes, plan.pairs[-1].longest_context}


@pytest.mark.parametrize("gib", [5, 6, 8, 16])
@pytest.mark.parametrize("pair", [F16, Pair("q8_0", "q4_0")])
def test_the_longest_context_fits_and_the_next_one_does_not(pair, gib):
    """It is exact to the step of 256 tokens to which servers round."""
    room = Room(gib * GIB, "here")
    found = longest_context(LARGE, pair, room)

    assert 0 == found % 256
    assert found == 0 or needed(LARGE, pair, found) <= room.size_bytes
    assert (
        found == LARGE.training_context
        or needed(LARGE, pair, found + 256) > room.size_bytes
    )


@pytest.mark.parametrize(
    ("found", "pair", "size_bytes", "longest"),
    [
        (replace(SMALL, training_context=5000), F16, 999 * GIB, 5000),
        (replace(SMALL, training_context=0), F16, 1 << 60, 4_194_304),
        (LARGE, Q4, 4 * GIB, 0),
    ],
)
def test_a_longest_context_has_limits(found, pair, size_bytes, longest):
    assert longest == longest_context(found, pair, Room(size_bytes, "here"))


def test_an_odd_training_context_is_not_rounded_up():
    odd = replace(LARGE, training_context=5000)
    room = Room(needed(odd, F16, 4864), "here")

    assert 4864 == longest_context(odd, F16, room)


@pytest.mark.parametrize("context", [4096, 131_072])
def test_the_allowance_grows_with_vocabulary_and_context(context):
    """Scores, eight hidden states, a mask, one layer's K and V in f16, half a GiB."""
    batch = 4 * 151_936 + 8 * 4 * 2560 + 6 * context
    layer = context * 8 * (128 + 128) * 2

    assert 512 * batch + layer + (1 << 29) == allowance_bytes(LARGE, context)


@pytest.mark.parametrize(("k", "v"), [("bf16", "q4_0"), ("q4_1", "q8_0")])
def test_k_and_v_are_predicted_apart(k, v):
    k_bytes, v_bytes = kv_parts(LARGE, Pair(k, v), 4096)

    assert kv_bytes(LARGE, Pair(k, k), 4096) == 2 * k_bytes
    assert kv_bytes(LARGE, Pair(v, v), 4096) == 2 * v_bytes


def test_a_latent_attention_keeps_no_v():
    latent = replace(LARGE, is_mla=True)

    assert (kv_bytes(latent, Q4, 4096), 0.0) == kv_parts(latent, Q4, 4096)
    assert None is kv_parts(latent, Pair("q8_0", "q4_0"), 4096)


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
    found, expected = (
        kv_bytes(made_weights(), Pair.parse(each), 4096) for each in (pair, equal)
    )

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
