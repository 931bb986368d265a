"""Joins run folders that several hosts have measured shares of."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.probes import PROBES, refuse_impossible_settings
from codeneedle.probes.probe import answered
from codeneedle.records.comparability import first_other, setup_differences
from codeneedle.records.record import CellRecord, Run, Setup, Status
from codeneedle.records.store import (
    CELLS,
    LONGEST_NAME,
    SETUP,
    SWEEP,
    Store,
    run_folder,
)
from codeneedle.sweep.request import decoded_request, keep
from codeneedle.system.files import own_folder
from codeneedle.text import in_words, visible
from codeneedle.verdict.trust import derived, is_untold, trusted

Key = tuple[Pair, str]
"""A cell and a probe."""


@dataclass(slots=True, kw_only=True)
class Merged:
    """A run that was joined of several."""

    folder: Path  # where it is now
    sources: tuple[Path, ...]  # folders that it was joined of
    cells: dict[Key, Store] = field(default_factory=dict)
    """The folder from which the record of each cell and probe is taken."""

    records: dict[Key, CellRecord] = field(default_factory=dict)
    """Those, with empty observations: 10,000 whole ones take gigabytes."""

    compared: dict[Key, int] = field(default_factory=dict)
    """How many folders hold a cell, for those that several hold alike."""

    left_out: list[str] = field(default_factory=list)
    """Why a record could not be taken, with its folder, a line each."""


def merge(
    sources: Sequence[Path],
    out: Path,
    *,
    tell: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> list[Merged]:
    """
    Join the runs of the same corpus and model in *sources* below *out*.

    Setups name corpus and model, not folders. All are checked before the first record
    is written. An interrupted merge resumes if it is called again: what is in *out*
    counts as a source.

    Args:
        sources: Run folders, or folders of run folders.
        out: Folder of all run folders.
        tell: Called with how far it is.

    Raises:
        BadInput: If a source holds no run, if only one of several holds a run, if
            setups differ, if no cell was measured by both of two sources, or if the
            observations of one differ.
        FolderUnusable: If *out* cannot be written to.
    """
    runs: dict[Path, list[Store]] = {}
    for source in sources:
        for store in _runs_in(source):
            runs.setdefault(_folder(store, out), []).append(store)
    checked = []
    for folder, stores in runs.items():
        target = Store(folder)
        known = {store.folder.resolve() for store in stores}
        if target.setup() and target.folder.resolve() not in known:
            stores = [target, *stores]  # noqa: PLW2901 - what is there comes first
        if len(stores) < 2 <= len(sources):  # noqa: PLR2004 - one of several
            raise BadInput(
                source=stores[0].folder,
                reason=f"no other source holds a run of {target.name}",
                hint="Name only folders of runs that are to be joined.",
            )
        checked.append((target, _checked(target, stores, tell)))
    for target, merged in checked:
        _write(target, merged, tell)
    return [merged for _, merged in checked]


def _runs_in(source: Path) -> list[Store]:
    """
    The runs in *source*, which may be one itself.

    Raises:
        BadInput: If there is none.
    """
    setups = [source / SETUP] if (source / SETUP).is_file() else []
    setups = setups or sorted(source.glob(f"*/*/{SETUP}"))
    if not setups:
        raise BadInput(
            source=source,
            reason="there is no run in it",
            hint="Name folders as given to --out, or run folders: sweeps/CORPUS/MODEL.",
        )
    return [Store(setup.parent.absolute()) for setup in setups]


def _folder(store: Store, out: Path) -> Path:
    """
    Where *store* belongs below *out*.

    Raises:
        BadInput: If its corpus or its model has no name for a folder.
    """
    setup, called = _setup(store), store.folder.name
    model = setup.weights.name
    # A page of a sweep file has a run of its own: MODEL+PAGE.
    name = called if called.startswith(f"{model}+") else model
    # Without a corpus a run is called after what was measured: a transcript.
    is_read = setup.corpus.is_counted
    corpus = setup.corpus.name if is_read else store.folder.parent.name
    try:
        return run_folder(out, corpus=corpus, model=name)
    except ValueError as error:
        raise BadInput(
            source=store.folder,
            reason=str(error),
            hint="Rename the folder, or leave it out: names have letters, digits and "
            f". _ + -, {LONGEST_NAME} at most.",
        ) from error


def _checked(
    target: Store, stores: Sequence[Store], tell: Callable[[str, int, int], None]
) -> Merged:
    """The records to take, and from where."""
    merged = Merged(
        folder=target.folder, sources=tuple(store.folder for store in stores)
    )
    setups = [_setup(store) for store in stores]
    for store, setup in zip(stores[1:], setups[1:], strict=True):
        _refuse_difference(stores[0], setups[0], store, setup)
    for at, (store, setup) in enumerate(zip(stores, setups, strict=True)):
        tell(f"reading {store.folder}", at, len(stores))
        before = {probe for _, probe in merged.cells}
        alone: set[str] = set()
        common: set[str] = set()
        for record in _derived(store, setup):
            is_common = _take(merged, store, record)
            if _is_comparable(record):
                (common if is_common else alone).add(record.probe)
        _refuse_unrelated(stores[0], store, (alone - common) & before)
    return merged


def _derived(store: Store, setup: Setup) -> Sequence[CellRecord]:
    """
    The records of *store*, with what follows for each of them from the others.

    Without their observations, if nothing follows from those: 10,000 whole records
    take gigabytes.
    """
    refuse_impossible_settings(setup)
    records = tuple(map(_without_observation, store.records()))
    if not any(map(is_untold, records)):
        return derived(records, setup)
    whole = Run(name=store.name, setup=setup, records=tuple(store.records()))
    return tuple(map(_without_observation, trusted(whole).records))


def _without_observation(record: CellRecord) -> CellRecord:
    """*record* with an empty observation, if it has one."""
    return record if record.observation is None else replace(record, observation={})


def _take(merged: Merged, store: Store, record: CellRecord) -> bool:
    """
    Note where *record* is; returns whether another folder has an equal one.

    Of two equal ones, the one with more answers is taken.

    Raises:
        BadInput: If their observations differ.
    """
    key = (record.pair, record.probe)
    if record.status is Status.INTERRUPTED:
        if not record.started:  # it could not be read as one of this cell and setup
            what = f"{record.pair}, {record.probe}: {record.reason}"
            merged.left_out.append(f"{store.folder}: {what}")
        return False
    if key not in merged.cells or not merged.records[key].has_numbers:
        merged.cells[key] = store
        merged.records[key] = record
        return False
    if not _is_comparable(record):
        return False
    other = merged.cells[key]
    theirs, ours = other.record(*key), store.record(*key)
    if theirs is None or ours is None:  # removed meanwhile
        return False
    if place := first_other(theirs.observation, ours.observation):
        what = f"{record.pair}, {record.probe}"
        if theirs.attention is not record.attention:
            ran = (each.attention or "unknown" for each in (theirs, record))
            what += f" (attention: {' and '.join(ran)})"
        raise _unlike(other, store, what, place)
    if len(answered(ours)) > len(answered(theirs)):
        merged.cells[key] = store
    merged.compared[key] = merged.compared.get(key, 1) + 1
    return True


def _is_comparable(record: CellRecord) -> bool:
    """Whether its observation has more than times, so that it can be compared."""
    probe = PROBES.get(record.probe)
    return record.has_numbers and probe is not None and not probe.is_timed


def _refuse_unrelated(first: Store, store: Store, probes: set[str]) -> None:
    """
    Stop if there are *probes* that two folders have, but no cell of theirs.

    Raises:
        BadInput: Naming the first probe.
    """
    for probe in sorted(probes):
        raise BadInput(
            source=f"{first.folder} and {store.folder}",
            reason=f"no cell of {probe} was measured in both: nothing shows that their "
            "hosts compute alike",
            hint="Sweep the most precise pair in both; --shard does that by itself.",
        )


def _setup(store: Store) -> Setup:
    setup = store.setup()
    if setup is None:
        raise BadInput(
            source=store.folder, reason="its setup is gone", hint="Sweep it again."
        )
    return setup


def _refuse_difference(ours: Store, mine: Setup, theirs: Store, other: Setup) -> None:
    """
    Stop at setups that differ.

    Raises:
        BadInput: Naming the first key and both values.
    """
    for key, was, now in setup_differences(mine, other):
        raise BadInput(
            source=f"{ours.folder} and {theirs.folder}",
            reason=f"they differ in {key}: {in_words(was)} and {in_words(now)}",
            hint="Merge what was measured alike. To see both: "
            f"{_comparison(ours, theirs)}",
        )
    for probe in sorted(mine.calibrated.keys() & other.calibrated.keys()):
        place = first_other(mine.calibrated[probe], other.calibrated[probe])
        if place:
            raise _unlike(ours, theirs, f"the calibration of {probe}", place)


def _unlike(ours: Store, theirs: Store, what: str, place: str) -> BadInput:
    return BadInput(
        source=f"{ours.folder} and {theirs.folder}",
        reason=f"their hosts do not compute alike: {what} differs from {place} on",
        hint=f"Leave one of them out. To see both: {_comparison(ours, theirs)}",
    )


def _comparison(ours: Store, theirs: Store) -> str:
    """The command that compares two runs, for a shell."""
    folders = (str(ours.folder), str(theirs.folder))
    return visible(shlex.join(["codeneedle", "compare", *folders]))


def _write(
    target: Store, merged: Merged, tell: Callable[[str, int, int], None]
) -> None:
    for folder in (target.folder.parent, target.folder, target.folder / CELLS):
        own_folder(folder)
    with target.locked():
        for folder in merged.sources:
            source = Store(folder)
            target.adopt(_setup(source))
            if text := source.sweep_file():
                keep(decoded_request(text, source=str(folder / SWEEP)), target)
        for at, (key, store) in enumerate(merged.cells.items()):
            tell(f"writing {target.folder}", at, len(merged.cells))
            if store.folder != target.folder.absolute():
                target.copy(store, *key)
        # Once for all: to wait for each of 10,000 files takes minutes.
        os.sync()
