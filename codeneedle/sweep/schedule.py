"""
Which task a sweep takes next: cells of a grid, or a step of one that decides; further
functions until they took a third of the time of all else, the check, and the reference
once more at the end.

Two orders of the same tasks: a grid asks for every pair; a sweep that decides asks for
what would change the answer first. Both are pure, so that a sweep that was ended goes
on with the task at which it was ended.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.probes.metrics import LossKind
from codeneedle.probes.probe import Probe
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Key,
    Run,
    Setup,
    key_of,
)
from codeneedle.reference import reference_among
from codeneedle.sweep.runner import (
    GIVE_UP_AFTER,
    CellQueue,
    NothingToLose,
    Runner,
    is_left_to_measure,
)
from codeneedle.sweep.steps import fix_and_store_order
from codeneedle.sweep.workers import Worker, place_phrase_without_threads
from codeneedle.verdict.asking_order import JointRun, order_of
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import (
    FURTHER,
    PROBE,
    NextStep,
    further_time_ratio,
    next_step,
    pairs_to_extend,
)

FURTHER_TIME_RATIO = 1 / 3
"""
Time of further functions, beside that of everything else, from which on a sweep takes
no more of them by itself.
"""


class Variant(StrEnum):
    """How a cell is measured that was measured before."""

    PLAIN = ""  # it was not
    AGAIN = "again"  # once more behind all others, against drift
    ON_CPU = "on-cpu"  # with attention on the CPU
    ELSEWHERE = "elsewhere"  # on another kind of device
    CHECK = "check"  # another way than all pairs: what was read is forced


class Stage(StrEnum):
    """What a task is a part of."""

    GRID = "grid"  # what every pair is asked
    RETRIED = "retried"  # pairs of an earlier command that failed
    STEP = "step"  # of a sweep that decides
    FURTHER = "further"  # units of open pairs beyond what every pair is asked
    WITHOUT_KERNEL = "without kernel"  # pairs whose attention runs in no kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What servers are started for; several workers take its pairs side by side."""

    probe: str  # name of what measures
    pairs: tuple[Pair, ...]
    """In running order; those that are measured already are passed over."""

    variant: Variant = Variant.PLAIN
    device: str = ""  # phrase of the worker that measures elsewhere
    units: int | None = None  # up to how many; None for what every pair is asked
    is_further: bool = False  # whether the pair has numbers, and is asked for more
    stage: Stage = Stage.GRID
    step: NextStep | None = field(default=None, compare=False)
    """Which a sweep that decides takes with it, and why."""

    @property
    def is_extension_or_check(self) -> bool:
        """Whether its pairs have numbers, and are asked for more or another way."""
        return self.is_further or self.variant is Variant.CHECK

    @property
    def record_variant(self) -> str:
        """The `CellRecord.variant` of its records; empty also of a check."""
        if self.variant is Variant.ELSEWHERE:
            kind = place_phrase_without_threads(self.device).lower()
            return f"on-{re.sub('[^a-z0-9]+', '-', kind)}"
        return "" if self.variant is Variant.CHECK else self.variant.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a command is to measure."""

    probes: tuple[Probe, ...]  # what measures, in this order
    pairs: tuple[Pair, ...]  # in running order; of a sweep that decides, it may measure
    without_kernel: frozenset[Pair] = frozenset()
    """Those that are measured last, behind the verdict on all others."""

    decides: bool = False  # whether outcomes choose the pair that is measured next
    unborne: tuple[str, ...] = ()
    """Types of K that are predicted to lose more than is allowed: they come last."""

    retries: bool = False  # whether cells that failed are measured again, once
    may_extend: bool = True  # whether open pairs may be asked for further units
    more: bool | None = None  # whether without regard to time; None: a share of it
    repeats: frozenset[str] = frozenset()
    """Names of probes that measure the reference once more."""

    can_be_on_cpu: Callable[[Pair], bool] = lambda _pair: False
    """Whether attention of a pair can be put on the CPU, and is not there."""

    devices: tuple[str, ...] = ()  # phrases of the workers


@dataclass(slots=True)
class Taken:
    """What a command has tried."""

    tasks: set[Task] = field(default_factory=set)
    failed: set[Pair] = field(default_factory=set)
    """Pairs that were to be asked for further units, and failed."""

    silent: set[str] = field(default_factory=set)
    """Names of probes whose reference has nothing to lose."""


def next_task(
    run: Run,
    wanted: Wanted,
    verdict: Verdict,
    taken: Taken,
    *,
    left_s: float = math.inf,
) -> Task | None:
    """
    What is measured next; None if nothing is left.

    Args:
        run: As it is stored, with derived statuses.
        wanted: What the command is to measure.
        verdict: On *run*.
        taken: What was tried.
        left_s: Seconds that are left: a step has as many pairs as fit, one at least.
    """
    now = _Now(run, wanted, verdict, taken, left_s)
    tasks = _tasks_of_deciding_sweep(now) if wanted.decides else _tasks_of_grid(now)
    return next((task for task in tasks if task not in taken.tasks), None)


@dataclass(frozen=True)
class _Now:
    """What tasks follow from."""

    run: Run
    wanted: Wanted
    verdict: Verdict
    taken: Taken
    left_s: float

    @property
    def setup(self) -> Setup:
        return self.run.setup

    @cached_property
    def records(self) -> dict[Key, CellRecord]:
        """By their keys, those of variants among them."""
        return {key_of(record): record for record in self.run.every_record}

    def is_pair_left_to_measure(
        self,
        probe: Probe,
        pair: Pair,
        variant: str = "",
        *,
        retries: bool | None = None,
    ) -> bool:
        """
        Whether *pair* has no whole record of *probe*, or one that is tried again.

        *retries* says whether one that failed is; None for what the command says.
        """
        retries = self.wanted.retries if retries is None else retries
        record = self.records.get(Key(pair, probe.name, variant))
        return is_left_to_measure(record, retries=retries)

    def has_numbers(self, pair: Pair) -> bool:
        """Whether any probe has measured *pair*."""
        return any(r.has_numbers for r in self.run.records if r.pair == pair)

    def pairs_tried(self, probes: Sequence[Probe]) -> tuple[Pair, ...]:
        """The pairs with a record of one of *probes*, in the order of their start."""
        names = {probe.name for probe in probes}
        found = {r.pair: r for r in self.run.records if r.probe in names}
        return tuple(sorted(found, key=lambda pair: found[pair].started))

    def finished_records_and_reference(
        self, probe: Probe, pairs: Sequence[Pair]
    ) -> tuple[dict[Pair, CellRecord], Pair | None]:
        """The records of *pairs* with numbers of *probe*, and their reference."""
        records = {
            pair: self.records[Key(pair, probe.name)]
            for pair in pairs
            if Key(pair, probe.name) in self.records
        }
        found = {pair: record for pair, record in records.items() if record.has_numbers}
        return found, reference_among(found.values())

    def probes_with_something_to_lose(self, probes: Sequence[Probe]) -> list[Probe]:
        """*probes* but for those left out, as their reference has nothing to lose."""
        return [probe for probe in probes if probe.name not in self.taken.silent]

    @cached_property
    def first_step_units(self) -> int | None:
        """Units of the first step of a sweep that decides; None for the usual ones."""
        order = order_of(self.run)
        return next(iter(order.looks), None) if order else None

    def group_pairs_into_tasks(
        self, pairs: Iterable[Pair]
    ) -> Iterator[tuple[Pair, ...]]:
        """
        *pairs* by the tasks that they are measured in: all of a run in one.

        Each candidate of several runs is one by itself, as it has its own weights.
        """
        every = (*pairs,)
        if isinstance(self.run, JointRun):
            yield from ((pair,) for pair in every)
        elif every:
            yield every


# --- a grid


def _tasks_of_grid(now: _Now) -> Iterator[Task]:
    """Every pair, then open ones, then the check; pairs without a kernel last."""
    wanted = now.wanted
    last = wanted.without_kernel
    yield from _tasks_of_pairs_and_repeats(
        now, [pair for pair in wanted.pairs if pair not in last]
    )
    if wanted.may_extend:
        yield from _further_tasks(now)
        yield from _crosscheck_tasks(now)
    if last:
        yield from _tasks_of_pairs_and_repeats(now, wanted.pairs, Stage.WITHOUT_KERNEL)


def _tasks_of_pairs_and_repeats(
    now: _Now, pairs: Sequence[Pair], stage: Stage = Stage.GRID
) -> Iterator[Task]:
    """*pairs* by each probe that lacks some, then the repeats of its reference."""
    for probe in now.probes_with_something_to_lose(now.wanted.probes):
        if any(now.is_pair_left_to_measure(probe, pair) for pair in pairs):
            yield Task(probe=probe.name, pairs=tuple(pairs), stage=stage)
        yield from _reference_repeat_tasks(now, probe, pairs)


def _further_tasks(now: _Now) -> Iterator[Task]:
    """
    Further units of open pairs, the reference first, each pair in a task of its own.

    Up to `FURTHER_TIME_RATIO`, unless asked for; none once the reference has failed.
    """
    time_ratio = further_time_ratio(now.run)
    is_long = now.wanted.more is None and time_ratio >= FURTHER_TIME_RATIO
    if is_long or now.verdict.reference in now.taken.failed:
        return
    for pair, units in pairs_to_extend(now.verdict).items():
        if pair not in now.taken.failed:
            yield _extension_task(pair, units, Stage.FURTHER)


def _extension_task(
    pair: Pair, units: int, stage: Stage, step: NextStep | None = None
) -> Task:
    """The task that asks *pair* for further units, *units* altogether."""
    return Task(
        probe=PROBE.name,
        pairs=(pair,),
        units=units,
        is_further=True,
        stage=stage,
        step=step,
    )


# --- a sweep that decides


def _tasks_of_deciding_sweep(now: _Now) -> Iterator[Task]:
    """The reference, steps until nothing could change the answer, then what is left."""
    telling = [probe for probe in now.wanted.probes if probe.has_loss_metric]
    yield from _reference_tasks(now, telling)
    if reference_of(now.run, now.wanted) is None or order_of(now.run) is None:
        return
    telling = now.probes_with_something_to_lose(telling)
    if now.wanted.retries:
        yield from _retry_tasks(now, telling)
    step = _next_step(now, telling)
    if step is not None:
        yield from _tasks_of_step(now, telling, step)
        return
    asked = now.pairs_tried(telling)
    for probe in now.wanted.probes:
        is_open = any(now.is_pair_left_to_measure(probe, pair) for pair in asked)
        if not probe.has_loss_metric and asked and is_open:
            yield Task(probe=probe.name, pairs=asked)
    yield from _crosscheck_tasks(now)
    for probe in telling:
        yield from _reference_repeat_tasks(now, probe, now.pairs_tried([probe]))


def reference_candidates(wanted: Wanted) -> tuple[Pair, ...]:
    """The most precise pairs, of which the first with numbers is the reference."""
    return tuple(most_precise_first(wanted.pairs)[:GIVE_UP_AFTER])


def reference_of(run: Run, wanted: Wanted) -> Pair | None:
    """The most precise candidate that has numbers; None before one has."""
    pairs = {record.pair for record in run.records if record.has_numbers}
    return next((pair for pair in reference_candidates(wanted) if pair in pairs), None)


def _reference_tasks(now: _Now, telling: Sequence[Probe]) -> Iterator[Task]:
    """
    The most precise pair, by each probe that tells losses.

    The next one if it fails.
    """
    for pair in reference_candidates(now.wanted):
        for probe in telling:
            # One that is measured again is asked for as many as all others.
            task = Task(probe=probe.name, pairs=(pair,), units=now.first_step_units)
            was_tried = replace(task, units=None) in now.taken.tasks
            if now.is_pair_left_to_measure(probe, pair) and not was_tried:
                yield task
        if now.has_numbers(pair):
            return


def _retry_tasks(now: _Now, telling: Sequence[Probe]) -> Iterator[Task]:
    """
    Pairs that failed in an earlier command, before the first step of this one.

    Those tried before the reference was found are not among them.
    """
    if any(task.stage is Stage.STEP for task in now.taken.tasks):
        return
    first, reference = (
        reference_candidates(now.wanted),
        reference_of(now.run, now.wanted),
    )
    before = {*first[: first.index(reference) + 1]} if reference else {*first}
    for probe in telling:
        pairs = tuple(
            pair
            for pair in now.pairs_tried([probe])
            if pair not in before and now.is_pair_left_to_measure(probe, pair)
        )
        units = now.first_step_units
        for own in now.group_pairs_into_tasks(pairs):
            yield Task(probe=probe.name, pairs=own, units=units, stage=Stage.RETRIED)


def _next_step(now: _Now, telling: Sequence[Probe]) -> NextStep | None:
    """
    What is measured next, without the pairs that do not fit into the time that is left.

    None if nothing is, or the reference has failed.
    """
    if now.verdict.reference in now.taken.failed:
        return None
    step = next_step(
        now.verdict,
        [probe.name for probe in telling],
        may_continue=now.wanted.more is not False,
        failed=now.taken.failed,
    )
    while step and step.time_s > now.left_s and step.without_last_pair:
        step = step.without_last_pair
    return step


def _tasks_of_step(
    now: _Now, telling: Sequence[Probe], step: NextStep
) -> Iterator[Task]:
    """Further units of pairs that have numbers, then pairs that have none."""
    for pair, units in step.goals.items():
        yield _extension_task(pair, units, Stage.STEP, step)
    for probe in telling:
        # What failed was measured again before the first step.
        if any(
            now.is_pair_left_to_measure(probe, pair, retries=False)
            for pair in step.new_pairs
        ):
            # Not what other probes alone were asked: they may have ruled it out.
            pairs = dict.fromkeys((*now.pairs_tried([probe]), *step.new_pairs))
            for own in now.group_pairs_into_tasks(pairs):
                if any(
                    now.is_pair_left_to_measure(probe, pair, retries=False)
                    for pair in own
                ):
                    yield Task(
                        probe=probe.name,
                        pairs=own,
                        units=step.asked.goal or None,
                        stage=Stage.STEP,
                        step=step,
                    )


# --- behind both


def _crosscheck_tasks(now: _Now) -> Iterator[Task]:
    """
    The pair that is about to be set and the reference, another way.

    Of the two those that lack it; nothing where no pair is to be set.
    """
    verdict = now.verdict
    both = {verdict.reference, verdict.chosen} if verdict.chosen else set()
    pairs = tuple(
        record.pair
        for record in now.run.records
        if record.probe == PROBE.name and record.has_numbers
        if record.pair in both and FURTHER.needs_check(record, now.setup)
    )
    is_asked = any(probe is PROBE for probe in now.wanted.probes)
    for own in now.group_pairs_into_tasks(pairs) if is_asked else ():
        yield Task(probe=PROBE.name, pairs=own, variant=Variant.CHECK)


def _reference_repeat_tasks(
    now: _Now, probe: Probe, pairs: Sequence[Pair]
) -> Iterator[Task]:
    """
    The reference of *pairs* behind all of them, wherever that tells something.

    Once more, then on the CPU, then on other devices.
    """
    finished, reference = now.finished_records_and_reference(probe, pairs)
    if reference is None:
        return
    task = Task(probe=probe.name, pairs=(reference,))
    variants = []
    is_compared = len(finished) > 1
    if probe.name in now.wanted.repeats and probe.repeats and is_compared:
        variants.append(replace(task, variant=Variant.AGAIN))
    if _needs_cpu_repeat(now, probe, finished, reference):
        variants.append(replace(task, variant=Variant.ON_CPU))
    if not probe.is_timed:
        variants += (
            replace(task, variant=Variant.ELSEWHERE, device=device)
            for device in one_device_per_other_kind(
                finished[reference], now.wanted.devices
            )
        )
    for variant in variants:
        if now.is_pair_left_to_measure(probe, reference, variant.record_variant):
            yield variant


def _needs_cpu_repeat(
    now: _Now, probe: Probe, finished: dict[Pair, CellRecord], reference: Pair
) -> bool:
    """
    Whether the reference with attention on the CPU tells anything.

    Not if attention of no pair was there, or all of it; nor of a probe without losses
    of units that this could change.
    """
    kinds = {m.loss.kind for m in probe.metrics if m.loss} - {LossKind.SCORE}
    was_there = any(record.attention is Attention.CPU for record in finished.values())
    return (
        bool(kinds)
        and was_there
        and not probe.is_timed
        and finished[reference].ran_as_usual
        and now.wanted.can_be_on_cpu(reference)
    )


def one_device_per_other_kind(record: CellRecord, devices: Sequence[str]) -> list[str]:
    """
    The first of each kind of *devices* that has not measured *record*.

    Args:
        record: Of the reference.
        devices: Phrases of the workers; equal ones are of one kind.
    """
    kinds = {
        place_phrase_without_threads(device): device for device in reversed(devices)
    }
    ours = {"", place_phrase_without_threads(record.device)}
    return [kinds[kind] for kind in sorted(kinds) if kind not in ours]


# --- the loop


@dataclass(frozen=True, slots=True)
class JudgedTask:
    """A task, and the verdict on what was measured before it."""

    task: Task
    verdict: Verdict


def judge_run_and_pick_task(
    run: Run, wanted: Wanted, limits: Limits, taken: Taken, left_s: float
) -> JudgedTask | None:
    """The `next_task` of *run*, which is judged once for it; None if none is left."""
    verdict = judge(run, limits)
    task = next_task(run, wanted, verdict, taken, left_s=left_s)
    return None if task is None else JudgedTask(task, verdict)


@dataclass(slots=True, kw_only=True)
class Schedule:
    """The tasks of a run until nothing is left."""

    runner: Runner  # measures
    wanted: Wanted
    limits: Limits  # largest losses that the user accepts
    first_answer_s: float = math.inf  # what the first step may take
    left_out: Callable[[NothingToLose], None] = lambda _error: None
    """Called where a probe is left out, as its reference has nothing to lose."""

    taken: Taken = field(default_factory=Taken)
    is_settled: bool = field(default=False, init=False)
    """Whether the order of a sweep that decides was looked at."""

    def fix_order_and_yield_tasks(
        self, left_s: Callable[[], float]
    ) -> Iterator[JudgedTask]:
        """
        Each task in turn, to be measured before the next one is asked for.

        A task counts as taken once that is done. See `fix_order_and_judge_next`.
        """
        while judged := self.fix_order_and_judge_next(left_s()):
            yield judged
            self.taken.tasks.add(judged.task)

    def fix_order_and_judge_next(self, left_s: float = math.inf) -> JudgedTask | None:
        """
        The next task of the run as it is stored, which is judged; None if none is left.

        Before that, a sweep that decides does `drop_probes_and_store_order`, once, as
        soon as its reference was tried.

        Raises:
            NothingToLose: See `drop_probes_and_store_order`.
        """
        run = self.runner.read_run_and_calibration()
        if (
            self.wanted.decides
            and not self.is_settled
            and self.has_tried_reference(run)
        ):
            self.drop_probes_and_store_order(run)
            run = replace(run, setup=self.runner.run.setup)
        return judge_run_and_pick_task(
            run, self.wanted, self.limits, self.taken, left_s
        )

    def has_tried_reference(self, run: Run) -> bool:
        """Whether all that tell losses have measured the reference, or tried to."""
        reference = reference_of(run, self.wanted)
        names = {probe.name for probe in self.wanted.probes if probe.has_loss_metric}
        tried = {record.probe for record in run.records if record.pair == reference}
        return reference is not None and names <= tried

    def drop_probes_and_store_order(self, run: Run) -> None:
        """
        Leave out probes whose reference has nothing to lose, and fix the order.

        Raises:
            NothingToLose: If that is so of all that tell losses.
        """
        self.is_settled = True
        for probe in (p for p in self.wanted.probes if p.has_loss_metric):
            try:
                queue = CellQueue(self.runner, probe, self.wanted.pairs)
                queue.refuse_nothing_to_lose()
            except NothingToLose as error:
                self.leave_out_probe_or_raise(probe.name, error)
        reference = reference_of(run, self.wanted)
        if reference is not None:
            fix_and_store_order(
                self.runner,
                reference,
                self.wanted.pairs,
                unborne=self.wanted.unborne,
                most_s=self.first_answer_s,
            )

    def leave_out_probe_or_raise(self, probe: str, error: NothingToLose) -> None:
        """
        Ask the probe of that name no further, and pass *error* to `left_out`.

        Raises:
            NothingToLose: That *error*, if no other probe is left, or in a sweep that
                decides, none that tells losses.
        """
        self.taken.silent.add(probe)
        probes = self.wanted.probes
        if self.wanted.decides:
            probes = tuple(probe for probe in probes if probe.has_loss_metric)
        if {wanted_probe.name for wanted_probe in probes} <= self.taken.silent:
            raise error
        self.left_out(error)

    def runner_of(self, task: Task) -> Runner:
        """
        What measures *task*: with its number of units, on its worker.

        Steps of a sweep that decides measure no failure again.
        """
        retries = self.wanted.retries and task.stage is not Stage.STEP
        there = replace(self.runner, goal=task.units, retry_failed=retries)
        first = self.runner.workers[0]
        if task.variant is Variant.ON_CPU:
            engine = first.engine.with_attention_on_cpu(task.pairs[0])
            if engine is not None:
                there.workers = [Worker(engine=engine, device=first.device)]
        if task.variant is Variant.ELSEWHERE:
            there.workers = [
                worker for worker in there.workers if worker.device == task.device
            ][:1]
        return there

    def exclude_from_further_units(self, pair: Pair) -> None:
        """Ask *pair* for no further units."""
        self.taken.failed.add(pair)


def is_short_of_task(record: CellRecord, task: Task, setup: Setup) -> bool:
    """Whether *record* lacks what *task* has asked of its pair."""
    if task.variant is Variant.CHECK:
        return FURTHER.needs_check(record, setup)
    return not record.has_numbers or FURTHER.units(record) < (task.units or 0)
