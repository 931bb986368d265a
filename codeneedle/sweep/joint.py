"""
The loop over several files of weights: measures the reference of the finest, leaves out
files that do not run, fixes which candidates fit, and takes task after task.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from codeneedle.cache_types import Candidate, Pair
from codeneedle.records.record import Run
from codeneedle.sweep.measure import Ending, TaskLoop
from codeneedle.sweep.running_order import measurable_pairs
from codeneedle.sweep.schedule import (
    JudgedTask,
    Taken,
    Task,
    Wanted,
    judge_run_and_pick_task,
)
from codeneedle.sweep.steps import adopt_and_store_order
from codeneedle.verdict.asking_order import stored_asking_order
from codeneedle.verdict.joint import (
    candidates_of,
    indices_finest_first,
    join_runs,
    weight_names,
)
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import PROBE


class JointObserver(Protocol):
    """What is told of several files of weights, beside what is told of each."""

    def report_reference_task(self, weights: str, task: Task) -> None:
        """Take in that *task* of these *weights* is to measure the reference."""

    def begin_task(self, judged: JudgedTask) -> None:
        """Take in that the task of *judged*, of candidates, begins."""

    def report_weights_left_out(self, loop: TaskLoop, reason: str) -> None:
        """Take in that the weights of *loop* are measured no further, and why."""


@dataclass(slots=True, kw_only=True)
class JointLoop:
    """Measures the candidates of several files of weights, with a loop for each."""

    loops: list[TaskLoop]
    """Once they are measured those whose weights run, the finest first."""

    observer: JointObserver
    taken: Taken = field(default_factory=Taken, init=False)

    def measure(self) -> Ending:
        """
        Measure candidate by candidate until nothing could change the answer.

        Raises:
            BadInput: If the runs do not stand on one scale.
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        setups = [loop.runner.run.setup for loop in self.loops]
        self.loops = [self.loops[at] for at in indices_finest_first(setups)]
        is_whole = all([*self._measure_finest_reference()])
        if len(self.loops) < 2:  # noqa: PLR2004 - several
            return Ending(is_whole=is_whole)
        self._fix_and_store_candidate_orders()
        wanted = self._deciding_tasks_wanted()
        while judged := self._next_judged_task(wanted):
            self._finest_loop.raise_if_asked_to_stop()
            if not self._finest_loop.limit.allows(judged):
                return Ending(is_whole=False, missing=judged)
            self.observer.begin_task(judged)
            is_whole &= self._measure_task(judged.task)
        return Ending(is_whole=is_whole)

    @property
    def _finest_loop(self) -> TaskLoop:
        """The loop of the finest weights, which has the reference."""
        return self.loops[0]

    @property
    def _limits(self) -> Limits:
        """The losses that the user accepts, and the memory: those of the first loop."""
        return self._finest_loop.options.limits

    def _read_runs(self) -> list[Run]:
        """The run of each loop as it is stored by now."""
        return [loop.runner.read_run_and_calibration() for loop in self.loops]

    def _measure_finest_reference(self) -> Iterator[bool]:
        """
        Measure the most precise pair of the finest weights, or of the next that run.

        Yields:
            For each task, and each file that is left out, whether it is whole.
        """
        while self.loops:
            loop = self._finest_loop
            yield from self._measure_reference(loop)
            if loop.schedule.has_tried_reference(
                loop.runner.read_run_and_calibration()
            ):
                return
            why = "no pair that could be the reference has numbers"
            self.observer.report_weights_left_out(loop, why)
            self.loops.remove(loop)
            yield False

    def _measure_reference(self, loop: TaskLoop) -> Iterator[bool]:
        """
        Measure pairs of *loop* until the reference was tried, or no task is left.

        Yields:
            For each task, whether it is whole.
        """
        schedule, names = loop.schedule, weight_names(self._read_runs())
        while not schedule.has_tried_reference(loop.runner.read_run_and_calibration()):
            judged = schedule.fix_order_and_judge_next(loop.limit.left_s)
            loop.raise_if_asked_to_stop()
            if judged is None:
                return
            self.observer.report_reference_task(names[0], judged.task)
            yield loop.measure_task(judged.task)
            schedule.taken.tasks.add(judged.task)

    def _fix_and_store_candidate_orders(self) -> None:
        """Fix which candidates may be measured, before one beside the reference is."""
        fitting, schedule = self._fitting_pairs(), self._finest_loop.schedule
        own = dict.fromkeys(
            filter(None, (self._finest_loop.find_reference(), *fitting[0]))
        )
        schedule.wanted = replace(schedule.wanted, pairs=tuple(own))
        # It also fixes after how many functions a pair is judged.
        schedule.drop_probes_and_store_order(
            self._finest_loop.runner.read_run_and_calibration()
        )
        order = stored_asking_order(self._finest_loop.runner.run.setup)
        if order is not None:
            for loop, pairs in zip(self.loops[1:], fitting[1:], strict=True):
                unborne = loop.plan.unborne_types
                adopt_and_store_order(loop.runner, order, pairs, unborne=unborne)

    def _fitting_pairs(self) -> list[list[Pair]]:
        """Pairs that may be measured and fit the memory, for each file of weights."""
        most = self._limits.max_memory_bytes
        return [
            [
                pair
                for pair in measurable_pairs(loop.plan)
                if most is None or of_file.candidate_of_pair(pair).size <= most
            ]
            for of_file, loop in zip(
                candidates_of(self._read_runs(), self._limits.at),
                self.loops,
                strict=True,
            )
        ]

    def _deciding_tasks_wanted(self) -> Wanted:
        """What is measured beside the reference: the candidates of the orders."""
        options, reference = (
            self._finest_loop.options,
            self._finest_loop.find_reference(),
        )
        name, *_ = weight_names(self._read_runs())
        own = [Candidate(pair.k, pair.v, weights=name) for pair in [reference] if pair]
        return Wanted(
            probes=(PROBE,),
            pairs=tuple(own),
            decides=True,
            retries=options.retry_failed,
            more=options.more,
        )

    def _next_judged_task(self, wanted: Wanted) -> JudgedTask | None:
        """
        What is next of all runs as one, in the time that is left.

        None if nothing is.
        """
        joined = join_runs(self._read_runs(), self._limits.at)
        left_s = self._finest_loop.limit.left_s
        return judge_run_and_pick_task(joined, wanted, self._limits, self.taken, left_s)

    def _measure_task(self, task: Task) -> bool:
        """
        Measure *task* of candidates by the loop of their weights, and note it as taken.

        Returns:
            Whether it is whole; if not, its pairs get no further units.
        """
        names = weight_names(self._read_runs())
        loop = self.loops[names.index(task.pairs[0].weights)]
        own = replace(task, pairs=tuple(pair.without_weights for pair in task.pairs))
        is_whole = loop.measure_task(own)
        loop.schedule.taken.tasks.add(own)
        self.taken.tasks.add(task)
        if task.is_further and not is_whole:
            self.taken.failed |= {*task.pairs}
        return is_whole
