"""Rounds over lines that break: asked again, and never because of an answer."""

from types import SimpleNamespace

import pytest
from made_records import made_needle
from made_servers import fake_server

from codeneedle.engines.llama_cpp.server import ServerDied
from codeneedle.engines.responses import ServerGone
from codeneedle.probes import recall
from codeneedle.probes.probe import Stage
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall import Asker

NEEDLE = made_needle()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Further attempts come soon."""
    monkeypatch.setattr(recall, "BACK_OFF_S", (0.01, 0.02, 0.03))


def asker(served):
    """Asks *served*, in a cell of which nothing else is known."""
    stage = Stage(
        plan=SimpleNamespace(request=SimpleNamespace(prefill_no_think=False)),
        setup=SimpleNamespace(prompt_form=PromptForm.COMPLETION, seed=1),
        text="corpus",
        pair=None,
    )
    return Asker(served, stage)


@pytest.mark.parametrize("fault", ["reset-times=2", "break-times=2"])
def test_a_line_that_breaks_is_tried_again(fault, tmp_path):
    """
    The round has the whole reply, and why it took three attempts.
    """
    with fake_server(tmp_path, fault) as served:
        asked, _ = asker(served).round(NEEDLE, tokens=50)

    assert asked.reply.startswith("line 0\nline 1\n")
    assert 2 == len(asked.retries)
    assert all("\n" not in reason for reason in asked.retries)


def test_retries_are_those_of_the_round(tmp_path):
    """
    What happened in an earlier one is told there.
    """
    with fake_server(tmp_path, "reset-times=1") as served:
        ask = asker(served)
        first, _ = ask.round(NEEDLE, tokens=50)
        second, _ = ask.round(NEEDLE, tokens=50)

    assert [1, 0] == [len(first.retries), len(second.retries)]


def test_a_line_that_keeps_breaking_ends_the_cell(tmp_path):
    """
    After three further attempts.
    """
    with fake_server(tmp_path, "reset") as served, pytest.raises(ServerGone):
        asker(served).round(NEEDLE, tokens=50)


def test_a_dead_server_is_asked_no_more(tmp_path, monkeypatch):
    """
    Its connection breaks, too; but what it said before is the reason.
    """
    monkeypatch.setattr(recall, "BACK_OFF_S", (5.0, 5.0, 5.0))
    with pytest.raises(ServerDied), fake_server(tmp_path, "die-in-round=3") as served:
        asker(served).round(NEEDLE, tokens=50)


def test_an_answer_is_never_asked_for_twice(tmp_path):
    """
    Lines that are not the asked ones are an answer, however poor.
    """
    with fake_server(tmp_path) as served:
        asked, _ = asker(served).round(NEEDLE, tokens=50)

    assert () == asked.retries
    assert "" == asked.error
