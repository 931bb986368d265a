"""Estimates of lengths, evidence, memory of a server's processes, and how it ended."""

from types import SimpleNamespace

import pytest
from fake_openai import MODEL, endpoint

from codeneedle.engines.messages import Message, Readiness
from codeneedle.engines.openai import server
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.openai.server import (
    CommandServer,
    EstimatingTokenizer,
    prints,
    proof_text,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Status


def made_server(*, log=None, child=None, **client):
    """A server of a command whose client says what *client* has."""
    answers = SimpleNamespace(prompt_tokens=len, **client)
    return CommandServer(client=answers, command=(), log=log, child=child)


@pytest.mark.parametrize(
    ("host", "device", "has_devices", "held"),
    [
        (5, 7, True, 12),
        (5, None, True, None),
        (None, 7, True, None),
        (5, None, False, 5),
    ],
)
def test_memory_of_which_a_part_is_unknown_is_unknown(
    monkeypatch, host, device, has_devices, held
):
    """A device that did not answer once would look like a small cache."""
    monkeypatch.setattr(server.machine, "nvidia_smi", lambda: "x" * has_devices or None)
    monkeypatch.setattr(server.machine, "group_rss_bytes", lambda _pid: host)
    monkeypatch.setattr(server, "members", lambda _pid: [1])
    monkeypatch.setattr(server.machine, "used_bytes", lambda *_pids: device)

    assert held == made_server(child=SimpleNamespace(pid=1)).memory_bytes()


def test_lengths_are_estimated_from_the_servers_counts():
    asked = []

    def count(text):
        asked.append(text)
        return len(text) // 4

    estimates = EstimatingTokenizer(count)
    assert [2, 2550, 2550] == [
        estimates.count_tokens("x" * n) for n in (8, 10_000, 10_000)
    ]
    assert [8, 2000] == [len(text) for text in asked]
    assert [25, 50] == estimates.counts(["a" * 100, "b" * 200])
    assert 0 == estimates.count_tokens("")


def test_a_text_is_not_estimated_shorter_with_something_behind_it():
    """Its middle is another one then, which may have fewer tokens."""
    estimates = EstimatingTokenizer(lambda text: text.count("x"))
    text = "-" * 4000 + "x" * 1500 + "-" * 4000

    assert estimates.count_tokens(text) <= estimates.count_tokens(text + "-" * 1500)


def test_a_conversation_is_estimated_with_room_for_its_template():
    said = (Message("user", "x" * 100), Message("assistant", "y" * 10))

    rendered = EstimatingTokenizer(len).render(said)

    assert 110 + 2 * server.TEMPLATE_TOKENS < len(rendered) < 300


def test_a_server_that_names_no_tokens_is_unsupported_where_they_are_needed():
    with pytest.raises(CellError, match="does not tell the tokens") as caught:
        EstimatingTokenizer(len).tokens("x")

    assert Status.UNSUPPORTED == caught.value.status


@pytest.mark.parametrize("context", [256, 512, 4096])
def test_the_fixed_text_leaves_room_and_ends_with_its_first_line(context):
    text = proof_text(context)
    first = text.partition("\n")[0]

    assert text.endswith(f"\n{first}\n")
    assert len(text) < context or context < 4096


@pytest.mark.parametrize("faults", [(), ("chat-only",)])
def test_evidence_is_two_replies_to_a_text_that_is_in_the_cache_by_then(faults):
    with endpoint(*faults) as asked, OpenAi(asked.url) as client:
        client.model = MODEL
        found = prints(client, context=4096)

    answered = [body for body in asked.bodies if ("messages" in body) == bool(faults)]
    assert (2, 3) == (len(found), len(answered))
    assert found[0] == found[1]
    assert found[0].text


@pytest.mark.parametrize(
    ("seen", "strange", "said"),
    [
        (Readiness.LOADING, "", "is still loading after 3600 s"),
        (Readiness.STRANGER, "", "lists no model after 3600 s"),
        (Readiness.SILENT, "", "does not answer on its port after 3600 s"),
        (Readiness.STRANGER, "it is another", "it is another"),
    ],
)
def test_why_a_server_did_not_get_ready_is_told(tmp_path, seen, strange, said):
    log = tmp_path / "log"
    log.write_text("one\n\ntwo\n")

    found = made_server(log=log, strange=strange, advice="Mend it.").delay(seen)

    assert said in str(found)
    assert Status.TIMED_OUT == found.status
    assert ("one", "two") == found.log_excerpt


def test_how_a_server_ended_is_told_by_the_last_line_of_its_log(tmp_path):
    log = tmp_path / "log"
    killed = made_server(log=log, child=SimpleNamespace(returncode=-9))
    log.write_text(f"{'x' * 5000}\n")

    told = str(killed.death())

    assert told.startswith("the server ended with SIGKILL: xxx")
    assert len(told) < 300
    log.unlink()
    assert str(killed.death()).endswith("nothing shows that memory ran out")


@pytest.mark.parametrize(
    ("waited_s", "client", "left_s"),
    [
        (100.0, {"strange": "", "wants_key": False}, 3500.0),
        (100.0, {"strange": "it is another", "wants_key": False}, 30.0),
        (3590.0, {"strange": "it is another", "wants_key": False}, 10.0),
        (100.0, {"strange": "it wants a key", "wants_key": True}, 0.0),
    ],
)
def test_a_stranger_has_less_time_to_become_ready(tmp_path, waited_s, client, left_s):
    stranger = made_server(log=tmp_path / "log", **client)

    assert left_s == stranger.left_s(waited_s)
    if left_s == 30.0:
        assert 20.0 == stranger.left_s(waited_s + 10.0)
