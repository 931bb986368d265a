"""
Starts a server on a free port and waits until it answers: ports that are taken, waits
that are told, and errors that its end or a stopped process explains.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from codeneedle.engines.engine import HOST, Served
from codeneedle.engines.http import SHORT_S
from codeneedle.engines.messages import Readiness, ServerGone
from codeneedle.errors import CellError
from codeneedle.records.record import Status
from codeneedle.system.files import masked_log_tail
from codeneedle.system.processes import Child, ends_within, free_port, is_suspended
from codeneedle.text import duration_text

PORT_ATTEMPTS = 5
"""Another program may take the port before the server binds it."""

_PORT_IS_TAKEN = ("address already in use", "couldn't bind")
"""What servers log then."""

_TAIL_BYTES = 64 << 10

DEATH_S = 1.0
"""How long a process that broke its connection may take to be gone."""

FIRST_NAP_S = 0.002
LONGEST_NAP_S = 0.25
NAP_SHARE = 0.04
"""
The built-in model is ready after 50 ms, a large one after minutes: each nap is a
share of the time so far, so that readiness is noticed soon.
"""


TELL_AFTER_S = 20.0
"""How long a start may take before it is told; then after twice that, and so on."""

_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextlib.contextmanager
def reporting_waits(tell: Callable[[str], None]) -> Iterator[None]:
    """Have *tell* called with a phrase on each long wait for a server of the block."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


class StartedServer(Served, ABC):
    """A server that runs as a child of ours."""

    __slots__ = ()
    child: Child  # its process
    log: Path

    @abstractmethod
    def readiness(self, limit_s: float) -> Readiness:
        """Its state; each question may take *limit_s* seconds."""

    @abstractmethod
    def left_s(self, waited_s: float) -> float:
        """
        Seconds that it still has to get ready; 0 or less to give it up.

        Args:
            waited_s: Seconds since its start.
        """

    def waiting_phrase(self, readiness: Readiness) -> str:
        """What keeps it at *readiness*, as a phrase."""
        return {
            Readiness.LOADING: "it is still loading",
            Readiness.STRANGER: "it does not answer under its name",
        }.get(readiness, "it does not answer")

    @abstractmethod
    def delay_error(self, readiness: Readiness) -> CellError:
        """The error for a server that runs and did not get beyond *readiness*."""

    @abstractmethod
    def death_error(self) -> CellError:
        """The error for a server that has ended."""

    @abstractmethod
    def excerpt(self, error: CellError) -> tuple[str, ...]:
        """The lines of its log that explain *error*."""

    def exit_error(self) -> CellError | None:
        """What explains any error: that it has ended; None while it runs."""
        return None if self.child.poll() is None else self.death_error()


_Server = TypeVar("_Server", bound=StartedServer)


@contextlib.contextmanager
def serving(
    start: Callable[[int, ExitStack], _Server], *, port: int | None = None
) -> Iterator[_Server]:
    """
    A server that is ready, for the length of a block.

    When the block ends, however it ends, the server's whole process group has
    ended, and its port is free.

    Args:
        start: Starts the server on a port of `HOST`; the stack stops it.
        port: That port; None for a free one.

    Raises:
        CellError: If it takes too long, or ends, at the start or within the block;
            others of the block pass through, with an excerpt of its log.
        MachineError: If it cannot be started or stopped.
    """
    with ExitStack() as stack:
        server = _start_until_ready(start, stack, port)
        try:
            yield server
        except CellError as error:
            if isinstance(error, ServerGone):
                # The connection breaks a moment before the process is gone.
                ends_within(server.child, DEATH_S)
            if failure := server.exit_error() or _error_if_suspended(server, error):
                raise failure from error
            error.log_excerpt = error.log_excerpt or server.excerpt(error)
            raise
        finally:
            server.peak_rss_bytes()


def _start_until_ready(
    start: Callable[[int, ExitStack], _Server], stack: ExitStack, port: int | None
) -> _Server:
    """Start the server, again where a free port was taken meanwhile."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        server = start(port or free_port(HOST), stack)
        readiness = _wait_until_ready(server)
        if readiness is Readiness.READY:
            return server
        if server.child.poll() is None:
            late = server.delay_error(readiness)
            raise _error_if_suspended(server, late) or late
        log = masked_log_tail(server.log, _TAIL_BYTES).lower()
        is_taken = any(sign in log for sign in _PORT_IS_TAKEN)
        if port or attempt == PORT_ATTEMPTS or not is_taken:
            break
    raise server.death_error()


def _wait_until_ready(server: StartedServer) -> Readiness:
    """
    How far the server is once it is ready, has ended, or is out of time.

    Long waits are reported.

    The child is polled before the port: once it has ended, whatever answers there is
    another program.
    """
    began_s, waited_s = time.monotonic(), 0.0
    best, tell_at_s = Readiness.SILENT, TELL_AFTER_S
    while server.child.poll() is None and (left_s := server.left_s(waited_s)) > 0:
        limit_s = min(SHORT_S, left_s)
        readiness = server.readiness(limit_s)
        if readiness is Readiness.READY and server.child.poll() is None:
            return readiness
        # The last poll, with less time, sees less than the ones before.
        if readiness is not Readiness.SILENT or limit_s == SHORT_S:
            best = readiness
        if waited_s >= tell_at_s:
            is_halted = is_suspended(server.child.pid)
            state = STOPPED if is_halted else server.waiting_phrase(best)
            _report_wait(state, waited_s, left_s)
            tell_at_s = 2 * waited_s
        time.sleep(min(nap_seconds(time.monotonic() - began_s), left_s))
        waited_s = time.monotonic() - began_s
    return Readiness.SILENT if best is Readiness.READY else best


STOPPED = "its process is stopped, by SIGSTOP or a debugger"


def _error_if_suspended(server: StartedServer, error: CellError) -> CellError | None:
    """What to raise for *error*, a time-out of a stopped process; None for others."""
    if error.status != Status.TIMED_OUT or not is_suspended(server.child.pid):
        return None
    return CellError(
        f"{error}: {STOPPED}",
        hint=f"Who stopped it? 'kill -CONT {server.child.pid}' lets one go on.",
        status=Status.TIMED_OUT,
        log_excerpt=error.log_excerpt or server.excerpt(error),
    )


def _report_wait(state: str, waited_s: float, left_s: float) -> None:
    """Tell whom `reporting_waits` named the *state*, and how long it may go on."""
    if tell := _TELL.get():
        known = f"{state}; it is given up in {duration_text(left_s)}"
        tell(f"waiting for the server for {duration_text(waited_s)}: {known}")


def nap_seconds(waited_s: float) -> float:
    """How long to sleep before the next poll, after *waited_s* seconds; in seconds."""
    return min(max(FIRST_NAP_S, NAP_SHARE * waited_s), LONGEST_NAP_S)
