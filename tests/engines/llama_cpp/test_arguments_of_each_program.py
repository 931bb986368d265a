"""The arguments of llama-server, and what a user's mean for the other two programs."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_servers import made_launch

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import arguments
from codeneedle.engines.llama_cpp.arguments import (
    BENCH_NEEDED,
    base_command,
    build_option,
    command,
    comparison,
    options_in,
    shared_arguments,
    translated,
    variables,
    waits_passively,
)

SERVER, MODEL = Path("/bin/llama-server"), Path("/models/m.gguf")
LAUNCH = made_launch(SERVER, MODEL, context=4096, pair=Pair("q8_0", "q4_0"))
TINY = replace(LAUNCH.model, is_tiny=True, threads=2)
HELP = (Path(__file__).parents[2] / "helpers" / "logs" / "bench-help.txt").read_text()
BENCH_OPTIONS = options_in(HELP)


# The command line of a server


def test_a_cell_is_one_slot_on_loopback_with_its_types():
    assert [
        *("/bin/llama-server", "--model", "/models/m.gguf"),
        *("--alias", "made-cell"),
        *("--host", "127.0.0.1", "--port", "8000", "--ctx-size", "4096"),
        *("--parallel", "1", "--flash-attn", "on"),
        *("--cache-type-k", "q8_0", "--cache-type-v", "q4_0"),
        *("--n-gpu-layers", "999"),
    ] == command(LAUNCH, port=8000)


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
    argv = command(replace(LAUNCH, **changes), port=1)

    start = argv.index(stated[0])
    assert stated == argv[start : start + len(stated)]
    assert absent not in argv


def test_further_arguments_come_last():
    """Of two, llama-server takes the last."""
    argv = command(replace(LAUNCH, extra=("--rope-scaling", "yarn")), port=1)

    assert ["--rope-scaling", "yarn"] == argv[-2:]


def test_threads_are_those_asked_for():
    argv = command(replace(LAUNCH, model=TINY, options={"--poll"}), port=1)

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
    monkeypatch.setattr(arguments, "busy_cores", lambda: busy)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    model = replace(LAUNCH.model, **changes)

    assert expected == waits_passively(model)
    assert expected == (
        "OMP_WAIT_POLICY" in variables(model, is_passive=waits_passively(model))
    )


def test_rotation_is_left_out_where_asked():
    """By the environment: there is no argument for it."""
    still = replace(LAUNCH.model, rotation=False)

    expected = {"LLAMA_ATTN_ROT_DISABLE": "1"}
    assert expected == variables(still, is_passive=False)


# The other two programs


@pytest.mark.parametrize(
    ("given", "shared", "ignored"),
    [
        (("-ngl", "20", "--temp", "0"), ("-ngl", "20"), ("--temp", "0")),
        (("--n_gpu_layers", "20"), ("--n_gpu_layers", "20"), ()),
        (("--no-mmap", "-t", "4"), ("--no-mmap", "-t", "4"), ()),
        (("--rope-freq-base", "1e6"), ("--rope-freq-base", "1e6"), ()),
        (("-ngl",), (), ("-ngl",)),
        (("--no-mmap", "x"), (), ("--no-mmap", "x")),
        (("--lora=a.gguf",), ("--lora=a.gguf",), ()),
        (("-lm", "none", "--rpc", "a:2"), ("-lm", "none", "--rpc", "a:2"), ()),
    ],
)
def test_arguments_are_shared_with_llama_perplexity(given, shared, ignored):
    assert (shared, ignored) == shared_arguments(given)


def test_a_real_llama_bench_has_what_is_needed():
    assert set() == set(BENCH_NEEDED) - BENCH_OPTIONS


@pytest.mark.parametrize(
    ("server_args", "passed"),
    [
        (["--gpu-layers", "-1"], {"--n-gpu-layers": "-1"}),
        (["--n_gpu_layers", "all"], {"--n-gpu-layers": "999"}),
        (["-ngl", "auto"], {"--n-gpu-layers": "-1"}),
        (["-ngl", "20", "-ngl", "30"], {"--n-gpu-layers": "30"}),
        (["--device=CUDA0,CUDA1"], {"--device": "CUDA0/CUDA1"}),
        (
            ["-ts", "3,1", "-sm", "row"],
            {"--tensor-split": "3/1", "--split-mode": "row"},
        ),
        (["-ot", "a=CPU,b=CPU"], {"--override-tensor": "a=CPU;b=CPU"}),
        (["-nkvo", "-t", "4"], {"--no-kv-offload": "1", "--threads": "4"}),
        (["--load-mode", "none"], {"--load-mode": "none"}),
    ],
)
def test_what_matters_for_speed_is_passed_to_llama_bench(server_args, passed):
    """Lists lose their commas, which llama-bench takes for several tests."""
    assert (passed, ()) == translated(server_args, BENCH_OPTIONS)


@pytest.mark.parametrize(
    ("server_args", "options"),
    [
        (("--temp", "0.5"), BENCH_OPTIONS),
        (("--mlock",), BENCH_OPTIONS),
        (("--override-kv", "a=int:1"), BENCH_OPTIONS),
        (("-ngl",), BENCH_OPTIONS),
        (("-nkvo", "yes"), BENCH_OPTIONS),
        (("stray",), BENCH_OPTIONS),
        (("-ncmoe", "3"), {"--threads"}),
    ],
)
def test_the_rest_is_told_and_not_passed_to_llama_bench(server_args, options):
    assert ({}, server_args) == translated(server_args, options)


STORED = (
    *("/bin/llama-perplexity", "--model", "a.gguf"),
    *("--kl-divergence-base", "run/base/512.kld", "--kl-divergence"),
)


def test_the_base_file_is_written_from_a_text_and_then_compared_with():
    model = ["/bin/llama-perplexity", "--model", "a.gguf"]
    base = ["--kl-divergence-base", "base.kld"]

    assert [*model, *base, "--file", "text.txt", "--chunks", "4"] == (
        base_command(STORED, 4)
    )
    assert [*model, *base, "--kl-divergence"] == comparison(STORED)


def test_the_build_option_lists_pairs_as_llama_cpp_spells_them():
    pairs = [Pair("f16", "f16"), Pair("q8_0", "q4_0")]

    assert '-DGGML_CUDA_FA_QUANTS="f16-f16;q8_0-q4_0"' == build_option(pairs)
