"""A pair that is better than its reference by more than the limit is never set."""

import math
import re
from dataclasses import replace

import pytest
from made_evaluations import REFERENCE as SCORED
from made_evaluations import evaluated
from made_losses import BEYOND, REFERENCE, WITHIN, losing_run, losing_setup
from made_records import asking_recall, made_run, made_setup, sized
from made_retrieval import made_texts, retrieval_record, right
from made_transcripts import made_conditions, transcript_run
from made_verdicts import evaluation, fitting

from codeneedle.cache_types import Pair
from codeneedle.records.record import Run
from codeneedle.report.answer import answer_badge_svg, answer_or_refuse
from codeneedle.report.check import Check, exit_code_and_reason
from codeneedle.report.verdict import headline_sentences
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import losses_sentence
from codeneedle.verdict.next import next_step, pairs_to_extend
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.statistics import Bounds, Decision

GOOD, MIDDLE, COARSE = "q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0"


def gaining(by):
    """Losses of 16 functions of a pair that gains so much."""
    return tuple(loss - by for loss in WITHIN)


def of_answers():
    """Functions to be written, most of which only the coarse pair brings back."""
    setup = made_setup(needles=16, forced=0, types_k=("f16", "q4_0"), types_v=("f16",))
    run = made_run(
        lambda pair, at: 20 if pair.k == "q4_0" or at < 6 else 2,
        setup=asking_recall(setup, {"way": ["write"]}),
    )
    return replace(run, records=tuple(map(sized, run.records)))


def of_texts():
    """Texts, of most of which only the coarse pair finds what is asked."""

    def record(pair, most):
        texts = [
            text
            for length in range(256, 2304, 256)
            for text in made_texts(
                "single",
                dial=0,
                length=length,
                answer=lambda asked, n: right(asked, n) if n <= most else "no",
            )
        ]
        return retrieval_record(pair, texts)

    setup = replace(made_setup(), probes={"retrieval": {"tasks": ["single"]}})
    records = (record("f16/f16", 600), record("q4_0/f16", 9999))
    return Run(name="made", setup=setup, records=records)


def of_turns():
    """Turns whose right tokens are likelier with the coarse pair."""
    return transcript_run(
        {
            "f16/f16": lambda n, _at: 0.6 - 0.002 * (n % 3),
            "q4_0/q4_0": lambda n, _at: 0.9 - 0.004 * (n % 3),
        },
        made_conditions(16),
    )


BETTER = {
    "right tokens of functions": lambda: losing_run({COARSE: gaining(0.15)}),
    "functions that are written": of_answers,
    "answers about texts": of_texts,
    "right tokens of turns": of_turns,
    "scores of samples": lambda: evaluation(200, {COARSE: 150}),
}
"""Runs whose one pair is better than the reference, of each kind of loss."""


@pytest.mark.parametrize("run", BETTER.values(), ids=BETTER)
def test_by_no_kind_of_loss_is_such_a_pair_within_or_set(run):
    found = judge(run())

    (pair,) = found.compared_results
    kinds = {doubt.kind for row in pair.metric_results for doubt in row.doubts}
    assert (Decision.OPEN, None) == (pair.decision, found.chosen)
    assert {RemarkKind.BETTER, RemarkKind.DOUBTED_REFERENCE} <= kinds
    assert Outcome.NO_ANSWER is found.outcome


@pytest.mark.parametrize(
    ("high", "decision"),
    [(-0.011, "open"), (-0.01, "within"), (0.01, "within"), (0.011, "open")],
)
def test_an_interval_below_the_gain_that_is_accepted_is_open(high, decision):
    bounds = Bounds(mean=high, low=-1.0, high=high, units=12)

    assert decision == bounds.decision(0.01)


def test_it_is_told_in_its_own_words_beside_pairs_that_are_not(golden):
    losses = {GOOD: WITHIN, "q8_0/q5_1": WITHIN, MIDDLE: WITHIN}
    found = judge(losing_run({**losses, COARSE: gaining(0.15)}))

    code, line = exit_code_and_reason(found, Pair.parse(COARSE))
    assert (Check.OPEN, Pair.parse(MIDDLE)) == (code, found.chosen)
    assert golden == line
    assert {} == found.reference_doubts_by_metric


