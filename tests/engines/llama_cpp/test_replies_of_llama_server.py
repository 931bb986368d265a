"""llama-server's API, of one that misbehaves on request, and of the real one."""

import json
import os
import random

import httpx
import pytest
from made_servers import fake_server, made_launch

from codeneedle.cache_types import Pair
from codeneedle.engines import http
from codeneedle.engines.llama_cpp.client import (
    Client,
    parse_chat_event,
    parse_completion_event,
)
from codeneedle.engines.llama_cpp.installation import Program, ask_server_facts
from codeneedle.engines.llama_cpp.server import serving_llama
from codeneedle.engines.messages import (
    BadReply,
    Chat,
    Completion,
    Message,
    Readiness,
    ReadOtherwise,
    Refused,
    ServerGone,
    ServerSilent,
    read_reply_stream,
)
from codeneedle.engines.silence_limits import SilenceLimit

QUESTION = Completion(prompt="Go on", max_tokens=50)
CHAT = Chat(messages=(Message("user", "Go on"),), max_tokens=50)
LINES = "".join(f"line {number}\n" for number in range(40))


def test_a_reply_of_many_tokens_arrives_whole(tmp_path):
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


def complete(served):
    return served.client.complete(QUESTION)


def count(served):
    return served.client.count_tokens("text")


@pytest.mark.parametrize(
    "told", [{"id": 5, "piece": [300]}, {"id": 5, "piece": [-1]}, {"id": 1 << 31}]
)
def test_a_token_of_what_is_no_byte_or_of_no_number_is_no_answer(told):
    answer = json.dumps({"tokens": [{"piece": "a", **told}]}).encode()
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, content=iter([answer]))
    )
    client = Client("http://127.0.0.1:9", api_key="none", transport=transport)

    with pytest.raises(BadReply):
        client.tokens("a")


@pytest.mark.parametrize(
    ("asked", "fault", "error"),
    [
        (complete, "reset", ServerGone),
        (complete, "half-json", BadReply),
        (complete, "html", BadReply),
        (complete, "wrong-shape", BadReply),
        (complete, "no-last-event", ServerGone),
        (complete, "error-event", Refused),
        (complete, "garbage", BadReply),
        (count, "half-json", BadReply),
        (count, "html", BadReply),
        (count, "reset", ServerGone),
    ],
)
def test_an_answer_that_goes_wrong_has_an_error_of_its_own(
    asked, fault, error, tmp_path
):
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        asked(served)


@pytest.mark.parametrize("fault", ["slow-headers", "slow", "pings"])
def test_a_server_that_says_next_to_nothing_is_left(fault, tmp_path):
    with (
        fake_server(tmp_path, fault, silence_s=0.5) as served,
        pytest.raises(ServerSilent) as caught,
    ):
        served.client.complete(QUESTION)

    assert "timed-out" == caught.value.status


def test_silence_is_limited_by_what_other_pairs_took(tmp_path, golden):
    silence_limit = SilenceLimit(limit_s=0.5, known="f16 took 0.1 s")
    with fake_server(tmp_path, "pings", silence_s=600.0) as served:
        served.client.silence_limit = silence_limit
        with pytest.raises(ServerSilent) as caught:
            served.client.complete(QUESTION)

    assert golden == str(caught.value)


def test_the_longest_silence_of_a_reply_is_known(tmp_path):
    with fake_server(tmp_path) as served:
        reply = served.client.complete(QUESTION)
        longest_s = served.client.silence_limit.longest_s
        served.client.count_tokens("text")

    assert 0 < longest_s <= reply.wall_s
    assert longest_s == served.client.silence_limit.longest_s


def test_a_server_that_shuts_down_is_not_waited_for(tmp_path, monkeypatch, golden):
    """After SIGTERM, llama-server may neither complete a reply nor exit."""
    monkeypatch.setattr(http, "SHUTDOWN_S", 0.05)
    monkeypatch.setattr(http, "POLL_S", 0.05)
    farewell = "say-in-round=srv operator(): cleaning up before exit..."
    with (
        fake_server(tmp_path, farewell, "pings", silence_s=60.0) as served,
        pytest.raises(ServerGone) as caught,
    ):
        served.client.complete(QUESTION)

    assert golden == str(caught.value)


@pytest.mark.parametrize("faults", [(), ("no-grammar",)], ids=["at once", "by token"])
def test_an_answer_is_scored_without_being_asked_for(faults, tmp_path):
    with fake_server(tmp_path, *faults) as served:
        forced = served.client.force(QUESTION, "right")

    assert (5 * (-0.25,), ()) == (forced.logprobs, forced.bounds)
    assert (5 * (1.25,), (1, 2, 3, 4, 5)) == (forced.leads, forced.ends)
    assert forced.wall_s > 0


@pytest.mark.parametrize("faults", [(), ("no-grammar",)], ids=["at once", "by token"])
def test_a_server_that_reads_less_than_it_was_sent_has_no_score(faults, tmp_path):
    with (
        fake_server(tmp_path, "reads-less", *faults) as served,
        pytest.raises(ReadOtherwise, match="it read 3 of "),
    ):
        served.client.force(QUESTION, "right")


