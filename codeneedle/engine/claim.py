"""A note in the run folder of the server that lives, so that no orphan outlives us."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from codeneedle.errors import MachineError
from codeneedle.process import end_group

FILE = "server.json"


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
    A server that we started, or are about to.

    Attributes:
        alias: Stands on its command line; no other server ever had it.
        port: Where it listens.
        pid: Its process, which leads its group; None until it is known.
        born: When that process started, by the clock of `started_at`.
    """

    alias: str
    port: int
    pid: int | None = None
    born: float | None = None

    def process(self) -> int | None:
        """Pid of the server if it lives and is provably the one claimed."""
        if self.pid is None:
            # We were killed between its start and this note. The alias is random,
            # so whoever bears it is ours.
            return next(filter(self._is_borne_by, psutil.pids()), None)
        is_same = started_at(self.pid) == self.born
        return self.pid if is_same and self._is_borne_by(self.pid) else None

    def _is_borne_by(self, pid: int) -> bool:
        try:
            return (
                self.alias in psutil.Process(pid).cmdline() and os.getpgid(pid) == pid
            )
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
    claimant = Claimant(folder, Claim(alias=alias, port=port))
    claimant.write()
    try:
        yield claimant
    finally:
        claimant.forget()


class Claimant:
    """Writes the note, and takes it away."""

    def __init__(self, folder: Path | None, claim: Claim) -> None:
        self._file = folder / FILE if folder else None
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
        draft = self._file.with_name(f"{FILE}.draft")
        try:
            draft.write_bytes(msgspec.json.encode(self._claim))
            draft.replace(self._file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unclaimable(file=self._file, reason=reason) from error

    def forget(self) -> None:
        """Take the note away, unless its server still lives."""
        if self._file is not None and self._claim.process() is None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def end_orphan(folder: Path) -> Claim | None:
    """
    End the server that an earlier start left behind, if it is provably ours.

    Pid, start time and alias must all be those of the note: a process that got
    the same pid later is left alone, and only the note goes.

    Returns:
        The claim of the server that was ended; None if there was none.

    Raises:
        ChildWontStop: If it survives even SIGKILL.
    """
    file = folder / FILE
    claim = _read(file)
    pid = claim.process() if claim else None
    if pid is not None:
        end_group(pid)
    with contextlib.suppress(OSError):
        file.unlink()
    return replace(claim, pid=pid) if claim and pid is not None else None


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
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return None


def _read(file: Path) -> Claim | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Claim)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
