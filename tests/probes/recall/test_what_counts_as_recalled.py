"""The metrics of the recall probe."""

import itertools
import math
from collections.abc import Sequence

import pytest
from made_records import (
    asking_recall,
    forced_of,
    lost_round,
    made_forced,
    made_priming,
    made_record,
    made_reply,
    made_round,
    made_setup,
    with_reply,
    with_scores,
    written_of,
)

from codeneedle.corpora.needles import NeedleFacts
from codeneedle.probes.metrics import cell_value
from codeneedle.probes.observations import Answer
from codeneedle.probes.recall.metrics import FORCED, METRICS, right_line_metrics
from codeneedle.probes.recall.probe import PROBE
from codeneedle.probes.recall.settings import RecallSettings, Way, settings_of
from codeneedle.records.record import BadRecord, Setup
from codeneedle.verdict.metric_results import why_little_to_lose

SETUP = made_setup(needles=3)
FIRST, SECOND, THIRD = written_of(SETUP)
LOST = lost_round(THIRD, "HTTP 500")


def values(
    name: str,
    rounds: Sequence[Answer],
    *,
    priming: Answer | None = None,
) -> list[float]:
    """What the metric called *name* reads from a record of *rounds*."""
    metric = next(metric for metric in METRICS if metric.name == name)
    record = made_record("q8_0/q4_0", rounds, priming=priming)
    return list(metric.values(record, SETUP))


def test_each_answered_round_is_one_value() -> None:
    flat = "\n".join(line.strip() for line in FIRST.lines)
    rounds = [
        made_round(FIRST, reply=flat),
        made_round(SECOND, reply=made_reply(SECOND, matched=8)),
        made_round(THIRD, reply=made_reply(THIRD, matched=7)),
    ]

    assert [20, 8, 7] == values("matched", rounds)
    assert [0, 8, 7] == values("matched-strict", rounds)
    assert [0, 12, 13] == values("missing", rounds)
    assert [1, 1, 0] == values("pass", rounds)


def test_an_empty_answer_is_nothing_recalled_and_one_that_failed_is_left_out() -> None:
    """A pair must not look better for saying less, nor worse for what a limit ended."""
    said = made_round(SECOND, reply=" \n", finish="stop")
    thought = made_round(THIRD, reply="<think>what is it", finish="length")

    assert [20, 0] == values("matched", [made_round(FIRST), said, thought])
    assert [0, 20] == values("missing", [made_round(FIRST), said, thought])
    assert [1, 0] == values("pass", [made_round(FIRST), said, LOST])
    assert [0, 0, 1] == values("errors", [made_round(FIRST), said, thought])
    assert [] == values("matched", [lost_round(SECOND, "HTTP 500"), thought])


def test_rounds_without_an_answer_are_counted_and_not_averaged() -> None:
    rounds = [made_round(FIRST), lost_round(SECOND, "HTTP 500"), LOST]
    (errors,) = (metric for metric in METRICS if metric.name == "errors")

    assert 2.0 == cell_value(errors, values("errors", rounds))


@pytest.mark.parametrize("ended", ["length", "stop"])
def test_functions_without_an_answer_are_units_that_are_missing(ended) -> None:
    """The verdict then calls the pair within no limit."""
    reason = "the answer is empty"
    empty = made_round(SECOND, reply="", finish=ended, error=reason)
    record = made_record("q8_0/q4_0", [made_round(FIRST), empty])
    metric = METRICS[0]
    is_zero = ended == "stop"

    found = metric.loss_values_by_unit(record, SETUP)
    assert {FIRST.name: 20, **({SECOND.name: 0} if is_zero else {})} == found
    assert (set() if is_zero else {SECOND.name}) == metric.units_without_value(
        record, SETUP
    )
    assert [FIRST.name, SECOND.name] == metric.loss.units(record, SETUP)


def test_the_margin_is_the_smallest_gap_of_each_round() -> None:
    rounds = [made_round(FIRST, gap=0.25), made_round(SECOND, gap=3.0)]

    assert [0.25, 3.0] == values("margin", rounds)
    assert [1.25, 4.0] == values("margin-mean", rounds)


