"""What a server sends: answers, errors, and the events of a stream."""

import json
import math

import pytest

from codeneedle.engines.messages import (
    LONGEST_TOKEN,
    LOWEST_LOGPROB,
    BadReply,
    PromptTooLong,
    Refused,
    ServerGone,
    chat_event,
    completion_event,
    parsed,
    quoted,
    refusal,
    reply_of,
)
from codeneedle.records.record import Json

LAST = {"content": "", "stop": True, "stop_type": "eos"}


def never(_text):
    return False


def token(text, *, chosen=-0.1, other=-2.5):
    top = [{"id": 1, "logprob": chosen}, {"id": 2, "logprob": other}]
    return {
        "content": text,
        "completion_probabilities": [{"id": 1, "logprob": chosen, "top_logprobs": top}],
    }


def completion(*events, enough=never):
    return reply_of(events, read=completion_event, enough=enough, max_tokens=1000)


def chat(*choices, enough=never):
    return reply_of(
        ({"choices": [choice]} for choice in choices),
        read=chat_event,
        enough=enough,
        max_tokens=1000,
    )


def test_a_reply_is_its_tokens_with_probabilities_and_gaps():
    """
    The gap is how much more likely a token was than the best other one; negative, which
    greedy sampling never gives, it is stored as observed.
    """
    probabilities = {
        "id": 9,
        "logprob": -3.0,
        "top_logprobs": [{"id": 7, "logprob": -0.5}],
    }
    reply = completion(
        token("a"),
        token("b", chosen=-0.5, other=-0.75),
        {"content": "c", "completion_probabilities": [probabilities]},
        LAST,
    )

    assert ("abc", "stop") == (reply.text, reply.finish)
    assert (-0.1, -0.5, -3.0) == reply.logprobs
    assert (2.4, 0.25, -2.5) == reply.gaps


def test_gaps_are_missing_where_the_server_does_not_name_tokens():
    """
    Without token ids, or without a second candidate, no lead is known: no gap of
    0.0 is stored for any token of the reply.
    """
    chosen = {"logprob": -0.25}
    nameless = {**chosen, "top_logprobs": [chosen, {"logprob": -1.5}]}
    alone = {**chosen, "id": 1, "top_logprobs": [{**chosen, "id": 1}]}

    for strange in (nameless, alone):
        event = {"content": "b", "completion_probabilities": [strange]}
        reply = completion(token("a"), event, LAST)

        assert (-0.1, -0.25) == reply.logprobs
        assert () == reply.gaps


def test_each_token_has_its_share_of_the_text():
    """
    In characters; a text that comes without a token belongs to the one before.
    """
    reading = {"content": "", "tokens": [9], "prompt_progress": {"total": 5}}
    reply = completion(reading, token("ab"), token("c"), {"content": "d"}, LAST)

    assert (2, 2) == reply.lengths


def test_a_token_of_bytes_that_are_no_text_keeps_the_gap_that_the_server_states():
    """
    It is one U+FFFD of the reply, never a gap of 0.0: texts of tokens are not used.
    """
    events = [
        json.loads(json.dumps(token(text)).encode().replace(b"?", b"\\ud83d"))
        for text in ("a\n", "?", "b")
    ]
    reply = completion(*events, LAST)

    assert "a\n\ufffdb" == reply.text
    assert (2.4, 2.4, 2.4) == reply.gaps
    assert (2, 1, 1) == reply.lengths


@pytest.mark.parametrize("strange", [None, math.nan, -math.inf, -3.4e38])
def test_a_probability_that_is_no_number_is_the_lowest(strange):
    """
    Zero, NaN and null are as unlikely as a 32-bit float can say.
    """
    reply = completion(token("a", chosen=-0.5, other=strange), LAST)

    assert (-0.5 - LOWEST_LOGPROB,) == reply.gaps


def test_a_reply_is_cut_at_the_first_line_break_where_it_is_long_enough():
    """
    The check runs at each token with a line break, and at no other.
    """
    asked = []

    def enough(text):
        asked.append(text)
        return text.count("\n") == 2

    events = [token(letter) for letter in "a\nb\nc\n"]
    reply = completion(*events, LAST, enough=enough)

    assert ("a\nb\n", "cut", 4) == (reply.text, reply.finish, len(reply.gaps))
    assert ["a\n", "a\nb\n"] == asked


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
    """
    ``length`` means that the limit of tokens ended it.
    """
    assert finish == completion({"content": "", "stop": True, **last}).finish


