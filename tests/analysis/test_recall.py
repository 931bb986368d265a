"""The metrics of the recall probe."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from made_records import (
    made_needle,
    made_priming,
    made_record,
    made_reply,
    made_round,
    made_setup,
)

from codeneedle.analysis.recall import METRICS
from codeneedle.records.record import NeedleFacts, Round
from codeneedle.scoring.rounds import Reading

SETUP = made_setup(needles=3)
FIRST, SECOND, THIRD = SETUP.needles


def values(
    name: str,
    rounds: Sequence[Round],
    *,
    priming: Round | None = None,
    strict_indent: bool = False,
) -> list[float]:
    """What the metric called *name* reads from a record of *rounds*."""
    metric = next(metric for metric in METRICS if metric.name == name)
    record = made_record("q8_0/q4_0", rounds, priming=priming)
    return list(metric.values(record, SETUP, Reading(strict_indent=strict_indent)))


def failed(needle: NeedleFacts, error: str = "HTTP 500") -> Round:
    return Round(needle=needle.name, prompt_sha256="d0" * 32, error=error)


def test_each_answered_round_is_one_value() -> None:
    """
    Rounds are scored against their own needles, in asking order.
    """
    rounds = [
        made_round(FIRST),
        made_round(SECOND, reply=made_reply(SECOND, matched=12)),
        made_round(THIRD, reply=made_reply(THIRD, matched=7)),
    ]

    assert [20, 12, 7] == values("matched", rounds)
    assert [0, 8, 13] == values("missing", rounds)
    assert [1, 1, 0] == values("pass", rounds)


def test_a_round_with_an_error_is_no_zero() -> None:
    """
    A round that failed contributes to nothing but the count of errors.
    """
    rounds = [made_round(FIRST), failed(SECOND), made_round(THIRD)]

    for name in ("matched", "pass", "hallucinated", "margin", "decode"):
        assert 2 == len(values(name, rounds)), name
    assert [0, 1, 0] == values("errors", rounds)


@pytest.mark.parametrize(
    "reply", ["", "  \n\n", "<think>\n</think>\n", "<think>what is it that"]
)
def test_an_answer_without_a_line_is_an_error(reply: str) -> None:
    """
    A reply of blanks, or of thinking alone, has nothing to score.
    """
    rounds = [made_round(FIRST, reply=reply), made_round(SECOND)]

    assert [20] == values("matched", rounds)
    assert [1, 0] == values("errors", rounds)


def test_indentation_counts_when_the_reading_is_strict() -> None:
    """
    The same stored reply is scored both ways.
    """
    reply = "\n".join(line.strip() for line in FIRST.lines)
    rounds = [made_round(FIRST, reply=reply)]

    assert [20] == values("matched", rounds)
    assert [0] == values("matched", rounds, strict_indent=True)


def test_the_margin_is_the_smallest_gap_of_each_round() -> None:
    """
    One value per round, in nats; the mean over rounds is the cell's.
    """
    rounds = [made_round(FIRST, gap=0.25), made_round(SECOND, gap=3.0)]

    assert [0.25, 3.0] == values("margin", rounds)
    assert [1.25, 4.0] == values("margin-mean", rounds)


def test_rounds_without_gaps_have_no_margin() -> None:
    """
    A server that tells no probabilities leaves a gap, not a margin of zero.
    """
    silent = replace(made_round(FIRST), gaps=())

    assert [] == values("margin", [silent])
    assert [] == values("margin5", [silent])


def test_reading_speed_comes_from_whole_readings_alone() -> None:
    """
    The priming round reads 9,000 tokens in 3 s; rounds behind a cache tell nothing.
    """
    rounds = [made_round(FIRST), made_round(SECOND)]

    assert [3000.0] == values("prefill", rounds, priming=made_priming(THIRD))
    assert [] == values("prefill", rounds)


def test_rounds_that_found_no_cache_tell_the_reading_speed_too() -> None:
    """
    On models whose cache cannot be reused every round is a whole reading.
    """
    uncached = replace(made_round(FIRST), cached_tokens=5, prompt_ms=4497.5)

    speeds = values("prefill", [uncached], priming=made_priming(THIRD))

    assert [3000.0, 2000.0] == speeds


def test_short_replies_tell_no_writing_speed() -> None:
    """
    The first token comes free, so that a speed over few tokens is a fiction.
    """
    short = replace(made_round(FIRST), predicted_tokens=1, predicted_ms=0.001)

    assert [] == values("decode", [short])
    assert [800.0] == values("decode", [made_round(FIRST)])


def test_the_cell_itself_is_one_value() -> None:
    """
    Memory and times belong to the cell, not to its rounds.
    """
    rounds = [made_round(FIRST), made_round(SECOND)]

    assert [3.5] == values("kv", rounds)
    assert [0.5] == values("ready", rounds)
    assert [pytest.approx(10.7)] == values("time", rounds)


def test_metric_names_are_unique() -> None:
    """
    ``--metric`` takes a name, so that no two metrics share one.
    """
    names = [metric.name for metric in METRICS]

    assert sorted(set(names)) == sorted(names)
    assert "matched" == names[0]


def test_made_needles_ask_for_twenty_lines() -> None:
    """
    The synthetic needles of these tests have the form of real ones.
    """
    assert 20 == len(made_needle().lines)
