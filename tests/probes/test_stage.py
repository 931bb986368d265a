"""Where the time of a cell goes, between moments that may not come."""

from codeneedle.probes.probe import _phases
from codeneedle.records.record import Phases


def test_each_moment_ends_a_phase():
    """
    Of a cell that came through, all that is not measuring is waiting.
    """
    phases = _phases(9.5, 10.0, 10.25, 10.5, 20.5, 21.0)

    assert phases == Phases(
        between_s=0.5, ready_s=0.25, start_s=0.25, measure_s=10.0, stop_s=0.5
    )
    assert 11.0 == phases.total_s
    assert 1.5 == phases.waiting_s


def test_phases_that_were_not_reached_are_none():
    """
    Never a zero, of a server that did not get ready or was never asked.
    """
    assert Phases(ready_s=2.0) == _phases(None, 10.0, None, None, None, 12.0)
    assert Phases(between_s=1.0, ready_s=1.0, start_s=1.0, stop_s=0.0) == (
        _phases(9.0, 10.0, 11.0, None, None, 12.0)
    )


def test_a_server_that_dies_in_a_round_stops_from_its_last_answer_on():
    """
    Or from when its block was left, if it gave none.
    """
    assert Phases(ready_s=1.0, start_s=1.0, measure_s=3.0, stop_s=1.0) == (
        _phases(None, 10.0, 11.0, 12.0, 15.0, 16.0)
    )
