"""What is said of a pair: within the limit, beyond it, or open; and which to set."""

import math
from dataclasses import replace

import pytest
from answers import forced
from answers import written as has_written
from made_losses import (
    BEYOND,
    OPEN,
    REFERENCE,
    WITHIN,
    diverging,
    losing,
    losing_rounds,
    losing_run,
    losing_setup,
    repeated,
)
from made_records import (
    asking_recall,
    failed_record,
    made_record,
    made_round,
    made_run,
    made_setup,
    written_of,
)
from made_retrieval import made_texts, retrieval_record, scored_texts

from codeneedle.cache_types import Pair
from codeneedle.models.pretrained import BUILT_IN
from codeneedle.probes.metrics import LossKind
from codeneedle.records.record import Effective, KvBuffer, Run, Status
from codeneedle.verdict.judge import judge, pareto_front_with_chosen_pair
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_results import metrics_by_unit
from codeneedle.verdict.noise_floor import NoiseFloor
from codeneedle.verdict.remark_kinds import Remark, RemarkKind
from codeneedle.verdict.statistics import (
    Decision,
    error_share,
    mean_loss_interval,
    units_needed,
)

GOOD, COARSE = "q8_0/q8_0", "q4_0/q4_0"


def of(found, pair):
    """The result of a pair."""
    return found.result(Pair.parse(pair))


def words(found):
    """By pair, what is said of it."""
    return {str(each.pair): str(each.decision) for each in found.compared_results}


def row_of(run, pair=GOOD, metric="recall-logp", limits=None):
    """What a metric says of *pair*."""
    return of(judge(run, limits), pair).metric_result(metric)


def together(*runs):
    """The records of several runs of one setup."""
    records = tuple(record for run in runs for record in run.records)
    probes = {name: kept for run in runs for name, kept in run.setup.probes.items()}
    return replace(
        runs[0], records=records, setup=replace(runs[0].setup, probes=probes)
    )


def with_klds(run, klds):
    """*run*, and the divergence of its pairs."""
    none = diverging(REFERENCE, [1e-6] * 16)
    others = [diverging(pair, each) for pair, each in klds.items()]
    return replace(run, records=(*run.records, none, *others))


# Words


def test_each_pair_is_within_beyond_or_open_and_the_smallest_within_is_set():
    run = losing_run(
        {
            "bf16/q8_0": WITHIN,
            GOOD: WITHIN,
            "q8_0/q4_0": OPEN,
            COARSE: BEYOND,
        }
    )

    found = judge(run)

    assert Pair.parse(REFERENCE) == found.reference
    assert Pair.parse(GOOD) == found.chosen
    assert {
        "bf16/q8_0": "within",
        GOOD: "within",
        "q8_0/q4_0": "open",
        COARSE: "beyond",
    } == words(found)
    assert "" == found.decision(found.reference) == found.decision(Pair("f16", "f16"))


@pytest.mark.parametrize(("units", "word"), [(5, Decision.OPEN), (6, Decision.WITHIN)])
def test_fewer_than_six_functions_are_within_nothing(units, word):
    """Three that lose alike gave an interval of no width, and a pair to set."""
    setup = losing_setup([REFERENCE, GOOD], forced=units, functions=units)
    records = [losing(setup, pair, [0.0] * units) for pair in (REFERENCE, GOOD)]
    run = replace(losing_run({GOOD: WITHIN}), setup=setup, records=tuple(records))

    assert word is row_of(run).decision


def test_a_loss_is_what_the_right_tokens_have_less_than_with_the_reference():
    losses = (0.01, -0.005, *OPEN[2:])

    row = row_of(losing_run({GOOD: losses, COARSE: BEYOND}))

    expected = mean_loss_interval(losses, error_share(0, 2))
    assert (row.bounds.mean, row.bounds.low, row.bounds.high) == pytest.approx(
        (expected.mean, expected.low, expected.high)
    )
    assert 16 == row.bounds.units
    assert 0.01 == row.limit


def test_the_limit_may_be_changed_afterwards():
    run = losing_run({GOOD: WITHIN, COARSE: BEYOND})
    strict, loose = (Limits(max_loss=limit) for limit in (0.001, 0.15))

    assert {GOOD: "open", COARSE: "beyond"} == words(judge(run, strict))
    assert {GOOD: "within", COARSE: "within"} == words(judge(run, loose))
    assert row_of(run, limits=strict).bounds == row_of(run, limits=loose).bounds
    assert Pair.parse(COARSE) == judge(run, loose).chosen


def test_gains_are_shown_as_they_are_and_lie_within():
    row = row_of(losing_run({GOOD: [-0.01 + each for each in WITHIN]}))

    assert -0.01 == pytest.approx(row.bounds.mean)
    assert Decision.WITHIN is row.decision


def test_a_row_that_is_open_says_how_many_functions_would_decide_it():
    run = losing_run({GOOD: OPEN, "q8_0/q4_0": WITHIN})

    assert 16 < row_of(run).needed < 200
    assert row_of(run, "q8_0/q4_0").needed is None


