"""
The sweep command: checks all pages before the first server, has them measured, and says
the next step, the answer so far, why it ended, and how to go on.
"""

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
    Sequence,
)
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from codeneedle.cache_types import Pair
from codeneedle.cli.engines import engine_pair_flags, prepare_engine_entry
from codeneedle.cli.one_model import (
    can_share_budget_or_report,
    restrict_to_deciding_probe,
    weights_comparison_hint_line,
)
from codeneedle.cli.progress import (
    SweepDisplay,
    SweepProgress,
    Tell,
    end_and_report_orphans,
    fetch_missing_models,
    print_line,
    print_notes,
    probe_phrase,
    say,
    show_task_progress,
)
from codeneedle.corpora.registry import load
from codeneedle.engines.pace import Pace
from codeneedle.engines.started_servers import reporting_waits
from codeneedle.engines.survey import reporting_survey_progress
from codeneedle.errors import BadInput, CodeneedleError
from codeneedle.exit_codes import UNFINISHED
from codeneedle.models.pretrained import path_unless_built_in
from codeneedle.models.weights import load_or_compute_sha256
from codeneedle.probes import PROBES, refuse_impossible_settings
from codeneedle.probes.cell import RunContext
from codeneedle.probes.probe import Calibrating, Probe
from codeneedle.records.record import CellRecord, Run
from codeneedle.report.captions import root_options
from codeneedle.report.chosen_runs import default_metric_name
from codeneedle.report.plan import sweep_time_phrase
from codeneedle.report.verdict import headline_sentences
from codeneedle.sweep import plan as planning
from codeneedle.sweep.grid_shares import slurm_task_share
from codeneedle.sweep.measure import (
    CellTally,
    Ending,
    Options,
    TaskLoop,
    TimeLimit,
    may_extend_pairs,
    task_loop,
)
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.plan_notes import notes_of_plan
from codeneedle.sweep.prepare import (
    prepare_run_and_store_setup,
    refuse_shared_folders,
)
from codeneedle.sweep.request import (
    Execution,
    Request,
    pages,
    refuse_decided_share,
)
from codeneedle.sweep.runner import (
    CellEnded,
    CellQueue,
    Event,
    NothingToLose,
    Runner,
)
from codeneedle.sweep.running_order import measurable_pairs
from codeneedle.sweep.schedule import (
    JudgedTask,
    Stage,
    Task,
    Variant,
    reference_of,
)
from codeneedle.system.machine import present_load
from codeneedle.system.signals import (
    StopRequest,
    catching_stop_request,
    interrupting_on_end_signals,
)
from codeneedle.text import duration_text, escape_invisible, plural, sweep_command
from codeneedle.verdict.asking_order import StepTarget, Why
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.next import (
    NextStep,
    pairs_to_extend,
)
from codeneedle.verdict.statistics import Decision
from codeneedle.verdict.trust import trusted_run


