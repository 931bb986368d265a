"""The sweep command: plan, prepare, run and show until it is through."""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from codeneedle.cli.progress import (
    SweepDisplay,
    SweepProgress,
    Tell,
    note_lines,
    say,
    working,
)
from codeneedle.corpora.corpus import load
from codeneedle.grid import Pair
from codeneedle.models.weights import sha256
from codeneedle.probes import probes_named
from codeneedle.probes.probe import Probe
from codeneedle.sweep import plan as planning
from codeneedle.sweep.fallbacks import judged
from codeneedle.sweep.plan import Plan
from codeneedle.sweep.prepare import (
    Counted,
    Settled,
    refuse_other_setup,
    refuse_shared_folders,
    settled,
)
from codeneedle.sweep.request import DEFAULT_OUT, Request, pages
from codeneedle.sweep.runner import Player, pending, run
from codeneedle.system.orphans import Orphan, end_orphans
from codeneedle.system.signals import StopRequest, stop_request, unwinding_on_signals
from codeneedle.text import plural

INTERRUPTED = 130
"""Exit code of an interrupted sweep; the same command resumes it."""


def sit(request: Request, console: Console, *, retry_failed: bool = False) -> int:
    """
    Sweep what *request* asks for, as far as it is not done yet.

    All pages are checked before the first one starts.

    Returns:
        The exit code: 0 if every cell has finished, 1 if some did not, 130 if
        a person or the system ended it before its end.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
    """
    probes = probes_named(request.probes)
    try:
        with unwinding_on_signals():
            checking = "checking corpus, weights and llama-server"
            with working(console, checking) as tell:
                plans = _checked(request, tell)
            note_lines(console, dict.fromkeys(n for plan in plans for n in plan.notes))
            counted: Counted = {}
            codes = [
                _Sitting(
                    plan, console, retry_failed, counted, is_last=plan is plans[-1]
                ).through(probes)
                for plan in plans
            ]
            return max(codes)
    except KeyboardInterrupt:
        say(
            console,
            "stopped; every finished cell is kept, and the same command goes on",
        )
        return INTERRUPTED


def _checked(request: Request, tell: Tell) -> list[Plan]:
    """The plans of all pages; *tell* hears how far the hashing of weights is."""
    # A corpus that several pages share is read once.
    read = functools.cache(load)
    plans = [planning.plan(page, read=read) for page in pages(request)]
    refuse_shared_folders(plans)

    for plan in plans:
        sha256(plan.weights, progress=functools.partial(tell, "hashing weights"))
        refuse_other_setup(plan)
    return plans


@dataclass(frozen=True, slots=True)
class _Sitting:
    """One page of a sweep, in this sitting."""

    plan: Plan
    console: Console
    retry_failed: bool
    counted: Counted
    is_last: bool

    def through(self, probes: list[Probe]) -> int:
        """
        Run all *probes*, one after the other.

        Returns:
            The exit code of this page.

        Raises:
            KeyboardInterrupt: If a person asked to stop and something is left.
        """
        with self.plan.store.locked():
            left = end_orphans()
            note_lines(self.console, map(_left_behind, left))
            damaged = self.plan.store.mend()
            if damaged:
                note_lines(self.console, [_mended(damaged)])
            with working(self.console, "fitting the corpus to the context"):
                ready = settled(self.plan, probes, self.counted)
            with stop_request() as person:
                codes = [self._swept(ready, probe, probes, person) for probe in probes]
        if person.asked_to_stop and not self.is_last:
            raise KeyboardInterrupt
        return max(codes)

    def _swept(
        self, ready: Settled, probe: Probe, probes: list[Probe], person: StopRequest
    ) -> int:
        progress = self._progress(ready, probe, is_first=probe is probes[0])
        if not self._open(progress):
            say(self.console, f"{_all_done(progress)}\n{self._next(progress)}")
            return 1 if progress.failures else 0
        if not person.asked_to_stop:
            self._watched(ready, progress, person)
        # Asked to stop, and cells are left: of this probe, or all of a later one.
        if person.asked_to_stop and progress.done < len(progress.pairs):
            raise KeyboardInterrupt
        say(self.console, f"{_finished(progress)}\n{self._next(progress)}")
        return 1 if progress.failures else 0

    def _watched(
        self, ready: Settled, progress: SweepProgress, person: StopRequest
    ) -> None:
        player = Player(
            plan=self.plan, setup=ready.setup, text=ready.text, probe=progress.probe
        )
        with SweepDisplay(self.console, progress) as screen:
            played = run(
                progress.pairs,
                store=self.plan.store,
                probe=progress.probe.name,
                play=player.play,
                retry_failed=self.retry_failed,
                asked_to_stop=lambda: person.asked_to_stop,
            )
            events = judged(played, player)
            # Closed before the screen is: whatever ends us, the server goes first.
            with contextlib.closing(events):
                for event in events:
                    progress.is_ending = person.asked_to_stop
                    screen.show(event)

    def _open(self, progress: SweepProgress) -> list[Pair]:
        return pending(
            progress.pairs,
            store=self.plan.store,
            probe=progress.probe.name,
            retry_failed=self.retry_failed,
        )

    def _progress(
        self, ready: Settled, probe: Probe, *, is_first: bool
    ) -> SweepProgress:
        store = self.plan.store
        progress = SweepProgress(
            name=store.name,
            setup=ready.setup,
            pairs=tuple(probe.order(self.plan.pairs)),
            probe=probe,
            records={},
            is_first=is_first,
        )
        # A failed cell that is played again is not done, whatever its file says.
        still_open = set(self._open(progress))
        for pair in progress.pairs:
            record = store.record(pair, probe.name)
            if record and pair not in still_open:
                progress.records[pair] = record
        return progress

    def _next(self, progress: SweepProgress) -> str:
        metric = progress.probe.metrics[0].name
        named = progress.name + ("" if metric == "matched" else f" --metric {metric}")
        if self.plan.request.out != DEFAULT_OUT:
            named += f" --out {self.plan.request.out}"
        retry = "\nsee why some have no numbers, then: --retry-failed"
        return (
            f"look at them: codeneedle grid {named} | codeneedle heatmap {named}"
            f"{retry if progress.failures else ''}"
        )


def _left_behind(orphan: Orphan) -> str:
    return f"ended a {orphan.program} that was left behind: pid {orphan.pid}"


def _mended(damaged: Path) -> str:
    return f"the setup could not be read: it is kept as {damaged}, and made anew"


def _all_done(progress: SweepProgress) -> str:
    cells = plural(len(progress.pairs), "cell")
    return f"{progress.probe.name}: all {cells} are done: nothing to do"


def _finished(progress: SweepProgress) -> str:
    finished = progress.done - progress.failures
    return f"{progress.probe.name}: {finished} of {len(progress.pairs)} cells finished"
