"""The instrument itself: it sees what is lost, damaged and left."""

import subprocess
import sys

from injections import Aftermath, processes_in
from made_records import made_needle, made_record, made_round

from codeneedle.grid import Pair
from codeneedle.records.store import Store

PAIR = Pair("q8_0", "q4_0")


def test_a_record_that_vanishes_is_a_cell_lost(folder):
    """
    What had finished, and has no file any more, is counted.
    """
    store = Store(folder.path / "sweeps/tiny/needle-nano")
    store.add(made_record(PAIR, [made_round(made_needle())]))
    folder.look()
    (store.folder / "cells" / "q8_0-q4_0.recall.json").unlink()

    assert Aftermath(cells_lost=1) == folder.aftermath()


def test_a_record_that_cannot_be_read_is_damaged_and_lost(folder):
    """
    A finished cell of which only half is left counts twice.
    """
    store = Store(folder.path / "sweeps/tiny/needle-nano")
    store.add(made_record(PAIR, [made_round(made_needle())]))
    folder.look()
    file = store.folder / "cells" / "q8_0-q4_0.recall.json"
    file.write_bytes(file.read_bytes()[:100])

    assert Aftermath(cells_lost=1, files_damaged=1) == folder.aftermath()


def test_a_process_that_was_started_in_the_folder_is_left(folder):
    """
    Whatever lives with the folder as its working directory counts.
    """
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], cwd=folder.path, stdin=subprocess.PIPE
    ) as child:
        assert [child.pid] == processes_in(folder.path)
        assert Aftermath(processes_left=1) == folder.aftermath()
        child.kill()
    assert [] == processes_in(folder.path)
