"""Cells marked as fallbacks while a sweep runs, played by nobody."""

import types
from dataclasses import replace

import pytest
from made_records import made_needle, made_priming, made_record, made_round, made_setup

from codeneedle.grid import Pair
from codeneedle.probes import PROBES, recall
from codeneedle.records.record import Effective, Status
from codeneedle.records.store import Store
from codeneedle.sweep import runner
from codeneedle.sweep.fallbacks import PROMPT_SPEEDS, judged
from codeneedle.sweep.runner import CellEnded, CellStarted

NEEDLE = made_needle()
GOOD, BAD = Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0")


def cell(pair, *, parts=2, prompt_ms=3000.0, layers=33):
    """A finished cell of the recall probe on an accelerator."""
    priming = replace(made_priming(NEEDLE), prompt_ms=prompt_ms)
    record = made_record(pair, [made_round(NEEDLE)], priming=priming)
    effective = Effective(
        graph_splits=parts, devices=("CUDA0",), offloaded_layers=layers
    )
    return replace(record, effective=effective)


@pytest.fixture
def player(tmp_path):
    """What is the same for every cell, on a machine with an accelerator."""
    plan = types.SimpleNamespace(
        store=Store(tmp_path), server=types.SimpleNamespace(devices=("CUDA0",))
    )
    setup = made_setup(needles=1, types_k=("q8_0",), types_v=("q8_0", "q4_0"))
    return types.SimpleNamespace(plan=plan, setup=setup, probe=recall.PROBE)


def swept(player, *cells):
    """The events of a sweep whose cells end as given, in that order."""

    def play(pair, _position):
        yield CellEnded(next(each for each in cells if each.pair == pair))

    events = runner.run(
        [each.pair for each in cells],
        store=player.plan.store,
        probe="recall",
        play=play,
    )
    return list(judged(events, player))


def ended(events):
    """What was told of cells that ended: pair and status."""
    records = [event.record for event in events if isinstance(event, CellEnded)]
    return [(record.pair, record.status.value) for record in records]


def test_a_cell_that_fell_back_is_told_and_stored_as_that(player):
    """
    Once, with its reason; its observation is kept.
    """
    bad = cell(BAD, parts=30)

    events = swept(player, cell(GOOD), bad)

    assert [(GOOD, "finished"), (BAD, "fallback-cpu")] == ended(events)
    stored = player.plan.store.record(BAD, "recall")
    assert Status.FALLBACK_CPU is stored.status
    assert "the graph falls into 30 parts, 2 for q8_0/q8_0" == stored.reason
    assert bad.observation == stored.observation


def test_a_cell_is_marked_when_something_better_has_run(player):
    """
    Until then it looked normal; it is told again, after the cell that betrayed it.
    """
    events = swept(player, cell(BAD, parts=30), cell(GOOD))

    assert [(BAD, "finished"), (GOOD, "finished"), (BAD, "fallback-cpu")] == (
        ended(events)
    )
    assert Status.FALLBACK_CPU is player.plan.store.record(BAD, "recall").status


def test_a_cell_with_fewer_layers_on_the_accelerator_is_mismatched(player):
    """
    It is ranked beside no other; what it measured is kept.
    """
    bad = cell(BAD, layers=20)

    events = swept(player, cell(GOOD), bad)

    assert [(GOOD, "finished"), (BAD, "mismatched")] == ended(events)
    stored = player.plan.store.record(BAD, "recall")
    assert "20 layers on the accelerator, 33 for q8_0/q8_0" == stored.reason
    assert bad.observation == stored.observation


def test_cells_of_an_earlier_sitting_are_held_against_new_ones(player):
    """
    A sweep that is resumed knows what it measured before.
    """
    swept(player, cell(BAD, parts=30))

    events = swept(player, cell(GOOD))

    assert [(GOOD, "finished"), (BAD, "fallback-cpu")] == ended(events)


def test_a_slow_prompt_marks_a_cell_on_an_accelerator(player):
    """
    The speed is the recall probe's own reading of the priming round.
    """
    events = swept(player, cell(GOOD), cell(BAD, prompt_ms=90_000.0))

    assert [(GOOD, "finished"), (BAD, "fallback-cpu")] == ended(events)
    reason = player.plan.store.record(BAD, "recall").reason
    assert "it reads 100 tokens/s of a prompt, q8_0/q8_0 reads 3,000" == reason


def test_a_slow_prompt_means_nothing_on_a_processor(player):
    """
    There quantized attention is slow by nature.
    """
    player.plan.server.devices = ()

    events = swept(player, cell(GOOD), cell(BAD, prompt_ms=90_000.0))

    assert [(GOOD, "finished"), (BAD, "finished")] == ended(events)


def test_cells_that_run_alike_are_left_alone(player):
    """
    Their records are not written again.
    """
    good, bad = cell(GOOD), cell(BAD)

    events = swept(player, good, bad)

    assert [(GOOD, "finished"), (BAD, "finished")] == ended(events)
    assert bad == player.plan.store.record(BAD, "recall")


def test_other_events_pass(player):
    """
    What is told of a sweep is told in its order.
    """
    events = swept(player, cell(GOOD))

    assert isinstance(events[0], CellStarted)
    assert 2 == len(events)


def test_who_stops_listening_stops_the_sweep(player):
    """
    The cell under way is closed, not left to the collector.
    """
    closed = []

    def endless():
        try:
            yield CellStarted(GOOD, 1, 1)
            yield CellStarted(BAD, 2, 2)
        finally:
            closed.append(True)

    inner = endless()
    events = judged(inner, player)
    next(events)
    events.close()

    assert [True] == closed


def test_the_probes_that_read_prompts_tell_how_fast():
    """
    A metric that is renamed would end the comparison unseen.
    """
    names = {metric.name for probe in PROBES.values() for metric in probe.metrics}

    assert names >= PROMPT_SPEEDS
