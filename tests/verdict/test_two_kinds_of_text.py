"""A pair is within only if it is by recall and by ordinary text."""

import re
from dataclasses import replace

import pytest
from made_losses import BEYOND, OPEN, WITHIN, losing_run
from made_verdicts import BELOW, continuing, with_klds, with_text

from codeneedle.cache_types import Pair
from codeneedle.report.answer import answer_badge_svg, answer_or_refuse
from codeneedle.report.check import Check, exit_code_and_reason
from codeneedle.report.losses import differing_text_kinds_by_metric, losses_of
from codeneedle.report.page import page
from codeneedle.report.tidy import table_rows
from codeneedle.report.verdict import (
    further_metric_tables,
    headline_sentences,
    verdict_table,
)
from codeneedle.report.verdict_data import verdict_objects
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.metric_phrases import losses_sentence
from codeneedle.verdict.next import next_step
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks
from codeneedle.verdict.statistics import Decision

GOOD, MIDDLE, COARSE = "q8_0/q8_0", "q8_0/q4_0", "q4_0/q4_0"


def said(run):
    """The first lines of the verdict on *run*."""
    return headline_sentences(judge(run), str)


def kinds(run):
    return {each.kind for each in remarks(judge(run))}


@pytest.mark.parametrize(
    ("recall", "text", "decision"),
    [
        (WITHIN, 0.002, "within"),
        (WITHIN, 0.09, "beyond"),
        (BEYOND, 0.002, "beyond"),
        (OPEN, 0.002, "open"),
        (WITHIN, 0.0098, "open"),
        (OPEN, 0.09, "beyond"),
    ],
)
def test_both_decide(recall, text, decision):
    found = judge(with_text(losing_run({GOOD: recall}), {GOOD: text}, chunks=8))

    assert decision == found.decision(Pair.parse(GOOD))
    assert (decision == "within") == (found.chosen is not None)


def test_a_pair_without_one_of_them_is_open():
    run = with_text(losing_run({GOOD: WITHIN, MIDDLE: WITHIN}), {GOOD: 0.002})
    found = judge(run)

    assert ("within", "open") == tuple(
        found.decision(Pair.parse(pair)) for pair in (GOOD, MIDDLE)
    )
    assert ("text-logp",) == found.result(Pair.parse(MIDDLE)).lacking


def test_nothing_is_said_to_decide_a_smaller_pair_that_lacks_one_of_them():
    run = continuing({GOOD: WITHIN, MIDDLE: BELOW, COARSE: BEYOND})
    both = with_text(run, {GOOD: 0.002, MIDDLE: 0.002, COARSE: 0.09})
    one = with_text(run, {GOOD: 0.002, COARSE: 0.09})

    assert RemarkKind.SMALLER in kinds(both)
    assert RemarkKind.SMALLER not in kinds(one)


def test_the_first_line_names_both_in_one_breath(golden):
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.004})

    first, loses, *_ = said(run)
    assert first.startswith("Set: ")
    assert golden == loses
    code, line = exit_code_and_reason(judge(run), Pair.parse(GOOD))
    assert (Check.WITHIN, True) == (code, "of recall" in line and "of ordinary" in line)


def test_a_gain_of_one_of_them_is_told_beside_a_loss_of_the_other(golden):
    gain = tuple(loss - 0.003 for loss in WITHIN)
    verdict = judge(with_text(losing_run({GOOD: gain}), {GOOD: 0.004}))

    assert golden == losses_sentence(Limits(), verdict.result(Pair.parse(GOOD)))


def test_the_table_has_a_column_of_each_and_says_which_decides():
    run = losing_run({GOOD: WITHIN, MIDDLE: WITHIN})
    verdict = judge(with_text(run, {GOOD: 0.002, MIDDLE: 0.09}))

    table = verdict_table(verdict, verdict.results)
    _, good, middle = (dict(zip(table.heading, row, strict=True)) for row in table.rows)
    assert ["K/V", "memory", "recall", "text", "verdict"] == table.heading
    assert "0.2 % (0.1 to 0.3)" == good["text"]
    assert ("within", "beyond by text") == (good["verdict"], middle["verdict"])
    assert [] == [*further_metric_tables(verdict, verdict.results)]


def test_columns_keep_their_order_whatever_a_pair_lacks():
    run = with_text(losing_run({MIDDLE: WITHIN}), {GOOD: 0.002, MIDDLE: 0.002})

    assert ["recall", "text"] == [*differing_text_kinds_by_metric(judge(run)).values()]


