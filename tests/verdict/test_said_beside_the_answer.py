"""What a verdict says beside the answer: its kinds, and the pairs of each."""

import pytest
from made_losses import losing_run
from made_records import made_record, made_round, sized, written_of
from made_verdicts import (
    COARSE,
    GOOD,
    MIDDLE,
    REFERENCE,
    SCORED,
    made_verdicts,
    written,
)

from codeneedle.cache_types import Pair
from codeneedle.verdict.judge import judge
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks

VERDICTS = made_verdicts()


def test_every_kind_of_remark_stands_in_the_golden_verdicts():
    made = {each.kind for found in VERDICTS.values() for each in remarks(found)}
    doubts = {
        doubt.kind
        for found in VERDICTS.values()
        for result in found.results
        for row in result.metric_results
        for doubt in row.doubts
    }

    # Of several files of weights alone: tests/report/test_one_budget.py, and
    # tests/cli/test_sweeps_of_several_weights.py.
    of_weights = {RemarkKind.MEMORY, RemarkKind.ONE_MODEL, RemarkKind.FITS_NOW}
    assert {*RemarkKind} - of_weights == made | doubts


@pytest.mark.parametrize(
    ("about", "kind", "pairs"),
    [
        ("a smaller pair is open, and has further functions", "smaller", [MIDDLE]),
        ("types that are within and beyond", "types", []),
        ("a pair is ruled out", "inferred", [COARSE]),
        ("answers to long texts are lost", "lengths", ["q4_0/f16"]),
        ("a smaller pair has its attention on the CPU", "without-kernel", [MIDDLE]),
        ("a smaller pair is converted", "worth-compiling", [MIDDLE]),
        ("the reference has no kernel", "attention", [REFERENCE]),
        ("the pair to set was read", "unchecked", [GOOD]),
        ("the pair to set was read, and forcing agrees", "agreement", [GOOD]),
        ("the pair to set was read, and forcing disagrees", "disagreement", [GOOD]),
        ("a model that cannot recall", "silent", []),
        ("an evaluation of the reference again", "flips", [SCORED]),
        ("an evaluation", "paired", [COARSE]),
        ("the reference nearly repeats itself", "repeated", [REFERENCE]),
        ("the reference on the CPU", "on-cpu", [REFERENCE]),
        ("all are beyond", "population", []),
        ("a probe is left out", "refused", []),
        ("a pair was asked otherwise", "asked-otherwise", [GOOD]),
        ("a smaller pair is open, and the text has no more", "short-text", []),
        ("a pair has no numbers", "not-compared", [COARSE]),
        ("another probe of a pair failed", "failed", [GOOD]),
    ],
)
def test_a_remark_names_its_pairs(about, kind, pairs):
    (found,) = (each for each in remarks(VERDICTS[about]) if each.kind == kind)

    assert pairs == [*map(str, found.pairs)]


@pytest.mark.parametrize(("functions", "is_told"), [(15, False), (16, True)])
def test_wrong_lines_are_told_from_one_more_of_each_function_on(functions, is_told):
    run = written()
    rounds = [
        made_round(each, reply="\n".join(["    invented = 1", *each.lines[1:]]))
        if at < functions
        else made_round(each)
        for at, each in enumerate(written_of(run.setup))
    ]
    pair = Pair("q8_0", "bf16")
    others = [each for each in run.records if each.pair != pair]
    run = run.with_every_record((*others, sized(made_record(str(pair), rounds))))

    told = [each for each in remarks(judge(run)) if each.kind is RemarkKind.FAULTS]
    assert is_told == (pair in {each for remark in told for each in remark.pairs})


def test_what_is_unsaid_of_one_function_is_said_of_more():
    """A share of one function that may go unseen would be all of them."""
    of_one = remarks(judge(losing_run({GOOD: [0.1]})))

    assert RemarkKind.UNSEEN not in {each.kind for each in of_one}
    assert RemarkKind.UNSEEN is remarks(VERDICTS["all are beyond"])[-1].kind
