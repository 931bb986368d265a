"""A survey tells where attention runs and what memory it takes, or says why not."""

import sys
from dataclasses import replace

import pytest
from made_tools import HERE, made_facts, made_model
from programs import script

from codeneedle.cache_types import DEFAULT_TYPES, FIRST, Pair, whole_grid
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp import installation, survey
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.survey import NO_BUILD, reporting_survey_progress
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.records.record import Attention, DeviceMemory

pytestmark = pytest.mark.slow

GRID = whole_grid(DEFAULT_TYPES, DEFAULT_TYPES)
MIB = 1 << 20

AS_RELEASED = "q4_0-q4_0,q8_0-q8_0,f16-f16,bf16-bf16"
"""``GGML_CUDA_FA_QUANTS`` where nothing is chosen, as the build states it."""


@pytest.fixture(autouse=True)
def _own_surveys(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))


def surveyor(folder, rule, *arguments, fa_quants="", head=64, layers=4):
    fake = HERE / "fake_fit_params.py"
    body = f'HOME={folder}; export HOME\nexec {sys.executable} -S {fake} {rule} "$@"'
    tool = installation.Program(script(folder / "llama-fit-params", body))
    model = made_model(arguments=arguments)
    shape = {"layers": layers, "key_length": head, "key_length_swa": head}
    model = replace(model, weights=replace(model.weights, **shape))
    return survey.Surveyor.of_installed_tool(
        tool, made_facts(fa_quants=fa_quants), model
    )


def surveyed(folder, rule, *arguments, pairs=GRID, **changes):
    asked = surveyor(folder, rule, *arguments, **changes)
    return asked.survey(pairs, context=2000, log=folder / "survey.log")


def calls(folder):
    return (folder / "calls").read_text().splitlines()


def in_kernels(told):
    return [
        p for p in told.pairs if told.expected_attention_place(p) is Attention.KERNEL
    ]


def test_every_pair_has_a_kernel_on_the_cpu(tmp_path):
    told = surveyed(tmp_path, "cpu")

    assert GRID == in_kernels(told)
    assert not told.unknown
    assert told.whole_splits is None


def test_a_survey_tells_how_far_it_is_and_keeps_what_was_answered_before_ctrl_c(
    tmp_path, golden
):
    """The pairs of a first answer come first."""
    told, before = [], len(FIRST)
    asking, log = surveyor(tmp_path, "cpu"), tmp_path / "survey.log"

    def tell(phrase, done, total):
        told.append((phrase, done, total))
        if done == before:
            raise KeyboardInterrupt

    with reporting_survey_progress(tell), pytest.raises(KeyboardInterrupt):
        asking.survey(GRID, context=2000, log=log)
    asked = {line.partition(" ")[0] for line in calls(tmp_path)}
    whole = asking.survey(GRID, context=2000, log=log)

    assert golden == told[-1]
    assert {*map(str, FIRST)} == asked
    assert len(GRID) == len(calls(tmp_path)) == len(whole.pairs)


@pytest.mark.parametrize(("rule", "kernels"), [("vulkan", 26), ("metal", 6)])
def test_pairs_without_a_kernel_are_told_by_the_splits_of_their_graphs(
    tmp_path, rule, kernels
):
    told = surveyed(tmp_path, rule)

    assert kernels == len(in_kernels(told))
    assert Attention.CPU is told.expected_attention_place(Pair("bf16", "q8_0"))
    assert "graph splits = 10" == told.pairs[Pair("bf16", "q8_0")].evidence


def test_a_device_without_any_kernel_needs_no_other_pair_to_be_noticed(tmp_path):
    told = surveyed(tmp_path, "never", pairs=[Pair("bf16", "bf16")])

    assert Attention.CPU is told.expected_attention_place(Pair("bf16", "bf16"))


def test_weights_on_the_host_split_a_graph_whose_attention_has_a_kernel(tmp_path):
    told = surveyed(tmp_path, "moe-on-host", "--n-cpu-moe", "99")

    assert 6 == len(in_kernels(told))
    assert 10 == told.whole_splits