@pytest.mark.parametrize(
    ("prompt", "cached", "ms", "speeds"),
    [
        (9000, 900, 4050.0, [2000.0]),
        (9000, 901, 4050.0, []),
        (9000, 0, 0.0, []),
        (0, 0, 10.0, []),
    ],
)
def test_a_reading_speed_is_of_nine_tenths_of_a_prompt(
    prompt: int, cached: int, ms: float, speeds: list[float]
) -> None:
    one = made_round(FIRST, prompt_tokens=prompt, cached_tokens=cached, prompt_ms=ms)

    assert speeds == values("prefill", [one])


@pytest.mark.parametrize(
    ("tokens", "ms", "speeds"), [(16, 32.0, [500.0]), (15, 32.0, []), (16, 0.0, [])]
)
def test_a_writing_speed_is_of_sixteen_tokens_at_least(
    tokens: int, ms: float, speeds: list[float]
) -> None:
    """The first token comes free, so that a speed over few tokens is a fiction."""
    one = made_round(FIRST, predicted_tokens=tokens, predicted_ms=ms)

    assert speeds == values("decode", [one])


def test_reading_speed_comes_from_whole_readings_alone() -> None:
    """The priming round reads 9,000 tokens in 3 s."""
    cached = made_round(FIRST)
    uncached = with_reply(cached, cached_tokens=5, prompt_ms=4497.5)

    assert [3000.0, 2000.0] == (
        values("prefill", [cached, uncached], priming=made_priming(THIRD))
    )


def test_the_cell_itself_is_one_value() -> None:
    rounds = [made_round(FIRST), made_round(SECOND)]

    assert [3.5] == values("kv", rounds)
    assert [0.5] == values("ready", rounds)
    assert [pytest.approx(10.7)] == values("time", rounds)


def test_forced_lines_have_a_value_for_each_function_that_was_scored() -> None:
    first, second, third = forced_of(SETUP)
    lost = lost_round(second, "no probabilities")
    rounds = [made_forced(first, behind=[3]), lost, made_forced(third, logprob=-0.25)]
    record = made_record("q8_0/q4_0", [], forced=rounds)
    metrics = {metric.name: metric for metric in right_line_metrics(SETUP)}

    found = {name: metric.values(record, SETUP) for name, metric in metrics.items()}

    assert [pytest.approx(-0.7), -0.25] == found["recall-logp"]
    assert [80, 100] == found["recall-right"]
    assert [3, 5] == found["breaks-at"]  # what was not scored is no 0
    assert [pytest.approx(2.2), 3.0] == found["lead"]
    assert [pytest.approx(-0.2), 3.0] == found["lead5"]
    logp = metrics["recall-logp"]
    mean = (4 * math.exp(-0.5) + math.exp(-1.5)) / 5
    assert {first.name: mean, third.name: math.exp(-0.25)} == pytest.approx(
        logp.loss_values_by_unit(record, SETUP)
    )
    assert [each.name for each in forced_of(SETUP)] == logp.loss.units(record, SETUP)
    assert 0.9 == pytest.approx(logp.loss.able(record, SETUP))


def test_further_functions_of_open_pairs_are_in_losses_and_in_what_grids_show() -> None:
    setup = asking_recall(SETUP, {"functions": 2})
    logprobs = (-0.5, -0.25, -0.125)
    rounds = [
        made_forced(each, logprob=logprob)
        for each, logprob in zip(forced_of(SETUP), logprobs, strict=True)
    ]
    record = made_record("q8_0/q4_0", [], forced=rounds)

    logp, *others = FORCED

    assert [*logprobs] == logp.values(record, setup)
    assert {each.name for each in forced_of(SETUP)} == {
        *logp.loss_values_by_unit(record, setup)
    }
    for each in (logp, *others):
        assert 3 == len(each.values(record, setup))
        assert 3 == len(each.names(record, setup))


@pytest.mark.parametrize("way", ["read", "force"])
def test_functions_that_were_forced_check_those_that_were_read(way: str) -> None:
    """Where all are forced, there is nothing to check."""
    setup = asking_recall(SETUP, {"way": [way]})
    first, second, _ = forced_of(SETUP)
    unscored = lost_round(second, "gone")
    record = made_record("q8_0/q4_0", [], forced=[made_forced(first), unscored])
    crosschecked = FORCED[0].loss.crosschecked
    expected = {first.name: math.exp(-0.5)} if way == "read" else {}

    assert expected == pytest.approx(crosschecked(record, setup))


