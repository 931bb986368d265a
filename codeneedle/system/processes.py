"""
Child processes: a clean environment, a session of their own, size-limited logs, and a
stop that reaches the whole process group.
"""

import atexit
import contextlib
import datetime as dt
import os
import resource
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

from codeneedle.errors import FolderUnusable, ToolFailed, hint_for
from codeneedle.system import files, signals

Child = subprocess.Popen[bytes]

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

GRACES_S: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 3.0),  # b11434 hangs on one in twelve that follows a cut answer
    (signal.SIGTERM, 5.0),
    (signal.SIGKILL, 30.0),  # a driver that frees a GPU's memory cannot be hurried
)
"""Signals that stop a process group, and how long each may take, in seconds."""

SHORTEST_NAP_S, LONGEST_NAP_S = 0.001, 0.05
"""Between polls of a child that ends: doubled from the first to the second."""

OUTPUT_LIMIT_BYTES = 4 << 20
"""What `output_of` keeps of each stream; llama-server's ``--help`` has 60 KB."""

FILE_LIMIT_BYTES = 2 << 30
"""
A file that a child writes may have this size: it bounds a log that grows without end.

Not less, because drivers append to caches of compiled kernels of up to 1 GiB.
"""

END_BYTES = 1 << 20
"""What is kept of the start and of the end of a long log."""

OMISSION = b"\n[...]\n"
"""Replaces the middle of a long log."""

_running: set[Child] = set()
"""Children not yet stopped, for `ending_all` and `_kill_the_rest`."""

_starting = threading.Lock()
"""Held while a child starts: limits are those of the whole process."""

_are_ending = threading.Event()
"""Set while `ending_all` is active."""


def now() -> str:
    """ISO 8601 in UTC, to the second: ``2026-01-31T23:59:59+00:00``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """
    The part of *environment*, usually ``os.environ``, that a child may inherit.

    A list of what is allowed, so that variables which programs read as arguments
    (``LLAMA_ARG_*``), proxies and tokens are not passed on.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or (name.startswith(KEPT_PREFIXES) and not is_secret(name))
    }


def is_secret(name: str) -> bool:
    """Whether a variable of that *name* most likely holds a secret."""
    return any(word in name.upper() for word in SECRET_WORDS)


def output_of(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """
    Run a program that answers quickly, such as ``--version``, to its end.

    Args:
        argv: Program and its arguments.
        timeout_s: How long it may take, in seconds.
        env: Its whole environment; by default the `clean` part of ours.

    Returns:
        Its exit status, and at most the first `OUTPUT_LIMIT_BYTES` of each stream.

    Raises:
        ToolFailed: If it cannot be started, or takes longer.
    """
    env = clean(os.environ) if env is None else env
    pipe = subprocess.PIPE
    with _started(argv, env=env, stdout=pipe, stderr=pipe) as child:
        kept = _read_all(child, until=time.monotonic() + timeout_s)
        if kept is None:
            raise ToolFailed(
                tool=argv[0],
                reason=f"gave no answer within {timeout_s:g} s",
                hint="Is the machine overloaded? Try the program by hand.",
            )
        stdout, stderr = (data.decode(errors="replace") for data in kept)
        return subprocess.CompletedProcess(argv, child.returncode, stdout, stderr)


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    file_limit_bytes: int | None = FILE_LIMIT_BYTES,
    heading: str = "",
) -> Iterator[Child]:
    """
    Start *argv*; stop its process group when the block ends, however it ends.

    The child has its own session, so that Ctrl-C reaches only this process, which
    chooses the order of events; no stdin; and a log file for its output, since a full
    pipe would block it. If this process is killed, the child is killed as well.

    Args:
        argv: Program, as an absolute path, and its arguments.
        env: The child's whole environment; nothing else is inherited.
        log: Receives stdout and stderr, interleaved. Replaced; shortened to its two
            ends when the child has ended.
        folder: Its working folder; None for ours.
        file_limit_bytes: Size from which writing to a file ends the child with
            SIGXFSZ; None for a child that writes large files.
        heading: What *log* begins with, before anything that the child writes.

    Yields:
        The child. It may exit on its own at any moment: poll it.

    Raises:
        FolderUnusable: If *log* cannot be written.
        ToolFailed: If it cannot be started, or if one of its group survives SIGKILL.
    """
    with (
        _log_file(log, heading) as output,
        _killed_with_us() as group_started,
        _started(
            argv,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            folder=folder,
            file_limit_bytes=file_limit_bytes,
        ) as child,
    ):
        group_started(child.pid)
        yield child


def ends_within(child: Child, limit_s: float) -> bool:
    """Whether *child* ends on its own before *limit_s* seconds are over."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(limit_s)
    return child.poll() is not None


def free_port(host: str) -> int:
    """A port of *host*, an address of this machine, that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def stop(child: Child) -> None:
    """
    Stop the child's process group by the signals of `GRACES_S`, one after the other.

    Returns as soon as the last process of the group has ended. SIGINT, SIGTERM or
    SIGHUP to us meanwhile advances to the next signal, and is delivered afterwards.

    Raises:
        ToolFailed: If one of the group survives SIGKILL.
    """
    try:
        end_group(child.pid, is_reaped=lambda: child.poll() is not None)
    finally:
        _running.discard(child)


