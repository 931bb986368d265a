"""What was injected into sweeps, what people saw of it, and what it cost."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from codeneedle.errors import CodeneedleError
from codeneedle.records.store import (
    CELLS,
    SETTLED,
    SETUP,
    decode_record,
    decode_settled,
    decode_setup,
)

# To write 20 lines takes ten times as long as to force 5, and more.
GRID = ("--way", "force", "--corpus", "tiny", "--types", "q8_0,q4_0")
GRID += ("--context", "4096")
"""Four cells."""


TINY = "[generate]\nfunctions = 3\nvalue_length = 6\nname_length = 5\nseed = 7\n"
"""A corpus of three functions: a cell of the built-in model takes a second."""

SHORT = TINY.replace("= 6", "= 2").replace("= 5", "= 3")
"""The same with short lines: half a second."""

BRIEF = f"{SHORT}lines = 6\n"
"""Functions of six lines, which are forced alone: a quarter of a second."""


def put_corpus(folder, *, functions=3, of=TINY):
    """Write a corpus called tiny into *folder*."""
    (folder / "corpora").mkdir(exist_ok=True)
    text = of.replace("functions = 3", f"functions = {functions}")
    (folder / "corpora" / "tiny.toml").write_text(text, encoding="utf-8")


def sampled(values, *, quick):
    """Parameters of a test: the first *quick* of them always, the others in full."""
    full = (pytest.mark.full,)
    return [
        pytest.param(value, marks=full if at >= quick else ())
        for at, value in enumerate(values)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What a fault has cost; lost are cells that had finished before."""

    cells_lost: int = 0
    files_damaged: int = 0
    processes_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One fault, injected once; a user saw nothing of it if *saw* is empty."""

    fault: str
    saw: str
    aftermath: Aftermath = field(default_factory=Aftermath)


@dataclass(slots=True)
class Folder:
    """The working folder of a sweep; *finished* are records that were seen finished."""

    path: Path
    finished: set[Path] = field(default_factory=set)

    def look(self) -> None:
        """Take note of the cells that have finished by now."""
        self.finished |= {file for file in self._records() if _is_finished(file)}

    def aftermath(self) -> Aftermath:
        """What is lost, damaged or left, as things stand."""
        setups = [*self.path.rglob(SETUP), *self.path.rglob(SETTLED)]
        return Aftermath(
            cells_lost=sum(not _is_finished(file) for file in self.finished),
            files_damaged=sum(map(_is_damaged, [*self._records(), *setups])),
            processes_left=len(processes_in(self.path)),
        )

    def _records(self) -> list[Path]:
        return list(self.path.rglob(f"{CELLS}/*.json"))


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is *folder* or below; zombies are none."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and Path(process.cwd()).is_relative_to(folder):
                found.append(process.pid)
    return found


def statuses(folder: Path) -> list[str]:
    """Of all records below *folder*, by file name."""
    files = sorted(folder.rglob(f"{CELLS}/*.json"))
    return [json.loads(file.read_text(encoding="utf-8"))["status"] for file in files]


def error_line(said: str) -> str:
    """The first line of *said* that tells of a fault; else its last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("error:", "Error:"))]
    return (telling or lines[-1:] or [""])[0]


def _is_finished(file: Path) -> bool:
    with contextlib.suppress(OSError, CodeneedleError):
        return decode_record(file.read_bytes(), file=str(file)).has_numbers
    return False


def _is_damaged(file: Path) -> bool:
    decoders = {SETUP: decode_setup, SETTLED: decode_settled}
    decode = decoders.get(file.name, decode_record)
    try:
        decode(file.read_bytes(), file=str(file))
    except (OSError, CodeneedleError):
        return True
    return False
