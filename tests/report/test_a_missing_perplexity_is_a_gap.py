"""A perplexity that no log has told is a gap of its pair, in each report."""

import pytest
from made_divergences import DIALECT, golden_run, without_perplexities
from printing import printed

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.document import Lines, Table
from codeneedle.report.llama_form import HEADING, divergence_document
from codeneedle.report.tidy import loss_and_metric_rows
from codeneedle.report.verdict import verdicts_document
from codeneedle.text import NO_VALUE_WORD
from codeneedle.verdict.judge import judge

Q4 = Pair("q4_0", "q4_0")


@pytest.fixture(scope="module")
def whole():
    """A stored run with all perplexities."""
    return golden_run()


@pytest.mark.parametrize(
    ("pairs", "is_told", "ratios"),
    [
        ((Q4,), True, {Q4}),
        ((), False, {Pair(k, v) for k in ("f16", "q4_0") for v in ("f16", "q4_0")}),
    ],
    ids=["of a pair", "of the reference"],
)
def test_a_row_of_data_says_why_it_is_empty_and_all_others_are_as_they_were(
    whole, pairs, is_told, ratios
):
    cut = without_perplexities(whole, *pairs, reference_is_told=is_told)
    before, found = (loss_and_metric_rows([each]) for each in (whole, cut))
    gaps = {"ppl": {*pairs}, "ppl-ratio": ratios}

    assert len(before) == len(found)
    for was, row in zip(before, found, strict=True):
        if Pair(row.k, row.v) in gaps.get(row.metric, ()):
            assert (None, "finished") == (row.value, row.status)
            assert row.reason
        else:
            assert was == row


def test_no_verdict_depends_on_a_perplexity(whole):
    cut = without_perplexities(whole, Q4, reference_is_told=False)
    before, found = (
        printed(verdicts_document([judge(each)], lambda _: PairFlags(str)))
        for each in (whole, cut)
    )

    assert before == found


def figures(run):
    """The rows of the form of llama.cpp, by pair."""
    (table,) = (
        block
        for block in divergence_document(judge(run), DIALECT)
        if isinstance(block, Table)
    )
    return {(str(row[0]), str(row[1])): list(map(str, row)) for row in table.rows}


def test_the_form_of_llama_cpp_has_a_dash_for_it_with_a_line_that_says_why(whole):
    cut = without_perplexities(whole, Q4, reference_is_told=False)
    before, found = figures(whole), figures(cut)
    ppl, change = HEADING.index("PPL"), HEADING.index("ΔPPL")
    before["q4_0", "q4_0"][ppl] = before["q4_0", "q4_0"][change] = NO_VALUE_WORD
    before["f16", "f16"][ppl] = NO_VALUE_WORD
    told = [
        line
        for block in divergence_document(judge(cut), DIALECT)
        if isinstance(block, Lines)
        for line in map(str, block.lines)
        if line.startswith(f"{NO_VALUE_WORD}:")
    ]

    assert before == found
    assert ["f16/f16", "q4_0/q4_0"] == [
        pair
        for line in told
        for pair in ("f16/f16", "q4_0/q4_0")
        if f" {pair}:" in line
    ]
