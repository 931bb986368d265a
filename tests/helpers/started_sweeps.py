"""The program as a child process, with faults in it or in what it starts; watched."""

import contextlib
import itertools
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import injected
import msgspec
import psutil
import pytest
from calls import VARIABLES, called
from injection_points import place
from injections import (
    BRIEF,
    Folder,
    Injection,
    error_line,
    processes_in,
    put_corpus,
    statuses,
)

from codeneedle.system.files import cache_folder
from codeneedle.system.orphans import ChildNote

INJECTED = Path(__file__).with_name("injected.py")
RUN = Path("sweeps/tiny/needle-nano")

PATIENCE_S = 300.0
"""Longer than any command here takes, whatever else the machine does."""

ONE = ("--corpus", "tiny", "--context", "2048", "--types", "q8_0")
"""A single cell."""

TWO = (*ONE[:-2], "--k-types", "q8_0", "--v-types", "q8_0,q4_0")
"""Two cells."""

DIVERGENCE = (
    *("--probe", "divergence"),
    *("--divergence-context", "256", "--chunks", "2"),
)
THROUGHPUT = ("--probe", "throughput", "--depths", "0", "--repetitions", "1")


# --- faults, as `injected` takes them


def at(point, call, action, **facts):
    """Do *action* when the program comes to *point* for the *call*-th time."""
    return ("at", {"point": point, "call": call, "action": action, **facts})


def signal_at(point, call, number, *, times=1):
    """The program sends a signal to itself at such a call, once or some times."""
    return at(point, call, "send", number=int(number), times=times)


def impatience(silence_s, load_s):
    """Short timeouts, in seconds."""
    return ("impatient", {"silence_s": silence_s, "load_s": load_s})


# --- the program


def command(*arguments, faults=()):
    """The argv of ``codeneedle ARGUMENTS`` with *faults* in its own process."""
    words = [str(word) for word in arguments]
    if not faults:
        return [sys.executable, "-m", "codeneedle", *words]
    return [sys.executable, str(INJECTED), json.dumps(faults), *words]


def environment(variables=None):
    """Variables of the program: no colours, a fixed width, and *variables*."""
    return os.environ | VARIABLES | (variables or {})


@contextlib.contextmanager
def going(folder, *arguments, faults=(), variables=None, before=None):
    """
    The program under way in *folder*, its output in one pipe, without a terminal.

    Killed at the end of the block; what it started is for the test to look at.
    *before* is called in the child before the program begins.
    """

    def prepare():
        # A background job of a shell ignores SIGINT, and so would the program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if before:
            before()

    with subprocess.Popen(
        command(*arguments, faults=faults),
        cwd=folder,
        env=environment(variables),
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


def ended(folder, *arguments, **changes):
    """Exit code and output of the program, once it has ended."""
    with going(folder, *arguments, **changes) as program:
        said, _ = program.communicate(timeout=PATIENCE_S)
        return program.returncode, said


def run(folder, *arguments, faults=(), variables=None, **streams):
    """The program in *folder* to its end, with stdout and stderr apart."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(
        command(*arguments, faults=faults),
        cwd=folder,
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE_S,
        **pipes,
    )


HARMLESS = re.compile(rb"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[12]?[AK]|\x1b\[1G")
"""What rich says to a terminal: colours, the cursor, and lines to write again."""


def on_terminal(folder, *arguments, interrupt_at=None):
    """Exit code and raw bytes of a command; at *interrupt_at* it gets a SIGINT."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = bytearray()
    with contextlib.suppress(OSError):  # the end of a terminal on Linux
        while chunk := os.read(ours, 1 << 16):
            seen += chunk
            if interrupt_at and interrupt_at in seen:
                child.send_signal(signal.SIGINT)
                interrupt_at = None
    os.close(ours)
    code = child.wait(PATIENCE_S)
    assert b"Traceback" not in seen, seen.decode(errors="replace")
    return code, bytes(seen)


def controls(raw):
    """What of *raw* bytes moves or hides something, and is not rich's own."""
    text = HARMLESS.sub(b"", raw).decode()
    bad = "\x1b\x9b\x07\x08\x0b\x0c\x00\u202e\u2066\u200f\u2028\ufeff"
    return sorted({found for found in text if found in bad})


def impatient(folder, *arguments, silence_s=1.0, load_s=2.0, cells=None):
    """`called` with short timeouts; of servers those of *cells* alone, if given."""
    with pytest.MonkeyPatch.context() as patch:
        put = lambda point, value: patch.setattr(*place(point), value)  # noqa: E731
        patch.setattr(injected, "put", put)
        injected.impatient(silence_s, load_s, cells)
        return called(folder, *arguments)


def struck(folder, arguments, name, number, delay_s):
    """
    What a sweep said whose first child called *name* that computes got a signal.

    That is sent after *delay_s*; None if the child had ended by then.
    """
    is_struck = False
    pids = []
    faults = [impatience(silence_s=3.0, load_s=6.0)]
    with going(folder, *arguments, faults=faults) as sweep:

        def computes():
            """Whether a child of that name is there by now."""
            pid = _computing(folder, name)
            pids.extend([pid] if pid else [])
            return pid

        if until(computes, unless=lambda: sweep.poll() is not None):
            time.sleep(delay_s)  # the moment is chance
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[0], number)
                is_struck = True
        said, _ = sweep.communicate(timeout=PATIENCE_S)
    done = subprocess.CompletedProcess(arguments, sweep.returncode, said)
    return done if is_struck else None


