"""Stored rounds beside the truth: counts of lines, and margins of tokens."""

import math
import random
from dataclasses import replace

import pytest
from made_records import (
    asking_for,
    lost_round,
    made_needle,
    made_record,
    made_reply,
    made_round,
    made_setup,
    with_reply,
    written_of,
)

from codeneedle.engines.messages import Forced
from codeneedle.probes.recall import rounds
from codeneedle.probes.recall.alignment import Mark
from codeneedle.probes.recall.record import RightLineAnswer, recall_of
from codeneedle.probes.recall.rounds import (
    Margins,
    ScoredRound,
    answered_rounds,
    margins_of_gaps,
    scored_rounds,
)
from codeneedle.records.record import BadRecord

SETUP = made_setup(needles=3)
FIRST, SECOND, THIRD = written_of(SETUP)
LOST = lost_round(SECOND, "HTTP 500")


def test_a_round_is_counted_by_lines():
    reply = made_reply(FIRST, matched=12, junk=3)
    asked = ScoredRound(FIRST, made_round(FIRST, reply=reply))
    bare = "\n".join(line.strip() for line in FIRST.lines)
    flat = ScoredRound(FIRST, made_round(FIRST, reply=bare))

    expected = {Mark.MATCHED: 12, Mark.MISSING: 8, Mark.HALLUCINATED: 3}
    assert expected == asked.line_counts_by_mark
    assert 20 == flat.line_counts_by_mark[Mark.MATCHED]
    assert 0 == flat.lines_matched_with_indent


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (made_round(FIRST), ""),
        (made_round(FIRST, reply="x"), ""),
        (made_round(FIRST, reply=" \n"), "empty answer"),
        (made_round(FIRST, reply="<think>hm"), "empty answer"),
        (LOST, "HTTP 500"),
        (made_round(FIRST, reply="", error="too long"), "too long"),
        (made_round(SECOND, reply="", finish="length", error="HTTP 500"), "HTTP 500"),
        (made_round(SECOND, reply="", error="the answer is empty", finish="stop"), ""),
        (made_round(FIRST, reply=" \n", finish="stop"), ""),
    ],
)
def test_a_round_without_an_answer_says_why(stored, error):
    assert error == ScoredRound(FIRST, stored).error


def test_rounds_without_an_answer_have_neither_counts_nor_margins():
    wrong = made_round(FIRST, reply="x", gap=2.0)
    record = made_record("q8_0/q4_0", [wrong, LOST, made_round(THIRD, gap=1.0)])

    assert [0, 20] == [
        e.line_counts_by_mark[Mark.MATCHED] for e in answered_rounds(record, SETUP)
    ]
    assert [2.0, 1.0] == [e.margins.least for e in answered_rounds(record, SETUP)]


def test_margins_are_those_of_the_answer_alone():
    """A token belongs to the answer if it begins before its end."""
    reply = made_reply(FIRST) + "\nx\ny\nz"
    end = reply.index("\nx") + 1
    count = len(reply)
    gaps = tuple(float(count - at) for at in range(count))
    stored = made_round(FIRST, reply=reply, gaps=gaps, lengths=(1,) * count)
    halves = with_reply(stored, gaps=(3.0, 2.0, 1.0), lengths=(end - 1, 2, count - end))

    assert float(count - end + 1) == ScoredRound(FIRST, stored).margins.least
    assert 2.0 == ScoredRound(FIRST, halves).margins.least


def test_without_lengths_all_tokens_are_of_the_answer():
    stored = made_round(FIRST, reply=made_reply(FIRST, junk=9), gaps=(2.0, 1.0))
    nothing = made_round(FIRST, reply="<think>hm", gaps=(1.0,), lengths=(9,))

    assert 1.0 == ScoredRound(FIRST, stored).margins.least
    assert None is ScoredRound(FIRST, nothing).margins


@pytest.mark.parametrize(
    "changes",
    [
        {"gaps": (), "lengths": (9, 9), "logprobs": (-0.1, -0.2)},
        {"drafted": 9, "accepted": 7},
    ],
    ids=["no gaps", "drafted"],
)
def test_without_the_gaps_of_all_tokens_there_are_no_margins(changes):
    """Not 0.0: a speculating server tells no probabilities of those it drafted."""
    record = made_record("q8_0/q4_0", [made_round(FIRST, **changes)])

    assert [None] == [e.margins for e in answered_rounds(record, SETUP)]
    assert [20] == [
        e.line_counts_by_mark[Mark.MATCHED] for e in answered_rounds(record, SETUP)
    ]


def test_a_needle_that_the_setup_does_not_have_is_a_bad_record():
    stranger = replace(made_round(FIRST), name="somebody_else")

    with pytest.raises(BadRecord, match=r"q8_0-q4_0.*no needle 'somebody_else'"):
        scored_rounds(made_record("q8_0/q4_0", [stranger]), SETUP)


