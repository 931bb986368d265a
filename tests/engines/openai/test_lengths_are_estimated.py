"""Lengths are estimated from what a server counts."""

import pytest

from codeneedle.engines.messages import Message
from codeneedle.engines.openai import server
from codeneedle.engines.openai.server import EstimatingTokenizer
from codeneedle.errors import CellError
from codeneedle.records.record import Status


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
    assert [25, 50] == estimates.token_counts_without_special(["a" * 100, "b" * 200])
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


def test_a_server_that_names_no_tokens_is_unsupported_where_they_are_needed(golden):
    with pytest.raises(CellError) as caught:
        EstimatingTokenizer(len).tokens("x")

    assert golden == str(caught.value)
    assert Status.UNSUPPORTED == caught.value.status
