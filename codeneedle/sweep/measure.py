"""
The loop of a sweep: takes the task that is next, measures it if ``--budget`` leaves
time, notes what became of it, and says whether all that was asked for has numbers.

Nothing is shown here: an `Observer` is told.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from codeneedle.cache_types import Pair
from codeneedle.probes.cell import RunContext
from codeneedle.probes.probe import Probe
from codeneedle.records.record import CellRecord, Run, Status
from codeneedle.sweep.plan import Plan, PlannedTask
from codeneedle.sweep.runner import (
    CellEnded,
    CellQueue,
    Event,
    NothingToLose,
    Runner,
    is_left_to_measure,
)
from codeneedle.sweep.running_order import (
    measurable_pairs,
    measures_reference_first,
    pair_to_repeat,
    running_order,
)
from codeneedle.sweep.schedule import (
    JudgedTask,
    Schedule,
    Stage,
    Taken,
    Task,
    Variant,
    Wanted,
    is_short_of_task,
    judge_run_and_pick_task,
    reference_candidates,
    reference_of,
)
from codeneedle.sweep.steps import first_step_limit_s
from codeneedle.sweep.workers import device_agreement_sentence
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import PROBE
from codeneedle.verdict.trust import trusted_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command, beside what is to be measured."""

    retry_failed: bool = False  # whether cells that failed are measured again
    more: bool | None = None
    """
    Whether open pairs are measured with further functions; None: until that took
    `schedule.FURTHER_TIME_RATIO` of the time of all else.
    """

    budget_s: float | None = None
    """Seconds after which no cell starts; None for no limit."""

    wait: bool = True
    """Whether a cell waits for other sweeps if one of them takes times."""

    calibration: bool = True
    """Whether a reference that has nothing to lose ends a long sweep."""

    limits: Limits  # largest losses that the user accepts


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The time after which no cell starts."""

    began: float  # when the command began, in monotonic seconds
    budget_s: float | None = None  # None for no limit

    @property
    def left_s(self) -> float:
        """Seconds until then; infinite without a limit."""
        if self.budget_s is None:
            return math.inf
        return self.budget_s - self.spent_s

    @property
    def spent_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self.began

    @property
    def is_over(self) -> bool:
        """Whether no cell may start any more."""
        return self.left_s <= 0

    def allows(self, judged: JudgedTask) -> bool:
        """Whether the task of *judged* ends before, as far as is known."""
        left_s, step = self.left_s, judged.task.step
        return left_s > 0 and not (step and step.time_s > left_s)


@dataclass(slots=True, kw_only=True)
class CellTally:
    """The cells of a queue that have ended, kept up to date by its events."""

    pairs: Sequence[Pair]  # all cells, in running order
    records: dict[Pair, CellRecord]  # those on disk, by pair
    impossible: frozenset[Pair] = frozenset()  # pairs that cannot run here: no failures

    def note_cell_event(self, event: Event) -> None:
        """Take in a cell that has ended, if it is one of the queue."""
        # There are events for cells of a larger grid, too.
        if isinstance(event, CellEnded) and event.record.pair in self.pairs:
            self.records[event.record.pair] = event.record

    @property
    def ended_count(self) -> int:
        """Cells that have ended, in this run of the command or an earlier one."""
        return sum(
            record.status is not Status.INTERRUPTED for record in self.records.values()
        )

    @property
    def failure_count(self) -> int:
        """Cells that have ended without numbers, but for pairs that cannot run."""
        absent = len(self.records.keys() & self.impossible)
        return (
            self.ended_count
            - absent
            - sum(r.has_numbers for r in self.records.values())
        )

    @property
    def has_all_ended(self) -> bool:
        """Whether all cells have ended."""
        return self.ended_count >= len(self.pairs)

    @property
    def is_whole(self) -> bool:
        """Whether all cells that can run have numbers."""
        return self.has_all_ended and not self.failure_count


class Observer(Protocol):
    """What is told of a sweep while it measures."""

    def begin_task(self, judged: JudgedTask) -> None:
        """Take in that the task of *judged* begins."""

    def watch_cells(
        self, task: Task, queue: CellQueue
    ) -> AbstractContextManager[Callable[[Event], None]]:
        """Take the events of *task*, whose cells are those of *queue*, as they come."""

    def report_cells_ended(
        self, queue: CellQueue, tally: CellTally, *, is_old: bool
    ) -> None:
        """Take in what became of the cells of *queue*; nothing new if it *is_old*."""

    def report_short_records(self, task: Task, records: Sequence[CellRecord]) -> None:
        """Take in the *records* that lack what *task* has asked for."""

    def report_sentence(self, what: str) -> None:
        """Take in a sentence on the numbers."""

    def report_probe_left_out(self, error: NothingToLose) -> None:
        """Take in that a probe is asked no further, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the measuring of a run has ended."""

    is_whole: bool  # whether all that was asked for has numbers
    missing: JudgedTask | None = None  # whose time was up; None if the time was not
    lacks_reference: bool = False
    """Whether one that decides has found no pair to compare others with."""


@dataclass(slots=True, kw_only=True, eq=False)
class TaskLoop:
    """Measures the tasks of one run, one after the other."""

    plan: Plan  # what it does
    schedule: Schedule  # what is measured next
    options: Options
    limit: TimeLimit
    observer: Observer
    stops: Callable[[], bool]  # whether the user has asked to stop

    @property
    def runner(self) -> Runner:
        """What measures the cells."""
        return self.schedule.runner

    @property
    def decides(self) -> bool:
        """Whether outcomes choose the pair that is measured next."""
        return self.schedule.wanted.decides

    def measure(self) -> Ending:
        """
        Measure task by task until nothing is left, or the time is up.

        Raises:
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        is_whole, missing = True, None
        for judged in self.schedule.fix_order_and_yield_tasks(
            lambda: self.limit.left_s
        ):
            self.raise_if_asked_to_stop()
            if not self._may_begin(judged):
                missing = judged
                # A grid is whole without further functions of open pairs.
                is_whole &= judged.task.stage is Stage.FURTHER
                break
            self.observer.begin_task(judged)
            is_whole &= self.measure_task(judged.task)
        is_whole &= all([*self._report_earlier_cells()])
        taken = self.schedule.taken
        is_whole &= not (taken.failed or taken.silent)
        is_through = missing is None and not self.runner.asked_to_stop()
        lacks_reference = self.decides and is_through and self.find_reference() is None
        return Ending(
            is_whole=is_whole and not lacks_reference,
            missing=missing,
            lacks_reference=lacks_reference,
        )

    def find_reference(self) -> Pair | None:
        """The pair that others are compared with; None before one has numbers."""
        return reference_of(
            self.runner.read_run_and_calibration(), self.schedule.wanted
        )

    def raise_if_asked_to_stop(self) -> None:
        """
        Stop if the user asked to.

        Raises:
            KeyboardInterrupt: If so.
        """
        if self.stops():
            raise KeyboardInterrupt

    def _may_begin(self, judged: JudgedTask) -> bool:
        """Whether *judged* may begin: if it decides its step must end in time, too."""
        return self.limit.allows(judged) if self.decides else not self.limit.is_over

    def measure_task(self, task: Task) -> bool:
        """Measure *task*; whether all that it asks for has numbers."""
        if task.variant is Variant.CHECK:
            return self._measure_checks(task)
        if task.is_further:
            return self._measure_further_units(task)
        try:
            is_whole = self._sweep_cells(task)
        except NothingToLose as error:
            self.schedule.leave_out_probe_or_raise(task.probe, error)
            return False
        if task.variant is Variant.ELSEWHERE:
            kind, store = task.record_variant, self.plan.store
            if told := device_agreement_sentence(
                self._probe(task), kind, task.pairs, store=store
            ):
                self.observer.report_sentence(told)
        return is_whole

    def _probe(self, task: Task) -> Probe:
        return next(probe for probe in self.plan.probes if probe.name == task.probe)

    def _sweep_cells(self, task: Task) -> bool:
        """Measure the cells of *task* that are left; whether all have numbers."""
        queue, tally = self._queue_and_tally(task)
        if not queue.pairs_left:
            self.observer.report_cells_ended(queue, tally, is_old=True)
            return tally.is_whole
        if not self.stops():
            with self.observer.watch_cells(task, queue) as tell:

                def tally_and_tell(event: Event) -> None:
                    tally.note_cell_event(event)
                    tell(event)

                queue.runner.measure_cells_of_queue(queue, tell=tally_and_tell)
        # Asked to stop, and cells are left: of this probe, or all of a later one.
        if self.stops() and not tally.has_all_ended:
            raise KeyboardInterrupt
        self.observer.report_cells_ended(queue, tally, is_old=False)
        return tally.is_whole

    def _queue_and_tally(self, task: Task) -> tuple[CellQueue, CellTally]:
        """The cells of *task* by the runner of its variant, and which have ended."""
        runner = self.schedule.runner_of(task)
        queue = self.queue_of(
            self._probe(task), task.pairs, runner=runner, variant=task.record_variant
        )
        return queue, self.tally_of(queue)

    def tally_of(self, queue: CellQueue) -> CellTally:
        """The cells of a new *queue* that have ended, and those that cannot run."""
        return CellTally(
            pairs=queue.pairs,
            records=queue.done_records,
            impossible=frozenset(filter(self.plan.refusal, queue.pairs)),
        )

    def queue_of(
        self,
        probe: Probe,
        pairs: Iterable[Pair],
        *,
        runner: Runner | None = None,
        variant: str = "",
    ) -> CellQueue:
        """
        The cells of *probe* on *pairs*, in the running order of the plan.

        Of a grid that is shuffled, the reference first where it is tried. They are of
        *runner*, by default that of the run.
        """
        tries = self.options.calibration
        ordered = running_order(self.plan, probe, (*pairs,), tries_reference=tries)
        return CellQueue(runner or self.runner, probe, ordered, variant)

    def _measure_further_units(self, task: Task) -> bool:
        """
        Ask the pair of *task* for further units; whether it has all of them.

        If it falls short, that is reported, and it gets no more.
        """
        (pair,) = task.pairs
        with self.observer.watch_cells(task, self.queue_of(PROBE, task.pairs)) as tell:
            record = self.runner.measure_further_units(
                PROBE, pair, task.units or 0, tell=tell
            )
        if is_short_of_task(record, task, self.runner.run.setup):
            self.schedule.exclude_from_further_units(pair)
            self.observer.report_short_records(task, [record])
            return False
        return True

    def _measure_checks(self, task: Task) -> bool:
        """Measure the pairs of *task* another way, too; whether none falls short."""
        with self.observer.watch_cells(task, self.queue_of(PROBE, task.pairs)) as tell:
            records = [
                self.runner.measure_crosscheck(PROBE, pair, tell=tell)
                for pair in task.pairs
                if not self.runner.asked_to_stop()
            ]
        short = [r for r in records if is_short_of_task(r, task, self.runner.run.setup)]
        self.observer.report_short_records(task, short)
        return not short

    def _report_earlier_cells(self) -> Iterator[bool]:
        """
        Report probes that earlier commands have measured, and no task of this one.

        Yields:
            For each, whether it is whole.
        """
        tasks, silent = self.schedule.taken.tasks, self.schedule.taken.silent
        if self.runner.asked_to_stop():
            return
        for probe in self.plan.probes:
            is_plain = any(t.probe == probe.name and not t.variant for t in tasks)
            if is_plain or probe.name in silent:
                continue
            pairs = self.plan.pairs
            if self.decides:
                pairs = reference_candidates(self.schedule.wanted)[:1]
            queue, tally = self._queue_and_tally(Task(probe=probe.name, pairs=pairs))
            if not queue.pairs_left:
                self.observer.report_cells_ended(queue, tally, is_old=True)
                yield tally.is_whole


