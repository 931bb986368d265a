"""What servers with OpenAI's API reply, and which of it is used."""

from dataclasses import replace

import fake_openai
import pytest
from asked_endpoint import ANSWER, ASKED, CHAT, QUESTION
from fake_openai import MODEL, endpoint

from codeneedle.engines.messages import (
    BadReply,
    Chat,
    Message,
    Readiness,
    Reply,
)
from codeneedle.engines.openai.client import _spelling_fault, read_event
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.scores import ComputesNan


def test_a_completion_is_streamed_and_counted(talk):
    with endpoint() as server, talk(server) as client:
        reply = client.complete(QUESTION)

    assert ANSWER == reply.text
    assert ("stop", 9, 8) == (
        reply.finish,
        reply.prompt_tokens,
        reply.predicted_tokens,
    )
    assert 8 == len(reply.logprobs) == len(reply.gaps) == len(reply.lengths)
    assert {2.0} == set(reply.gaps)
    assert 0 < reply.prompt_ms <= reply.wall_s * 1e3


def test_a_chat_says_the_same(talk):
    with endpoint() as server, talk(server) as client:
        chat, completion = client.chat(CHAT), client.complete(QUESTION)

    assert chat.text == completion.text
    assert (chat.logprobs, chat.gaps) == (completion.logprobs, completion.gaps)
    assert {"enable_thinking": False} == server.bodies[0]["chat_template_kwargs"]


def test_a_begun_answer_is_continued(talk):
    """As vLLM and SGLang have to be told."""
    said = (Message("user", "x"), Message("assistant", ASKED))

    with endpoint() as server, talk(server) as client:
        client.chat(Chat(messages=said, max_tokens=3))

    assert server.bodies[0]["continue_final_message"]
    assert not server.bodies[0]["add_generation_prompt"]


@pytest.mark.parametrize("asked", [QUESTION, CHAT])
def test_a_reply_that_a_limit_of_the_server_ends_is_a_gap(talk, asked):
    """Its missing lines were once lost by the pair."""
    with endpoint("most=5") as server, talk(server) as client:
        ask = client.chat if asked is CHAT else client.complete
        with pytest.raises(CellError, match="after 5 of 64 tokens") as caught:
            ask(asked)
        short = ask(replace(asked, max_tokens=5))

    assert Status.MISMATCHED == caught.value.status
    assert ("length", 5) == (short.finish, short.predicted_tokens)


def test_a_reply_that_is_long_enough_is_cut(talk):
    with endpoint() as server, talk(server) as client:
        reply = client.complete(QUESTION, enough=lambda text: "two" in text)

    assert "cut" == reply.finish
    assert ANSWER.startswith(reply.text)
    assert reply.predicted_tokens == len(reply.logprobs) < 8


def test_a_request_that_is_refused_once_leaves_out_no_field(talk):
    """Else all that follow are asked with a server's own settings of sampling."""
    with endpoint("odd=1") as server, talk(server) as client:
        client.complete(QUESTION)

    assert () == client.left_out
    assert 2 == len(server.bodies)


@pytest.mark.parametrize(
    ("fault", "left_out"),
    [
        ("strict", {"top_k", "min_p", "repetition_penalty", "repeat_penalty"}),
        ("stricter", {"logprobs", "top_logprobs", "stream_options", "min_p"}),
    ],
)
def test_fields_that_a_strict_server_refuses_are_left_out_from_then_on(
    talk, fault, left_out
):
    with endpoint(fault) as server, talk(server) as client:
        assert ANSWER == client.complete(QUESTION).text
        tries = len(server.bodies)
        assert ANSWER == client.complete(QUESTION).text

    assert tries + 1 == len(server.bodies)
    assert left_out <= set(client.left_out)
    assert "temperature" in server.bodies[-1]


def test_without_probabilities_and_counts_there_are_gaps(talk):
    with endpoint("no-logprobs", "no-usage") as server, talk(server) as client:
        reply = client.complete(QUESTION)

    assert ((), (), ()) == (reply.logprobs, reply.gaps, reply.lengths)
    assert (0, 8) == (reply.prompt_tokens, reply.predicted_tokens)


@pytest.mark.parametrize("ask", ["complete", "chat"])
def test_nan_in_a_reply_ends_the_cell(talk, ask, golden):
    question = QUESTION if ask == "complete" else CHAT
    with (
        endpoint("logprob=NaN") as server,
        talk(server) as client,
        pytest.raises(ComputesNan) as caught,
    ):
        getattr(client, ask)(question)

    assert golden == str(caught.value)


@pytest.mark.parametrize("ask", ["complete", "chat"])
@pytest.mark.parametrize(
    "fault", ["logprob=5", "logprob=-Infinity", "logprob=null", "twice", "mangled"]
)
def test_impossible_probabilities_of_a_reply_are_a_gap(talk, ask, fault, golden):
    question = QUESTION if ask == "complete" else CHAT
    with endpoint(fault) as server, talk(server) as client:
        reply = getattr(client, ask)(question)

    assert ANSWER == reply.text
    assert ((), (), ()) == (reply.logprobs, reply.gaps, reply.lengths)
    assert golden == client.unscored


