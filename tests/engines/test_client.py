"""The edge to HTTP, against a server that misbehaves on request, and the real one."""

import os

import pytest
from made_servers import fake_server

from codeneedle.engines import client as listening
from codeneedle.engines.client import Chat, Client, Completion, Message
from codeneedle.engines.llama_cpp.installation import ask
from codeneedle.engines.llama_cpp.server import Launch, serving
from codeneedle.engines.responses import (
    OverlongReply,
    PromptTooLong,
    Readiness,
    Refused,
    ServerGone,
    ServerSilent,
    StreamEnded,
    WrongShape,
)
from codeneedle.grid import Pair

QUESTION = Completion(prompt="Go on", max_tokens=50)
LINES = "".join(f"line {number}\n" for number in range(40))


def test_a_reply_of_many_tokens_arrives_whole(tmp_path):
    """
    Text, counts and times, a probability and a gap for each token.
    """
    with fake_server(tmp_path) as served:
        reply = served.client.complete(QUESTION)

    assert (LINES[:50], "length") == (reply.text, reply.finish)
    assert (7, 3, 50) == (
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.predicted_tokens,
    )
    assert 50 * (-0.25,) == reply.logprobs
    assert 50 * (1.25,) == reply.gaps
    assert reply.wall_s > 0


def test_a_reply_is_cut_when_it_is_enough(tmp_path):
    """
    And the server is ready for the next question.
    """
    with fake_server(tmp_path) as served:
        replies = [
            served.client.complete(QUESTION, enough=lambda text: text.count("\n") == 2)
            for _ in range(2)
        ]

    assert 2 * [("line 0\nline 1\n", "cut", 14)] == [
        (reply.text, reply.finish, reply.predicted_tokens) for reply in replies
    ]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("reset", ServerGone),
        ("half-json", WrongShape),
        ("html", WrongShape),
        ("wrong-shape", WrongShape),
        ("no-last-event", StreamEnded),
        ("error-event", Refused),
        ("garbage", OverlongReply),
    ],
)
def test_a_stream_that_goes_wrong_has_an_error_of_its_own(fault, error, tmp_path):
    """
    Never half an answer, never a traceback from a library.
    """
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        served.client.complete(QUESTION)


@pytest.mark.parametrize("fault", ["slow-headers", "slow", "pings"])
def test_a_server_that_says_next_to_nothing_is_left(fault, tmp_path):
    """
    A byte now and then is no event, wherever it comes.
    """
    with (
        fake_server(tmp_path, fault, silence_s=0.5) as served,
        pytest.raises(ServerSilent) as caught,
    ):
        served.client.complete(QUESTION)

    assert "timed-out" == caught.value.status


def test_a_server_that_was_told_to_end_owes_nothing(tmp_path, monkeypatch):
    """
    In the middle of an answer it may neither answer nor end, as llama-server may
    after SIGTERM; nobody waits an hour for that.
    """
    monkeypatch.setattr(listening, "LEAVING_S", 0.05)
    farewell = "say-in-round=srv operator(): cleaning up before exit..."
    with (
        fake_server(tmp_path, farewell, "pings", silence_s=60.0) as served,
        pytest.raises(ServerGone, match="somebody told it to end"),
    ):
        served.client.complete(QUESTION)


@pytest.mark.parametrize(
    ("fault", "error"),
    [("half-json", WrongShape), ("html", WrongShape), ("reset", ServerGone)],
)
def test_a_short_answer_that_goes_wrong_has_the_same_errors(fault, error, tmp_path):
    """
    Counting tokens goes through the same gate.
    """
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        served.client.count_tokens("text")


def test_nobody_there_is_silence():
    """
    A server that has not bound its port yet is not ready, and no error.
    """
    with Client("http://127.0.0.1:9", alias="a", api_key="k") as client:
        assert Readiness.SILENT is client.readiness()
        with pytest.raises(ServerGone):
            client.count_tokens("text")


def test_the_environment_cannot_send_us_elsewhere(tmp_path, monkeypatch):
    """
    Proxies of the environment are not asked for a server on this machine.
    """
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "ALL_PROXY", "http://127.0.0.1:9")

    with fake_server(tmp_path) as served:
        assert 4 == served.client.count_tokens("text")


@pytest.fixture(scope="module")
def real(llama_server, nano, tmp_path_factory):
    """The real server with the built-in model, and a template for chats."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    launch = Launch(
        binary=llama_server,
        weights=nano,
        alias="real",
        context=2048,
        pair=Pair("q8_0", "q8_0"),
        extra=("--chat-template", template),
        options=ask(llama_server).options,
        threads=1,
    )
    log = tmp_path_factory.mktemp("real") / "server.log"
    with serving(launch, log=log) as served:
        yield served.client


PROMPT = "alpha = 'kX9bQ2'\nbeta = 'Zt71Wc'\ngamma = 'Pq04Lm'\n" * 2 + "alpha = "


@pytest.mark.real
def test_many_texts_are_counted_in_one_question(real):
    """
    Each alone, whatever is in it; an empty one has no tokens.
    """
    texts = ["hello", "", "a\nb", "\u20ac"]

    assert [5, 0, 3, 3] == real.counts(texts)
    assert [] == real.counts([])
    assert [3] == real.counts(["\u20ac"])


@pytest.mark.real
def test_the_parts_of_a_text_are_told_in_bytes(real):
    """
    A character that takes several tokens has no part that is a text.
    """
    pieces = real.pieces("a\u20ac")

    assert [1, 1, 1, 1] == [piece.size for piece in pieces]
    assert [97, 0xE2, 0x82, 0xAC] == [piece.id for piece in pieces]


@pytest.mark.real
def test_the_real_server_counts_and_renders(real):
    """
    The built-in model has a token for each byte, and one that begins a prompt.
    """
    assert 6 == real.count_tokens("hello")
    assert 5 == real.count_tokens("hello", add_special=False)
    assert "hi" == real.render((Message("user", "hi"),))


@pytest.mark.real
def test_chat_and_completion_give_the_same_text(real):
    """
    A template that adds nothing makes a chat the completion of its text.
    """
    completed = real.complete(Completion(prompt=PROMPT, max_tokens=30))
    chatted = real.chat(Chat(messages=(Message("user", PROMPT),), max_tokens=30))

    assert completed.text == chatted.text
    assert "length" == completed.finish == chatted.finish
    assert 30 == completed.predicted_tokens == chatted.predicted_tokens
    assert 30 == len(completed.gaps)


@pytest.mark.real
def test_a_question_asked_again_is_answered_the_same_after_a_cut(real):
    """
    What an earlier reply left in the cache changes nothing.
    """
    question = Completion(prompt=PROMPT, max_tokens=60)
    first = real.complete(question)
    cut = real.complete(question, enough=lambda text: "\n" in text)
    again = real.complete(question)

    assert "cut" == cut.finish
    assert first.text.startswith(cut.text)
    assert cut.text.count("\n") == 1
    assert (first.text, cut.gaps) == (again.text, again.gaps[: len(cut.gaps)])


@pytest.mark.real
def test_the_real_server_refuses_a_prompt_that_is_too_long(real):
    """
    The error says by how much.
    """
    with pytest.raises(PromptTooLong) as caught:
        real.complete(Completion(prompt="x" * 3000, max_tokens=1))

    assert (3001, 2048) == (caught.value.prompt_tokens, caught.value.context)
