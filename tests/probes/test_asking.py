"""How often a request is sent."""

import contextlib
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine, FakeServer

from codeneedle.engines.messages import (
    Chat,
    Completion,
    Forced,
    Message,
    PromptCut,
    ServerGone,
)
from codeneedle.probes import asking
from codeneedle.probes.asking import Asker


@pytest.mark.parametrize(("is_dying", "attempts"), [(False, 4), (True, 1)])
def test_a_connection_that_keeps_breaking_ends_the_cell(
    monkeypatch, is_dying, attempts
):
    """After three further attempts; that of a dead server is not tried again."""
    monkeypatch.setattr(asking, "BACK_OFF_S", (0.01, 0.02, 0.03))
    server, tries = FakeServer(FakeEngine()), []
    server.is_dying = is_dying

    def broken():
        tries.append("reset")
        raise ServerGone(reason="reset")

    with pytest.raises(ServerGone):
        Asker(server, None).retried(broken)
    assert attempts == len(tries)


@pytest.mark.parametrize(
    ("question", "read", "is_refused"),
    [
        (Completion(prompt="A TEXT, and a question", max_tokens=1), 40, True),
        (
            Chat(messages=(Message("user", "A TEXT, and more"),), max_tokens=1),
            40,
            True,
        ),
        (Completion(prompt="A TEXT, and a question", max_tokens=1), 60, False),
        (Completion(prompt="A TEXT, and a question", max_tokens=1), 0, False),
        (Completion(prompt="another", max_tokens=1), 40, False),
    ],
)
def test_a_server_that_reads_far_fewer_tokens_than_were_counted_cuts_prompts(
    question, read, is_refused
):
    run = SimpleNamespace(
        text="A TEXT", setup=SimpleNamespace(corpus=SimpleNamespace(tokens=100))
    )
    context = SimpleNamespace(run=run, asking=contextlib.nullcontext)
    client = SimpleNamespace(force=lambda *_: Forced(prompt_tokens=read))
    asker = Asker(SimpleNamespace(client=client), context)

    if is_refused:
        with pytest.raises(PromptCut, match="it counts 40 tokens, the text alone has"):
            asker.forced(question, "right")
    else:
        assert read == asker.forced(question, "right").prompt_tokens
