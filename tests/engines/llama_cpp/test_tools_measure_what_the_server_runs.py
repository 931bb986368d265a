"""Options for llama-server reach the programs beside it, or these are not used."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import made_weights
from made_tools import made_facts
from programs import script

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability, ModelSpec
from codeneedle.engines.llama_cpp.arguments import REFUSED
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import (
    BENCH,
    FIT_PARAMS,
    PERPLEXITY,
    SERVER,
    Program,
    Tools,
    locate_tools,
    option_names,
)
from codeneedle.engines.llama_cpp.perplexity import Perplexity
from codeneedle.engines.llama_cpp.tool_options import (
    BENCH_NEEDED,
    HARMLESS,
    bench_and_lacking_arguments,
    help_text_or_empty,
    is_harmless_option,
    list_tool_options,
    parse_bench_option_names,
    shared_and_lacking_arguments,
    why_not_used,
)
from codeneedle.errors import BadInput

BENCH_HELP = Path(__file__).parents[2] / "helpers" / "logs" / "bench-help.txt"
BENCH_TEXT = BENCH_HELP.read_text()
KNOWN = frozenset(
    ("-ngl", "--n-gpu-layers", "--no-mmap", "-t", "--lora", "-b", "--rope-freq-base")
)
"""What a program of a test takes."""


@pytest.mark.parametrize(
    ("given", "shared", "lacking"),
    [
        (("-ngl", "20", "--temp", "0"), ("-ngl", "20"), ()),
        (("--n_gpu_layers", "20"), ("--n_gpu_layers", "20"), ()),
        (("--no-mmap", "-t", "4"), ("--no-mmap", "-t", "4"), ()),
        (("--lora", "a.gguf"), ("--lora", "a.gguf"), ()),
        (("-khad",), (), ("-khad",)),
        (("--kv-tail-tokens", "512", "-t", "4"), ("-t", "4"), ("--kv-tail-tokens",)),
        (("--lora-init-without-apply",), (), ("--lora-init-without-apply",)),
        (("-md", "draft.gguf", "--spec-type", "x"), (), ()),
        (("stray",), (), ("stray",)),
    ],
)
def test_llama_perplexity_gets_what_its_help_lists_and_lacks_the_rest(
    given, shared, lacking
):
    assert (shared, lacking) == shared_and_lacking_arguments(given, PERPLEXITY, KNOWN)


@pytest.mark.parametrize("tool", [PERPLEXITY, BENCH, FIT_PARAMS])
def test_no_program_gets_what_changes_nothing_there(tool):
    given = [word for name in sorted(HARMLESS) for word in (name, "1")]

    assert ((), ()) == shared_and_lacking_arguments(given, tool, HARMLESS)
    assert ({}, ()) == bench_and_lacking_arguments(given, "\n".join(HARMLESS))


def test_an_adapter_is_no_matter_of_what_loads_no_weights():
    given = ("--lora", "a.gguf")

    assert ((), ()) == shared_and_lacking_arguments(given, FIT_PARAMS, KNOWN)


def test_a_real_llama_bench_has_what_is_needed():
    assert set() == set(BENCH_NEEDED) - parse_bench_option_names(BENCH_TEXT)


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
        (["-kvo"], {"--no-kv-offload": "0"}),
        (["--no-repack"], {"--repack": "0"}),
        (["--load-mode", "none"], {"--load-mode": "none"}),
        (["-t", "4", "-tb", "4"], {"--threads": "4"}),
        (["--temp", "0.5", "--mlock", "--rope-scale", "4"], {}),
    ],
)
def test_what_matters_for_speed_is_passed_to_llama_bench(server_args, passed):
    """Lists lose their commas, which llama-bench takes for several tests."""
    assert (passed, ()) == bench_and_lacking_arguments(server_args, BENCH_TEXT)


@pytest.mark.parametrize(
    ("server_args", "lacking"),
    [
        (("--override-kv", "a=int:1"), ("--override-kv",)),
        (("-md", "draft.gguf"), ("-md",)),
        (("--lora", "a.gguf"), ("--lora",)),
        (("--swa-full",), ("--swa-full",)),
        (("-ngl",), ("-ngl",)),
        (("-nkvo", "yes"), ("-nkvo",)),
        (("-t", "4", "-tb", "8"), ("--threads-batch",)),
        (("stray",), ("stray",)),
    ],
)
def test_what_llama_bench_lacks_is_named(server_args, lacking):
    assert lacking == bench_and_lacking_arguments(server_args, BENCH_TEXT)[1]


@pytest.mark.parametrize(
    ("line", "given", "passed"),
    [
        ("  -khad, --k-hadamard <0|1>   ", ["-khad"], {"--k-hadamard": "1"}),
        ("  -khad, --k-hadamard         ", ["--k-hadamard"], {"--k-hadamard": ""}),
        ("  --kv-tail <n>               ", ["--kv-tail", "64"], {"--kv-tail": "64"}),
    ],
)
def test_an_option_of_a_fork_is_passed_to_a_llama_bench_that_has_it(
    line, given, passed
):
    assert (passed, ()) == bench_and_lacking_arguments(
        given, f"{BENCH_TEXT}\n{line}(default: 0)"
    )


# What becomes of them in an engine


HELP = """\
-h,    --help, --usage                  print usage and exit
-b,    --batch-size N                   logical maximum batch size
-t,    --threads N                      number of threads
{more}
"""


def tool(folder, name, more=""):
    body = f"cat <<'END'\n{HELP.format(more=more)}\nEND"
    return Program(script(folder / name, body))


def engine(folder, arguments, *, more=""):
    tools = Tools(
        server=tool(folder, SERVER),
        perplexity=tool(folder, PERPLEXITY, more),
        bench=Program(script(folder / BENCH, f"cat '{BENCH_HELP}'; echo '  {more}'")),
        fit_params=tool(folder, FIT_PARAMS, more),
        source="PATH",
    )
    model = ModelSpec(weights=made_weights(), name="made", arguments=arguments)
    return LlamaCpp(tools=tools, facts=made_facts(), model=model)


OPTIONS = [("-khad",), ("--kv-tail-tokens", "512"), ("-ctk-first", "q8_0")]
MEASURING = {Ability.DIVERGENCE, Ability.READING, Ability.SPEED}


@pytest.mark.parametrize("given", OPTIONS)
def test_nothing_is_measured_without_an_option_that_the_server_gets(given, tmp_path):
    served = engine(tmp_path, given)
    survey = served.survey_attention_and_memory(
        [Pair("f16", "f16")], context=512, log=tmp_path / "log"
    )

    assert set() == MEASURING & served.abilities
    for ability in MEASURING:
        assert given[0] in served.why_ability_missing(ability)
        with pytest.raises(BadInput, match=f"does not take {given[0]}"):
            served.require(ability)
    assert given[0] in survey.unknown
    assert FIT_PARAMS in survey.unknown
    assert {} == survey.pairs


@pytest.mark.parametrize("given", OPTIONS)
def test_programs_that_take_an_option_are_given_it(given, tmp_path):
    value = " <n>" if given[1:] else ""
    served = engine(tmp_path, given, more=f"{given[0]}{value}      an option")

    assert MEASURING == MEASURING & served.abilities
    assert given == served.divergence_tool().arguments
    assert [""] == [*{served.why_ability_missing(ability) for ability in MEASURING}]


def test_harmless_options_cost_no_ability(tmp_path):
    served = engine(tmp_path, ("--temp", "0", "--slots", "--chat-template", "chatml"))

    assert MEASURING == MEASURING & served.abilities


def test_a_batch_of_llama_perplexity_is_the_users_and_no_longer_than_a_chunk(tmp_path):
    """Of more than a chunk, several would be computed side by side."""
    chosen = {
        size: engine(tmp_path, ("-b", size)).divergence_tool()
        for size in ("64", "9999")
    }

    assert [64, 512] == [
        made._batch_size(512)
        for made in chosen.values()
        if isinstance(made, Perplexity)
    ]


# The pinned build


LOOKED_AT = {
    PERPLEXITY: {"--lora-init-without-apply"},
    FIT_PARAMS: set(),
    BENCH: {
        *("-Cr", "--cpu-range", "-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch"),
        *("--cpu-strict-batch", "--prio-batch", "--poll-batch", "--swa-full"),
        *("-cmoe", "--cpu-moe", "-ncffn", "--n-cpu-ffn", "--override-kv"),
        *("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"),
        *("--control-vector-layer-range", "--lora-init-without-apply"),
        "--rpc",  # of builds without RPC
    },
}
"""Options of the pinned llama-server that a program lacks, and is not used with."""


@pytest.mark.real
@pytest.mark.parametrize("name", [PERPLEXITY, FIT_PARAMS, BENCH])
def test_each_option_of_the_pinned_server_is_passed_harmless_or_refuses(name):
    """A new build has new options: each is looked at, and entered in a list."""
    tools = locate_tools()
    program = {
        PERPLEXITY: tools.perplexity,
        FIT_PARAMS: tools.fit_params,
        BENCH: tools.bench,
    }[name]
    options = list_tool_options(tools.server) - REFUSED.keys()
    if name == BENCH:
        taken = {
            option
            for option in options
            for values in ([], ["1"])
            if not bench_and_lacking_arguments(
                [option, *values], help_text_or_empty(program)
            )[1]
        } | {"-tb", "--threads-batch"}
    else:
        taken = list_tool_options(program)
    drafts = {option for option in options if re.search("draft|spec|lookup", option)}
    short = {"-lcs", "-lcd", "-md", "-td", "-tbd", "-Cd", "-Crd", "-Cbd", "-otd"}
    short |= {"-cmoed", "-ncmoed", "-devd", "-ngld", "-ctkd", "-ctvd", "-hfd", "-hfrd"}
    refusing = {
        option
        for option in options - taken
        if not is_harmless_option(option, name)
        if not (name == BENCH and option in drafts | short)
    }

    assert LOOKED_AT[name] == refusing
    assert option_names(help_text_or_empty(tools.server)) == list_tool_options(
        tools.server
    )


def test_a_help_that_fails_once_is_asked_for_again(tmp_path):
    """Else a busy machine had no tool for the options of the server."""
    once = f"mkdir {tmp_path}/once 2>/dev/null && kill -9 $$"
    body = f"{once}\necho '--swa-full   all of it'"
    tool = Program(script(tmp_path / "llama-perplexity", body))

    assert {"--swa-full"} == list_tool_options(tool)
    assert (tmp_path / "once").exists()


def test_a_program_without_a_help_is_not_said_to_lack_an_option(tmp_path):
    tool = Program(script(tmp_path / "llama-perplexity", "kill -9 $$"))

    assert frozenset() == list_tool_options(tool)
    assert "its --help fails" in why_not_used(tool, ["--swa-full"])


def test_only_f16_in_k_and_v_is_foretold_to_be_read_in_tiles(tmp_path):
    served = engine(tmp_path, ())
    tiled, other = [Pair("f16", "f16")], [Pair("q8_0", "f16")]
    fast, slow, both = (served.pace(pairs) for pairs in (tiled, other, tiled + other))

    assert fast.read_back_s < both.read_back_s < slow.read_back_s
    assert fast.write_back_s == both.write_back_s == slow.write_back_s


def test_of_a_mixture_the_time_of_the_experts_in_use_is_foretold(tmp_path):
    """That of all of them was ten times too long."""
    served, pairs = engine(tmp_path, ()), [Pair("f16", "f16")]
    weights = replace(served.model.weights, size_bytes=10**9)
    mixture = replace(weights, unused_bytes=9 * 10**8)
    dense, mixed = (
        replace(served, model=replace(served.model, weights=each)).pace(pairs)
        for each in (weights, mixture)
    )

    assert mixed.read_s == pytest.approx(dense.read_s / 10)
    assert mixed.write_s < dense.write_s
    assert mixed.start_s == dense.start_s
