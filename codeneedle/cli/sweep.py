"""The sweep command: plan, prepare, run and show until it is through."""

import contextlib
import functools
import math
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from codeneedle.cli.engines import asks_for, offered
from codeneedle.cli.progress import (
    SweepDisplay,
    SweepProgress,
    Tell,
    ensure_models,
    note_lines,
    probe_phrase,
    say,
    working,
)
from codeneedle.corpora.registry import load
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.grid import RUNS, Pair
from codeneedle.models.pretrained import path_of
from codeneedle.models.weights import sha256
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Probe, RunContext
from codeneedle.records.record import Run, Setup
from codeneedle.records.store import SETUP
from codeneedle.report.plan import time_phrase
from codeneedle.report.selection import default_metric
from codeneedle.sweep import plan as planning
from codeneedle.sweep.decide import (
    PROBE,
    TIME_SHARE,
    decide,
    deciding,
    finalists,
    further,
    spent_share,
)
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import (
    prepare,
    refuse_shared_folders,
    refuse_unfit,
)
from codeneedle.sweep.request import Execution, Request, pages
from codeneedle.sweep.runner import (
    Event,
    NothingToLose,
    Runner,
    once_more,
    once_on_cpu,
    pending,
)
from codeneedle.sweep.workers import Worker, agreement, on_other_devices, share_of_array
from codeneedle.system.machine import overload
from codeneedle.system.orphans import end_orphans, leftovers, this_process
from codeneedle.system.signals import (
    INTERRUPTED,
    StopRequest,
    stop_request,
    unwinding_on_signals,
)
from codeneedle.text import duration, plural, sweep_command, visible
from codeneedle.verdict.judge import Limits, judge
from codeneedle.verdict.trust import trusted, trusted_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    Options of the command, beside what is to be measured.

    Attributes:
        retry_failed: Whether cells that failed are measured again.
        more: Whether open pairs are measured with further functions; None: for at most
            a third of the time of the sweep.
        budget_s: Seconds after which no cell starts; None for no limit.
        wait: Whether a cell waits for other sweeps if one of them takes times.
        calibration: Whether a reference that has nothing to lose ends a long sweep.
        limits: Largest losses that the user accepts.
    """

    retry_failed: bool = False
    more: bool | None = None
    budget_s: float | None = None
    wait: bool = True
    calibration: bool = True
    limits: Limits

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
        The exit code: 0 if every cell has finished, 1 if some did not, 130 if
        it was interrupted.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
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
        return INTERRUPTED


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
) -> list[Plan]:
    """
    The plans of all pages of *request*; *tell* takes how many there are.

    The engine comes first: looking for it takes no time, and reading a corpus does.

    Raises:
        BadInput: If there are several, and one run folder is named.
        CodeneedleError: If the engine is not there, or as `planning.plan`.
    """
    offer = offered(request, execution)
    engine_for = offer.engine_for(offer.suited(request), execution)
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
        plan = planning.plan(
            page,
            replace(execution, page=name),
            engine_for=engine_for,
            read=read,
            weights_at=offer.weights,
            suited=offer.suited,
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
    offer = offered(request, execution)
    suited = offer.suited(request)
    offer.find(suited, execution)
    ensure_models(console, map(path_of, suited.models))
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
    """
    One page of a sweep.

    Attributes:
        plan: What it does.
        console: Where progress is shown.
        shown: Where the verdict is shown.
        options: Of the command.
        is_last: Whether no page follows.
        began: When the command began, in monotonic seconds.
        runner: Measures its cells, once it is set up.
        stop: Whether the user has asked to stop since then.
    """

    plan: Plan
    console: Console
    shown: Console
    options: Options
    is_last: bool
    began: float
    runner: Runner = field(init=False)
    stop: StopRequest = field(init=False)

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
                    alone=plan.alone,
                )
                code = self._measured()
        self._note_leftovers()
        if self.stop.asked_to_stop and not self.is_last:
            raise KeyboardInterrupt
        if self._is_spent() and (code or self._is_open()):
            say(self.console, "The time is up; run the same command to continue.")
        self._show_verdict()
        return code

    def _set_up(self) -> RunContext:
        """The corpus fitted and the setup stored, by one of several at a time."""
        plan = self.plan
        with plan.store.alone(SETUP):
            note_lines(
                self.console,
                (
                    f"ended a {orphan.program} that was left behind: pid {orphan.pid}"
                    for orphan in end_orphans()
                ),
            )
            if damaged := plan.store.mend():
                kept = f"it is kept as {damaged}, and made anew"
                note_lines(self.console, [f"the setup could not be read: {kept}"])
            with working(self.console, "fitting the corpus to the context"):
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
            self._may_extend and run and further(judge(run, self.options.limits))
        )

    def _measured(self) -> int:
        """
        Run the probes, then extend open pairs; the exit code.

        Pairs with a kernel come first, and their verdict before all others.
        """
        plan = self.plan
        last = set(plan.without_kernel)
        codes = self._probed([pair for pair in plan.pairs if pair not in last])
        if self._may_extend and not self.runner.asked_to_stop():
            codes.append(self._decided())
        if last and not self.runner.asked_to_stop():
            self._show_verdict()
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
            if self.plan.request.decide and not probe.screens:
                pairs = self._finalists()
            if not pairs:
                break
            try:
                codes += self._swept_twice(probe, pairs)
            except NothingToLose as error:
                silent.append(error)
                if len(silent) == len(self.plan.probes):
                    raise
                codes.append(1)
                say(self.console, f"{error}: left out")
        return codes

    def _finalists(self) -> Sequence[Pair]:
        """The pairs that are worth measuring further, once all are screened."""
        plan = self.plan
        screens = [probe for probe in plan.probes if probe.screens]
        if any(pending(plan.pairs, store=plan.store, probe=each) for each in screens):
            return ()
        chosen = finalists(self.runner.read(), self.options.limits)
        names = ", ".join(visible(str(pair)) for pair in chosen)
        what = (
            f"worth measuring further: {names}\n(the reference, and pairs of which no "
            "other has a smaller cache and less divergence, the smallest first)"
        )
        none = "nothing to measure further: all smaller caches are beyond the limit"
        say(self.console, what if chosen else none)
        return tuple(pair for pair in plan.pairs if pair in {*chosen})

    def _decided(self) -> int:
        """Measure open pairs with further functions; the exit code."""

        def is_over(run: Run) -> bool:
            is_long = self.options.more is None and spent_share(run) >= TIME_SHARE
            return is_long or self.runner.asked_to_stop()

        @contextlib.contextmanager
        def show(goals: Mapping[Pair, int]) -> Iterator[Callable[[Event], None]]:
            progress = self._progress(PROBE, tuple(goals))
            progress.records.clear()
            functions = plural(max(goals.values()), "function")
            say(self.console, f"open pairs, up to {functions} each:")
            with SweepDisplay(self.console, progress) as display:
                yield display.show

        limits = self.options.limits
        failed = decide(self.runner, limits, is_over=is_over, show=show)
        note_lines(
            self.console,
            (f"{r.pair} was not measured further: {r.reason}" for r in failed),
        )
        if self.stop.asked_to_stop:
            raise KeyboardInterrupt
        return 1 if failed else 0

    def _swept_twice(self, probe: Probe, pairs: Sequence[Pair]) -> Iterator[int]:
        """The exit codes of *probe*, and of its reference measured again."""
        yield self._swept(self.runner, probe, pairs)
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
        progress = self._progress(probe, pairs)
        if not self._pending(progress):
            cells = plural(len(progress.pairs), "cell")
            return self._summary(progress, f"all {cells} are done: nothing to do")
        if not self.stop.asked_to_stop:
            with SweepDisplay(self.console, progress) as display:

                def show(event: Event) -> None:
                    progress.setup = runner.run.setup
                    display.show(event)

                runner.sweep(probe, progress.pairs, tell=show)
        # Asked to stop, and cells are left: of this probe, or all of a later one.
        if self.stop.asked_to_stop and progress.done < len(progress.pairs):
            raise KeyboardInterrupt
        finished = progress.done - progress.failures
        cells = f"{finished} of {len(progress.pairs)} cells finished"
        setup = self.runner.run.setup
        lacking = sum(
            probe.lacks(record, setup) for record in progress.records.values()
        )
        if lacking:
            cells += f", {lacking} without what was added: it failed, see the logs"
        return self._summary(progress, cells) or int(lacking > 0)

    def _pending(self, progress: SweepProgress) -> list[Pair]:
        return pending(
            progress.pairs,
            store=self.plan.store,
            probe=progress.probe,
            retry_failed=self.options.retry_failed,
        )

    def _progress(self, probe: Probe, pairs: Sequence[Pair]) -> SweepProgress:
        tries = self.options.calibration
        ordered = self.plan.order(probe, pairs, tries_reference=tries)
        progress = SweepProgress(
            setup=self.runner.run.setup,
            pairs=ordered,
            probe=probe,
            records={},
            workers=1 if probe.is_timed else len(self.plan.workers),
            is_first=probe is self.plan.probes[0],
            cell_s=self.plan.cell_s(probe),
            impossible=frozenset(filter(self.plan.refusal, ordered)),
            asked_to_stop=lambda: self.stop.asked_to_stop,
            until=self.options.ends_at(self.began),
        )
        # A failed cell that is measured again is not done, whatever its file says.
        left = set(self._pending(progress))
        records = trusted_records(self.plan.store, probe.name)
        done = (p for p in progress.pairs if p in records and p not in left)
        progress.records |= {pair: records[pair] for pair in done}
        return progress

    def _summary(self, progress: SweepProgress, result: str) -> int:
        """Show the *result* of a probe, and the commands that follow; the exit code."""
        folder = self.plan.store.folder
        lines = [f"{probe_phrase(progress.probe)}: {result}", "look at them:"]
        metric = self._metric_to_name(progress)
        lines += next_commands(self.plan.store.name, metric, folder.parent.parent)
        if progress.failures:
            again = sweep_command(folder, "--retry-failed")
            lines += ["measure those without numbers again:", f"  {again}"]
        say(self.console, "\n".join(lines))
        return 1 if progress.failures or progress.done < len(progress.pairs) else 0

    def _metric_to_name(self, progress: SweepProgress) -> str:
        """The headline; empty if reports show it by default, also once all is done."""
        metric, run = progress.metrics[0].name, self._read()
        names = {probe.name for probe in self.plan.probes}
        first = next(name for name in PROBES if name in names)
        is_first = progress.probe.name.partition("_")[0] == first
        is_default = run is not None and metric == default_metric([run])
        return "" if is_first and is_default else metric

    def _note_leftovers(self) -> None:
        """What servers of this sweep left behind that cannot be ended for sure."""
        left = leftovers(this_process())
        if left:
            more = f", and {len(left) - 1} more" if left[1:] else ""
            note_lines(self.console, [f"{left[0]}{more}; see codeneedle doctor"])

    def _show_verdict(self) -> None:
        """The verdict on the run so far, if there is anything to compare."""
        run = self._read()
        if run is None or not _is_comparable(run):
            return
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
