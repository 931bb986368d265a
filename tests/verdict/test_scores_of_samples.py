"""What is said of a pair by an evaluation: scores of samples, paired."""

import re
from dataclasses import replace

import pytest
from made_evaluations import REFERENCE, evaluated, failing, with_scores
from made_losses import BEYOND, WITHIN, losing_run, repeated
from made_records import asking_recall, made_run, made_setup, sized
from made_verdicts import with_klds, written

from codeneedle.cache_types import Pair
from codeneedle.probes.metrics import samples_needed
from codeneedle.records.record import Run
from codeneedle.report.verdict import further_metric_tables, verdict_table
from codeneedle.report.verdict_data import verdict_objects
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import mean_loss_phrase
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks
from codeneedle.verdict.statistics import error_share, mean_loss_interval, units_needed

GOOD = "q8_0/q8_0"


def scores(ones, of=200):
    """So many samples that are right, and the others wrong."""
    return [1.0] * ones + [0.0] * (of - ones)


def flipped(of_scores, lost, won):
    """The same with so many right ones lost at the begin, and wrong ones won."""
    count = len(of_scores)
    return [*[0.0] * lost, *of_scores[lost : count - won], *[1.0] * won]


def run_of(pairs, reference=None, again=None):
    """A run of an evaluation, with the scores of its pairs."""
    was = scores(150) if reference is None else reference
    cells = [sized(evaluated(REFERENCE, was))]
    cells += [sized(evaluated(k, each)) for k, each in pairs.items()]
    if again:
        cells.append(evaluated(REFERENCE, again, again=True))
    setup = made_setup(types_k=("f16", "q8_0", "q4_0"), types_v=("f16", "q8_0", "q4_0"))
    asked = {"pairs": (REFERENCE, *pairs), "probes": {"eval": {"command": "x"}}}
    setup = with_scores(replace(setup, **asked), was)
    return Run(name="run", setup=setup, records=()).with_every_record(cells)


def row_of(run, pair=GOOD, limits=None):
    """What the evaluation says of *pair*."""
    return judge(run, limits).result(Pair.parse(pair)).metric_result("eval")


def pair_flags(pair):
    """As users ask for it."""
    return f"-ctk {pair.k} -ctv {pair.v}"


def test_a_loss_is_the_difference_of_paired_scores():
    was = scores(150)
    row = row_of(run_of({GOOD: flipped(was, 12, 4)}))

    expected = mean_loss_interval(
        [1.0] * 12 + [0.0] * 184 + [-1.0] * 4, error_share(0, 1)
    )
    assert (0.04, expected.high) == pytest.approx((row.bounds.mean, row.bounds.high))
    assert (12, 4, 200, 0.02) == (row.lost, row.won, row.bounds.units, row.limit)


def test_words_are_held_against_a_limit_of_their_own():
    was = scores(150)
    run = run_of({GOOD: flipped(was, 8, 8), "q4_0/q4_0": flipped(was, 60, 2)})

    assert "open" == row_of(run).decision
    assert "within" == row_of(run, limits=Limits(max_eval_lost=0.08)).decision
    assert "beyond" == row_of(run, "q4_0/q4_0").decision