@contextlib.contextmanager
def ending_all() -> Iterator[None]:
    """
    Stop the children of all threads; for the length of the block none can be started.

    The threads see their children end, or get a KeyboardInterrupt when they start one;
    they end in the block.

    Raises:
        ToolFailed: If one survives SIGKILL.
    """
    _are_ending.set()
    try:
        running_now = list(_running)
        for child in running_now:
            _signal(child.pid, signal.SIGINT)
        for child in running_now:
            stop(child)
        yield
    finally:
        _are_ending.clear()


def end_group(group: int, *, is_reaped: Callable[[], bool] = lambda: True) -> None:
    """
    Stop the process group *group* as `stop` does; it need not be a child of ours.

    Args:
        group: Pid of the process that leads it.
        is_reaped: Whether the leader's exit status has been collected, for a child of
            ours; that may be a moment after its process is gone.

    Raises:
        ToolFailed: If one of the group survives SIGKILL.
    """

    def is_gone() -> bool:
        return is_reaped() and not _has_members(group)

    with signals.held() as hold:
        for request, grace_s in GRACES_S:
            if is_gone():
                return
            arrived_before = len(hold.arrived)
            _signal(group, request)
            for _ in _naps(until=time.monotonic() + grace_s):
                is_hurried = len(hold.arrived) > arrived_before
                if is_gone() or (is_hurried and request != signal.SIGKILL):
                    break
        if not is_gone():
            raise ToolFailed(
                tool=f"process group {group}",
                reason="is still there after SIGKILL",
                hint=f"Look at it with: ps -o pid,stat,wchan,args -g {group}",
            )


@contextlib.contextmanager
def _started(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: int | BinaryIO,
    stderr: int | BinaryIO,
    folder: Path | None = None,
    file_limit_bytes: int | None = None,
) -> Iterator[Child]:
    with contextlib.ExitStack() as stack:
        # A signal after the start and before the callback would leave an orphan.
        hold = stack.enter_context(signals.held())
        try:
            with _starting, _limited_files(file_limit_bytes):
                child = subprocess.Popen(
                    argv,
                    env=env,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
            raise ToolFailed(
                tool=argv[0],
                reason=f"cannot be started: {error}",
                hint=hint_for(error) or f"Try it by hand: {argv[0]} --version",
            ) from error
        _running.add(child)
        stack.callback(stop, child)
        hold.release()
        if _are_ending.is_set():
            raise KeyboardInterrupt
        yield child


@contextlib.contextmanager
def _limited_files(limit_bytes: int | None) -> Iterator[None]:
    """Lower the size that files may have, for children that start in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes is None or soft != resource.RLIM_INFINITY:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


_WATCH = 'read -r group && { read -r done || kill -s KILL -- "-$group"; }'
"""
For a shell: kill the process group that the first line of stdin names, if stdin ends
before a second line.
"""


@contextlib.contextmanager
def _killed_with_us() -> Iterator[Callable[[int], None]]:
    """
    Have a process group killed if this process dies inside of the block.

    A shell waits on a pipe that the kernel closes then. Linux has PR_SET_PDEATHSIG for
    this, but it spares the rest of a group, fires when the *thread* that started the
    child ends, and needs code between fork and exec, which is not safe with threads.
    SIGKILL between the start of a child and the line that names it leaves the child to
    the next command, which finds it by its note.

    Yields:
        Takes the pid of the process that leads the group.
    """
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            env={},
            cwd="/",
            bufsize=0,
            stdin=pipe,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
        )
    except OSError:
        # Only a precaution: the note of `orphans` is left for the next command.
        yield lambda _: None
        return

    def tell(line: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            shell.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]

    with shell:
        try:
            yield tell
        finally:
            tell("done")


@contextlib.contextmanager
def _log_file(log: Path, heading: str) -> Iterator[BinaryIO]:
    """
    *log*, created anew with *heading*, for a child to write to; shortened after the
    block.

    Raises:
        FolderUnusable: If it cannot be written.
    """
    try:
        output = files.create(log)
    except OSError as error:
        raise FolderUnusable(folder=log, reason=files.reason_of(error)) from error
    # The child writes behind it: both share the place in the file. On a full disk it
    # runs without a log.
    with contextlib.suppress(OSError):
        os.write(output.fileno(), os.fsencode(heading))
    try:
        with output:
            yield output
    finally:
        with contextlib.suppress(OSError):
            _shorten(log)


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
                # Read on beyond the limit: a full pipe would block the child.
                key.data.extend(chunk[: OUTPUT_LIMIT_BYTES - len(key.data)])
                if not chunk:
                    selector.unregister(key.fileobj)
            if not ready and child.poll() is not None:
                break  # a child of the child still holds the pipe
    return bytes(kept[0]), bytes(kept[1])


def _signal(group: int, request: signal.Signals) -> None:
    # SIGCONT: a suspended process does not handle SIGINT and SIGTERM.
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
        pass  # what macOS reports for a group of zombies
    return any(_runs_in(group, pid) for pid in psutil.pids())


def _runs_in(group: int, pid: int) -> bool:
    with contextlib.suppress(OSError, psutil.Error):
        if os.getpgid(pid) == group:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _naps(*, until: float) -> Iterator[float]:
    """Sleep, ever longer, between polls, until the monotonic time *until*."""
    nap_s = SHORTEST_NAP_S
    while time.monotonic() < until:
        time.sleep(nap_s)
        yield nap_s
        nap_s = min(2 * nap_s, LONGEST_NAP_S)


@atexit.register
def _kill_the_rest() -> None:
    """Kill children whose `finally` a signal at the wrong moment has skipped."""
    for child in _running:
        _signal(child.pid, signal.SIGKILL)
