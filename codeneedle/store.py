"""Run folders: one file per cell and probe, each written whole or not at all."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from codeneedle.comparability import refuse_difference, widened
from codeneedle.errors import MachineError, RequestError, did_you_mean
from codeneedle.files import write_whole
from codeneedle.grid import Pair
from codeneedle.recordfile import decode_record, decode_setup, encode
from codeneedle.records import (
    BadRecord,
    CellRecord,
    Run,
    Setup,
    Status,
)

SETUP = "setup.json"
CELLS = "cells"
LOGS = "logs"

_CELL_NAME = re.compile(r"(?P<k>[^-]+)-(?P<v>[^-]+)\.(?P<probe>\w+)\.json")
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]*")


class SetupMissing(RequestError):  # noqa: N818 - named after the fact
    """Records without the setup that they were made under."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"{folder} holds records, but no {SETUP} that says what they are of",
            hint="Move the folder away, or choose another with --out.",
        )


class FolderBusy(RequestError):  # noqa: N818 - named after the fact
    """Another sweep writes to this run folder right now."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"another sweep is running in {folder}",
            hint="Wait for it, or choose another folder with --out.",
        )


class FolderUnwritable(MachineError):  # noqa: N818 - named after the fact
    """Nothing can be written where records should go."""

    def __init__(self, *, folder: Path, reason: str) -> None:
        super().__init__(
            f"cannot write to {folder}: {reason}",
            hint="Free some space or choose another folder with --out.",
        )


class NoSuchRun(RequestError):  # noqa: N818 - named after the fact
    """No run folder has this name."""

    def __init__(self, *, name: str, root: Path, known: list[str]) -> None:
        super().__init__(
            f"no sweep called '{name}' in {root}{os.sep}",
            hint=did_you_mean(name, known)
            if known
            else "Run 'codeneedle sweep' first.",
        )
        self.known = known


class Store:
    """A run folder. Deleting a cell's file makes the cell run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """``corpus/model``, as its folder is called."""
        return "/".join(self.folder.parts[-2:])

    def setup(self) -> Setup | None:
        """The setup of its records; None in a new folder."""
        path = self.folder / SETUP
        if not path.exists():
            return None
        return decode_setup(path.read_bytes(), file=str(path))

    def adopt(self, setup: Setup) -> Setup:
        """
        Make the folder one of *setup*, or check that it is.

        Returns:
            The setup of the folder from now on: what was there, and what is new.

        Raises:
            OtherSetup: If its records were made under another one.
            FolderUnwritable: If the disk refuses.
        """
        stored = self.compare(setup)
        if stored is not None:
            setup = widened(stored, setup)
        if setup != stored:
            self._write(self.folder / SETUP, encode(setup))
        return setup

    def compare(self, setup: Setup) -> Setup | None:
        """
        The stored setup, if *setup* does not differ from it; None if there is none.

        Raises:
            OtherSetup: Naming the first difference.
            SetupMissing: If there are records, and nobody knows of what setup.
        """
        stored = self.setup()
        if stored is not None:
            refuse_difference(stored, setup, folder=self.folder)
        elif any((self.folder / CELLS).glob("*.json")):
            raise SetupMissing(folder=self.folder)
        return stored

    def forget(self) -> None:
        """Take the setup of a folder without records away."""
        (self.folder / SETUP).unlink(missing_ok=True)

    def record(self, pair: Pair, probe: str) -> CellRecord | None:
        """
        The record of *pair* and *probe*; None if there is none.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
        """
        path = self._cell(pair, probe)
        return _read(path, pair, probe) if path.exists() else None

    def records(self) -> Iterator[CellRecord]:
        """
        All records, by file name.

        Raises:
            RecordTooNew: If a later codeneedle wrote one of them.
        """
        for path in sorted((self.folder / CELLS).glob("*.json")):
            named = _CELL_NAME.fullmatch(path.name)
            if named:
                yield _read(path, Pair(named["k"], named["v"]), named["probe"])

    def add(self, record: CellRecord) -> None:
        """
        Write *record*, whole or not at all.

        Raises:
            FolderUnwritable: If the disk refuses.
        """
        self._write(self._cell(record.pair, record.probe), encode(record))

    def log(self, pair: Pair) -> Path:
        """Where the server of *pair* writes its log; the folder exists."""
        folder = self.folder / LOGS
        with _translated(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{pair.slug}.log"

    def read(self) -> Run | None:
        """The whole folder; None if it holds no run."""
        setup = self.setup()
        if setup is None:
            return None
        return Run(name=self.name, setup=setup, records=tuple(self.records()))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """
        Keep other sweeps out of the folder; the lock dies with this process.

        Raises:
            FolderBusy: If another sweep is in it.
            FolderUnwritable: If the disk refuses.
        """
        with _translated(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / "lock").open("w", encoding="utf-8")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderBusy(folder=self.folder) from error
            except OSError:
                # A network share without locks: better unlocked than unable.
                pass
            yield

    def _cell(self, pair: Pair, probe: str) -> Path:
        return self.folder / CELLS / f"{pair.slug}.{probe}.json"

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with _translated(path.parent):
            write_whole(path, data)


def _read(path: Path, pair: Pair, probe: str) -> CellRecord:
    """The record in *path*; one that cannot be read is a cell to be played again."""
    try:
        return decode_record(path.read_bytes(), file=str(path))
    except BadRecord as error:
        return CellRecord(
            pair=pair,
            probe=probe,
            status=Status.INTERRUPTED,
            started="",
            reason=f"its record cannot be read: {error.reason}",
        )


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderUnwritable(folder=folder, reason=str(error)) from error


def run_folder(root: Path, *, corpus: str, model: str) -> Path:
    """
    Where the records of *model* on *corpus* go: ``root/corpus/model``.

    Raises:
        ValueError: If a name could lead out of *root*; names are made safe at
            the gates.
    """
    for name in (corpus, model):
        if not _SAFE_NAME.fullmatch(name.lower()):
            raise ValueError(f"'{name}' is no safe folder name")
    return root / corpus / model


def find_runs(root: Path, name: str) -> list[Store]:
    """
    The runs called *name*, newest first: a corpus, ``corpus/model``, or a prefix.

    An exact corpus or model name wins over a mere prefix.

    Raises:
        NoSuchRun: If nothing in *root* has that name.
    """
    known = {
        f"{path.parent.parent.name}/{path.parent.name}": path
        for path in root.glob(f"*/*/{SETUP}")
    }
    wanted = name.strip("/")
    exact = [run for run in known if wanted in {run, run.split("/")[0]}]
    found = exact or [run for run in known if run.startswith(wanted)]
    if not found or not wanted:
        raise NoSuchRun(name=name, root=root, known=sorted(known))
    newest = sorted(
        found, key=lambda run: _last_change(known[run].parent), reverse=True
    )
    return [Store(known[run].parent) for run in newest]


def _last_change(folder: Path) -> float:
    files = [folder / SETUP, *(folder / CELLS).glob("*.json")]
    return max(path.stat().st_mtime for path in files if path.exists())
