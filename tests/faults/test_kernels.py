"""Where attention runs, end to end, on a server that prints the splits of a device."""

import json

import pytest
from calls import called
from programs import server
from started_sweeps import impatient, record

TYPES = ("q8_0", "q4_0")
WHOLE, ON_CPU = "splits=2", "splits=62"
SAME, MIXED = ("q8_0-q8_0", "q4_0-q4_0"), ("q8_0-q4_0", "q4_0-q8_0")


@pytest.fixture(autouse=True)
def _needed(nano):
    """The weights are there."""


def swept(folder, splits, *arguments):
    """The sweep of a grid of two types whose servers say *splits*, by cell."""
    binary = server(
        folder.path, {cell: [said, "slots=right"] for cell, said in splits.items()}
    )
    grid = ("--corpus", "tiny", "--context", "4096", "--types", ",".join(TYPES))
    command = ("sweep", *grid, "--llama-server", binary, *arguments)
    return impatient(folder.path, *command)


def said_of(folder):
    """The verdict as data, by pair, and as a whole."""
    told = called(folder.path, "verdict", "tiny", "--json")
    verdict = json.loads(told.stdout)
    return {f"{e['k']}-{e['v']}": e for e in verdict["pairs"]}, verdict


def test_metals_rule_has_a_number_in_every_cell_and_each_says_where_it_ran(folder):
    splits = {**dict.fromkeys(SAME, WHOLE), **dict.fromkeys(MIXED, ON_CPU)}
    told = swept(folder, splits)
    grid = called(folder.path, "grid", "tiny", "--metric", "matched").stdout

    assert 0 == told.returncode, told.stderr
    for cell in (*SAME, *MIXED):
        stored = record(folder.path, cell)
        expected = "kernel" if cell in SAME else "cpu"
        assert "finished" == stored["status"]
        assert expected == stored["effective"]["attention"]
    assert len(MIXED) == grid.count(" cpu ") - grid.count("\n cpu ")
    pairs, verdict = said_of(folder)
    assert "q8_0/q8_0" == verdict["reference"]
    assert {"cpu"} == {pairs[cell]["attention"] for cell in MIXED}


def test_a_run_without_any_kernel_keeps_its_numbers_and_sets_nothing(folder):
    told = swept(folder, dict.fromkeys((*SAME, *MIXED), ON_CPU))
    _, verdict = said_of(folder)

    assert 0 == told.returncode, told.stderr
    assert verdict["set"] is None
    assert {"finished"} == {record(folder.path, e)["status"] for e in (*SAME, *MIXED)}


def test_a_reference_without_a_kernel_leaves_its_place_to_a_pair_with_one(folder):
    splits = {**dict.fromkeys((*SAME, *MIXED), WHOLE), "q8_0-q8_0": ON_CPU}
    told = swept(folder, splits)
    _, verdict = said_of(folder)

    assert 0 == told.returncode, told.stderr
    assert verdict["reference"] in {"q8_0/q4_0", "q4_0/q8_0"}