@pytest.mark.parametrize(
    ("losses", "is_doubted"),
    [
        ({GOOD: gaining(0.15), MIDDLE: WITHIN}, True),
        ({GOOD: gaining(0.15), MIDDLE: WITHIN, "q5_1/q5_1": WITHIN}, False),
        # What a broken reference still has more of than the worst pairs.
        ({GOOD: gaining(0.15), MIDDLE: BEYOND, COARSE: BEYOND}, True),
        ({GOOD: gaining(0.007), MIDDLE: WITHIN}, False),
        ({p: gaining(0.007) for p in (GOOD, MIDDLE, "q8_0/q5_1")}, True),
        ({p: gaining(0.0015) for p in (GOOD, MIDDLE, "q8_0/q5_1")}, False),
        # Every second unit of the reference is broken: no interval is sure of a gain.
        ({GOOD: tuple(loss - 0.3 * (at % 2) for at, loss in enumerate(WITHIN))}, True),
    ],
)
def test_many_pairs_that_gain_put_the_reference_in_doubt(losses, is_doubted):
    found = judge(losing_run(losses))

    first, *_ = headline_sentences(found, str)
    assert is_doubted == bool(found.reference_doubts_by_metric) == ("in doubt" in first)
    assert is_doubted == (found.chosen is None)


def test_how_many_pairs_gain_is_told_of_one_and_of_several(golden):
    one = judge(losing_run({GOOD: gaining(0.15), MIDDLE: WITHIN}))
    both = judge(losing_run({GOOD: gaining(0.15), MIDDLE: gaining(0.15)}))

    told = [[*each.reference_doubts_by_metric.values()] for each in (one, both)]
    assert golden == told


@pytest.mark.parametrize(
    "run",
    [evaluation(82, {GOOD: 41, MIDDLE: 43, COARSE: 12}), evaluation(20, {GOOD: 11})],
)
def test_samples_that_flip_by_chance_put_no_reference_in_doubt(run):
    found = judge(run)

    assert any(row.gain.mean < -row.limit for row in found.results_of_main_metric)
    assert {} == found.reference_doubts_by_metric


def test_a_pair_that_wins_samples_by_chance_or_a_broken_reference_is_not_within():
    found = judge(evaluation(400, {GOOD: 212, MIDDLE: 201, COARSE: 199}))

    decisions = {str(each.pair): each.decision for each in found.compared_results}
    assert {} == found.reference_doubts_by_metric
    assert (Decision.OPEN, Decision.WITHIN) == (decisions[GOOD], decisions[MIDDLE])


@pytest.mark.parametrize("rights", [{GOOD: 60}, {GOOD: 50, MIDDLE: 52, COARSE: 12}])
def test_samples_that_most_pairs_win_put_the_reference_in_doubt(rights):
    assert {"eval"} == {*judge(evaluation(82, rights)).reference_doubts_by_metric}


def test_beside_a_reference_in_doubt_none_is_within_and_the_worst_stay_beyond():
    losses = {GOOD: gaining(0.15), "q8_0/q5_1": gaining(0.15), MIDDLE: WITHIN}
    found = judge(losing_run({**losses, COARSE: BEYOND}))

    words = {str(each.pair): str(each.decision) for each in found.compared_results}
    expected = dict.fromkeys(losses, "open") | {COARSE: "beyond"}
    assert expected == words
    assert {} == pairs_to_extend(found)


def test_a_sweep_that_decides_ends_at_a_reference_in_doubt():
    run = losing_run({GOOD: gaining(0.15)})
    order = {"pairs": [GOOD, MIDDLE, COARSE], "looks": [16]}

    broken = judge(replace(run, setup=replace(run.setup, order=order)))
    whole = judge(replace(losing_run({GOOD: WITHIN}), setup=broken.run.setup))
    assert next_step(broken, ["recall"]) is None
    assert next_step(whole, ["recall"]) is not None


def test_a_limited_memory_takes_no_pair_that_is_better_than_the_reference():
    losses = {GOOD: WITHIN, MIDDLE: WITHIN, "q8_0/q5_1": WITHIN}
    run = losing_run({**losses, COARSE: gaining(0.15)})

    assert Pair.parse(COARSE) == judge(run, fitting(1.0)).compared_results[-1].pair
    assert judge(run, replace(fitting(0.3), max_loss=0.01)).chosen is None


def test_a_finer_pair_than_the_reference_may_gain(golden):
    pairs = ["bf16/q4_0", GOOD]
    losses = {"bf16/q4_0": gaining(0.15), GOOD: (0.0,) * 16}
    found = judge(losing_run(losses, setup=losing_setup(pairs), reference=""))

    (pair,) = found.compared_results
    (doubt,) = pair.leading_result.doubts
    assert ({}, REFERENCE) != (found.reference_doubts_by_metric, found.reference)
    assert (Decision.OPEN, RemarkKind.BETTER) == (pair.decision, doubt.kind)
    assert golden == doubt.text


def test_a_larger_limit_accepts_a_gain():
    run = losing_run({GOOD: gaining(0.02), MIDDLE: WITHIN, "q8_0/q5_1": WITHIN})

    assert Decision.OPEN is judge(run).result(Pair.parse(GOOD)).decision
    loose = judge(run, Limits(max_loss=0.05))
    assert Decision.WITHIN is loose.result(Pair.parse(GOOD)).decision


