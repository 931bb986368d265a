"""Stored rounds beside the truth."""

from dataclasses import replace

import pytest
from made_records import made_record, made_reply, made_round, made_setup

from codeneedle.records.record import BadRecord, Round
from codeneedle.scoring.rounds import Counts, Reading, asked_rounds

SETUP = made_setup(needles=3)
FIRST = SETUP.needles[0]


def test_a_round_is_counted_by_lines() -> None:
    """
    Twelve of twenty, with three lines that stand nowhere.
    """
    reply = made_reply(FIRST, matched=12, junk=3)
    (asked,) = asked_rounds(
        made_record("q8_0/q4_0", [made_round(FIRST, reply=reply)]), SETUP
    )

    counts = asked.counts(Reading())

    assert Counts(matched=12, missing=8, hallucinated=3, bonus=0, overrun=0) == counts
    assert counts.passed


def test_a_needle_that_the_setup_does_not_have_is_a_bad_record() -> None:
    """
    Records and setup of different runs are told apart, not scored.
    """
    stranger = replace(made_round(FIRST), needle="somebody_else")
    record = made_record("q8_0/q4_0", [stranger])

    with pytest.raises(BadRecord, match="somebody_else"):
        asked_rounds(record, SETUP)


def test_an_observation_of_another_probe_is_a_bad_record() -> None:
    """
    What the recall probe did not store is refused.
    """
    record = replace(made_record("q8_0/q4_0", []), observation={"kld": 0.1})

    with pytest.raises(BadRecord, match="q8_0/q4_0"):
        asked_rounds(record, SETUP)


def test_records_that_are_equal_but_not_the_same_are_both_read() -> None:
    """
    What is kept of a record belongs to that very object.
    """
    whole = made_record("q8_0/q4_0", [made_round(FIRST)])
    lost = Round(needle=FIRST.name, prompt_sha256="d0", error="HTTP 500")
    broken = replace(whole, observation=made_record("f16/f16", [lost]).observation)

    assert not asked_rounds(whole, SETUP)[0].error
    assert asked_rounds(broken, SETUP)[0].error