def sweep(
    request: Request,
    execution: Execution,
    console: Console,
    options: Options,
    shown: Console,
    together: "Callable[[Sequence[tuple[Page, RunContext]]], int] | None" = None,
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
        together: Measures several files of weights of one model; None to measure each
            by itself.

    Returns:
        The exit code: 0 if every cell has finished, `UNFINISHED` if some did not.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
        KeyboardInterrupt: By Ctrl-C, once it is said how to go on.
    """
    execution = replace(execution, shard=execution.shard or slurm_task_share())
    refuse_decided_share(request, execution)
    asked = request
    if together and request.decide:
        request = restrict_to_deciding_probe(request)
    began = time.monotonic()
    try:
        with interrupting_on_end_signals():
            if options.budget_s is not None:
                ends = end_time_text(TimeLimit(began, options.budget_s))
                budget = f"budget {duration_text(options.budget_s)}"
                say(console, f"{budget}: no cell starts after {ends}")
            plans = fetch_and_make_checked_plans(request, execution, console, options)
            with contextlib.ExitStack() as stack:
                if (
                    together
                    and request.decide
                    and can_share_budget_or_report(plans, console)
                ):
                    runs = [*_set_up_possible_plans(plans, console, stack)]
                    code = together(
                        _say_time_and_make_pages(
                            runs, plans, console, shown, options, began
                        )
                    )
                    return code or int(len(runs) < len(plans))
                if request != asked:  # each by itself after all, by all of its probes
                    plans = fetch_and_make_checked_plans(
                        asked, execution, console, options
                    )
                runs = [(plan, _set_up_run(plan, console, stack)) for plan in plans]
                pages = _say_time_and_make_pages(
                    runs, plans, console, shown, options, began
                )
                return max(page.sweep(run) for page, run in pages)
    except KeyboardInterrupt:
        say(
            console,
            "Stopped. Finished cells are saved; run the same command to resume.",
        )
        raise


def _say_time_and_make_pages(
    runs: Iterable[tuple[Plan, RunContext]],
    plans: Sequence[Plan],
    console: Console,
    shown: Console,
    options: Options,
    began: float,
) -> list[tuple["Page", RunContext]]:
    """*runs* as pages; what all of *plans* take is told first."""
    if phrase := sweep_time_phrase(plans):
        say(console, phrase)
    return [
        (
            Page(
                plan=plan,
                console=console,
                shown=shown,
                options=options,
                is_last=plan is plans[-1],
                is_alone=len(plans) == 1,
                began=began,
            ),
            run,
        )
        for plan, run in runs
    ]


def _set_up_possible_plans(
    plans: Sequence[Plan], console: Console, stack: contextlib.ExitStack
) -> Iterator[tuple[Plan, RunContext]]:
    """
    Those of *plans* whose model can be set up; others are left out, with the reason.

    Raises:
        BadInput: If what is asked for cannot be.
    """
    for plan in plans:
        try:
            yield plan, _set_up_run(plan, console, stack)
        except BadInput:
            raise
        except CodeneedleError as error:
            print_notes(console, [f"{escape_invisible(plan.model)}: {error}: left out"])


def _set_up_run(
    plan: Plan, console: Console, stack: contextlib.ExitStack
) -> RunContext:
    """
    The run of *plan*: its folder locked, the corpus fitted, the setup stored.

    What was left running is ended, and a setup that cannot be read moved aside; both
    are told.
    """
    stack.enter_context(plan.store.make_and_lock_folder())
    end_and_report_orphans(console)
    for damaged in plan.store.set_damaged_setup_aside():
        kept = f"it is kept as {damaged}, and made anew"
        print_notes(console, [f"the setup could not be read: {kept}"])
    if stored := plan.store.read_setup():
        refuse_impossible_settings(stored)
    waits = reporting_waits(lambda what: print_notes(console, [what]))
    with show_task_progress(console, "fitting the corpus to the context"), waits:
        run = prepare_run_and_store_setup(plan)
    print_notes(console, run.notes)
    return run


def _refuse_new_runs(plans: Sequence[Plan]) -> None:
    """
    Stop if ``--more`` would begin a run: it adds functions to one that there is.

    Raises:
        BadInput: With the way to name a run.
    """
    for plan in plans:
        if plan.store.read_intact_setup() is None:
            raise BadInput(
                source="--more",
                reason=f"adds functions to a run, and {plan.store.folder} holds none",
                hint="Name the run: codeneedle sweep sweeps/CORPUS/MODEL --more",
            )


def make_plans(
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
    entry = prepare_engine_entry(request, execution)
    engine_for = entry.engine_for(entry.with_model_and_types(request), execution)
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
        with reporting_survey_progress(tell):
            plan = planning.plan(
                page,
                replace(execution, page=name),
                engine_for=engine_for,
                read=read,
                weights_at=entry.weights,
                with_model_and_types=entry.with_model_and_types,
                pace=pace,
            )
        plans.append(plan)
    return plans


def refuse_unstartable_plans(plans: Sequence[Plan], options: Options) -> None:
    """
    Stop at what no sweep can begin with.

    Raises:
        BadInput: If functions are to be added to a run that there is not, or two pages
            would write to one folder.
    """
    if options.more:
        _refuse_new_runs(plans)
    refuse_shared_folders(plans)


def fetch_and_make_checked_plans(
    request: Request, execution: Execution, console: Console, options: Options
) -> list[Plan]:
    """
    The plans of all pages, after every check that needs no server.

    Weights that have a name are fetched; *console* shows the progress, and notes.

    Raises:
        CodeneedleError: If the sweep cannot start.
    """
    # Before a download: a missing program would end the sweep, too.
    entry = prepare_engine_entry(request, execution)
    request_of_engine = entry.with_model_and_types(request)
    entry.find(request_of_engine, execution)
    fetch_missing_models(console, map(path_unless_built_in, request_of_engine.models))
    with show_task_progress(
        console, f"checking {request.engine}, weights and corpus"
    ) as tell:
        plans = make_plans(request, execution, tell)
        for plan in plans:
            load_or_compute_sha256(
                plan.weights, progress=functools.partial(tell, "hashing weights")
            )
        refuse_unstartable_plans(plans, options)
    notes = (n for plan in plans for n in notes_of_plan(plan))
    print_notes(
        console,
        dict.fromkeys(filter(None, (*notes, present_load().overload_warning()))),
    )
    return plans


@dataclass(slots=True, kw_only=True)
class Page:
    """One page of a sweep."""

    plan: Plan  # what it does
    console: Console  # where progress is shown
    shown: Console  # where the verdict is shown
    options: Options  # of the command
    is_last: bool  # whether no page follows
    is_alone: bool = False  # whether it is the only page of its command
    began: float  # when the command began, in monotonic seconds
    is_described: bool = field(default=False, init=False)
    """Whether the run was described on the screen."""

    has_stepped: bool = field(default=False, init=False)
    """Whether a step was taken behind the reference; what is known before is older."""

    stepped: StepTarget | None = field(default=None, init=False)
    """The step that was said to come."""

    further: int | None = field(default=None, init=False)
    """Up to how many functions open pairs were said to be asked for."""

    is_last_stage: bool = field(default=False, init=False)
    """Whether pairs without a kernel were said to come."""

    loop: TaskLoop = field(init=False)  # measures, once it is set up
    stop: StopRequest = field(init=False)
    """Whether the user has asked to stop since then."""

    def sweep(self, run: RunContext) -> int:
        """
        Run all probes on *run*, one after the other.

        Returns:
            The exit code of this page.

        Raises:
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        plan = self.plan
        if (shard := plan.execution.shard) is not None:
            cells = plural(len(plan.pairs), "cell")
            print_notes(self.console, [f"share {shard} of the grid: {cells}"])
        with catching_stop_request() as stop:
            self.set_up_loop(run, stop)
            ending = self.measure_and_say_why_ended()
        return self.show_verdict_at_end(ending)

    def set_up_loop(self, run: RunContext, stop: StopRequest) -> None:
        """
        Get ready to measure *run*, until the user asks to *stop*.

        Nothing is measured yet.
        """
        self.stop = stop
        self.loop = task_loop(
            self.plan,
            run,
            self.options,
            began=self.began,
            observer=self,
            stops=lambda: stop.asked_to_stop,
        )

    def measure_and_say_why_ended(self) -> Ending:
        """Measure all tasks; of a sweep that decides, say why that has ended."""
        ending = self.loop.measure()
        if self.plan.request.decide and ending.missing:
            self._say_time_up_before_task(ending.missing)
        elif self.plan.request.decide and not self.runner.asked_to_stop():
            self._say_why_nothing_is_left(ending)
        return ending

    def show_verdict_at_end(self, ending: Ending) -> int:
        """
        Show the verdict, and what follows from *ending*; the exit code.

        Raises:
            KeyboardInterrupt: If the user asked to stop and a page is left.
        """
        plan, code = self.plan, 0 if ending.is_whole else UNFINISHED
        if self.stop.asked_to_stop and not self.is_last:
            raise KeyboardInterrupt
        is_over = self.loop.limit.is_over and not plan.request.decide
        if is_over and (code or self._has_pairs_to_extend()):
            self._say_cells_are_left()
        self._show_verdict()
        if plan.request.receipt:
            self._show_receipt()
        if self.is_alone and (line := weights_comparison_hint_line(plan)):
            say(self.console, line)
        return code

    @property
    def runner(self) -> Runner:
        """What measures its cells."""
        return self.loop.runner

    def _read_run_if_stored(self) -> Run | None:
        """The run as it is stored, with derived statuses; None before a setup is."""
        stored = self.plan.store.read_run()
        return trusted_run(stored) if stored else None

    def _has_pairs_to_extend(self) -> bool:
        """Whether the same command would measure pairs with further functions."""
        run = self._read_run_if_stored()
        return bool(
            may_extend_pairs(self.plan, self.options)
            and run
            and pairs_to_extend(judge(run, self.options.limits))
        )

    # --- what is told while it measures

    def begin_task(self, judged: JudgedTask) -> None:
        """Say what the task of *judged* is a part of, where that is not said yet."""
        task, stage = judged.task, judged.task.stage
        if task.step and task.step.asked != self.stepped:
            self.stepped = task.step.asked
            self._say_verdict_so_far(judged.verdict)
            about = about_duration_phrase(task.step.time_s)
            phrase = step_phrase(task.step, judged.verdict)
            say(self.console, f"next: {phrase}{about}")
            self.has_stepped = True
        if stage is Stage.FURTHER and task.units != self.further:
            self.further = task.units
            functions = plural(task.units or 0, "function")
            say(self.console, f"open pairs, up to {functions} each:")
        if stage is Stage.WITHOUT_KERNEL and not self.is_last_stage:
            self.is_last_stage = True
            last = set(self.plan.pairs_without_kernel)
            self._show_verdict(apart=last)
            cells = plural(len(last), "pair")
            say(
                self.console,
                f"now {cells} without a kernel here{self._time_estimate_phrase(last)}",
            )

    def _time_estimate_phrase(self, pairs: Collection[Pair]) -> str:
        """What cells of *pairs* take, about, as a phrase; empty if unknown."""
        known = [self.plan.cell_s(probe) for probe in self.plan.probes]
        times = [cell_s for cell_s in known if cell_s is not None]
        if len(times) < len(known):
            return ""
        return f", about {duration_text(math.fsum(times) * len(pairs))}"

    @contextlib.contextmanager
    def watch_cells(
        self, task: Task, queue: CellQueue
    ) -> Iterator[Callable[[Event], None]]:
        """
        Show the cells of *queue* while *task* measures them.

        Of a task that asks more, only what is measured now.
        """
        if task.variant is Variant.CHECK:
            names = escape_invisible(", ".join(map(str, task.pairs)))
            say(self.console, f"checking what was read: {names}, forced token by token")
        progress = self._sweep_progress(queue)
        if task.is_extension_or_check:
            progress.records.clear()
        else:
            self.is_described = True
        with SweepDisplay(self.console, progress) as display:
            yield (
                display.note_and_show_event
                if task.is_extension_or_check
                else self._event_handler(queue, display)
            )

    def _event_handler(
        self, queue: CellQueue, display: SweepDisplay
    ) -> Callable[[Event], None]:
        """What shows an event in *display*, and notes what the reference calibrates."""
        calibrating, runner = queue.probe.calibrating or Calibrating(), queue.runner
        known = {*calibrating.calibration_lines(runner.run.setup)}

        def show_event_and_calibration(event: Event) -> None:
            display.progress.setup = runner.run.setup
            display.note_and_show_event(event)
            if isinstance(event, CellEnded):
                told = calibrating.calibration_lines(runner.run.setup)
                if {*told} - known:
                    known.update(told)
                    print_notes(self.console, told)

        return show_event_and_calibration

    def report_cells_ended(
        self, queue: CellQueue, tally: CellTally, *, is_old: bool
    ) -> None:
        """Show a summary of the cells of *queue*; of a sweep that decides, nothing."""
        if self.plan.request.decide:
            return
        cells = plural(len(tally.pairs), "cell")
        result = f"{cells} done already: nothing to do"
        if not is_old:
            finished = tally.ended_count - tally.failure_count
            result = f"{finished} of {len(tally.pairs)} cells finished"
        self._say_probe_summary(queue, tally, result)

    def report_short_records(self, task: Task, records: Sequence[CellRecord]) -> None:
        """
        Show why *records* lack what *task* has asked for.

        Of a check those without a reason are left out.
        """
        is_check = task.variant is Variant.CHECK
        what = "checked" if is_check else "measured further"
        print_notes(
            self.console,
            (
                f"{r.pair} was not {what}: {r.reason}"
                for r in records
                if r.reason or not is_check
            ),
        )

    def report_sentence(self, what: str) -> None:
        """Show a sentence on the numbers."""
        print_notes(self.console, [what])

    def report_probe_left_out(self, error: NothingToLose) -> None:
        """Show that a probe is asked no further."""
        say(self.console, f"{error}: left out")

    # --- what is said once nothing is left, or the time is up

    def _say_why_nothing_is_left(self, ending: Ending) -> None:
        """Say why a sweep that decides has ended, where its time is not up."""
        if ending.lacks_reference:
            again = sweep_command(self.plan.store.folder, "--retry-failed")
            none = "No answer yet: no pair that could be the reference has numbers."
            say(self.shown, f"{none} Mend what failed, then:\n  {again}")
            return
        run, taken = self.runner.read_run_and_calibration(), self.loop.schedule.taken
        telling = [
            probe
            for probe in self.plan.probes
            if probe.has_loss_metric and probe.name not in taken.silent
        ]
        names = {probe.name for probe in telling}
        tried = {r.pair for r in run.records if r.probe in names}
        over = "nothing is left in this run that could change it"
        reference = reference_of(run, self.loop.schedule.wanted)
        if reference in taken.failed:
            over = f"{reference} was not measured further, so nothing else was"
        queue = self.loop.queue_of(telling[0], tried)
        cells = plural(len(tried), "pair")
        self._say_probe_summary(
            queue, self.loop.tally_of(queue), f"{over}: {cells} asked"
        )

    def _say_time_up_before_task(self, judged: JudgedTask) -> None:
        """Say that the time is up before a step, or the reference; else nothing."""
        task, verdict = judged.task, judged.verdict
        if task.step:
            self._say_verdict_so_far(verdict)
            self._say_what_lacks_time(step_phrase(task.step, verdict), task.step.time_s)
        elif reference_of(verdict.run, self.loop.schedule.wanted) is None:
            self._say_what_lacks_time(
                f"{measurable_pairs(self.plan)[0]}, the reference", math.nan
            )

    def _say_verdict_so_far(self, verdict: Verdict) -> None:
        """Show the verdict so far in a line or two, once a loss was measured."""
        if not verdict.compared_results:
            return
        first, *rest = headline_sentences(
            verdict, engine_pair_flags(verdict.run.setup.engine)
        )
        spent = duration_text(self.loop.limit.spent_s)
        when = f"after {spent}" if self.has_stepped else "by what is stored"
        say(self.console, f"so far, {when}: {first}")
        for line in rest[:1]:
            print_line(self.console, Text(escape_invisible(line.strip())))

    @property
    def _has_answer(self) -> bool:
        """Whether a pair was compared with the reference."""
        run = self._read_run_if_stored()
        return run is not None and bool(
            judge(run, self.options.limits).compared_results
        )

    def _say_cells_are_left(self) -> None:
        """Say that the time is up, if so without an answer, and how to go on."""
        if self._has_answer:
            say(self.console, "The time is up; run the same command to continue.")
            return
        again = sweep_command(self.plan.store.folder)
        say(self.shown, f"No answer yet: the time is up. To go on:\n  {again}")

    def _say_what_lacks_time(self, what: str, time_s: float) -> None:
        """Say that the time is up before *what*, a phrase; *time_s* may be NaN."""
        again = sweep_command(self.plan.store.folder)
        has_answer = self._has_answer
        start = "The time is up" if has_answer else "No answer yet: the time is up"
        console = self.console if has_answer else self.shown
        missing = f"{start}. Missing: {what}{about_duration_phrase(time_s)}."
        say(console, f"{missing} To go on:\n  {again}")

    def _sweep_progress(self, queue: CellQueue) -> SweepProgress:
        """What is shown of a new *queue*."""
        probe = queue.probe
        return SweepProgress(
            setup=self.runner.run.setup,
            pairs=queue.pairs,
            probe=probe,
            variant=queue.variant,
            records=queue.done_records,
            workers=1 if probe.is_timed else len(self.plan.workers),
            is_first=probe is self.plan.probes[0] and not self.is_described,
            cell_s=self.plan.cell_s(probe),
            impossible=frozenset(filter(self.plan.refusal, queue.pairs)),
            asked_to_stop=lambda: self.stop.asked_to_stop,
            until=end_time_text(self.loop.limit),
        )

    def _say_probe_summary(
        self, queue: CellQueue, tally: CellTally, result: str
    ) -> None:
        """Show the *result* of a probe, and the commands that follow."""
        folder = self.plan.store.folder
        phrase = probe_phrase(queue.probe.name, queue.variant)
        lines = [f"{phrase}: {result}", "look at them:"]
        metric = self._metric_unless_default(queue.probe)
        lines += next_commands(self.plan.store.name, metric, folder.parent.parent)
        if tally.failure_count:
            again = sweep_command(folder, "--retry-failed")
            lines += ["measure those without numbers again:", f"  {again}"]
        say(self.console, "\n".join(lines))

    def _metric_unless_default(self, probe: Probe) -> str:
        """The headline; empty if reports show it by default, also once all is done."""
        metric = probe.metrics_of(self.runner.run.setup)[0].name
        names = {probe.name for probe in self.plan.probes}
        first = next(name for name in PROBES if name in names)
        if probe.name != first:
            return metric
        run = self._read_run_if_stored()
        is_default = run is not None and metric == default_metric_name([run])
        return "" if is_default else metric

    def _show_verdict(self, *, apart: Collection[Pair] = ()) -> None:
        """
        Show the verdict on the run so far, if there is anything to compare.

        Pairs that are set *apart* have no kernel: they are no choice here.
        """
        run = self._read_run_if_stored()
        if run is None or not _has_several_measured_pairs(run):
            return
        if apart:
            choices = [str(pair) for pair in run.setup.grid if pair not in apart]
            run = replace(run, setup=replace(run.setup, pairs=tuple(choices)))
        from codeneedle.report.terminal import print_with_end_if_long
        from codeneedle.report.verdict import brief_document, first_lines_document

        try:
            verdict = judge(run, self.options.limits)
        except CodeneedleError as error:
            # The records are kept; 'codeneedle verdict' fails alike, with its code.
            say(self.console, f"no verdict: {error}")
            return
        answer = brief_document(verdict, engine_pair_flags(run.setup.engine))
        print_with_end_if_long(
            self.shown, answer, first_lines_document([verdict], engine_pair_flags)
        )

    def _show_receipt(self) -> None:
        """Print the receipt of the run so far, for the table of models."""
        run = self._read_run_if_stored()
        if run is None:
            return
        from codeneedle.report.receipt import receipt_markdown

        say(self.console, "For the table of models, paste what follows into an issue:")
        self.shown.out(receipt_markdown(run), end="", highlight=False)


def step_phrase(step: NextStep, verdict: Verdict) -> str:
    """What *step* measures, and why, given the *verdict* so far."""
    pairs, goal = step.asked.pairs, step.asked.goal
    names = escape_invisible(", ".join(map(str, pairs)))
    functions = f"{plural(goal, 'function')}{' each' if pairs[1:] else ''}"
    asked = f"{names}, {functions}" if goal else names
    if step.asked.why is Why.FIRST:
        return f"the first answer: {asked}"
    if step.asked.why is Why.MORE:
        return f"{asked}, which may decide it"
    if step.asked.why is Why.CHECK:
        finer = escape_invisible(str(verdict.inferred_pairs.get(pairs[0], "")))
        return f"{asked}, ruled out by {finer}: a check"
    phrase = {
        Why.BORDER: "which fits as nothing finer does",
        Why.UNSURE: "which finer ones do not rule out, as the check says",
        Why.UNLIKELY: "less precise than one above the limit",
        Why.UNBORNE: "whose K the weights are predicted not to bear",
    }.get(step.asked.why)
    if phrase:
        return f"{asked}, {phrase}"
    has_within = any(
        result.decision is Decision.WITHIN for result in verdict.compared_results
    )
    return f"{asked}, {'smaller than what is' if has_within else 'which may be'} within"


def end_time_text(limit: TimeLimit) -> str:
    """The time of day from which on no cell starts; empty without a limit."""
    if limit.budget_s is None:
        return ""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + limit.left_s))


def about_duration_phrase(seconds: float) -> str:
    """``, about 1:20``; empty if nothing is known."""
    return f", about {duration_text(seconds)}" if math.isfinite(seconds) else ""


def _has_several_measured_pairs(run: Run) -> bool:
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
    named = shlex.join([*words, *root_options(out)])
    return [f"  codeneedle {command} {named}" for command in ("grid", "heatmap")]
