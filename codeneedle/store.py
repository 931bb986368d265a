"""Run folders: one file per cell and probe, each written whole or not at all."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from codeneedle.comparability import (
    identity,
    refuse_difference,
    refuse_foreign,
    widened,
)
from codeneedle.errors import MachineError, RequestError
from codeneedle.files import write_whole
from codeneedle.grid import Pair
from codeneedle.keeping import contents, put_aside, why
from codeneedle.lock import LOCK, hold, opened, refuse_lost
from codeneedle.recordfile import Decode, decode_record, decode_setup, encode
from codeneedle.records import BadRecord, BadSetup, CellRecord, Run, Setup, Status
from codeneedle.speculation import Trial

SETUP = "setup.json"
CELLS = "cells"
LOGS = "logs"

_CELL_NAME = re.compile(r"(?P<k>[^-]+)-(?P<v>[^-]+)\.(?P<probe>\w+)\.json")
_SAFE_NAME = re.compile(r"[a-z0-9_][a-z0-9_.+-]*")


class SetupMissing(RequestError):  # noqa: N818 - named after the fact
    """Records without the setup that they were made under."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"{folder} holds records, but no {SETUP} that says what they are of",
            hint="Move the folder away, or choose another with --out.",
        )


class FolderUnwritable(MachineError):  # noqa: N818 - named after the fact
    """Nothing can be written where records should go."""

    def __init__(self, *, folder: Path, reason: str) -> None:
        super().__init__(
            f"cannot write to {folder}: {reason}",
            hint="Free some space or choose another folder with --out.",
        )