@pytest.mark.parametrize(
    ("fault", "error"),
    [("reset", ServerGone), ("html", BadReply), ("refuse=500", Refused)],
)
def test_scoring_goes_wrong_as_a_reply_does(fault, error, tmp_path):
    with fake_server(tmp_path, fault) as served, pytest.raises(error):
        served.client.force(QUESTION, "a text of many tokens")


def test_a_port_without_a_server_is_silent():
    with Client("http://127.0.0.1:9", api_key="k") as connection:
        assert Readiness.SILENT is connection.readiness("a")
        with pytest.raises(ServerGone):
            connection.count_tokens("text")


def test_proxies_of_the_environment_are_not_used(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "ALL_PROXY", "http://127.0.0.1:9")

    with fake_server(tmp_path) as served:
        assert 4 == served.client.count_tokens("text")


@pytest.mark.parametrize("tokens", [512, 601, 767])
def test_the_hint_of_a_prompt_that_is_too_long_names_a_context(tokens):
    stated = {
        "code": 400,
        "message": f"request ({tokens} tokens) exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": 512,
    }
    answer = json.dumps({"error": stated}).encode()
    refusing = httpx.MockTransport(
        lambda _: httpx.Response(400, content=iter([answer]))
    )

    with Client("http://made", transport=refusing) as client:
        for ask_it in (lambda: client.complete(QUESTION), lambda: client.chat(CHAT)):
            with pytest.raises(Refused) as caught:
                ask_it()
            assert "Use --context 768 or more." == caught.value.hint


# Events


def completion(*events, enough=lambda _: False):
    return read_reply_stream(
        events, read=parse_completion_event, enough=enough, max_tokens=1000
    )


def chat(*choices, enough=lambda _: False):
    events = ({"choices": [choice]} for choice in choices)
    return read_reply_stream(
        events, read=parse_chat_event, enough=enough, max_tokens=1000
    )


@pytest.mark.parametrize(
    ("last", "finish"),
    [
        ({"stop_type": "eos"}, "stop"),
        ({"stop_type": "word"}, "stop"),
        ({"stop_type": "limit"}, "length"),
        ({"stopped_limit": True}, "length"),
    ],
)
def test_why_a_completion_ended_is_kept(last, finish):
    assert finish == completion({"content": "", "stop": True, **last}).finish


def test_counts_and_times_are_those_of_the_last_event_that_states_them():
    timings = {
        "cache_n": 10,
        "prompt_n": 2,
        "prompt_ms": 1.23456,
        "predicted_n": 1,
        "predicted_ms": None,
        "draft_n": 5,
        "draft_n_accepted": 4,
    }
    event = {"content": "x\n", "timings": timings}
    reply = completion({"content": "x"}, event, enough=lambda _: True)

    assert (12, 10, 1) == (
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.predicted_tokens,
    )
    assert (1.2346, 0.0) == (reply.prompt_ms, reply.predicted_ms)
    assert (5, 4) == (reply.drafted, reply.accepted)


def test_a_chat_tells_thinking_and_answer_apart():
    other = {"id": 2, "logprob": -2.5}
    probabilities = [{"id": 1, "logprob": -0.1, "top_logprobs": [other]}]
    reply = chat(
        {"delta": {"role": "assistant", "content": None}},
        {"delta": {"reasoning_content": "hm\n"}},
        {"delta": {"content": "yes\n"}, "logprobs": {"content": probabilities}},
        {"delta": {}, "finish_reason": "length"},
        enough=lambda text: "hm" in text,
    )

    assert ("yes\n", "hm\n", "length") == (reply.text, reply.reasoning, reply.finish)
    assert (2.4,) == reply.gaps


def test_an_event_that_only_states_usage_is_no_end():
    """It follows the last event, with the final timings."""
    events = [
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "timings": {"predicted_n": 3}},
    ]
    reply = read_reply_stream(
        events, read=parse_chat_event, enough=lambda _: False, max_tokens=1000
    )

    assert ("stop", 3) == (reply.finish, reply.predicted_tokens)


@pytest.mark.parametrize(
    ("read", "event"),
    [
        (parse_completion_event, {}),
        (parse_completion_event, {"content": 5}),
        (parse_completion_event, {"content": "x", "timings": "fast"}),
        (
            parse_completion_event,
            {"content": "x", "timings": {"predicted_ms": 10**400}},
        ),
        (parse_completion_event, {"content": "x", "completion_probabilities": [[]]}),
        (parse_chat_event, {}),
        (parse_chat_event, {"choices": [{}]}),
        (parse_chat_event, {"choices": {}}),
    ],
)
def test_an_event_of_another_shape_is_refused(read, event):
    with pytest.raises(BadReply):
        read(event)


# The real one


