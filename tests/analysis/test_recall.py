"""The metrics of the recall probe."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from made_records import (
    made_forced,
    made_priming,
    made_record,
    made_reply,
    made_round,
    made_setup,
)

from codeneedle.analysis.recall import (
    METRICS,
    Ask,
    forced_metrics,
    headline,
    unanswered,
)
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
    Rounds are scored against their own needles, in asking order, as the reading says.
    """
    flat = "\n".join(line.strip() for line in FIRST.lines)
    rounds = [
        made_round(FIRST, reply=flat),
        made_round(SECOND, reply=made_reply(SECOND, matched=12)),
        made_round(THIRD, reply=made_reply(THIRD, matched=7)),
    ]

    assert [20, 12, 7] == values("matched", rounds)
    assert [0, 12, 7] == values("matched", rounds, strict_indent=True)
    assert [0, 8, 13] == values("missing", rounds)
    assert [1, 1, 0] == values("pass", rounds)


def test_a_round_without_an_answer_counts_as_nothing_recalled() -> None:
    """
    A pair must not look better for saying less: a round that failed, or has no line to
    score, has no matched line, and is counted apart. A cell without any answer has no
    value.
    """
    empty = made_round(THIRD, reply="<think>what is it that")
    rounds = [made_round(FIRST), failed(SECOND), empty]

    assert [20, 0, 0] == values("matched", rounds)
    assert [0, 20, 20] == values("missing", rounds)
    for name in ("pass", "hallucinated", "margin"):
        assert 1 == len(values(name, rounds)), name
    assert [0, 1, 1] == values("errors", rounds)
    assert [] == values("matched", rounds[1:])
    record = made_record("q8_0/q4_0", rounds)
    assert {SECOND.name, THIRD.name} == unanswered(record, SETUP, Ask.WRITTEN)
    assert not unanswered(record, SETUP, Ask.FORCED)


def test_the_margin_is_the_smallest_gap_of_each_round() -> None:
    """
    One value per round, in nats; the mean over rounds is the cell's.
    """
    rounds = [made_round(FIRST, gap=0.25), made_round(SECOND, gap=3.0)]

    assert [0.25, 3.0] == values("margin", rounds)
    assert [1.25, 4.0] == values("margin-mean", rounds)


def test_reading_speed_comes_from_whole_readings_alone() -> None:
    """
    The priming round reads 9,000 tokens in 3 s; rounds behind a cache tell nothing,
    those that found none do.
    """
    cached = made_round(FIRST)
    uncached = replace(cached, cached_tokens=5, prompt_ms=4497.5)

    assert [3000.0, 2000.0] == (
        values("prefill", [cached, uncached], priming=made_priming(THIRD))
    )
    assert [] == values("prefill", [cached])


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


FORCED_SETUP = replace(SETUP, probes={"recall": {"ask": "both"}})


def test_forced_lines_have_a_value_for_each_needle_that_was_scored() -> None:
    """
    Paired by its name; a round with an error has none, but breaks at once.
    """
    lost = replace(made_forced(SECOND), error="no probabilities", logprobs=(), leads=())
    rounds = [made_forced(FIRST, behind=[3]), lost, made_forced(THIRD, logprob=-0.25)]
    record = made_record("q8_0/q4_0", [], forced=rounds)
    metrics = {metric.name: metric for metric in forced_metrics(FORCED_SETUP)}

    found = {
        name: metric.values(record, FORCED_SETUP, Reading())
        for name, metric in metrics.items()
    }

    assert [-0.5, -0.25] == found["recall-logp"]
    assert [95, 100] == found["recall-right"]
    assert [3, 0, 20] == found["breaks-at"]
    assert [pytest.approx(2.8), 3.0] == found["lead"]
    assert {FIRST.name: -0.5, THIRD.name: -0.25} == (
        metrics["recall-logp"].by_unit(record, FORCED_SETUP, Reading())
    )


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ({}, "matched"),
        ({"recall": {}}, "matched"),
        ({"recall": {"ask": "both"}}, "recall-logp"),
        ({"recall": {"ask": "forced"}}, "recall-logp"),
    ],
)
def test_forced_recall_is_the_headline_where_it_was_asked(
    probes: dict[str, dict[str, str]], expected: str
) -> None:
    """
    And its metrics exist nowhere else.
    """
    setup = replace(SETUP, probes=probes)

    assert expected == headline(setup)
    assert (expected == "matched") == (forced_metrics(setup) == ())
