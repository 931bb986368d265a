"""
Child processes: a clean environment, a session of their own, size-limited logs, and a
stop that reaches the whole group.
"""

import atexit
import contextlib
import datetime as dt
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import psutil

from codeneedle.errors import MachineError, hint_for
from codeneedle.system import signals

KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TZ", "LANG", "LANGUAGE"),
        *("TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
        *("DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "DYLD_FRAMEWORK_PATH"),
    }
)
"""Variables that a child inherits, by name: where things are, and in what language."""

KEPT_PREFIXES = (
    *("LC_", "GGML_"),
    *("CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "ROCM_"),
    *("VK_", "MESA_", "METAL_", "MTL_", "ONEAPI_", "SYCL_", "ZE_"),
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_"),
)
"""Variables that a child inherits, by how they start: devices and threads."""

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")
"""Words in a name for which it is dropped all the same: ``VK_ACCESS_TOKEN``."""


def clean(
    environment: Mapping[str, str], *, also: Collection[str] = ()
) -> dict[str, str]:
    """
    What a child may inherit of *environment*.

    ``LLAMA_ARG_*`` is not on the list: llama-server reads those as arguments
    that the cell never chose. Proxies and tokens are not on it either.

    Args:
        environment: Usually ``os.environ``.
        also: Further names that this one child needs.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in also or _is_kept(name)
    }


def is_secret(name: str) -> bool:
    """Whether a variable of that *name* most likely holds what nobody should see."""
    return any(word in name.upper() for word in SECRET_WORDS)


def _is_kept(name: str) -> bool:
    if name in KEPT:
        return True
    return name.startswith(KEPT_PREFIXES) and not is_secret(name)


def now() -> str:
    """ISO 8601 in UTC, to the second: ``2026-01-31T23:59:59+00:00``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


class Lived:
    """
    Seconds since it was made, without those in which we were suspended.

    Ctrl-Z, a frozen container: others were suspended with us, or went on without
    us, and had no chance to be heard in time.

    Args:
        longest_s: It is asked more often than that, so whatever is longer between
            two questions was not lived through.
    """

    def __init__(self, *, longest_s: float) -> None:
        self._longest_s = longest_s
        self._lived_s = 0.0
        self._asked = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """How many there are by now; any thread may ask."""
        with self._lock:
            asked, self._asked = self._asked, time.monotonic()
            self._lived_s += min(self._asked - asked, self._longest_s)
            return self._lived_s


ENDED = "codeneedle: ended, as it has written more than"
"""Begins the line that we write ourselves into a log that had no end."""

LIMIT_BYTES = 256 << 20
"""A child that has written more is ended: a start takes 20 KB, a sweep some MB."""

END_BYTES = 1 << 20
"""What is worth reading of either end, and kept of a log that is far longer."""

LOOK_S = 0.25
"""Between looks at its length; nobody writes the rest of a disk within one."""

OMISSION = b"\n[...]\n"
"""Stands for what was between the ends."""


class Writer(Protocol):
    """What is asked of a child here; `subprocess.Popen` has it."""

    def poll(self) -> int | None:
        """How it ended; None as long as it lives."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, if it lives."""


class NoLog(MachineError):  # noqa: N818 - named after the fact
    """The output of a child cannot be kept."""

    def __init__(self, *, log: Path, reason: str) -> None:
        super().__init__(
            f"{log} cannot be written: {reason}",
            hint="Is the disk full, or the folder gone or read-only?",
        )


@contextlib.contextmanager
def opened(log: Path) -> Iterator[BinaryIO]:
    """
    *log*, emptied, for a child to write to within the block; shortened after it.

    Raises:
        NoLog: If it cannot be written.
    """
    try:
        log.write_bytes(b"")
        # To its end: what we add must not be written over by the child.
        output = log.open("ab")
    except OSError as error:
        raise NoLog(log=log, reason=error.strerror or str(error)) from error
    try:
        with output:
            yield output
    finally:
        with contextlib.suppress(OSError):
            _shorten(log)


@contextlib.contextmanager
def bounded(child: Writer, log: Path) -> Iterator[None]:
    """End *child* should it write more than `LIMIT_BYTES` into *log* in the block."""
    is_over = threading.Event()
    watch = threading.Thread(target=_watch, args=(child, log, is_over), daemon=True)
    with contextlib.suppress(RuntimeError):  # a machine that has no thread to spare
        watch.start()
    try:
        yield
    finally:
        is_over.set()


def _watch(child: Writer, log: Path, is_over: threading.Event) -> None:
    while not is_over.wait(LOOK_S):
        if _size(log) > LIMIT_BYTES and child.poll() is None:
            _end(child, log)
            return


def _end(child: Writer, log: Path) -> None:
    # Frozen first, so that the line is among the last, and there when it is dead.
    child.send_signal(signal.SIGSTOP)
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(f"\n{ENDED} {LIMIT_BYTES >> 20} MiB here\n".encode())
    child.send_signal(signal.SIGKILL)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _shorten(log: Path) -> None:
    """Keep the ends of a long log, in place: the disk may be full."""
    with log.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * END_BYTES + len(OMISSION):
            return
        file.seek(size - END_BYTES)
        end = file.read(END_BYTES)
        file.seek(END_BYTES)
        file.write(OMISSION + end)
        file.truncate()


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
    env = clean(os.environ) if env is None else env
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
        opened(log) as output,
        _started(argv, env=env, stdout=output, stderr=subprocess.STDOUT) as child,
        bounded(child, log),
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

    with signals.held() as hold:
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
        hold = stack.enter_context(signals.held())
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
