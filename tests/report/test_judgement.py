"""Judging a run: certificates, axes, limits, and what a missing answer is worth."""

import json
from dataclasses import replace

import pytest
from made_copies import copied
from made_metrics import failed
from made_records import (
    made_forced,
    made_record,
    made_reply,
    made_round,
    made_run,
    made_setup,
    sized,
)
from published_runs import RUN_3, RUN_4, published_run

from codeneedle.analysis.recall import METRICS
from codeneedle.grid import Pair
from codeneedle.records.record import Effective
from codeneedle.report.grid import summary_row
from codeneedle.report.judgement import (
    COSTS,
    FREE,
    NOT_JUDGED,
    UNDECIDED,
    Limits,
    judge,
)
from codeneedle.scoring.rounds import Reading, recall_of

MATCHED, PASS = METRICS[:2]
TYPES = ("bf16", "q8_0", "q4_0")
SMALLEST = Pair("q4_0", "q4_0")


def made(matched=lambda _pair, _at: 20, *, needles=16, setup=None, **options):
    """A run of three types whose caches have the size of their bits."""
    setup = setup or made_setup(needles=needles, types_k=TYPES, types_v=TYPES)
    run = made_run(matched, setup=setup, **options)
    return replace(run, records=tuple(map(sized, run.records)))


def verdict_on(run, limits=None, *, with_power=False):
    return judge(run, Reading(), limits, with_power=with_power)


def judged(*args, limits=None, with_power=False, **kwargs):
    return verdict_on(made(*args, **kwargs), limits, with_power=with_power)


def without_answers(run, pairs, missing, reply=lambda needle, _at: made_reply(needle)):
    """*run*, in which *pairs* have no answer for the functions numbered *missing*."""
    rounds = [
        replace(made_round(needle), reply="", error="timed out")
        if at in missing
        else made_round(needle, reply=reply(needle, at))
        for at, needle in enumerate(run.setup.every_needle)
    ]
    records = (
        sized(made_record(each.pair, rounds)) if str(each.pair) in pairs else each
        for each in run.records
    )
    return replace(run, records=tuple(records))


def advice(found, goal):
    return next(each for each in found.advice if each.goal == goal)


def test_a_flat_grid_certifies_nothing_and_says_how_many_more_functions_would():
    """
    Sixteen clean functions leave 17 % open: the pair is undecided, not free.
    """
    found = judged()

    certificate = found.standing(SMALLEST).certificate
    assert ("undecided", 0, 16) == (
        certificate.verdict,
        certificate.lost,
        certificate.needles,
    )
    assert certificate.more > 20
    assert advice(found, "nothing lost").pair is None
    assert str(certificate.more) in advice(found, "nothing lost").reason
    assert advice(found, "least memory").pair == SMALLEST


def test_a_type_that_costs_is_named_and_not_recommended():
    """
    V at q4_0 loses two lines of every function: V matters, and q8_0 is advised for it.
    """
    found = judged(
        lambda pair, at: 20 - 2 * (pair.v == "q4_0") - at % 2, with_power=True
    )

    each = found.judged[0]
    assert [False, True] == [axis.matters for axis in each.axes]
    assert {("V", "q4_0")} == each.costing()
    assert set(each.least) == {"K"}
    assert advice(found, "least memory").pair == Pair("q4_0", "q8_0")


