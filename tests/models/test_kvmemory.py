"""Predicted KV memory: by hand, by published numbers, and by a real server's log."""

import contextlib
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes

from codeneedle.grid import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import kv_bytes, refusal, why_not
from codeneedle.models.weights import weights_of
from codeneedle.system import processes
from codeneedle.text import mib


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


def windowed(architecture, **changes):
    found = weights(architecture=architecture, block_count=8)
    return replace(found, sliding_window=1024, **changes)


@pytest.mark.parametrize(
    ("pair", "bytes_per_token"),
    [
        ("f16/f16", 4 * 2 * 64 * 4.0),
        ("q8_0/q8_0", 4 * 2 * 64 * 2 * 34 / 32),
        ("q8_0/q4_0", 4 * 2 * 64 * (34 + 18) / 32),
        ("q5_1/q4_1", 4 * 2 * 64 * (24 + 20) / 32),
    ],
)
def test_each_layer_keeps_its_kv_heads(pair, bytes_per_token):
    """
    4 layers, 2 KV heads of 64: K and V at the size of their blocks.
    """
    assert 4096 * bytes_per_token == kv_bytes(weights(), Pair.parse(pair), 4096)


def test_a_context_is_rounded_up_as_llama_cpp_does():
    """
    A context of 1 token costs as much as one of 256.
    """
    pair = Pair("f16", "f16")

    assert kv_bytes(weights(), pair, 256) == kv_bytes(weights(), pair, 1)
    assert kv_bytes(weights(), pair, 512) == kv_bytes(weights(), pair, 257)


def test_published_sizes_are_met():
    """
    24 layers of 4 heads of 64 at 32,768 tokens: 768, 408 and 216 MiB.
    """
    found = replace(weights(), layers=24, kv_heads=(4,) * 24)
    sizes = [
        mib(kv_bytes(found, Pair(name, name), 32_768) or 0)
        for name in ("f16", "q8_0", "q4_0")
    ]

    assert [768, 408, 216] == sizes


def test_layers_without_kv_heads_cost_nothing():
    """
    A hybrid's state-space layers have no KV heads.
    """
    found = replace(
        weights(), architecture="granitehybrid", kv_heads=(0, 0, 2, 0), has_state=True
    )
    whole = kv_bytes(weights(), Pair("f16", "f16"), 1024)

    assert whole is not None
    assert whole // 4 == kv_bytes(found, Pair("f16", "f16"), 1024)


def test_every_fourth_layer_of_a_qwen3next_keeps_k_and_v():
    """
    The others are recurrent although the file gives them KV heads.
    """
    found = weights(architecture="qwen3next", block_count=8)

    assert 2 * 2 * 64 * 4 * 1024 == kv_bytes(found, Pair("f16", "f16"), 1024)


@pytest.mark.parametrize(
    ("architecture", "changes", "full"),
    [
        ("gemma3", {}, 1),  # 8 layers, every 6th is full
        ("gpt-oss", {}, 4),
        ("cohere2moe", {}, 2),
        ("gemma3", {"window_pattern": (True, False) * 4}, 4),
        ("gemma3", {"window_pattern": 4}, 2),
        ("llama", {}, 8),  # llama.cpp does not look at its window
    ],
)
def test_windows_hold_a_window_and_a_batch(architecture, changes, full):
    """
    Layers with a window keep 1,024 + 512 tokens of 16,384, the others all.
    """
    per_token = 2 * 64 * 4
    expected = per_token * (full * 16_384 + (8 - full) * 1536)

    assert expected == kv_bytes(
        windowed(architecture, **changes), Pair("f16", "f16"), 16_384
    )


def test_latent_attention_keeps_k_alone_and_wants_equal_types():
    """
    DeepSeek's K and V are one; llama.cpp refuses two types for them.
    """
    found = replace(weights(), architecture="deepseek2", is_mla=True)

    assert 4 * 2 * 64 * 2 * 256 == kv_bytes(found, Pair("f16", "f16"), 256)
    assert kv_bytes(found, Pair("f16", "q8_0"), 256) is None
    assert "types are equal" in (refusal(found, Pair("f16", "q8_0")) or "")


@pytest.mark.parametrize(
    "found",
    [
        replace(weights(), architecture="something-new"),
        replace(weights(), has_indexer=True),
        windowed("gemma4", window_pattern=None),
    ],
)
def test_what_is_not_known_is_not_guessed(found):
    """
    A new architecture, a sparse one and an unknown pattern have no prediction.
    """
    assert kv_bytes(found, Pair("f16", "f16"), 1024) is None


def test_an_unknown_type_has_no_prediction_but_no_reproach():
    """
    A fork's type is for its server to judge.
    """
    assert kv_bytes(weights(), Pair("turbo3", "f16"), 1024) is None
    assert why_not(weights(), "turbo3") is None


def test_a_block_that_does_not_divide_the_head_is_named():
    """
    Head size 80 takes no type with blocks of 32, and every type without.
    """
    found = replace(weights(), key_length=80, value_length=80)

    assert "block of 32 does not divide head size 80" == why_not(found, "q4_0")
    assert why_not(found, "bf16") is None
    assert refusal(found, Pair("f16", "f16")) is None
    assert kv_bytes(found, Pair("f16", "q4_0"), 1024) is None


LINE = re.compile(
    r"\( *(?P<cells>\d+) cells.*"
    r"K \(\w+\): +(?P<k>[\d.]+) MiB, V \(\w+\): +(?P<v>[\d.]+)"
)


def said_of_its_cache(argv, *, log):
    """The cells, and the MiB of K and V, that a server logs before it is ready."""
    env = processes.clean(os.environ)
    with processes.running([str(word) for word in argv], env=env, log=log) as child:
        while child.poll() is None:
            if said := LINE.search(log.read_text(errors="replace")):
                return int(said["cells"]), float(said["k"]), float(said["v"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.02)
    pytest.fail(log.read_text(errors="replace"))


@pytest.mark.real
@pytest.mark.parametrize("pair", ["bf16/bf16", "q8_0/q4_0", "q5_1/q4_1", "q4_0/q5_0"])
def test_the_prediction_is_what_a_real_server_takes(pair, llama_server, nano, tmp_path):
    """
    K and V of the log add up to the prediction, to the last digit that it shows.
    """
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

    predicted = kv_bytes(found, wanted, 5000)
    assert predicted is not None
    assert 5120 == cells
    assert mib(predicted) == pytest.approx(k_mib + v_mib, abs=0.011)
