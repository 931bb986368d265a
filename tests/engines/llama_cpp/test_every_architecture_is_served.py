"""The tiny models of random weights: each is what llama.cpp takes it for."""

import hashlib

import pytest
import zoo
from made_servers import made_launch

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.exit_causes import Died
from codeneedle.engines.llama_cpp.installation import (
    FIT_PARAMS,
    Program,
    ask_server_facts,
)
from codeneedle.engines.llama_cpp.log import read_log
from codeneedle.engines.llama_cpp.server import serving_llama
from codeneedle.engines.llama_cpp.survey import Surveyor
from codeneedle.engines.messages import Completion
from codeneedle.errors import CellError
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.records.record import Status

F16, MIXED = Pair("f16", "f16"), Pair("q8_0", "q4_0")
CONTEXT = 512

KV = "llama_kv_cache: size"
RECURRENT = "llama_memory_recurrent: size"
WINDOWED = "SWA KV cache, size"

CACHES = {
    "mamba2": {RECURRENT},
    "lfm2": {KV, RECURRENT},
    "qwen35": {KV, RECURRENT},
    "gemma3": {KV, WINDOWED},
    "gptoss": {KV, WINDOWED},
}
"""What the log says of the caches of a model; the others keep K and V alone."""


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_model_of_the_zoo_is_always_the_same_bytes(name, tmp_path):
    (tmp_path / "again").mkdir()
    files = [zoo.write(name, folder) for folder in (tmp_path, tmp_path / "again")]
    first, second = (hashlib.sha256(file.read_bytes()).digest() for file in files)

    assert first == second


@pytest.fixture
def launch_of(llama_server, tmp_path):
    """What starts the real server with a model of the zoo."""
    options = ask_server_facts(Program(llama_server)).options

    def launch(name, pair=F16):
        weights = zoo.write(name, tmp_path)
        return made_launch(
            llama_server,
            weights,
            pair=pair,
            context=CONTEXT,
            options=options,
            threads=1,
            is_tiny=True,
        )

    return launch


@pytest.mark.real
def test_the_real_server_aborts_at_an_encoder_that_is_to_write(launch_of, tmp_path):
    """Without ``--embedding`` it reserves one output, and an encoder has more."""
    with (
        pytest.raises(Died, match="n_outputs_max"),
        serving_llama(launch_of("bert"), log=tmp_path / "log"),
    ):
        pass


@pytest.fixture
def surveyed(llama_server, tmp_path, monkeypatch):
    """The survey of a model of the zoo by the real program, for `F16` and `MIXED`."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    tool = Program(llama_server.with_name(FIT_PARAMS))
    facts = ask_server_facts(Program(llama_server))

    def surveyed(name, *arguments, context=CONTEXT):
        weights = read_weights_from_headers(zoo.write(name, tmp_path))
        model = ModelSpec(weights=weights, name=name, arguments=arguments)
        asked = Surveyor.of_installed_tool(tool, facts, model)
        return asked.survey((F16, MIXED), context=context, log=tmp_path / "survey")

    return surveyed


def told(source):
    """What survey and server both tell of a pair that runs."""
    return source.kv, source.recurrent_bytes, source.graph_splits


@pytest.mark.real
@pytest.mark.parametrize("name", sorted({*zoo.NAMES} - {"bert"}))
def test_the_real_server_answers_with_each_model_as_its_survey_says(
    name, launch_of, surveyed, tmp_path
):
    survey = surveyed(name)
    with serving_llama(launch_of(name), log=tmp_path / "log") as served:
        served.client.complete(Completion(prompt="def f():\n", max_tokens=4))
    # Only now: another thread of the server writes the log.
    said = read_log(served.log)

    expected = CACHES.get(name, {KV})
    assert expected == {line for line in (KV, RECURRENT, WINDOWED) if line in said}
    assert told(served.effective()) == told(survey.pairs[F16])
    assert (name == "mamba2") is survey.has_no_cache


@pytest.mark.real
@pytest.mark.parametrize("name", sorted({*zoo.NAMES} - {"bert"}))
def test_the_real_server_takes_a_mixed_pair_where_its_survey_does(
    name, launch_of, surveyed, tmp_path
):
    answer = surveyed(name).pairs[MIXED]
    try:
        with serving_llama(launch_of(name, MIXED), log=tmp_path / "log") as served:
            pass
        seen = told(served.effective())
    except CellError as error:
        seen = error.status

    assert seen == (Status.UNSUPPORTED if answer.refusal else told(answer))


@pytest.mark.real
def test_the_survey_knows_that_an_encoder_has_no_cache(surveyed):
    assert surveyed("bert").has_no_cache


@pytest.mark.real
@pytest.mark.parametrize(
    ("arguments", "mib"),
    [("", 5.25), ("-ub 2048", 7.125), ("-ub 64", 4.9375), ("--swa-full", 24)],
)
def test_a_windowed_cache_has_the_size_that_arguments_give_it(arguments, mib, surveyed):
    """One answer at 32,768 tokens tells the sizes at each context, and of each pair."""
    known = surveyed("gemma3", *arguments.split(), context=32_768).caches(F16)

    assert mib * 2**20 == known.cache_bytes_at(16_384)
    for context in (512, 2048, 16_384):
        told = surveyed("gemma3", *arguments.split(), context=context)
        expected = [told.caches(pair).cache_bytes_at(context) for pair in (F16, MIXED)]
        assert expected == [
            known.cache_bytes_at(context, pair) for pair in (F16, MIXED)
        ]
