"""Speeds by depth: what is compared, and what is shown beside it."""

import json
from dataclasses import replace

import pytest
from made_records import failed_record
from made_speeds import F16, Q4, Q8, measured, run_of
from printing import printed

from codeneedle.errors import BadInput, NothingToShow
from codeneedle.records.record import Attention, Effective, Status
from codeneedle.report.data import json_text
from codeneedle.report.markdown import markdown
from codeneedle.report.speeds import (
    speed_objects,
    speed_rows,
    speed_table,
    speeds_document,
)

ON_CPU = Effective(attention=Attention.CPU, attention_evidence="38 graph splits")
FALLEN = replace(measured(Q4, {0: 10.0, 100: 3.0}), effective=ON_CPU)
RUN = run_of(
    measured(F16, {0: 100.0, 100: 102.0}),
    measured(Q8, {0: 50.0, 100: 153.0}),
    FALLEN,
)
TABLE = speed_table(RUN, "tg")


def row(table, pair, depth):
    """The row of *pair* at *depth*."""
    frame = table.frame.set_index(["k", "v", "depth"])
    return frame.loc[(pair.k, pair.v, depth)]


def test_a_ratio_is_that_to_the_reference_at_the_same_depth():
    assert F16 == TABLE.reference
    assert (0.5, 1.5) == (row(TABLE, Q8, 0).ratio, row(TABLE, Q8, 100).ratio)
    assert {Q8: "from 50 tokens"} == TABLE.crossed


def test_reading_has_its_crossover():
    table = speed_table(RUN, "pp")

    assert 1.0 == row(table, Q8, 100).ratio
    assert {Q8: "never"} == table.crossed


def test_a_speed_without_a_kernel_is_marked_and_not_compared():
    first = replace(measured(F16, {0: 1.0}), effective=ON_CPU)

    assert not row(TABLE, Q4, 100).compared
    assert 3.0 == row(TABLE, Q4, 100).value
    assert [0, 100] == list(TABLE.uncompared_rows["depth"])
    assert Q8 == speed_table(run_of(first, measured(Q8, {0: 1.0})), "tg").reference
    text = printed(speeds_document([TABLE]))
    assert "3.0±0.0 cpu" in text
    assert "38 graph splits" in text


def test_a_speed_of_another_device_is_not_compared():
    elsewhere = replace(measured(Q8, {0: 9.0, 100: 9.0}), device="2")
    table = speed_table(run_of(measured(F16, {0: 1.0}), elsewhere), "tg")

    assert not row(table, Q8, 0).compared
    assert {} == table.crossed
    assert "9.0±0.0 other" in printed(speeds_document([table]))


def test_a_gap_has_a_word_and_no_speed():
    crashed = replace(failed_record(Q4, Status.CRASHED), probe="throughput")
    run = run_of(measured(F16, {0: 1.0, 100: None}), crashed)
    text = printed(speeds_document([speed_table(run, "tg")]))

    assert "f16/f16*   1.0±0.0    oom" in text
    assert "q4_0/q4_0    crash  crash" in text


def test_every_form_has_every_speed():
    (found,) = json.loads(json_text(speed_objects([TABLE])))

    assert {
        ("f16/f16", "depth=0", 100.0),
        ("f16/f16", "depth=100", 102.0),
        ("q8_0/q8_0", "depth=0", 50.0),
        ("q8_0/q8_0", "depth=100", 153.0),
        ("q4_0/q4_0", "depth=0", 10.0),
        ("q4_0/q4_0", "depth=100", 3.0),
    } == {
        (row.pair, row.facet, row.value)
        for row in speed_rows([TABLE])
        if row.value is not None
    }
    assert [1.0, 1.0, 0.5, 1.5, 0.1, 3 / 102] == list(TABLE.frame["ratio"])
    assert {"q8_0/q8_0": "from 50 tokens"} == found["faster"]
    assert ["tg@0", "tg@100"] == [metric["name"] for metric in found["metrics"]]
    assert "| 153.0±0.0 150% | from 50 tokens |" in markdown(speeds_document([TABLE]))


def test_other_metrics_have_no_depths():
    with pytest.raises(BadInput) as error:
        speed_table(RUN, "matched")

    assert "tg or pp" in error.value.reason


def test_a_run_without_speeds_has_nothing_to_show():
    with pytest.raises(NothingToShow):
        speed_table(run_of(), "tg")