def test_losses_are_computed_of_the_mean_probability_of_right_tokens() -> None:
    """Not of the probability of the mean: one token that is lost costs 1 at most."""
    scored = with_scores(
        made_forced(forced_of(SETUP)[0]),
        logprobs=(0.0, 0.0, 0.0, 0.0, -99.0),
        leads=(3.0, 3.0, 3.0, 3.0, -99.0),
    )
    record = made_record("q8_0/q4_0", [], forced=[scored])

    (value,) = FORCED[0].loss_values_by_unit(record, SETUP).values()

    assert 0.8 == pytest.approx(value)


def two_tokens_a_line(function: NeedleFacts, wrong: Sequence[int]) -> Answer:
    """Right lines of *function*, of two tokens each; some are no first choice."""
    begins = itertools.accumulate((len(line) + 1 for line in function.lines), initial=0)
    ends = [
        end
        for begin, line in zip(begins, function.lines, strict=False)
        for end in (begin + len(line) // 2, begin + len(line))
    ]
    leads = tuple(-1.0 if at in wrong else 3.0 for at in range(len(ends)))
    return with_scores(
        made_forced(function),
        logprobs=tuple(-1.5 if lead < 0 else -0.5 for lead in leads),
        leads=leads,
        ends=tuple(ends),
    )


HALF = range(0, 10, 2)
"""The first token of each line."""


@pytest.mark.parametrize(
    ("functions", "wrong", "whole", "is_form"),
    [
        (8, HALF, [], True),
        (8, HALF, [0], True),  # one line of 40
        (8, HALF, [0, 2], False),  # two
        (4, HALF, [], True),  # 20 lines
        (3, HALF, [], False),  # 15 lines, which may all be wrong by chance
        (8, [0, 2, 4], [], False),  # many right tokens
        (8, [0], [], False),  # it begins otherwise, and goes on as it should
    ],
)
def test_half_of_the_tokens_without_a_line_is_form_and_nothing_to_lose(
    functions: int, wrong: Sequence[int], whole: Sequence[int], *, is_form: bool
) -> None:
    """Qwen2.5-Coder-0.5B stretched to 125,547 tokens: 52 of 100 tokens, no line."""
    setup = made_setup(needles=functions)
    first, *others = forced_of(setup)
    answers = [two_tokens_a_line(each, wrong) for each in others]
    begun = two_tokens_a_line(first, [at for at in wrong if at not in whole])
    record = made_record("f16/f16", [], forced=[begun, *answers])

    assert is_form == bool(why_little_to_lose(FORCED[0].loss, record, setup))


def test_the_share_of_tokens_with_a_bound_alone_is_known() -> None:
    rounds = [
        with_scores(made_forced(each), bounds=(0, 4)) for each in forced_of(SETUP)[:1]
    ]
    record = made_record(
        "q8_0/q4_0", [], forced=[*rounds, made_forced(forced_of(SETUP)[1])]
    )

    assert 0.2 == FORCED[0].loss.bounded(record)
    empty = made_record("q8_0/q4_0", [])
    assert 0.0 == FORCED[0].loss.bounded(empty) == METRICS[0].loss.able(empty, SETUP)
    written = made_record("q8_0/q4_0", [made_round(FIRST)])
    assert 1.0 == METRICS[0].loss.able(written, SETUP)


def of_recall(**conditions: object) -> Setup:
    """A setup that says this of recall."""
    return asking_recall(SETUP, conditions)


def test_a_setup_that_says_nothing_of_recall_has_the_defaults() -> None:
    expected = RecallSettings((Way.WRITE, Way.FORCE), functions=32, lines=5)

    assert (
        expected
        == settings_of(SETUP).with_defaults
        == settings_of(of_recall()).with_defaults
    )
    assert (Way.FORCE,) == settings_of(of_recall(way=["force"])).way


@pytest.mark.parametrize(
    "conditions", [{"way": ["x"]}, {"functions": "x"}, {"functions": 0}, {"lines": 0}]
)
def test_conditions_that_are_none_are_a_bad_setup(
    conditions: dict[str, object],
) -> None:
    with pytest.raises(BadRecord, match=r"setup\.json"):
        settings_of(of_recall(**conditions))


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (["write"], "matched"),
        (["write", "force"], "recall-logp"),
        (["read"], "recall-logp"),
    ],
)
def test_forced_recall_is_the_headline_where_it_was_asked(
    way: list[str], expected: str
) -> None:
    setup = of_recall(way=way)

    assert expected == PROBE.metrics_of(setup)[0].name
    assert (expected == "matched") == (right_line_metrics(setup) == ())
