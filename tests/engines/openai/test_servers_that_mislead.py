"""Servers that fail, redirect, never end or quote the key are survived, or told."""

import contextlib
import datetime as dt
import ssl
from email.utils import format_datetime

import httpx
import pytest
from asked_endpoint import ANSWER, ASKED, QUESTION
from fake_openai import endpoint

from codeneedle.engines import http
from codeneedle.engines.messages import (
    BadReply,
    BrokenOff,
    Completion,
    Refused,
    ServerGone,
    ServerSilent,
)
from codeneedle.engines.openai.client import OpenAi, read_event
from codeneedle.engines.openai.retries import parse_retry_after
from codeneedle.errors import CellError

KEY = "sk-a-secret-of-the-user"
SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgCFaN7KKDFDEnO0zt
pfCc7Bb5qBUCJted3UJ2Se+BwH2hRANCAAT2MpXuhEdfSzx9ooBqgR8yxGVKgsgM
Bx5aFt5fbpf3ZGSdyk+G5dvujFMf4bb0qQhJM4HoZqlXzcthJcQ1Vmum
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUGrsEk2Fm2HEqPxJP3o8iBn/jNqIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMjA1MjYxOFoYDzIxMjYxMDI5
MDUyNjE4WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAT2MpXuhEdfSzx9ooBqgR8yxGVKgsgMBx5aFt5fbpf3ZGSdyk+G5dvu
jFMf4bb0qQhJM4HoZqlXzcthJcQ1Vmumo2QwYjAdBgNVHQ4EFgQUIpInB5Lo51hs
qqx3rsDa1y86G10wHwYDVR0jBBgwFoAUIpInB5Lo51hsqqx3rsDa1y86G10wDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDIW2HLxgNZCVF4c8xgoBMYIlYJeK6Xea33PvhmETa6jwIhAOmAEWoDtCyktNMA
XT59xH49MKAv8mHNddsYlUrctVcV
-----END CERTIFICATE-----
"""
"""A key and a certificate of 127.0.0.1 that are used nowhere else."""


def test_a_busy_server_is_asked_again_when_it_says(talk):
    with endpoint("busy=2") as server, talk(server) as client:
        reply = client.complete(QUESTION)

    assert ANSWER == reply.text
    assert [0.25, 0.25] == talk.paused
    assert 3 == len(server.bodies)


@pytest.mark.parametrize("fault", ["down=2", "broken=2"])
def test_errors_of_the_server_are_survived(talk, fault):
    with endpoint(fault) as server, talk(server) as client:
        assert ANSWER == client.complete(QUESTION).text

    assert [0.5, 2.0] == talk.paused


@pytest.mark.parametrize(
    ("fault", "code", "hint"),
    [
        ("down=99", 503, "busy or broken"),
        (f"wants={KEY}", 401, "--api-key-env"),
        ("chat-only", 404, "--prompt-form chat"),
        ("redirect=http://127.0.0.1:9/v1", 307, "give the URL"),
    ],
)
def test_a_refusal_says_what_to_do(talk, fault, code, hint):
    with (
        endpoint(fault) as server,
        talk(server, api_key="sk-wrong") as client,
        pytest.raises(Refused) as caught,
    ):
        client.complete(QUESTION)

    assert code == caught.value.code
    assert hint in caught.value.hint
    assert "sk-wrong" not in str(caught.value)


QUOTING = "https://other/?key=sk-a/secret"


@pytest.mark.parametrize(
    "answer",
    [
        {"status_code": 401, "content": rb'{"error": {"message": "sk-a\/secret"}}'},
        {"status_code": 401, "content": b"x" * 192 + b"sk-a/secret"},
        {"status_code": 302, "headers": {"location": QUOTING}},
        {
            "status_code": 200,
            "content": b'data: {"error": {"message": "sk-a/secret"}}\n',
        },
        {"status_code": 200, "content": b"sk-a/secret\n"},
    ],
    ids=["escaped", "cut", "redirect", "event", "no event"],
)
def test_a_key_that_a_server_quotes_is_not_told(answer):
    body = httpx.ByteStream(answer.pop("content", b""))
    transport = httpx.MockTransport(lambda _: httpx.Response(**answer, stream=body))
    with (
        OpenAi("http://h/v1", api_key="sk-a/secret", transport=transport) as client,
        pytest.raises(CellError) as caught,
    ):
        client.complete(QUESTION)

    assert "***" in str(caught.value)
    assert "sk-a" not in f"{caught.value}{caught.value.hint}{vars(caught.value)}"


def test_a_key_that_a_server_says_is_not_stored(talk):
    with endpoint("says-key") as server, talk(server, api_key=KEY) as client:
        whole = client.complete(QUESTION).text
        cut = client.complete(Completion(prompt=ASKED, max_tokens=4)).text

    assert (f"Bearer {'*' * len(KEY)}\n", f"Bearer {'*' * 9}") == (whole, cut)


@pytest.mark.parametrize("fault", ["open-end", "endless-end"])
def test_a_reply_ends_where_the_server_says_so(talk, fault):
    with endpoint(fault) as server, talk(server, silence_s=5.0) as client:
        reply = client.complete(QUESTION)

    assert (ANSWER, 8) == (reply.text, reply.predicted_tokens)


def test_pings_behind_the_last_token_are_not_waited_for(talk, monkeypatch):
    monkeypatch.setattr(http, "ENDED_S", 0.2)
    with endpoint("no-end") as server, talk(server) as client:
        replies = [client.complete(QUESTION), client.complete(QUESTION)]

    assert [(ANSWER, 8)] * 2 == [(r.text, r.predicted_tokens) for r in replies]


@pytest.mark.parametrize("counts", ["-3", "1e400", "10000000000", "NaN", '"9"'])
def test_counts_that_no_prompt_has_are_refused(talk, counts):
    with endpoint(f"counts={counts}") as server, talk(server) as client:
        for ask in (client.ask_prompt_token_count, lambda _: client.complete(QUESTION)):
            with pytest.raises(BadReply, match="int"):
                ask("x")


@pytest.mark.parametrize(
    ("fault", "ask"),
    [
        ("models=2", lambda client: client.ask_model_names()),
        ("echoes=2", lambda client: client.force(QUESTION, "right")),
    ],
)
def test_an_answer_is_read_no_further_than_one_of_its_kind_goes(talk, fault, ask):
    with endpoint(fault) as server, talk(server) as client:
        ours = client._http.stream
        sizes = []

        @contextlib.contextmanager
        def counting(*args, **kwargs):
            with ours(*args, **kwargs) as response:
                try:
                    yield response
                finally:
                    sizes.append(response.num_bytes_downloaded)

        client._http.stream = counting
        with contextlib.suppress(BadReply):
            assert ask(client) is None

    assert [True] == [4 << 20 < size < 5 << 20 for size in sizes]


@pytest.mark.parametrize(
    "where", ["javascript:alert(1)", "http://[", "//\x1b[31m", "http://h:99999999/"]
)
def test_a_redirect_is_told_wherever_it_leads(talk, where):
    """The HTTP library does not read it."""
    with (
        endpoint(f"redirect={where}") as server,
        talk(server) as client,
        pytest.raises(Refused, match="307 redirect"),
    ):
        client.complete(QUESTION)


def test_a_server_that_asks_for_an_absurd_pause_is_waited_for_as_usual(talk):
    with (
        endpoint("retry-after=Mon, 01 Jan 99999999999 00:00:00 GMT") as server,
        talk(server) as client,
        pytest.raises(Refused, match="429"),
    ):
        client.complete(QUESTION)

    assert [0.5, 2.0, 8.0, 30.0] == talk.paused


def test_cookies_of_a_server_are_not_read(talk):
    """Python's reader of cookies warns of odd ones."""
    cookie = "a=b; expires=Mon, 01 Jan 99999999999 00:00:00 GMT; version=x"
    with endpoint(f"cookie={cookie}") as server, talk(server) as client:
        client.ask_model_names()
        client.ask_model_names()

    assert 0 == len(client._http.cookies)


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter"])
def test_a_reply_that_broke_off_is_none(reason):
    """It would count as what the model says."""
    with pytest.raises(BrokenOff, match=reason):
        read_event({"choices": [{"text": "a", "finish_reason": reason}]})


