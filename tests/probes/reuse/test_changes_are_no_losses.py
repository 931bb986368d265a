"""Metrics of the reuse probe, and what reports make of them."""

from dataclasses import replace

import pytest
from made_records import made_setup
from made_reuse import made_question, reuse_record
from printing import printed

from codeneedle.probes.reuse.metrics import METRICS
from codeneedle.probes.reuse.probe import PROBE
from codeneedle.probes.reuse.record import NAME
from codeneedle.records.record import BadRecord, Run
from codeneedle.report.table import pair_table, tables_document
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits

GAP = {"restore": "no --slot-save-path"}
OTHER = {"turn": "a = 1\nb = 7\n"}
SETUP = replace(
    made_setup(types_k=("f16", "q4_0"), types_v=("f16", "q4_0")),
    probes={NAME: {"length": 512, "questions": 2, "wording": 1}},
)
RUN = Run(
    name="made/model",
    setup=SETUP,
    records=(
        reuse_record(
            "f16/f16", made_question(turn=0.25), made_question("x", turn=0.125)
        ),
        reuse_record(
            "q4_0/q4_0",
            made_question(turn=3, replies=OTHER, gaps=GAP),
            made_question("x"),
        ),
    ),
)


def values(record):
    """Each metric of a record, by name; None without a value."""
    found = {each.name: each.values(record, SETUP) for each in METRICS}
    return {name: sum(each) if each else None for name, each in found.items()}


def test_each_way_has_the_largest_change_of_all_tokens_and_questions():
    reference, other = RUN.records

    assert {
        "reuse": 0.25,
        "reuse@prefix": 0.0,
        "reuse@turn": 0.25,
        "reuse@restore": 0.0,
        "reuse-replies": 0.0,
    } == values(reference)
    assert (3.0, 3.0, 1.0) == tuple(
        values(other)[name] for name in ("reuse", "reuse@turn", "reuse-replies")
    )


def test_a_way_with_gaps_alone_has_no_value():
    found = values(reuse_record("f16/f16", made_question(turn=0.5, gaps=GAP)))

    assert (None, 0.5) == (found["reuse@restore"], found["reuse"])


def test_a_stranger_is_no_record():
    record = replace(RUN.records[0], observation={"facts": {"functions": "many"}})

    with pytest.raises(BadRecord, match=r"f16-f16\.reuse\.json"):
        values(record)


def test_a_table_shows_each_way_beside_the_reference(golden):
    text = printed(tables_document([pair_table(RUN, [PROBE])]), width=120)

    heading, *rows = (line.split() for line in text.splitlines()[2:7])
    assert ["reuse@prefix", "reuse@turn", "reuse@restore", "reuse-replies"] == heading[
        1:
    ]
    assert ["f16/f16*", "0.0000", "0.2500", "0.0000", "0"] in [r[:5] for r in rows]
    assert ["q4_0/q4_0", "0.0000", "3.0000", "(12x)", "0.0000", "1"] in [
        row[:6] for row in rows
    ]
    notes = ("q4_0/q4_0 differs", "not compared")
    assert golden == [each for each in text.splitlines() if each.startswith(notes)]


def test_the_verdict_takes_none_of_it_for_a_loss():
    """A pair that differs from itself has not lost what the reference knows."""
    found = judge(RUN, Limits())

    assert not any(metric.loss for metric in METRICS)
    assert [] == [row for each in found.compared_results for row in each.metric_results]


def test_differences_of_rounding_are_one_sentence(golden):
    small = [
        reuse_record(pair, made_question(turn=0.5)) for pair in ("f16/f16", "q4_0/f16")
    ]
    large = [reuse_record("f16/f16", made_question(turn=2)), small[1]]

    (line,) = PROBE.remarks(replace(RUN, records=tuple(small)))
    assert golden == line
    none = [reuse_record("f16/f16", made_question())]
    (line,) = PROBE.remarks(replace(RUN, records=tuple(none)))
    assert golden == line
    (line,) = PROBE.remarks(replace(RUN, records=tuple(large)))
    assert golden == line
