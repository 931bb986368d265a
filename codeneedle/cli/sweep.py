"""The sweep command: plan, prepare, run and show until it is through."""

import functools
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from codeneedle.cli.engines import asks_for, offered
from codeneedle.cli.progress import (
    SweepDisplay,
    SweepProgress,
    ensure_models,
    note_lines,
    say,
    working,
)
from codeneedle.corpora.corpus import load
from codeneedle.errors import CodeneedleError
from codeneedle.grid import RUNS, Pair
from codeneedle.models.weights import sha256
from codeneedle.probes.probe import Probe, RunContext
from codeneedle.records.record import Run
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep import plan as planning
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import (
    Counts,
    prepare,
    refuse_other_setup,
    refuse_shared_folders,
)
from codeneedle.sweep.request import Request, pages
from codeneedle.sweep.runner import Event, Runner, once_more, pending
from codeneedle.sweep.workers import agreement, on_other_devices, share_of_array
from codeneedle.system.orphans import end_orphans, leftovers, this_process
from codeneedle.system.signals import StopRequest, stop_request, unwinding_on_signals
from codeneedle.text import plural

if TYPE_CHECKING:
    from codeneedle.cli.decide import Wish

INTERRUPTED = 130
"""Exit code of an interrupted sweep; the same command resumes it."""


HEADLINES = {"matched", "recall-logp"}
"""What reports show of recall where no metric is named."""


def sweep(
    request: Request,
    console: Console,
    *,
    retry_failed: bool = False,
    wish: "Wish | None" = None,
) -> int:
    """
    Sweep what *request* asks for, as far as it is not done yet.

    All pages are checked before the first one starts.

    Args:
        request: What to measure.
        console: Where to show it.
        retry_failed: Whether cells that failed are measured again.
        wish: What to decide with as few questions as it takes; None for the whole
            grid.

    Returns:
        The exit code: 0 if every cell has finished, 1 if some did not, 130 if
        it was interrupted.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
    """
    request = replace(request, shard=request.shard or share_of_array())
    try:
        with unwinding_on_signals():
            if wish:
                from codeneedle.cli.decide import deciding

                request = deciding(request, screens=not wish.settle)
            plans = checked(request, console)
            counts: Counts = {}
            began = time.monotonic()
            return max(
                _Page(
                    plan,
                    console,
                    retry_failed,
                    counts,
                    is_last=plan is plans[-1],
                    wish=wish,
                    began=began,
                ).sweep()
                for plan in plans
            )
    except KeyboardInterrupt:
        say(
            console,
            "stopped; every finished cell is kept, and the same command goes on",
        )
        return INTERRUPTED


def planned(request: Request) -> list[Plan]:
    """
    The plans of all pages of *request*.

    The engine is looked for first: that takes no time, and reading a corpus does.

    Raises:
        CodeneedleError: If it is not there, or as `planning.plan`.
    """
    offer = offered(request)
    request = offer.suited(request)
    engine_for = offer.engine_for(request)
    # A corpus that several pages share is read once.
    read = functools.cache(load)
    return [
        planning.plan(page, engine_for=engine_for, read=read, weights_at=offer.weights)
        for page in pages(request)
    ]


def checked(request: Request, console: Console) -> list[Plan]:
    """
    The plans of all pages, with whatever can fail before a server is started.

    Weights that have a name are fetched; *console* shows how far it is, and notes.

    Raises:
        CodeneedleError: If the sweep cannot start.
    """
    # Before a download: a missing program would end the sweep, too.
    request = offered(request).suited(request)
    offered(request).find(request)
    ensure_models(console, request.models)
    with working(console, f"checking {request.engine}, weights and corpus") as tell:
        plans = planned(request)
        refuse_shared_folders(plans)
        for plan in plans:
            sha256(plan.weights, progress=functools.partial(tell, "hashing weights"))
            refuse_other_setup(plan)
    note_lines(console, dict.fromkeys(n for plan in plans for n in plan.notes))
    return plans