def test_the_key_never_follows_a_redirect(talk):
    with endpoint() as other, endpoint(f"redirect={other.url}") as server:
        with talk(server, api_key=KEY) as client, pytest.raises(Refused):
            client.complete(QUESTION)

        assert [("/v1/completions", f"Bearer {KEY}")] == server.seen
        assert [] == other.seen


def test_a_server_that_says_nothing_is_not_waited_for_forever(talk):
    with (
        endpoint("mute") as server,
        talk(server, silence_s=0.2) as client,
        pytest.raises(ServerSilent),
    ):
        client.complete(QUESTION)

    with talk(server) as client, pytest.raises(ServerGone):
        client.complete(QUESTION)


def test_a_certificate_that_nobody_signed_is_refused(talk, tmp_path):
    pem = tmp_path / "pem"
    pem.write_text(SELF_SIGNED, encoding="utf-8")
    with endpoint() as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        url = server.url.replace("http:", "https:")
        with (
            OpenAi(url, api_key=KEY, silence_s=5.0) as client,
            pytest.raises(ServerGone, match=r"(?i)certificate"),
        ):
            client.complete(QUESTION)

    assert [] == server.seen


def test_retry_after_is_seconds_or_a_date():
    """RFC 9110; anything else says nothing."""
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=100)

    assert [3.5, 0.0] == [parse_retry_after("3.5"), parse_retry_after("-1")]
    assert 90 < parse_retry_after(format_datetime(soon, usegmt=True)) <= 100
    assert [None] * 3 == [parse_retry_after(each) for each in ("", "soon", "nan")]