def test_fewer_than_six_samples_that_differ_have_bounds_by_counts_alone():
    was = scores(45, of=60)
    row = row_of(run_of({GOOD: flipped(was, 3, 2)}, was))

    assert "open" == row.decision
    assert [RemarkKind.TOO_FEW] == [each.kind for each in row.doubts]
    # Bounds by counts alone: the spread of so few is not known.
    assert 0.1 < row.bounds.high < 0.15


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 1)])
def test_so_many_samples_as_are_said_to_decide_few_that_differ_do(lost, won, golden):
    was = scores(45, of=60)
    row = row_of(run_of({GOOD: flipped(was, lost, won)}, was))
    times = -(-row.needed // 60)
    many = was * times
    again = row_of(run_of({GOOD: flipped(many, lost * times, won * times)}, many))

    assert f"{row.needed:,} samples" in row.doubts_phrase
    assert golden == row.doubts_phrase
    assert ("open", "within") == (row.decision, again.decision)


def test_no_number_of_samples_decides_beside_more_without_a_score_than_the_limit():
    was = scores(450, of=900)
    run = run_of({GOOD: was}, was)
    cells = (run.records[0], failing(run.records[1], range(40), "judge: HTTP 503"))
    row = row_of(replace(run, records=cells))

    assert ("open", None) == (row.decision, row.needed)
    assert "would" not in row.doubts_phrase


def test_six_that_differ_have_a_spread_and_say_how_many_samples_would_decide():
    row = row_of(run_of({GOOD: flipped(scores(45, of=60), 4, 2)}, scores(45, of=60)))
    losses = [1.0] * 4 + [0.0] * 54 + [-1.0] * 2

    expected = mean_loss_interval(losses, error_share(0, 1))
    assert (expected.low, expected.high) == (row.bounds.low, row.bounds.high)
    assert ("open", ()) == (row.decision, row.doubts)
    assert row.needed == units_needed(losses, 0.02, look=1, pairs=1)


def test_no_score_can_be_won_or_lost_by_more_than_all_of_it():
    few, others = [0.0] * 4 + [1.0] * 3, [1.0] * 4 + [0.0] * 3

    assert -1 == row_of(run_of({GOOD: others}, few)).bounds.low
    assert 1 == row_of(run_of({GOOD: few}, others)).bounds.high


def test_of_many_samples_without_any_difference_a_small_loss_can_be_told():
    was = scores(700, of=900)

    row = row_of(run_of({GOOD: was}, was))

    assert ("within", ()) == (row.decision, row.doubts)
    assert 0 < row.bounds.high < 0.005


DOWN = "judge: HTTP 503"


def broken(run, failures):
    """*run*, whose judge was down for these samples of pairs."""
    records = tuple(
        failing(each, failures.get(str(each.pair), ()), DOWN) for each in run.records
    )
    return replace(run, records=records)


@pytest.mark.parametrize("side", [GOOD, REFERENCE])
def test_a_sample_without_a_score_on_either_side_is_left_out_and_counted(side):
    """What the judge did not grade was once a loss of one side."""
    was = scores(700, of=900)
    run = run_of({GOOD: was}, was)

    row = row_of(broken(run, {side: range(9)}))
    more = row_of(broken(run, {side: range(50)}))

    assert ("within", 0, 0, 891) == (row.decision, row.lost, row.won, row.bounds.units)
    (doubt,) = row.doubts
    assert (RemarkKind.UNMEASURED, (Pair.parse(side),)) == (doubt.kind, doubt.pairs)
    assert doubt.text.endswith(DOWN)
    # They may have been lost.
    assert row_of(run).bounds.high + 0.01 == pytest.approx(row.bounds.high, abs=1e-4)
    assert "open" == more.decision


def test_no_pair_is_beyond_by_what_has_no_score():
    was = scores(150)
    lost = flipped(was, 30, 2)
    run = run_of({GOOD: lost}, was)

    assert "beyond" == row_of(run).decision
    assert "open" == row_of(broken(run, {GOOD: range(100, 120)})).decision


def test_a_unit_with_a_sample_without_a_score_is_left_out_whole():
    run = run_of({GOOD: scores(150)})
    for record in run.records:
        record.observation["samples"][1]["id"] = "s0"
        record.observation["samples"][1]["seed"] = 1

    assert 199 == row_of(run).bounds.units
    assert 198 == row_of(broken(run, {GOOD: [1]})).bounds.units


def test_samples_of_a_group_are_one_unit():
    record = evaluated(GOOD, scores(4, of=8))
    reference = evaluated(REFERENCE, scores(8, of=8))
    for cell in (record, reference):
        for each in cell.observation["samples"]:
            each["group"] = each["id"] if each["id"] < "s4" else "g"
    run = run_of({}, scores(8, of=8))
    run = replace(run, records=(sized(reference), sized(record)))

    assert (1, 5) == (row_of(run).lost, row_of(run).bounds.units)


def test_an_evaluation_that_the_model_cannot_do_has_no_say():
    was = scores(20)

    found = judge(run_of({GOOD: was}, was))

    assert "10% right with f16/f16" in found.silent["eval"]


def test_the_flips_of_the_reference_are_the_floor_and_silence_nothing():
    was = scores(150)
    found = judge(run_of({GOOD: flipped(was, 20, 2)}, again=flipped(was, 14, 5)))

    assert {"eval": (14, 5, 200)} == found.flips
    assert {} == found.silent
    assert {} == judge(run_of({GOOD: flipped(was, 20, 2)})).flips


def test_a_repetition_flips_samples_alone():
    """Functions lose a share of their tokens, which says nothing of flips."""
    run = losing_run({GOOD: WITHIN})
    found = judge(run.with_every_record([*run.records, repeated(run.records[0])]))

    assert ({}, {"recall-logp"}) == (found.flips, found.repeats.keys())


def test_what_was_asked_for_is_that_of_the_reference():
    """A pair of which some samples were not read was asked for as many."""
    run = run_of({GOOD: scores(150, of=180)})

    assert (200, 200) == (row_of(run).asked, row_of(run_of({GOOD: scores(150)})).asked)


def test_a_pair_is_within_only_if_recall_and_evaluation_are(golden):
    was = scores(150, of=400)
    good = losing_run({GOOD: WITHIN, "q4_0/q4_0": BEYOND})

    def both(lost):
        cells = [
            evaluated("bf16/bf16", was),
            evaluated(GOOD, flipped(was, lost, 0)),
            evaluated("q4_0/q4_0", was),
        ]
        return judge(
            replace(
                good,
                records=(*good.records, *cells),
                setup=with_scores(
                    replace(
                        good.setup,
                        probes={**good.setup.probes, "eval": {"command": "x"}},
                    ),
                    was,
                ),
            )
        )

    assert ("within", "beyond") == (
        both(0).decision(Pair.parse(GOOD)),
        both(60).decision(Pair.parse(GOOD)),
    )
    assert "beyond" == both(0).decision(Pair.parse("q4_0/q4_0"))
    (beside,) = further_metric_tables(both(60), both(60).results)
    told = {(metric, pair): phrase for metric, pair, *_, phrase in beside.rows}
    assert golden == (told["recall-logp", GOOD], told["eval", "q4_0/q4_0"])


def test_more_right_samples_are_points_better():
    """They were once a loss of -30.0 %."""
    was = scores(150)
    found = judge(run_of({GOOD: [1.0] * 200}, was), Limits())

    ((row,),) = (pair.metric_results for pair in found.compared_results)
    assert (-0.25, 0, 50) == (row.bounds.mean, row.lost, row.won)
    assert ("25.0 points better", True) == (
        mean_loss_phrase(Limits(), row),
        row.has_gain_above_limit,
    )


def test_a_verdict_by_an_evaluation_alone_sets_and_keeps():
    was = scores(700, of=900)
    lost = flipped(was, 90, 5)
    found = judge(run_of({GOOD: was, "q4_0/q4_0": lost}, was))

    kept = judge(run_of({"q4_0/q4_0": lost}, was))
    assert (Outcome.SET, Pair.parse(GOOD)) == (found.outcome, found.chosen)
    assert (Outcome.KEEP, None) == (kept.outcome, kept.chosen)
    assert "of 900 samples" in verdict_table(found, found.results).heading
    (told,) = verdict_objects([found], lambda _engine: pair_flags)
    assert 5 in {each.won for pair in told.pairs for each in pair.metrics}


def test_scores_lead_before_answers_where_no_right_tokens_were_measured():
    setup = made_setup(needles=16, forced=0, types_k=("f16", "q8_0"), types_v=("f16",))
    setup = with_scores(asking_recall(setup, {"way": ["write"]}), scores(150))
    both = {**setup.probes, "eval": {"command": "x"}}
    answered = made_run(lambda _pair, _at: 20, setup=replace(setup, probes=both))
    cells = [evaluated(str(r.pair), scores(150)) for r in answered.records]
    found = judge(answered.with_every_record((*answered.records, *cells)))

    (result,) = found.compared_results
    assert ["matched", "eval"] == [row.metric.name for row in result.metric_results]
    assert ["eval"] == [row.metric.name for row in found.results_of_main_metric]


def test_answers_lead_before_changes_of_what_is_likely():
    found = judge(with_klds(written(), {"q8_0/q8_0": 0.001}))
    results = [
        replace(result, metric_results=result.metric_results[::-1])
        for result in found.results
    ]

    assert "kld" == results[-1].metric_results[0].metric.name
    assert {"matched"} == {
        row.metric.name
        for row in replace(found, results=tuple(results)).results_of_main_metric
    }


def test_samples_that_differ_by_little_are_not_said_to_need_as_many_as_if_by_all():
    was = scores(150)
    finely = run_of({GOOD: [score - 0.01 if score else 0.01 for score in was]}, was)
    whole = run_of({GOOD: flipped(was, 100, 100)}, was)

    told = [
        int(re.search(r"about ([\d,]+) samples", remark.text)[1].replace(",", ""))
        for run in (finely, whole)
        for remark in remarks(judge(run))
        if remark.kind is RemarkKind.PAIRED
    ]
    least = samples_needed(0.0, share=error_share(0, 1), loss=0.02)
    assert [least, True] == [told[0], told[1] > 10 * least]