def test_counts_and_times_are_those_of_the_last_event_that_states_them():
    """
    A reply that is cut has them, too.
    """
    timings = {
        "cache_n": 10,
        "prompt_n": 2,
        "prompt_ms": 1.23456,
        "predicted_n": 1,
        "predicted_ms": None,
        "draft_n": 5,
        "draft_n_accepted": 4,
    }
    reply = completion(
        token("x"), token("\n") | {"timings": timings}, enough=lambda _: True
    )

    assert (12, 10, 1) == (
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.predicted_tokens,
    )
    assert (1.2346, 0.0) == (reply.prompt_ms, reply.predicted_ms)
    assert (5, 4) == (reply.drafted, reply.accepted)


def test_a_chat_tells_thinking_and_answer_apart():
    """
    Thinking is not part of the answer, nor passed to ``enough``.
    """
    probabilities = token("")["completion_probabilities"]
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
    """
    It follows the last event, with the final timings.
    """
    events: list[Json] = [
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "timings": {"predicted_n": 3}},
    ]
    reply = reply_of(events, read=chat_event, enough=never, max_tokens=1000)

    assert ("stop", 3) == (reply.finish, reply.predicted_tokens)


def test_a_stream_without_its_last_event_is_no_reply():
    """
    Half an answer is not taken for a whole one; the error says how far it came.
    """
    with pytest.raises(ServerGone) as caught:
        completion(token("a"))

    assert "1 tokens" in str(caught.value)


@pytest.mark.parametrize(
    ("read", "event"),
    [
        (completion_event, {}),
        (completion_event, {"content": 5}),
        (completion_event, {"content": "x", "timings": "fast"}),
        (completion_event, {"content": "x", "timings": {"predicted_ms": 10**400}}),
        (completion_event, {"content": "x", "completion_probabilities": [[]]}),
        (chat_event, {}),
        (chat_event, {"choices": [{}]}),
        (chat_event, {"choices": {}}),
    ],
)
def test_an_event_of_another_shape_is_refused(read, event):
    """
    Types are checked here, so that no later code has to.
    """
    with pytest.raises(BadReply):
        read(event)


def test_a_reply_longer_than_its_tokens_can_be_is_refused():
    """
    A server that ignores the limit fills neither memory nor a record.
    """
    event = {"content": "x" * (LONGEST_TOKEN * 1000 + 1)}

    with pytest.raises(BadReply) as caught:
        completion(event, LAST)

    assert "longer than 1000.0 KiB" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"half": ',
        b"<html>",
        b"[1]",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(data):
    """
    Half an object, a page, a list, too deep a nesting, a number of 5,000 digits.
    """
    with pytest.raises(BadReply):
        parsed(data, expected="an event")


def test_invalid_utf8_and_nan_are_read():
    """
    Older builds write NaN, and models write any bytes.
    """
    found = parsed(b'{"text": "a\xffb", "logprob": NaN}', expected="an event")

    assert "a\ufffdb" == found["text"]


@pytest.mark.parametrize("tokens", [512, 601, 767])
def test_a_prompt_that_is_too_long_has_an_error_with_both_lengths(tokens):
    """
    Its hint names a context that suffices; a reply takes room, too.
    """
    stated = {
        "code": 400,
        "message": f"request ({tokens} tokens) exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": tokens,
        "n_ctx": 512,
    }
    found = refusal(json.dumps({"error": stated}).encode(), code=400)

    assert isinstance(found, PromptTooLong)
    assert (tokens, 512) == (found.prompt_tokens, found.context)
    assert "Use --context 768 or more." == found.hint


def test_an_error_in_a_stream_has_its_own_code():
    """
    The stream itself began with a 200.
    """
    data = b'{"error": {"code": 500, "message": "Compute error.", "type": "server"}}'
    found = refusal(data, code=200)

    assert (500, "server", "Compute error.") == (found.code, found.kind, found.message)


def test_an_error_that_is_a_page_is_quoted_in_one_line():
    """
    Without control characters; of ten megabytes, 200 characters are shown.
    """
    found = refusal(b"<h1>\n\x1b[31mBad\x1b[0m gateway</h1>", code=502)

    assert type(found) is Refused
    assert "'<h1> [31mBad [0m gateway</h1>'" in str(found)
    assert 203 == len(quoted("x" * 10_000_000))