@pytest.mark.parametrize(
    ("units", "needed", "decidable"),
    [(6, 40, 40), (5, 40, None), (6, None, None), (6, 1_000_000, None)],
)
def test_units_that_decide_are_told_of_six_measured_ones_at_least(
    units, needed, decidable
):
    row = row_of(losing_run({GOOD: OPEN}))
    few = replace(row, bounds=replace(row.bounds, units=units), needed=needed)

    assert decidable == few.units_to_decide


@pytest.mark.parametrize(
    ("max_loss", "kind", "said"),
    [
        (0.02, LossKind.NATS, "0.9 %"),
        (0.001, LossKind.NATS, "0.94 %"),
        (0.02, LossKind.CHANGE, "0.0094 nats"),
        (0.00001, LossKind.CHANGE, "0.0094321 nats"),
    ],
)
def test_a_smaller_limit_shows_more_digits_of_a_loss(max_loss, kind, said):
    assert said == Limits(max_loss=max_loss).loss_amount_text(kind, 0.0094321)


def test_losses_that_are_all_zero_are_within_and_raise_a_doubt():
    row = row_of(losing_run({GOOD: [0.0] * 16}))

    assert (0, 0) == (row.bounds.low, row.bounds.high)
    assert Decision.WITHIN is row.decision
    assert [RemarkKind.IDENTICAL] == [each.kind for each in row.doubts]


def test_a_single_function_has_no_interval_and_few_leave_all_open():
    single = row_of(losing_run({GOOD: [0.0]}))
    few = judge(losing_run({GOOD: OPEN[:3], COARSE: (0.05, 0.2, 0.1)}))

    assert (Decision.OPEN, math.inf) == (single.decision, single.bounds.high)
    assert {"open"} == set(words(few).values())
    assert few.chosen is None


def test_an_end_is_no_more_than_everything():
    """Three functions that differ much: 2 degrees of freedom."""
    bounds = row_of(losing_run({GOOD: [0.5, -0.3, 0.5]})).bounds

    assert (-1, 1) == (bounds.low, bounds.high)


# What there is to compare


def test_a_run_without_numbers_has_no_reference():
    setup = losing_setup([REFERENCE, GOOD])
    empty = Run(name="made", setup=setup, records=())
    failed = replace(empty, records=(failed_record(GOOD), failed_record(REFERENCE)))

    for run in (empty, failed):
        found = judge(run)
        assert (None, None, ()) == (
            found.reference,
            found.chosen,
            found.compared_results,
        )


def test_a_pair_of_the_size_of_the_reference_saves_nothing_and_is_not_set():
    found = judge(losing_run({"f16/f16": WITHIN}))

    (result,) = found.compared_results
    assert ("within", 1.0) == (result.decision, result.memory)
    assert None is found.chosen


@pytest.mark.parametrize(("repeated", "is_over"), [(0.01, False), (0.0101, True)])
def test_a_reference_may_differ_from_itself_by_the_limit(repeated, is_over):
    floor = NoiseFloor(repeated=repeated)

    assert is_over == bool(floor.excess_phrase(LossKind.PROBABILITY, Limits()))


def test_a_single_pair_is_the_reference_and_compared_with_nothing():
    found = judge(losing_run({}, setup=losing_setup([REFERENCE])))

    assert Pair.parse(REFERENCE) == found.reference
    assert (None, ()) == (found.chosen, found.compared_results)


def test_pairs_are_compared_on_the_functions_that_both_answered_and_are_open():
    """Those that the reference lacks may be the hard ones."""
    run = losing_run({GOOD: [0.5, 0.5, *WITHIN[2:]]}, reference="")
    reference = losing(run.setup, REFERENCE, [None, None, *[0.0] * 14])

    row = row_of(replace(run, records=(*run.records, reference)))

    assert (14, 2) == (row.bounds.units, row.left_out)
    assert Decision.OPEN is row.decision
    assert [RemarkKind.MISSING] == [doubt.kind for doubt in row.doubts]


def test_a_pair_that_lacks_answers_is_never_within():
    missing = row_of(losing_run({GOOD: [None, *WITHIN[1:]]}))
    beyond = row_of(losing_run({GOOD: [None, *BEYOND[1:]]}))

    assert (Decision.OPEN, 15) == (missing.decision, missing.bounds.units)
    assert RemarkKind.MISSING is missing.doubts[0].kind is beyond.doubts[0].kind
    assert Decision.BEYOND is beyond.decision


def test_a_pair_that_shares_no_function_with_the_reference_is_not_compared():
    run = losing_run({GOOD: [None] * 8 + [0.0] * 8, COARSE: WITHIN}, reference="")
    reference = losing(run.setup, REFERENCE, [0.0] * 8 + [None] * 8)

    found = judge(replace(run, records=(*run.records, reference)))

    assert ["q4_0/q4_0"] == [str(each.pair) for each in found.compared_results]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.UNSUPPORTED, "no kernel"),
        (Status.OUT_OF_MEMORY, "cannot allocate"),
        (Status.TIMED_OUT, "silent"),
        (Status.CRASHED, "it died"),
        (Status.UNVERIFIED, "not told apart"),
        (Status.INTERRUPTED, "stopped"),
    ],
)
def test_gaps_are_not_compared_and_named_with_their_reason(status, reason):
    run = losing_run({GOOD: OPEN}, failed_record(COARSE, status, reason))

    found = judge(run)

    assert f"{status}: {reason}" == of(found, COARSE).trouble
    assert "" == found.decision(Pair.parse(COARSE))
    assert {GOOD: "open"} == words(found)
    assert row_of(run).bounds == row_of(losing_run({GOOD: OPEN})).bounds