def test_probabilities_that_rounding_explains_are_used(talk):
    with endpoint("logprob=1e-7") as server, talk(server) as client:
        assert {0.0} == set(client.complete(QUESTION).logprobs)

    assert "" == client.unscored


@pytest.mark.parametrize(
    ("tokens", "text", "is_spelled"),
    [
        (["Ġre", "turn", "ĊĠ", "▁x", "<|im_end|>"], " return\n x", True),
        (["re", "<0xE2>", "<0x9C>", r"bytes:\x93", "turn"], "re✓turn", True),
        (["<think>", "so", "</think>", "x"], "x", True),
        (["a", "ab", "abc" * 30], "abc" * 30, True),
        (["a"] * 90, "a", False),
        (["re"], "return", False),
    ],
)
def test_tokens_are_compared_with_the_reply_as_servers_write_them(
    tokens, text, is_spelled
):
    """Blanks, bytes and marks have forms of their own."""
    reply = Reply(text=text, reasoning="so" * (tokens[0] == "<think>"), finish="stop")

    assert is_spelled == (not _spelling_fault(tokens, reply))


def test_the_own_api_of_llama_server_is_told_apart():
    """A URL without /v1 reaches it: its path for completions has the same name."""
    with pytest.raises(BadReply) as caught:
        read_event({"content": "a", "tokens_predicted": 1, "stop": False})

    assert "/v1" in caught.value.hint


@pytest.mark.parametrize(
    ("faults", "health", "seen"),
    [
        ((), "/health", Readiness.READY),
        ((), "", Readiness.READY),
        (("loading=1",), "/health", Readiness.LOADING),
        (("other-model",), "", Readiness.STRANGER),
        (("no-models",), "/health", Readiness.READY),
        (("no-models",), "", Readiness.STRANGER),
        ((), "/nothing", Readiness.STRANGER),
        (("no-models",), "/nothing", Readiness.LOADING),
        (("other-model",), "/nothing", Readiness.STRANGER),
    ],
)
def test_a_server_is_ready_when_it_is_well_and_lists_the_model(
    talk, faults, health, seen
):
    with endpoint(*faults) as server, talk(server) as client:
        assert seen is client.ask_readiness_and_adopt_model(health=health)


def test_a_model_of_ollama_is_known_without_its_tag(talk, monkeypatch):
    """It lists NAME:latest, and takes NAME."""
    monkeypatch.setattr(fake_openai, "MODEL", f"{MODEL}:latest")

    with endpoint() as server, talk(server) as client:
        assert Readiness.READY is client.ask_readiness_and_adopt_model(health="")


def test_a_model_without_a_name_is_the_first_that_is_listed(talk):
    with endpoint() as server, talk(server) as client:
        client.model = ""
        client.ask_readiness_and_adopt_model(health="")

    assert MODEL == client.model


@pytest.mark.parametrize("name", ["", MODEL])
@pytest.mark.parametrize("health", ["", "/health"])
def test_a_server_that_lists_no_model_is_not_ready(talk, name, health):
    """It may list them once they are loaded: why it is a stranger is not told."""
    with endpoint("none-listed") as server, talk(server) as client:
        client.model = name
        seen = client.ask_readiness_and_adopt_model(health=health)

    assert (Readiness.STRANGER, "", name) == (seen, client.strange, client.model)


@pytest.mark.parametrize(
    ("faults", "path"), [((), "prompt"), (("chat-only",), "messages")]
)
def test_a_prompt_is_counted_by_the_server(talk, faults, path):
    with endpoint(*faults) as server, talk(server) as client:
        assert 25 == client.ask_prompt_token_count("x" * 100)

    assert path in server.bodies[-1]
    with (
        endpoint("no-usage") as server,
        talk(server) as client,
        pytest.raises(BadReply, match="how many tokens"),
    ):
        client.ask_prompt_token_count("x")


def test_tokens_of_the_same_text_are_told_apart_by_their_probability():
    """The API has no numbers for them: the other one is the next best, not nothing."""
    told = {"token": "a", "logprob": -0.5}
    tops = [told, {"token": "a", "logprob": -1.5}, {"token": "b", "logprob": -3.0}]
    event = {"text": "a", "logprobs": {"content": [{**told, "top_logprobs": tops}]}}

    (token,) = read_event({"choices": [event]}).tokens

    assert [-1.5, -3.0] == [other.logprob for other in token.top_logprobs]
    for logprobs in ({"content": 7}, {"tokens": ["a"], "token_logprobs": []}, "x"):
        odd = {"text": "a", "logprobs": logprobs}
        assert () == read_event({"choices": [odd]}).tokens
