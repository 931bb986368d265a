"""Logs of children: bounded while they are written, shortened when they are done."""

import signal
import sys

import pytest

from codeneedle.engines.llama_cpp.log import trouble
from codeneedle.system import processes
from codeneedle.system.processes import (
    END_BYTES,
    OMISSION,
    NoLog,
    bounded,
    ends_within,
    opened,
    running,
)

CHATTERBOX = [
    sys.executable,
    "-c",
    "while True: print('x' * 1000, flush=True)",
]


@pytest.fixture
def small(monkeypatch):
    """Logs have an end soon, and are looked at often."""
    monkeypatch.setattr(processes, "LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(processes, "LOOK_S", 0.01)


def test_a_child_that_writes_without_end_is_ended_and_its_log_says_so(tmp_path, small):
    """
    The line is there by the time the child is dead, and is the reason of its end.
    """
    log = tmp_path / "log"
    with running(CHATTERBOX, env={}, log=log) as child:
        assert ends_within(child, 60.0)
        said = trouble(log.read_text())

    assert -signal.SIGKILL == child.returncode
    assert said is not None
    assert said.reason.startswith(
        "codeneedle: ended, as it has written more than 1 MiB"
    )
    assert "crashed" == said.status


def test_of_a_long_log_the_ends_are_kept(tmp_path):
    """
    In place, since the disk may be full.
    """
    log = tmp_path / "log"
    with opened(log) as output:
        output.write(b"a" * END_BYTES + b"b" * END_BYTES + b"c" * END_BYTES)

    assert b"a" * END_BYTES + OMISSION + b"c" * END_BYTES == log.read_bytes()


def test_a_short_log_stays_as_it_is(tmp_path):
    """
    Whatever was there before is gone.
    """
    log = tmp_path / "log"
    log.write_text("of yesterday")
    with opened(log) as output:
        output.write(b"all is well\n")

    assert "all is well\n" == log.read_text()


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    """
    Before any child starts.
    """
    with pytest.raises(NoLog) as caught, opened(tmp_path / "nowhere" / "log"):
        raise AssertionError("entered")

    assert "nowhere" in str(caught.value)


def test_a_log_that_vanishes_is_nobody_s_fault(tmp_path, small):
    """
    Its child goes on.
    """
    log = tmp_path / "log"
    with opened(log):
        log.unlink()

    class Child:
        def poll(self):
            return None

        def send_signal(self, sig):
            raise AssertionError(sig)

    with bounded(Child(), log):
        pass