@pytest.mark.parametrize("missing", [(15,), (13, 14, 15)])
def test_missing_answers_do_not_make_a_pair_look_better(missing):
    """
    A pair that gives the reference's replies but none for the hardest functions has
    lost these; with fewer than nine answers in ten it is not judged at all.
    """
    found = verdict_on(
        without_answers(
            made(lambda _pair, at: 20 - at // 2),
            {str(SMALLEST)},
            missing,
            lambda needle, at: made_reply(needle, matched=20 - at // 2),
        )
    )

    standing = found.standing(SMALLEST)
    if len(missing) == 1:
        assert 1 == standing.certificate.lost
        assert standing.losses["matched"][0] == pytest.approx(13 / 16)
    else:
        assert standing.certificate is None
        assert "unreliable: 13 of 16 functions have an answer" == standing.trouble
        assert NOT_JUDGED == found.word(SMALLEST)


def test_cells_with_too_few_answers_condemn_no_other_pair():
    """
    Two cells of K at q4_0 hardly answered: their zeros are charged to no type, and the
    reference is not odd beside them.
    """
    found = verdict_on(without_answers(made(), {"q4_0/q8_0", "q4_0/q4_0"}, range(14)))

    matched = found.judged[0]
    assert (None, set()) == (matched.odd, matched.costing())
    assert {Pair("q4_0", "q8_0"), SMALLEST} == set(matched.incomplete)
    assert UNDECIDED == found.word(Pair("q4_0", "bf16"))
    assert NOT_JUDGED == found.word(SMALLEST)


def test_an_engine_that_cannot_force_is_judged_by_what_was_written():
    """
    Forced rounds without scores are missing of all pairs alike: V at q4_0 costs.
    """
    setup = replace(
        made_setup(types_k=TYPES[::2], types_v=TYPES[::2]),
        probes={"recall": {"ask": "both"}},
    )
    run = made_run(lambda pair, _at: 20 - 15 * (pair.v == "q4_0"), setup=setup)
    unscored = [
        replace(made_forced(n), error="not told", logprobs=(), leads=(), ends=())
        for n in setup.needles
    ]
    records = [
        sized(made_record(each.pair, recall_of(each).rounds, forced=unscored))
        for each in run.records
    ]

    found = verdict_on(replace(run, records=tuple(records)))

    assert {("V", "q4_0")} == found.judged[0].costing()
    assert ["", "", "", ""] == [each.trouble for each in found.standings]
    assert COSTS == found.word(SMALLEST)


@pytest.mark.parametrize(("missing", "said"), [(2, ""), (10, "30 of 40 functions")])
def test_missing_answers_are_held_against_what_was_asked(missing, said):
    """
    Of a pair that was asked for further functions, too.
    """
    run = made(needles=40)
    setup = run.setup
    further = replace(setup, needles=setup.needles[:16], further=setup.needles[16:])
    run = without_answers(replace(run, setup=further), {str(SMALLEST)}, range(missing))

    trouble = verdict_on(run).standing(SMALLEST).trouble
    assert said in trouble
    assert bool(said) == bool(trouble)


def test_what_would_have_been_found_is_told_of_the_cells_that_were_tested():
    """
    Gaps leave one V type to test K over: the least effect is that of this row alone.
    """
    gaps = ("q8_0/q8_0", "q4_0/q4_0")
    setup = made_setup(types_k=TYPES, types_v=TYPES)

    def least(**chosen):
        run = made_run(lambda pair, at: 20 - at * ord(pair.v[0]) % 3, **chosen)
        return verdict_on(run, with_power=True).judged[0].least["K"]

    alone = made_setup(types_k=TYPES, types_v=("bf16",))
    assert least(setup=setup, untried=gaps) == least(setup=alone)


def measured(kld, pairs=("bf16/bf16", "q8_0/q8_0", "q4_0/q4_0")):
    """Divergence of *pairs* and recall of all, by the kld of the others' chunks."""
    run = made()
    records = []
    for pair in pairs:
        record = sized(copied(pair, [-1.0] * len(kld)))
        stored = json.loads(json.dumps(record.observation))
        stored["reference"] = "bf16/bf16"
        for chunk, value in zip(stored["contexts"][0]["by_chunk"], kld, strict=True):
            chunk["kld"] = 0.0 if pair == pairs[0] else value
        records.append(replace(record, probe="divergence", observation=stored))
    return replace(run, records=(*run.records, *records))


def test_a_limit_passes_over_a_smaller_pair_without_divergence():
    """
    Only recall was measured of q4_0/q4_0: nothing is known of its divergence.
    """
    run = measured([0.01, 0.011, 0.012, 0.01], pairs=("bf16/bf16", "q8_0/q8_0"))

    found = verdict_on(run, Limits(max_kld=0.02))

    assert Pair("q8_0", "q8_0") == advice(found, "within the limit").pair


def test_bounds_that_a_pair_is_chosen_by_share_the_error():
    """
    Over two pairs each bound is at 97.5 %: what is within alone is not among two.
    """
    kld = [0.006, 0.008, 0.010, 0.012, 0.014, 0.010]
    limits = Limits(max_kld=0.0125)

    def chosen(*pairs):
        found = verdict_on(measured(kld, pairs=("bf16/bf16", *pairs)), limits)
        return advice(found, "within the limit").pair

    assert SMALLEST == chosen("q4_0/q4_0")
    assert chosen("q4_0/q4_0", "q8_0/q8_0") is None


def test_nothing_is_said_to_lose_that_was_not_compared():
    """
    Without sizes there is no smaller cache; without answers none was compared.
    """
    run = made()
    unsized = replace(
        run, records=tuple(replace(r, effective=Effective()) for r in run.records)
    )
    found = verdict_on(unsized)

    assert "no smaller cache could be judged" in advice(found, "nothing lost").reason
    lost = judged(lambda pair, _at: 20 * (str(pair) == "bf16/bf16"))
    assert "every smaller cache" in advice(lost, "nothing lost").reason


def test_a_model_that_cannot_do_the_task_gives_no_certificate():
    """
    The reference recalls 1 line of 20: the metric has no say, nothing is free.
    """
    found = judged(lambda _pair, at: at % 3)

    assert "the reference itself has 0.94 of 20" in found.judged[0].silent
    assert found.certified is None
    assert advice(found, "nothing lost").pair is None


def test_cells_without_numbers_are_named_and_do_not_stop_the_rest():
    """
    A cell that ran out of memory has a reason instead of a standing.
    """
    (_, pair), record = failed("recall", "q8_0/q8_0")
    found = judged(lambda pair, _at: 20 - 2 * (pair.k == "q4_0"), failed=[record])

    assert pair == "q8_0/q8_0"
    assert "out-of-memory" in found.standing(record.pair).trouble
    assert {("K", "q4_0")} == found.judged[0].costing()


def test_enough_clean_functions_certify_the_smallest_pair():
    """
    Of 50 functions none is lost by any of 3 pairs: fewer than 10 % are, at 5 % error.
    """
    setup = made_setup(needles=50, types_k=("bf16", "q4_0"), types_v=("bf16", "q4_0"))

    best = advice(judged(setup=setup), "nothing lost")

    assert best.pair == SMALLEST
    assert (
        "0 functions lost 4 lines or more, of 50 that could; fewer than 10% do"
        in best.reason
    )


def test_a_limit_on_what_was_not_measured_names_the_probe_to_run():
    """
    Without divergence there is nothing to hold against --max-kld.
    """
    found = judged(limits=Limits(max_kld=0.01))

    first = found.advice[0]
    assert ("within the limit", None) == (first.goal, first.pair)
    assert "--probe divergence" in first.reason


def test_a_pair_that_was_seen_to_lose_is_not_recommended_although_no_axis_was_tested():
    """
    With one pair beside the reference there is no axis; its own interval speaks.
    """
    tried = {"bf16/bf16", "q4_0/q4_0"}

    def advised(loss):
        found = judged(
            lambda pair, at: 20 - at % 2 - loss * (pair.k == "q4_0" and at % 4 < 3),
            untried={f"{k}/{v}" for k in TYPES for v in TYPES} - tried,
        )
        return advice(found, "least memory")

    assert (None, SMALLEST) == (advised(2).pair, advised(0).pair)
    assert "a loss was seen" in advised(2).reason


def test_what_was_not_found_is_advice_but_not_shown():
    """
    Only a certificate or a limit that is kept decides what to set.
    """
    found = judged()

    assert [False, False] == [each.is_shown for each in found.advice]
    assert advice(found, "least memory").pair is not None


TWO = made_setup(types_k=("bf16", "q4_0"), types_v=("bf16",))


@pytest.mark.parametrize("losses", [[1] * 4 + [0] * 12, [1, 2]])
def test_few_losses_of_one_sign_are_no_proof(losses):
    """
    Four of sixteen functions lose a line, exact p 1/8 two-sided; or two of two, 1/2.
    No word of the verdict calls that a cost, nor does the pair count as seen to lose.
    """
    setup = replace(TWO, needles=TWO.needles[: len(losses)])
    pair = Pair("q4_0", "bf16")

    found = judged(lambda pair, at: 20 - losses[at] * (pair.k == "q4_0"), setup=setup)

    assert UNDECIDED == found.word(pair) == found.word(pair, "matched")
    assert () == found.standing(pair).seen


def test_words_are_those_of_the_certificate_the_types_and_the_cell():
    """
    V at q4_0 loses three lines: its pairs cost, others are undecided; the reference and
    metrics that are not judged have no word. Fifty clean functions are free.
    """
    found = judged(lambda pair, at: 20 - 3 * (pair.v == "q4_0") - at % 2)
    setup = made_setup(needles=50, types_k=("bf16", "q4_0"), types_v=("bf16",))
    clean = judged(setup=setup)

    assert COSTS == found.word(Pair("q8_0", "q4_0"))
    assert UNDECIDED == found.word(Pair("q4_0", "q8_0"))
    assert "" == found.word(Pair("bf16", "bf16")) == found.word(SMALLEST, "kv")
    assert ("V: q4_0", "none", "") == tuple(
        map(found.axis_words, ("matched", "margin", "kv"))
    )
    assert FREE == clean.word(Pair("q4_0", "bf16"))


def test_what_the_reference_did_not_answer_is_no_evidence():
    """
    It cannot be lost, so it counts for nobody; without nine answers in ten nothing is
    compared with the reference at all.
    """

    def said(missing):
        return verdict_on(without_answers(made(), {"bf16/bf16"}, range(missing)))

    assert 15 == said(1).standing(SMALLEST).certificate.needles
    assert "15 functions only" not in said(1).judged[0].silent
    assert "an answer for 14 functions only" in said(2).judged[0].silent
    assert "" == said(2).word(SMALLEST)


def test_a_forced_round_without_scores_is_a_lost_function_and_is_reported():
    """
    Where the right lines have no scores the line breaks at once; the log-probability
    is not compared, and the metric names the pair that it leaves out.
    """
    setup = replace(TWO, probes={"recall": {"ask": "forced"}})
    records = []
    for k in setup.types_k:
        forced = [made_forced(needle) for needle in setup.needles]
        if k == "q4_0":
            forced[3] = replace(forced[3], error="HTTP 500", logprobs=(), leads=())
        records.append(sized(made_record(Pair(k, "bf16"), [], forced=forced)))
    pair = Pair("q4_0", "bf16")

    found = verdict_on(replace(made_run(setup=setup), records=tuple(records)))

    logp = next(each for each in found.judged if each.metric.name == "recall-logp")
    assert 1 == found.standing(pair).certificate.lost
    assert (pair,) == logp.incomplete
    assert "recall-logp" not in found.standing(pair).losses


@pytest.mark.parametrize(
    ("grid", "row"),
    [
        (RUN_3, ["36", "15.97 +/- 0.16", "19.40 +/- 0.22", "18.38 - 19.62", "none"]),
        (RUN_4, ["36", "16.00 +/- 0.00", "19.99 +/- 0.02", "19.94 - 20.00", "none"]),
    ],
    ids=["run 3", "run 4"],
)
def test_the_published_grids_give_their_summary_and_recommend_nothing(grid, row):
    """
    Neither grid shows that a type costs, and neither shows that a pair is free: sixteen
    functions are too few, and the verdict says how many would do.
    """
    run = published_run(grid)
    found = verdict_on(run)

    assert row == summary_row(run, MATCHED, [PASS], Reading(), found)[1:]
    assert {UNDECIDED} == {found.word(s.pair) for s in found.standings[1:]}
    assert advice(found, "nothing lost").pair is None
    assert "more functions" in advice(found, "nothing lost").reason
    assert not any(each.odd for each in found.judged)