@pytest.fixture(scope="module")
def real(llama_server, nano, tmp_path_factory):
    """The real server with the built-in model, and a template for chats."""
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    launch = made_launch(
        llama_server,
        nano,
        context=2048,
        pair=Pair("q8_0", "q8_0"),
        extra=("--chat-template", template),
        options=ask_server_facts(Program(llama_server)).options,
        threads=1,
    )
    log = tmp_path_factory.mktemp("real") / "server.log"
    with serving_llama(launch, log=log) as served:
        yield served.client


PROMPT = "alpha = 'kX9bQ2'\nbeta = 'Zt71Wc'\ngamma = 'Pq04Lm'\n" * 2 + "alpha = "


@pytest.mark.real
def test_the_real_server_counts_and_renders(real):
    assert 6 == real.count_tokens("hello")
    assert [5, 0, 3, 3] == real.token_counts_without_special(
        ["hello", "", "a\nb", "\u20ac"]
    )
    assert [] == real.token_counts_without_special([])
    assert [3] == real.token_counts_without_special(["\u20ac"])
    assert "hi" == real.render((Message("user", "hi"),))
    begin, *said, part, _, _ = real.tokens("a<s>\u20ac")
    assert ["a", "<", "s", ">"] == [token.piece for token in said]
    assert ((0xE2,), begin.id) == (part.piece, real.tokens("")[0].id)
    assert said == list(real.tokens("a<s>", add_special=False))


@pytest.mark.real
def test_chat_and_completion_give_the_same_text(real):
    completed = real.complete(Completion(prompt=PROMPT, max_tokens=30))
    chatted = real.chat(Chat(messages=(Message("user", PROMPT),), max_tokens=30))

    assert completed.text == chatted.text
    assert "length" == completed.finish == chatted.finish
    assert 30 == completed.predicted_tokens == chatted.predicted_tokens
    assert 30 == len(completed.gaps)


@pytest.mark.real
def test_a_question_asked_again_is_answered_the_same_after_a_cut(real):
    question = Completion(prompt=PROMPT, max_tokens=60)
    first = real.complete(question)
    cut = real.complete(question, enough=lambda text: "\n" in text)
    again = real.complete(question)

    assert "cut" == cut.finish
    assert first.text.startswith(cut.text)
    assert cut.text.count("\n") == 1
    assert (first.text, cut.gaps) == (again.text, again.gaps[: len(cut.gaps)])


@pytest.mark.real
def test_the_real_server_scores_what_it_would_have_written_as_it_wrote_it(real):
    question = Completion(prompt=PROMPT, max_tokens=12)
    written = real.complete(question)
    forced = real.force(question, written.text)

    assert written.logprobs == forced.logprobs
    assert written.gaps == forced.leads
    assert tuple(range(1, 13)) == forced.ends
    assert (written.prompt_tokens, ()) == (forced.prompt_tokens, forced.bounds)


@pytest.mark.real
def test_the_real_server_scores_what_it_would_never_write(real):
    question = Completion(prompt=PROMPT, max_tokens=12)
    right = f"'\u20ac{real.complete(question).text[1:6]}"
    forced = real.force(question, right)

    assert (1, 1, 1, 2, 3, 4, 5, 6, 7) == forced.ends
    assert forced.leads[0] > 0 > forced.leads[1] > -60
    assert len(forced.bounds) <= 2


@pytest.mark.real
def test_the_real_server_refuses_a_prompt_that_is_too_long(real):
    with pytest.raises(Refused, match="exceed_context_size_error") as caught:
        real.complete(Completion(prompt="x" * 3000, max_tokens=1))

    assert "Use --context 3072 or more." == caught.value.hint


WORDS = "apple river stone cloud paper glass wheel tiger house green".split()  # noqa: SIM905


def words_of(name):
    """A function of eight lines of words that nothing else tells."""
    words = iter(random.Random(name).choices(WORDS, k=24))  # noqa: S311 - seeded
    lines = (
        f'    {a} = "{b} {c}"\n' for a, b, c in zip(words, words, words, strict=True)
    )
    return f"def {name}():\n{''.join(lines)}"


@pytest.mark.real
def test_a_coarse_k_costs_a_language_model_some_of_its_recall(
    llama_server, smollm2, tmp_path
):
    """K in four bits makes its lines less probable; it writes them with neither."""
    names = WORDS[:3]
    text = "\n".join(map(words_of, names))
    means = {}
    for pair in (Pair("f16", "f16"), Pair("q4_0", "f16")):
        launch = made_launch(
            llama_server,
            smollm2,
            context=1024,
            pair=pair,
            options=ask_server_facts(Program(llama_server)).options,
            threads=1,
        )
        with serving_llama(launch, log=tmp_path / f"{pair.slug}.log") as served:
            found = [
                served.client.force(
                    Completion(prompt=f"{text}\n\ndef {name}():\n", max_tokens=99),
                    words_of(name).partition("\n")[2].rstrip("\n"),
                )
                for name in names
            ]
        logprobs = [logprob for forced in found for logprob in forced.logprobs]
        means[str(pair)] = sum(logprobs) / len(logprobs)

    assert means["q4_0/f16"] < means["f16/f16"] - 0.03, means
