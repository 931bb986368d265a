"""Arguments of llama-bench."""

from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.arguments import NEEDED, options_in, translated

HELP = (Path(__file__).parents[2] / "helpers" / "logs" / "bench-help.txt").read_text()
OPTIONS = options_in(HELP)


def test_a_real_llama_bench_has_what_is_needed():
    """
    All options that are used stand in its help text.
    """
    assert set() == set(NEEDED) - OPTIONS


@pytest.mark.parametrize(
    ("server_args", "passed"),
    [
        (["-ngl", "20"], {"--n-gpu-layers": "20"}),
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
    ],
)
def test_what_matters_for_speed_is_passed_on(server_args, passed):
    """
    Lists lose their commas, which llama-bench takes for several tests.
    """
    found = translated(server_args, OPTIONS)

    assert (passed, ()) == (found.passed, found.ignored)


@pytest.mark.parametrize(
    "server_args",
    [
        ("--temp", "0.5"),
        ("--mlock",),
        ("--override-kv", "a=int:1"),
        ("-ngl",),
        ("-nkvo", "yes"),
        ("stray",),
    ],
)
def test_the_rest_is_told_and_not_passed_on(server_args):
    """
    Nothing is dropped without a word.
    """
    found = translated(server_args, OPTIONS)

    assert ({}, server_args) == (found.passed, found.ignored)


def test_an_option_that_the_binary_lacks_is_not_passed_on():
    """
    An older llama-bench is not stopped by an argument that it does not know.
    """
    assert ("-ncmoe", "3") == translated(["-ncmoe", "3"], {"--threads"}).ignored
