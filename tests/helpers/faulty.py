"""The program with a fault in its own process, and sweeps that are watched for it."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
from injections import Folder, Injection, error_line, processes_in, statuses

from codeneedle.system.files import cache_folder
from codeneedle.system.orphans import Note

RUN = Path("sweeps/tiny/needle-nano")

PATIENCE_S = 120.0
"""Nothing here takes longer, whatever the machine does beside it."""

SHORT = """\
[generate]
functions = 2
value_length = 2
name_length = 4
seed = 7
"""
"""A corpus of which a cell takes half a second."""

ONE = ("--corpus", "tiny", "--context", "2048", "--types", "q8_0")
"""A single cell."""

TWO = (*ONE[:-2], "--k-types", "q8_0", "--v-types", "q8_0,q4_0")
"""Two cells."""

_AT = """
def install():
    import importlib
    module, _, name = "{target}".rpartition(":")
    *path, name = name.split(".")
    of = importlib.import_module(module)
    for part in path:
        of = getattr(of, part)
    real, left = getattr(of, name), [{call}]
    def act():
{body}
    def wrapper(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            act()
        return real(*args, **kwargs)
    setattr(of, name, wrapper)
install()
"""

_SEND = """
import os, signal, threading, time
def send():
    for _ in range({times}):
        os.kill(os.getpid(), {number})
        time.sleep(0.15)
sender = threading.Thread(target=send, daemon=True)
sender.start()
sender.join(0.02)
"""

FILL = """
import contextlib
with contextlib.suppress(OSError), open("filler", "ab", buffering=0) as file:
    for size in (1 << 16, 1):
        with contextlib.suppress(OSError):
            while file.write(bytes(size)) == size:
                pass
"""
"""Leaves not a byte free where the program was started."""

KILL_AT = """
import importlib, os, pathlib, signal, subprocess
left = {call}
def point(before):
    global left
    left -= 1
    if not left:
        before()
        os.kill(os.getpid(), signal.SIGKILL)
def aimed(of, name, half=lambda *_: None):
    real = getattr(of, name)
    def wrapper(*args, **kwargs):
        point(lambda: half(*args))
        result = real(*args, **kwargs)
        point(lambda: None)
        return result
    setattr(of, name, wrapper)
def half_written(path, data):
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
def half_synced(handle):
    if os.path.isfile(f"/proc/self/fd/{{handle}}"):
        os.truncate(handle, os.fstat(handle).st_size // 2)
aimed(os, "fsync", half_synced)
aimed(pathlib.Path, "replace")
aimed(pathlib.Path, "write_bytes", half_written)
class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        point(lambda: None)
        super().__init__(*args, **kwargs)
        point(lambda: None)
subprocess.Popen = Popen
import codeneedle.process
codeneedle.system.processes.Child = Popen
"""
"""Kills itself at the *call*-th of all moments around writes and starts of children;
where it is in the middle of a write, half of that is on disk."""


def at(target: str, call: int, body: str) -> str:
    """A prelude that does *body* when *target* is called for the *call*-th time."""
    return _AT.format(target=target, call=call, body=textwrap.indent(body, " " * 8))


def signal_at(target: str, call: int, number: int, *, times: int = 1) -> str:
    """A prelude that sends a signal to itself, once or some times, at such a call."""
    return at(target, call, _SEND.format(number=int(number), times=times))


def command(*arguments: str, prelude: str = "") -> list[str]:
    """The argv of ``codeneedle ARGUMENTS``, after *prelude* in the same process."""
    if not prelude:
        return [sys.executable, "-m", "codeneedle", *arguments]
    program = f"{prelude}\nfrom codeneedle.__main__ import main\nmain()"
    return [sys.executable, "-c", program, *arguments]


@contextlib.contextmanager
def going(
    folder: Path,
    *arguments: str,
    prelude: str = "",
    variables: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """
    The program under way in *folder*, its output in one pipe, without a terminal.

    Killed at the end of the block; what it started is for the test to look at.
    """

    def prepare() -> None:
        # A job in the background of a shell has it ignored, and so would we.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if before:
            before()

    with subprocess.Popen(
        command(*arguments, prelude=prelude),
        cwd=folder,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | (variables or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509 - no threads here
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def ended(folder: Path, *arguments: str, **changes: object) -> tuple[int, str]:
    """Exit code and output of the program, once it is through."""
    with going(folder, *arguments, **changes) as program:  # type: ignore[arg-type]
        said, _ = program.communicate(timeout=PATIENCE_S)
        return program.returncode, said


def until(is_so: Callable[[], object], *, unless: Callable[[], object]) -> bool:
    """Wait for *is_so*; whether it came before *unless* did."""
    limit = time.monotonic() + PATIENCE_S
    while not is_so():
        if unless():
            return False
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.002)
    return True


def claim(folder: Path, program: str = "llama-server") -> dict[str, object]:
    """Pid, alias and port of a noted child that works in *folder*; empty if none."""
    for file in (cache_folder() / "running").glob(f"{program}.*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError, psutil.Error):
            note = msgspec.json.decode(file.read_bytes(), type=Note)
            if note.child and note.child.pid in processes_in(folder):
                argv = psutil.Process(note.child.pid).cmdline()
                options = dict(itertools.pairwise(argv))
                named = {key: options.get(f"--{key}") for key in ("alias", "port")}
                return {"pid": note.child.pid, **named}
    return {}


def unwatch(sweep: subprocess.Popen[str]) -> None:
    """End the shells that would kill the servers of *sweep* together with it."""
    for child in psutil.Process(sweep.pid).children():
        if child.name() in {"sh", "dash", "bash"}:
            child.kill()


def alive(pids: set[int]) -> set[int]:
    """Those of *pids* that still run; zombies do not."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def is_clean(said: str) -> bool:
    """Whether nothing in *said* is for programmers alone."""
    return "Traceback" not in said and "Exception ignored" not in said


class Series:
    """
    A sweep that is ended in many ways, and started again each time.

    Attributes:
        folder: Where it happens.
        arguments: Of the sweep.
        orphans: What outlived a start, and is for the next one to end.
        ports: Where servers listened.
    """

    def __init__(self, folder: Folder, *arguments: str) -> None:
        self.folder = folder
        self.path = folder.path
        self.arguments = ("sweep", *arguments)
        self.orphans: set[int] = set()
        self.ports: set[int] = set()
        self.cells = 1 if arguments == ONE else 2

    def note(self) -> None:
        """Take note of what has finished, what lives, and where it listens."""
        self.folder.look()
        self.orphans |= set(processes_in(self.path))
        if port := claim(self.path).get("port"):
            self.ports.add(int(str(port)))

    def injection(
        self, fault: str, said: str, *, group: str = "ourselves"
    ) -> Injection:
        """
        What a start has cost that said *said*.

        Orphans of earlier starts are its affair once it has come to the corpus.
        """
        left = 0
        if "fitting the corpus" in said:
            before = self.orphans
            left = len(alive(before))
            self.orphans = set()
        note = re.search(r"note: (ended a .*) that was left behind", said)
        aftermath = replace(self.folder.aftermath(), processes_left=left)
        saw = note[1] if note else ""
        return Injection(group=group, fault=fault, saw=saw, aftermath=aftermath)

    def complete(self) -> str:
        """The same command, to its end: all cells finished, nothing left running."""
        code, said = ended(self.path, *self.arguments)
        assert code == 0, said
        assert is_clean(said), said
        assert ["finished"] * self.cells == statuses(self.path)
        assert set() == alive(self.orphans)
        assert [] == processes_in(self.path)
        assert all(map(is_free, self.ports))
        assert not claim(self.path)
        self.orphans = set()
        return said

    def anew(self) -> None:
        """Forget all records; the next start begins from nothing."""
        self.folder.finished.clear()
        shutil.rmtree(self.path / "sweeps", ignore_errors=True)


def freeze(pid: int) -> None:
    """Stop *pid* where it is, so that it is still there when we look."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def told(said: str) -> str:
    """The error of *said*, or its last line."""
    assert is_clean(said), said
    return error_line(said)
