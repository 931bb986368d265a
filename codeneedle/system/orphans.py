"""Notes on disk of running child processes, so that the next start can end orphans."""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from codeneedle.errors import MachineError
from codeneedle.system.processes import Child, end_group, running

FILE = "server.json"
"""The note of a server, in the run folder."""

TOOL_FILE = "tool.json"
"""The note of any other child that takes its time, beside its log."""

VARIABLE = "CODENEEDLE_CHILD"
"""Environment variable by which such a child is known: it has no alias."""

_Alias = Annotated[str, msgspec.Meta(pattern=r".\.[0-9a-f]{8}$")]
"""A name with a random end; a note with another one is not of our making."""

_Pid = Annotated[int, msgspec.Meta(gt=1, lt=1 << 31)]


class Unclaimable(MachineError):  # noqa: N818 - named after the fact
    """The run folder takes no file."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(
            f"{file} cannot be written: {reason}",
            hint="Is the disk full, or the folder gone or read-only?",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """
    A child that we started, or are about to.

    Attributes:
        alias: Stands on its command line or in `VARIABLE` of its environment; no
            other child ever had it.
        port: Where it listens; None for a child that does not.
        pid: Its process, which leads its group; None until it is known.
        born: When that process started, by the clock of `started_at`.
    """

    alias: _Alias
    port: int | None = None
    pid: _Pid | None = None
    born: float | None = None

    @property
    def what(self) -> str:
        """What it is, as a phrase."""
        return self.alias.rpartition(".")[0] if self.port is None else "server"

    def process(self) -> int | None:
        """Pid of the child if it lives and is provably the one claimed."""
        if self.pid is None:
            # We were killed between its start and this note. The alias is random,
            # so whoever bears it is ours.
            return next(filter(self._is_borne_by, psutil.pids()), None)
        is_same = started_at(self.pid) == self.born
        return self.pid if is_same and self._is_borne_by(self.pid) else None

    def _is_borne_by(self, pid: int) -> bool:
        try:
            # Never ourselves, whatever a note says.
            if pid == os.getpid() or os.getpgid(pid) != pid:
                return False
            process = psutil.Process(pid)
            if self.port is not None:
                return self.alias in process.cmdline()
            return process.environ().get(VARIABLE) == self.alias
        except (psutil.Error, OSError):
            return False


@contextlib.contextmanager
def claimed(folder: Path | None, *, alias: str, port: int) -> Iterator["Claimant"]:
    """
    Keep a note for the length of a block in which a server starts, lives and ends.

    It is written before the server starts, because we may be killed at any
    moment; and stays where it is should the server survive its block.

    Args:
        folder: Of the run; None to keep no note.
        alias: Name that no other server ever had.
        port: Where the server will listen.

    Raises:
        Unclaimable: If the note cannot be written.
    """
    file = folder / FILE if folder else None
    with _kept(file, Claim(alias=alias, port=port)) as claimant:
        yield claimant


@contextlib.contextmanager
def noted(argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Iterator[Child]:
    """
    A child as `process.running` has it, with a note beside its log while it lives.

    For children that are no servers and take their time: should we be killed, who
    comes next finds and ends them with `end_orphans`.

    Args:
        argv: Program, as an absolute path, and its arguments.
        env: The child's environment, but for `VARIABLE`.
        log: Receives its output. Overwritten.

    Raises:
        Unclaimable: If the note cannot be written.
        MachineError: Whatever `process.running` raises.
    """
    alias = f"{Path(argv[0]).name}.{secrets.token_hex(4)}"
    with (
        _kept(log.with_name(TOOL_FILE), Claim(alias=alias)) as claimant,
        running(argv, env={**env, VARIABLE: alias}, log=log) as child,
    ):
        claimant.note(child.pid)
        yield child


@contextlib.contextmanager
def _kept(file: Path | None, claim: Claim) -> Iterator["Claimant"]:
    claimant = Claimant(file, claim)
    claimant.write()
    try:
        yield claimant
    finally:
        claimant.forget()


class Claimant:
    """Writes the note, and takes it away."""

    def __init__(self, file: Path | None, claim: Claim) -> None:
        self._file = file
        self._claim = claim

    def note(self, pid: int) -> None:
        """
        Add the process that has started.

        Raises:
            Unclaimable: If the note cannot be written.
        """
        self._claim = replace(self._claim, pid=pid, born=started_at(pid))
        self.write()

    def write(self) -> None:
        """
        Write the note, whole or not at all.

        Raises:
            Unclaimable: If that fails.
        """
        if self._file is None:
            return
        draft = self._file.with_name(f"{self._file.name}.draft")
        try:
            draft.write_bytes(msgspec.json.encode(self._claim))
            draft.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            reason = error.strerror or str(error)
            raise Unclaimable(file=self._file, reason=reason) from error

    def forget(self) -> None:
        """Take the note away, unless its server still lives."""
        if self._file is not None and self._claim.process() is None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def end_orphans(folder: Path) -> list[Claim]:
    """
    End what an earlier start left behind in *folder*, if it is provably ours.

    Pid, start time and alias must all be those of a note: a process that got the
    same pid later is left alone, and only the note goes.

    Args:
        folder: Of a run, or where `noted` children keep their logs.

    Returns:
        The claims of what was ended.

    Raises:
        ChildWontStop: If something survives even SIGKILL.
    """
    files = (folder / FILE, folder / "logs" / TOOL_FILE, folder / TOOL_FILE)
    return [claim for file in files for claim in _ended(file)]


def _ended(file: Path) -> Iterator[Claim]:
    claim = _read(file)
    pid = claim.process() if claim else None
    if pid is not None:
        end_group(pid)
    with contextlib.suppress(OSError):
        file.unlink()
    if claim and pid is not None:
        yield replace(claim, pid=pid)


def started_at(pid: int) -> float | None:
    """
    When *pid* started, or None if there is none; only good for comparing.

    Linux: clock ticks since boot, field 22 of ``/proc/PID/stat`` (proc(5)), which
    do not change when the clock is set. Elsewhere seconds since the epoch, which
    the kernel notes at the start.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return float(stat.rpartition(")")[2].split()[19])
    with contextlib.suppress(psutil.Error, ValueError):
        return psutil.Process(pid).create_time()
    return None


def _read(file: Path) -> Claim | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Claim)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