@pytest.mark.parametrize("layers", [4, 8])
def test_a_model_with_layers_without_a_cache_has_kernels_on_a_split_graph(
    tmp_path, layers
):
    """Its graph has 8 parts, and two for each layer with a cache and two without."""
    told = surveyed(tmp_path, "hybrid", pairs=GRID[:8], layers=layers)

    assert (8, 2) == (told.whole_splits, len(in_kernels(told)))


@pytest.mark.parametrize("arguments", [("-ngl", "0"), ("--no-kv-offload",)])
def test_attention_on_the_host_by_choice_has_a_kernel_there(tmp_path, arguments):
    assert GRID == in_kernels(surveyed(tmp_path, "never", *arguments))


@pytest.mark.parametrize(("fa_quants", "kernels"), [(AS_RELEASED, 3), ("all", 36)])
def test_pairs_that_cuda_converts_are_told_by_what_the_build_was_compiled_for(
    tmp_path, fa_quants, kernels
):
    told = surveyed(tmp_path, "cuda", fa_quants=fa_quants)
    others = {told.expected_attention_place(pair) for pair in GRID} - {Attention.KERNEL}

    assert kernels == len(in_kernels(told))
    assert ({Attention.CONVERTED} if kernels < len(GRID) else set()) == others
    assert ("-DGGML_CUDA_FA_QUANTS=all" if others else "") == told.cure


@pytest.mark.parametrize(
    ("head", "converted"), [(128, 0), (256, 0), (80, 2), (192, 2), (512, 2), (576, 2)]
)
def test_cuda_converts_every_pair_of_heads_that_no_vector_kernel_has(
    tmp_path, head, converted
):
    """By ``ggml-cuda/fattn.cu``; no such log was seen, and there is no line of it."""
    pairs = [Pair("f16", "f16"), Pair("q8_0", "q8_0"), Pair("bf16", "bf16")]
    told = surveyed(tmp_path, "cuda", pairs=pairs, fa_quants="all", head=head)
    others = [
        p for p in pairs if told.expected_attention_place(p) is Attention.CONVERTED
    ]

    assert converted == len(others)
    assert Attention.KERNEL is told.expected_attention_place(pairs[0])
    assert {True} >= {NO_BUILD in told.pairs[pair].evidence for pair in others}
    assert "" == told.cure


def test_heads_say_nothing_of_other_backends(tmp_path):
    assert 26 == len(in_kernels(surveyed(tmp_path, "vulkan", head=80)))


def test_a_cuda_build_that_tells_no_kernels_leaves_the_place_open(tmp_path):
    f16, mixed = Pair("f16", "f16"), Pair("q8_0", "q4_0")
    told = surveyed(tmp_path, "cuda", pairs=[f16, mixed])

    assert Attention.KERNEL is told.expected_attention_place(f16)
    assert told.expected_attention_place(mixed) is None
    assert "" == told.refusal(mixed)


def test_what_cuda_was_compiled_for_says_nothing_of_other_backends(tmp_path):
    told = surveyed(tmp_path, "vulkan", fa_quants=AS_RELEASED)

    assert 26 == len(in_kernels(told))


def test_memory_is_told_by_device(tmp_path):
    told = surveyed(tmp_path, "vulkan").pairs[Pair("bf16", "bf16")]

    assert (
        DeviceMemory(
            device="Vulkan0", weights=92 * MIB, context=8 * MIB, compute=100 * MIB
        ),
        DeviceMemory(device="Host", weights=5 * MIB, context=0, compute=9 * MIB),
    ) == told.memory
    assert [2048] == [cache.cells for cache in told.kv]


def test_a_refusal_is_asked_for_until_the_log_says_why(tmp_path, golden):
    pair = Pair("q8_0", "q4_0")
    told = surveyed(tmp_path, "mla", pairs=[Pair("q8_0", "q8_0"), pair])

    assert golden == (told.refusal(pair), told.pairs[pair].evidence)
    assert told.expected_attention_place(pair) is None
    assert not told.unknown
    assert 4 == len(calls(tmp_path))