def test_of_several_failures_of_a_pair_the_first_is_its_trouble():
    first, second = (failed_record(COARSE, reason=why) for why in ("first", "second"))
    run = losing_run({GOOD: OPEN}, first, replace(second, probe="divergence"))

    assert "crashed: first" == of(judge(run), COARSE).trouble


def test_a_pair_that_was_stopped_half_way_is_a_gap_whatever_it_holds():
    run = losing_run({GOOD: OPEN})
    stopped = replace(
        losing(run.setup, COARSE, BEYOND[:9]), status=Status.INTERRUPTED, reason="stop"
    )

    found = judge(replace(run, records=(*run.records, stopped)))

    assert "interrupted: stop" == of(found, COARSE).trouble
    assert () == of(found, COARSE).metric_results
    assert row_of(run).bounds == of(found, GOOD).metric_result("recall-logp").bounds


def test_a_pair_that_failed_in_another_probe_is_judged_and_never_within():
    """What was measured of it counts; one that crashed is not to be set."""
    run = losing_run(
        {GOOD: WITHIN, COARSE: BEYOND},
        replace(failed_record(GOOD), probe="divergence"),
        replace(failed_record(COARSE), probe="divergence"),
    )
    found = judge(run)
    fits = Limits(max_memory_bytes=int(of(found, GOOD).memory_bytes))

    assert "" == of(found, GOOD).trouble
    assert {GOOD: "open", COARSE: "beyond"} == words(found)
    assert ["divergence"] == [each.probe for each in of(found, GOOD).failed]
    assert found.chosen is judge(run, fits).chosen is None


def test_a_metric_whose_probe_failed_is_lacking_where_others_have_it():
    run = with_klds(losing_run({GOOD: WITHIN}), {"q5_1/q5_1": [0.001, 0.002] * 8})

    crashed = replace(failed_record(GOOD), probe="divergence")
    found = judge(replace(run, records=(*run.records, crashed)))

    assert ("kld",) == of(found, GOOD).lacking
    assert () == of(judge(run), GOOD).lacking


@pytest.mark.parametrize("probe", ["throughput", "reuse"])
def test_a_pair_that_failed_in_a_probe_without_losses_is_judged_all_the_same(probe):
    """A model whose cache is never used again has a verdict by recall."""
    failed = [replace(failed_record(pair), probe=probe) for pair in (REFERENCE, GOOD)]
    run = losing_run({GOOD: WITHIN}, *failed)

    assert "" == of(judge(run), GOOD).trouble
    assert {GOOD: "within"} == words(judge(run))
    assert Pair.parse(GOOD) == judge(run).chosen


def test_a_partial_grid_is_judged_as_far_as_it_goes():
    """One type per axis: fewer pairs share the error, so intervals are narrower."""
    losses = {GOOD: WITHIN, "q8_0/bf16": OPEN, "bf16/q8_0": OPEN, COARSE: BEYOND}
    few, many = losing_run({GOOD: OPEN}), losing_run(losses | {GOOD: OPEN})

    assert row_of(few).bounds.high < row_of(many).bounds.high
    assert {"open"} == set(words(judge(few)).values())


def test_the_most_precise_pair_with_numbers_is_the_reference():
    run = losing_run({COARSE: BEYOND}, failed_record(REFERENCE), reference=GOOD)

    found = judge(run)

    assert Pair.parse(GOOD) == found.reference
    assert {COARSE: "beyond"} == words(found)
    assert "crashed: it died" == of(found, REFERENCE).trouble


def test_a_pair_is_not_beyond_a_reference_with_a_coarser_axis():
    """The best K with a 4-bit V was once the reference of q8_0/q8_0."""
    setup = losing_setup(["bf16/q4_0", GOOD, "bf16/q8_0"])
    losses = {"bf16/q4_0": BEYOND, GOOD: [0.0] * 16}

    def judged(losses):
        return judge(losing_run(losses, setup=setup, reference=""))

    found = judged(losses)
    odd = judged({"q8_0/bf16": BEYOND, "bf16/q8_0": [0.0] * 16, COARSE: BEYOND})

    assert Pair.parse(GOOD) == found.reference
    assert {"bf16/q4_0": "open"} == words(found)
    assert (Pair("bf16", "q4_0"),) == found.pairs_finer_than_reference
    assert Pair("bf16", "q8_0") == odd.reference
    assert {"q8_0/bf16": "open", COARSE: "beyond"} == words(odd)


# Several looks


