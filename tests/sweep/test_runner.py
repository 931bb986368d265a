"""The walk over the grid, with a play that is made up."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from made_records import failed_record, made_record, made_round, made_setup

from codeneedle.grid import Pair, shuffled_grid
from codeneedle.records.record import CellRecord, Status
from codeneedle.records.store import Store
from codeneedle.sweep import runner
from codeneedle.sweep.plan import DiskFull
from codeneedle.sweep.runner import CellEnded, CellStarted, Event, FailingAlike

PAIRS = shuffled_grid(["q8_0", "q4_0"], ["q8_0", "q4_0"], seed=42)
ROUND = made_round(made_setup().needles[0])


def finished(pair: Pair) -> CellRecord:
    """A cell that went well."""
    return made_record(pair, [ROUND])


class Stage:
    """Plays cells as a script says, and remembers which."""

    def __init__(self, outcome=finished):
        self.played: list[Pair] = []
        self._outcome = outcome

    def play(self, pair: Pair, _position: int) -> Iterator[Event]:
        """One cell, at once."""
        self.played.append(pair)
        yield CellEnded(self._outcome(pair))


def walk(store: Store, stage: Stage, **options) -> list[Event]:
    """A whole sweep."""
    return list(
        runner.run(PAIRS, store=store, probe="recall", play=stage.play, **options)
    )


def test_every_pair_is_played_once_in_running_order(tmp_path):
    """
    A new folder means the whole grid.
    """
    stage = Stage()

    events = walk(Store(tmp_path), stage)

    assert PAIRS == stage.played
    assert [1, 2, 3, 4] == [e.position for e in events if isinstance(e, CellStarted)]


def test_a_recorded_cell_is_not_played_again(tmp_path):
    """
    A sweep that is started twice plays each cell once.
    """
    stage = Stage()

    walk(Store(tmp_path), stage)
    walk(Store(tmp_path), stage)

    assert PAIRS == stage.played


def test_a_record_is_on_disk_before_it_is_told(tmp_path):
    """
    Whoever stops listening at an event loses nothing that it told.
    """
    store = Store(tmp_path)

    for event in runner.run(PAIRS, store=store, probe="recall", play=Stage().play):
        if isinstance(event, CellEnded):
            assert event.record == store.record(event.record.pair, "recall")
            break

    assert 3 == len(runner.pending(PAIRS, store=store, probe="recall"))


def test_an_interrupted_cell_is_played_again(tmp_path):
    """
    What was stopped half-way is still to be done.
    """
    store = Store(tmp_path)
    store.add(failed_record(PAIRS[0], Status.INTERRUPTED))

    assert PAIRS == runner.pending(PAIRS, store=store, probe="recall")


def test_a_failed_cell_is_played_again_only_if_wished(tmp_path):
    """
    A pair without a kernel fails again, and costs the time again.
    """
    store = Store(tmp_path)
    store.add(failed_record(PAIRS[0], Status.CRASHED))

    assert PAIRS[1:] == runner.pending(PAIRS, store=store, probe="recall")
    assert PAIRS == runner.pending(
        PAIRS, store=store, probe="recall", retry_failed=True
    )


def test_a_failing_cell_does_not_end_the_sweep(tmp_path):
    """
    One pair that crashes is a gap, and the others are played.
    """

    def outcome(pair):
        return failed_record(pair) if pair == PAIRS[1] else finished(pair)

    stage = Stage(outcome)
    walk(Store(tmp_path), stage)

    assert PAIRS == stage.played


def test_cells_that_fail_alike_from_the_start_end_the_sweep(tmp_path):
    """
    When nothing works, three cells are enough to know.
    """
    stage = Stage(failed_record)

    with pytest.raises(FailingAlike, match="first 3 cells failed alike"):
        walk(Store(tmp_path), stage)

    assert PAIRS[:3] == stage.played


def test_cells_that_fell_back_and_were_measured_do_not_end_it(tmp_path):
    """
    A grid without fast kernels is slow, but it is a grid.
    """

    def outcome(pair):
        return replace(finished(pair), status=Status.FALLBACK_CPU, reason="on the CPU")

    stage = Stage(outcome)
    walk(Store(tmp_path), stage)

    assert PAIRS == stage.played


def test_cells_that_fail_in_different_ways_do_not_end_it(tmp_path):
    """
    Different reasons are different findings.
    """
    stage = Stage(lambda pair: failed_record(pair, reason=str(pair)))

    walk(Store(tmp_path), stage)

    assert PAIRS == stage.played


def test_a_person_who_asks_to_stop_gets_the_current_cell_first(tmp_path):
    """
    The first Ctrl-C ends between cells.
    """
    stage = Stage()

    walk(Store(tmp_path), stage, asked_to_stop=lambda: bool(stage.played))

    assert PAIRS[:1] == stage.played


def test_a_failure_on_a_full_disk_is_none_of_the_cell(tmp_path, monkeypatch):
    """
    What is missing in a log may have had no room: the cell is played again.
    """
    monkeypatch.setattr(runner, "free_disk_bytes", lambda _folder: 4096)
    store = Store(tmp_path)

    with pytest.raises(DiskFull, match=r"4,096 bytes are free"):
        walk(store, Stage(outcome=failed_record))
    assert [] == list(store.records())
    walk(store, Stage())

    assert 4 == len(list(store.records()))