def _computing(folder, name):
    """The pid of a program called *name* that has a cell's cache types, in *folder*."""
    for process in psutil.process_iter(["name", "cmdline"]):
        is_cell = "--cache-type-k" in (process.info["cmdline"] or ())
        with contextlib.suppress(psutil.Error):
            is_one = process.info["name"] == name and is_cell
            if is_one and process.cwd() == str(folder):
                return process.pid
    return None


SHORTEST_NAP_S, LONGEST_NAP_S = 0.002, 0.02


def until(is_so, *, unless):
    """
    Wait for *is_so*; whether it came before *unless* did.

    Half of the time is left to what is waited for: a look may take a core.
    """
    began = looked = time.monotonic()
    while not is_so():
        if unless():
            return False
        now = time.monotonic()
        assert now < began + PATIENCE_S, "waited in vain"
        time.sleep(min(max(SHORTEST_NAP_S, now - looked), LONGEST_NAP_S))
        looked = time.monotonic()
    return True


# --- what it left, and what it said


def running_child(folder, program="llama-server"):
    """Pid, alias and port of a noted child that works in *folder*; empty if none."""
    for file in (cache_folder() / "running").glob(f"{program}.*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError, psutil.Error):
            note = msgspec.json.decode(file.read_bytes(), type=ChildNote)
            for pid in set(note.find_marked_groups()) & set(processes_in(folder)):
                argv = psutil.Process(pid).cmdline()
                options = dict(itertools.pairwise(argv))
                named = {key: options.get(f"--{key}") for key in ("alias", "port")}
                return {"pid": pid, **named}
    return {}


def unwatch(sweep):
    """End the shells that would kill the servers of *sweep* together with it."""
    for child in psutil.Process(sweep.pid).children():
        if child.name() in {"sh", "dash", "bash"}:
            child.kill()


def record(folder, pair, probe="recall"):
    """What is stored of a cell; None if nothing is."""
    file = folder / RUN / "cells" / f"{pair}.{probe}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def problem(stored):
    """What a user is told of a cell without numbers; empty if it has finished."""
    if stored["status"] == "finished":
        return ""
    return f"{stored['status']}: {stored['reason']}"


def alive(pids):
    """Those of *pids* that still run; zombies do not."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def is_free(port):
    """Whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def is_clean(said):
    """Whether *said* holds nothing for programmers."""
    return "Traceback" not in said and "Exception ignored" not in said


def told(said):
    """The error in *said*, or its last line."""
    assert is_clean(said), said
    return error_line(said)


class Series:
    """A sweep that is ended in many ways, and started again each time."""

    functions = 5  # as many as make two chunks of 256 tokens

    def __init__(self, folder: Folder, *arguments: str) -> None:
        put_corpus(folder.path, functions=self.functions, of=BRIEF)
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
        if port := running_child(self.path).get("port"):
            self.ports.add(int(port))

    def injection(self, fault: str, said: str) -> Injection:
        """
        What a start cost that said *said*.

        It has to end orphans of earlier starts by the time it fits the corpus.
        """
        left = 0
        if "fitting the corpus" in said:
            left = len(alive(self.orphans))
            self.orphans = set()
        note = re.search(r"note: (ended a .*) that was left behind", said)
        aftermath = replace(self.folder.aftermath(), processes_left=left)
        saw = note[1] if note else ""
        return Injection(fault=fault, saw=saw, aftermath=aftermath)

    def complete(self) -> str:
        """The same command, to its end: all cells finished, nothing left running."""
        done = called(self.path, *self.arguments)
        said = done.stderr + done.stdout
        assert done.returncode == 0, said
        assert ["finished"] * self.cells == statuses(self.path)
        assert set() == alive(self.orphans)
        assert [] == processes_in(self.path)
        assert all(map(is_free, self.ports))
        assert not running_child(self.path)
        self.orphans = set()
        return said

    def anew(self) -> None:
        """Forget all records; the next start begins from nothing."""
        self.folder.finished.clear()
        shutil.rmtree(self.path / "sweeps", ignore_errors=True)