def test_right_tokens_that_a_pair_may_gain_by_chance_leave_it_within():
    """The mean gain is beyond the limit, and the interval reaches into it."""
    chance = tuple(-0.015 + 0.02 * (-1) ** at for at in range(16))
    losses = {GOOD: chance, MIDDLE: WITHIN, "q8_0/q5_1": WITHIN}
    result = judge(losing_run(losses)).result(Pair.parse(GOOD))

    assert result.leading_result.gain.mean < -result.leading_result.limit
    assert (Decision.WITHIN, ()) == (result.decision, (*result.leading_result.doubts,))


def wins_and_losses(samples, flips):
    """An evaluation in which pairs lose and win so many of half-right *samples*."""
    was = [1.0] * (samples // 2) + [0.0] * (samples // 2)
    cells = [sized(evaluated(SCORED, was))]
    for pair, (lost, won) in flips.items():
        now = [0.0] * lost + was[lost : samples - won] + [1.0] * won
        cells.append(sized(evaluated(pair, now)))
    run = evaluation(samples, {})
    return replace(run, records=tuple(cells))


SEEMING = {
    "scores of samples": lambda: wins_and_losses(
        1000, {GOOD: (26, 48), COARSE: (90, 50)}
    ),
    "scores of few that differ": lambda: wins_and_losses(
        100, {GOOD: (0, 3), MIDDLE: (1, 1), COARSE: (2, 1)}
    ),
    "answers about texts": lambda: of_some_texts(wins=2),
}
"""Runs in which a pair wins more units than the limit, which may be chance."""


def of_some_texts(wins):
    """48 texts, of which one of three pairs finds what is asked in some more."""

    def record(pair, known):
        texts = [
            text
            for length in range(256, 256 * 17, 256)
            for text in made_texts(
                "single",
                dial=0,
                length=length,
                questions=1,
                scored=None,
                answer=lambda asked, n: right(asked, n) if n > known else "no",
            )
        ]
        return retrieval_record(pair, texts)

    setup = replace(made_setup(), probes={"retrieval": {"tasks": ["single"]}})
    some = 256 * 5
    records = [record("f16/f16", some), record(GOOD, some - 256 * wins)]
    records += [record(pair, some) for pair in (MIDDLE, "q8_0/q5_1", COARSE)]
    return Run(name="made", setup=setup, records=tuple(records))


@pytest.mark.parametrize("run", SEEMING.values(), ids=SEEMING)
def test_a_gain_that_may_be_chance_is_told_as_one_and_no_units_decide_it(run):
    found = judge(run())
    row = found.result(Pair.parse(GOOD)).leading_result

    assert (Decision.OPEN, {}) == (row.decision, found.reference_doubts_by_metric)
    assert RemarkKind.SEEMS_BETTER in {doubt.kind for doubt in row.doubts}
    assert (None, None) == (row.needed, row.units_to_decide)
    said = headline_sentences(found, lambda pair: f"-ctk {pair.k} -ctv {pair.v}")
    assert not any(GOOD in line and "would decide" in line for line in said)


def test_a_limit_that_is_said_to_accept_what_a_pair_wins_accepts_it():
    run = wins_and_losses(1000, {GOOD: (26, 48), COARSE: (90, 50)})
    *_, line = headline_sentences(
        judge(run), lambda pair: f"-ctk {pair.k} -ctv {pair.v}"
    )
    percent = line.rpartition("--max-eval-lost ")[2].removesuffix("%")

    found = judge(run, Limits(max_eval_lost=float(percent) / 100))
    assert Pair.parse(GOOD) == found.chosen


def test_the_most_that_a_pair_loses_is_not_told_as_what_it_gains(golden):
    found = judge(wins_and_losses(1000, {GOOD: (10, 12)}))
    sentence = losses_sentence(found.limits, found.result(Pair.parse(GOOD)))
    (shown,) = re.findall("q8_0/q8_0 [^<]*", answer_badge_svg(answer_or_refuse(found)))[
        :1
    ]

    assert golden == sentence
    assert shown.startswith("q8_0/q8_0 loses at most")


def shown_on_badge(answer):
    return re.findall("q8_0/q8_0 [^<;]*", answer_badge_svg(answer))[-1]


@pytest.mark.parametrize(
    ("mean", "high"),
    [(-0.018, -0.004), (-0.018, math.inf), (0.01, math.inf), (0.01, 0.02)],
    ids=["gain", "gain-unbounded", "loss-unbounded", "loss"],
)
def test_a_badge_tells_as_most_that_is_lost_neither_a_gain_nor_an_unknown(
    mean, high, golden
):
    found = judge(wins_and_losses(1000, {GOOD: (10, 12)}))
    result = found.result(Pair.parse(GOOD))
    bounds = replace(result.leading_result.bounds, mean=mean, high=high)
    of_metrics = (replace(result.leading_result, bounds=bounds),)
    found = replace(found, results=(replace(result, metric_results=of_metrics),))

    assert golden == shown_on_badge(answer_or_refuse(found))
