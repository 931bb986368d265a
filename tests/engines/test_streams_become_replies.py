"""What a server sends: answers, errors, and the events of a stream as one reply."""

import json
import math

import pytest

from codeneedle.engines.llama_cpp.client import parse_completion_event
from codeneedle.engines.messages import (
    LONGEST_TOKEN,
    BadReply,
    Progress,
    Refused,
    ServerGone,
    check_and_convert_answer,
    parse_json_object,
    parse_stated_error,
    passage_token_ranges_and_costs,
    quote_beginning,
    read_reply_stream,
)
from codeneedle.scores import LOWEST, ComputesNan

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
    return read_reply_stream(
        events, read=parse_completion_event, enough=enough, max_tokens=1000
    )


def test_a_reply_is_its_tokens_with_probabilities_and_gaps():
    """A negative gap, which greedy sampling never gives, is stored as observed."""
    probabilities = {
        "id": 9,
        "logprob": -3.0,
        "top_logprobs": [{"id": 7, "logprob": -0.5}],
    }
    reply = completion(
        token("a"),
        token("b", chosen=-0.5, other=-1.0),
        {"content": "c", "completion_probabilities": [probabilities]},
        LAST,
    )

    assert ("abc", "stop") == (reply.text, reply.finish)
    assert (-0.1, -0.5, -3.0) == reply.logprobs
    assert (2.4, 0.5, -2.5) == reply.gaps


def test_gaps_are_missing_where_the_server_does_not_name_tokens():
    chosen = {"logprob": -0.25}
    nameless = {**chosen, "top_logprobs": [chosen, {"logprob": -1.5}]}
    alone = {**chosen, "id": 1, "top_logprobs": [{**chosen, "id": 1}]}

    for strange in (nameless, alone):
        event = {"content": "b", "completion_probabilities": [strange]}
        reply = completion(token("a"), event, LAST)

        assert (-0.1, -0.25) == reply.logprobs
        assert () == reply.gaps


def test_a_reply_tells_how_far_its_prompt_is_read_and_how_many_tokens_came():
    told = []
    read, known = (
        {"content": "", "prompt_progress": {"total": 6843, "processed": n, "cache": c}}
        for n, c in ((2048, 0), (6843, 6842))
    )
    read_reply_stream(
        [read, known, token("a"), LAST],
        read=parse_completion_event,
        enough=never,
        max_tokens=60,
        tell=told.append,
    )

    assert Progress(2048, 6843, is_prompt=True) == told[0]
    assert [0, 1, 1] == [each.done for each in told[1:]]
    assert {60} == {each.total for each in told[1:]}


def test_each_token_has_its_share_of_the_text():
    """In characters; a text that comes without a token belongs to the one before."""
    reading = {"content": "", "tokens": [9], "prompt_progress": {"total": 5}}
    reply = completion(reading, token("ab"), token("c"), {"content": "d"}, LAST)

    assert (2, 2) == reply.lengths


def test_a_token_of_bytes_that_are_no_text_keeps_the_gap_that_the_server_states():
    """It is one U+FFFD of the reply; texts of tokens are not used."""
    events = [
        json.loads(json.dumps(token(text)).encode().replace(b"?", b"\\ud83d"))
        for text in ("a\n", "?", "b")
    ]
    reply = completion(*events, LAST)

    assert "a\n\ufffdb" == reply.text
    assert (2.4, 2.4, 2.4) == reply.gaps
    assert (2, 1, 1) == reply.lengths


@pytest.mark.parametrize("least", [-math.inf, -3.4e38])
def test_a_probability_below_the_representable_is_the_lowest(least):
    reply = completion(token("a", chosen=-0.5, other=least), LAST)

    assert (-0.5 - LOWEST,) == reply.gaps


@pytest.mark.parametrize("nan", [None, math.nan])
@pytest.mark.parametrize("which", ["chosen", "other"])
def test_nan_ends_the_cell_and_says_from_which_token_on(nan, which, golden):
    """JSON has no word for it: llama-server writes null."""
    with pytest.raises(ComputesNan) as caught:
        completion(token("a"), token("b", **{which: nan}), LAST)

    assert golden == str(caught.value)


@pytest.mark.parametrize("numbers", [(7.5, -1.0), (0.0, 0.0), (math.inf, -0.5)])
def test_a_reply_with_impossible_probabilities_keeps_its_text_alone(numbers):
    chosen, other = numbers
    reply = completion(token("a"), token("b", chosen=chosen, other=other), LAST)

    assert ("ab", (), ()) == (reply.text, reply.logprobs, reply.gaps)
    assert reply.unscored


def test_a_reply_is_cut_at_the_first_line_break_where_it_is_long_enough():
    asked = []

    def enough(text):
        asked.append(text)
        return text.count("\n") == 2

    events = [token(letter) for letter in "a\nb\nc\n"]
    reply = completion(*events, LAST, enough=enough)

    assert ("a\nb\n", "cut", 4) == (reply.text, reply.finish, len(reply.gaps))
    assert ["a\n", "a\nb\n"] == asked


def test_a_stream_without_its_last_event_is_no_reply():
    with pytest.raises(ServerGone) as caught:
        completion(token("a"))

    assert "1 tokens" in str(caught.value)


def test_a_reply_longer_than_its_tokens_can_be_is_refused():
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
    with pytest.raises(BadReply):
        parse_json_object(data, expected="an event")


def test_invalid_utf8_and_nan_are_read():
    """Older builds write NaN, and models write any bytes."""
    found = parse_json_object(
        b'{"text": "a\xffb", "logprob": NaN}', expected="an event"
    )

    assert "a\ufffdb" == found["text"]


def test_an_error_in_a_stream_has_its_own_code():
    """The stream itself began with a 200."""
    data = b'{"error": {"code": 500, "message": "Compute error.", "type": "server"}}'
    found = parse_stated_error(data, code=200)

    assert (500, "server", "Compute error.") == (found.code, found.kind, found.message)


def test_an_error_with_absurd_words_is_told_in_few():
    data = b'{"error": {"code": 1%b, "type": "%b"}}' % (b"0" * 400, b"x" * 5000)
    found = parse_stated_error(data, code=400)

    assert 400 == found.code
    assert len(str(found)) < 300


def test_an_error_that_is_a_page_is_quoted_in_one_line():
    found = parse_stated_error(b"<h1>\n\x1b[31mBad\x1b[0m gateway</h1>", code=502)

    assert type(found) is Refused
    assert "'<h1> [31mBad [0m gateway</h1>'" in str(found)
    assert 203 == len(quote_beginning("x" * 10_000_000))


def test_an_answer_of_another_shape_is_not_quoted_as_python_writes_it():
    """Its text as objects may be far longer than its bytes were."""
    with pytest.raises(BadReply) as caught:
        check_and_convert_answer(
            {"tokens": [{}] * 9}, dict[str, list[int]], expected="tokens"
        )

    assert "Expected `int`, got `object` - at `$[...][0]`" in str(caught.value)
    assert "{}" not in str(caught.value)


def test_the_tokens_of_a_passage_are_those_that_end_in_it():
    """It takes those from the passage before, too; of a token that spans it, none."""
    found = passage_token_ranges_and_costs([2, 5, 6, 9, 12], [(3, 6), (7, 8), (8, 12)])

    assert [(range(1, 3), 2), (range(3, 3), 0), (range(3, 5), 2)] == found
