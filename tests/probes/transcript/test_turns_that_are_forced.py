"""Which turns are forced, and which are left out."""

import json
from pathlib import Path

import pytest
from made_conversations import FakeTemplate, made_conversation

from codeneedle.probes.transcript.choice import (
    NOT_FITTING,
    NOT_RENDERED,
    OVER_LIMIT,
    evenly_spread_turns,
    render_and_count_turns,
)
from codeneedle.probes.transcript.conversations import parse_and_check_conversations
from codeneedle.probes.transcript.record import COPY


def counted(value, template=None, *, context=100_000, limit=None):
    """The counted turns of *value*."""
    found = parse_and_check_conversations(json.dumps(value).encode(), Path("said.json"))
    template = template or FakeTemplate()
    return render_and_count_turns(found, template, context=context, limit=limit)


def test_tokens_are_counted_by_class():
    for each in counted(made_conversation(3)):
        assert each.facts.tokens == sum(each.tokens.values())
        assert len(each.turn.text.encode()) == each.facts.tokens
        assert len(each.turn.prompt.encode()) == each.facts.prompt_tokens


def test_turns_that_do_not_fit_are_left_out_from_the_end():
    every = counted(made_conversation(3))
    third = every[2].facts

    found = counted(
        made_conversation(3), context=third.prompt_tokens + third.tokens + 1
    )

    assert ["", "", "", *[NOT_FITTING] * 3] == [each.left_out for each in found]


def test_turns_of_which_nothing_is_rendered_are_left_out():
    template = FakeTemplate(drops=("tool_calls", "reasoning_content"))

    found = counted(made_conversation(1), template)

    assert [NOT_RENDERED, ""] == [each.left_out for each in found]


def test_turns_that_were_said_before_behind_the_same_prompt_are_left_out():
    """A conversation thrice, and one that goes on from it: copies say nothing new."""
    said, longer = made_conversation(1, seed=1), made_conversation(2, seed=1)
    other = made_conversation(1, seed=2)

    found = counted([said, other, said, longer])

    kept = [each.facts.name for each in found if not each.left_out]
    copies = [each.facts.name for each in found if each.left_out == COPY]
    assert len(found) == len(kept) + len(copies)
    assert {"1", "2"} <= {name.partition(".")[0] for name in kept}
    assert "3" in {name.partition(".")[0] for name in copies}
    assert "3" not in {name.partition(".")[0] for name in kept}


def test_with_a_limit_turns_are_spread_and_late_ones_are_among_them():
    every = counted(made_conversation(4))
    limit = sum(every[at].facts.tokens for at in (0, 4, 7))

    found = counted(made_conversation(4), limit=limit)

    kept = [at for at, each in enumerate(found) if not each.left_out]
    assert [0, 4, 7] == kept
    assert {"", OVER_LIMIT} == {each.left_out for each in found}


@pytest.mark.parametrize(
    ("sizes", "limit", "kept"),
    [
        ([10, 10, 10], 30, [0, 1, 2]),
        ([10, 10, 10], 29, [0, 2]),
        ([10, 10, 10], 19, [2]),
        ([10, 10, 50], 19, [1]),
        ([50, 50], 19, []),
        ([], 19, []),
    ],
)
def test_as_many_turns_as_the_limit_allows_are_spread_evenly(sizes, limit, kept):
    assert kept == evenly_spread_turns(sizes, limit)
