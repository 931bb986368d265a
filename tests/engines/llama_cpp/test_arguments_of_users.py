"""All names of a user's arguments are known; what breaks a comparison is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_servers import made_launch

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp.arguments import (
    OFFLOAD,
    has_argument,
    parse,
    refuse_reserved,
    server_command,
    stretches_context,
    without_offload,
)
from codeneedle.engines.llama_cpp.installation import (
    PERPLEXITY,
    Program,
    ask_server_facts,
)
from codeneedle.engines.llama_cpp.tool_options import (
    bench_and_lacking_arguments,
    shared_and_lacking_arguments,
)
from codeneedle.errors import BadInput

SERVER, MODEL = Path("/bin/llama-server"), Path("/models/m.gguf")
LAUNCH = made_launch(SERVER, MODEL, context=4096, pair=Pair("q8_0", "q4_0"))
TINY = replace(LAUNCH.model, is_tiny=True, threads=2)
HELP = (Path(__file__).parents[2] / "helpers" / "logs" / "bench-help.txt").read_text()


# The parser


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-ngl", "20"], [("-ngl", ("20",))]),
        (["--n_gpu_layers", "20"], [("--n-gpu-layers", ("20",))]),
        (["--n_gpu_layers=20"], [("--n-gpu-layers", ("20",))]),
        (["--ctx-size=1", "2"], [("--ctx-size", ("1", "2"))]),
        (["-t", "-1", "--no_mmap"], [("-t", ("-1",)), ("--no-mmap", ())]),
        (["--yarn-ext-factor", "-.5"], [("--yarn-ext-factor", ("-.5",))]),
        (["stray", "word", "-t", "1"], [("", ("stray", "word")), ("-t", ("1",))]),
        (["-a_b", "c_d"], [("-a_b", ("c_d",))]),
        ([], []),
    ],
)
def test_words_become_arguments(words, expected):
    found = parse(words)

    assert expected == [(argument.name, argument.values) for argument in found]
    assert words == [word for argument in found for word in argument.words]


@pytest.mark.parametrize("name", ["-ngl", "--gpu-layers", "--n_gpu_layers"])
def test_all_names_of_an_argument_are_known_everywhere(name):
    """Server, llama-perplexity and llama-bench agree that the user chose the layers."""
    words = (name, "20")

    assert has_argument(words, OFFLOAD)
    assert "999" not in server_command(replace(LAUNCH, extra=words), port=1)
    assert (words, ()) == shared_and_lacking_arguments(words, PERPLEXITY, OFFLOAD)
    assert {"--n-gpu-layers": "20"} == bench_and_lacking_arguments(words, HELP)[0]
    assert ("-t", "2") == without_offload((*words, "-dev", "CUDA1", "-t", "2"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--rope_scaling", "yarn"), True),
        (("--yarn-ext-factor=1",), True),
        (("--override_kv", "a=int:1"), True),
        (("-t", "4"), False),
    ],
)
def test_arguments_that_stretch_the_context_are_known(words, expected):
    assert expected is stretches_context(words)


# What is refused


@pytest.mark.parametrize(
    "argument",
    [
        *("-ctk", "--cache-type-v", "--cache_type_k", "--port", "-np", "--ctx-size=1"),
        *("-fa", "--context-shift", "--context_shift", "--grammar", "--logit-bias"),
        *("-l", "-j", "--samplers", "--no-jinja", "--reasoning-budget", "-cram"),
        *("--embedding", "--tools", "--version", "--fim-qwen-3b-default"),
        *("--cache-reuse", "-hft", "--hf_token=x", "--spec-synth-len"),
    ],
)
def test_an_argument_that_would_break_the_experiment_is_refused(argument):
    with pytest.raises(BadInput) as caught:
        refuse_reserved(["-ngl", "99", argument, "1"])

    assert argument == caught.value.source
    assert caught.value.hint


def test_other_arguments_are_passed_on():
    refuse_reserved(["-ngl", "99", "-t", "8", "--no-mmap", "-ub", "2048", "--swa-full"])


@pytest.mark.real
def test_arguments_that_undo_ours_are_refused(llama_server):
    facts = ask_server_facts(Program(llama_server))
    launch = replace(LAUNCH, options=facts.options, model=TINY)
    stated = {argument.name for argument in parse(server_command(launch, port=1)[1:])}
    free = {"--n-gpu-layers", "--threads", "--threads-batch", "--poll", "--offline"}
    opposite = {"--no-context-shift": "--context-shift", "--jinja": "--no-jinja"}

    for name in stated - free - {"--no-webui"}:
        with pytest.raises(BadInput):
            refuse_reserved([opposite.get(name, name), "1"])