@pytest.mark.parametrize(("functions", "look"), [(16, 0), (20, 1), (32, 1), (64, 2)])
def test_each_time_that_a_pair_gets_functions_is_one_more_look(functions, look):
    """Its share of the error halves, that of the others stays; also half-way."""
    setup = losing_setup([REFERENCE, GOOD, COARSE], forced=96)
    run = losing_run({GOOD: OPEN * 4, COARSE: OPEN}, setup=setup, reference="")
    records = [
        losing(setup, REFERENCE, [0.0] * 64),
        losing(setup, GOOD, (OPEN * 4)[:functions]),
        losing(setup, COARSE, OPEN),
    ]
    run = replace(run, records=tuple(records))

    losses = (OPEN * 4)[:functions]
    for pair, share in ((GOOD, error_share(look, 2)), (COARSE, error_share(0, 2))):
        asked = losses if pair == GOOD else OPEN
        expected = mean_loss_interval(asked, share)
        assert row_of(run, pair).bounds.high == pytest.approx(expected.high)


def test_functions_that_the_reference_lacks_count_for_nothing():
    setup = losing_setup([REFERENCE, GOOD], forced=32)
    run = losing_run({GOOD: OPEN * 2}, setup=setup, reference="")
    reference = losing(setup, REFERENCE, [0.0] * 16)

    row = row_of(replace(run, records=(reference, *run.records)))

    assert (16, ()) == (row.bounds.units, row.doubts)


# Bounds of tokens, and models that cannot recall


def test_tokens_of_which_a_bound_is_known_may_show_a_loss_and_never_none():
    """An engine that lists few tokens: a pair's probability may be lower still."""
    run = losing_run({})
    setup = losing_setup([REFERENCE, GOOD])
    bounded = [losing(setup, GOOD, each, bounds=1) for each in (WITHIN, BEYOND, OPEN)]

    rows = [row_of(replace(run, records=(*run.records, each))) for each in bounded]

    assert [Decision.OPEN, Decision.BEYOND, Decision.OPEN] == [
        row.decision for row in rows
    ]
    assert [RemarkKind.BOUND] == [each.kind for each in rows[0].doubts]


def test_tokens_of_the_reference_of_which_a_bound_is_known_show_no_loss():
    """It may have had less to lose."""
    setup = losing_setup([REFERENCE, GOOD, COARSE])
    run = losing_run({GOOD: WITHIN, COARSE: BEYOND}, reference="", setup=setup)
    reference = losing(setup, REFERENCE, [0.0] * 16, bounds=1)

    run = replace(run, records=(*run.records, reference))

    assert {GOOD: "within", COARSE: "open"} == words(judge(run))
    missing = losing(setup, COARSE, [None, *BEYOND[1:]])
    run = replace(run, records=(reference, run.records[0], missing))
    assert {GOOD: "within", COARSE: "open"} == words(judge(run))


def test_fewer_than_one_bound_in_a_thousand_tokens_do_not_matter():
    """One of 1,500 here."""
    setup = losing_setup([REFERENCE, GOOD], forced=300, functions=96)
    record = losing(setup, GOOD, WITHIN * 19)
    recall = dict(record.observation)
    first, *_ = forced(recall)
    recall["answers"] = {
        **recall["answers"],
        f"forced {first['name']}": {
            **first,
            "scores": {**first["scores"], "bounds": [0]},
        },
    }
    run = losing_run({}, replace(record, observation=recall), setup=setup)
    reference = losing(setup, REFERENCE, [0.0] * 300)

    row = row_of(replace(run, records=(reference, run.records[-1])))

    assert (Decision.WITHIN, ()) == (row.decision, row.doubts)


def test_a_model_that_cannot_recall_has_nothing_to_lose():
    """Under 20 % of first choices: neither within nor beyond means anything."""
    setup = losing_setup([REFERENCE, GOOD])
    poor = losing(setup, REFERENCE, [0.0] * 16, behind=range(5))
    able = losing(setup, REFERENCE, [0.0] * 16, behind=range(1, 5))
    run = losing_run({GOOD: WITHIN}, reference="", setup=setup)

    silent = judge(replace(run, records=(*run.records, poor)))
    speaking = judge(replace(run, records=(*run.records, able)))

    assert ["recall-logp"] == [*silent.silent]
    assert ((), None) == (silent.compared_results, silent.chosen)
    assert {} == speaking.silent
    assert {GOOD} == words(speaking).keys()


@pytest.mark.parametrize("loss", [0.02, -0.02])
def test_an_engine_that_does_not_repeat_itself_has_no_verdict(loss):
    run = losing_run({GOOD: WITHIN})
    again = repeated(losing(run.setup, REFERENCE, [loss] * 16))

    found = judge(run.with_every_record((*run.records, again)))

    assert ["recall-logp"] == [*found.silent]
    assert found.repeats["recall-logp"][1] == pytest.approx(0.02)
    assert ((), None) == (found.compared_results, found.chosen)
    loose = judge(found.run, Limits(max_loss=0.05))
    assert ({}, {GOOD: "within"}) == (loose.silent, words(loose))


def test_only_the_reference_measured_twice_tells_how_closely_it_repeats_itself():
    run = losing_run({GOOD: WITHIN})
    other = repeated(losing(run.setup, GOOD, [0.5] * 16))
    failed = repeated(losing(run.setup, REFERENCE, [0.5] * 16))
    failed = replace(failed, status=Status.CRASHED, reason="gone")

    found = judge(run.with_every_record((*run.records, other, failed)))

    assert ({}, {}) == (found.silent, dict(found.repeats))
    assert {GOOD: "within"} == words(found)


