"""
Run folders: one file per cell and probe, written whole or not at all, moved aside if
damaged, refused if of another version; one sweep at a time; runs found by their names.
"""

import contextlib
import errno
import glob
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput, FolderUnusable, did_you_mean
from codeneedle.records.comparability import (
    merge_compatible_setups,
    refuse_difference,
    refuse_foreign_record,
    setup_identity,
    setup_identity_for_probe,
)
from codeneedle.records.record import (
    SCHEMA,
    BadRecord,
    BadSetup,
    CellRecord,
    ForeignRecord,
    Json,
    Key,
    Run,
    Settled,
    Setup,
    Status,
    key_of,
)
from codeneedle.system.files import (
    Lock,
    free_disk_bytes,
    holding_lock,
    lock_holder,
    make_unlinked_folder,
    move_aside,
    nearest_existing_path,
    read_regular,
    reason_of,
    refuse_linked_folder,
    refuse_unreadable,
    unused_name,
    write_atomically,
)
from codeneedle.system.secrets import has_known_secret, masked_values
from codeneedle.text import replace_surrogates, size_text

SETUP = "setup.json"
SETTLED = "settled.json"
SWEEP = "sweep.toml"
"""Sweep file of a run: the request of all sweeps of it."""
CELLS = "cells"
LOGS = "logs"
LOCK = "lock"
FORMER = "former"
"""Subfolder for the records of a former setup, see `Store.set_run_aside`."""

_CELL_NAME = re.compile(
    r"(?P<k>[^-]+)-(?P<v>[^-]+)\.(?P<probe>[a-z]+)(?:-(?P<variant>[a-z0-9-]+))?\.json"
)
LONGEST_NAME = 200
"""Limit of names of corpora and models, in letters; file systems take 255 bytes."""

_SHARE = re.compile(r"\+share-\d+-of-\d+$")
"""Ends the name of the folder of a share."""

_SAFE_NAME = re.compile(r"[a-z0-9_][a-z0-9_.+-]*")


def checked_run_folder(root: Path, *, corpus: str, model: str) -> Path:
    """
    The run folder of *model* on *corpus*: ``root/corpus/model``.

    Raises:
        ValueError: If a name is not safe, or too long; they are made safe where they
            are read.
    """
    for name in (corpus, model):
        if len(name) > LONGEST_NAME:
            raise ValueError(f"a name has {len(name)} letters: '{name[:16]}...'")
        if not _SAFE_NAME.fullmatch(name.lower()):
            raise ValueError(f"'{name}' is no safe folder name")
    return root / corpus / model


LEAST_FREE_BYTES = 64 << 20
"""Disk space without which not even the records would fit."""


