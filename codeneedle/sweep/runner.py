"""
Measures the cells that are left, by one worker or several, and stores a record of each,
whatever happens; ends where cells fail alike, or the reference has nothing to lose.
"""

import functools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from codeneedle.cache_types import Pair, most_precise
from codeneedle.engines.survey import Survey, why_impossible
from codeneedle.errors import CellError, CodeneedleError, FolderUnusable
from codeneedle.models.weights import Weights, refuse_replaced
from codeneedle.probes.cell import ProbeContext, RunContext, Step
from codeneedle.probes.probe import Probe
from codeneedle.records.comparability import PROGRAM, OtherSetup
from codeneedle.records.record import (
    AGAIN,
    CellRecord,
    Json,
    Run,
    Status,
)
from codeneedle.records.store import Store
from codeneedle.sweep.workers import Worker
from codeneedle.system.files import free_disk_bytes, nap
from codeneedle.system.machine import now
from codeneedle.system.machine_lock import occupying_machine
from codeneedle.system.processes import ending_all_children
from codeneedle.system.secrets import mask_text
from codeneedle.text import one_line, plural, size_text
from codeneedle.verdict.metric_results import why_little_to_lose
from codeneedle.verdict.trust import trusted_run

GIVE_UP_AFTER = 3
"""Cells in a row that fail alike, before any has finished, end the sweep."""

SHORT_HASH = 12
"""Digits of a hash that an error shows."""

FULL_DISK_BYTES = 1 << 20
"""A cell that fails where less is free may have failed for that."""

STOPPED = "stopped before it was through"
"""Why an interrupted cell has no numbers."""

