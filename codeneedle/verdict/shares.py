"""
Shares of a run are read as one: of a cell that several have, the record with more
answers; refused if setups differ, or answers to what both have measured.
"""

import functools
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from codeneedle.errors import BadInput
from codeneedle.probes import PROBES
from codeneedle.probes.probe import answered_or_skipped_keys
from codeneedle.records.comparability import (
    first_observation_difference_path,
    merge_compatible_setups,
    setup_differences,
)
from codeneedle.records.record import CellRecord, Key, Run, Setup, Status, key_of
from codeneedle.records.store import Store
from codeneedle.text import escape_invisible, json_value_phrase
from codeneedle.verdict.trust import trusted_run


@dataclass(slots=True, kw_only=True)
class Union:
    """Several folders with one setup, read as one run."""

    stores: tuple[Store, ...]
    setups: tuple[Setup, ...]  # of each
    cells: dict[Key, Store] = field(default_factory=dict)
    """The folder from which the record of each cell and probe is taken."""

    records: dict[Key, CellRecord] = field(default_factory=dict)
    """Those, as they are stored."""

    compared: dict[Key, int] = field(default_factory=dict)
    """How many folders hold a cell, for those that several hold alike."""

    left_out: list[str] = field(default_factory=list)
    """Why a record could not be taken, with its folder, a line each."""

    @property
    def run(self) -> Run:
        """The run, with derived statuses; reads the first folder's sweep file."""
        first = self.stores[0]
        setup = functools.reduce(merge_compatible_setups, self.setups)
        run = Run(
            name=first.run_name,
            setup=setup,
            records=(),
            root=first.folder.parent.parent,
            sweep=first.read_sweep_file_or_empty(),
        )
        return trusted_run(run.with_every_record(self.records.values()))


def join_stores(
    stores: Iterable[Store],
    tell: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> Union:
    """
    The records of all *stores* as one run: of two of a cell, the one with more answers.

    Args:
        stores: Run folders; those of different probes need no cell in common.
        tell: Takes what is done, how many folders are read, and of how many.

    Raises:
        BadInput: If setups differ, if a folder has of a probe that those before it have
            no cell in common with them, or if the observations of one differ.
    """
    stores = tuple(stores)
    setups = tuple(map(required_setup_of, stores))
    joined = Union(stores=stores, setups=setups)
    for store, setup in zip(stores[1:], setups[1:], strict=True):
        _refuse_difference(stores[0], setups[0], store, setup)
    for at, store in enumerate(stores):
        tell(f"reading {store.folder}", at, len(stores))
        before = {key.probe for key in joined.cells}
        alone: set[str] = set()
        common: set[str] = set()
        for record in store.read_records():
            is_common = _add_or_compare_record(joined, store, record)
            if _is_comparable(record):
                (common if is_common else alone).add(record.probe)
        _refuse_probes_sharing_no_cell(stores[0], store, (alone - common) & before)
    return joined


def read_runs_joining_shares(stores: Sequence[Store]) -> list[Run]:
    """
    The runs in *stores*, with derived statuses: shares of one are read as one.

    A folder without a run is left out.

    Raises:
        BadInput: See `join_stores`.
        BadSetup: If a setup cannot be read.
    """
    # Shares of several folders of runs are of one run; a whole run is none of theirs.
    shared = {_run_key(store) for store in stores if store.is_share}
    groups: dict[object, list[Store]] = {}
    for store in stores:
        is_part = store.is_share or _run_key(store) in shared
        key = store.run_name if is_part else store.folder.resolve()
        groups.setdefault(key, []).append(store)
    runs = []
    for group in groups.values():
        if group[1:] or group[0].is_share:
            runs.append(join_stores(group).run)
        elif run := group[0].read_run():
            runs.append(trusted_run(run))
    return runs


def _run_key(store: Store) -> tuple[object, str]:
    """What is equal for the shares of one run, and for that run."""
    return store.folder.parent.resolve(), store.run_name


def _add_or_compare_record(joined: Union, store: Store, record: CellRecord) -> bool:
    """
    Note where *record* is; returns whether another folder has an equal one.

    Of two equal ones, the one with more answers is taken; an interrupted one is kept
    only as a gap, where no other is.

    Raises:
        BadInput: If another folder has one with other observations.
    """
    key = key_of(record)
    other = joined.records.get(key)
    if record.status is Status.INTERRUPTED:
        if not record.started:  # it could not be read as one of this cell and setup
            joined.left_out.append(f"{store.folder}: {key}: {record.reason}")
        joined.records.setdefault(key, record)  # a gap with its reason
        return False
    if other is None or not other.has_numbers:
        joined.cells[key], joined.records[key] = store, record
        return False
    if not _is_comparable(record):
        return False
    if place := first_observation_difference_path(
        other.observation, record.observation
    ):
        what = str(key)
        if other.attention is not record.attention:
            ran = (
                cell_record.attention or "unknown" for cell_record in (other, record)
            )
            what += f" (attention: {' and '.join(ran)})"
        raise _hosts_error(joined.cells[key], store, what, place)
    if len(answered_or_skipped_keys(record)) > len(answered_or_skipped_keys(other)):
        joined.cells[key], joined.records[key] = store, record
    joined.compared[key] = joined.compared.get(key, 1) + 1
    return True


def _is_comparable(record: CellRecord) -> bool:
    """Whether its observation has more than times, so that it can be compared."""
    probe = PROBES.get(record.probe)
    is_first = not record.variant
    return record.has_numbers and is_first and probe is not None and not probe.is_timed


def _refuse_probes_sharing_no_cell(
    first: Store, store: Store, probes: set[str]
) -> None:
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


def required_setup_of(store: Store) -> Setup:
    """
    The setup of *store*.

    Raises:
        BadInput: If it has none.
    """
    setup = store.read_setup()
    if setup is None:
        raise BadInput(
            source=store.folder, reason="its setup is gone", hint="Sweep it again."
        )
    return setup


def _refuse_difference(ours: Store, mine: Setup, theirs: Store, other: Setup) -> None:
    """
    Stop at setups that differ, or whose calibrations do.

    Raises:
        BadInput: Naming the first key and both values.
    """
    for key, was, now in setup_differences(mine, other):
        raise BadInput(
            source=f"{ours.folder} and {theirs.folder}",
            reason=f"they differ in {key}: {json_value_phrase(was)} and "
            f"{json_value_phrase(now)}",
            hint="Merge what was measured alike. To see both: "
            f"{_comparison_command(ours, theirs)}",
        )
    for probe in sorted(mine.calibrated.keys() & other.calibrated.keys()):
        place = first_observation_difference_path(
            mine.calibrated[probe], other.calibrated[probe]
        )
        if place:
            raise _hosts_error(ours, theirs, f"the calibration of {probe}", place)


def _hosts_error(ours: Store, theirs: Store, what: str, place: str) -> BadInput:
    """The error for two folders of which *what* differs from *place* on."""
    return BadInput(
        source=f"{ours.folder} and {theirs.folder}",
        reason=f"their hosts do not compute alike: {what} differs from {place} on",
        hint=f"Leave one of them out. To see both: {_comparison_command(ours, theirs)}",
    )


def _comparison_command(ours: Store, theirs: Store) -> str:
    """The command that compares two runs, for a shell."""
    folders = (str(ours.folder), str(theirs.folder))
    return escape_invisible(shlex.join(["codeneedle", "compare", *folders]))
