"""Requests to servers with OpenAI's API, and to those that misbehave."""

import contextlib
import datetime as dt
import ssl
from dataclasses import replace
from email.utils import format_datetime

import fake_openai
import httpx
import pytest
from fake_openai import MODEL, endpoint

from codeneedle.engines import http
from codeneedle.engines.messages import (
    BadReply,
    BrokenOff,
    Chat,
    Completion,
    Message,
    PromptCut,
    Readiness,
    Refused,
    Reply,
    ServerGone,
    ServerSilent,
    shaped,
)
from codeneedle.engines.openai.client import (
    OpenAi,
    _misspelled,
    _StatedEvent,
    read_echo,
    read_event,
)
from codeneedle.engines.openai.retries import seconds_of
from codeneedle.errors import CellError
from codeneedle.records.record import Status

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

ASKED = "a:\n  one\n  two\n  three\nb:\n  four\na:"
ANSWER = "  one\n  two\n  three\nb:\n  four\n"
QUESTION = Completion(prompt=ASKED, max_tokens=64)
CHAT = Chat(
    messages=(Message("user", ASKED),),
    max_tokens=64,
    template_args={"enable_thinking": False},
)
"""Of the fake one, the answer has 8 tokens."""


@pytest.fixture
def talk():
    """Connects to a server; ``paused`` are the seconds that it waited."""

    class Talk:
        def __init__(self):
            self.paused = []

        def __call__(self, server, **options):
            client = OpenAi(server.url, **{"silence_s": 30.0, **options})
            client.model = MODEL
            client.sleep = self.paused.append
            return client

    return Talk()


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


def test_given_text_is_scored_where_the_server_echoes_it(talk):
    right = "\n  one\n  tw"
    whole, before = len(ASKED + right), len(ASKED)
    with endpoint("echo", "busy=1") as server, talk(server) as client:
        found = client.force(QUESTION, right)

    tokens = [(at, min(at + 4, whole)) for at in range(0, whole, 4)]
    tokens = [(at, end) for at, end in tokens if end > before]
    assert tuple(end - before for _, end in tokens) == found.ends
    assert len(right) == found.ends[-1]
    assert len(tokens) == len(found.logprobs) == len(found.leads)
    assert {2.0} == set(found.leads)
    assert max(found.logprobs) < 0
    assert () == found.bounds


@pytest.mark.parametrize(
    ("faults", "question", "said"),
    [
        ((), QUESTION, "a reply without an echo"),
        (("echo", "offsets=zero"), QUESTION, "offsets that do not fit"),
        (("echo", "offsets=falling"), QUESTION, "offsets that do not fit"),
        (("echo", "mangled"), QUESTION, "an echo with other tokens"),
        (("echo", "alone"), QUESTION, "no other one is listed"),
        (("echo", "twice"), QUESTION, "add up to more than 1"),
        (("echo", "logprob=5"), QUESTION, "a log-probability of 5"),
        (("echo", "logprob=null"), QUESTION, "a token without a log-probability"),
        (("echo", "logprob=NaN"), QUESTION, "a log-probability of nan"),
        (("echo", "logprob=Infinity"), QUESTION, "a log-probability of inf"),
        (("echo", "logprob=-Infinity"), QUESTION, "a log-probability of -inf"),
        (("echo", "counts=-3"), QUESTION, "Expected `int` >= 0"),
        (("echo", "counts=9"), QUESTION, "an echo with other tokens"),
        (("strict",), QUESTION, "Unrecognized request argument"),
        (("chat-only",), QUESTION, "404"),
        (("echo",), CHAT, "--prompt-form completion"),
        (("echo-refused=500",), QUESTION, "echo is not implemented"),
        (("echo-refused=429",), QUESTION, "echo is not implemented"),
        (("echo-refused=501",), QUESTION, "echo is not implemented"),
    ],
)
def test_a_server_that_cannot_score_given_text_leaves_a_gap(
    talk, faults, question, said
):
    with (
        endpoint(*faults) as server,
        talk(server) as client,
        pytest.raises(BadReply, match=said) as caught,
    ):
        client.force(question, "right")

    assert "Token(" not in str(caught.value)


