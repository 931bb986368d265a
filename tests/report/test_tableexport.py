"""The price of every pair for other programs."""

import csv
import io
import json

import pytest
from made_prices import PROBES, failed, fell_back, priced_run
from made_records import made_run, renamed

from codeneedle.report.comparison import price_table
from codeneedle.report.export import table_csv, table_json, table_markdown
from codeneedle.scoring.rounds import Reading

READING = Reading()


def priced(run=None, **options):
    """The table of *run*."""
    return price_table(run or priced_run(), PROBES, READING, **options)


def csv_rows(*tables):
    """The CSV of *tables*, read back."""
    return list(csv.DictReader(io.StringIO(table_csv(tables))))


def test_csv_has_every_metric_of_every_pair():
    """
    Unrounded, with the value over the reference's where there is one.
    """
    found = csv_rows(priced())
    second = found[1]

    assert 9 == len(found)
    assert ("bf16", "q8_0", "0") == (second["k"], second["v"], second["reference"])
    assert "1" == found[0]["reference"]
    assert ("8.0", "16.0") == (second["kld"], second["kld / reference"])
    assert "7.5" == second["quiet"]
    assert "matched / reference" not in second


def test_csv_tells_how_each_probe_ended():
    """
    A gap has its reason in the same row.
    """
    run = priced_run(
        changes=[
            failed("divergence", "q4_0/q4_0"),
            (("throughput", "q4_0/q4_0"), None),
        ]
    )
    last = csv_rows(priced(run))[-1]

    assert "finished" == last["recall status"]
    assert "out-of-memory" == last["divergence status"]
    assert "cannot allocate" == last["divergence reason"]
    assert "not-run" == last["throughput status"]
    assert ("", "", "20.0") == (last["kld"], last["tg"], last["matched"])


def test_csv_of_runs_with_other_probes_shares_its_columns():
    """
    What a run was not asked for is empty.
    """
    found = csv_rows(priced(), priced(renamed(made_run(), "other/made-model")))

    assert 9 + 36 == len(found)
    assert "" == found[-1]["kld"]
    assert "not-run" == found[-1]["divergence status"]
    assert "other/made-model" == found[-1]["run"]


def test_json_has_values_and_what_they_stand_beside():
    """
    A list of runs, each with its setup, its metrics and its rows.
    """
    [found] = json.loads(table_json([priced()], READING))
    second = found["rows"][1]

    assert "bf16/bf16" == found["reference"]
    assert ("bf16", "q8_0") == (second["k"], second["v"])
    assert 8.0 == second["values"]["kld"]
    assert 16.0 == second["over_reference"]["kld"]
    assert {"status": "finished", "reason": ""} == second["probes"]["divergence"]
    assert ["f_a", "f_b", "f_c", "f_d"] == found["setup"]["needles"]


def test_json_names_floors():
    """
    They are what multiples are of.
    """
    [found] = json.loads(table_json([priced()], READING))
    metrics = {metric["name"]: metric for metric in found["metrics"]}

    assert 0.5 == metrics["kld"]["floor"]
    assert "bf16/bf16" == metrics["kld"]["against"]
    assert None is metrics["tg"]["floor"]
    assert 200.0 == metrics["tg"]["reference"]


def test_json_says_what_does_not_rank():
    """
    The speed of a fallback is there, for those who know what it is.
    """
    change = fell_back("throughput", "q4_0/q4_0", tg=[999.0])
    [found] = json.loads(table_json([priced(priced_run(changes=[change]))], READING))

    assert ["tg"] == found["rows"][-1]["unranked"]
    assert 999.0 == found["rows"][-1]["values"]["tg"]


def test_json_says_what_separates_the_pairs():
    """
    Per metric, how many pairs and by how much.
    """
    [found] = json.loads(table_json([priced()], READING))
    by_name = {each["metric"]: each for each in found["separation"]}

    assert {
        "metric": "kld",
        "pairs": 8,
        "told_apart": 8,
        "most": "q4_0/q4_0",
        "difference": 23.0,
        "noise": 0.5,
    } == by_name["kld"]


def test_json_keeps_the_order():
    """
    Programs get the rows as a person does.
    """
    [found] = json.loads(table_json([priced(sort="tg")], READING))

    assert "tg" == found["sorted_by"]
    assert "q4_0" == found["rows"][-1]["k"]


@pytest.mark.parametrize("floor", [0, 0.5])
def test_markdown_is_a_table_with_its_legend(floor):
    """
    As many columns in each line, and nothing that GitHub would take for emphasis.
    """
    text = table_markdown([priced(priced_run(floor=floor))], READING)
    lines = text.splitlines()
    legend = lines.index("- matched: matched lines of 20")
    rows = [line for line in lines[:legend] if line.startswith("| ")]

    assert "### random-bodies/made-model: the price of a pair" == lines[0]
    assert 11 == len(rows)
    assert {9} == {line.replace("\\|", "").count("|") for line in rows}
    assert rows[2].startswith("| bf16/bf16\\* | 20.00 |")
    assert "- \\*: the reference, bf16/bf16" in lines


def test_markdown_says_what_separates_the_pairs():
    """
    Below the legend, with what it rests on.
    """
    text = table_markdown([priced()], READING)

    assert "| kld | 8 of 8 | +23.0000 | q4\\_0/q4\\_0 | 46 |" in text
    assert "told apart: " in text


def test_an_export_of_nothing_is_empty():
    """
    A name that covers no run has been refused before; here it is just empty.
    """
    assert "run,k,v,reference\n" == table_csv([])
    assert "[]\n" == table_json([], READING)
    assert "" == table_markdown([], READING)
