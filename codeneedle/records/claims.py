"""
Who measures which cell, where several processes or hosts share a run folder: claim
files, and heartbeats of those who claim.

A claim is created, never overwritten, so that of several who try exactly one succeeds.
Each process shows that it lives by touching a file of its own; the others watch it for
changes for a while by their own clock. Clocks of two hosts are never compared.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from codeneedle.system.files import read_note, reason_of
from codeneedle.system.orphans import Process, this_host, this_process
from codeneedle.system.processes import AwakeClock

HEARTBEAT_S = 10.0
"""Between two touches of the file of a process that lives."""

STALE_S = 120.0
"""
An owner whose file has not changed for so long is gone.

Twelve heartbeats: a network share may show an old state for 60 s (``acregmax``, nfs(5))
and may take as long to write.
"""

LONGEST_GLANCE_S = 15.0
"""A longer gap between two looks at an owner means that this process was suspended."""

_SUFFIX = "claim"


class Owner(msgspec.Struct, frozen=True):
    """
    What the file of a process says, for people and for processes of the same host.

    Attributes:
        host: As of `this_host`.
        process: The process.
    """

    host: str
    process: Process

    def is_known_to_be_gone(self) -> bool:
        """Whether it ran on this host, and does not run any more."""
        return self.host == this_host() and not self.process.is_alive()


@dataclass(frozen=True, slots=True)
class Claim:
    """
    A cell that this process may measure.

    Attributes:
        path: Its file; None where this process has the folder to itself.
        lower: Files of former owners, who are gone.
    """

    path: Path | None = None
    lower: tuple[Path, ...] = ()

    def is_mine(self) -> bool:
        """Whether nobody has taken it over, as after a long suspension."""
        if self.path is None:
            return True
        return os.path.lexists(self.path) and not os.path.lexists(_after(self.path))

    def remove(self) -> None:
        """
        Remove it, once the record of its cell is on disk.

        A cell that is left unfinished stays claimed: whoever comes next has to take
        it over, so that numbers of claims never begin anew.
        """
        for path in (*self.lower, self.path):
            with contextlib.suppress(OSError):
                if path is not None:
                    path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Seen:
    """What was seen of an owner: its last change, and when by our clock."""

    change: int
    at_s: float


@dataclass(slots=True)
class Claims:
    """
    The claims of this process in one folder; a context manager that keeps it alive.

    Attributes:
        folder: Where records and claims are: a new file there makes a network share
            look anew for the others.
        clock: Seconds while this process is awake.
    """

    folder: Path
    clock: Callable[[], float] = field(
        default_factory=lambda: AwakeClock(longest_s=LONGEST_GLANCE_S)
    )
    _name: str = field(default_factory=lambda: secrets.token_hex(8))
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _mine: dict[str, Claim] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """
        Show this process, and go on to show that it lives.

        Raises:
            OSError: If the folder cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        owner = Owner(host=this_host(), process=this_process())
        with self._file(self._name).open("xb") as file:
            file.write(msgspec.json.encode(owner))
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it; what is still claimed may be taken over at once."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._file(self._name).unlink(missing_ok=True)

    def take(self, name: str) -> Claim | None:
        """
        Claim *name* for this process; None if another process, which lives, has it.

        Args:
            name: Of a cell and a probe; without slashes.

        Raises:
            OSError: If the folder cannot be written to.
        """
        mine = self._mine.get(name)
        if mine is not None and mine.is_mine():
            return mine
        former = list(self._of(name))
        if former and not self._is_gone(former[-1]):
            return None
        path = self.folder / f"{name}.{_SUFFIX}-{len(former) + 1}"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self._name)
        except FileExistsError:
            return None
        self._mine[name] = Claim(path, tuple(former))
        return self._mine[name]

    def _of(self, name: str) -> Iterator[Path]:
        """The claims of *name* in order; the last one counts."""
        path = self.folder / f"{name}.{_SUFFIX}-1"
        while os.path.lexists(path):
            yield path
            path = _after(path)

    def _is_gone(self, claim: Path) -> bool:
        """Whether the owner of *claim* has ended, or has not changed for long."""
        try:
            name = claim.read_text(encoding="utf-8")
        except (OSError, ValueError):
            name = ""
        if name == self._name:
            return True
        # Its owner may be about to write the name: watched as one without a file.
        path = self._file(name) if _is_name(name) else claim
        change = _change(path)
        if change is None or (
            (owner := read_note(path, Owner)) and owner.is_known_to_be_gone()
        ):
            return True
        now_s = self.clock()
        seen = self._seen.setdefault(path.name, _Seen(change, now_s))
        if seen.change != change:
            seen.change, seen.at_s = change, now_s
        return now_s - seen.at_s > STALE_S

    def _beat(self) -> None:
        path = self._file(self._name)
        while not self._ended.wait(HEARTBEAT_S):
            # Times alone: they take no space on a disk that is full.
            with contextlib.suppress(OSError):
                os.utime(path)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.owner"


def _is_name(text: str) -> bool:
    return len(text) == 16 and set(text) <= set("0123456789abcdef")  # noqa: PLR2004


def _after(path: Path) -> Path:
    """The claim that takes over from the one at *path*."""
    stem, _, number = path.name.rpartition("-")
    return path.with_name(f"{stem}-{int(number) + 1}")


def _change(path: Path) -> int | None:
    """The time of the last change, only good for comparing; None if there is none."""
    try:
        # Opened: only that makes a network share ask its server.
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError as error:
        # A share that does not answer is no sign of death.
        return hash(reason_of(error))
