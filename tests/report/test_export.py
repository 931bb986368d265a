"""Grids and tables as CSV, JSON and Markdown."""

import csv
import io
import json
from dataclasses import replace

import pytest
from made_metrics import PROBES, failed, run_of_all
from made_records import failed_record, made_run, made_setup, renamed

from codeneedle.analysis.recall import METRICS
from codeneedle.grid import Pair
from codeneedle.records.record import Status
from codeneedle.report.export import (
    grid_csv,
    grid_json,
    grid_markdown,
    table_csv,
    table_json,
    table_markdown,
)
from codeneedle.report.judgement import judge
from codeneedle.report.table import pair_table
from codeneedle.scoring.rounds import Reading

METRIC = {metric.name: metric for metric in METRICS}
READING = Reading()
SMALL = made_setup(needles=2, types_k=["bf16", "q4_0"], types_v=["bf16", "q8_0"])
REASON = 'it said "no",\nthen\x1b[31m | died'
RUN = made_run(
    setup=SMALL,
    failed=[failed_record("q4_0/q8_0", Status.CRASHED, REASON)],
    untried=["q4_0/bf16"],
)
FOUND = judge(RUN, READING, with_power=False)


def table_of(run=None, **options):
    """The table of *run*."""
    return pair_table(run or run_of_all(), PROBES, READING, **options)


def rows_of(text):
    """A CSV, read back."""
    return list(csv.DictReader(io.StringIO(text)))


def test_a_grid_as_csv_has_a_row_per_pair_and_a_column_per_metric():
    """
    Gaps are empty fields with a status and a reason on one line; each row has the name
    of its run.
    """
    text = grid_csv([RUN, replace(RUN, name="other/model")], METRICS, READING)
    rows = rows_of(text)

    assert 9 == len(text.splitlines())

    assert ["random-bodies/made-model"] * 4 + ["other/model"] * 4 == [
        row["run"] for row in rows
    ]
    assert ["finished", "finished", "not-run", "crashed"] == [
        row["status"] for row in rows[:4]
    ]
    assert ["20.0", "20.0", "", ""] == [row["matched"] for row in rows[:4]]
    assert ["run", "k", "v", "status", "reason", *METRIC] == list(rows[0])


def test_a_grid_as_json_is_strict_and_complete():
    """
    Null where there is no value; setup, reference, reading and metrics are there.
    """
    (run,) = json.loads(grid_json([RUN], METRICS, READING, [FOUND]))

    assert "bf16/bf16" == run["reference"]
    assert 12288 == run["setup"]["context"]
    assert ["f_a", "f_b"] == run["setup"]["needles"]
    assert {"strict_indent": False} == run["reading"]
    assert list(METRIC) == [metric["name"] for metric in run["metrics"]]
    assert ("none", None) == (run["gradient"]["matched"], run["gradient"]["pass"])
    assert [20.0, 20.0, None, None] == [
        cell["values"]["matched"] for cell in run["cells"]
    ]
    assert REASON == run["cells"][3]["reason"]


def test_a_grid_as_markdown_has_the_summary_and_the_legend():
    """
    GitHub tables, K down and V across; a bar in a reason starts no column.
    """
    text = grid_markdown([RUN], METRIC["matched"], [METRIC["pass"]], READING, [FOUND])
    lines = text.split("\n")

    assert lines[0].startswith("| run | pairs | pass /2 (mean +/- sd) |")
    assert r"| K \\ V | bf16 | q8\_0 |" in lines
    assert r"| bf16 | 20.00\* | 20.00 |" in lines
    assert r"| q4\_0 | . | crash |" in lines
    assert r"- \*: the reference, bf16/bf16" in lines
    assert any("trimmed to 16 of 200 functions" in line for line in lines)
    assert r"\| died" in text
    assert "\x1b" not in text
    assert ("", True) == (lines[-1], bool(lines[-2]))


def test_a_table_as_csv_has_metrics_and_statuses_of_every_pair():
    """
    Unrounded, with the ratio to the reference where there is one; a gap has its reason
    in the same row.
    """
    changes = [failed("divergence", "q4_0/q4_0"), (("throughput", "q4_0/q4_0"), None)]
    found = rows_of(table_csv([table_of(run_of_all(changes=changes))]))
    first, second, *_, last = found

    assert 9 == len(found)
    assert ("bf16", "q8_0", "0") == (second["k"], second["v"], second["reference"])
    assert "1" == first["reference"]
    assert ("8.0", "16.0") == (second["kld"], second["kld / reference"])
    assert ("", "7.5") == (first["kld / reference"], second["quiet"])
    assert "matched / reference" not in second
    assert ["finished", "out-of-memory", "cannot allocate", "not-run"] == [
        last[f"{probe} {what}"]
        for probe, what in (
            ("recall", "status"),
            ("divergence", "status"),
            ("divergence", "reason"),
            ("throughput", "status"),
        )
    ]
    assert ("", "", "20.0") == (last["kld"], last["tg"], last["matched"])


def test_csv_of_runs_with_different_probes_shares_its_columns():
    """
    What a run was not measured with is empty.
    """
    other = table_of(renamed(made_run(), "other/made-model"))
    found = rows_of(table_csv([table_of(), other]))

    assert 9 + 36 == len(found)
    assert ("", "not-run", "other/made-model") == tuple(
        found[-1][key] for key in ("kld", "divergence status", "run")
    )


def test_a_table_as_json_has_values_ratios_and_noise_floors():
    """
    A list of runs, each with its setup, metrics and rows, and their verdicts.
    """
    words = {Pair("bf16", "q8_0"): "free"}
    [found] = json.loads(table_json([replace(table_of(sort="tg"), words=words)]))
    second = found["rows"][1]
    metrics = {metric["name"]: metric for metric in found["metrics"]}

    assert ("bf16/bf16", "tg") == (found["reference"], found["sorted_by"])
    assert ("bf16", "q8_0") == (second["k"], second["v"])
    assert "q4_0" == found["rows"][-1]["k"]
    assert (8.0, 16.0) == (second["values"]["kld"], second["over_reference"]["kld"])
    assert {"status": "finished", "reason": ""} == second["probes"]["divergence"]
    assert ["f_a", "f_b", "f_c", "f_d"] == found["setup"]["needles"]
    assert (0.5, "bf16/bf16") == (metrics["kld"]["floor"], metrics["kld"]["against"])
    assert (None, 200.0) == (metrics["tg"]["floor"], metrics["tg"]["reference"])
    assert "free" == second["verdict"]


@pytest.mark.parametrize("floor", [0, 0.5])
def test_a_table_as_markdown_has_its_legend(floor):
    """
    As many columns in each line, and nothing that GitHub would take for emphasis.
    """
    text = table_markdown([table_of(run_of_all(floor=floor))])
    lines = text.splitlines()
    legend = lines.index("- matched: matched lines of 20")
    rows = [line for line in lines[:legend] if line.startswith("| ")]

    assert "### random-bodies/made-model: all metrics" == lines[0]
    assert 11 == len(rows)
    assert {9} == {line.replace("\\|", "").count("|") for line in rows}
    assert rows[2].startswith("| bf16/bf16\\* | 20.00 |")
    assert "- \\*: the reference, bf16/bf16" in lines
