"""One sitting of a sweep: planned, settled, run and shown until it is through."""

import contextlib
from dataclasses import dataclass

from rich.console import Console

from codeneedle import planning
from codeneedle.engine.llama_server import end_orphan
from codeneedle.interrupts import patience, unwinding_on_signals
from codeneedle.judging import judged
from codeneedle.planning import Plan
from codeneedle.play import Player
from codeneedle.probe import Probe
from codeneedle.probes import probes_named
from codeneedle.request import Request, pages
from codeneedle.runner import pending, run
from codeneedle.screen import Progress, Screen, note_lines, say, working
from codeneedle.settling import (
    Settled,
    refuse_other_setup,
    refuse_shared_folders,
    settled,
)
from codeneedle.units import plural

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
            with working(console, "checking corpus, weights and llama-server"):
                plans = [planning.plan(page) for page in pages(request)]
                refuse_shared_folders(plans)
                for plan in plans:
                    refuse_other_setup(plan)
            note_lines(console, dict.fromkeys(n for plan in plans for n in plan.notes))
            codes = [
                _Sitting(plan, console, retry_failed).through(probes) for plan in plans
            ]
            return max(codes)
    except KeyboardInterrupt:
        say(
            console,
            "stopped; every finished cell is kept, and the same command goes on",
        )
        return INTERRUPTED


@dataclass(frozen=True, slots=True)
class _Sitting:
    """One page of a sweep, in this sitting."""

    plan: Plan
    console: Console
    retry_failed: bool

    def through(self, probes: list[Probe]) -> int:
        """Run all *probes*, one after the other; returns the exit code."""
        with self.plan.store.locked():
            orphan = end_orphan(self.plan.store.folder)
            if orphan:
                left = f"ended a server that was left behind: pid {orphan.pid}"
                note_lines(self.console, [left])
            with working(self.console, "fitting the corpus to the context"):
                ready = settled(self.plan, probes)
            return max(
                self._swept(ready, probe, is_first=probe is probes[0])
                for probe in probes
            )

    def _swept(self, ready: Settled, probe: Probe, *, is_first: bool) -> int:
        progress = self._progress(ready, probe)
        progress.is_first = is_first
        if not pending(
            progress.pairs,
            store=self.plan.store,
            probe=probe.name,
            retry_failed=self.retry_failed,
        ):
            say(self.console, f"{_all_done(progress)}\n{_next(progress)}")
        else:
            self._watched(ready, progress)
            say(self.console, f"{_finished(progress)}\n{_next(progress)}")
        return 1 if progress.failures else 0

    def _watched(self, ready: Settled, progress: Progress) -> None:
        player = Player(
            plan=self.plan, setup=ready.setup, text=ready.text, probe=progress.probe
        )
        with patience() as person, Screen(self.console, progress) as screen:
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
        if person.asked_to_stop and progress.done < len(progress.pairs):
            raise KeyboardInterrupt

    def _progress(self, ready: Settled, probe: Probe) -> Progress:
        store = self.plan.store
        stored = (store.record(pair, probe.name) for pair in self.plan.pairs)
        return Progress(
            name=self.plan.store.name,
            setup=ready.setup,
            pairs=tuple(probe.order(self.plan.pairs)),
            probe=probe,
            records={record.pair: record for record in stored if record},
        )


def _all_done(progress: Progress) -> str:
    cells = plural(len(progress.pairs), "cell")
    return f"{progress.probe.name}: all {cells} are done: nothing to do"


def _finished(progress: Progress) -> str:
    finished = progress.done - progress.failures
    return f"{progress.probe.name}: {finished} of {len(progress.pairs)} cells finished"


def _next(progress: Progress) -> str:
    name = progress.name
    metric = progress.probe.metrics[0].name
    chosen = "" if metric == "matched" else f" --metric {metric}"
    retry = "\nsee why some have no numbers, then: --retry-failed"
    return (
        f"look at them: codeneedle grid {name}{chosen} | "
        f"codeneedle heatmap {name}{chosen}{retry if progress.failures else ''}"
    )