class Store:
    """A run folder. Deleting a cell's file makes the cell run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._setup: Setup | None = None
        self._lock: IO[bytes] | None = None

    @property
    def name(self) -> str:
        """``corpus/model``, as its folder is called."""
        return "/".join(self.folder.parts[-2:])

    def setup(self) -> Setup | None:
        """
        The setup of its records; None in a new folder.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
            BadSetup: If it cannot be read.
        """
        path = self.folder / SETUP
        try:
            data = contents(path)
        except OSError as error:
            raise BadSetup(file=str(path), reason=why(error)) from error
        self._setup = None if data is None else decode_setup(data, file=str(path))
        return self._setup

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
        if not setup.identity:
            setup = replace(setup, identity=identity(setup))
        if setup != stored:
            self._write(self.folder / SETUP, encode(setup))
        self._setup = setup
        return setup

    def note_trial(self, trial: Trial) -> Setup:
        """
        Add to the setup how its first cell answered with speculation and without.

        Returns:
            The setup of the folder from now on.

        Raises:
            SetupMissing: If somebody has taken it away.
            FolderUnwritable: If the disk refuses.
        """
        stored = self.setup()
        if stored is None:
            raise SetupMissing(folder=self.folder)
        self._setup = replace(stored, trial=trial)
        self._write(self.folder / SETUP, encode(self._setup))
        return self._setup

    def compare(self, setup: Setup) -> Setup | None:
        """
        The stored setup, if *setup* does not differ from it; None if there is none.

        Raises:
            OtherSetup: Naming the first difference.
            SetupMissing: If there are records, and they are of another setup, or
                nobody knows of what.
        """
        stored = self.setup()
        if stored is not None:
            refuse_difference(stored, setup, folder=self.folder)
        elif not self._named() <= {identity(setup)}:
            raise SetupMissing(folder=self.folder)
        return stored

    def mend(self) -> Path | None:
        """
        Put a setup that cannot be read aside, if the records tell what they are of.

        The folder must be `locked`. What is adopted next is held against the records.

        Returns:
            Where it is now; None if there was nothing to mend.

        Raises:
            BadSetup: If there are records that tell nothing.
        """
        if self.intact_setup() or not os.path.lexists(self.folder / SETUP):
            return None
        return put_aside(self.folder / SETUP)

    def intact_setup(self) -> Setup | None:
        """
        Like `setup`, but None for one that can be mended.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
            BadSetup: If it cannot be read, and there are records that tell nothing.
        """
        try:
            return self.setup()
        except BadSetup:
            if "" in self._named():
                raise
        return None

    def _named(self) -> set[str]:
        """Identities that the records name; empty ones of those that name none."""
        found = map(_readable, self._cells())
        return {record.setup.partition("-")[0] for record in found if record}

    def forget(self) -> None:
        """Take the setup of a folder without records away."""
        (self.folder / SETUP).unlink(missing_ok=True)
        self._setup = None

    def record(self, pair: Pair, probe: str) -> CellRecord | None:
        """
        The record of *pair* and *probe*; None if there is none.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
        """
        return self._read(self._cell(pair, probe), pair, probe)

    def records(self, decode: Decode = decode_record) -> Iterator[CellRecord]:
        """
        All records, by file name.

        Args:
            decode: Makes a record of what stands in a file.

        Raises:
            RecordTooNew: If a later codeneedle wrote one of them.
        """
        for path in self._cells():
            named = _CELL_NAME.fullmatch(path.name)
            if named:
                pair = Pair(named["k"], named["v"])
                record = self._read(path, pair, named["probe"], decode)
                if record is not None:
                    yield record

    def add(self, record: CellRecord) -> None:
        """
        Write *record*, whole or not at all.

        What stands in its place and is no record of its cell is put aside.

        Raises:
            FolderLost: If the locked folder was taken away.
            FolderUnwritable: If the disk refuses.
        """
        self._refuse_lost()
        path = self._cell(record.pair, record.probe)
        with _translated(path.parent):
            if self._is_in_the_way(path, record):
                put_aside(path)
        self._write(path, encode(record))

    def log(self, pair: Pair) -> Path:
        """Where the server of *pair* writes its log; the folder exists."""
        self._refuse_lost()
        folder = self.folder / LOGS
        with _translated(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{pair.slug}.log"

    def read(
        self, decoding: Callable[[Setup], Decode] = lambda _setup: decode_record
    ) -> Run | None:
        """
        The whole folder; None if it holds no run.

        Args:
            decoding: How records of a setup are decoded; whole by default.
        """
        setup = self.setup()
        if setup is None:
            return None
        records = tuple(self.records(decoding(setup)))
        return Run(name=self.name, setup=setup, records=records)

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
            file = opened(self.folder / LOCK)
        with file:
            hold(file, folder=self.folder)
            self._lock = file
            try:
                yield
            finally:
                self._lock = None

    def _refuse_lost(self) -> None:
        if self._lock is not None:
            refuse_lost(self._lock, folder=self.folder)

    def _cells(self) -> list[Path]:
        return sorted((self.folder / CELLS).glob("*.json"))

    def _cell(self, pair: Pair, probe: str) -> Path:
        return self.folder / CELLS / f"{pair.slug}.{probe}.json"

    def _read(
        self, path: Path, pair: Pair, probe: str, decode: Decode = decode_record
    ) -> CellRecord | None:
        """The record in *path*; a file that is none of it is a cell to be played."""
        try:
            data = contents(path)
            return None if data is None else self._own(data, path, pair, probe, decode)
        except (OSError, BadRecord) as error:
            reason = error.reason if isinstance(error, BadRecord) else why(error)
        return CellRecord(
            pair=pair,
            probe=probe,
            status=Status.INTERRUPTED,
            started="",
            reason=f"its record cannot be used: {reason}",
        )

    def _own(
        self, data: bytes, path: Path, pair: Pair, probe: str, decode: Decode
    ) -> CellRecord:
        record = decode(data, file=str(path))
        refuse_foreign(record, pair, probe, setup=self._known(), file=str(path))
        return record

    def _known(self) -> Setup | None:
        if self._setup is None:
            with contextlib.suppress(BadSetup):
                self.setup()
        return self._setup

    def _is_in_the_way(self, path: Path, record: CellRecord) -> bool:
        with contextlib.suppress(OSError, BadRecord):
            data = contents(path)
            if data is not None:
                self._own(data, path, record.pair, record.probe, decode_record)
            return False
        return True

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with _translated(path.parent):
            write_whole(path, data)


def _readable(path: Path) -> CellRecord | None:
    with contextlib.suppress(OSError, BadRecord):
        data = contents(path)
        return None if data is None else decode_record(data, file=str(path))
    return None


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
