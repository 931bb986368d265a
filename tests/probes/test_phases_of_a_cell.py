"""Phases and logs of a cell."""

from made_contexts import run_context

from codeneedle.cache_types import Pair
from codeneedle.probes.cell import ProbeContext, _phases_between
from codeneedle.records.record import Phases


def made_cell(folder, **changes):
    """One cell of a made run."""
    run = run_context(folder)
    return ProbeContext(run=run, pair=Pair("q8_0", "q4_0"), logs=folder, **changes)


def test_each_moment_ends_a_phase():
    phases = _phases_between([9.5, 10.0, 10.25, 10.5, 20.5], end=21.0)

    assert phases == Phases(
        between_s=0.5, ready_s=0.25, start_s=0.25, measure_s=10.0, stop_s=0.5
    )
    assert 11.0 == phases.total_from_launch_s
    assert 1.5 == phases.waiting_s


def test_phases_that_were_not_reached_are_none():
    assert Phases(ready_s=2.0) == _phases_between([None, 10.0], end=12.0)
    assert Phases(between_s=1.0, ready_s=1.0, start_s=1.0, stop_s=0.0) == (
        _phases_between([9.0, 10.0, 11.0, None, 12.0], end=12.0)
    )


def test_a_server_that_dies_in_a_round_stops_from_its_last_reply_on():
    assert Phases(ready_s=1.0, start_s=1.0, measure_s=3.0, stop_s=1.0) == (
        _phases_between([None, 10.0, 11.0, 12.0, 15.0], end=16.0)
    )


def test_a_served_cell_has_all_phases(tmp_path):
    cell = made_cell(tmp_path, previous_end=0.0)
    with cell.serving(), cell.record_request_span():
        pass

    assert None not in (
        cell.phases.between_s,
        cell.phases.ready_s,
        cell.phases.start_s,
        cell.phases.measure_s,
        cell.phases.stop_s,
    )
    assert ("llama-server", "--fake") == cell.command
    assert cell.previous_end > 0


def test_logs_of_a_cell_are_called_after_its_pair(tmp_path):
    cell = made_cell(tmp_path)

    assert tmp_path / "q8_0-q4_0.log" == cell.cell_log_path()
    assert tmp_path / "q8_0-q4_0.half.log" == cell.cell_log_path("half")
