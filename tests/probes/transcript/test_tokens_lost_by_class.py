"""Metrics of transcripts, over all tokens and by class, and how they are judged."""

import math
from dataclasses import replace

import pytest
from made_records import with_scores
from made_transcripts import (
    PARTS,
    by_conversation,
    forced_turn,
    made_conditions,
    transcript_record,
    transcript_run,
)
from msgspec import structs

from codeneedle.engines.messages import Forced
from codeneedle.probes import PROBES
from codeneedle.probes.frames import cells_frame
from codeneedle.probes.observations import Answer
from codeneedle.probes.transcript.metrics import FEWEST_UNITS
from codeneedle.probes.transcript.probe import PROBE
from codeneedle.probes.transcript.record import (
    MANY_CONVERSATIONS,
    NAME,
    transcript_layout,
    turn_answers,
)
from codeneedle.records.record import BadRecord
from codeneedle.report.shown import unit_count_mark
from codeneedle.report.tidy import table_rows
from codeneedle.verdict.judge import judge
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.statistics import Decision


def value(run, record, name):
    """The value of the metric of that *name*."""
    (metric,) = (m for m in PROBE.metrics_of(run.setup) if m.name == name)
    values = metric.values(record, run.setup)
    return math.fsum(values) / len(values)


def steady(turn, at):
    """Probabilities of the reference: a little different in each turn."""
    return 0.6 + 0.01 * turn


def words(run):
    """What the metrics say of q8_0/q8_0, by their names."""
    (result,) = judge(run).compared_results
    return {row.metric.name: row.decision for row in result.metric_results}


def test_of_equally_probable_tokens_none_is_a_first_choice():
    leads = (0.0, 1e-9, -1e-9, 2.0)

    assert 0.5 == Forced(logprobs=(-0.5,) * 4, leads=leads).first_choice_share


def test_classes_of_tokens_have_metrics_of_their_own():
    run = transcript_run({"bf16/bf16": lambda _turn, at: 0.5 if at < 4 else 0.25})
    (record,) = run.records

    assert math.log(0.5) == pytest.approx(value(run, record, "transcript-logp@text"))
    assert math.log(0.25) == pytest.approx(value(run, record, "transcript-logp@tool"))
    both = (math.log(0.5) + math.log(0.25)) / 2
    assert both == pytest.approx(value(run, record, "transcript-logp"))
    names = {metric.name for metric in PROBE.metrics_of(run.setup)}
    assert "transcript-right@tool" in names
    assert "transcript-logp@code" not in names


def test_a_model_that_answered_no_turn_has_nothing_to_lose():
    run = transcript_run({"bf16/bf16": steady})
    (loss, *_) = (m.loss for m in PROBE.metrics_of(run.setup) if m.loss)

    assert 0 == loss.able(transcript_record("bf16/bf16", []), run.setup)


def observed(record, turns):
    """*record* with other *turns*."""
    return replace(record, observation={"answers": by_conversation(turns)})


def test_first_choices_are_counted_until_the_first_that_is_none():
    run = transcript_run({"bf16/bf16": steady}, made_conditions(1))
    record = transcript_record(
        "bf16/bf16", [forced_turn("1.1", lambda _at: 0.5, behind=(2, 5))]
    )

    headline = PROBE.metrics[0]
    assert 75 == value(run, record, "transcript-right")
    assert 0.75 == headline.loss.able(record, run.setup)
    (turn,) = turn_answers(record)
    bounded = observed(record, [with_scores(turn, bounds=(0, 3))])
    assert 0.25 == headline.loss.bounded(bounded)
    assert 0 == headline.loss.bounded(observed(record, []))
    assert 2 == value(run, record, "transcript-breaks-at")
    assert 2 == value(run, record, "transcript-breaks-at@text")
    assert 1 == value(run, record, "transcript-breaks-at@tool")


def test_a_loss_of_tool_tokens_alone_puts_their_class_beyond_the_limit_and_no_other():
    def losing(turn, at):
        noise = 0.0001 * (-1) ** turn
        return steady(turn, at) + noise - (0.015 if at >= 4 else 0)

    run = transcript_run({"bf16/bf16": steady, "q8_0/q8_0": losing})

    assert {
        "transcript-logp": Decision.WITHIN,
        "transcript-logp@tool": Decision.BEYOND,
        "transcript-logp@text": Decision.WITHIN,
    } == words(run)
    assert Decision.BEYOND is judge(run).compared_results[0].decision


def halved(record):
    """*record*, every second turn of which has no scores."""
    none = {"scores": None, "error": "told nothing"}
    turns = [
        replace(turn, **none) if at % 2 else turn
        for at, turn in enumerate(turn_answers(record))
    ]
    return transcript_record(str(record.pair), turns)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_conversation_some_of_whose_turns_failed_counts_for_neither_pair(
    broken, golden
):
    """The rest of it is easier or harder than all of it."""
    layout = made_conditions(2, conversations=14)
    run = transcript_run(
        {"bf16/bf16": lambda turn, _at: 0.9 if turn % 2 else 0.1, "q8_0/q8_0": steady},
        layout,
    )
    records = list(run.records)
    records[broken] = halved(records[broken])
    run = replace(run, records=tuple(records))

    found = judge(run)

    assert [] == [*found.compared_results]
    assert golden == PROBE.left_out_lines(run)


