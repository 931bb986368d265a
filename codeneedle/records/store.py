"""Run folders: one file per cell and probe, each written whole or not at all."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.errors import BadInput, FolderUnusable, RequestError, did_you_mean
from codeneedle.grid import Pair
from codeneedle.records.comparability import (
    identity,
    refuse_difference,
    refuse_foreign,
    widened,
)
from codeneedle.records.encoding import Decode, decode_record, decode_setup, encode
from codeneedle.records.record import (
    BadRecord,
    BadSetup,
    CellRecord,
    Run,
    Setup,
    Status,
    Trial,
)
from codeneedle.system.files import (
    Lock,
    locked,
    move_aside,
    read_regular,
    reason_of,
    write_whole,
)

CELLS = "cells"
LOCK = "lock"

_CELL_NAME = re.compile(r"(?P<k>[^-]+)-(?P<v>[^-]+)\.(?P<probe>\w+)\.json")


@dataclass(frozen=True, slots=True)
class CellFiles:
    """
    The cells of a run.

    Attributes:
        run: The run folder.
    """

    run: Path

    def path(self, pair: Pair, probe: str) -> Path:
        """Where the record of *pair* and *probe* stands, if there is one."""
        return self.run / CELLS / f"{pair.slug}.{probe}.json"

    def cells(self) -> Iterator[tuple[Pair, str]]:
        """Pair and probe of each file, by file name."""
        for path in self._all():
            named = _CELL_NAME.fullmatch(path.name)
            if named:
                yield Pair(named["k"], named["v"]), named["probe"]

    def identities(self) -> set[str]:
        """Those of the setups that records name; empty ones of those that name none."""
        found = map(_readable, self._all())
        return {record.setup.partition("-")[0] for record in found if record}

    def read(
        self,
        pair: Pair,
        probe: str,
        *,
        setup: Setup | None,
        decode: Decode = decode_record,
    ) -> CellRecord | None:
        """
        The record of *pair* and *probe*; None if there is none.

        A file that cannot be used is a cell that was interrupted, and why.

        Args:
            pair: The cell's cache types.
            probe: What measured it.
            setup: That of the run; None if nobody knows.
            decode: Makes a record of what stands in a file.

        Raises:
            RecordTooNew: If a later codeneedle wrote it.
        """
        try:
            return self._own(pair, probe, setup, decode)
        except (OSError, BadRecord) as error:
            reason = error.reason if isinstance(error, BadRecord) else reason_of(error)
        return CellRecord(
            pair=pair,
            probe=probe,
            status=Status.INTERRUPTED,
            started="",
            reason=f"its record cannot be used: {reason}",
        )

    def is_in_the_way(self, pair: Pair, probe: str, *, setup: Setup | None) -> bool:
        """Whether something stands where a record should, and is none of this cell."""
        with contextlib.suppress(OSError, BadRecord):
            self._own(pair, probe, setup, decode_record)
            return False
        return True

    def _own(
        self, pair: Pair, probe: str, setup: Setup | None, decode: Decode
    ) -> CellRecord | None:
        path = self.path(pair, probe)
        data = read_regular(path)
        if data is None:
            return None
        record = decode(data, file=str(path))
        refuse_foreign(record, pair, probe, setup=setup, file=str(path))
        return record

    def _all(self) -> list[Path]:
        return sorted((self.run / CELLS).glob("*.json"))


def _readable(path: Path) -> CellRecord | None:
    with contextlib.suppress(OSError, BadRecord):
        data = read_regular(path)
        return None if data is None else decode_record(data, file=str(path))
    return None


SETUP = "setup.json"
LOGS = "logs"

_SAFE_NAME = re.compile(r"[a-z0-9_][a-z0-9_.+-]*")


class SetupMissing(RequestError):  # noqa: N818 - named after the fact
    """Records without the setup that they were made under."""

    def __init__(self, *, folder: Path) -> None:
        super().__init__(
            f"{folder} holds records, but no {SETUP} that says what they are of",
            hint="Move the folder away, or choose another with --out.",
        )


class Store:
    """A run folder. Deleting a cell's file makes the cell run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = CellFiles(folder)
        self._setup: Setup | None = None
        self._lock: Lock | None = None

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
            data = read_regular(path)
        except OSError as error:
            raise BadSetup(file=str(path), reason=reason_of(error)) from error
        self._setup = None if data is None else decode_setup(data, file=str(path))
        return self._setup

    def adopt(self, setup: Setup) -> Setup:
        """
        Make the folder one of *setup*, or check that it is.

        Returns:
            The setup of the folder from now on: what was there, and what is new.

        Raises:
            OtherSetup: If its records were made under another one.
            FolderUnusable: If the disk refuses.
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
            FolderUnusable: If the disk refuses.
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
        elif not self._files.identities() <= {identity(setup)}:
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
        return move_aside(self.folder / SETUP, "damaged")

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
            if "" in self._files.identities():
                raise
        return None

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
        return self._files.read(pair, probe, setup=self._known())

    def records(self, decode: Decode = decode_record) -> Iterator[CellRecord]:
        """
        All records, by file name.

        Args:
            decode: Makes a record of what stands in a file.

        Raises:
            RecordTooNew: If a later codeneedle wrote one of them.
        """
        for pair, probe in self._files.cells():
            known = self._known()
            record = self._files.read(pair, probe, setup=known, decode=decode)
            if record is not None:
                yield record

    def add(self, record: CellRecord) -> None:
        """
        Write *record*, whole or not at all.

        What stands in its place and is no record of its cell is put aside.

        Raises:
            FolderLost: If the locked folder was taken away.
            FolderUnusable: If the disk refuses.
        """
        self._refuse_lost()
        pair, probe = record.pair, record.probe
        path = self._files.path(pair, probe)
        with _translated(path.parent):
            if self._files.is_in_the_way(pair, probe, setup=self._known()):
                move_aside(path, "damaged")
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
            BadInput: If another sweep is in it.
            FolderUnusable: If the disk refuses.
        """
        with contextlib.ExitStack() as stack:
            with _translated(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    self._lock = stack.enter_context(locked(self.folder / LOCK))
                except BlockingIOError as error:
                    raise BadInput(
                        source=self.folder,
                        reason="another sweep is running in it",
                        hint="Wait for it, or choose another folder with --out.",
                    ) from error
            try:
                yield
            finally:
                self._lock = None

    def _refuse_lost(self) -> None:
        if self._lock is not None and self._lock.is_lost():
            raise FolderUnusable(
                folder=self.folder,
                reason="it was removed or moved while the sweep ran in it",
                hint="Leave it where it is, and run the same command again.",
            )

    def _known(self) -> Setup | None:
        if self._setup is None:
            with contextlib.suppress(BadSetup):
                self.setup()
        return self._setup

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with _translated(path.parent):
            write_whole(path, data)


@contextlib.contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=str(error)) from error


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
