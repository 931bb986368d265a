"""What every engine does: it serves, counts, scores or says why not, and cleans up."""

import contextlib
import os
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import psutil
import pytest
from fake_engine import FakeEngine
from made_contexts import real_context
from made_mlx import nano_weights

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import HOST, Ability, CellSpec, Engine, ModelSpec
from codeneedle.engines.messages import Completion
from codeneedle.engines.mlx.engine import Mlx, package_versions
from codeneedle.engines.openai.engine import (
    command_engine_factory,
    endpoint_engine_factory,
)
from codeneedle.engines.openai.settings import CommandSettings, EndpointSettings
from codeneedle.errors import CellError, CodeneedleError
from codeneedle.models.pretrained import checked_built_in_path
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.records.record import Status
from codeneedle.system.processes import free_port

PAIR, MLX_PAIR = Pair("q8_0", "q4_0"), Pair("kv8", "kv4")
TYPES = ("f16", "q8_0", "q4_0")
NO_TYPE = Pair("q9_9", "q9_9")

TEXT = """\
def alpha(count):
    zebra = 'hjkqwz'
    return 93

def beta(value):
    quokka = 'plmokn'
    return 17

# recall
def beta(value):
"""
RIGHT = "    quokka = 'plmokn'"


@dataclass(frozen=True)
class Case:
    """An engine, and what is asked of it."""

    engine: Engine
    pair: Pair = PAIR
    fails: Pair | None = NO_TYPE  # what it cannot start; None where it takes all
    scores: bool = True  # whether it scores right tokens
    is_ours: bool = True  # whether its server is a process of ours

    @property
    def cell(self):
        return CellSpec(self.pair, 512)


def made_spec():
    """The built-in model, as an engine serves it."""
    weights = read_weights_from_headers(checked_built_in_path())
    return ModelSpec(weights=weights, name="nano", is_tiny=True)


@contextlib.contextmanager
def llama_cpp(folder):
    yield Case(real_context(folder).engine)


@contextlib.contextmanager
def mlx(_folder):
    spec = replace(made_spec(), weights=nano_weights())
    yield Case(Mlx(versions=package_versions(), model=spec), pair=MLX_PAIR)


@contextlib.contextmanager
def command(folder):
    """llama-server by OpenAI's API, which scores no given text."""
    words = (
        str(real_context(folder).engine.tools.server),
        *("--model", str(checked_built_in_path()), "--host", HOST, "--port", "${port}"),
        *("-c", "${context}", "-ctk", "${k}", "-ctv", "${v}", "-fa", "on", "-np", "1"),
    )
    settings = CommandSettings(
        command=" ".join(words), health="/health", evidence_by_memory=False
    )
    made = command_engine_factory(settings, types=TYPES, environment=os.environ)
    yield Case(made(made_spec()), scores=False)


@contextlib.contextmanager
def endpoint(folder):
    """A llama-server that runs already."""
    started = real_context(folder).engine
    with started.serving(CellSpec(PAIR, 512), log=folder / "endpoint.log") as served:
        settings = EndpointSettings(
            url=served.address.url,
            served_name=served.address.model,
            pair=str(PAIR),
            api_key_env="KEY",
        )
        made = endpoint_engine_factory(
            settings, environment={"KEY": served.address.key}
        )
        yield Case(made(made_spec()), fails=None, scores=False, is_ours=False)


@contextlib.contextmanager
def fake(_folder):
    yield Case(FakeEngine(), fails=None, is_ours=False)


HAS_MLX = pytest.mark.skipif(
    not (find_spec("mlx") and find_spec("mlx_lm")), reason="MLX is not installed"
)
REAL = pytest.mark.real


@pytest.fixture(
    params=[
        pytest.param(llama_cpp, marks=REAL),
        pytest.param(mlx, marks=(HAS_MLX, pytest.mark.slow)),
        pytest.param(command, marks=REAL),
        pytest.param(endpoint, marks=REAL),
        fake,
    ],
    ids=lambda made: made.__name__,
)
def case(request, tmp_path):
    """Each engine; once its test is over, no process of it is left."""
    before = children()
    with request.param(tmp_path) as found:
        yield found
    assert before == children()


def children():
    """Processes that this one has started."""
    return {each.pid for each in psutil.Process().children(recursive=True)}


question = partial(Completion, prompt=TEXT, max_tokens=8)


def test_a_cell_is_served_as_asked_and_ends_with_its_block(case, tmp_path):
    log = tmp_path / "cell.log"
    with case.engine.serving(case.cell, log=log) as served:
        assert () == served.differences_from_cell(case.cell)
        first, again = (served.client.complete(question()) for _ in range(2))
        served.client.wait_idle()
        child = served.child

    assert first.text
    assert first.text == again.text
    assert case.is_ours == (child is not None)
    if child:
        assert not psutil.pid_exists(child.pid)
        assert log.stat().st_size


def test_text_is_counted_without_a_cache(case, tmp_path):
    with case.engine.tokenizing(log=tmp_path / "counting.log") as tokenizer:
        short, long = tokenizer.token_counts_without_special(["return 17", TEXT])
        whole = tokenizer.count_tokens(TEXT)

    assert 0 < short < long <= whole


def test_right_tokens_are_scored_or_refused_with_what_to_do(case, tmp_path):
    if not case.scores:
        with pytest.raises(CodeneedleError) as caught:
            score(case, tmp_path)
        assert caught.value.hint
        return
    found = score(case, tmp_path)

    assert len(found.logprobs) == len(found.leads) == len(found.ends)
    assert max(found.logprobs) <= 1e-3
    assert sorted(found.ends) == [*found.ends]
    assert len(RIGHT) == found.ends[-1]


def score(case, folder):
    """The right line of the text, scored by the engine."""
    case.engine.require(Ability.FORCED)
    with case.engine.serving(case.cell, log=folder / "cell.log") as served:
        return served.client.force(question(), RIGHT)


def test_a_cell_that_cannot_start_says_why_and_leaves_nothing(case, tmp_path):
    if case.fails is None:
        pytest.skip("it starts nothing")
    cell, log = CellSpec(case.fails, 512), tmp_path / "cell.log"

    with pytest.raises(CellError) as caught, case.engine.serving(cell, log=log):
        pass

    assert Status.FINISHED is not caught.value.status
    assert str(caught.value)


def test_an_error_of_a_block_stops_the_server_and_passes_through(case, tmp_path):
    pids = []

    def interrupted():
        with case.engine.serving(case.cell, log=tmp_path / "cell.log") as served:
            pids.extend([served.child.pid] if served.child else [])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert case.is_ours == bool(pids)
    assert not any(map(psutil.pid_exists, pids))


def test_a_server_that_does_not_run_is_no_endpoint():
    url = f"http://{HOST}:{free_port(HOST)}/v1"
    settings = EndpointSettings(url=url, pair=str(PAIR))

    with pytest.raises(CodeneedleError, match="does not answer") as caught:
        endpoint_engine_factory(settings, environment={})(made_spec()).identity()

    assert caught.value.hint
