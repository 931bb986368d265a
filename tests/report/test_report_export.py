"""Runs for other programs."""

import csv
import io
import json
from dataclasses import replace

from made_records import failed_record, made_run, made_setup

from codeneedle.analysis.recall import METRICS
from codeneedle.records.record import Status
from codeneedle.report.export import grid_csv, grid_json, grid_markdown
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


def test_csv_has_a_row_per_pair_and_a_column_per_metric() -> None:
    """
    Gaps are empty fields, and the status says why.
    """
    rows = list(csv.DictReader(io.StringIO(grid_csv([RUN], METRICS, READING))))

    assert ["finished", "finished", "not-run", "crashed"] == [
        row["status"] for row in rows
    ]
    assert ["20.0", "20.0", "", ""] == [row["matched"] for row in rows]
    assert ["run", "k", "v", "status", "reason", *METRIC] == list(rows[0])


def test_a_reason_is_one_field_on_one_line() -> None:
    """
    Quotes, line ends and escapes of a log break no table.
    """
    text = grid_csv([RUN], METRICS, READING)

    assert 5 == len(text.splitlines())
    assert "\x1b" not in text


def test_several_runs_share_one_table() -> None:
    """
    Each row tells its run.
    """
    text = grid_csv([RUN, replace(RUN, name="other/model")], METRICS, READING)

    runs = [row["run"] for row in csv.DictReader(io.StringIO(text))]

    assert ["random-bodies/made-model"] * 4 + ["other/model"] * 4 == runs


def test_json_is_strict_and_complete() -> None:
    """
    Null where there is no value; setup, reference and metrics are there.
    """
    (run,) = json.loads(grid_json([RUN], METRICS, READING))

    assert "bf16/bf16" == run["reference"]
    assert 12288 == run["setup"]["context"]
    assert ["f_a", "f_b"] == run["setup"]["needles"]
    assert {"strict_indent": False} == run["reading"]
    assert list(METRIC) == [metric["name"] for metric in run["metrics"]]
    assert [20.0, 20.0, None, None] == [
        cell["values"]["matched"] for cell in run["cells"]
    ]
    assert REASON == run["cells"][3]["reason"]


def test_markdown_holds_the_summary_and_the_grid() -> None:
    """
    GitHub tables: K down, V across, a legend below.
    """
    lines = grid_markdown([RUN], METRIC["matched"], [METRIC["pass"]], READING).split(
        "\n"
    )

    assert lines[0].startswith("| run | pairs | pass /2 (mean +/- sd) |")
    assert r"| K \\ V | bf16 | q8\_0 |" in lines
    assert r"| bf16 | 20.00\* | 20.00 |" in lines
    assert r"| q4\_0 | . | crash |" in lines
    assert any("trimmed to 16 of 200 functions" in line for line in lines)


def test_markdown_tells_the_noise_floor() -> None:
    """
    As the terminal does.
    """
    metric = replace(METRIC["matched"], floor=True)

    lines = grid_markdown([RUN], metric, [], READING).splitlines()

    assert r"- \*: noise floor 20.00: the reference against itself" in lines


def test_markdown_ends_with_its_last_line() -> None:
    """
    What follows it on a terminal, or in a file, starts on a line of its own.
    """
    text = grid_markdown([RUN], METRIC["matched"], [], READING)

    assert "\n" == text[-1]
    assert "\n" != text[-2]


def test_markdown_escapes_what_would_be_markup() -> None:
    """
    A bar in a reason starts no column.
    """
    text = grid_markdown([RUN], METRIC["matched"], [], READING)

    assert r"\| died" in text
    assert "\x1b" not in text