@pytest.mark.parametrize("again", [20, 10])
def test_answers_that_come_and_go_are_no_evidence(again, golden):
    run = written(0)
    first = made_run(
        lambda pair, at: 30 - again if at < 3 else 20, setup=run.setup
    ).records
    (second,) = (
        repeated(record)
        for record in made_run(
            lambda pair, at: again if at < 3 else 20, setup=run.setup
        ).records
        if str(record.pair) == REFERENCE
    )

    found = judge(run.with_every_record((*first, second)))

    assert golden == found.silent["matched"]
    assert (LossKind.ANSWERS, 3 / 16) == found.repeats["matched"]


# Several metrics


def test_divergence_is_needed_where_it_was_measured():
    """Up to three times the limit, in nats; more of it is beyond, whatever is lost."""
    run = losing_run({GOOD: WITHIN, COARSE: WITHIN, "q5_1/q5_1": WITHIN})
    found = judge(
        with_klds(
            run,
            {
                GOOD: [0.01, 0.012] * 8,
                COARSE: [0.05, 0.06] * 8,
                "q5_1/q5_1": [0.001, 0.07] * 8,
            },
        )
    )

    assert {
        GOOD: "within",
        COARSE: "beyond",
        "q5_1/q5_1": "open",
    } == words(found)
    assert 0.03 == pytest.approx(of(found, GOOD).metric_result("kld").limit)
    assert "kld" == of(found, COARSE).leading_result.metric.name
    assert "kld" == of(found, "q5_1/q5_1").leading_result.metric.name
    assert "recall-logp" == of(found, GOOD).leading_result.metric.name
    assert Pair.parse(GOOD) == found.chosen


def test_the_row_that_is_farthest_from_its_own_limit_decides():
    result = of(judge(losing_run({GOOD: WITHIN})), GOOD)
    (row,) = result.metric_results
    bounds = replace(row.bounds, high=2 * row.bounds.high)
    wide = replace(row, bounds=bounds, limit=10 * row.limit)

    assert row is replace(result, metric_results=(wide, row)).leading_result


def test_divergence_alone_is_never_enough():
    run = with_klds(
        replace(losing_run({}), records=()),
        {GOOD: [0.001, 0.002] * 8, COARSE: [0.2, 0.3] * 8},
    )

    found = judge(run)

    assert not found.has_mean_loss
    assert {GOOD: "open", COARSE: "beyond"} == words(found)
    assert found.chosen is None
    assert Decision.WITHIN is of(found, GOOD).metric_result("kld").decision
    assert judge(run, Limits(max_memory_bytes=1 << 40)).chosen is None
    less = Limits(max_memory_bytes=int(of(found, GOOD).memory_bytes))
    assert judge(run, less).chosen is None
    assert {"kld"} == {row.metric.name for row in of(found, GOOD).metric_results}


def test_within_takes_every_graded_metric_and_one_is_enough_for_beyond():
    types = ["f16/f16", "q8_0/q8_0", "q5_1/q5_1", "q4_0/q4_0"]
    setup = losing_setup(types)
    run = losing_run(
        {"q8_0/q8_0": WITHIN, "q5_1/q5_1": WITHIN, "q4_0/q4_0": BEYOND},
        reference="f16/f16",
        setup=setup,
    )
    retrieval = [
        retrieval_record(pair, scored_texts([logp, logp - 0.001] * 8))
        for pair, logp in zip(types, (-0.3, -0.3001, -0.6, -0.3001), strict=True)
    ]

    found = judge(replace(run, records=(*run.records, *retrieval)))

    assert {
        "q8_0/q8_0": "within",
        "q5_1/q5_1": "beyond",
        "q4_0/q4_0": "beyond",
    } == words(found)
    assert "retrieval-logp" == of(found, "q5_1/q5_1").leading_result.metric.name
    assert "within" == found.decision(Pair.parse("q5_1/q5_1"), "recall-logp")
    assert "beyond" == found.decision(Pair.parse("q5_1/q5_1"), "retrieval-logp")


def test_nats_are_losses_of_probability_and_gains_may_be_large():
    """1 - exp(-x): a text that comes to life again gains more than all."""
    run = losing_run({}, setup=losing_setup(["f16/f16"]), reference="")
    retrieval = [
        retrieval_record("f16/f16", scored_texts([-2.0, -2.1] * 8)),
        retrieval_record(GOOD, scored_texts([-2.01, -2.11] * 8)),
        retrieval_record(COARSE, scored_texts([-0.1, -0.1] * 8)),
    ]

    run = replace(run, records=tuple(retrieval))

    assert row_of(run, GOOD, "retrieval-logp").bounds.mean == pytest.approx(
        1 - math.exp(-0.01)
    )
    gains = row_of(run, COARSE, "retrieval-logp").bounds
    assert gains.low <= gains.mean <= gains.high < -1


def test_a_metric_that_a_pair_lacks_keeps_it_open():
    run = with_klds(
        losing_run({GOOD: WITHIN}),
        {GOOD: [0.001, 0.002] * 8, "q5_1/q5_1": [0.001, 0.002] * 8},
    )

    found = judge(run)

    assert {GOOD: "within", "q5_1/q5_1": "open"} == words(found)
    assert ("recall-logp",) == of(found, "q5_1/q5_1").lacking
    assert () == of(found, GOOD).lacking


