"""Children: started in a session of their own, stopped with all of their group."""

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from codeneedle import childlog, environment, interrupts
from codeneedle.errors import MachineError
from codeneedle.refusals import hint_for

Child = subprocess.Popen[bytes]
_Output = int | BinaryIO
_Block = contextlib.AbstractContextManager[Child]

GRACES_S: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 3.0),  # b11434 hangs on one in twelve that follows a cut answer
    (signal.SIGTERM, 5.0),
    (signal.SIGKILL, 30.0),  # a driver that frees a GPU's memory cannot be hurried
)
"""Ever less polite requests to leave, and how long each is given, in seconds."""

SHORTEST_NAP_S, LONGEST_NAP_S = 0.001, 0.05
"""A child that ends at once costs a millisecond, one that lingers next to nothing."""

OUTPUT_LIMIT_BYTES = 4 << 20
"""What is kept of each stream of a short question; ``--help`` has 60 KB."""

_ours: set[Child] = set()
"""Children not yet stopped, for the last line of defence in `_end_the_rest`."""


class CannotStart(MachineError):  # noqa: N818 - named after the fact
    """The system refused to start a program."""

    def __init__(self, *, program: str, reason: str, hint: str = "") -> None:
        super().__init__(
            f"{program} cannot be started: {reason}",
            hint=hint or f"Try it by hand: {program} --version",
        )


class NoAnswer(MachineError):  # noqa: N818 - named after the fact
    """A program that was asked something short is still at it."""

    def __init__(self, *, program: str, timeout_s: float) -> None:
        super().__init__(
            f"{program} gave no answer within {timeout_s:g} s",
            hint="Is the machine overloaded? Try the program by hand.",
        )