@pytest.mark.parametrize("observation", [{"kld": 0.1}, None])
def test_an_observation_of_another_probe_is_a_bad_record(observation):
    record = replace(made_record("q8_0/q4_0", []), observation=observation)

    with pytest.raises(BadRecord, match=r"q8_0-q4_0\.recall\.json"):
        recall_of(record)


def test_records_and_setups_that_are_equal_but_not_the_same_are_all_read():
    whole = made_record("q8_0/q4_0", [made_round(FIRST)])
    broken = replace(whole, observation=made_record("f16/f16", [LOST]).observation)
    other = asking_for(SETUP, written=[replace(FIRST, lines=("x",))])

    assert not scored_rounds(whole, SETUP)[0].error
    assert scored_rounds(broken, SETUP)[0].error
    assert ("x",) == scored_rounds(whole, other)[0].needle.lines
    assert scored_rounds(whole, SETUP) is scored_rounds(whole, SETUP)


def test_equal_replies_are_scored_once(monkeypatch):
    scored = []
    score = rounds.align_reply
    monkeypatch.setattr(
        rounds, "align_reply", lambda *a, **more: scored.append(a) or score(*a, **more)
    )
    reply = made_reply(FIRST, matched=5, junk=7)
    records = [
        made_record(pair, [made_round(FIRST, reply=reply)])
        for pair in ("q8_0/q4_0", "f16/f16")
    ]

    for record in records * 2:
        answered_rounds(record, SETUP)

    assert 1 == len(scored)


def test_the_margins_of_an_answer_are_its_least_gaps_and_their_mean():
    """A percentile lies between order statistics; of a single gap it is that gap."""
    gaps = [float(gap) for gap in range(20, -1, -1)]
    chance = random.Random(42)  # noqa: S311 - no secret
    many = [round(abs(chance.gauss(15, 3)), 4) for _ in range(450)]

    assert Margins(least=0.0, fifth=1.0, mean=10.0) == margins_of_gaps(gaps)
    assert (0.5, 7.0) == (
        margins_of_gaps(range(11)).fifth,
        margins_of_gaps([7.0]).fifth,
    )
    assert None is margins_of_gaps([])
    assert (
        math.fsum(many) / 450
        == margins_of_gaps(many).mean
        == margins_of_gaps(many[::-1]).mean
    )


def forced(*leads, lines=("ab", "", "    cd", "ef")):
    """An answer whose tokens are characters, with these leads and then good ones."""
    needle = replace(made_needle(), lines=lines)
    length = len("\n".join(lines))
    leads = (*leads, *(1.0 for _ in range(length - len(leads))))
    return RightLineAnswer(
        needle,
        Forced(
            logprobs=(-0.5,) * length,
            leads=leads,
            ends=tuple(range(1, length + 1)),
        ),
    )


@pytest.mark.parametrize(
    ("wrong_at", "expected"),
    [(None, 3), (0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (9, 1), (10, 1), (11, 2)],
)
def test_writing_would_leave_the_truth_in_the_line_of_the_first_wrong_token(
    wrong_at, expected
):
    """A line break belongs to the line that it ends; blank lines are not counted."""
    good = 0 if wrong_at is None else wrong_at
    leads = (0.1,) * good if wrong_at is None else (*((0.1,) * good), -0.1)

    assert expected == forced(*leads).lines_before_break


def test_a_token_that_spans_a_line_break_is_of_the_line_in_which_it_ends():
    found = forced()
    spanning = replace(
        found.scores, logprobs=(0, 0, 0), leads=(1, -1, 1), ends=(2, 8, 13)
    )

    assert 1 == RightLineAnswer(found.needle, spanning).lines_before_break


def test_a_first_token_that_completes_no_character_is_of_the_first_line():
    found = forced(lines=("ab", "cd"))
    parts = replace(found.scores, logprobs=(0, 0), leads=(-1, 1), ends=(0, 5))

    assert 0 == RightLineAnswer(found.needle, parts).lines_before_break


def test_a_line_is_right_if_all_of_its_tokens_are_first_choices():
    """A token as probable as another one is none."""
    assert (False, True) == forced(0.0, lines=("ab", "cd")).right_line_flags


@pytest.mark.parametrize(
    ("wrong_at", "expected"),
    [(1, (False, True)), (2, (False, True)), (3, (True, False))],
    ids=["before a line break", "a line break", "behind a line break"],
)
def test_a_wrong_token_makes_the_line_wrong_that_it_ends_in(wrong_at, expected):
    leads = (*[1.0] * wrong_at, -1.0)

    assert expected == forced(*leads, lines=("ab", "cd")).right_line_flags


def test_forced_lines_are_scored_by_token():
    """A token as probable as another one is no first choice."""
    found = forced(-1.0, 0.0, lines=("abcd",))

    assert (-0.5, 0.5) == (found.scores.mean_logprob, found.scores.first_choice_share)
    assert (-1.0, 0.25) == (
        margins_of_gaps(found.scores.leads).least,
        margins_of_gaps(found.scores.leads).mean,
    )
