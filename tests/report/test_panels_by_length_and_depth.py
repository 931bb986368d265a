"""Panels by length and depth, and what each pair lost and gained there."""

import json
import math
from dataclasses import replace

import pytest
from made_panels import (
    BY_NAME,
    LENGTHS,
    RIGHT,
    RUN,
    SETUP,
    record_of,
    run_of,
    unless,
    wrong,
)
from made_records import failed_record, made_setup
from made_retrieval import made_texts, retrieval_record
from printing import printed

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput, NothingToShow
from codeneedle.probes.retrieval.metrics import metrics_of_tasks
from codeneedle.probes.retrieval.record import NAME
from codeneedle.report.data import json_text
from codeneedle.report.panels import (
    LETTERS,
    length_label,
    panel_objects,
    panel_rows,
    panels_document,
    panels_heading,
    panels_of,
    refuse_without_reference,
)


def shown(run, *, difference=False, colour=False):
    document = panels_document([run], RIGHT, difference=difference)
    return printed(document, width=80, colour=colour)


def panels(run, metric=RIGHT):
    (found,) = panels_of(run, metric)
    return found


def test_a_panel_is_the_mean_by_length_and_depth():
    found = panels(RUN)
    reference, other = found.panels

    assert ("multikey", LENGTHS, (0.1, 0.5, 0.9)) == (
        found.task,
        found.lengths,
        found.depths,
    )
    assert [Pair("f16", "f16"), Pair("q4_0", "f16")] == [p.pair for p in found.panels]
    assert {(2048, 0.9): 0.0} == {
        place: s.value for place, s in reference.spots.items() if s.value < 1
    }
    assert 0.0 == other.spots[1024, 0.1].value
    assert 10 / 12 == pytest.approx(other.whole.value)


def test_questions_are_told_apart_by_what_both_pairs_answered():
    found = panels(RUN)
    reference, other = found.panels

    assert Pair("f16", "f16") == found.reference
    assert (8, 2, 2, 0) == other.whole.counts
    assert (0, 2, 0, 0) == other.spots[1024, 0.1].counts
    assert (0, 0, 2, 0) == other.spots[2048, 0.9].counts
    assert (10, 0, 0, 2) == reference.whole.counts


def test_a_question_that_the_reference_was_not_asked_is_not_compared():
    found = panels(
        run_of(
            record_of("f16/f16", unless(None), lengths=(1024,)),
            record_of("q4_0/f16", wrong),
        )
    )

    assert (0, 6, 0, 0) == found.panels[1].whole.counts
    assert 0.0 == found.panels[1].spots[2048, 0.5].value
    assert 0 == found.panels[1].spots[2048, 0.5].shared_question_count


def test_a_length_that_was_left_out_is_a_column_of_gaps_with_its_reason(golden):
    left_out = [("multikey", 4096, "f16/f16 was right at no depth of 2048")]
    found = run_of(record_of("f16/f16", unless(None)), left_out=left_out)

    assert (1024, 2048, 4096) == panels(found).lengths
    text = shown(found)
    assert "4K" in text
    assert golden == [line for line in text.splitlines() if "not asked:" in line]


def test_a_length_that_a_pair_was_not_asked_is_a_gap_and_no_zero(golden):
    reason = "nothing is right"
    gated = retrieval_record(
        "q4_0/f16",
        made_texts(length=1024, answer=wrong),
        not_asked=[("multikey", 2048, reason)],
    )
    run = run_of(record_of("f16/f16", unless(None)), gated)

    assert (2048, 0.5) not in panels(run).panels[1].spots
    [told] = [line for line in shown(run).splitlines() if reason in line]
    assert golden == told.rstrip()
    assert golden == panels(run).left_out


def test_rows_are_answers_by_task_length_and_depth():
    gated = retrieval_record(
        "q4_0/f16",
        made_texts(length=1024, answer=wrong),
        not_asked=[("multikey", 2048, "nothing is right")],
    )
    run = run_of(record_of("f16/f16", unless((1024, 0.1))), gated)
    facet = "task=multikey length={} depth={}"

    found = {
        (row.metric, row.facet): row
        for row in panel_rows([run], RIGHT)
        if row.pair == "q4_0/f16"
    }

    first = found["retrieval", facet.format(1024, 0.1)]
    gap = found["retrieval", facet.format(2048, 0.5)]
    assert (0.0, 2) == (first.value, first.n)
    assert 2 == found["both-wrong", facet.format(1024, 0.1)].value
    assert 2 == found["lost", facet.format(1024, 0.5)].value
    assert (None, 0, "nothing is right") == (gap.value, gap.n, gap.reason)
    assert {"retrieval", "both-right", "lost", "gained", "both-wrong"} == {
        metric for metric, _ in found
    }