def task_loop(
    plan: Plan,
    run: RunContext,
    options: Options,
    *,
    began: float,
    observer: Observer,
    stops: Callable[[], bool],
) -> TaskLoop:
    """
    The loop of *plan*, which is set up as *run*.

    Args:
        plan: What it does.
        run: What is the same for every cell.
        options: Of the command.
        began: When the command began, in monotonic seconds.
        observer: Is told what is measured.
        stops: Whether the user has asked to stop.
    """
    limit = TimeLimit(began, options.budget_s)
    runner = _runner_of(plan, run, options, lambda: stops() or limit.is_over)
    # Of a budget, half is kept for what follows the first answer.
    half_s = (options.budget_s or math.inf) / 2
    schedule = Schedule(
        runner=runner,
        wanted=wanted_of(plan, options),
        limits=options.limits,
        first_answer_s=min(first_step_limit_s(plan), half_s),
        left_out=observer.report_probe_left_out,
    )
    return TaskLoop(
        plan=plan,
        schedule=schedule,
        options=options,
        limit=limit,
        observer=observer,
        stops=stops,
    )


def _runner_of(
    plan: Plan, run: RunContext, options: Options, asked_to_stop: Callable[[], bool]
) -> Runner:
    """The runner of the cells of *plan*, by default on all of its workers."""
    return Runner(
        run=run,
        store=plan.store,
        retry_failed=options.retry_failed,
        asked_to_stop=asked_to_stop,
        may_wait=options.wait,
        tries_reference=options.calibration and measures_reference_first(plan),
        workers=plan.workers,
        timing_worker=plan.timing_worker,
    )


