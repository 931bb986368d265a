"""One sitting of a sweep: planned, settled, run and shown until it is through."""

import contextlib

from rich.console import Console

from codeneedle import planning
from codeneedle.engine.llama_server import end_orphan
from codeneedle.interrupts import patience, unwinding_on_signals
from codeneedle.planning import Plan
from codeneedle.play import Player
from codeneedle.probe import Probe
from codeneedle.probes import PROBES
from codeneedle.request import Request
from codeneedle.runner import pending, run
from codeneedle.screen import Progress, Screen, note_lines, say, working
from codeneedle.settling import Settled, settled

INTERRUPTED = 130
"""Exit code of an interrupted sweep; the same command resumes it."""


def sit(request: Request, console: Console, *, retry_failed: bool = False) -> int:
    """
    Sweep what *request* asks for, as far as it is not done yet.

    Returns:
        The exit code: 0 if every cell has finished, 1 if some did not, 130 if
        a person or the system ended it before its end.

    Raises:
        CodeneedleError: If it cannot start, or cannot go on.
    """
    try:
        with unwinding_on_signals():
            with working(console, "checking corpus, weights and llama-server"):
                plan = planning.plan(request)
            note_lines(console, plan.notes)
            with plan.store.locked():
                return _swept(plan, console, retry_failed=retry_failed)
    except KeyboardInterrupt:
        say(
            console,
            "stopped; every finished cell is kept, and the same command goes on",
        )
        return INTERRUPTED


def _swept(plan: Plan, console: Console, *, retry_failed: bool) -> int:
    orphan = end_orphan(plan.store.folder)
    if orphan:
        note_lines(console, [f"ended a server that was left behind: pid {orphan.pid}"])
    with working(console, "fitting the corpus to the context"):
        ready = settled(plan)
    progress = _progress(plan, ready, PROBES["recall"])
    if not pending(
        plan.pairs,
        store=plan.store,
        probe=progress.probe.name,
        retry_failed=retry_failed,
    ):
        say(console, _nothing_to_do(progress))
        return _exit_code(progress)
    return _watched(plan, ready, progress, console, retry_failed=retry_failed)


def _watched(
    plan: Plan,
    ready: Settled,
    progress: Progress,
    console: Console,
    *,
    retry_failed: bool,
) -> int:
    player = Player(plan=plan, setup=ready.setup, text=ready.text, probe=progress.probe)
    with patience() as person, Screen(console, progress) as screen:
        events = run(
            plan.pairs,
            store=plan.store,
            probe=progress.probe.name,
            play=player.play,
            retry_failed=retry_failed,
            asked_to_stop=lambda: person.asked_to_stop,
        )
        # Closed before the screen is: whatever ends us, the server goes first.
        with contextlib.closing(events):
            for event in events:
                progress.is_ending = person.asked_to_stop
                screen.show(event)
    if person.asked_to_stop and progress.done < len(plan.pairs):
        raise KeyboardInterrupt
    say(console, _closing(progress))
    return _exit_code(progress)


def _progress(plan: Plan, ready: Settled, probe: Probe) -> Progress:
    stored = (plan.store.record(pair, probe.name) for pair in plan.pairs)
    return Progress(
        setup=ready.setup,
        pairs=plan.pairs,
        probe=probe,
        records={record.pair: record for record in stored if record},
    )


def _exit_code(progress: Progress) -> int:
    return 0 if not progress.failures else 1


def _nothing_to_do(progress: Progress) -> str:
    return f"all {len(progress.pairs)} cells are done: nothing to do\n{_next(progress)}"


def _closing(progress: Progress) -> str:
    finished = progress.done - progress.failures
    return f"{finished} of {len(progress.pairs)} cells finished\n{_next(progress)}"


def _next(progress: Progress) -> str:
    name = f"{progress.setup.corpus.name}/{progress.setup.weights.name}"
    retry = "\nsee why some have no numbers, then: --retry-failed"
    return (
        f"look at them: codeneedle grid {name} | codeneedle heatmap {name}"
        f"{retry if progress.failures else ''}"
    )