@pytest.mark.parametrize(
    ("faults", "question"),
    [((), QUESTION), (("echo",), CHAT), (("echo-refused=500",), QUESTION)],
)
def test_a_server_of_a_kind_that_scores_no_given_text_has_not_crashed(
    talk, faults, question
):
    with (
        endpoint(*faults) as server,
        talk(server) as client,
        pytest.raises(BadReply) as caught,
    ):
        client.force(question, "right")

    assert Status.UNSUPPORTED == caught.value.status


def test_passages_of_a_prompt_are_scored_by_one_request_as_each_by_its_own(talk):
    """A token that ends behind a passage is none of it."""
    asked = "def f(x):\n  one\ndef g(x):\n  two\n"
    begins = [asked.index("  one"), asked.index("  two")]
    passages = [(at, at + 5) for at in begins]
    with endpoint("echo") as server, talk(server) as client:
        found = client.force_each(replace(QUESTION, prompt=asked), passages)
        bodies = len(server.bodies)
        alone = [
            client.force(replace(QUESTION, prompt=asked[:begin]), asked[begin:end])
            for begin, end in passages
        ]

    assert (1, 2) == (bodies, len(found))
    for each, other in zip(found, alone, strict=True):
        inside = len(each.ends)
        assert 0 < inside <= len(other.ends)
        assert other.ends[:inside] == each.ends
        assert other.prompt_tokens == each.prompt_tokens
        assert max(each.ends) <= 5
    assert found[0].wall_s + found[1].wall_s > 0


def test_places_of_tokens_need_not_be_told(talk):
    with endpoint("echo") as server, talk(server) as client:
        told = client.force(QUESTION, ANSWER)
        server.faults["offsets"] = "bare"
        bare = client.force(QUESTION, ANSWER)

    assert (told.logprobs, told.ends) == (bare.logprobs, bare.ends)


def test_a_server_that_breaks_at_its_first_echo_is_not_asked_again(talk):
    with endpoint("echo-refused=500") as server, talk(server) as client:
        for _ in range(3):
            with pytest.raises(BadReply, match="500"):
                client.force(QUESTION, "right")

    assert 3 == len(server.bodies)
    assert [0.5, 2.0] == talk.paused


def test_a_server_that_has_echoed_and_breaks_is_a_failure(talk):
    with endpoint("echo") as server, talk(server) as client:
        client.force(QUESTION, "right")
        server.faults["echo-refused"] = "500"
        with pytest.raises(Refused, match="500"):
            client.force(QUESTION, "right")

    assert [0.5, 2.0, 8.0, 30.0] == talk.paused


def test_a_wrong_key_is_no_lack_of_echoes(talk):
    with (
        endpoint("echo-refused=401") as server,
        talk(server) as client,
        pytest.raises(Refused, match="401"),
    ):
        client.force(QUESTION, "right")


def echoed(*pieces, written, counted):
    """An echo of the tokens *pieces*, of which *written* are new; one for a letter."""
    places = [sum(map(len, pieces[:at])) for at in range(len(pieces))]
    numbers = [None, *(-0.1 * at for at in range(1, len(pieces)))]
    told = {
        "tokens": pieces,
        "text_offset": places,
        "token_logprobs": numbers,
        "top_logprobs": [n and {"other": -5.0} for n in numbers],
    }
    usage = {"prompt_tokens": len(pieces) - written}
    usage |= {} if counted is None else {"completion_tokens": counted}
    choice = {"text": "".join(pieces), "logprobs": told}
    return shaped(
        {"choices": [choice], "usage": usage}, _StatedEvent, expected="an echo"
    )


def echo_of(answer, right, *, prompt=""):
    """The scores of *right* behind *prompt* in an echo."""
    whole = prompt + right
    (found,) = read_echo(answer, whole, [(len(prompt), len(whole))], wall_s=0.0)
    return found


@pytest.mark.parametrize(
    ("written", "counted"), [((), 0), (("\n",), 1), (("\n",), None)]
)
def test_scores_are_those_of_the_right_tokens(written, counted):
    right = ("  re", "turn", " xyz")
    whole = ("def ", "f", "(x):\n", *right, *written)
    answer = echoed(*whole, written=len(written), counted=counted)

    found = echo_of(answer, "".join(right))

    assert (-0.3, -0.4, -0.5) == found.logprobs
    assert (4, 8, 12) == found.ends
    assert 3 == found.prompt_tokens