def refuse_unusable_folder(folder: Path) -> None:
    """
    Stop at a *folder*, which need not be there yet, that cannot hold records.

    Raises:
        FolderUnusable: If it cannot be written to, or has less than `LEAST_FREE_BYTES`.
    """
    existing = nearest_existing_path(folder)
    if not os.access(existing, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
        denied = os.strerror(errno.EACCES)
        reason = "its disk is read-only" if is_read_only else denied
        raise FolderUnusable(folder=existing, reason=reason)
    free = free_disk_bytes(folder)
    if free < LEAST_FREE_BYTES:
        raise FolderUnusable(folder=existing, reason=f"only {size_text(free)} is free")


def share_suffix(number: int, of: int) -> str:
    """What ends the name of the run folder of share *number*, *of* so many."""
    return f"+share-{number}-of-{of}"


def setup_files_of(folder: Path) -> list[Path]:
    """Files of setups of the run in *folder* and of its shares, which lie beside it."""
    shares = folder.parent.glob(f"{glob.escape(folder.name)}+share-*/{SETUP}")
    return [path for path in (folder / SETUP, *sorted(shares)) if path.is_file()]


def find_stores_or_refuse(root: Path, name: str) -> list["Store"]:
    """
    The runs called *name*, newest first: a corpus, ``corpus/model``, or a prefix.

    An exact corpus or model name wins over a prefix. Shares are called as their run.

    Raises:
        BadInput: If nothing in *root* has that name.
        SystemRefuses: If a folder of that name must not be read.
    """
    known = [Store(path.parent) for path in root.glob(f"*/*/{SETUP}")]
    wanted = name.strip("/")
    exact = [
        store
        for store in known
        if wanted in {store.name, store.run_name, store.folder.parent.name}
    ]
    matching = exact or [store for store in known if store.name.startswith(wanted)]
    if not matching or not wanted:
        refuse_unreadable(root, *_folders_meant(root, wanted))
        raise BadInput(
            source=f"{root}{os.sep}",
            reason=f"there is no sweep called '{name}' in it",
            hint=did_you_mean(name, sorted({store.run_name for store in known}))
            if known
            else "Run 'codeneedle sweep' first.",
        )
    return sorted(matching, key=Store.changed_at, reverse=True)


def _folders_meant(root: Path, wanted: str) -> Iterator[Path]:
    """The folders in *root* that may hold a run of that name."""
    for folder in (*root.glob("*"), *root.glob("*/*")):
        name = "/".join(folder.relative_to(root).parts)
        if wanted and (name.startswith(wanted) or wanted.startswith(f"{name}/")):
            yield folder


class Store:
    """A run folder."""

    folder: Path
    is_void: bool = False
    """
    Whether its setup and records do not count: they are of a former setup, and the next
    sweep will `set_run_aside` them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._setup: Setup | None = None
        self._lock: Lock | None = None
        self._written: dict[Path, tuple[int, ...]] = {}
        """What the file of a record of its setup was like when it was written."""

    @property
    def name(self) -> str:
        """``corpus/model``, as its folder is called."""
        return "/".join(self.folder.parts[-2:])

    @property
    def run_name(self) -> str:
        """The name of the run that it holds a share of, or all of."""
        return _SHARE.sub("", self.name)

    @property
    def is_share(self) -> bool:
        """Whether it holds a share of a run."""
        return self.run_name != self.name

    def changed_at(self) -> float:
        """Time of the last change of its setup or of a record, in seconds."""
        files = [self.folder / SETUP, *self._record_files()]
        return max(path.stat().st_mtime for path in files if path.exists())

    @contextlib.contextmanager
    def make_and_lock_folder(self) -> Iterator[None]:
        """
        Make the folder, and keep other sweeps out of it in the block.

        The lock ends with this process, too. What the folder holds counts from now on,
        also if it `is_void`.

        Raises:
            BadInput: If another sweep is running in it; names its process.
            FolderUnusable: If it cannot be written to.
        """
        path = self.folder / LOCK
        with contextlib.ExitStack() as stack:
            with _translating_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    self._lock = stack.enter_context(holding_lock(path))
                except BlockingIOError as error:
                    raise BadInput(
                        source=self.folder,
                        reason=f"another sweep is running in it ({lock_holder(path)})",
                        hint="Wait for it, or choose another folder with --out.",
                    ) from error
            self.is_void = False
            try:
                yield
            finally:
                self._lock = None

    # The setup

    def read_setup(self) -> Setup | None:
        """
        The setup of its records; None in a new folder, or if it `is_void`.

        Raises:
            BadInput: If another version of codeneedle wrote it.
            BadSetup: If it cannot be read.
        """
        setup = None if self.is_void else self._read_setup_file()
        self._setup = setup and self._with_settled(setup)
        return self._setup

    def _read_setup_file(self) -> Setup | None:
        """The setup alone; None if there is none."""
        data = self._read_file_or_none(SETUP)
        file = str(self.folder / SETUP)
        return None if data is None else decode_setup(data, file=file)

    def _read_settled_file(self) -> Settled | None:
        """What the first cells have settled; None before."""
        data = self._read_file_or_none(SETTLED)
        file = str(self.folder / SETTLED)
        return None if data is None else decode_settled(data, file=file)

    def _read_file_or_none(self, name: str) -> bytes | None:
        """The bytes of the file *name*; None without one, `BadSetup` if unreadable."""
        try:
            return read_regular(self.folder / name)
        except OSError as error:
            file = str(self.folder / name)
            raise BadSetup(file=file, reason=reason_of(error)) from error

    def _with_settled(self, setup: Setup) -> Setup:
        """*setup* with what its first cells have settled, if its identity is that."""
        settled = self._read_settled_file()
        if settled is None or settled.identity != setup.identity:
            return setup
        return replace(setup, calibrated=settled.calibrated, order=settled.order)

    def check_and_store_setup(self, setup: Setup) -> Setup:
        """
        Store *setup*, or add it to the stored one.

        Returns:
            The setup of the folder; see `merge_compatible_setups`.

        Raises:
            OtherSetup: If the stored one differs.
            FolderUnusable: If it cannot be written to.
        """
        return self.merge_and_store_setup(self.check_against_stored_setup(setup), setup)

    def merge_and_store_setup(self, stored: Setup | None, setup: Setup) -> Setup:
        """
        Store *setup*, or add it to the *stored* one, from which it does not differ.

        Returns:
            The setup of the folder; see `merge_compatible_setups`.

        Raises:
            FolderUnusable: If it cannot be written to.
        """
        if stored is not None:
            setup = merge_compatible_setups(stored, setup)
        if not setup.identity:
            setup = replace(setup, identity=setup_identity(setup))
        if not (setup.calibrated or setup.order):
            setup = self._with_settled(setup)
        if stored is None or _setup_without_settled(setup) != _setup_without_settled(
            stored
        ):
            self._write_file_atomically(
                self.folder / SETUP,
                encode_masked_and_sealed(_setup_without_settled(setup)),
            )
        if setup.calibrated or setup.order:
            self._adopt_and_store_settled(setup)
        self._setup = setup
        return setup

    def _adopt_and_store_settled(self, setup: Setup) -> None:
        """Store what the first cells have settled, if it is new; adopt *setup*."""
        settled = Settled(
            identity=setup.identity, calibrated=setup.calibrated, order=setup.order
        )
        if settled != self._read_settled_file():
            self._write_file_atomically(
                self.folder / SETTLED, encode_masked_and_sealed(settled)
            )
        self._setup = setup

    def check_against_stored_setup(self, setup: Setup) -> Setup | None:
        """
        The stored setup, if *setup* does not differ from it; None if there is none.

        Raises:
            OtherSetup: With the first difference.
            BadInput: If there is no stored setup, but records of another one.
        """
        stored = self.read_setup()
        if stored is not None:
            refuse_difference(stored, setup, folder=self.folder)
        elif not self._setup_identities() <= {setup_identity(setup)}:
            raise BadInput(
                source=self.folder,
                reason=f"it holds records, but no {SETUP} that says what they are of",
                hint="Move the folder away, or choose another with --out.",
            )
        return stored

    def read_calibrations(self) -> dict[str, Json]:
        """`Setup.calibrated` as it is stored now; empty without a setup."""
        with contextlib.suppress(BadSetup):
            self.read_setup()
        return self._setup.calibrated if self._setup else {}

    def store_calibration(self, probe: str, facts: Json) -> None:
        """
        Add the *facts* that the reference sets for all cells of *probe*.

        They replace former ones; nothing happens without a setup.
        """
        calibrated = {**self.read_calibrations(), probe: facts}
        if self._setup is not None:
            self._adopt_and_store_settled(replace(self._setup, calibrated=calibrated))

    def store_order(self, order: Json) -> None:
        """
        Store the *order* that a sweep that decides has fixed.

        Without a setup nothing is stored.
        """
        self.read_calibrations()
        if self._setup is not None:
            self._adopt_and_store_settled(replace(self._setup, order=order))

    def set_probe_aside(self, probe: str) -> None:
        """
        Move the records of *probe* aside, whose calibration is lost.

        Records of repeated measurements are among them.
        """
        for path in self._record_files():
            named = _CELL_NAME.fullmatch(path.name)
            if named and named["probe"] == probe:
                move_aside(path, "uncalibrated")

    def read_intact_setup(self) -> Setup | None:
        """
        Like `read_setup`, but None for a damaged one: see `set_damaged_setup_aside`.

        Raises:
            BadInput: If another version of codeneedle wrote it.
        """
        with contextlib.suppress(BadSetup):
            return self.read_setup()
        return None

    def set_damaged_setup_aside(self) -> list[Path]:
        """
        Move a setup that cannot be read aside, and what was settled, if that cannot.

        The folder must be locked. The next setup to be adopted is compared with
        the identity in the records.

        Returns:
            The new paths of what was damaged.
        """
        moved = []
        for name, read in (
            (SETUP, self._read_setup_file),
            (SETTLED, self._read_settled_file),
        ):
            try:
                read()
            except BadSetup:
                moved.append(move_aside(self.folder / name, "damaged"))
        return moved

    def set_run_aside(self) -> Path:
        """
        Move everything but the lock into a subfolder, and return its path.

        Former ones stay where they are. The folder must be locked.

        Raises:
            FolderUnusable: If something cannot be moved.
        """
        with _translating_errors(self.folder):
            left = sorted(self.folder.iterdir())
            folder = unused_name(self.folder / FORMER)
            folder.mkdir()
            for path in left:
                if path.name != LOCK and not path.name.startswith(FORMER):
                    path.rename(folder / path.name)
        self._setup = None
        return folder

    def read_sweep_file_or_empty(self) -> str:
        """The text of its sweep file; empty if there is none, or it is unreadable."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (read_regular(self.folder / SWEEP) or b"").decode()
        return ""

    def store_sweep_file(self, text: str) -> None:
        """
        Write *text* as its sweep file, if it is another one.

        Raises:
            FolderUnusable: If it cannot be written.
        """
        if text != self.read_sweep_file_or_empty():
            self._write_file_atomically(
                self.folder / SWEEP, replace_surrogates(text).encode()
            )

    # Records

    def has_numbers(self) -> bool:
        """Whether any of its records has numbers, variants among them."""
        return any(record.has_numbers for record in self.read_records())

    def read_run(self) -> Run | None:
        """
        The whole folder; None if it holds no run.

        Raises:
            BadInput: If another version of codeneedle wrote one of its files.
            BadSetup: If its setup cannot be read.
        """
        setup = self.read_setup()
        return None if setup is None else self.run_under_setup(setup)

    def run_under_setup(self, setup: Setup) -> Run:
        """
        The run of the folder, whose *setup* is known.

        Raises:
            BadInput: See `read_run`.
        """
        run = Run(
            name=self.name,
            setup=setup,
            records=(),
            root=self.folder.parent.parent,
            sweep=self.read_sweep_file_or_empty(),
        )
        return run.with_every_record(self.read_records())

    def read_records(self, probe: str = "") -> Iterator[CellRecord]:
        """
        The records, by file name, those of variants among them; none if it `is_void`.

        For a file that is no such record, a record of an interrupted cell is yielded,
        with the reason.

        Args:
            probe: Reads only records of this probe; empty for all.

        Raises:
            BadInput: If another version of codeneedle wrote one.
        """
        for path in self._record_files(probe):
            named = _CELL_NAME.fullmatch(path.name)
            if named is None:
                continue
            pair, variant = Pair(named["k"], named["v"]), named["variant"] or ""
            key = Key(pair, named["probe"], variant)
            try:
                record = _read_record(path)
                if path == self._record_path(key_of(record)):
                    key = key_of(record)
                refuse_foreign_record(
                    record, key, setup=self._setup_or_none(), file=str(path)
                )
            except (OSError, BadRecord) as error:
                record = _interrupted_record(key, error)
            yield record

    def read_record_if_there(
        self, pair: Pair, probe: str, variant: str = ""
    ) -> CellRecord | None:
        """
        The record of *pair* and *probe*; None if there is none.

        For a file that is no such record, a record of an interrupted cell is returned,
        with the reason.

        Raises:
            BadInput: If another version of codeneedle wrote it.
        """
        key = Key(pair, probe, variant)
        path = self._record_path(key)
        if self.is_void or not os.path.lexists(path):
            return None
        try:
            return self._read_own_record(path, key)
        except (OSError, BadRecord) as error:
            return _interrupted_record(key, error)

    def write_record(self, record: CellRecord) -> CellRecord:
        """
        Write *record*, whole or not at all; without a setup, it gets the folder's.

        A file in its place that is no record of its cell is moved aside: as
        ``.damaged`` if it cannot be read, as ``.foreign`` if it is another record. What
        was written here, and is as it was, is not decoded again.

        Returns:
            The record as it is stored.

        Raises:
            FolderUnusable: If it cannot be written, or the locked folder is gone.
        """
        path, setup = (
            self._move_wrong_record_aside(key_of(record)),
            self._setup_or_none(),
        )
        if setup is not None and not record.setup:
            record = replace(
                record, setup=setup_identity_for_probe(setup, record.probe)
            )
        self._write_file_atomically(path, encode_masked_and_sealed(record))
        if setup is None or record.setup == setup_identity_for_probe(
            setup, record.probe
        ):
            self._written[path] = _state_of_file(path)
        return record

    def copy_record_from(self, other: "Store", key: Key) -> None:
        """
        Copy the record of *key* from *other*, if it has one.

        As `write_record`, but byte by byte, and without waiting for the disk.

        Raises:
            FolderUnusable: See `write_record`, or if the record cannot be read.
        """
        with _translating_errors(other.folder):
            data = read_regular(other._record_path(key))  # noqa: SLF001 - our class
        if data is not None:
            path = self._move_wrong_record_aside(key)
            with _translating_errors(path.parent):
                write_atomically(path, data, is_lasting=False)

    def _move_wrong_record_aside(self, key: Key) -> Path:
        """The path of a record; a file there that is none of it is moved aside."""
        self._refuse_lost_folder()
        path = self._record_path(key)
        if path in self._written and _state_of_file(path) == self._written[path]:
            return path
        with _translating_errors(path.parent):
            try:
                self._read_own_record(path, key)
            except ForeignRecord:
                move_aside(path, "foreign")
            except (OSError, BadRecord):
                if os.path.lexists(path):
                    move_aside(path, "damaged")
        return path

    def make_log_folder(self) -> Path:
        """The folder of the servers' logs, which exists."""
        self._refuse_lost_folder()
        return make_unlinked_folder(self.folder / LOGS)

    def _record_files(self, probe: str = "") -> list[Path]:
        """
        Files of records of *probe*, empty for all, sorted; none if it `is_void`.

        Raises:
            BadInput: If their folder may not be read; a grid must not lack them.
        """
        folder = refuse_linked_folder(self.folder / CELLS)
        try:
            paths = [] if self.is_void else list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            paths = []
        except OSError as error:
            raise BadInput(
                source=folder,
                reason=reason_of(error),
                hint="Ask the folder's owner for read permission.",
            ) from error
        ends = (f".{probe}.json", f".{probe}-") if probe else (".json",)
        is_one = (path for path in paths if path.suffix == ".json")
        return sorted(p for p in is_one if any(end in p.name for end in ends))

    def _record_path(self, key: Key) -> Path:
        """The path of the record of *key*, which may not exist."""
        what = "-".join(filter(None, (key.probe, key.variant)))
        return (
            refuse_linked_folder(self.folder / CELLS) / f"{key.pair.slug}.{what}.json"
        )

    def _read_own_record(self, path: Path, key: Key) -> CellRecord:
        """
        The record at *path*, which must be of *key* and the setup.

        Raises:
            OSError: If there is none, or it cannot be read.
            BadRecord: If it is anything else.
        """
        record = _read_record(path)
        refuse_foreign_record(record, key, setup=self._setup_or_none(), file=str(path))
        return record

    def _setup_identities(self) -> set[str]:
        """The identities of setups in records that can be read."""
        identities = set()
        for path in self._record_files():
            with contextlib.suppress(OSError, BadRecord):
                identities.add(_read_record(path).setup.partition("-")[0])
        return identities

    def _setup_or_none(self) -> Setup | None:
        """The setup, read once; None if there is none that can be read."""
        if self._setup is None:
            with contextlib.suppress(BadSetup):
                self.read_setup()
        return self._setup

    def _refuse_lost_folder(self) -> None:
        """Stop if the folder that this process has locked is gone."""
        if self._lock is not None and self._lock.is_lost():
            raise FolderUnusable(
                folder=self.folder,
                reason="it was removed or moved while the sweep ran in it",
                hint="Leave it where it is, and run the same command again.",
            )

    @staticmethod
    def _write_file_atomically(path: Path, data: bytes) -> None:
        with _translating_errors(path.parent):
            write_atomically(path, data)


def _state_of_file(path: Path) -> tuple[int, ...]:
    """Numbers that change when the file at *path* does; empty if there is none."""
    try:
        seen = path.lstat()
    except OSError:
        return ()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def _read_record(path: Path) -> CellRecord:
    """The record in the file at *path*; an error if there is none."""
    data = read_regular(path)
    if data is None:
        raise FileNotFoundError(None, "there is no file")
    return decode_record(data, file=str(path))


def _interrupted_record(key: Key, error: OSError | BadRecord) -> CellRecord:
    """An interrupted record in place of one that cannot be used for *error*."""
    reason = error.reason if isinstance(error, BadRecord) else reason_of(error)
    return CellRecord(
        pair=key.pair,
        probe=key.probe,
        variant=key.variant,
        status=Status.INTERRUPTED,
        started="",
        reason=f"its record cannot be used: {reason}",
    )


def _setup_without_settled(setup: Setup) -> Json:
    """What the file of *setup* holds: all but what is settled later."""
    facts: Json = msgspec.to_builtins(setup)
    del facts["calibrated"], facts["order"]
    return facts


@contextlib.contextmanager
def _translating_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the system in the block into `FolderUnusable`."""
    try:
        yield
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=str(error)) from error


# --- files as bytes


_SEAL = re.compile(rb'"crc32": "(?P<digits>[0-9a-f]{8})"[ \t\r\n]*\}[ \t\r\n]*')
_LONGEST_BYTES = 64
"""A seal is far shorter; the rest is room for the white space of an editor."""


def append_checksum(data: bytes) -> bytes:
    """
    The JSON object *data*, which is not empty, with a seal as its last key.

    CRC-32 detects all damage of up to 32 adjacent bits, and all but one in four billion
    of other damage. It is no signature: anybody can compute it.
    """
    start = data.rstrip().removesuffix(b"}").rstrip() + b",\n "
    return b'%b"crc32": "%08x"\n}\n' % (start, zlib.crc32(start))


def is_intact_if_sealed(data: bytes) -> bool | None:
    """Whether *data* is unchanged since it was sealed; None without a seal."""
    at = data.rfind(b'"crc32"', -_LONGEST_BYTES)
    seal = _SEAL.fullmatch(data, max(at, 0))
    if seal is None:
        return None
    return zlib.crc32(memoryview(data)[:at]) == int(seal["digits"], 16)


_Layout = TypeVar("_Layout")


def encode_masked_and_sealed(stored: CellRecord | Setup | Settled | Json) -> bytes:
    """
    *stored* as indented JSON, sealed; lists of numbers take one line.

    Known secrets are masked. NaN and infinity become null, text that UTF-8 cannot hold,
    such as a folder's name that is no Unicode, U+FFFD.
    """
    try:
        data = msgspec.json.encode(stored)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_utf8_safe_value(msgspec.to_builtins(stored)))
    if has_known_secret(data):
        data = msgspec.json.encode(masked_values(msgspec.json.decode(data)))
    indented = msgspec.json.format(data, indent=1)
    return append_checksum(
        _NUMBERS.sub(lambda found: b"".join(found[0].split()), indented)
    )


_NUMBERS = re.compile(rb"\[\n *-?\d[^][{}\"]*\]")
"""
A list of numbers, each on a line of its own.

Half of an indented record is white space around its numbers. Texts never match, since
their line ends are escaped.
"""


def decode_record(data: bytes, *, file: str) -> CellRecord:
    """
    Read a record.

    Raises:
        BadInput: If another version of codeneedle wrote it.
        BadRecord: If it is no record.
    """
    return _decode(data, CellRecord, file=file)


def decode_setup(data: bytes, *, file: str) -> Setup:
    """
    Read a setup.

    Raises:
        BadInput: If another version of codeneedle wrote it.
        BadSetup: If it is no setup.
    """
    try:
        return _decode(data, Setup, file=file)
    except BadRecord as error:
        raise BadSetup(file=file, reason=error.reason) from error


def decode_settled(data: bytes, *, file: str) -> Settled:
    """
    Read what was settled beside a setup.

    Raises:
        BadInput: If another version of codeneedle wrote it.
        BadSetup: If it is no such file.
    """
    try:
        return _decode(data, Settled, file=file)
    except BadRecord as error:
        raise BadSetup(file=file, reason=error.reason) from error


def _utf8_safe_value(value: Any) -> Any:
    """*value* with all texts in it, keys too, as UTF-8 can hold them."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {
            _utf8_safe_value(key): _utf8_safe_value(inner)
            for key, inner in value.items()
        }
    is_list = isinstance(value, (list, tuple))
    return [_utf8_safe_value(inner) for inner in value] if is_list else value


