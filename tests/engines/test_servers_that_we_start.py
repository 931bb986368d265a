"""Servers that an engine starts, by children that fail as a test wishes."""

import os
import signal
import sys
from dataclasses import dataclass

import pytest

from codeneedle.engines import started_servers as module
from codeneedle.engines.messages import Readiness, ServerGone, ServerSilent
from codeneedle.engines.started_servers import (
    PORT_ATTEMPTS,
    StartedServer,
    nap_seconds,
    reporting_waits,
    serving,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.system.orphans import running_with_note
from codeneedle.system.processes import Child

pytestmark = pytest.mark.slow


@dataclass(slots=True, kw_only=True)
class Scripted(StartedServer):
    """A server of a line of Python, with a *limit_s* to get ready."""

    child: Child
    log: object
    states: object
    limit_s: float

    def readiness(self, limit_s):
        return next(self.states)

    def left_s(self, waited_s):
        return self.limit_s - waited_s

    def delay_error(self, readiness):
        return CellError(f"still {readiness}", hint="Wait.", status=Status.TIMED_OUT)

    def death_error(self):
        return CellError(f"ended with {self.child.returncode}", hint="Look.")

    def excerpt(self, error):
        return (f"about {error}",)


@pytest.fixture
def started(tmp_path):
    """Serves *script* until it has shown *states*; its ports are listed."""

    def serve(script, *states, limit_s=60.0):
        log, shown = tmp_path / "log", iter(states)

        def start(port, stack):
            serve.ports.append(port)
            argv = [sys.executable, "-c", script]
            return Scripted(
                client=None,
                command=tuple(argv),
                child=stack.enter_context(
                    running_with_note(argv, env=dict(os.environ), log=log)
                ),
                log=log,
                states=shown,
                limit_s=limit_s,
            )

        return serving(start)

    serve.ports = []
    return serve


WAITS = "import time; time.sleep(60)"


def test_a_server_is_ready_and_has_ended_behind_the_block(started):
    states = (Readiness.SILENT, Readiness.LOADING, Readiness.READY)
    with started(WAITS, *states) as server:
        assert server.child.poll() is None
        assert server.exit_error() is None

    assert server.child.poll() is not None
    assert (server.peak_rss_bytes() or 0) > 0


@pytest.mark.parametrize("words", ["Address already in use", "couldn't bind"])
def test_a_server_is_started_again_while_its_port_is_taken(started, words):
    script = f"import sys; sys.exit({words!r})"
    with (
        pytest.raises(CellError, match="ended with 1"),
        started(script, *[Readiness.SILENT] * 99999),
    ):
        raise AssertionError("entered")

    assert PORT_ATTEMPTS == len(started.ports)


def test_a_server_that_ends_is_not_started_again(started):
    with (
        pytest.raises(CellError, match="ended with 3"),
        started("raise SystemExit(3)", *[Readiness.SILENT] * 99999),
    ):
        raise AssertionError("entered")

    assert 1 == len(started.ports)


def test_a_server_that_takes_too_long_is_given_up(started):
    states = [Readiness.LOADING] * 99999
    with (
        pytest.raises(CellError, match="still loading"),
        started(WAITS, *states, limit_s=0.05),
    ):
        raise AssertionError("entered")


def test_what_a_start_waits_for_is_told_less_and_less_often(started, monkeypatch):
    monkeypatch.setattr(module, "TELL_AFTER_S", 0.0)
    monkeypatch.setattr(module, "nap_seconds", lambda _waited_s: 0.01)
    told = []
    states = [Readiness.LOADING] * 30
    with reporting_waits(told.append), started(WAITS, *states, Readiness.READY):
        pass

    assert 2 <= len(told) < len(states)
    assert "still loading" in told[-1]
    assert "given up in" in told[-1]


def test_nothing_is_told_of_a_server_that_is_ready_soon(started):
    told = []
    with reporting_waits(told.append), started(WAITS, Readiness.READY):
        pass

    assert [] == told


def test_a_server_that_somebody_stopped_says_so(started, golden):
    """Whether it waits to be ready, or is silent in a reply."""
    states = [Readiness.LOADING] * 99999
    with (
        pytest.raises(CellError) as late,
        started("import os; os.kill(os.getpid(), 19)", *states, limit_s=1.0),
    ):
        raise AssertionError("entered")

    def stop_it():
        with started(WAITS, Readiness.READY) as server:
            server.child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.child.pid, os.WSTOPPED | os.WNOWAIT)
            raise ServerSilent(silence_s=1.0)

    with pytest.raises(CellError) as silent:
        stop_it()
    assert golden == [str(late.value), str(silent.value)]
    assert "kill -CONT" in late.value.hint


def test_errors_of_a_block_get_an_excerpt_of_the_log(started):
    with pytest.raises(CellError) as caught, started(WAITS, Readiness.READY):
        raise CellError("nothing came", hint="")

    assert ("about nothing came",) == caught.value.log_excerpt


def test_a_broken_connection_is_explained_by_the_end_of_the_server(started):
    def kill_it():
        with started(WAITS, Readiness.READY) as server:
            os.kill(server.child.pid, signal.SIGKILL)
            raise ServerGone(reason="reset")

    with pytest.raises(CellError, match="ended with -9") as caught:
        kill_it()

    assert isinstance(caught.value.__cause__, ServerGone)


def test_naps_grow_with_the_time_so_far():
    assert [0.002, 0.04, 0.25] == [nap_seconds(waited_s) for waited_s in (0, 1, 100)]