def test_a_token_that_straddles_the_begin_of_the_answer_is_scored():
    """And one that comes before it is not, though it would spell it, too."""
    answer = echoed("x", "=", " x", "=1", written=0, counted=0)

    found = echo_of(answer, "x=1")

    assert ((-0.2, -0.3), (1, 3)) == (found.logprobs, found.ends)


@pytest.mark.parametrize(
    ("echo", "is_whole"),
    [
        (("def", "\u2581f", "<0x0A>", " return"), True),
        (("<s>", "def ", "<|x|>", "f", "\n", " return"), True),
        (("f", "\n", " return"), False),
        (("def ", "\n", " return"), False),
    ],
)
def test_an_echo_spells_the_whole_prompt(echo, is_whole):
    """A server that cuts its prompts was once scored as if it had read them."""
    answer = echoed(*echo, written=0, counted=0)

    def read():
        return echo_of(answer, " return", prompt="def f\n")

    if is_whole:
        assert (-0.1 * (len(echo) - 1),) == pytest.approx(read().logprobs)
        return
    with pytest.raises(PromptCut, match="cut the prompt: its echo spells") as caught:
        read()
    assert "mismatched" == caught.value.status


def test_tokens_that_do_not_spell_what_is_right_are_not_scored():
    """As where a server counts a token that it has not written."""
    answer = echoed("def ", "f", "\n", "  re", "turn", written=0, counted=1)

    with pytest.raises(BadReply, match="an echo with other tokens"):
        echo_of(answer, "  return")


@pytest.mark.parametrize("ask", ["complete", "chat"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("logprob=5", "a log-probability of 5"),
        ("logprob=NaN", "a log-probability of nan"),
        ("logprob=-Infinity", "a log-probability of -inf"),
        ("logprob=null", "a token without a log-probability"),
        ("twice", "add up to more than 1"),
        ("mangled", "do not spell the reply"),
    ],
)
def test_impossible_probabilities_of_a_reply_are_a_gap(talk, ask, fault, said):
    question = QUESTION if ask == "complete" else CHAT
    with endpoint(fault) as server, talk(server) as client:
        reply = getattr(client, ask)(question)

    assert ANSWER == reply.text
    assert ((), (), ()) == (reply.logprobs, reply.gaps, reply.lengths)
    assert said in client.unscored


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

    assert is_spelled == (not _misspelled(tokens, reply))


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
        for ask in (client.prompt_tokens, lambda _: client.complete(QUESTION)):
            with pytest.raises(BadReply, match="int"):
                ask("x")


@pytest.mark.parametrize(
    ("fault", "ask"),
    [
        ("models=2", lambda client: client.models()),
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
        client.models()
        client.models()

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
        assert seen is client.readiness(health=health)


def test_a_model_of_ollama_is_known_without_its_tag(talk, monkeypatch):
    """It lists NAME:latest, and takes NAME."""
    monkeypatch.setattr(fake_openai, "MODEL", f"{MODEL}:latest")

    with endpoint() as server, talk(server) as client:
        assert Readiness.READY is client.readiness(health="")


def test_a_model_without_a_name_is_the_first_that_is_listed(talk):
    with endpoint() as server, talk(server) as client:
        client.model = ""
        client.readiness(health="")

    assert MODEL == client.model


@pytest.mark.parametrize(
    ("faults", "path"), [((), "prompt"), (("chat-only",), "messages")]
)
def test_a_prompt_is_counted_by_the_server(talk, faults, path):
    with endpoint(*faults) as server, talk(server) as client:
        assert 25 == client.prompt_tokens("x" * 100)

    assert path in server.bodies[-1]
    with (
        endpoint("no-usage") as server,
        talk(server) as client,
        pytest.raises(BadReply, match="how many tokens"),
    ):
        client.prompt_tokens("x")


def test_retry_after_is_seconds_or_a_date():
    """RFC 9110; anything else says nothing."""
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=100)

    assert [3.5, 0.0] == [seconds_of("3.5"), seconds_of("-1")]
    assert 90 < seconds_of(format_datetime(soon, usegmt=True)) <= 100
    assert [None] * 3 == [seconds_of(each) for each in ("", "soon", "nan")]


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