def _decode(data: bytes, layout: type[_Layout], *, file: str) -> _Layout:
    """
    The *layout* that sealed *data* holds.

    A wrong checksum is refused first, then another version, then a missing seal.
    """
    seal = is_intact_if_sealed(data)
    if seal is False:
        raise BadRecord(file=file, reason="it is not what was written (checksum)")
    try:
        raw = msgspec.json.decode(data, type=Json)
        _refuse_schema(raw, file=file)
        if seal is None:
            raise BadRecord(file=file, reason="its end is not what was written")
        return msgspec.convert(raw, type=layout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(file=file, reason=str(error)) from error


def _refuse_schema(raw: Json, *, file: str) -> None:
    """Stop at a file of another version, or one that states no version."""
    schema = raw.get("schema")
    reason = f"it has schema {schema}, this codeneedle reads {SCHEMA}"
    is_old = str(raw.get("status")) in {"fallback-cpu", "fallback-f16"}
    if is_old:
        reason = f"it says {raw['status']}, as an older codeneedle did: a cell without "
        reason += "a kernel now keeps its numbers"
    # Not isinstance: true would pass for 1.
    if type(schema) is not int or schema < 1:
        raise BadRecord(file=file, reason="it has no schema number")
    if schema != SCHEMA or is_old:
        raise BadInput(
            source=file,
            reason=reason,
            hint="Move its run folder away, or choose another with --out, and run the "
            "same sweep again. Or use the codeneedle that wrote it.",
        )
