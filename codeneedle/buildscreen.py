"""What a person sees while llama.cpp is found or built."""

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from codeneedle import building, llamacpp
from codeneedle.interrupts import unwinding_on_signals
from codeneedle.llamacpp import LlamaMissing, Tools
from codeneedle.units import duration

PLAIN_EVERY_S = 30.0
"""How often a log hears that a build goes on."""


def ensure_llama(console: Console, *, anyway: bool = False) -> str:
    """
    Where llama-server is, as a phrase: the one that is there, or one built now.

    Args:
        console: Hears of progress.
        anyway: Whether to build even if another one is found.

    Raises:
        MachineError: If it cannot be built here.
    """
    found = None if anyway else _found()
    if found:
        return f"{found.server} (from {found.source})"
    with unwinding_on_signals():
        folder = _built(console)
    return f"{folder / llamacpp.SERVER} (the pinned release)"


def _found() -> Tools | None:
    try:
        return llamacpp.find()
    except LlamaMissing:
        return None


def _built(console: Console) -> Path:
    if not console.is_terminal:
        return building.build(_Plain(console).report)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("building llama.cpp", total=None)
        return building.build(
            lambda step: bar.update(
                task,
                description=f"llama.cpp: {step.phase}",
                completed=step.done,
                total=step.total or None,
            )
        )


class _Plain:
    """Progress for a log: each phase once, and a sign of life now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._phase = ""
        self._said = 0.0

    def report(self, step: building.Progress) -> None:
        """Say where the build is, unless that was said a moment ago."""
        is_news = step.phase != self._phase
        if not is_news and time.monotonic() - self._said < PLAIN_EVERY_S:
            return
        self._phase, self._said = step.phase, time.monotonic()
        count = f" {step.done}/{step.total}" if step.total else ""
        elapsed = duration(step.elapsed_s)
        self._console.print(f"llama.cpp: {step.phase}{count}, {elapsed}")