def test_a_pair_whose_refusal_is_never_told_is_refused_after_so_many_calls(
    tmp_path, golden
):
    same, pair = Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0")
    told = surveyed(tmp_path, "mute", pairs=[same, pair])

    assert golden == told.refusal(pair)
    assert ("", "") == (told.refusal(same), told.unknown)
    assert survey.TRIES == sum("q4_0" in call for call in calls(tmp_path))


@pytest.mark.parametrize(("rule", "is_refused"), [("mute", True), ("full", False)])
def test_a_failure_that_may_be_one_of_the_moment_is_asked_for_again(
    tmp_path, monkeypatch, rule, is_refused, golden
):
    """No refusal without its reason is kept, and a full device refuses no pair."""
    monkeypatch.setattr(survey, "TRIES", 2)
    same, pair = Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0")
    first = surveyed(tmp_path, rule, pairs=[same, pair])
    before = len(calls(tmp_path))
    again = surveyed(tmp_path, rule, pairs=[same, pair])

    assert is_refused == bool(first.refusal(pair))
    assert golden == (first.refusal(pair), again.refusal(pair))
    assert before < len(calls(tmp_path))
    assert ("out of memory" in first.unknown) is not is_refused


def test_answers_are_kept_by_pair_context_and_arguments(tmp_path):
    asked, log = surveyor(tmp_path, "vulkan"), tmp_path / "log"
    asked.survey(GRID[:2], context=512, log=log)
    again = asked.survey(GRID[:2], context=512, log=log)
    before = len(calls(tmp_path))
    other = replace(asked, key="of other arguments")

    assert again.is_kept
    assert {*GRID[:2]} == {*again.pairs}
    assert not asked.survey(GRID[:2], context=1024, log=log).is_kept
    assert not other.survey(GRID[:2], context=512, log=log).is_kept
    assert 3 * before == len(calls(tmp_path))


@pytest.mark.parametrize("fault", ["old", "crash", "silent"])
def test_a_survey_that_fails_says_why_and_asks_no_further(tmp_path, fault, golden):
    told = surveyed(tmp_path, fault)

    assert golden == told.unknown
    assert {} == told.pairs
    assert survey.MOST_FAILURES == len(set(calls(tmp_path)))


def test_a_survey_that_hangs_ends_at_its_deadline(tmp_path, monkeypatch, golden):
    monkeypatch.setattr(survey, "TIMEOUT_S", 0.5)
    told = surveyed(tmp_path, "hang")

    assert golden == told.unknown
    assert 1 == len(calls(tmp_path))


def test_an_installation_without_the_program_says_how_to_get_it(tmp_path):
    tools = installation.Tools(
        server=installation.Program(tmp_path / "llama-server"),
        perplexity=None,
        bench=None,
        source="PATH",
    )
    engine = LlamaCpp(tools=tools, facts=made_facts(), model=made_model())
    told = engine.survey_attention_and_memory(GRID, context=512, log=tmp_path / "log")

    assert "codeneedle llama" in told.unknown


def test_arguments_of_servers_alone_are_not_passed_on(tmp_path):
    given = ("-ub", "64", "--slots", "--swa-full", "-b", "128", "--lora", "x.gguf")
    argv = surveyor(tmp_path, "cpu", *given).command(GRID[0], 512)

    assert ["-ub", "64", "--swa-full", "-b", "128"] == argv[-5:]


@pytest.mark.real
def test_the_real_program_answers_for_each_pair_of_the_built_in_model(
    llama_server, nano, tmp_path
):
    tool = installation.Program(llama_server.with_name(installation.FIT_PARAMS))
    model = ModelSpec(weights=read_weights_from_headers(nano), name="nano")
    asked = survey.Surveyor.of_installed_tool(
        tool, installation.ask_server_facts(installation.Program(llama_server)), model
    )
    told = asked.survey(GRID, context=1024, log=tmp_path / "log")

    assert not told.unknown
    assert GRID == in_kernels(told)
    assert {1024} == {cache.cells for p in told.pairs.values() for cache in p.kv}
