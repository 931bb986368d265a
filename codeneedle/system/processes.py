"""
Child processes: a clean environment, a session of their own, size-limited logs, and a
stop that reaches the whole process group, also where codeneedle is killed (SIGKILL).
"""

import atexit
import contextlib
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from codeneedle.errors import FolderUnusable, ToolFailed, hint_of_system_error
from codeneedle.system import files, signals
from codeneedle.system.inherited_variables import inherited_variables

Child = subprocess.Popen[bytes]

GRACES_S: tuple[tuple[signal.Signals, float], ...] = (
    # After an answer that was cut off, b11434 hangs on one SIGINT in twelve.
    (signal.SIGINT, 3.0),
    (signal.SIGTERM, 5.0),
    (signal.SIGKILL, 30.0),  # a driver that frees a GPU's memory cannot be hurried
)
"""Signals that stop a process group, and how long each may take, in seconds."""

SHORTEST_NAP_S, LONGEST_NAP_S = 0.001, 0.05
"""Pauses between polls of a child that ends: doubled from the first to the second."""

OUTPUT_LIMIT_BYTES = 4 << 20
"""Limit of `run_for_output` for a stream; llama-server's ``--help`` has 60 KB."""

FILE_LIMIT_BYTES = 2 << 30
"""
Limit of the files that a child writes, its log among them.

Drivers append to caches of compiled kernels of up to 1 GiB.
"""

END_BYTES = 1 << 20
"""Bytes that are kept of the start and of the end of a long log."""

Output = subprocess.CompletedProcess[str]
"""How a program ended, and what it wrote."""

QUIET_S = 0.5
"""Pause in what a program writes after which `run_until_last_words` ends."""

OMISSION = b"\n[...]\n"
"""Replaces the middle of a long log."""

_running: set[Child] = set()
"""Children not yet stopped, for `ending_all_children` and `_kill_children_at_exit`."""

_starting = threading.Lock()
"""Held while a child starts: `_limiting_file_sizes` changes the whole process."""

_are_ending = threading.Event()
"""Set while `ending_all_children` is active."""


