"""Time of day, and time as we live through it."""

import datetime as dt

import pytest

from codeneedle.system import processes
from codeneedle.system.processes import Lived, now


@pytest.fixture
def monotonic(monkeypatch):
    """A monotonic clock that stands still until it is set."""
    seconds = [100.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: seconds[0])
    return seconds


def test_the_time_of_day_has_its_zone():
    """
    ISO 8601, UTC, to the second.
    """
    assert dt.timedelta(0) == dt.datetime.fromisoformat(now()).utcoffset()
    assert len("2026-01-31T23:59:59+00:00") == len(now())


def test_time_passes_for_those_who_are_awake(monotonic):
    """
    Asked often, it is the monotonic clock.
    """
    lived_s = Lived(longest_s=10.0)
    for _ in range(100):
        monotonic[0] += 9.0
        lived_s()

    assert 900.0 == lived_s()


def test_a_night_in_suspension_counts_next_to_nothing(monotonic):
    """
    No more than the longest time between two questions.
    """
    lived_s = Lived(longest_s=10.0)
    monotonic[0] += 5.0
    before = lived_s()
    monotonic[0] += 30000.0

    assert (5.0, 15.0) == (before, lived_s())
