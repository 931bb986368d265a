"""The loop of a sweep, without a command line: what it measures, and how it ends."""

import contextlib
import time

import pytest
from fake_engine import FakeEngine, forced_to
from made_plans import made_world, planned

from codeneedle.cache_types import Pair
from codeneedle.errors import CellError
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.sweep.measure import Options, task_loop
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.runner import CellEnded
from codeneedle.verdict.limits import Limits

BAD = Pair("q4_0", "q4_0")


class Recorder:
    """Keeps what it is told."""

    def __init__(self):
        self.told, self.ended = [], []

    def begin_task(self, turn):
        self.told.append(f"{turn.task.probe} {turn.task.stage}")

    @contextlib.contextmanager
    def watch_cells(self, task, queue):
        yield lambda event: isinstance(event, CellEnded) and self.ended.append(event)

    def report_cells_ended(self, queue, tally, *, is_old):
        self.told.append((tally.ended_count, tally.failure_count, is_old))

    def report_short_records(self, task, records):
        self.told.append(("short", [record.pair for record in records]))

    def report_sentence(self, what):
        self.told.append(what)

    def report_probe_left_out(self, error):
        self.told.append(error)


class World:
    """A grid of four pairs, some of which may fail."""

    def __init__(self, folder, monkeypatch):
        made_world(folder, monkeypatch)
        self.engine, self.failing = FakeEngine(stretches_context=True), set()
        self.engine.force = self.force
        self.observer = Recorder()

    def force(self, question, right):
        if self.engine.served[-1].pair in self.failing:
            return CellError("it died", hint="Look.")
        return forced_to(question, right, wall_s=0.0)

    def measure(self, *, spent_s=0.0, stops=lambda: False, **options):
        """Measure the grid; how that has ended."""
        plan = planned(
            contexts=(65536,),
            recall=RecallSettings(way=(Way.FORCE,), functions=6, lines=2),
            engine=self.engine,
        )
        loop = task_loop(
            plan,
            prepare_run_and_store_setup(plan),
            Options(limits=Limits(), **options),
            began=time.monotonic() - spent_s,
            observer=self.observer,
            stops=stops,
        )
        return loop.measure()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder in which nothing was asked."""
    return World(tmp_path, monkeypatch)


def test_a_grid_is_measured_to_its_end_and_a_second_time_nothing_is(world):
    ends = [world.measure(more=False), world.measure(more=False)]

    assert [(True, None)] * 2 == [(end.is_whole, end.missing) for end in ends]
    assert "recall grid" == world.observer.told[0]
    assert (4, 0, False) == world.observer.told[1]
    assert (4, 0, True) == world.observer.told[-1]
    assert 4 == len({event.record.pair for event in world.observer.ended})


def test_a_cell_that_fails_leaves_the_sweep_unfinished(world):
    world.failing = {BAD}

    assert not world.measure(more=False).is_whole
    assert (4, 1, False) in world.observer.told


def test_what_the_time_is_up_for_is_told_and_not_begun(world):
    end = world.measure(spent_s=2.0, budget_s=1.0)

    assert (False, "recall") == (end.is_whole, end.missing.task.probe)
    assert ([], []) == (world.observer.told, world.engine.served)


def test_a_request_to_stop_ends_it_before_a_task(world):
    with pytest.raises(KeyboardInterrupt):
        world.measure(stops=lambda: True)

    assert [] == world.engine.served