class ChildWontStop(MachineError):  # noqa: N818 - named after the fact
    """A child, or a child of it, outlives even SIGKILL."""

    def __init__(self, *, group: int) -> None:
        super().__init__(
            f"process group {group} is still there after SIGKILL",
            hint=f"Look at it with: ps -o pid,stat,wchan,args -g {group}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedChild:
    """
    A child that ended on its own.

    Attributes:
        returncode: Exit status; negative is the signal that ended it.
        stdout: What it printed, at most `OUTPUT_LIMIT_BYTES` of it.
        stderr: What it complained about, likewise.
    """

    returncode: int
    stdout: str
    stderr: str


def output_of(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> CompletedChild:
    """
    Ask a program something short, such as its version.

    Args:
        argv: Program and its arguments.
        timeout_s: How long it may take, in seconds.
        env: Its whole environment; by default `environment.clean` of ours.

    Raises:
        CannotStart: If the system refuses.
        NoAnswer: If it takes longer.
    """
    env = environment.clean(os.environ) if env is None else env
    pipe = subprocess.PIPE
    with _started(argv, env=env, stdout=pipe, stderr=pipe) as child:
        kept = _read_all(child, until=time.monotonic() + timeout_s)
        if kept is None:
            raise NoAnswer(program=argv[0], timeout_s=timeout_s)
        stdout, stderr = (data.decode(errors="replace") for data in kept)
        return CompletedChild(returncode=child.returncode, stdout=stdout, stderr=stderr)


@contextlib.contextmanager
def running(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path
) -> Iterator[Child]:
    """
    Start *argv*; when the block ends, however it ends, stop it.

    The child gets its own session, so Ctrl-C reaches us first and we choose
    the order of events; no stdin, so it cannot wait for a person; and a file
    for its output, so a full pipe cannot stall it and its last words outlive it.

    Args:
        argv: Program, as an absolute path, and its arguments.
        env: The child's whole environment; nothing else is inherited.
        log: Receives stdout and stderr, interleaved. Overwritten; a child that
            fills it without end is ended.

    Yields:
        The child. It may exit on its own at any moment: poll it.

    Raises:
        NoLog: If *log* cannot be written.
        CannotStart: If the system refuses to start it.
        ChildWontStop: If one of its group survives even SIGKILL.
    """
    with (
        childlog.opened(log) as output,
        _started(argv, env=env, stdout=output, stderr=subprocess.STDOUT) as child,
        childlog.bounded(child, log),
    ):
        yield child


def talking(argv: Sequence[str], *, env: Mapping[str, str]) -> _Block:
    """Start and stop *argv* as `running` does, with pipes to talk, and no log."""
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return _started(argv, env=env, stdin=pipe, stdout=pipe, stderr=nowhere)


def ends_within(child: Child, limit_s: float) -> bool:
    """Whether *child* ends on its own before *limit_s* seconds are over."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(limit_s)
    return child.poll() is not None


def stop(child: Child) -> None:
    """
    Ask the child's process group to leave, then insist; Ctrl-C insists sooner.

    Returns as soon as the last of the group is gone. Signals that arrive
    meanwhile cut a grace short and are delivered afterwards.

    Raises:
        ChildWontStop: If one of the group survives even SIGKILL.
    """
    try:
        end_group(child.pid, is_reaped=lambda: child.poll() is not None)
    finally:
        _ours.discard(child)


def end_group(group: int, *, is_reaped: Callable[[], bool] = lambda: True) -> None:
    """
    Stop the process group *group* as `stop` does; it need not be a child of ours.

    Args:
        group: Pid of the process that leads it.
        is_reaped: Takes note of the end of a child of ours. That comes a moment
            after the process looks dead, if it has other threads.

    Raises:
        ChildWontStop: If one of the group survives even SIGKILL.
    """

    def is_gone() -> bool:
        return is_reaped() and not _has_members(group)

    with interrupts.held() as hold:
        for request, grace_s in GRACES_S:
            if is_gone():
                return
            heard = len(hold.arrived)
            _signal(group, request)
            for _ in _naps(until=time.monotonic() + grace_s):
                # SIGKILL is the last request there is, so nothing hurries it.
                is_hurried = len(hold.arrived) > heard and request != signal.SIGKILL
                if is_hurried or is_gone():
                    break
        if not is_gone():
            raise ChildWontStop(group=group)


@contextlib.contextmanager
def _started(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: _Output,
    stderr: _Output,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[Child]:
    with contextlib.ExitStack() as stack:
        # A signal between the start and the promise to stop would orphan it.
        hold = stack.enter_context(interrupts.held())
        try:
            child = subprocess.Popen(
                argv,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            hint = hint_for(error)
            raise CannotStart(program=argv[0], reason=str(error), hint=hint) from error
        _ours.add(child)
        stack.callback(stop, child)
        hold.release()
        yield child


def _read_all(child: Child, *, until: float) -> tuple[bytes, bytes] | None:
    """What *child* prints to its pipes before it ends; None if it takes too long."""
    pipes = [pipe for pipe in (child.stdout, child.stderr) if pipe is not None]
    kept = [bytearray() for _ in pipes]
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for pipe, buffer in zip(pipes, kept, strict=True):
            stack.callback(pipe.close)
            selector.register(pipe, selectors.EVENT_READ, buffer)
        while selector.get_map() or child.poll() is None:
            if time.monotonic() > until:
                return None
            ready = selector.select(LONGEST_NAP_S)
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                # Read on beyond the limit: a full pipe would stall the child.
                key.data.extend(chunk[: OUTPUT_LIMIT_BYTES - len(key.data)])
                if not chunk:
                    selector.unregister(key.fileobj)
            if not ready and child.poll() is not None:
                break  # what still holds the pipe is a child of the child
    return bytes(kept[0]), bytes(kept[1])


def _signal(group: int, request: signal.Signals) -> None:
    # SIGCONT: a suspended process does not hear the polite requests.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, request)
        os.killpg(group, signal.SIGCONT)


def _has_members(group: int) -> bool:
    """Whether a process of *group* still runs; zombies do not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # what macOS says of a group of zombies
    return any(_runs_in(group, pid) for pid in psutil.pids())


def _runs_in(group: int, pid: int) -> bool:
    with contextlib.suppress(OSError, psutil.Error):
        if os.getpgid(pid) == group:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _naps(*, until: float) -> Iterator[float]:
    """Sleep, ever longer, between looks at something, until it is time."""
    nap_s = SHORTEST_NAP_S
    while time.monotonic() < until:
        time.sleep(nap_s)
        yield nap_s
        nap_s = min(2 * nap_s, LONGEST_NAP_S)


@atexit.register
def _end_the_rest() -> None:
    """A signal at the wrong moment may skip a `finally`; this skips nothing."""
    for child in _ours:
        _signal(child.pid, signal.SIGKILL)
