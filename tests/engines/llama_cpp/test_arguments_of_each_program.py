"""The arguments of llama-server, and commands that repeat a comparison."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_servers import made_launch

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import arguments
from codeneedle.engines.llama_cpp.arguments import (
    base_file_command,
    comparison_command,
    cuda_kernels_option,
    environment_for_model,
    server_command,
    text_file_in,
    threads_should_sleep,
)

SERVER, MODEL = Path("/bin/llama-server"), Path("/models/m.gguf")
LAUNCH = made_launch(SERVER, MODEL, context=4096, pair=Pair("q8_0", "q4_0"))
TINY = replace(LAUNCH.model, is_tiny=True, threads=2)


# The command line of a server


def test_a_cell_is_one_slot_on_loopback_with_its_types():
    assert [
        *("/bin/llama-server", "--model", "/models/m.gguf"),
        *("--alias", "made-cell"),
        *("--host", "127.0.0.1", "--port", "8000", "--ctx-size", "4096"),
        *("--parallel", "1", "--flash-attn", "on"),
        *("--cache-type-k", "q8_0", "--cache-type-v", "q4_0"),
        *("--n-gpu-layers", "999"),
    ] == server_command(LAUNCH, port=8000)


@pytest.mark.parametrize(
    ("changes", "stated", "absent"),
    [
        ({"slots": Path("/s")}, ["--n-gpu-layers", "999"], "--slot-save-path"),
        (
            {"slots": Path("/s"), "options": {"--slot-save-path"}},
            ["--slot-save-path", "/s"],
            "off",
        ),
        (
            {"options": {"--fit", "--jinja"}},
            ["--n-gpu-layers", "999", "--fit", "off", "--jinja"],
            "--cache-ram",
        ),
        (
            {"pair": None, "options": {"--device", "--no-warmup", "--no-repack"}},
            [
                *("--n-gpu-layers", "0", "--device", "none"),
                *("--no-warmup", "--no-repack"),
            ],
            "--cache-type-k",
        ),
    ],
    ids=[
        "it cannot save its cache",
        "it may save its cache",
        "an older build",
        "it only counts",
    ],
)
def test_a_server_is_told_what_it_needs_and_can(changes, stated, absent):
    """An argument that a build does not know would end it."""
    argv = server_command(replace(LAUNCH, **changes), port=1)

    start = argv.index(stated[0])
    assert stated == argv[start : start + len(stated)]
    assert absent not in argv


def test_further_arguments_come_last():
    """Of two, llama-server takes the last."""
    argv = server_command(replace(LAUNCH, extra=("--rope-scaling", "yarn")), port=1)

    assert ["--rope-scaling", "yarn"] == argv[-2:]


def test_threads_are_those_asked_for():
    argv = server_command(replace(LAUNCH, model=TINY, options={"--poll"}), port=1)

    assert ["--threads", "1", "--threads-batch", "2", "--poll", "0"] == argv[-6:]


@pytest.mark.parametrize(
    ("busy", "changes", "chosen", "expected"),
    [
        (0.1, {}, None, False),
        (1.2, {}, None, True),
        (0.0, {"is_tiny": True}, None, True),
        (1.9, {"threads": 1}, None, False),
        (1.2, {}, "active", False),
        (0.0, {}, "PASSIVE", True),
    ],
    ids=["idle", "busy", "tiny", "workers", "chosen active", "chosen passive"],
)
def test_threads_sleep_while_they_wait_where_others_compute(
    busy, changes, chosen, expected, monkeypatch
):
    monkeypatch.setattr(arguments, "measure_busy_cores", lambda: busy)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    model = replace(LAUNCH.model, **changes)

    assert expected == threads_should_sleep(model)
    assert expected == (
        "OMP_WAIT_POLICY"
        in environment_for_model(model, is_passive=threads_should_sleep(model))
    )


def test_rotation_is_left_out_where_asked():
    """By the environment: there is no argument for it."""
    still = replace(LAUNCH.model, rotation=False)

    expected = {"LLAMA_ATTN_ROT_DISABLE": "1"}
    assert expected == environment_for_model(still, is_passive=False)


# Commands that repeat a comparison


STORED = (
    *("/bin/llama-perplexity", "--model", "a.gguf"),
    *("--kl-divergence-base", "/cache/private/tmp1/rows"),
    *("--file", "run/base/1e792d4f.txt", "--chunks", "8"),
)
"""What reads the rows of a pair, as a record has it."""


def test_the_base_file_is_written_from_a_text_and_then_compared_with():
    model = ["/bin/llama-perplexity", "--model", "a.gguf"]
    base = ["--kl-divergence-base", "base.kld"]

    assert [*model, *base, "--file", "text.txt", "--chunks", "4"] == (
        base_file_command(STORED, 4)
    )
    assert [*model, *base, "--kl-divergence"] == comparison_command(STORED)
    assert "run/base/1e792d4f.txt" == text_file_in(STORED)


def test_the_build_option_lists_pairs_as_llama_cpp_spells_them():
    pairs = [Pair("f16", "f16"), Pair("q8_0", "q4_0")]

    assert '-DGGML_CUDA_FA_QUANTS="f16-f16;q8_0-q4_0"' == cuda_kernels_option(pairs)