def run_for_output(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Output:
    """
    Run a command that ends soon, such as ``--version``.

    Args:
        argv: Program and its arguments.
        timeout_s: Limit of its time, in seconds.
        env: Its whole environment; by default what children inherit.

    Returns:
        Its exit status, and at most the first `OUTPUT_LIMIT_BYTES` of each stream.

    Raises:
        ToolFailed: If it cannot be started, or takes longer.
    """
    env = inherited_variables() if env is None else env
    pipe = subprocess.PIPE
    with _starting_child(argv, env=env, stdout=pipe, stderr=pipe) as child:
        kept = {
            stream: bytearray() for stream in (child.stdout, child.stderr) if stream
        }
        _read_all(child, kept, until=time.monotonic() + timeout_s, limit_s=timeout_s)
        return _output_of(child, *kept.values())


def run_until_last_words(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str],
    last_words: bytes,
) -> Output:
    """
    `run_for_output` for a program that may end before its log is written.

    llama.cpp writes its log from a thread of its own, and what is left in its queue is
    lost when the program ends (llama.cpp #22142). Here its stdout is a pipe that is
    full, so that it waits at its end until *last_words* stand in its stderr, or nothing
    has been written there for `QUIET_S`. One that is aborted does not wait.

    Args:
        argv: Program and its arguments; it must write to stdout at its end alone.
        timeout_s: Limit of its time, in seconds.
        env: Its whole environment.
        last_words: What the log ends with, if it is whole.

    Raises:
        ToolFailed: If it cannot be started, or takes longer.
    """
    until = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        reading, writing = (
            stack.enter_context(open(end, mode, buffering=0))  # noqa: PTH123 - not a path
            for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        _fill_pipe(writing.fileno())
        child = stack.enter_context(
            _starting_child(argv, env=env, stdout=writing, stderr=subprocess.PIPE)
        )
        writing.close()
        kept = {stream: bytearray() for stream in (reading, child.stderr) if stream}
        _read_until_words(last_words, *list(kept.items())[-1], until=until)
        _read_all(child, kept, until=until, limit_s=timeout_s)
        stdout, stderr = kept.values()
        return _output_of(child, stdout.lstrip(b"\0"), stderr)


def _read_until_words(
    words: bytes, pipe: IO[bytes], kept: bytearray, *, until: float
) -> None:
    """Add what comes by *pipe* to *kept*: up to *words*, a pause or the end."""
    while words not in kept:
        now = time.monotonic()
        pause_s = min(until - now, QUIET_S) if kept else until - now
        if pause_s <= 0 or not select.select([pipe], [], [], pause_s)[0]:
            return
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            return
        kept.extend(chunk[: OUTPUT_LIMIT_BYTES - len(kept)])


def _fill_pipe(pipe: int) -> None:
    """Write NULs to *pipe* until it takes no more."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(1 << 12))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(1))
    os.set_blocking(pipe, True)


def _output_of(
    child: Child, stdout: bytes | bytearray, stderr: bytes | bytearray
) -> Output:
    said, told = (data.decode(errors="replace") for data in (stdout, stderr))
    return subprocess.CompletedProcess(child.args, child.returncode, said, told)


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

    The child has a session of its own, so that Ctrl-C reaches this process alone; no
    stdin; and a log file for its output, since a full pipe would block it. If this
    process is killed, the child is killed as well.

    Args:
        argv: Program, as an absolute path, and its arguments.
        env: The child's whole environment; nothing else is inherited.
        log: File for stdout and stderr, interleaved; replaced, and shortened to its
            two ends once the child has ended.
        folder: Its working folder; None for ours.
        file_limit_bytes: Size of a file at which SIGXFSZ ends the child; None for no
            limit.
        heading: Beginning of *log*, before the output of the child.

    Yields:
        The child. It may exit on its own at any moment: poll it.

    Raises:
        FolderUnusable: If *log* cannot be written.
        ToolFailed: If it cannot be started, or if one of its group survives SIGKILL.
    """
    with (
        _writing_then_shortening_log(log, heading) as output,
        _killing_group_if_we_die() as group_started,
        _starting_child(
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
    """Whether *child* ends by itself in *limit_s* seconds; 0 asks if it has."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(limit_s)
    return child.poll() is not None


def free_port(host: str) -> int:
    """A port of *host*, an address of this machine, that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def stop_child_group(child: Child) -> None:
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
def ending_all_children() -> Iterator[None]:
    """
    Stop the children of all threads; in the block, none can be started.

    A thread that starts one gets a KeyboardInterrupt. The block waits for the threads.

    Raises:
        ToolFailed: If one survives SIGKILL.
    """
    _are_ending.set()
    try:
        running_now = list(_running)
        for child in running_now:
            _signal_group(child.pid, signal.SIGINT)
        for child in running_now:
            stop_child_group(child)
        yield
    finally:
        _are_ending.clear()


def end_group(group: int, *, is_reaped: Callable[[], bool] = lambda: True) -> None:
    """
    Stop the process group *group*, of a child or not, as `stop_child_group` does.

    Args:
        group: Pid of the process that leads it.
        is_reaped: Whether the exit status of a child of ours has been collected.

    Raises:
        ToolFailed: If one of the group survives SIGKILL.
    """

    def is_gone() -> bool:
        return is_reaped() and not _has_members(group)

    with signals.holding_signals() as hold:
        for request, grace_s in GRACES_S:
            if is_gone():
                return
            arrived_before = len(hold.arrived)
            _signal_group(group, request)
            for _ in _sleep_between_polls(until=time.monotonic() + grace_s):
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
def _starting_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    folder: Path | None = None,
    file_limit_bytes: int | None = None,
) -> Iterator[Child]:
    """
    A child that is started now, and stopped with its group behind the block.

    In `ending_all_children` it is stopped at once, by a KeyboardInterrupt.
    """
    with contextlib.ExitStack() as stack:
        # A signal after the start and before the callback would leave an orphan.
        hold = stack.enter_context(signals.holding_signals())
        try:
            with _starting, _limiting_file_sizes(file_limit_bytes):
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
                hint=hint_of_system_error(error)
                or f"Try it by hand: {argv[0]} --version",
            ) from error
        _running.add(child)
        stack.callback(stop_child_group, child)
        hold.release()
        if _are_ending.is_set():
            raise KeyboardInterrupt
        yield child


@contextlib.contextmanager
def _limiting_file_sizes(limit_bytes: int | None) -> Iterator[None]:
    """
    Lower the size that files may have, for children that start in the block.

    They leave no core dumps, which may be as large as a model, in any case.
    """
    file, core = resource.RLIMIT_FSIZE, resource.RLIMIT_CORE
    before = {limit: resource.getrlimit(limit) for limit in (file, core)}
    chosen = {core: 0}
    if limit_bytes is not None and before[file][0] == resource.RLIM_INFINITY:
        chosen[file] = limit_bytes
    for limit, size_bytes in chosen.items():
        resource.setrlimit(limit, (size_bytes, before[limit][1]))
    try:
        yield
    finally:
        for limit in chosen:
            resource.setrlimit(limit, before[limit])


_WATCH = 'read -r group && { read -r done || kill -s KILL -- "-$group"; }'
"""
For a shell: kill the process group that the first line of stdin names, if stdin ends
before a second line.
"""


@contextlib.contextmanager
def _killing_group_if_we_die() -> Iterator[Callable[[int], None]]:
    """
    Have a process group killed if this process dies inside of the block.

    A shell waits on a pipe that the kernel closes then. PR_SET_PDEATHSIG of Linux
    spares the rest of a group, fires when the *thread* that started the child ends, and
    needs code between fork and exec, which is not safe with threads. A child that is
    started right before a SIGKILL is found by its note, see `orphans`.

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
        # The next command finds the child by its note, see `orphans`.
        yield lambda _: None
        return

    def send(line: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            shell.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]

    with shell:
        try:
            yield send
        finally:
            send("done")


@contextlib.contextmanager
def _writing_then_shortening_log(log: Path, heading: str) -> Iterator[IO[bytes]]:
    """
    *log*, created anew with *heading*, for a child to write to; shortened after the
    block.

    Raises:
        FolderUnusable: If it cannot be written.
    """
    try:
        output = files.replace_with_empty_file(log)
    except OSError as error:
        raise FolderUnusable(folder=log, reason=files.reason_of(error)) from error
    # On a full disk the child runs without a log.
    with contextlib.suppress(OSError):
        os.write(output.fileno(), os.fsencode(heading))
    try:
        with output:
            yield output
    finally:
        with contextlib.suppress(OSError):
            _shorten_log(log)


def _shorten_log(log: Path) -> None:
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


def _read_all(
    child: Child, kept: Mapping[IO[bytes], bytearray], *, until: float, limit_s: float
) -> None:
    """
    Add what *child* writes until it ends to what is *kept* of its pipes.

    Raises:
        ToolFailed: If that takes until the monotonic time *until*, *limit_s* in all.
    """
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for pipe, buffer in kept.items():
            stack.callback(pipe.close)
            selector.register(pipe, selectors.EVENT_READ, buffer)
        while selector.get_map() or child.poll() is None:
            if time.monotonic() > until:
                raise ToolFailed(
                    tool=str(child.args[0]),  # type: ignore[index]
                    reason=f"gave no answer within {limit_s:g} s",
                    hint="Is the machine overloaded? Try the program by hand.",
                )
            ready = selector.select(LONGEST_NAP_S)
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                # Read on beyond the limit: a full pipe would block the child.
                key.data.extend(chunk[: OUTPUT_LIMIT_BYTES - len(key.data)])
                if not chunk:
                    selector.unregister(key.fileobj)
            if not ready and child.poll() is not None:
                break  # a child of the child still holds the pipe


def _signal_group(group: int, request: signal.Signals) -> None:
    """Send *request* to *group*, and let suspended processes go on to handle it."""
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
    return any(True for _ in group_members(group))


def is_suspended(pid: int) -> bool:
    """Whether the process *pid* is stopped: it does not run until SIGCONT."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def group_members(group: int) -> Iterator[int]:
    """Pids of the process group *group*, without zombies."""
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(pid) != group:
                continue
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                yield pid


def pids_of_tree_and_group(pid: int) -> list[int]:
    """*pid*, its process group, and all that it has started, sorted."""
    found = {pid, *group_members(pid)}
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        found |= {child.pid for child in children}
    return sorted(found)


def port_is_listened_on(pids: Iterable[int], port: int) -> bool | None:
    """Whether one of *pids* listens on *port*; None where the system does not tell."""
    try:
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for pid in pids
            for connection in psutil.Process(pid).net_connections(kind="tcp")
        )
    except (psutil.Error, OSError):
        return None


def command_line_of(pid: int) -> list[str]:
    """The command line of *pid*; empty if it is gone."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).cmdline()
    return []


def program_of(pid: int) -> Path | None:
    """The file that *pid* runs; None if that is unknown."""
    with contextlib.suppress(psutil.Error, OSError):
        path = psutil.Process(pid).exe()
        return Path(path) if path else None
    return None


def mapped_files(pid: int) -> set[Path]:
    """The files that *pid* has mapped, its libraries among them; none off Linux."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        names = (line.split(maxsplit=5)[5:] for line in lines)
        return {Path(name[0]) for name in names if name and name[0].startswith("/")}
    return set()


def _sleep_between_polls(*, until: float) -> Iterator[float]:
    """Sleep, ever longer, between polls, until the monotonic time *until*."""
    nap_s = SHORTEST_NAP_S
    while time.monotonic() < until:
        time.sleep(nap_s)
        yield nap_s
        nap_s = min(2 * nap_s, LONGEST_NAP_S)


@atexit.register
def _kill_children_at_exit() -> None:
    """Kill children whose `finally` a signal at the wrong moment has skipped."""
    for child in _running:
        _signal_group(child.pid, signal.SIGKILL)
