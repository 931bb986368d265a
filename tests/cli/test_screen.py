"""What a person sees while a sweep runs."""

import io

import pytest
from made_records import failed_record, made_record, made_round, made_setup
from rich.console import Console

from codeneedle.cli.progress import Progress, Screen, live_view
from codeneedle.grid import DEFAULT_TYPES, shuffled_grid
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Step
from codeneedle.records.record import Status
from codeneedle.sweep.runner import CellEnded, CellStarted, CellStepped

PAIRS = shuffled_grid(DEFAULT_TYPES, DEFAULT_TYPES, seed=42)
SETUP = made_setup()


@pytest.fixture
def progress():
    """A sweep that has not begun."""
    return Progress(
        name="a/b", setup=SETUP, pairs=PAIRS, probe=PROBES["recall"], records={}
    )


def finished(pair):
    """A perfect cell."""
    return made_record(pair, [made_round(needle) for needle in SETUP.needles])


def drawn(view, *, width=90) -> str:
    """*view* as text without colours."""
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    return console.file.getvalue()


def test_the_grid_has_a_place_for_every_pair(progress):
    """
    Before the first cell all places are open.
    """
    shown = drawn(live_view(progress))

    assert all(name in shown for name in DEFAULT_TYPES)
    assert "left known after the first cell" in shown


def test_the_current_cell_tells_its_round(progress):
    """
    Which cell, which round, and which function.
    """
    progress.note(CellStarted(PAIRS[6], 7, 36))
    progress.note(CellStepped(PAIRS[6], Step(8, 16, "f_i")))

    shown = drawn(live_view(progress))

    assert "cell 7 of 36" in shown
    assert str(PAIRS[6]) in shown
    assert "round 9 of 16  f_i" in shown
    assert "8/16" in shown


def test_a_finished_cell_shows_its_number_and_a_failed_one_its_word(progress):
    """
    A gap has a word, never a zero.
    """
    progress.note(CellEnded(finished(PAIRS[0])))
    progress.note(CellEnded(failed_record(PAIRS[1], Status.OUT_OF_MEMORY)))

    shown = drawn(live_view(progress))

    assert 1 == shown.count("20.00")
    assert 1 == shown.count("oom")
    assert "2 done, 1 without numbers" in shown


def test_time_left_comes_from_the_cells_so_far(progress):
    """
    Thirty-five cells of 10.7 seconds are six minutes.
    """
    progress.note(CellEnded(finished(PAIRS[0])))

    left = progress.left_s()

    assert left == pytest.approx(35 * 10.7)


def test_an_interrupted_cell_is_not_done(progress):
    """
    It will be played again.
    """
    progress.note(CellEnded(failed_record(PAIRS[0], Status.INTERRUPTED)))

    assert 0 == progress.done


def test_a_pipe_gets_a_line_per_cell(progress):
    """
    Where nothing can be redrawn, nothing is.
    """
    out = io.StringIO()
    with Screen(Console(file=out, width=200), progress) as screen:
        screen.show(CellStarted(PAIRS[0], 1, 36))
        screen.show(CellEnded(finished(PAIRS[0])))
        screen.show(CellEnded(failed_record(PAIRS[1], reason="it died")))

    lines = out.getvalue().splitlines()

    assert "recall: 36 cells" == lines[2]
    assert f"{PAIRS[0]}" in lines[3]
    assert "matched 20.00" in lines[3]
    assert "crashed: it died" in lines[4]
    assert "\x1b" not in out.getvalue()