GOING_ON = f"is being measured, or {STOPPED}"
"""The same of what is stored while a cell runs: it may be killed with its sweep."""


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A server for *pair* is about to start."""

    pair: Pair


@dataclass(frozen=True, slots=True)
class CellStepped:
    """The probe of *pair* moved on."""

    pair: Pair
    step: Step


@dataclass(frozen=True, slots=True)
class CellEnded:
    """
    The cell is over and its record is on disk.

    May come again, with the status that follows from a cell that was measured later.
    """

    record: CellRecord


Event = CellStarted | CellStepped | CellEnded


def is_left_to_measure(record: CellRecord | None, *, retries: bool) -> bool:
    """
    Whether a cell is untried or interrupted, or failed where that is tried again.

    A failure is a result: a pair that no kernel supports fails again, and takes as long
    again.
    """
    if record is None or (retries and not record.has_numbers):
        return True
    return record.status is Status.INTERRUPTED


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs the cells of one run, probe after probe."""

    run: RunContext  # what is the same for every cell
    store: Store  # where records are and go
    retry_failed: bool = False  # whether cells that failed are measured again
    asked_to_stop: Callable[[], bool] = lambda: False
    """Called between cells; true ends the sweep there."""

    may_wait: bool = True
    """Whether a cell waits for other sweeps if one of them takes times."""

    tries_reference: bool = False
    """Whether a reference that has nothing to lose ends the sweep."""

    goal: int | None = None
    """Units that each cell is asked for; None for as many as every sweep asks."""

    workers: Sequence[Worker] = ()
    """What measures, side by side; by default one on the whole machine."""

    timing_worker: Worker | None = None
    """What measures probes that take times; None for the first of *workers*."""

    def __post_init__(self) -> None:
        self.workers = self.workers or [Worker(engine=self.run.engine)]

    def measure_pairs(
        self,
        probe: Probe,
        pairs: Sequence[Pair],
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """
        Measure the *pairs* that are left of *probe*.

        Raises:
            CodeneedleError: See `measure_cells_of_queue`.
        """
        self.measure_cells_of_queue(CellQueue(self, probe, pairs), tell=tell)

    def measure_cells_of_queue(
        self,
        queue: "CellQueue",
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """
        Measure the cells that are left in a new *queue* of this runner.

        Each record is on disk before its event. Where the numbers of a cell show that
        another one fell back, there is an event for that one, too, with its new status.

        Args:
            queue: The cells, and what is known of them.
            tell: Called with each event, in the thread of the caller.

        Raises:
            CodeneedleError: If the first cells fail alike and none has finished; or if
                no pair can lose anything beside the reference.
            FolderUnusable: If a cell failed on a disk that is full.
            BadInput: If the file of the weights has been replaced since the run
                began; what was measured meanwhile is not stored.
            KeyboardInterrupt: As it came; running cells have an interrupted record.
        """
        queue.refuse_nothing_to_lose()
        alone = self.timing_worker or self.workers[0]
        workers = [alone] if queue.probe.is_timed else self.workers
        if len(workers) == 1:
            queue.tell = tell
            self._measure_queue(workers[0], queue)
        else:
            self._measure_side_by_side(workers, queue, tell)
        if queue.error:
            raise queue.error

    def read_run_and_calibration(self) -> Run:
        """
        The run as it is stored by now, with derived statuses.

        Takes in what references have calibrated meanwhile, see `add_calibration`.
        """
        # By tasks before: each has a runner of its own.
        self.add_calibration(self.store.read_calibrations())
        return trusted_run(self.store.run_under_setup(self.run.setup))

    def measure_further_units(
        self,
        probe: Probe,
        pair: Pair,
        goal: int,
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> CellRecord:
        """
        Measure further units of *pair*, which has numbers: *goal* altogether.

        A failure leaves the answers that there are.

        Returns:
            Its record, or that of the failure.

        Raises:
            CodeneedleError: See `measure_cells_of_queue`.
            KeyboardInterrupt: As it came.
        """
        return self._measure_more_of_pair(probe, pair, goal=goal, tell=tell)

    def measure_crosscheck(
        self,
        probe: Probe,
        pair: Pair,
        *,
        tell: Callable[[Event], None] = lambda _event: None,
    ) -> CellRecord:
        """
        Ask *pair*, which has numbers, what checks them: `Further.checks`.

        A failure leaves the answers that there are; returned and raised is as of
        `measure_further_units`.
        """
        return self._measure_more_of_pair(probe, pair, is_check=True, tell=tell)

    def _measure_more_of_pair(
        self,
        probe: Probe,
        pair: Pair,
        *,
        goal: int | None = None,
        is_check: bool = False,
        tell: Callable[[Event], None],
    ) -> CellRecord:
        """
        Ask *pair* more, behind what it has answered, on the first worker.

        Where the user stops it while it waits, a KeyboardInterrupt ends it.
        """
        queue = CellQueue(self, probe, [pair])
        queue.tell = tell
        tell(CellStarted(pair))
        try:
            worker = self.workers[0]
            return self._measure_and_store(
                worker, queue, pair, goal=goal, is_check=is_check
            )
        except _Stopped:
            raise KeyboardInterrupt from None

    def add_calibration(self, calibrated: Mapping[str, Json]) -> None:
        """Take in what the reference has *calibrated*, by probe; nothing is stored."""
        setup = self.run.setup
        known = {**setup.calibrated, **calibrated}
        self.run = replace(self.run, setup=replace(setup, calibrated=known))

    def _measure_side_by_side(
        self,
        workers: Sequence[Worker],
        queue: "CellQueue",
        tell: Callable[[Event], None],
    ) -> None:
        """
        Run each worker in a thread; this one shows events and takes signals.

        An error of one worker ends the others after their cells; what is raised here,
        such as the second Ctrl-C, ends their servers.
        """
        events: SimpleQueue[Event | None] = SimpleQueue()
        queue.tell = events.put

        def run_worker_thread(worker: Worker) -> None:
            try:
                self._measure_queue(worker, queue)
            except BaseException as error:  # noqa: BLE001 - raised by the main thread
                queue.error = queue.error or error
            finally:
                events.put(None)

        threads = [
            threading.Thread(target=run_worker_thread, args=(worker,), daemon=True)
            for worker in workers
        ]
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                while (event := events.get()) is not None:
                    tell(event)
        except BaseException:
            queue.abort()
            with ending_all_children():
                for thread in threads:
                    if thread.ident is not None:
                        thread.join()
            raise

    def _measure_queue(self, worker: Worker, queue: "CellQueue") -> None:
        """Measure cells of *queue* until none is left."""
        while (pair := queue.wait_and_take_pair()) is not None:
            try:
                queue.tell(CellStarted(pair))
                self._measure_and_store(worker, queue, pair, goal=self.goal)
            except _Stopped:
                return
            finally:
                queue.release_pair(pair)

    def _measure_and_store(
        self,
        worker: Worker,
        queue: "CellQueue",
        pair: Pair,
        *,
        goal: int | None = None,
        is_check: bool = False,
    ) -> CellRecord:
        """
        Measure a cell and store its record, unless that would lose numbers.

        Returns the record with its derived status, or that of the failure.
        """
        draft = self._draft_cell(worker, queue, pair, goal=goal, is_check=is_check)
        try:
            record = self._wait_and_measure_cell(queue, draft)
        except KeyboardInterrupt:
            record = draft.record(Status.INTERRUPTED, reason=STOPPED)
            queue.tell(CellEnded(self._store_keeping_numbers(draft, record)))
            raise
        finally:
            worker.previous_end = draft.cell.previous_end
        self._refuse_full_disk(record)
        with queue.changed:
            before, stored = (
                draft.stored,
                queue.add_and_report_record(self._store_keeping_numbers(draft, record)),
            )
            # A failure leaves the numbers that there were.
            record = record if draft.stored is before else stored
        queue.count_and_refuse_like_failures(record)
        return record

    def _draft_cell(
        self,
        worker: Worker,
        queue: "CellQueue",
        pair: Pair,
        *,
        goal: int | None,
        is_check: bool,
    ) -> "_Draft":
        """A cell before it is measured, which goes on with what is stored if it may."""

        def report_step_or_interrupt(step: Step) -> None:
            if queue.is_aborted:
                raise KeyboardInterrupt
            queue.tell(CellStepped(pair, step))

        def check_and_store_calibration(facts: Json) -> None:
            self._refuse_replaced_weights(cell)
            self.store.store_calibration(queue.probe.name, facts)
            self.add_calibration({queue.probe.name: facts})

        def keep_or_refuse_program(program: str) -> None:
            with queue.changed:
                self._keep_or_refuse_program(program)

        previous = queue.stored_record(pair)
        cell = ProbeContext(
            run=replace(
                self.run,
                engine=worker.engine,
                survey=self.run.survey if worker.is_surveyed else None,
            ),
            pair=pair,
            logs=self.store.make_log_folder(),
            tell=report_step_or_interrupt,
            calibrate=check_and_store_calibration,
            identify=keep_or_refuse_program,
            previous_record=previous
            if previous
            and (previous.is_partial or ((goal or is_check) and previous.has_numbers))
            else None,
            goal=goal,
            variant=queue.variant,
            is_check=is_check,
            others=queue.records_of_other_pairs(pair),
            previous_end=worker.previous_end,
        )
        draft = _Draft(
            cell=cell,
            probe=queue.probe.name,
            position=queue.pairs.index(pair) + 1,
            device=worker.device,
            observation=cell.previous_record.observation
            if cell.previous_record
            else None,
            stored=previous,
        )
        cell.store_observation_so_far = functools.partial(
            self._store_observation_so_far, draft
        )
        return draft

    def _keep_or_refuse_program(self, program: str) -> None:
        """
        Stop at a server whose *program*, a hash, is not that of the cells so far.

        If none is known, or the folder has no numbers, it is stored as that of the run.

        Raises:
            OtherSetup: With both hashes.
        """
        known = self.run.setup.calibrated.get(PROGRAM, {}).get("sha256")
        if known == program:
            return
        if known and self.store.has_numbers():
            error = OtherSetup(
                folder=self.store.folder,
                key="program that serves",
                stored=known[:SHORT_HASH],
                wanted=program[:SHORT_HASH],
            )
            error.hint = (
                "What the command starts is another program than before, whatever "
                "version it states: put the earlier one back, or choose another folder "
                "with --out."
            )
            raise error
        facts = {"sha256": program}
        self.store.store_calibration(PROGRAM, facts)
        self.add_calibration({PROGRAM: facts})

    def _store_observation_so_far(self, draft: "_Draft", observation: Json) -> None:
        """Store what a cell has observed so far; refuse weights that were replaced."""
        self._refuse_replaced_weights(draft.cell)
        draft.observation = observation
        draft.stored = self.store.write_record(draft.record_so_far())

    def _wait_and_measure_cell(self, queue: "CellQueue", draft: "_Draft") -> CellRecord:
        """
        The record of a cell, once no other sweep is in the way.

        A failure to measure is a record, too.
        """
        cell = draft.cell
        waiting = (
            functools.partial(self._wait_for_other_sweep, cell)
            if self.may_wait
            else None
        )
        with occupying_machine(
            self.store.name, exclusive=queue.probe.is_timed, waiting=waiting
        ):
            self._refuse_replaced_weights(cell)
            try:
                refuse_impossible_cell(cell)
                observation = queue.probe.measure(cell)
            except CellError as error:
                status, excerpt = Status(error.status), error.log_excerpt
                record = draft.record(status, reason=str(error), log_excerpt=excerpt)
            else:
                record = draft.record(Status.FINISHED, observation=observation)
            self._refuse_replaced_weights(cell)
        if queue.is_aborted and not record.has_numbers:
            raise KeyboardInterrupt  # its server was ended for that
        return record

    def _store_keeping_numbers(self, draft: "_Draft", record: CellRecord) -> CellRecord:
        """
        Store *record*, unless a failure would replace numbers.

        Returns the record that is stored then.
        """
        previous = draft.stored
        is_failure = not (record.has_numbers or record.computes_nan)
        if previous and previous.has_numbers and is_failure:
            return previous
        draft.stored = self.store.write_record(record)
        return draft.stored

    def _refuse_replaced_weights(self, cell: ProbeContext) -> None:
        """
        Stop if the weights are no longer those of the run.

        Files that were touched since are hashed.
        """

        def report_hashing(done: int, total: int) -> None:
            share = f"{min(1.0, done / total):.0%}"
            cell.report_step(0, 1, f"hashing the weights, which were touched: {share}")

        expected = self.run.setup.weights.sha256
        refuse_replaced(self.run.weights, expected=expected, progress=report_hashing)

    def _wait_for_other_sweep(self, cell: ProbeContext, who: str) -> None:
        """
        Report that another sweep, *who* or empty, is waited for, and wait a moment.

        Raises:
            _Stopped: If this sweep is to end.
        """
        if self.asked_to_stop():
            raise _Stopped
        told = f"{who}; --no-wait" if who else "--no-wait"
        cell.report_wait(f"waiting for another sweep on this machine ({told})")
        nap()

    def _refuse_full_disk(self, record: CellRecord) -> None:
        """Stop at a failure whose cause may be a full disk: its log is cut off."""
        if record.has_numbers:
            return
        free = free_disk_bytes(self.store.folder)
        if free < FULL_DISK_BYTES:
            reason = f"only {size_text(free)} is free"
            raise FolderUnusable(folder=self.store.folder, reason=reason)


def refuse_impossible_cell(cell: ProbeContext) -> None:
    """
    Stop at a pair that the engine cannot run, without starting a server.

    Raises:
        CellError: With what the survey says.
    """
    refuse_impossible_pair(cell.run.survey, cell.run.weights, cell.pair)


def refuse_impossible_pair(survey: Survey | None, weights: Weights, pair: Pair) -> None:
    """
    Stop at a *pair* that cannot run; *survey* is None if the engine cannot say.

    Raises:
        CellError: With what the survey says.
    """
    if reason := why_impossible(survey, weights, pair):
        raise CellError(
            reason,
            hint="Other pairs run: codeneedle kernels",
            status=Status.UNSUPPORTED,
        )


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A cell while it is measured, and what all its records have in common."""

    cell: ProbeContext  # what its probe is given
    probe: str  # name of the probe
    position: int  # place in the running order, from 1
    device: str  # phrase of the worker
    observation: Json | None  # what was observed so far; None if nothing was
    stored: CellRecord | None  # what its file holds by now
    started: str = field(default_factory=now)  # when it began

    def record(
        self,
        status: Status,
        *,
        reason: str = "",
        observation: Json | None = None,
        log_excerpt: tuple[str, ...] = (),
    ) -> CellRecord:
        """
        The record with *status*.

        Place and date are those of the first server of the cell. One that ended early
        has what was observed so far.
        """
        cell, previous = self.cell, self.cell.previous_record
        # What checks a cell runs in another program than what measured it.
        seen = previous if cell.is_check and previous else cell
        record = CellRecord(
            pair=cell.pair,
            probe=self.probe,
            variant=cell.variant,
            status=status,
            started=previous.started if previous else self.started,
            reason=mask_text(one_line(reason)),
            position=previous.position if previous else self.position,
            command=seen.command,
            effective=seen.effective,
            phases=cell.phases.with_previous_added(previous.phases)
            if previous
            else cell.phases,
            peak_rss_bytes=cell.peak_rss_bytes,
            silence_s=cell.silence_s,
            device_bytes=cell.device_bytes,
            device_peak_bytes=cell.device_peak_bytes,
            log_excerpt=tuple(map(mask_text, log_excerpt)),
            observation=observation,
            device=self.device,
        )
        partial = replace(record, observation=observation or self.observation)
        return partial if partial.is_partial else record

    def record_so_far(self) -> CellRecord:
        """
        The record while it is measured: of an interrupted cell.

        A whole one that is asked for more keeps its status.
        """
        previous = self.cell.previous_record
        if previous is None or previous.is_partial:
            return self.record(Status.INTERRUPTED, reason=GOING_ON)
        return self.record(
            previous.status, reason=previous.reason, observation=self.observation
        )


class NothingToLose(CodeneedleError):  # noqa: N818 - named after the fact
    """The reference has too little right for any pair to lose."""


class _Stopped(Exception):  # noqa: N818 - named after the fact
    """The sweep is to end while it waits for another one."""


class CellQueue:
    """The cells of one probe while workers measure them."""

    probe: Probe  # what measures
    pairs: Sequence[Pair]  # the grid, in running order
    records: dict[Pair, CellRecord]  # what is stored of it, with derived statuses
    tell: Callable[[Event], None]  # takes events
    changed: threading.Condition  # held while any of this changes
    is_aborted: bool = False  # whether running cells are to end at once
    error: BaseException | None = None
    """What ended a worker; the others end after their cells."""

    variant: str  # see `CellRecord`

    def __init__(
        self, runner: Runner, probe: Probe, pairs: Sequence[Pair], variant: str = ""
    ) -> None:
        """Read what is stored of *pairs*, and note which are left to measure."""
        self.probe = probe
        self.variant = variant
        self.pairs = pairs
        self.tell = lambda _event: None
        self.changed = threading.Condition(threading.RLock())
        self.runner = runner
        self._observed = self._records_by_pair_and_variant()
        self.records = self._trusted_records()
        self._left = [pair for pair in pairs if self._is_pending(pair)]
        self._measuring: set[Pair] = set()
        self._failures: list[str] = []

    def _is_pending(self, pair: Pair) -> bool:
        """Whether *pair* is still to be measured, by its record."""
        return is_left_to_measure(
            self.records.get(pair), retries=self.runner.retry_failed
        )

    @property
    def pairs_left(self) -> tuple[Pair, ...]:
        """The pairs that no worker has taken yet, in running order."""
        return tuple(self._left)

    @property
    def done_records(self) -> dict[Pair, CellRecord]:
        """
        The records of the pairs that are not left, in running order.

        A failed cell that is measured again is not done, whatever its file says.
        """
        left = {*self._left}
        pairs = (pair for pair in self.pairs if pair not in left)
        return {pair: self.records[pair] for pair in pairs if pair in self.records}

    def wait_and_take_pair(self) -> Pair | None:
        """
        The next cell for a worker, once there is one; None if there is none.

        It waits while the reference calibrates; None after an error or a stop, too.
        """
        with self.changed:
            while self._left:
                if self.error or self.is_aborted or self.runner.asked_to_stop():
                    break
                if self._measuring and self.needs_calibration():
                    self.changed.wait()
                else:
                    pair = self._pop_next()
                    self._measuring.add(pair)
                    return pair
            return None

    def _pop_next(self) -> Pair:
        """Take the next cell that is left: the most precise, where it calibrates."""
        pair = most_precise(self._left) if self.needs_calibration() else self._left[0]
        self._left.remove(pair)
        return pair

    def release_pair(self, pair: Pair) -> None:
        """Note that *pair* is not measured any more, and wake what waits for it."""
        with self.changed:
            self._measuring.discard(pair)
            self.changed.notify_all()

    def abort(self) -> None:
        """Have running cells end at their next step, and begin none."""
        with self.changed:
            self.is_aborted = True
            self.changed.notify_all()

    def needs_calibration(self) -> bool:
        """Whether the next cell calibrates the probe for all others."""
        setup = self.runner.run.setup
        is_set = self.probe.name in setup.calibrated and any(
            record.observation is not None and not record.is_partial
            for record in self.records.values()
        )
        return self.probe.calibrating is not None and not is_set

    def records_of_other_pairs(self, pair: Pair) -> tuple[CellRecord, ...]:
        """
        The records with numbers of other pairs, by which what *pair* takes is known.

        Nothing for a cell that took too long: it is given all the time there is.
        """
        before = self.records.get(pair)
        if before and before.status is Status.TIMED_OUT:
            return ()
        return tuple(
            record
            for other, record in self.records.items()
            if other != pair and record.has_numbers
        )

    def stored_record(self, pair: Pair) -> CellRecord | None:
        """The record of *pair* as it is stored; None if there is none."""
        return self._observed.get((pair, self.variant))

    def add_and_report_record(self, record: CellRecord) -> CellRecord:
        """
        Take in a stored *record*, with events for it and for others that it changes.

        Returns:
            *record*, with its derived status.
        """
        with self.changed:
            before = self.records
            self._observed[record.pair, record.variant] = record
            self.records = self._trusted_records()
            record = self.records[record.pair]
            others = [r for p, r in self.records.items() if r != before.get(p, r)]
            self.tell(CellEnded(record))
            for other in others:
                if other.pair != record.pair:
                    self.tell(CellEnded(other))
        return record

    def count_and_refuse_like_failures(self, record: CellRecord) -> None:
        """
        Count *record* among failures in a row that are alike, or begin anew.

        Raises:
            CodeneedleError: If the first `GIVE_UP_AFTER` cells failed alike.
            NothingToLose: See `refuse_nothing_to_lose`.
        """
        with self.changed:
            self.refuse_nothing_to_lose()
            self._failures = _alike_failures(self._failures, record)
            has_numbers = any(
                self.records[pair].has_numbers
                for pair in self.pairs
                if pair in self.records
            )
            if len(self._failures) == GIVE_UP_AFTER and not has_numbers:
                raise CodeneedleError(
                    f"the first {GIVE_UP_AFTER} cells failed alike: "
                    f"{self._failures[0]}",
                    hint="Mend that, then run the same command with --retry-failed.",
                )

    def refuse_nothing_to_lose(self) -> None:
        """
        Stop at a reference that has nothing to lose, if cells are left.

        Only where `Runner.tries_reference` is set.

        Raises:
            NothingToLose: With other models, corpora and probes as the way out.
        """
        record = self.records.get(most_precise(self.pairs))
        is_tried = self.runner.tries_reference and self._left
        if not is_tried or record is None or not record.has_numbers:
            return
        setup = self.runner.run.setup
        losses = [m.loss for m in self.probe.metrics_of(setup) if m.loss]
        reasons = [why_little_to_lose(loss, record, setup) for loss in losses]
        if reasons and all(reasons):
            raise NothingToLose(
                f"{self.probe.name}: {reasons[0]}; the other "
                f"{plural(len(self._left), 'cell')} would show nothing",
                hint="Choose another --model, --context, --corpus or --probe with "
                "another --out, or go on with --no-calibration.",
            )

    def _records_by_pair_and_variant(self) -> dict[tuple[Pair, str], CellRecord]:
        """
        The records of the probe in the folder, of this grid and of earlier ones.

        A repetition of the reference is verified beside the records of the first time.
        """
        grid = {*self.runner.run.setup.grid, *self.pairs}
        variants = {self.variant, "" if self.variant == AGAIN else self.variant}
        return {
            (record.pair, record.variant): record
            for record in self.runner.store.read_records(self.probe.name)
            if record.pair in grid and record.variant in variants
        }

    def _trusted_records(self) -> dict[Pair, CellRecord]:
        """The records of this probe and variant with derived statuses, by pair."""
        setup, observed = self.runner.run.setup, tuple(self._observed.values())
        run = trusted_run(
            Run(name="", setup=setup, records=()).with_every_record(observed)
        )
        return {r.pair: r for r in run.every_record if r.variant == self.variant}


_CHANGING = re.compile(r"\d+:\d\d:\d\d|\d{4,}")
"""Ports, process numbers and times of a message."""


def _alike_failures(failures: list[str], record: CellRecord) -> list[str]:
    """
    *failures* in a row with that of *record*, if it is alike but for ports and times.

    If not, that one alone; none of a cell that was measured, or of a finding about its
    pair.
    """
    is_measured = record.observation is not None and not record.is_partial
    if record.has_numbers or is_measured or record.computes_nan:
        return []
    failure = f"{record.status}: {record.reason}"
    first = _CHANGING.sub("", failures[0] if failures else failure)
    is_alike = first == _CHANGING.sub("", failure)
    return [*failures, failure] if is_alike else [failure]