def test_each_metric_shares_the_error_among_the_pairs_that_it_compares():
    losses = {GOOD: OPEN}
    alone = row_of(losing_run(losses))
    run = with_klds(
        losing_run(losses),
        {pair: [0.001, 0.002] * 8 for pair in (GOOD, COARSE, "q5_1/q5_1")},
    )

    assert alone.bounds == row_of(run).bounds
    expected = mean_loss_interval([0.001, 0.002] * 8, error_share(0, 3))
    assert row_of(run, GOOD, "kld").bounds.high == pytest.approx(expected.high)


def test_divergence_from_another_reference_has_no_say():
    run = losing_run({GOOD: WITHIN})
    kld = diverging(GOOD, [0.9] * 16, reference="f32/f32")

    found = judge(replace(run, records=(*run.records, kld)))

    assert "has no value" in found.silent["kld"]
    assert {GOOD: "within"} == words(found)


# Answers


def written(lost, *, functions=16):
    """A run of written lines; so many functions of q8_0/q8_0 come back short."""
    types = ("bf16", "q8_0")
    setup = made_setup(needles=functions, forced=0, types_k=types, types_v=types)
    setup = asking_recall(setup, {"way": ["write"]})
    return made_run(
        lambda pair, at: 16 if str(pair) == GOOD and at < lost else 20, setup=setup
    )


def test_written_answers_alone_are_judged_by_the_share_that_is_lost():
    """A function is lost that has four of twenty lines fewer."""
    few, many, all_lost = (
        judge(run) for run in (written(0), written(0, functions=55), written(16))
    )

    assert "open" == words(few)[GOOD]
    assert "within" == words(many)[GOOD]
    assert "beyond" == words(all_lost)[GOOD]
    row = of(all_lost, GOOD).metric_result("matched")
    assert (16, 0.10) == (row.lost, row.limit)
    assert "open" == words(judge(few.run, Limits(max_lost=0.2)))[GOOD]
    assert "within" == words(judge(few.run, Limits(max_lost=0.3)))[GOOD]


@pytest.mark.parametrize(("matched", "lost"), [(17, 0), (16, 1)])
def test_a_function_with_three_lines_fewer_is_not_lost(matched, lost):
    run = made_run(
        lambda pair, at: matched if str(pair) == GOOD and at == 0 else 20,
        setup=written(0).setup,
    )

    assert lost == row_of(run, GOOD, "matched").lost


def test_written_answers_beside_a_graded_metric_can_only_veto():
    """Without a loss they say nothing; with many lost they are beyond."""
    clean, lossy = (
        together(written(lost), losing_run({GOOD: WITHIN}, setup=written(0).setup))
        for lost in (0, 12)
    )
    setup = asking_recall(
        made_setup(types_k=("bf16", "q8_0"), types_v=("bf16", "q8_0")),
        {"way": ["write", "force"], "functions": 16, "lines": 5},
    )

    def both(run):
        rounds = {
            record.pair: record.observation["answers"]
            for record in run.records
            if has_written(record.observation)
        }
        forced = [
            losing(setup, str(pair), WITHIN if str(pair) == GOOD else [0.0] * 16)
            for pair in rounds
        ]
        merged = [
            replace(
                each,
                observation={
                    **each.observation,
                    "answers": rounds[each.pair] | each.observation["answers"],
                },
            )
            for each in forced
        ]
        return replace(run, setup=setup, records=tuple(merged))

    clean, lossy = judge(both(clean)), judge(both(lossy))

    assert ("open", "within") == (
        clean.decision(Pair.parse(GOOD), "matched"),
        words(clean)[GOOD],
    )
    assert "beyond" == words(lossy)[GOOD]
    assert "matched" == of(lossy, GOOD).leading_result.metric.name


def test_a_pair_without_a_written_answer_is_judged_by_its_forced_lines():
    setup = made_setup(types_k=("bf16", "q8_0"), types_v=("bf16",))
    silent = [made_round(each, reply="", error="empty") for each in written_of(setup)]
    records = tuple(
        made_record(pair, silent, forced=losing_rounds(setup, losses))
        for pair, losses in ((REFERENCE, [0.0] * 16), ("q8_0/bf16", WITHIN))
    )

    found = judge(Run(name="made", setup=setup, records=records))

    assert {"q8_0/bf16": "within"} == words(found)
    assert {"recall-logp"} == {
        row.metric.name for row in of(found, "q8_0/bf16").metric_results
    }


def test_written_recall_of_a_model_that_writes_nothing_has_no_say():
    run = made_run(lambda _pair, _at: 2, setup=written(0).setup)

    found = judge(run)

    assert "10% right" in found.silent["matched"]
    assert () == found.compared_results


