"""Walks the grid: plays the cells that have no record yet, and tells as it goes."""

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from codeneedle.errors import CodeneedleError
from codeneedle.grid import Pair
from codeneedle.machine import free_disk_bytes
from codeneedle.planning import DiskFull
from codeneedle.probe import Step
from codeneedle.records import CellRecord, Status
from codeneedle.store import Store

GIVE_UP_AFTER = 3
"""Cells in a row that fail alike, before any has finished, end the sweep."""

LEAST_FREE_BYTES = 1 << 20
"""A cell that fails where less is free may have failed for that."""


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A server for *pair* is about to start; *position* counts from 1."""

    pair: Pair
    position: int
    total: int


@dataclass(frozen=True, slots=True)
class CellStepped:
    """The probe of *pair* moved on."""

    pair: Pair
    step: Step


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The cell is over and its record is on disk."""

    record: CellRecord


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that a person should know came up; it changes no record."""

    what: str


Event = CellStarted | CellStepped | CellEnded | Noted
Play = Callable[[Pair, int], Generator[Event, None, None]]
"""Plays one cell, given its place in the running order; `CellEnded` comes last."""


class FailingAlike(CodeneedleError):  # noqa: N818 - named after the fact
    """The first cells all failed in the same way; the others would, too."""

    def __init__(self, *, times: int, reason: str) -> None:
        super().__init__(
            f"the first {times} cells failed alike: {reason}",
            hint="Mend that, then run the same command with --retry-failed.",
        )


def run(
    pairs: Sequence[Pair],
    *,
    store: Store,
    probe: str,
    play: Play,
    retry_failed: bool = False,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Generator[Event, None, None]:
    """
    Play the pairs that have no record, each record on disk before it is told.

    The caller pulls: stop iterating and the sweep stops, with every finished
    cell already stored.

    Args:
        pairs: The grid, in running order.
        store: Where records are and go.
        probe: Name of the probe whose records count.
        play: Measures one cell.
        retry_failed: Whether cells that failed are played again.
        asked_to_stop: Looked at between cells; true ends the sweep there.

    Raises:
        FailingAlike: If the first cells fail alike and none has finished.
        DiskFull: If a cell failed on a disk that is full.
    """
    open_pairs = pending(pairs, store=store, probe=probe, retry_failed=retry_failed)
    position = {pair: at for at, pair in enumerate(pairs, start=1)}
    streak: list[str] = []
    for pair in open_pairs:
        if asked_to_stop():
            return
        yield CellStarted(pair, position[pair], len(pairs))
        with contextlib.closing(play(pair, position[pair])) as events:
            for event in events:
                if isinstance(event, CellEnded):
                    _refuse_if_full(event.record, store)
                    store.add(event.record)
                    streak = _streak(streak, event.record)
                yield event
        if len(streak) == GIVE_UP_AFTER and not any_finished(pairs, store, probe):
            raise FailingAlike(times=GIVE_UP_AFTER, reason=streak[0])


def pending(
    pairs: Sequence[Pair], *, store: Store, probe: str, retry_failed: bool = False
) -> list[Pair]:
    """
    The pairs still to be played: untried or interrupted, and failed if wished.

    A failure is a result as long as nobody asks for another try: a pair that no
    kernel supports fails again, and costs the time again.
    """
    return [
        pair
        for pair in pairs
        if _is_open(store.record(pair, probe), retry_failed=retry_failed)
    ]


def any_finished(pairs: Sequence[Pair], store: Store, probe: str) -> bool:
    """Whether a cell of *pairs* has numbers."""
    records = (store.record(pair, probe) for pair in pairs)
    return any(record is not None and record.is_finished for record in records)


def _refuse_if_full(record: CellRecord, store: Store) -> None:
    """Stop at a failure that is the disk's: what had no room in a log is missing."""
    if record.is_finished or record.status is Status.INTERRUPTED:
        return
    free_bytes = free_disk_bytes(store.folder)
    if free_bytes < LEAST_FREE_BYTES:
        raise DiskFull(folder=store.folder, free_bytes=free_bytes)


def _is_open(record: CellRecord | None, *, retry_failed: bool) -> bool:
    if record is None or record.status is Status.INTERRUPTED:
        return True
    return retry_failed and not record.is_finished


def _streak(streak: list[str], record: CellRecord) -> list[str]:
    """
    The failures in a row that are alike, this one included.

    A cell that fell back and was measured all the same is none.
    """
    if record.is_finished or record.observation is not None:
        return []
    failure = f"{record.status}: {record.reason}"
    return [*streak, failure] if streak[:1] in ([], [failure]) else [failure]
