"""
Runs servers and tools with a note in the cache folder, by which a later command finds
and ends what is left of them.
"""

import contextlib
import functools
import os
import platform
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from codeneedle.system.files import (
    cache_folder,
    read_json_or_none,
    remove_private_folders,
    write_json_if_possible,
)
from codeneedle.system.processes import (
    FILE_LIMIT_BYTES,
    Child,
    end_group,
    running,
)

VARIABLE = "CODENEEDLE_CHILD"
"""Environment variable that holds a child's mark."""

POLL_S = 0.25
"""Between two checks of a program's files; checks disturb measurements."""

PASSES = 3
"""Searches for marked processes: one that ends may start others."""

_SUBCOMMAND = re.compile(r"[a-z]+(-[a-z]+)*")
"""A first argument that says what a program is to be, and no option or value."""

_Mark = Annotated[str, msgspec.Meta(pattern=r"^[^/]+\.[0-9a-f]{8}$")]
"""Name of a program, and random digits: no other process has the same."""

_Pid = Annotated[int, msgspec.Meta(gt=1, lt=1 << 31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process; a later one with the same pid differs."""

    pid: _Pid  # its number
    started: float  # its start; see `start_for_comparison`

    def is_alive(self) -> bool:
        """Whether it still runs on this host."""
        return start_for_comparison(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process group that has outlived the codeneedle that started it."""

    program: str  # name of the child's program: ``llama-server``
    pid: int  # its process group


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildNote:
    """What is noted of a child while it runs."""

    mark: _Mark  # value of `VARIABLE` in its environment, which its children inherit
    owner: Process  # the codeneedle that started it
    host: str  # host of both; see `host_identity`

    @property
    def program(self) -> str:
        """Name of the child's program: ``llama-server``."""
        return self.mark.rpartition(".")[0]

    def is_abandoned(self) -> bool:
        """Whether its owner ran on this host, and is gone."""
        return self.host == host_identity() and not self.owner.is_alive()

    def find_marked_groups(self) -> list[int]:
        """
        The process groups, but our own, in which a process bears the mark.

        The child's own, and those of what has left it for a session of its own.
        """
        groups = set()
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error, OSError):
                if psutil.Process(pid).environ().get(VARIABLE) == self.mark:
                    groups.add(os.getpgid(pid))
        return sorted(groups - {os.getpgrp()})

    def end_marked_groups(self) -> list[Orphan]:
        """
        End the marked groups, and what they start meanwhile; returns those it ended.

        Raises:
            ToolFailed: If a process survives SIGKILL.
        """
        ended = []
        for _ in range(PASSES):
            groups = self.find_marked_groups()
            for group in groups:
                end_group(group)
                ended.append(Orphan(self.program, group))
            if not groups:
                break
        return list(dict.fromkeys(ended))


@contextlib.contextmanager
def running_with_note(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    file_limit_bytes: int | None = FILE_LIMIT_BYTES,
    heading: str = "",
) -> Iterator[Child]:
    """
    Run a child as `processes.running` does, with a note of it in the cache folder.

    Processes that it starts end with it, in whatever session, if they have the mark.
    The note stays while one is left. Without a writable cache folder there is no note,
    and the child is still killed together with this process.

    Args:
        argv: Program, as an absolute path, and its arguments.
        env: The child's environment; `VARIABLE` is added to it.
        log: See `running`.
        folder: See `running`.
        file_limit_bytes: See `running`.
        heading: See `running`.

    Raises:
        MachineError: As `running` does.
    """
    note = ChildNote(
        mark=f"{_program_name(argv)}.{secrets.token_hex(4)}",
        owner=this_process(),
        host=host_identity(),
    )
    _write_note(note)
    try:
        marked = {**env, VARIABLE: note.mark}
        with running(
            argv,
            env=marked,
            log=log,
            folder=folder,
            file_limit_bytes=file_limit_bytes,
            heading=heading,
        ) as child:
            yield child
    finally:
        note.end_marked_groups()
        if not note.find_marked_groups():
            _remove_note(_note_file(note))


def _program_name(argv: Sequence[str]) -> str:
    """What *argv* starts: ``llama-server``; with its subcommand, ``llama serve``."""
    name = Path(argv[0]).name or "child"
    subcommands = filter(_SUBCOMMAND.fullmatch, argv[1:2])
    return " ".join((name, *subcommands))


def orphans() -> list[Orphan]:
    """Abandoned process groups of this host; notes that cannot be read are removed."""
    marked = (
        (note, group)
        for _, note in _clean_and_find_abandoned_notes()
        for group in note.find_marked_groups()
    )
    # A note and a draft of its next version name the same group.
    return list(dict.fromkeys(Orphan(note.program, group) for note, group in marked))


def end_orphans_and_clean_up() -> list[Orphan]:
    """
    End the `orphans`, and remove their notes and private folders.

    Only what bears the mark of a note is ended. A note that cannot be read is removed.

    Returns:
        Those that were ended.

    Raises:
        ToolFailed: If one of them survives SIGKILL.
    """
    ended = []
    for file, note in _clean_and_find_abandoned_notes():
        ended += note.end_marked_groups()
        _remove_note(file)
    remove_private_folders()
    return ended


def start_for_comparison(pid: int) -> float | None:
    """
    The start of *pid*, for comparisons alone; None if no such process runs.

    On Linux clock ticks since boot, field 22 of ``/proc/PID/stat`` (proc(5)), which do
    not change when the clock is set; elsewhere seconds since the epoch.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    with contextlib.suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.create_time()
    return None


@functools.cache
def host_identity() -> str:
    """
    Name, boot and process numbering of this host.

    The cache folder may be shared with other hosts, and with containers, in which the
    same pid is another process.
    """
    facts = [platform.node()]
    with contextlib.suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(facts)


def this_process() -> Process:
    """This process, for comparison by others on this host."""
    return Process(pid=os.getpid(), started=start_for_comparison(os.getpid()) or 0.0)


def _notes_folder() -> Path:
    return cache_folder() / "running"


def _note_file(note: ChildNote) -> Path:
    return _notes_folder() / f"{note.mark}.json"


def _write_note(note: ChildNote) -> None:
    """Keep *note*, if the disk allows it."""
    write_json_if_possible(_note_file(note), note)


def _remove_note(file: Path) -> None:
    """Remove the note *file*, if it is there and may be removed."""
    with contextlib.suppress(OSError):
        file.unlink()


def _clean_and_find_abandoned_notes() -> Iterator[tuple[Path, ChildNote]]:
    """
    Abandoned notes with their files; removes files that are no notes.

    Drafts of notes count, since SIGKILL leaves them. A draft that is being written may
    be removed; the next version of the note takes its place.
    """
    for file in sorted(_notes_folder().glob("*.json*")):
        note = read_json_or_none(file, ChildNote)
        if note is None:
            _remove_note(file)
        elif note.is_abandoned():
            yield file, note