def test_texts_are_units_of_tasks_and_lost_with_fewer_right_answers():
    texts = made_texts(questions=3)
    worse = made_texts(questions=3, answer=lambda _question, _length: "nothing")
    setup = replace(
        losing_setup(["f16/f16", GOOD]),
        probes={"retrieval": {"tasks": ["multikey"], "lengths": [1024]}},
    )
    records = [
        retrieval_record("f16/f16", texts),
        retrieval_record(GOOD, worse),
    ]

    found = judge(Run(name="made", setup=setup, records=tuple(records)))

    row = of(found, GOOD).metric_result("retrieval")
    assert len(texts) == row.lost == row.bounds.units
    assert found.has_mean_loss


# Types


def test_a_type_is_named_whose_pairs_all_have_one_word():
    types = ("bf16", "q8_0", "q4_0")
    pairs = [f"{k}/{v}" for k in types for v in types][1:]
    losses = {pair: BEYOND if pair.startswith("q4_0") else WITHIN for pair in pairs}

    found = judge(losing_run(losses))

    assert ["q4_0"] == found.types_with_decision(Decision.BEYOND, "k")
    assert [] == found.types_with_decision(Decision.BEYOND, "v")
    assert ["bf16", "q8_0"] == found.types_with_decision(Decision.WITHIN, "k")
    assert [] == found.types_with_decision(Decision.WITHIN, "v")
    assert ["q4_0"] == found.types_with_decision(Decision.BEYOND, "k", "recall-logp")
    single = judge(losing_run({COARSE: BEYOND, GOOD: WITHIN}))
    assert [] == single.types_with_decision(Decision.BEYOND, "k")


# Memory


def windowed(record, *, k_mib=1.0, v_mib=1.0):
    """*record* with a layer of the whole context, and one of a sliding window."""
    buffers = tuple(
        KvBuffer(
            cells=cells,
            layers=1,
            k_type=record.pair.k,
            v_type=record.pair.v,
            k_mib=k_mib,
            v_mib=v_mib,
        )
        for cells in (8192, 1024)
    )
    return replace(record, effective=Effective(kv=buffers))


@pytest.mark.parametrize(
    ("at", "mib"), [(None, 2 * 1.5 + 2), (8192, 4), (16384, 6), (512, 2 / 16 + 1)]
)
def test_a_sliding_window_does_not_grow_with_the_context(at, mib):
    """At the context of the run, 12,288 tokens, by default."""
    run = losing_run({})
    run = replace(run, records=tuple(map(windowed, run.records)))

    found = judge(run, Limits(max_memory_bytes=1, at=at))

    assert mib * 1024**2 == of(found, REFERENCE).memory_bytes


def test_with_a_size_the_pair_is_set_that_loses_least_of_those_that_fit():
    run = losing_run({GOOD: OPEN, "q5_1/q5_1": WITHIN, COARSE: BEYOND})
    size = {str(each.pair): int(each.memory_bytes) for each in judge(run).results}

    def chosen(limit):
        return judge(run, Limits(max_memory_bytes=limit)).chosen

    assert chosen(size[REFERENCE]) is None
    assert Pair.parse("q5_1/q5_1") == chosen(size[REFERENCE] - 1)
    assert Pair.parse(COARSE) == chosen(size["q5_1/q5_1"] - 1)
    assert chosen(size[COARSE] - 1) is None


def test_losses_and_changes_are_compared_by_their_limits():
    """0.02 nats are within 0.03, and 1.5 % is beyond 1 %."""
    run = with_klds(
        losing_run({GOOD: [0.015 + each for each in WITHIN], COARSE: WITHIN}),
        {GOOD: [0.001, 0.0011] * 8, COARSE: [0.031, 0.0311] * 8},
    )
    found = judge(run)
    assert {GOOD: "beyond", COARSE: "beyond"} == words(found)

    fits = Limits(max_memory_bytes=int(of(found, GOOD).memory_bytes))

    assert Pair.parse(COARSE) == judge(run, fits).chosen


def test_without_a_log_a_pair_is_as_large_as_its_types():
    run = losing_run({GOOD: WITHIN, COARSE: WITHIN})
    bare = replace(
        run, records=tuple(replace(r, effective=Effective()) for r in run.records)
    )

    found = judge(bare)

    assert of(found, COARSE).memory is None
    assert Pair.parse(COARSE) == found.chosen
    assert judge(bare, Limits(max_memory_bytes=1 << 40)).chosen is None


def test_of_pairs_of_one_size_the_best_is_that_which_loses_least():
    run = losing_run(
        {
            "bf16/q8_0": OPEN,
            "q8_0/q4_0": WITHIN,
            "q4_0/q8_0": BEYOND,
            COARSE: [0.2 + each for each in BEYOND],
        }
    )

    verdict = judge(run)

    front = {str(each.pair) for each in pareto_front_with_chosen_pair(verdict)}

    assert {str(verdict.reference), str(verdict.chosen), COARSE, "q8_0/q4_0"} == front


def test_the_built_in_model_is_an_instrument_and_sets_nothing():
    run = losing_run({GOOD: WITHIN})
    weights = replace(run.setup.weights, name=BUILT_IN)

    found = judge(replace(run, setup=replace(run.setup, weights=weights)))

    assert (True, None) == (found.is_of_built_in_model, found.chosen)
    assert {GOOD: "within"} == words(found)


# A sweep that decides


