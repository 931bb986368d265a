"""The sweep command: plan, prepare, run and show until it is through."""

import contextlib
import functools
import math
import shlex
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from codeneedle.cache_types import RUNS, Pair, most_precise_first
from codeneedle.cli.engines import asks_for, engine_entry
from codeneedle.cli.progress import (
    SweepDisplay,
    SweepProgress,
    Tell,
    end_left_behind,
    ensure_models,
    note_lines,
    probe_phrase,
    say,
    show_words,
    working,
)
from codeneedle.corpora.registry import load
from codeneedle.engines.pace import Pace
from codeneedle.engines.started import telling
from codeneedle.engines.survey import telling_calls
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.exit_codes import UNFINISHED
from codeneedle.models.pretrained import path_of
from codeneedle.models.weights import sha256
from codeneedle.probes import PROBES
from codeneedle.probes.cell import RunContext
from codeneedle.probes.probe import Calibrating, Probe, lacks
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.records.store import SETUP
from codeneedle.report.plan import time_phrase
from codeneedle.report.selection import default_metric
from codeneedle.report.verdict import headline
from codeneedle.sweep import plan as planning
from codeneedle.sweep.decide import (
    TIME_SHARE,
    decide,
    deciding,
    first_answer_s,
    fix_order,
    tells_loss,
)
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import (
    prepare,
    refuse_shared_folders,
    refuse_unfit,
)
from codeneedle.sweep.request import Execution, Request, pages
from codeneedle.sweep.runner import (
    GIVE_UP_AFTER,
    CellEnded,
    CellQueue,
    Event,
    NothingToLose,
    Runner,
    once_more,
    once_on_cpu,
)
from codeneedle.sweep.workers import Worker, agreement, on_other_devices, share_of_array
from codeneedle.system.machine import overload
from codeneedle.system.orphans import leftovers, this_process
from codeneedle.system.signals import (
    StopRequest,
    stop_request,
    unwinding_on_signals,
)
from codeneedle.text import duration, plural, sweep_command, visible
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import (
    FURTHER,
    PROBE,
    NextStep,
    next_step,
    pairs_to_extend,
    spent_share,
)
from codeneedle.verdict.order import Why, order_in
from codeneedle.verdict.statistics import Decision
from codeneedle.verdict.trust import trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command, beside what is to be measured."""

    retry_failed: bool = False  # whether cells that failed are measured again
    more: bool | None = None
    """
    Whether open pairs are measured with further functions; None: for at most a third of
    the time of the sweep.
    """

    budget_s: float | None = None
    """Seconds after which no cell starts; None for no limit."""

    wait: bool = True
    """Whether a cell waits for other sweeps if one of them takes times."""

    calibration: bool = True
    """Whether a reference that has nothing to lose ends a long sweep."""

    limits: Limits  # largest losses that the user accepts

    def ends_at(self, began: float) -> str:
        """The time of day at which the budget ends, of what *began*, monotonic."""
        if self.budget_s is None:
            return ""
        left_s = self.budget_s - (time.monotonic() - began)
        return time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))


def sweep(
    request: Request,
    execution: Execution,
    console: Console,
    options: Options,
    shown: Console,
) -> int:
    """
    Measure the cells of *request* that have no record yet.

    All pages are checked before the first one starts.

    Args:
        request: What to measure.
        execution: What the command uses.
        console: Where to show progress.
        options: Of this command alone.
        shown: Where to show the verdict.

    Returns:
        The exit code: 0 if every cell has finished, `UNFINISHED` if some did not.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
        KeyboardInterrupt: By Ctrl-C, once it is said how to go on.
    """
    execution = replace(execution, shard=execution.shard or share_of_array())
    request = deciding(request, execution)
    began = time.monotonic()
    try:
        with unwinding_on_signals():
            if options.budget_s is not None:
                ends = options.ends_at(began)
                budget = f"budget {duration(options.budget_s)}"
                say(console, f"{budget}: no cell starts after {ends}")
            plans = checked(request, execution, console, options)
            if phrase := time_phrase(plans):
                say(console, phrase)
            return max(
                _Page(
                    plan=plan,
                    console=console,
                    shown=shown,
                    options=options,
                    is_last=plan is plans[-1],
                    began=began,
                ).sweep()
                for plan in plans
            )
    except KeyboardInterrupt:
        say(
            console,
            "Stopped. Finished cells are saved; run the same command to resume.",
        )
        raise


def _refuse_new_runs(plans: Sequence[Plan]) -> None:
    """
    Stop if ``--more`` would begin a run: it adds functions to one that there is.

    Raises:
        BadInput: With the way to name a run.
    """
    for plan in plans:
        if plan.store.intact_setup() is None:
            raise BadInput(
                source="--more",
                reason=f"adds functions to a run, and {plan.store.folder} holds none",
                hint="Name the run: codeneedle sweep sweeps/CORPUS/MODEL --more",
            )


def planned(
    request: Request,
    execution: Execution,
    tell: Tell = lambda _what, _done, _total: None,
    pace: Pace | None = None,
) -> list[Plan]:
    """
    The plans of all pages of *request*; *tell* takes how many there are.

    *pace* is what the user states; None for what the engine knows.

    The engine comes first: looking for it takes no time, and reading a corpus does.

    Raises:
        BadInput: If there are several, and one run folder is named.
        CodeneedleError: If the engine is not there, or as `planning.plan`.
    """
    entry = engine_entry(request, execution)
    engine_for = entry.engine_for(entry.adapted(request), execution)
    # A corpus that several pages share is read once.
    read = functools.cache(load)
    by_name = pages(request)
    if execution.folder and by_name[1:]:
        raise BadInput(
            source=execution.folder,
            reason=f"a run folder has one page of a grid, not {len(by_name)}",
            hint="Name one model, context and rotation, or choose another folder with "
            "--out.",
        )
    plans = []
    for at, (name, page) in enumerate(by_name):
        tell(f"planning {plural(len(by_name), 'grid')}", at, len(by_name))
        with telling_calls(tell):
            plan = planning.plan(
                page,
                replace(execution, page=name),
                engine_for=engine_for,
                read=read,
                weights_at=entry.weights,
                adapted=entry.adapted,
                pace=pace,
            )
        plans.append(plan)
    return plans


def refuse(plans: Sequence[Plan], options: Options) -> list[Setup | None]:
    """
    Stop at plans that a sweep could not begin, or not finish.

    Returns:
        For each plan, as of `prepare.refuse_unfit`.

    Raises:
        BadInput: If functions are to be added to a run that there is not.
        CodeneedleError: As of `prepare.refuse_unfit`.
    """
    if options.more:
        _refuse_new_runs(plans)
    refuse_shared_folders(plans)
    return [refuse_unfit(plan) for plan in plans]


def checked(
    request: Request, execution: Execution, console: Console, options: Options
) -> list[Plan]:
    """
    The plans of all pages, after every check that needs no server.

    Weights that have a name are fetched; *console* shows the progress, and notes.

    Raises:
        CodeneedleError: If the sweep cannot start.
    """
    # Before a download: a missing program would end the sweep, too.
    entry = engine_entry(request, execution)
    adapted = entry.adapted(request)
    entry.find(adapted, execution)
    ensure_models(console, map(path_of, adapted.models))
    with working(console, f"checking {request.engine}, weights and corpus") as tell:
        plans = planned(request, execution, tell)
        for plan in plans:
            sha256(plan.weights, progress=functools.partial(tell, "hashing weights"))
        refuse(plans, options)
    notes = (n for plan in plans for n in plan.notes)
    note_lines(console, dict.fromkeys(filter(None, (*notes, overload()))))
    return plans


@dataclass(slots=True, kw_only=True)
class _Page:
    """One page of a sweep."""

    plan: Plan  # what it does
    console: Console  # where progress is shown
    shown: Console  # where the verdict is shown
    options: Options  # of the command
    is_last: bool  # whether no page follows
    began: float  # when the command began, in monotonic seconds
    failed: set[Pair] = field(default_factory=set, init=False)
    """Pairs that were to be measured further, and failed."""

    silent: set[str] = field(default_factory=set, init=False)
    """Names of probes whose reference has nothing to lose."""

    is_described: bool = field(default=False, init=False)
    """Whether the run was described on the screen."""

    has_stepped: bool = field(default=False, init=False)
    """Whether a step was taken behind the reference; what is known before is older."""

    runner: Runner = field(init=False)  # measures its cells, once it is set up
    stop: StopRequest = field(init=False)
    """Whether the user has asked to stop since then."""

    def sweep(self) -> int:
        """
        Run all probes, one after the other.

        Returns:
            The exit code of this page.

        Raises:
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        plan = self.plan
        shard = plan.execution.shard
        with plan.store.locked(share=str(shard or "")):
            if shard is not None:
                cells = plural(len(plan.pairs), "cell")
                note_lines(self.console, [f"share {shard} of the grid: {cells}"])
            run = self._set_up()
            with stop_request() as self.stop:
                self.runner = Runner(
                    run=run,
                    store=plan.store,
                    retry_failed=self.options.retry_failed,
                    asked_to_stop=lambda: self.stop.asked_to_stop or self._is_spent(),
                    may_wait=self.options.wait,
                    tries_reference=self._tries_reference,
                    workers=plan.workers,
                    timing_worker=plan.timing_worker,
                )
                code = self._measured()
        self._note_leftovers()
        if self.stop.asked_to_stop and not self.is_last:
            raise KeyboardInterrupt
        if self._is_spent() and not plan.request.decide and (code or self._is_open()):
            self._say_spent()
        self._show_verdict()
        if plan.request.receipt:
            self._show_receipt()
        return code

    def _set_up(self) -> RunContext:
        """The corpus fitted and the setup stored, by one of several at a time."""
        plan = self.plan
        with plan.store.exclusive(SETUP):
            end_left_behind(self.console)
            if damaged := plan.store.mend():
                kept = f"it is kept as {damaged}, and made anew"
                note_lines(self.console, [f"the setup could not be read: {kept}"])
            waits = telling(lambda what: note_lines(self.console, [what]))
            with working(self.console, "fitting the corpus to the context"), waits:
                run = prepare(plan)
            note_lines(self.console, run.notes)
            return run

    @property
    def _tries_reference(self) -> bool:
        return self.options.calibration and self.plan.tries_reference

    def _is_spent(self) -> bool:
        budget = self.options.budget_s
        return budget is not None and time.monotonic() - self.began >= budget

    @property
    def _may_extend(self) -> bool:
        """Whether open pairs may be measured with further functions."""
        return self.plan.execution.shard is None and self.options.more is not False

    def _read(self) -> Run | None:
        stored = self.plan.store.read()
        return trusted(stored) if stored else None

    def _is_open(self) -> bool:
        """Whether the same command would measure pairs with further functions."""
        run = self._read()
        return bool(
            self._may_extend
            and run
            and pairs_to_extend(judge(run, self.options.limits))
        )

    def _measured(self) -> int:
        """
        Run the probes, then extend open pairs; the exit code.

        Pairs with a kernel come first, and their verdict before all others.
        """
        plan = self.plan
        if plan.request.decide:
            return max(self._in_steps())
        last = set(plan.without_kernel)
        codes = self._probed([pair for pair in plan.pairs if pair not in last])
        if self._may_extend and not self.runner.asked_to_stop():
            codes.append(self._decided())
            codes.append(self._checked())
        if last and not self.runner.asked_to_stop():
            self._show_verdict(apart=last)
            cells = plural(len(last), "pair")
            say(self.console, f"now {cells} without a kernel here{self._time_of(last)}")
            codes += self._probed(plan.pairs)
        return max(codes)

    def _time_of(self, pairs: Collection[Pair]) -> str:
        """What cells of *pairs* take, about, as a phrase; empty if unknown."""
        known = [self.plan.cell_s(probe) for probe in self.plan.probes]
        times = [each for each in known if each is not None]
        if len(times) < len(known):
            return ""
        return f", about {duration(math.fsum(times) * len(pairs))}"

    def _probed(self, pairs: Sequence[Pair]) -> list[int]:
        """The exit codes of all probes on *pairs*."""
        codes: list[int] = [0]
        silent: list[NothingToLose] = []
        for probe in self.plan.probes:
            try:
                codes += self._swept_twice(probe, pairs)
            except NothingToLose as error:
                silent.append(error)
                if len(silent) == len(self.plan.probes):
                    raise
                codes.append(1)
                say(self.console, f"{error}: left out")
        return codes

    def _in_steps(self) -> list[int]:
        """
        Measure step by step what would change the answer first; the exit codes.

        The reference is asked first, and once more when nothing is left.
        """
        telling = [probe for probe in self.plan.probes if tells_loss(probe)]
        others = [probe for probe in self.plan.probes if probe not in telling]
        codes, reference = self._reference_first(telling)
        if reference is None:
            if self._is_spent():
                self._say_over(f"{self.plan.may_measure[0]}, the reference", math.nan)
            elif not self.runner.asked_to_stop():
                again = sweep_command(self.plan.store.folder, "--retry-failed")
                none = "No answer yet: no pair that could be the reference has numbers."
                say(self.shown, f"{none} Mend what failed, then:\n  {again}")
            return codes
        able = self._able(telling)
        codes.append(int(len(able) < len(telling)))
        telling = able
        # Of a budget, half is kept for what follows the first answer.
        half_s = (self.options.budget_s or math.inf) / 2
        most_s = min(first_answer_s(self.plan), half_s)
        pairs = self.plan.may_measure
        order = fix_order(self.runner, reference, pairs, most_s=most_s)
        if self.options.retry_failed:
            codes += self._retried(telling, reference, next(iter(order.looks), None))
        is_over = False
        while not is_over:
            codes += self._stepped(telling)
            if self.runner.asked_to_stop() or self._next_step():
                return codes
            # Also of a run that was decided before these were asked for.
            for probe in others:
                codes.append(self._swept(self.runner, probe, self._tried(telling)))
            is_over = self._next_step() is None
        codes.append(self._checked())
        for probe in telling:
            codes += self._swept_behind(probe, self._tried([probe]))
        cells = plural(len(self._tried(telling)), "pair")
        progress = self._progress(self._queue(telling[0], self._tried(telling)))
        over = "nothing is left in this run that could change it"
        if reference in self.failed:
            over = f"{reference} was not measured further, so nothing else was"
        self._summarize(progress, f"{over}: {cells} asked")
        return codes

    def _retried(
        self, telling: Sequence[Probe], reference: Pair, goal: int | None
    ) -> Iterator[int]:
        """The exit codes of pairs that failed, but of those before the *reference*."""
        first = most_precise_first(self.plan.may_measure)
        before = {*first[: first.index(reference) + 1]}
        there = replace(self.runner, goal=goal)
        for probe in telling:
            left = [pair for pair in self._tried([probe]) if pair not in before]
            if left:
                yield self._swept(there, probe, left)

    def _reference_first(
        self, telling: Sequence[Probe]
    ) -> tuple[list[int], Pair | None]:
        """The exit codes of the reference, and the pair; None if none of them runs."""
        pairs = most_precise_first(self.plan.may_measure)[:GIVE_UP_AFTER]
        order = order_in(self.runner.run.setup)
        # One that is measured again is asked for as many as all others.
        goal = next(iter(order.looks), None) if order else None
        there = replace(self.runner, goal=goal) if goal else self.runner
        codes = [0]
        for pair in pairs:
            codes += [self._swept(there, probe, [pair]) for probe in telling]
            records = self.runner.read().records
            if any(each.pair == pair and each.has_numbers for each in records):
                return codes, pair
            if self.runner.asked_to_stop():
                break
        return codes, None

    def _able(self, telling: Sequence[Probe]) -> list[Probe]:
        """
        Those of *telling* whose reference has something to lose; others are left out.

        Raises:
            NothingToLose: If that is so of none.
        """
        silent: list[NothingToLose] = []
        for probe in telling:
            queue = CellQueue(self.runner, probe, self.plan.may_measure)
            try:
                queue.stop_if_nothing_to_lose()
            except NothingToLose as error:
                silent.append(error)
                if len(silent) == len(telling):
                    raise
                self.silent.add(probe.name)
                say(self.console, f"{error}: left out")
        return [probe for probe in telling if probe.name not in self.silent]

    def _stepped(self, telling: Sequence[Probe]) -> Iterator[int]:
        """The exit codes of all steps, until none is left or the time is up."""
        while step := self._next_step():
            if self.stop.asked_to_stop:
                raise KeyboardInterrupt
            verdict = judge(self.runner.read(), self.options.limits)
            self._say_so_far(verdict)
            while not self._fits(step) and (shorter := step.shorter):
                step = shorter
            if not self._fits(step):
                self._say_over(step_phrase(step, verdict), step.time_s)
                yield 1
                return
            about = duration_phrase(step.time_s)
            say(self.console, f"next: {step_phrase(step, verdict)}{about}")
            self.has_stepped = True
            self._extend(step.goals)
            if step.new and not self.runner.asked_to_stop():
                # What failed was measured again before the first step.
                goal = step.asked.goal or None
                there = replace(self.runner, goal=goal, retry_failed=False)
                pairs = list(dict.fromkeys((*self._tried(telling), *step.new)))
                for probe in telling:
                    yield self._swept(there, probe, self._not_beyond(pairs))
        yield int(bool(self.failed))

    def _not_beyond(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Those of *pairs* that nothing measured so far has put beyond the limit."""
        verdict = judge(self.runner.read(), self.options.limits)
        return [p for p in pairs if verdict.decision(p) != Decision.BEYOND]

    def _next_step(self) -> NextStep | None:
        """What is measured next; None if nothing is, or the reference has failed."""
        telling = (probe.name for probe in self.plan.probes if tells_loss(probe))
        names = [name for name in telling if name not in self.silent]
        verdict = judge(self.runner.read(), self.options.limits)
        may = self.options.more is not False
        if verdict.reference in self.failed:
            return None
        return next_step(verdict, names, may_continue=may, failed=self.failed)

    def _tried(self, probes: Sequence[Probe]) -> list[Pair]:
        """The pairs with a record of one of *probes*, in the order of the sweep."""
        names = {probe.name for probe in probes}
        tried = {r.pair: r for r in self.runner.read().records if r.probe in names}
        return sorted(tried, key=lambda pair: tried[pair].started)

    def _fits(self, step: NextStep) -> bool:
        """Whether *step* ends before the time is up, as far as is known."""
        budget = self.options.budget_s
        if budget is None:
            return True
        left_s = budget - (time.monotonic() - self.began)
        return left_s > 0 and not step.time_s > left_s

    def _say_so_far(self, verdict: Verdict) -> None:
        """The verdict so far, in a line or two, once a loss was measured."""
        if not verdict.compared:
            return
        first, *rest = headline(verdict, asks_for(verdict.run.setup.engine))
        spent = duration(time.monotonic() - self.began)
        when = f"after {spent}" if self.has_stepped else "by what is stored"
        say(self.console, f"so far, {when}: {first}")
        for line in rest[:1]:
            show_words(self.console, Text(visible(line.strip())))

    @property
    def _has_answer(self) -> bool:
        """Whether a pair was compared with the reference."""
        run = self._read()
        return run is not None and bool(judge(run, self.options.limits).compared)

    def _say_spent(self) -> None:
        """Say that the time is up and cells are left; without a loss, as verdict."""
        if self._has_answer:
            say(self.console, "The time is up; run the same command to continue.")
            return
        again = sweep_command(self.plan.store.folder)
        say(self.shown, f"No answer yet: the time is up. To go on:\n  {again}")

    def _say_over(self, what: str, time_s: float) -> None:
        """Say that the time is up before *what*; without a loss, as the verdict."""
        again = sweep_command(self.plan.store.folder)
        has_answer = self._has_answer
        start = "The time is up" if has_answer else "No answer yet: the time is up"
        console = self.console if has_answer else self.shown
        missing = f"{start}. Missing: {what}{duration_phrase(time_s)}."
        say(console, f"{missing} To go on:\n  {again}")

    def _decided(self) -> int:
        """Measure open pairs of a grid with further functions; the exit code."""

        def is_over(run: Run) -> bool:
            is_long = self.options.more is None and spent_share(run) >= TIME_SHARE
            return is_long or self.runner.asked_to_stop()

        limits = self.options.limits
        failed = decide(self.runner, limits, is_over=is_over, show=self._shown_further)
        self._note_failed(failed)
        if self.stop.asked_to_stop:
            raise KeyboardInterrupt
        return 1 if failed else 0

    def _checked(self) -> int:
        """
        Check the pair that is about to be set, beside the reference; the exit code.

        By what measures it another way, where there is one: `Further.checks`.
        """
        verdict = judge(self.runner.read(), self.options.limits)
        both = {verdict.reference, verdict.chosen} if verdict.chosen else set()
        wanted = [
            record.pair
            for record in verdict.run.records
            if record.probe == PROBE.name and record.has_numbers
            if record.pair in both and FURTHER.unchecked(record, verdict.run.setup)
        ]
        if not wanted or self.runner.asked_to_stop():
            return 0
        names = visible(", ".join(map(str, wanted)))
        say(self.console, f"checking what was read: {names}, forced token by token")
        progress = self._progress(self._queue(PROBE, wanted))
        progress.records.clear()
        with SweepDisplay(self.console, progress) as display:
            records = [
                self.runner.check(PROBE, pair, tell=display.show)
                for pair in wanted
                if not self.runner.asked_to_stop()
            ]
        failed = [r for r in records if FURTHER.unchecked(r, verdict.run.setup)]
        note_lines(
            self.console,
            (f"{r.pair} was not checked: {r.reason}" for r in failed if r.reason),
        )
        return int(bool(failed))

    def _extend(self, goals: Mapping[Pair, int]) -> None:
        """Measure pairs with further functions, up to *goals*, and note what failed."""
        if not goals:
            return
        records = []
        with self._shown_further(goals) as tell:
            for pair, goal in goals.items():
                if self.runner.asked_to_stop():
                    break
                record = self.runner.extend(PROBE, pair, goal, tell=tell)
                if not record.has_numbers or FURTHER.units(record) < goal:
                    records.append(record)
        self.failed |= {record.pair for record in records}
        self._note_failed(records)

    @contextlib.contextmanager
    def _shown_further(
        self, goals: Mapping[Pair, int]
    ) -> Iterator[Callable[[Event], None]]:
        """Show that pairs are asked for further functions, up to *goals*."""
        progress = self._progress(self._queue(PROBE, tuple(goals)))
        progress.records.clear()
        if not self.plan.request.decide:
            functions = plural(max(goals.values()), "function")
            say(self.console, f"open pairs, up to {functions} each:")
        with SweepDisplay(self.console, progress) as display:
            yield display.show

    def _note_failed(self, failed: Iterable[CellRecord]) -> None:
        note_lines(
            self.console,
            (f"{r.pair} was not measured further: {r.reason}" for r in failed),
        )

    def _swept_twice(self, probe: Probe, pairs: Sequence[Pair]) -> Iterator[int]:
        """The exit codes of *probe*, and of its reference measured again."""
        yield self._swept(self.runner, probe, pairs)
        yield from self._swept_behind(probe, pairs)

    def _swept_behind(self, probe: Probe, pairs: Sequence[Pair]) -> Iterator[int]:
        """The exit codes of the reference behind all *pairs*, wherever that tells."""
        if self.plan.repeated(probe):
            twice = once_more(probe, pairs, store=self.plan.store)
            if twice:
                again, reference = twice
                yield self._swept(self.runner, again, [reference])
        yield from self._swept_on_cpu(probe, pairs)
        yield from self._swept_elsewhere(probe, pairs)

    def _swept_on_cpu(self, probe: Probe, pairs: Sequence[Pair]) -> Iterator[int]:
        """The exit code of the reference with attention on the CPU, if that tells."""
        once = once_on_cpu(probe, pairs, store=self.plan.store)
        first = self.plan.workers[0]
        engine = first.engine.on_cpu(once[1]) if once else None
        if once and engine:
            other, reference = once
            worker = Worker(engine=engine, device=first.device)
            there = replace(self.runner, workers=[worker])
            yield self._swept(there, other, [reference])

    def _swept_elsewhere(self, probe: Probe, pairs: Sequence[Pair]) -> Iterator[int]:
        """The exit code of the reference on each further kind of device."""
        store = self.plan.store
        devices = {worker.device: worker for worker in self.plan.workers}
        for other, reference, device in on_other_devices(
            probe, pairs, store=store, devices=list(devices)
        ):
            there = replace(self.runner, workers=[devices[device]])
            yield self._swept(there, other, [reference])
            if note := agreement(probe, other, pairs, store=store):
                note_lines(self.console, [note])

    def _swept(self, runner: Runner, probe: Probe, pairs: Sequence[Pair]) -> int:
        queue = self._queue(probe, pairs, runner)
        progress = self._progress(queue)
        if not queue.left:
            cells = plural(len(progress.pairs), "cell")
            return self._ended(progress, f"{cells} done already: nothing to do")
        if not self.stop.asked_to_stop:
            self.is_described = True
            with SweepDisplay(self.console, progress) as display:
                calibrating = probe.calibrating or Calibrating()
                known = {*calibrating.told(runner.run.setup)}

                def show(event: Event) -> None:
                    progress.setup = runner.run.setup
                    display.show(event)
                    if isinstance(event, CellEnded):
                        told = calibrating.told(progress.setup)
                        if {*told} - known:
                            known.update(told)
                            note_lines(self.console, told)

                runner.measure(queue, tell=show)
        # Asked to stop, and cells are left: of this probe, or all of a later one.
        if self.stop.asked_to_stop and progress.done < len(progress.pairs):
            raise KeyboardInterrupt
        finished = progress.done - progress.failures
        cells = f"{finished} of {len(progress.pairs)} cells finished"
        setup = runner.run.setup
        lacking = sum(
            lacks(probe, record, setup) for record in progress.records.values()
        )
        if lacking:
            cells += f", {lacking} without what was added: it failed, see the logs"
        return self._ended(progress, cells) or int(lacking > 0)

    def _queue(
        self, probe: Probe, pairs: Sequence[Pair], runner: Runner | None = None
    ) -> CellQueue:
        """The cells of *probe* on *pairs*, for *runner* or that of the page."""
        tries = self.options.calibration
        ordered = self.plan.order(probe, pairs, tries_reference=tries)
        return CellQueue(runner or self.runner, probe, ordered)

    def _progress(self, queue: CellQueue) -> SweepProgress:
        """What is shown of a new *queue*."""
        probe = queue.probe
        return SweepProgress(
            setup=self.runner.run.setup,
            pairs=queue.pairs,
            probe=probe,
            records=queue.done,
            workers=1 if probe.is_timed else len(self.plan.workers),
            is_first=probe is self.plan.probes[0] and not self.is_described,
            cell_s=self.plan.cell_s(probe),
            impossible=frozenset(filter(self.plan.refusal, queue.pairs)),
            asked_to_stop=lambda: self.stop.asked_to_stop,
            until=self.options.ends_at(self.began),
        )

    def _ended(self, progress: SweepProgress, result: str) -> int:
        """The exit code of *progress*; its summary, where no step of more follows."""
        if not self.plan.request.decide:
            self._summarize(progress, result)
        is_whole = progress.done >= len(progress.pairs)
        return UNFINISHED if progress.failures or not is_whole else 0

    def _summarize(self, progress: SweepProgress, result: str) -> None:
        """Show the *result* of a probe, and the commands that follow."""
        folder = self.plan.store.folder
        lines = [f"{probe_phrase(progress.probe)}: {result}", "look at them:"]
        metric = self._metric_to_name(progress)
        lines += next_commands(self.plan.store.name, metric, folder.parent.parent)
        if progress.failures:
            again = sweep_command(folder, "--retry-failed")
            lines += ["measure those without numbers again:", f"  {again}"]
        say(self.console, "\n".join(lines))

    def _metric_to_name(self, progress: SweepProgress) -> str:
        """The headline; empty if reports show it by default, also once all is done."""
        metric = progress.metrics[0].name
        names = {probe.name for probe in self.plan.probes}
        first = next(name for name in PROBES if name in names)
        if progress.probe.name.partition("_")[0] != first:
            return metric
        run = self._read()
        is_default = run is not None and metric == default_metric([run])
        return "" if is_default else metric

    def _note_leftovers(self) -> None:
        """What servers of this sweep left behind that cannot be ended for sure."""
        left = leftovers(this_process())
        if left:
            more = f", and {len(left) - 1} more" if left[1:] else ""
            note_lines(self.console, [f"{left[0]}{more}; see codeneedle doctor"])

    def _show_verdict(self, *, apart: Collection[Pair] = ()) -> None:
        """
        The verdict on the run so far, if there is anything to compare.

        Pairs that are set *apart* have no kernel: they are no choice here.
        """
        run = self._read()
        if run is None or not _is_comparable(run):
            return
        if apart:
            choices = [str(pair) for pair in run.setup.grid if pair not in apart]
            run = replace(run, setup=replace(run.setup, pairs=tuple(choices)))
        from codeneedle.report.terminal import print_report
        from codeneedle.report.verdict import brief, closing

        try:
            verdict = judge(run, self.options.limits)
        except CodeneedleError as error:
            # The records are kept; 'codeneedle verdict' fails alike, with its code.
            say(self.console, f"no verdict: {error}")
            return
        answer = brief(verdict, asks_for(run.setup.engine))
        print_report(self.shown, answer, closing([verdict], asks_for))

    def _show_receipt(self) -> None:
        """The receipt of the run so far, for the table of models."""
        run = self._read()
        if run is None:
            return
        from codeneedle.report.receipt import receipt_markdown

        say(self.console, "For the table of models, paste what follows into an issue:")
        self.shown.out(receipt_markdown(run), end="", highlight=False)


def step_phrase(step: NextStep, verdict: Verdict) -> str:
    """What *step* measures, and why, given the *verdict* so far."""
    pairs, goal = step.asked.pairs, step.asked.goal
    names = visible(", ".join(map(str, pairs)))
    each = f"{plural(goal, 'function')}{' each' if pairs[1:] else ''}" if goal else ""
    asked = f"{names}, {each}" if each else names
    if step.asked.why is Why.FIRST:
        return f"the first answer: {asked}"
    if step.asked.why is Why.MORE:
        return f"{asked}, which may decide it"
    if step.asked.why is Why.CHECK:
        finer = visible(str(verdict.inferred.get(pairs[0], "")))
        return f"{asked}, ruled out by {finer}: a check"
    if step.asked.why is Why.UNLIKELY:
        return f"{asked}, less precise than one above the limit"
    has_within = any(each.decision is Decision.WITHIN for each in verdict.compared)
    return f"{asked}, {'smaller than what is' if has_within else 'which may be'} within"


def duration_phrase(seconds: float) -> str:
    """``, about 1:20``; empty if nothing is known."""
    return f", about {duration(seconds)}" if math.isfinite(seconds) else ""


def _is_comparable(run: Run) -> bool:
    """Whether a pair beside the reference has numbers."""
    return len({record.pair for record in run.records if record.has_numbers}) > 1


def next_commands(name: str, metric: str, out: Path) -> list[str]:
    """
    The commands that show a run, a line each.

    Args:
        name: Of the run.
        metric: Name of what to show; empty for what is shown where none is named.
        out: Folder of all run folders.
    """
    words = [name]
    if metric:
        words += ["--metric", metric]
    if out != RUNS:
        words += ["--out", str(out)]
    named = shlex.join(words)
    return [f"  codeneedle {command} {named}" for command in ("grid", "heatmap")]
