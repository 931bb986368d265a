"""The instruments of the campaign: what they measure, and where they inject."""

import subprocess
import sys

import pytest
from injection_points import POINTS, place
from injections import Aftermath, processes_in
from made_records import made_needle, made_record, made_round

from codeneedle.cache_types import Pair
from codeneedle.records.store import Store

PAIR = Pair("q8_0", "q4_0")


@pytest.fixture
def finished(folder):
    """The file of a finished cell."""
    store = Store(folder.path / "sweeps/tiny/needle-nano")
    store.write_record(made_record(PAIR, [made_round(made_needle())]))
    folder.look()
    return store.folder / "cells" / "q8_0-q4_0.recall.json"


def test_a_record_that_vanishes_is_a_cell_lost(folder, finished):
    finished.unlink()

    assert Aftermath(cells_lost=1) == folder.aftermath()


def test_a_record_that_cannot_be_read_is_damaged_and_lost(folder, finished):
    finished.write_bytes(finished.read_bytes()[:100])

    assert Aftermath(cells_lost=1, files_damaged=1) == folder.aftermath()


def test_a_process_that_was_started_in_the_folder_is_left(folder):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], cwd=folder.path, stdin=subprocess.PIPE
    ) as child:
        assert [child.pid] == processes_in(folder.path)
        assert Aftermath(processes_left=1) == folder.aftermath()
        child.kill()
    assert [] == processes_in(folder.path)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_of_injection_exists(point):
    """A fault at a place that is gone would never happen."""
    holder, name = place(point)

    assert hasattr(holder, name)