def deciding_run(losses, pairs, *, looks=(16,), skipped=0):
    """A run with an order, whose reference is not among its *pairs*."""
    run = losing_run(losses)
    order = {"pairs": list(pairs), "looks": list(looks), "skipped": skipped}
    return replace(run, setup=replace(run.setup, order=order))


ORDERED = ("q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0", "q4_0/q5_0", "q5_0/q8_0")


def test_the_share_of_a_pair_does_not_depend_on_what_was_measured_so_far():
    one = judge(deciding_run({"q8_0/q8_0": OPEN}, ORDERED))
    more = judge(deciding_run({"q8_0/q8_0": OPEN, "q5_0/q8_0": OPEN}, ORDERED))
    grid = judge(losing_run({"q8_0/q8_0": OPEN}))

    good, other = Pair("q8_0", "q8_0"), Pair("q5_0", "q8_0")
    (first,), (again,) = (
        one.result(good).metric_results,
        more.result(good).metric_results,
    )
    assert first.bounds == again.bounds
    assert grid.result(good).metric_results[0].bounds.high < first.bounds.high
    assert more.result(other).metric_results[0].bounds.high < first.bounds.high


def test_looks_that_the_order_skips_take_no_share():
    pairs = ("q8_0/q8_0",)
    setup = losing_setup([REFERENCE, *pairs], forced=32, functions=16)
    run = losing_run({"q8_0/q8_0": OPEN * 2}, setup=setup)

    def high(skipped):
        order = {"pairs": list(pairs), "looks": [16, 32][skipped:], "skipped": skipped}
        ordered = replace(setup, order=order)
        found = judge(replace(run, setup=ordered))
        return found.result(Pair("q8_0", "q8_0")).metric_results[0].bounds.high

    assert high(1) < high(0)


def test_what_a_finer_pair_rules_out_is_beyond_as_that_is_and_has_no_number():
    found = judge(deciding_run({"q8_0/q8_0": WITHIN, "q8_0/q4_0": BEYOND}, ORDERED))

    assert {Pair("q4_0", "q4_0"): Pair("q8_0", "q4_0")} == dict(found.inferred_pairs)
    assert found.result(Pair("q4_0", "q4_0")) is None
    assert Pair("q8_0", "q8_0") == found.chosen
    assert {} == judge(losing_run({"q8_0/q4_0": BEYOND})).inferred_pairs


# What would decide a pair


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 40),
        ({"needed": 96}, 96),
        ({"needed": 97}, None),
        ({"needed": None}, None),
        ({"units": 6}, 40),
        ({"units": 5}, None),
        ({"mean": 0.00999}, 40),
        ({"mean": 0.01}, None),
        ({"decision": Decision.WITHIN}, None),
        ({"doubts": (Remark(RemarkKind.MISSING, "answers missing", ()),)}, None),
    ],
)
def test_further_units_can_show_that_a_pair_below_the_limit_is_within(
    changes, expected
):
    """Ninety-six functions are the most that a pair is asked for."""
    row = row_of(losing_run({GOOD: OPEN}))
    bounds = {each: changes[each] for each in ("mean", "units") if each in changes}
    others = {each: changes[each] for each in changes.keys() - bounds.keys()}
    facts = {"needed": 40, "doubts": (), "limit": 0.01, **others}
    changed = replace(row, **facts, bounds=replace(row.bounds, **bounds))

    assert Decision.OPEN is row.decision
    assert expected == changed.units_to_decide


def test_the_units_that_would_decide_are_those_of_the_next_look():
    run = losing_run({GOOD: OPEN})
    (measured,) = (e for e in metrics_by_unit(run) if e.metric.name == "recall-logp")
    units = [measured.units[Pair.parse(pair)] for pair in (REFERENCE, GOOD)]
    losses = measured.loss.unit_losses(*units)

    found = row_of(run).needed

    assert found == units_needed(losses, row_of(run).limit, look=1, pairs=1)
    assert found != units_needed(losses, row_of(run).limit, look=0, pairs=1)


def test_losses_of_probability_count_no_unit_as_lost():
    row = row_of(losing_run({GOOD: BEYOND}))

    assert (0, 0, Decision.BEYOND, None) == (
        row.lost,
        row.won,
        row.decision,
        row.needed,
    )


def test_a_divergence_of_few_chunks_can_be_within_and_a_loss_of_few_units_not():
    """Five functions may be alike by chance; five chunks have thousands of tokens."""
    run = with_klds(losing_run({GOOD: WITHIN[:5]}), {GOOD: [1e-6] * 5})
    alike = losing_run({GOOD: [0.0] * 5})

    assert Decision.WITHIN is row_of(run, metric="kld").decision
    assert Decision.OPEN is row_of(alike).decision
    assert Decision.WITHIN is row_of(losing_run({GOOD: [0.0] * 6})).decision


def test_metrics_of_right_tokens_come_before_all_others():
    run = with_klds(losing_run({GOOD: WITHIN}), {GOOD: [0.001] * 16})
    found = metrics_by_unit(run)

    assert {"recall-logp", "kld"} <= {each.metric.name for each in found}
    graded = [each.loss.kind.is_of_right_tokens for each in found]
    assert sorted(graded, reverse=True) == graded
    assert {True, False} == {*graded}
