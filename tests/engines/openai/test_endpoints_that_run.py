"""Endpoints that run are asked as they are, or refused at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import made_weights
from fake_openai import MODEL, endpoint

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CellSpec, ModelSpec
from codeneedle.engines.messages import BadReply, Chat, Completion, Message, Readiness
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.openai.engine import endpoint_engine_factory
from codeneedle.engines.openai.settings import EndpointSettings
from codeneedle.errors import BadInput, ToolFailed
from codeneedle.system import processes
from codeneedle.system.files import nap

pytestmark = pytest.mark.slow

CELL = CellSpec(Pair("q8_0", "q4_0"), 2048)
SPEC = ModelSpec(weights=made_weights(), name="made")
QUESTION = Completion(prompt="a:\n  one\na:", max_tokens=8)


def running(url, **settings):
    """The engine that asks the server at *url*."""
    asked = EndpointSettings(url=url, pair="q8_0/q4_0", **settings)
    return endpoint_engine_factory(asked, environment={"KEY": "sk-right"})(SPEC)


def test_an_endpoint_is_asked_as_it_is():
    with endpoint() as server:
        made = running(server.url, served_name=MODEL)
        with made.serving(CELL, log=Path("unused")) as served:
            assert 2 == len(served.effective().cache_evidence.fingerprints)
            assert served.peak_rss_bytes() is None
            assert served.device_bytes() is None
            assert not served.wait_for_end(0)

    assert {Pair("q8_0", "q4_0")} == made.cache_types().pairs
    assert ("--url", server.url) == served.command[:2]


@pytest.mark.parametrize(
    ("faults", "settings", "error"),
    [
        (("wants=sk-right",), {}, BadInput),
        (("other-model",), {"served_name": MODEL}, BadInput),
        (("no-models",), {}, BadInput),
        (("redirect=http://127.0.0.1:9/",), {}, ToolFailed),
    ],
    ids=["key", "model", "no-models", "redirect"],
)
def test_an_endpoint_that_cannot_be_used_is_refused_at_once(
    faults, settings, error, golden
):
    with endpoint(*faults) as server, pytest.raises(error) as caught:
        running(server.url, **settings)

    assert golden == str(caught.value).replace(server.url, "URL")
    assert caught.value.hint


def test_an_endpoint_that_is_not_there_is_refused_at_once():
    with endpoint() as server:
        url = server.url

    with pytest.raises(ToolFailed, match="does not answer"):
        running(url)


def test_an_endpoint_gets_its_key_and_nobody_else_does():
    with endpoint("wants=sk-right") as server:
        made = running(server.url, api_key_env="KEY")
        with made.serving(CELL, log=Path("unused")) as served:
            pass

    assert {"Bearer sk-right"} == {key for _, key in server.seen}
    assert "sk-right" not in f"{served.command}{made.identity()}{served.effective()}"


@pytest.fixture(scope="module")
def mlx_lm_server(tmp_path_factory):
    """The address of mlx-lm's own server, which serves the built-in model."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    from made_mlx import nano_folder

    folder, home = nano_folder(), tmp_path_factory.mktemp("home")
    port = processes.free_port("127.0.0.1")
    words = ("-m", "mlx_lm", "server", "--model", folder, "--port", port)
    child = subprocess.Popen(
        [sys.executable, "-P", *map(str, words)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/v1"
    with OpenAi(url) as client:
        while (
            client.ask_readiness_and_adopt_model(health="/health")
            is not Readiness.READY
        ):
            assert child.poll() is None
            nap()
    yield url
    child.kill()
    child.wait()


def test_a_real_second_implementation_is_asked(mlx_lm_server):
    """mlx-lm's server refuses numbers of log-probabilities, and streams none."""
    made = running(mlx_lm_server, served_name="default_model")

    with made.serving(CELL, log=Path("unused")) as served:
        reply = served.client.complete(QUESTION)
        chat = served.client.chat(Chat(messages=(Message("user", "a"),), max_tokens=4))
        (one, other), effective = served.cache_evidence.fingerprints, served.effective()
        length = served.tokenizer.count_tokens("x" * 50)
        with pytest.raises(BadReply):
            served.client.force(QUESTION, "right")

    assert ("logprobs", "top_logprobs") == effective.left_out
    assert one == other
    assert one.text
    assert () == one.logprobs == reply.logprobs
    assert (QUESTION.max_tokens, 4) == (reply.predicted_tokens, chat.predicted_tokens)
    assert 50 <= length <= 51
    assert len(QUESTION.prompt) <= reply.prompt_tokens <= len(QUESTION.prompt) + 1
