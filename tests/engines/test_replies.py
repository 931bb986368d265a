"""Events of a stream, put together into one reply."""

import math

import pytest

from codeneedle.engines.responses import (
    LONGEST_TOKEN,
    LOWEST_LOGPROB,
    OverlongReply,
    StreamEnded,
    WrongShape,
    chat_piece,
    completion_piece,
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
    return reply_of(events, read=completion_piece, enough=enough, max_tokens=1000)


def chat(*choices, enough=never):
    return reply_of(
        ({"choices": [choice]} for choice in choices),
        read=chat_piece,
        enough=enough,
        max_tokens=1000,
    )


def test_a_reply_is_its_tokens_with_probabilities_and_gaps():
    """
    The gap is how much more likely a token was than the best other one.
    """
    reply = completion(token("a"), token("b", chosen=-0.5, other=-0.75), LAST)

    assert ("ab", "stop") == (reply.text, reply.finish)
    assert (-0.1, -0.5) == reply.logprobs
    assert (2.4, 0.25) == reply.gaps


def test_a_token_that_is_not_the_likeliest_has_a_negative_gap():
    """
    No greedy reply has one; the observation is kept as it is.
    """
    other = {"id": 7, "logprob": -0.5}
    event = token("a") | {
        "completion_probabilities": [
            {"id": 9, "logprob": -3.0, "top_logprobs": [other]}
        ]
    }

    assert (-2.5,) == completion(event, LAST).gaps


@pytest.mark.parametrize("strange", [None, math.nan, -math.inf, -3.4e38])
def test_a_probability_of_nothing_is_very_small(strange):
    """
    Zero, NaN and null are as unlikely as a 32-bit float can say.
    """
    reply = completion(token("a", chosen=-0.5, other=strange), LAST)

    assert (-0.5 - LOWEST_LOGPROB,) == reply.gaps


def test_a_reply_ends_at_the_first_token_with_which_it_is_enough():
    """
    However the bytes were cut: it is asked at each token with a line break.
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
    A model that had more to say was stopped by the limit.
    """
    assert finish == completion({"content": "", "stop": True, **last}).finish


def test_counts_and_times_are_those_of_the_last_event_that_states_them():
    """
    The server counts, also in a reply that is cut.
    """
    timings = {
        "cache_n": 10,
        "prompt_n": 2,
        "prompt_ms": 1.23456,
        "predicted_n": 1,
        "predicted_ms": None,
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


def test_a_chat_tells_thinking_and_answer_apart():
    """
    What a model thinks is no part of its answer, nor enough of one.
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
    It comes after the end, with the last timings.
    """
    events: list[Json] = [
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "timings": {"predicted_n": 3}},
    ]
    reply = reply_of(events, read=chat_piece, enough=never, max_tokens=1000)

    assert ("stop", 3) == (reply.finish, reply.predicted_tokens)


def test_lone_surrogates_become_replacement_characters():
    """
    What no file could hold is made harmless where it comes in.
    """
    assert "a\ufffdb" == completion(token("a\ud800b"), LAST).text


def test_a_stream_without_its_last_event_is_no_reply():
    """
    Half an answer is not taken for a whole one.
    """
    with pytest.raises(StreamEnded) as caught:
        completion(token("a"))

    assert "1 tokens" in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"content": 5},
        {"content": "x", "timings": "fast"},
        {"content": "x", "timings": {"predicted_ms": 10**400}},
        {"content": "x", "completion_probabilities": [[]]},
    ],
)
def test_an_event_of_another_shape_is_refused(event):
    """
    Nothing behind this gate has to check again.
    """
    with pytest.raises(WrongShape):
        completion(event)


@pytest.mark.parametrize("event", [{}, {"choices": [{}]}, {"choices": {}}])
def test_a_chat_event_of_another_shape_is_refused(event):
    """
    Likewise.
    """
    with pytest.raises(WrongShape):
        reply_of([event], read=chat_piece, enough=never, max_tokens=1000)


def test_a_reply_longer_than_its_tokens_can_be_is_refused():
    """
    A server that does not heed the limit fills no memory, and no record.
    """
    event = {"content": "x" * (LONGEST_TOKEN * 1000 + 1)}

    with pytest.raises(OverlongReply) as caught:
        completion(event, LAST)

    assert "longer than 1000.0 KiB" in str(caught.value)
