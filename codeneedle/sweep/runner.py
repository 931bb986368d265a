"""Walks the cells of a run, and turns whatever happens into records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from codeneedle.errors import CellError, CodeneedleError, FolderUnusable
from codeneedle.grid import Pair, most_precise
from codeneedle.models.weights import refuse_replaced
from codeneedle.probes.probe import Probe, ProbeContext, RunContext, Step
from codeneedle.records.comparability import stamp
from codeneedle.records.record import AGAIN, CellRecord, Json, Status, Trouble
from codeneedle.records.store import Store
from codeneedle.sweep.fallbacks import prompt_speed, suspects
from codeneedle.system.machine import free_disk_bytes
from codeneedle.system.processes import now
from codeneedle.text import one_line

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
    """The cell is over and its record is on disk; may come again with a new status."""

    record: CellRecord


Event = CellStarted | CellStepped | CellEnded


def pending(
    pairs: Sequence[Pair], *, store: Store, probe: str, retry_failed: bool = False
) -> list[Pair]:
    """
    The pairs still to be measured: untried or interrupted, and failed if wished.

    A failure is a result unless another try is asked for: a pair that no kernel
    supports fails again, and costs the time again.
    """
    return [
        pair
        for pair in pairs
        if (record := store.record(pair, probe)) is None
        or record.status is Status.INTERRUPTED
        or (retry_failed and not record.has_numbers)
    ]


def once_more(probe: Probe, pairs: Sequence[Pair], *, store: Store) -> Probe | None:
    """
    What measures the reference of *pairs* again, once *probe* is through with them.

    Its record has a name of its own, so that it resumes, fails and is paid for as any
    other cell. None if the probe repeats none, or there is nothing to compare.
    """
    records = [store.record(pair, probe.name) for pair in pairs]
    finished = [each.pair for each in records if each and each.has_numbers]
    if not probe.repeats or len(finished) < 2:  # noqa: PLR2004 - a reference and another
        return None
    reference = most_precise(finished)
    return replace(
        probe, name=f"{probe.name}{AGAIN}", order=lambda _: [reference], repeats=False
    )


@dataclass(slots=True, kw_only=True)
class Runner:
    """
    Runs the cells of one run, probe after probe.

    Attributes:
        run: What is the same for every cell.
        store: Where records are and go.
        retry_failed: Whether cells that failed are measured again.
        asked_to_stop: Called between cells; true ends the sweep there.
    """

    run: RunContext
    store: Store
    retry_failed: bool = False
    asked_to_stop: Callable[[], bool] = lambda: False
    _previous_end: float | None = field(default=None, init=False)
    _preflights: dict[Pair, Trouble | None] = field(default_factory=dict, init=False)

    def sweep(
        self,
        probe: Probe,
        pairs: Sequence[Pair],
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """
        Measure the *pairs* that have no record of *probe*.

        Each record is on disk before it is told. Where a cell's numbers show that
        another one fell back, that one is stored and told again with its new status.

        Args:
            probe: What measures.
            pairs: The grid, in running order.
            tell: Called with each event.

        Raises:
            CodeneedleError: If the first cells fail alike and none has finished.
            FolderUnusable: If a cell failed on a disk that is full.
            WeightsReplaced: If the weights are not those any more that the run began
                with; what was measured meanwhile is not stored.
            KeyboardInterrupt: As it came; the cell's record says so.
        """
        records = self._stored(probe)
        failures: list[str] = []
        for pair in pending(
            pairs, store=self.store, probe=probe.name, retry_failed=self.retry_failed
        ):
            if self.asked_to_stop():
                return
            record = self._cell(probe, pair, pairs, records, tell)
            failures = _alike(failures, record)
            has_numbers = any(
                records[each].has_numbers for each in pairs if each in records
            )
            if len(failures) == GIVE_UP_AFTER and not has_numbers:
                raise CodeneedleError(
                    f"the first {GIVE_UP_AFTER} cells failed alike: {failures[0]}",
                    hint="Mend that, then run the same command with --retry-failed.",
                )

    def again(
        self,
        probe: Probe,
        pair: Pair,
        pairs: Sequence[Pair],
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> CellRecord:
        """
        Measure *pair*, one of *pairs*, whatever its record says, and replace that.

        Raises:
            CodeneedleError: As of `sweep`.
            KeyboardInterrupt: As it came.
        """
        return self._cell(probe, pair, pairs, self._stored(probe), tell)

    def _cell(
        self,
        probe: Probe,
        pair: Pair,
        pairs: Sequence[Pair],
        records: dict[Pair, CellRecord],
        tell: Callable[[Event], None],
    ) -> CellRecord:
        """Measure *pair*, and store its record."""
        position = pairs.index(pair) + 1
        tell(CellStarted(pair, position, len(pairs)))
        cell = self._context(pair, records, tell)
        started = now()
        try:
            record = self._measured(probe, cell)
        except KeyboardInterrupt:
            reason = "stopped before it was through"
            record = _record(probe, cell, Status.INTERRUPTED, reason=reason)
            record = replace(record, position=position, started=started)
            self.store.add(record)
            tell(CellEnded(record))
            raise
        finally:
            self._previous_end = cell.previous_end
        record = replace(record, position=position, started=started)
        self._refuse_full_disk(record)
        self._keep(probe, record, records, tell)
        return records[pair]

    def _stored(self, probe: Probe) -> dict[Pair, CellRecord]:
        """
        The probe's records in the folder, of this grid and of earlier ones.

        A probe that measures a pair once more is given those of the first time.
        """
        found, name = {}, probe.name.removesuffix(AGAIN)
        for k in self.run.setup.types_k:
            for v in self.run.setup.types_v:
                record = self.store.record(Pair(k, v), name)
                if record is not None:
                    found[record.pair] = record
        return found

    def _context(
        self,
        pair: Pair,
        records: dict[Pair, CellRecord],
        tell: Callable[[Event], None],
    ) -> ProbeContext:
        return ProbeContext(
            run=self.run,
            pair=pair,
            logs=self.store.log(pair).parent,
            records=records,
            tell=lambda step: tell(CellStepped(pair, step)),
            previous_end=self._previous_end,
        )

    def _measured(self, probe: Probe, cell: ProbeContext) -> CellRecord:
        """The record of *cell*; a failure is one with a status."""
        self._refuse_replaced_weights(cell)
        try:
            self._preflight(cell)
            observation = probe.measure(cell)
        except CellError as error:
            self._refuse_replaced_weights(cell)
            return _record(
                probe,
                cell,
                Status(error.status),
                reason=one_line(str(error)),
                log_excerpt=error.log_excerpt,
            )
        self._refuse_replaced_weights(cell)
        seen = cell.fallback or Trouble(Status.FINISHED, "")
        reason = one_line(seen.reason)
        return _record(probe, cell, seen.status, reason=reason, observation=observation)

    def _preflight(self, cell: ProbeContext) -> None:
        """
        Find out once per pair whether attention stays on the accelerator.

        Raises:
            CellError: If it does not, and such cells are to be skipped.
        """
        engine, pair = self.run.engine, cell.pair
        if not engine.needs_preflight(pair):
            return
        cell.step(0, 1, "checking where attention runs")
        if pair not in self._preflights:
            log = cell.log("preflight")
            self._preflights[pair] = engine.preflight(pair, log=log)
        cell.fallback = self._preflights[pair]
        cell.refuse_fallback()

    def _keep(
        self,
        probe: Probe,
        record: CellRecord,
        records: dict[Pair, CellRecord],
        tell: Callable[[Event], None],
    ) -> None:
        """Store *record*, and mark the cells that now turn out to have fallen back."""
        self.store.add(record)
        records[record.pair] = record
        found = suspects(
            records.values(),
            speed=prompt_speed(probe.metrics, self.run.setup),
            has_device=bool(self.run.engine.identity().devices),
        )
        marked = {
            pair: replace(records[pair], status=trouble.status, reason=trouble.reason)
            for pair, trouble in found.items()
        }
        for each in marked.values():
            self.store.add(each)
        records |= marked
        tell(CellEnded(marked.pop(record.pair, record)))
        for each in marked.values():
            tell(CellEnded(each))

    def _refuse_replaced_weights(self, cell: ProbeContext) -> None:
        def tell(done: int, total: int) -> None:
            share = f"{min(1.0, done / total):.0%}"
            cell.step(0, 1, f"hashing the weights, which were touched: {share}")

        expected = self.run.setup.weights.sha256
        refuse_replaced(self.run.weights, expected=expected, progress=tell)

    def _refuse_full_disk(self, record: CellRecord) -> None:
        """Stop at a failure that may be the disk's: a log without room tells less."""
        if record.has_numbers:
            return
        free = free_disk_bytes(self.store.folder)
        if free < LEAST_FREE_BYTES:
            raise FolderUnusable(
                folder=self.store.folder,
                reason=f"only {free:,} bytes are free",
                hint="Free some space or choose another folder with --out.",
            )


def _record(
    probe: Probe,
    cell: ProbeContext,
    status: Status,
    *,
    reason: str = "",
    observation: Json | None = None,
    log_excerpt: tuple[str, ...] = (),
) -> CellRecord:
    return CellRecord(
        pair=cell.pair,
        probe=probe.name,
        status=status,
        started="",
        reason=reason,
        command=cell.command,
        effective=cell.effective,
        phases=cell.phases,
        peak_rss_bytes=cell.peak_rss_bytes,
        device_bytes=cell.device_bytes,
        log_excerpt=log_excerpt,
        observation=observation,
        setup=stamp(cell.run.setup, probe.name),
    )


def _alike(failures: list[str], record: CellRecord) -> list[str]:
    """
    The failures in a row that are alike, this one included.

    A cell that fell back and was measured all the same is none.
    """
    if record.has_numbers or record.observation is not None:
        return []
    failure = f"{record.status}: {record.reason}"
    return [*failures, failure] if failures[:1] in ([], [failure]) else [failure]