def test_rows_as_json_have_what_was_left_out():
    texts = {n: made_texts("single", dial=0, length=n, questions=6) for n in LENGTHS}
    setup = replace(SETUP, probes={NAME: {"tasks": ["single"]}})
    run = run_of(retrieval_record("f16/f16", [*texts[1024], *texts[2048]]), setup=setup)

    (found,) = json.loads(json_text(panel_objects([run], RIGHT)))

    assert [note for each in panels_of(run, RIGHT) for note in each.notes] == (
        found.get("notes", [])
    )
    assert {"f16/f16"} == {row["reference"] for row in found["rows"]}


def test_the_log_probability_has_panels_too():
    found = panels(RUN, BY_NAME["multikey-logp"])

    assert -0.5 == pytest.approx(found.panels[0].whole.value)
    assert (8, 2, 2, 0) == found.panels[1].whole.counts
    assert "log-probability" in panels_heading(found, difference=False)


def test_without_probabilities_a_log_probability_is_a_gap():
    texts = made_texts(length=1024, scored=None)
    run = run_of(retrieval_record("f16/f16", texts))
    found = panels(run, BY_NAME["retrieval-logp"])

    assert math.isnan(found.panels[0].whole.value)
    assert found.scale.low < found.scale.high


def test_all_tasks_have_panels_of_their_own():
    texts = [*made_texts("multikey"), *made_texts("single", dial=0)]
    setup = replace(SETUP, probes={NAME: {"tasks": ["multikey", "single"]}})
    run = run_of(retrieval_record("f16/f16", texts), setup=setup)
    single = next(m for m in metrics_of_tasks(setup) if m.name == "single")

    assert ["multikey", "single"] == [each.task for each in panels_of(run, RIGHT)]
    assert "single" == panels(run, single).task


@pytest.mark.parametrize(
    ("run", "metric", "hint"),
    [
        (RUN, BY_NAME["intrusion"], "retrieval, multikey, multikey-logp"),
        (
            run_of(setup=made_setup()),
            RIGHT,
            "sweeps/random-bodies/made-model --probe retrieval",
        ),
    ],
    ids=["another metric", "another run"],
)
def test_what_has_no_length_and_depth_is_refused(run, metric, hint, golden):
    with pytest.raises(BadInput) as caught:
        panels_of(run, metric)

    assert golden == caught.value.reason
    assert hint in caught.value.hint


def test_tasks_that_were_never_answered_are_nothing_to_show(golden):
    empty = replace(run_of(setup=SETUP), sweep="seed = 42")

    with pytest.raises(NothingToShow) as caught:
        panels_of(empty, RIGHT)

    assert golden == (str(caught.value), caught.value.hint)


def test_a_comparison_needs_something_to_compare_with(golden):
    run = run_of(retrieval_record("f16/f16", made_texts(scored=None)))

    with pytest.raises(BadInput) as caught:
        refuse_without_reference(panels(run, BY_NAME["multikey-logp"]), run)

    assert golden == caught.value.reason


def test_a_terminal_shows_numbers_side_by_side():
    text = shown(RUN)

    assert "multikey: right answers" in text
    assert "0.83*" in text
    assert "1K   2K" in text
    assert "0.9 1.00 0.00" in text


def test_a_terminal_shows_losses_and_gains_as_letters(golden):
    text = shown(RUN, difference=True)

    assert golden == text.partition("\nmodel ")[0]


def test_losses_and_gains_have_colours_of_their_own():
    text = shown(RUN, difference=True, colour=True)

    assert "48;2;233;161;91" in text
    assert "48;2;106;81;163" in text
    assert {"lost", "gained"} == LETTERS.keys()


def test_a_pair_without_answers_says_why():
    failed = replace(failed_record("q4_0/f16"), probe=NAME)
    text = shown(run_of(record_of("f16/f16", unless(None)), failed))

    assert "crash" in text
    assert "q4_0/f16 crashed: it died" in text


@pytest.mark.parametrize(
    ("length", "word"), [(1024, "1K"), (65536, "64K"), (1500, "1,500")]
)
def test_lengths_are_short(length, word):
    assert word == length_label(length)
