"""Judging a run: certificates, axes, limits, and what a missing answer is worth."""

from dataclasses import replace

import pytest
from made_metrics import failed
from made_records import made_record, made_reply, made_round, made_run, made_setup

from codeneedle.grid import BITS_PER_ELEMENT, Pair
from codeneedle.records.record import Effective, KvBuffer
from codeneedle.report.judgement import Limits, judge
from codeneedle.scoring.rounds import Reading

TYPES = ("bf16", "q8_0", "q4_0")
SMALLEST = Pair("q4_0", "q4_0")


def sized(record):
    """The same record, with the KV sizes that its types have."""
    k, v = (BITS_PER_ELEMENT[name] / 8 for name in (record.pair.k, record.pair.v))
    kv = KvBuffer(
        cells=4096,
        layers=6,
        k_type=record.pair.k,
        v_type=record.pair.v,
        k_mib=k,
        v_mib=v,
    )
    return replace(record, effective=Effective(kv=(kv,)))


def made(matched=lambda _pair, _at: 20, *, needles=16, failed=()):
    setup = made_setup(needles=needles, types_k=TYPES, types_v=TYPES)
    run = made_run(matched, setup=setup, failed=failed)
    return replace(run, records=tuple(map(sized, run.records)))


def judged(*args, limits=None, **kwargs):
    return judge(made(*args, **kwargs), Reading(), limits)


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
    found = judged(lambda pair, at: 20 - 2 * (pair.v == "q4_0") - at % 2)

    [each] = found.judged
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
    run = made(lambda _pair, at: 20 - at // 2)
    rounds = [
        replace(made_round(needle), reply="", error="timed out")
        if at in missing
        else made_round(needle, reply=made_reply(needle, matched=20 - at // 2))
        for at, needle in enumerate(run.setup.needles)
    ]
    others = [record for record in run.records if record.pair != SMALLEST]
    silenced = sized(made_record(SMALLEST, rounds))

    found = judge(replace(run, records=(*others, silenced)), Reading())

    standing = found.standing(SMALLEST)
    if len(missing) == 1:
        assert 1 == standing.certificate.lost
        assert standing.losses["matched"][0] == pytest.approx(13 / 16)
    else:
        assert standing.certificate is None
        assert "unreliable: 81% of its rounds" in standing.trouble


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
    run = made_run(setup=setup)
    found = judge(replace(run, records=tuple(map(sized, run.records))), Reading())

    best = advice(found, "nothing lost")
    assert best.pair == SMALLEST
    assert "0 of 50 lost 4 lines or more; fewer than 10% do" in best.reason


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
    untried = ("bf16/q8_0", "bf16/q4_0", "q8_0/bf16", "q4_0/bf16")
    setup = made_setup(types_k=TYPES, types_v=TYPES)

    def advised(loss):
        run = made_run(
            lambda pair, at: 20 - at % 2 - loss * (pair.k == "q4_0" and at % 4 < 3),
            setup=setup,
            untried=(*untried, "q8_0/q8_0", "q8_0/q4_0", "q4_0/q8_0"),
        )
        run = replace(run, records=tuple(map(sized, run.records)))
        return advice(judge(run, Reading()), "least memory")

    assert (None, SMALLEST) == (advised(2).pair, advised(0).pair)
    assert "a loss was seen" in advised(2).reason


def test_what_was_not_found_is_advice_but_not_shown():
    """
    Only a certificate or a limit that is kept decides what to set.
    """
    found = judged()

    assert [False, False] == [each.is_shown for each in found.advice]
    assert advice(found, "least memory").pair is not None