@dataclass(frozen=True, slots=True)
class _Page:
    """One page of a sweep."""

    plan: Plan
    console: Console
    retry_failed: bool
    counts: Counts
    is_last: bool
    wish: "Wish | None" = None
    began: float = 0.0

    def sweep(self) -> int:
        """
        Run all probes, one after the other.

        Returns:
            The exit code of this page.

        Raises:
            KeyboardInterrupt: If the user asked to stop and something is left.
        """
        plan = self.plan
        shard = plan.request.shard
        with plan.store.locked(is_shared=shard is not None):
            if shard is not None:
                cells = plural(len(plan.pairs), "cell")
                note_lines(self.console, [f"share {shard} of the grid: {cells}"])
            run = self._set_up()
            with stop_request() as user:
                runner = Runner(
                    run=run,
                    store=plan.store,
                    retry_failed=self.retry_failed,
                    asked_to_stop=lambda: user.asked_to_stop or self._is_spent(),
                    workers=plan.workers,
                    alone=plan.alone,
                )
                codes = [
                    code
                    for probe in self._whole_probes()
                    for code in self._swept_twice(runner, probe, user)
                ]
                codes += self._decided(runner, user)
        self._tell_leftovers()
        if user.asked_to_stop and not self.is_last:
            raise KeyboardInterrupt
        self._tell_verdict()
        return max(codes, default=0)

    def _whole_probes(self) -> Sequence[Probe]:
        """Those that measure every pair; the last one decides, where that is asked."""
        if self.wish is None:
            return self.plan.probes
        return () if self.wish.settle else self.plan.probes[:-1]

    def _is_spent(self) -> bool:
        budget = self.wish.budget_s if self.wish else None
        return budget is not None and time.monotonic() - self.began >= budget

    def _decided(self, runner: Runner, user: StopRequest) -> list[int]:
        """The exit code of what was to decide; none where nothing was."""
        if self.wish is None:
            return []
        from codeneedle.cli.decide import decide

        left = [
            probe.name
            for probe in self._whole_probes()
            if pending(self.plan.pairs, store=self.plan.store, probe=probe.name)
        ]
        code = 0
        if not left:
            code = decide(
                self.plan, runner, self.console, self.wish, runner.asked_to_stop
            )
            if user.asked_to_stop:
                raise KeyboardInterrupt
        if self._is_spent():
            far = f", the screening by {left[0]} is not through" if left else ""
            say(self.console, f"the budget is spent{far}; the same command goes on")
        return [code]

    def _set_up(self) -> RunContext:
        """The corpus fitted and the setup stored, by one of several at a time."""
        plan = self.plan
        with plan.store.setting_up():
            note_lines(
                self.console,
                (
                    f"ended a {orphan.program} that was left behind: pid {orphan.pid}"
                    for orphan in end_orphans()
                ),
            )
            damaged = plan.store.mend()
            if damaged:
                mended = f"it is kept as {damaged}, and made anew"
                note_lines(self.console, [f"the setup could not be read: {mended}"])
            with working(self.console, "fitting the corpus to the context"):
                return prepare(plan, self.counts)

    def _swept_twice(
        self, runner: Runner, probe: Probe, user: StopRequest
    ) -> Iterator[int]:
        """The exit codes of *probe*, and of its reference measured again."""
        yield self._swept(runner, probe, user)
        if self.plan.repeated(probe):
            again = once_more(probe, self.plan.pairs, store=self.plan.store)
            if again:
                yield self._swept(runner, again, user)
        yield from self._swept_elsewhere(runner, probe, user)

    def _swept_elsewhere(
        self, runner: Runner, probe: Probe, user: StopRequest
    ) -> Iterator[int]:
        """The same of the reference on each further kind of device."""
        plan = self.plan
        devices = {worker.device: worker for worker in plan.workers}
        for other, device in on_other_devices(
            probe, plan.pairs, store=plan.store, devices=list(devices)
        ):
            there = replace(runner, workers=[devices[device]])
            yield self._swept(there, other, user)
            said = agreement(probe, other, plan.pairs, store=plan.store)
            note_lines(self.console, [said] if said else [])

    def _tell_leftovers(self) -> None:
        """What servers of this sweep left behind that cannot be ended for sure."""
        left = leftovers(this_process())
        if left:
            more = f", and {len(left) - 1} more" if left[1:] else ""
            note_lines(self.console, [f"{left[0]}{more}; see codeneedle doctor"])

    def _tell_verdict(self) -> None:
        """What the run allows to conclude so far, if there is anything to compare."""
        stored = self.plan.store.read()
        if stored is None or not _is_comparable(stored):
            return
        from codeneedle.report.judgement import judge
        from codeneedle.report.verdict import brief_view

        try:
            found = judge(stored, Reading(), with_power=False)
        except CodeneedleError as error:
            # Every cell is kept; the command says the same, with its exit code.
            say(self.console, f"no verdict: {error}")
            return
        self.console.print(brief_view(found, asks_for(stored.setup.engine)))

    def _swept(self, runner: Runner, probe: Probe, user: StopRequest) -> int:
        progress = self._progress(runner.run, probe)
        if not self._pending(progress):
            cells = plural(len(progress.pairs), "cell")
            return self._told(progress, f"all {cells} are done: nothing to do")
        if not user.asked_to_stop:
            with SweepDisplay(self.console, progress) as display:

                def show(event: Event) -> None:
                    progress.is_ending = user.asked_to_stop
                    display.show(event)

                runner.sweep(probe, progress.pairs, tell=show)
        # Asked to stop, and cells are left: of this probe, or all of a later one.
        if user.asked_to_stop and progress.done < len(progress.pairs):
            raise KeyboardInterrupt
        finished = progress.done - progress.failures
        cells = f"{finished} of {len(progress.pairs)} cells finished"
        return self._told(progress, cells)

    def _pending(self, progress: SweepProgress) -> list[Pair]:
        return pending(
            progress.pairs,
            store=self.plan.store,
            probe=progress.probe.name,
            retry_failed=self.retry_failed,
        )

    def _progress(self, run: RunContext, probe: Probe) -> SweepProgress:
        store = self.plan.store
        progress = SweepProgress(
            name=store.name,
            setup=run.setup,
            pairs=tuple(probe.order(self.plan.pairs)),
            probe=probe,
            records={},
            workers=1 if probe.is_timed else len(self.plan.workers),
            is_first=probe is self.plan.probes[0],
        )
        # A failed cell that is measured again is not done, whatever its file says.
        left = set(self._pending(progress))
        for pair in progress.pairs:
            record = store.record(pair, probe.name)
            if record and pair not in left:
                progress.records[pair] = record
        return progress

    def _told(self, progress: SweepProgress, what: str) -> int:
        """Tell *what* became of a probe, and what comes next; the exit code."""
        metric = progress.metrics[0].name
        shown = next_commands(progress.name, metric, self.plan.request.out)
        retry = "\nsee why some have no numbers, then: --retry-failed"
        say(
            self.console,
            f"{progress.probe.name}: {what}\n"
            f"look at them: {shown}{retry if progress.failures else ''}",
        )
        return 1 if progress.failures else 0


def _is_comparable(run: Run) -> bool:
    """Whether a pair beside the reference has numbers."""
    return len({record.pair for record in run.records if record.has_numbers}) > 1


def next_commands(name: str, metric: str, out: Path) -> str:
    """The commands that show *metric* of the run *name* in *out*, for a shell."""
    words = [name]
    if metric not in HEADLINES:
        words += ["--metric", metric]
    if out != RUNS:
        words += ["--out", str(out)]
    named = shlex.join(words)
    return f"codeneedle grid {named} | codeneedle heatmap {named}"