def test_how_many_conversations_are_left_out_stands_beside_the_number():
    layout = made_conditions(2, conversations=14)
    run = transcript_run({"bf16/bf16": steady, "q8_0/q8_0": steady}, layout)
    first, second = run.records
    turns = list(turn_answers(second))
    turns[3] = replace(turns[3], scores=None, error="told nothing")
    run = replace(run, records=(first, transcript_record("q8_0/q8_0", turns)))

    (result,) = judge(run).compared_results
    (row, *_) = result.metric_results
    (cell,) = (
        cell
        for cell in cells_frame(replace(run, records=run.records), PROBE.metrics[0])
        if str(cell.pair) == "q8_0/q8_0"
    )

    assert (13, 1) == (row.bounds.units, row.left_out)
    assert Decision.OPEN is row.decision
    assert [RemarkKind.MISSING] == [doubt.kind for doubt in row.doubts][:1]
    assert (13, 1, "of 13/14") == (
        cell.units,
        cell.left_out,
        unit_count_mark(cell).sign,
    )
    rows = [row for row in table_rows([run]) if row.metric == "transcript-logp"]
    assert {0, 1} == {row.left_out for row in rows if row.n}


def test_copies_in_a_setup_are_one_turn_whoever_stored_them(golden):
    layout = made_conditions(8)
    first, *others = layout.turns
    hashes = {"prompt_sha256": first.prompt_sha256, "text_sha256": first.text_sha256}
    copies = tuple(replace(turn, **hashes) for turn in others)
    run = transcript_run(
        {"bf16/bf16": steady, "q8_0/q8_0": steady},
        structs.replace(layout, turns=(first, *copies)),
    )

    assert [first.name] == [turn.name for turn in transcript_layout(run.setup).turns]
    assert golden == PROBE.left_out_lines(run)


def test_a_class_in_few_turns_is_shown_and_not_judged(golden):
    few = made_conditions()
    with_tools = few.turns[: FEWEST_UNITS - 1]
    text_alone = (replace(PARTS[0], end=8),)
    others = (replace(turn, parts=text_alone) for turn in few.turns[FEWEST_UNITS - 1 :])
    run = transcript_run(
        {"bf16/bf16": steady, "q8_0/q8_0": steady},
        structs.replace(few, turns=(*with_tools, *others)),
    )

    assert {"transcript-logp", "transcript-logp@text"} == words(run).keys()
    assert golden == PROBE.remarks(run)[-1]


@pytest.mark.parametrize("judged", [False, True], ids=["too few", "enough"])
def test_a_class_is_judged_from_as_many_turns_on_as_decide_a_pair(judged):
    layout = made_conditions()
    count = FEWEST_UNITS - 1 + judged
    text_alone = (replace(PARTS[0], end=8),)
    others = (replace(turn, parts=text_alone) for turn in layout.turns[count:])
    turns = (*layout.turns[:count], *others)
    run = transcript_run(
        {"bf16/bf16": steady, "q8_0/q8_0": steady}, structs.replace(layout, turns=turns)
    )

    assert judged == ("transcript-logp@tool" in words(run))


def test_units_are_conversations_where_there_are_many():
    many = transcript_run(
        {"bf16/bf16": steady, "q8_0/q8_0": steady},
        made_conditions(2, conversations=MANY_CONVERSATIONS),
    )
    few = transcript_run(
        {"bf16/bf16": steady, "q8_0/q8_0": steady},
        made_conditions(2, conversations=MANY_CONVERSATIONS - 1),
    )

    for run, noun, units in ((many, "conversations", 8), (few, "turns", 14)):
        (result,) = judge(run).compared_results
        (row,) = (
            r for r in result.metric_results if r.metric.name == "transcript-logp"
        )
        assert (noun, units) == (row.metric.unit_noun, row.bounds.units)


def test_a_turn_without_scores_is_an_answer_that_is_missing():
    run = transcript_run({"bf16/bf16": steady, "q8_0/q8_0": steady})
    whole, other = run.records
    *turns, last = turn_answers(whole)
    broken = [*turns, Answer(name=last.name, error="told nothing")]
    other = observed(other, broken)

    (result,) = judge(replace(run, records=(whole, other))).compared_results

    assert Decision.OPEN is result.decision
    assert [RemarkKind.MISSING] == [
        each.kind for each in result.metric_results[0].doubts
    ]


def test_setups_without_the_probe_have_none_of_its_classes():
    run = transcript_run({"bf16/bf16": steady})

    without = replace(run.setup, probes={})

    assert PROBE.metrics == PROBE.metrics_of(without)
    assert PROBE is PROBES[NAME]
    assert () == PROBE.remarks(replace(run, setup=without))


def test_scores_that_cannot_be_are_a_bad_record():
    run = transcript_run({"bf16/bf16": steady})
    (record,) = run.records
    first, *turns = turn_answers(record)
    for key in ("logprobs", "leads", "ends"):
        shorter = getattr(first.scores, key)[:-1]
        uneven = [with_scores(first, **{key: shorter}), *turns]
        with pytest.raises(BadRecord):
            value(run, observed(record, uneven), "transcript-logp")


def test_a_setup_whose_turns_have_no_parts_is_a_bad_one():
    run = transcript_run({"bf16/bf16": steady}, made_conditions(1))
    (turn,) = run.setup.probes[NAME]["turns"]
    broken = {**run.setup.probes[NAME], "turns": [{**turn, "parts": []}]}

    with pytest.raises(BadRecord):
        PROBE.metrics_of(replace(run.setup, probes={NAME: broken}))