def test_answers_in_other_words_name_both():
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.004})
    answer = answer_or_refuse(judge(run))

    assert said(run)[1].strip() == answer.loss_or_keep_sentence
    assert "functions and" in answer_badge_svg(answer)


def test_one_alone_says_what_it_has_not_seen():
    recall = losing_run({GOOD: WITHIN})
    text = with_text(recall, {GOOD: 0.002})
    other = [each for each in text.records if each.probe == "divergence"]

    assert RemarkKind.ONE_KIND in kinds(recall)
    assert RemarkKind.ONE_KIND in kinds(replace(text, records=tuple(other)))
    assert RemarkKind.ONE_KIND not in kinds(text)


def test_a_divergence_decides_nothing_where_the_loss_of_its_text_is_known():
    """It is a change, whichever way; of a text without a loss it still excludes."""
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.002})
    far = with_klds(losing_run({GOOD: WITHIN}), {GOOD: 0.2})
    for record in run.records:
        if record.probe == "divergence":
            (answer,) = record.observation["answers"].values()
            answer["by_chunk"] = [each | {"kld": 0.2} for each in answer["by_chunk"]]

    found = judge(run)
    assert "beyond" == found.decision(Pair.parse(GOOD), "kld")
    assert "within" == found.decision(Pair.parse(GOOD))
    assert "beyond" == judge(far).decision(Pair.parse(GOOD))


def test_a_pair_that_is_beyond_by_text_is_asked_nothing_further():
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.002, COARSE: 0.09})
    order = {"pairs": [GOOD, COARSE], "looks": [16]}
    decided = judge(replace(run, setup=replace(run.setup, order=order)))

    assert next_step(decided, ["divergence", "recall"]) is None
    assert Decision.BEYOND is decided.result(Pair.parse(COARSE)).decision


def test_more_text_is_asked_of_a_new_run_with_the_command_that_asks_it():
    """A run folder has its chunks for good: a new run has as many as decide."""
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.0093}, chunks=8)
    verdict = judge(run)

    row = verdict.result(Pair.parse(GOOD)).metric_result("text-logp")
    *_, command = (
        line for line in headline_sentences(verdict, str) if "--chunks" in line
    )
    words = command.partition("codeneedle ")[2].split()
    assert ["sweep", f"--chunks {row.needed}", "--out longer"] == [
        words[0],
        " ".join(words[2:4]),
        " ".join(words[4:]),
    ]


def test_pictures_show_the_worse_of_both_and_say_which(golden):
    run = losing_run({GOOD: WITHIN, MIDDLE: WITHIN, COARSE: BEYOND})
    losses = losses_of(judge(with_text(run, {GOOD: 0.002, MIDDLE: 0.09, COARSE: 0.02})))

    cells = {str(cell.pair): cell for cell in losses.cells()}
    below = {str(each.pair): each.below for each in losses.shown_losses()}
    assert (9.0, 10.0) == tuple(
        round(cells[pair].value, 1) for pair in (MIDDLE, COARSE)
    )
    assert ("set text", "beyond text", "beyond recall") == tuple(
        below[pair] for pair in (GOOD, MIDDLE, COARSE)
    )
    assert golden == losses.label


@pytest.mark.slow
def test_pages_csv_and_json_have_both():
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.004})
    verdict = judge(run)
    names = {"recall-logp", "text-logp"}

    rows = {row.facet for row in table_rows([run], [verdict]) if row.metric == "loss"}
    (found,) = verdict_objects([verdict], lambda _engine: str)
    shown = page([run], None, lambda _engine: str)
    assert {f"by={name}" for name in names} <= rows
    assert names <= {metric.name for metric in found.pairs[-1].metrics}
    assert ["recall", "text"] == re.findall(r"<th[^>]*>(recall|text)</th>", shown)


def test_copies_of_a_chunk_decide_nothing():
    """Sixteen times the same chunk is one unit, by loss and by change."""
    run = with_text(losing_run({GOOD: WITHIN}), {GOOD: 0.001})
    for record in run.records:
        for answer in record.observation["answers"].values():
            if "by_chunk" in answer:
                answer["same_as"] = [0] * answer["chunks"]

    row = judge(run).result(Pair.parse(GOOD))
    of_text = [each for each in row.metric_results if each.metric.unit_noun == "chunks"]

    assert {1} == {each.bounds.units for each in of_text}
    assert row.decision is not Decision.WITHIN
