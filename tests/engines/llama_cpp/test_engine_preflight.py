"""Where attention would run, asked of a server that may choose."""

import pytest
from made_servers import fake_launch

from codeneedle.engines.llama_cpp.arguments import Launch
from codeneedle.engines.llama_cpp.installation import ask
from codeneedle.engines.llama_cpp.server import in_doubt, preflight
from codeneedle.grid import Pair
from codeneedle.records.record import Status

LEFT = (
    "resolve_fused_ops: layer 0 is assigned to device CUDA0 but Flash Attention is "
    "assigned to device CPU (usually due to missing support)"
)
GPU = ("CUDA0 NVIDIA L4 (22563 MiB)",)


def asked(folder, *faults):
    """What the fake server with *faults* says of attention."""
    return preflight(fake_launch(*faults), log=folder / "preflight.log", folder=folder)


@pytest.mark.parametrize(
    ("pair", "doubtful"),
    [
        ("f16/f16", False),
        ("bf16/bf16", False),
        ("q8_0/q8_0", False),
        ("q4_0/q4_0", False),
        ("q8_0/f16", True),
        ("f16/bf16", True),
        ("f32/f32", True),
        ("turbo3/f16", True),
        ("q8_0/q4_0", False),
        ("q5_1/q5_1", False),
        ("f16/turbo3", False),
    ],
)
def test_only_pairs_that_not_every_build_has_are_in_doubt(pair, doubtful):
    """
    Those with different types, and those with a type of which some builds have none;
    of a quantized V a server says nothing, so nobody asks it.
    """
    assert doubtful is in_doubt(Pair.parse(pair), devices=GPU, extra=())


def test_without_an_accelerator_nothing_is_in_doubt():
    """
    Attention has nowhere to fall back to.
    """
    assert not in_doubt(Pair("q8_0", "f16"), devices=(), extra=())


@pytest.mark.parametrize("argument", ["-nkvo", "--no-kv-offload"])
def test_who_keeps_the_cache_on_the_host_wants_attention_there(argument):
    """
    What was asked for is no fallback.
    """
    assert not in_doubt(Pair("q8_0", "f16"), devices=GPU, extra=("-t", "4", argument))


def test_attention_that_would_leave_the_accelerator_is_told(tmp_path):
    """
    By the server itself, asked with flash attention left to its choice.
    """
    trouble = asked(tmp_path, f"say-if=auto={LEFT}")

    assert Status.FALLBACK_CPU is trouble.status
    assert LEFT == trouble.reason


def test_a_server_that_ends_over_it_has_told_it_first(tmp_path):
    """
    A quantized V cannot do without flash attention, so its server does not start.
    """
    trouble = asked(tmp_path, f"say={LEFT}", "die=1")

    assert Status.FALLBACK_CPU is trouble.status


@pytest.mark.parametrize("faults", [(), ("die=1",), ("types=f16/f16",)])
def test_whatever_else_is_wrong_is_left_to_the_cell(faults, tmp_path):
    """
    A preflight only looks for fallbacks; the cell itself tells the rest.
    """
    assert None is asked(tmp_path, *faults)


def test_a_preflight_asks_for_little(tmp_path):
    """
    The smallest context; whatever else the cell asks for stays.
    """
    asked(tmp_path)

    log = (tmp_path / "preflight.log").read_text()
    assert "n_ctx_seq             = 256" in log
    assert "K (q8_0)" in log
    assert "V (q4_0)" in log


@pytest.mark.real
def test_the_real_server_is_asked_without_warming_up(llama_server, nano, tmp_path):
    """
    It answers on a machine where attention stays where it is, and computes nothing.
    Of a quantized V this build asks nobody, so V is not.
    """
    launch = Launch(
        binary=llama_server,
        weights=nano,
        alias="cell",
        context=8192,
        pair=Pair("q8_0", "f16"),
        extra=("--device", "none"),
        options=ask(llama_server).options,
        threads=1,
        sleeps=True,
    )

    trouble = preflight(launch, log=tmp_path / "preflight.log", folder=tmp_path)

    log = (tmp_path / "preflight.log").read_text()
    assert None is trouble
    assert "flash_attn            = auto" in log
    assert "Flash Attention enabled" in log
    assert "warming up" not in log
