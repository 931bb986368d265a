"""The one table: its rows have the numbers that reports show."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_losses import BEYOND, WITHIN, losing_run
from made_panels import RUN as ASKED
from made_records import failed_record, made_run, made_setup
from made_speeds import F16, Q8, measured, run_of
from made_verdicts import made_verdicts

import codeneedle
from codeneedle.cache_types import Pair
from codeneedle.probes.frames import cells_frames
from codeneedle.probes.metrics import LossKind, parse_facet
from codeneedle.records.record import Status
from codeneedle.report.receipt import receipt_of
from codeneedle.report.tidy import (
    COLUMNS,
    data_frame,
    loss_and_metric_rows,
    table_rows,
    task_facet_rows,
)
from codeneedle.verdict.judge import judge

RUNS = Path(__file__).parents[1] / "golden" / "runs"


@pytest.mark.parametrize("name", ["recall", "divergence", "mlx", "retrieval"])
def test_every_metric_of_every_probe_has_the_value_and_the_error_of_each_cell(name):
    run = codeneedle.load(RUNS / name / "golden" / "needle-nano").run
    found = {
        (row.probe, row.metric, row.facet, row.pair): (row.value, row.error, row.n)
        for row in loss_and_metric_rows([run])
    }

    expected = {
        (probe.name, metric.of or name, metric.facet, str(cell.pair)): (
            cell.value,
            None if math.isnan(cell.error) else cell.error,
            cell.units,
        )
        for probe in map(codeneedle.api.PROBES.get, run.setup.probes)
        for metric in probe.metrics_of(run.setup)
        for name, cells in cells_frames(run.of_probe(probe.name), [metric]).items()
        for cell in cells
        if cell.has_value
    }
    assert expected == {key: found[key] for key in expected}
    assert expected.keys() == found.keys()


def test_a_pair_without_a_number_is_a_gap_with_its_reason_and_no_zero():
    setup = made_setup(needles=2, types_k=["f16", "q4_0"], types_v=["f16"])
    failed = failed_record("q4_0/f16", Status.CRASHED, "it died")
    rows = loss_and_metric_rows([made_run(setup=setup, failed=[failed])])
    gaps = [row for row in rows if row.pair == "q4_0/f16"]

    assert {("crashed", "it died", None, None, 0)} == {
        (row.status, row.reason, row.value, row.error, row.n) for row in gaps
    }
    untried = made_run(setup=setup, untried=["q4_0/f16"])
    assert {"not-run"} == {
        row.status for row in loss_and_metric_rows([untried]) if row.pair == "q4_0/f16"
    }


def test_a_loss_has_its_interval_its_limit_and_its_word():
    run = losing_run({"q8_0/q8_0": WITHIN, "q4_0/q4_0": BEYOND})
    verdict = judge(run)
    rows = {
        row.pair: row
        for row in loss_and_metric_rows([run], [verdict])
        if row.metric == "loss"
    }
    coarse, reference = rows["q4_0/q4_0"], rows["bf16/bf16"]
    row = verdict.result(Pair("q4_0", "q4_0")).metric_result("recall-logp")

    assert (row.bounds.mean, row.bounds.low, row.bounds.high) == (
        coarse.value,
        coarse.low,
        coarse.high,
    )
    assert ("beyond", 0.01, 16, "share", "by=recall-logp", "recall") == (
        coarse.decision,
        coarse.limit,
        coarse.n,
        coarse.unit,
        coarse.facet,
        coarse.probe,
    )
    assert (0.0, None, "") == (reference.value, reference.high, reference.decision)
    assert {"bf16/bf16"} == {row.reference for row in rows.values()}


@pytest.mark.parametrize("name", made_verdicts())
def test_the_words_and_losses_of_each_pair_are_those_of_the_verdict(name):
    verdict = made_verdicts()[name]
    rows = [
        row
        for row in loss_and_metric_rows([verdict.run], [verdict])
        if row.metric == "loss"
    ]
    told = {(row.pair, row.facet): row for row in rows}
    assert len(told) == len(rows)

    # A run of divergence alone has no loss.
    for each in verdict.compared_results if rows else ():
        assert each.decision == told[str(each.pair), ""].decision
        for row in each.metric_results:
            found = told.get((str(each.pair), f"by={row.metric.name}"))
            if row.kind is LossKind.CHANGE:
                assert found is None
                continue
            assert (row.bounds.mean, row.limit, row.decision, row.bounds.units) == (
                (found.value, found.limit, found.decision, found.n)
            )


def test_a_speed_at_a_depth_is_a_facet_of_the_speed():
    run = run_of(measured(F16, {0: 100.0, 100: 102.0}), measured(Q8, {0: 50.0}))
    found = {
        (row.pair, parse_facet(row.facet).get("depth")): row.value
        for row in loss_and_metric_rows([run])
        if row.metric == "tg"
    }

    assert {
        ("f16/f16", None): 102.0,
        ("f16/f16", "0"): 100.0,
        ("f16/f16", "100"): 102.0,
        ("q8_0/q8_0", "0"): 50.0,
    } == {key: value for key, value in found.items() if value is not None}


def test_answers_are_counted_by_task_length_and_depth():
    rows = [row for row in task_facet_rows([ASKED]) if row.pair == "q4_0/f16"]
    found = {
        row.metric: (row.value, row.n)
        for row in rows
        if row.facet == "task=multikey length=1024 depth=0.1"
    }

    assert (0.0, 2) == found["retrieval"]
    assert [(0, 2), (2, 2), (0, 2), (0, 2)] == [
        found[kind] for kind in ("both-right", "lost", "gained", "both-wrong")
    ]
    assert {"nats", "questions", ""} == {row.unit for row in rows}


def test_runs_of_one_name_are_told_apart(tmp_path):
    run = made_run(setup=made_setup(needles=2, types_k=["f16"], types_v=["f16"]))
    runs = [replace(run, root=tmp_path / each) for each in ("a", "b")]

    assert 2 == len({row.run for row in table_rows(runs)})


def test_a_table_without_a_verdict_waits_for_no_statistics():
    slow = {"codeneedle.verdict.judge", "pandas", "scipy"}
    program = "import sys, codeneedle.report.tidy\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert set() == slow & {*done.stdout.split()}


def test_a_frame_has_the_columns_and_no_number_is_nan():
    frame = data_frame(loss_and_metric_rows([made_run(untried=["q4_0/q4_0"])]))

    assert list(COLUMNS) == list(frame.columns)
    assert frame[frame.pair == "q4_0/q4_0"]["value"].isna().all()
    assert "float64" == frame["limit"].dtype


def test_a_run_that_read_no_corpus_names_none_in_any_row():
    """Its folder may be called after one: it was said to be of that text."""
    corpus = replace(made_setup().corpus, tokens=0)
    setups = (made_setup(), replace(made_setup(), corpus=corpus))
    rows = [loss_and_metric_rows([made_run(setup=setup)]) for setup in setups]

    assert [{corpus.name}, {""}] == [{row.corpus for row in each} for each in rows]


def test_a_receipt_of_a_run_that_read_no_corpus_names_no_text():
    run = made_run()
    corpus = replace(run.setup.corpus, tokens=0)
    without = replace(run, setup=replace(run.setup, corpus=corpus))

    assert "text" in receipt_of(run).facts
    assert "text" not in receipt_of(without).facts
