"""What comes back from a server, before anybody trusts it."""

import json

import pytest

from codeneedle.engines.responses import (
    PromptTooLong,
    Refused,
    WrongShape,
    parsed,
    quoted,
    refusal,
)


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
    Half, something else, another kind, too deep, or a number without end.
    """
    with pytest.raises(WrongShape):
        parsed(data, expected="an event")


def test_bytes_that_are_no_text_and_numbers_that_are_none_are_read():
    """
    Older builds say NaN, and models say anything.
    """
    found = parsed(b'{"text": "a\xffb", "logprob": NaN}', expected="an event")

    assert "a\ufffdb" == found["text"]


def test_a_prompt_that_is_too_long_has_an_error_with_both_lengths():
    """
    Its hint names the context that would do.
    """
    stated = {
        "code": 400,
        "message": "request (601 tokens) exceeds the available context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 601,
        "n_ctx": 512,
    }
    found = refusal(json.dumps({"error": stated}).encode(), code=400)

    assert isinstance(found, PromptTooLong)
    assert (601, 512) == (found.prompt_tokens, found.context)
    assert "--context 768" in found.hint


def test_an_error_in_a_stream_has_its_own_code():
    """
    The stream itself began with a 200.
    """
    data = b'{"error": {"code": 500, "message": "Compute error.", "type": "server"}}'
    found = refusal(data, code=200)

    assert (500, "server", "Compute error.") == (found.code, found.kind, found.message)


def test_an_error_that_is_a_page_is_quoted_in_one_line():
    """
    Proxies answer for servers, and control characters never reach a terminal.
    """
    found = refusal(b"<h1>\n\x1b[31mBad\x1b[0m gateway</h1>", code=502)

    assert type(found) is Refused
    assert "'<h1> [31mBad [0m gateway</h1>'" in str(found)


def test_a_quotation_is_short():
    """
    Ten megabytes of garbage make no error message.
    """
    assert 203 == len(quoted("x" * 10_000_000))