def wanted_of(plan: Plan, options: Options) -> Wanted:
    """What a command is to measure of *plan*."""
    decides, first = plan.request.decide, plan.workers[0].engine
    return Wanted(
        probes=plan.probes,
        pairs=measurable_pairs(plan) if decides else plan.pairs,
        without_kernel=frozenset(plan.pairs_without_kernel),
        decides=decides,
        unborne=plan.unborne_types if decides else (),
        retries=options.retry_failed,
        may_extend=may_extend_pairs(plan, options),
        more=options.more,
        repeats=frozenset(p.name for p in plan.probes if pair_to_repeat(plan, p)),
        can_be_on_cpu=lambda pair: first.with_attention_on_cpu(pair) is not None,
        devices=tuple(worker.device for worker in plan.workers),
    )


def with_next_task(plan: Plan, options: Options) -> Plan:
    """*plan* with what its run goes on with; nothing of a folder without one."""
    stored = plan.store.read_run() if plan.store.read_intact_setup() else None
    if stored is None:
        return plan
    run, wanted = trusted_run(stored), wanted_of(plan, options)
    judged = judge_run_and_pick_task(run, wanted, options.limits, Taken(), math.inf)
    task = _planned_task(judged.task, run, wanted) if judged else None
    return replace(plan, going_on=task)


_HOW = {
    Variant.AGAIN: ", once more",
    Variant.ON_CPU: ", with its attention on the CPU",
    Variant.CHECK: ", forced for a check",
}


def _planned_task(task: Task, run: Run, wanted: Wanted) -> PlannedTask:
    """*task* of *run* without the pairs that are measured already."""
    pairs, how = task.pairs, _HOW.get(task.variant, "")
    if task.variant is Variant.ELSEWHERE:
        how = f", on {task.device}"
    if not (task.is_extension_or_check or task.variant):
        records = {r.pair: r for r in run.records if r.probe == task.probe}
        retries = wanted.retries
        pairs = tuple(
            p for p in pairs if is_left_to_measure(records.get(p), retries=retries)
        )
    return PlannedTask(probe=task.probe, pairs=pairs, units=task.units, how=how)


def may_extend_pairs(plan: Plan, options: Options) -> bool:
    """Whether open pairs may be asked for further functions; never in a share."""
    return plan.execution.shard is None and options.more is not False
