"""Everything shown on stderr while something runs: the live grid, hashing, building."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as BuildProgress
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from codeneedle.analysis.metrics import Metric
from codeneedle.engines.llama_cpp import build, installation
from codeneedle.engines.llama_cpp.installation import Tools
from codeneedle.errors import ToolMissing
from codeneedle.grid import Pair, by_precision
from codeneedle.probes.probe import Probe, Step
from codeneedle.records.record import CellRecord, Setup, Status
from codeneedle.report.captions import corpus_line, setup_line
from codeneedle.report.cells import NOT_RUN_WORD, cell_style, status_word
from codeneedle.scoring.rounds import Reading
from codeneedle.sweep.runner import CellEnded, CellStarted, CellStepped, Event, Noted
from codeneedle.system.signals import unwinding_on_signals
from codeneedle.text import duration, plural, visible

QUIET_S = 2.0
"""What takes no longer needs no line."""

EVERY_S = 0.25
"""How often a line on a terminal is new."""

HASHING_LINE_EVERY_S = 10.0
"""How often a log gets a line while weights are hashed."""

_MB = 1_000_000


@dataclass(slots=True, kw_only=True)
class HashingLine:
    """
    A line that says how much of a model file has been hashed, if it takes a while.

    Attributes:
        show: Called with each line, which replaces or follows the one before.
        every_s: Time between two lines, in seconds.
        clock: Monotonic seconds.
    """

    show: Callable[[str], None]
    every_s: float
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _next: float = 0.0
    _done: int | None = None

    def update(self, done_bytes: int, total_bytes: int) -> None:
        """Show a line if `QUIET_S` have passed, and `every_s` since the last one."""
        now = self.clock()
        if self._done is None or done_bytes < self._done:
            self._began, self._next = now, now + QUIET_S
        self._done = done_bytes
        if now >= self._next:
            self._next = now + self.every_s
            self.show(hashing_phrase(done_bytes, total_bytes, now - self._began))


def hashing_phrase(done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """``hashing weights, once: 34 of 98 MB, 12.0 s left``."""
    amounts = f"{done_bytes / _MB:.0f} of {total_bytes / _MB:.0f} MB"
    if not done_bytes:
        return f"hashing weights, once: {amounts}"
    left_s = elapsed_s * (total_bytes - done_bytes) / done_bytes
    return f"hashing weights, once: {amounts}, {duration(left_s)} left"


def hashing_line(console: Console, show: Callable[[str], None]) -> HashingLine:
    """A `HashingLine` for *console*: more often on a terminal than in a log."""
    every_s = EVERY_S if console.is_terminal else HASHING_LINE_EVERY_S
    return HashingLine(show=show, every_s=every_s)


BUILD_LINE_EVERY_S = 30.0
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
    return f"{folder / installation.SERVER} (the pinned release)"


def _found() -> Tools | None:
    try:
        return installation.find()
    except ToolMissing:
        return None


def _built(console: Console) -> Path:
    if not console.is_terminal:
        return build.build(_Plain(console).report)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    with BuildProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("building llama.cpp", total=None)
        return build.build(
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

    def report(self, step: build.Progress) -> None:
        """Say where the build is, unless that was said a moment ago."""
        is_news = step.phase != self._phase
        if not is_news and time.monotonic() - self._said < BUILD_LINE_EVERY_S:
            return
        self._phase, self._said = step.phase, time.monotonic()
        count = f" {step.done}/{step.total}" if step.total else ""
        elapsed = duration(step.elapsed_s)
        self._console.print(f"llama.cpp: {step.phase}{count}, {elapsed}")


REFRESHES_PER_S = 4
"""Often enough to look alive; each costs a processor that the server wants."""


BAR_WIDTH = 60
"""Columns of the bar."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """
    What is known of a running sweep, kept from its events.

    Attributes:
        name: Of the run: ``corpus/model``.
        setup: What the records have in common.
        pairs: The grid, in running order.
        probe: What measures; its first metric is shown.
        records: What is on disk, by pair.
        current: The pair that is being played.
        step: Where its probe is.
        phase: What the cell does, as a phrase.
        started: When this sitting began, monotonic seconds.
        cell_started: When the current cell began, likewise.
        is_first: Whether the screen has told nothing of the run yet.
        is_ending: Whether a person wants it to end after the current cell.
    """

    name: str
    setup: Setup
    pairs: Sequence[Pair]
    probe: Probe
    records: dict[Pair, CellRecord]
    current: Pair | None = None
    step: Step | None = None
    phase: str = ""
    started: float = field(default_factory=time.monotonic)
    cell_started: float = field(default_factory=time.monotonic)
    is_first: bool = True
    is_ending: bool = False

    def note(self, event: Event) -> None:
        """Take *event* in."""
        match event:
            case CellStarted(pair=pair):
                self.current, self.step, self.phase = pair, None, "loading"
                self.cell_started = time.monotonic()
            case CellStepped(step=step):
                self.step, self.phase = step, step.what
            case CellEnded(record=record):
                self.records[record.pair] = record
                self.current, self.step = None, None

    @property
    def done(self) -> int:
        """Cells that are over, in this sitting or an earlier one."""
        return sum(
            record.status is not Status.INTERRUPTED for record in self.records.values()
        )

    @property
    def failures(self) -> int:
        """Cells that are over and have no numbers."""
        return self.done - sum(r.has_numbers for r in self.records.values())

    def left_s(self) -> float | None:
        """Seconds until the end, from the cells so far; None before the first."""
        spent = [r.phases.total_s for r in self.records.values() if r.has_numbers]
        if not spent:
            return None
        current = time.monotonic() - self.cell_started if self.current else 0.0
        return max(0.0, fmean(spent) * (len(self.pairs) - self.done) - current)


class Screen:
    """Shows a sweep on stderr; use it as a context manager around the sweep."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
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
        for line in opening_lines(self._progress):
            self._console.print(line)
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._console.print(grid_view(self._progress))

    def show(self, event: Event) -> None:
        """Take *event* in; a plain line for a cell that ended, where no grid is."""
        self._progress.note(event)
        if isinstance(event, Noted):
            note_lines(self._console, [event.what])
        if isinstance(event, CellEnded) and (
            self._live is None or not event.record.has_numbers
        ):
            self._console.print(cell_line(event.record, self._progress))


def opening_lines(progress: Progress) -> list[Text]:
    """What is about to be measured, on what, and what is there already."""
    cells = plural(len(progress.pairs), "cell")
    done = f", {progress.done} done already" if progress.done else ""
    what = Text(f"{progress.probe.name}: {cells}{done}", style="bold")
    if not progress.is_first:
        return [what]
    setup = progress.setup
    return [Text(setup_line(setup), style="bold"), Text(corpus_line(setup)), what]


def live_view(progress: Progress) -> RenderableType:
    """The grid so far, and below it the current cell and the time."""
    return Group(Text(), grid_view(progress), Text(), *status_view(progress))


def grid_view(progress: Progress) -> Table:
    """K down, V across; each cell the headline metric, a status word, or a dot."""
    rows = by_precision(pair.k for pair in progress.pairs)
    columns = by_precision(pair.v for pair in progress.pairs)
    metric = progress.probe.metrics[0]
    table = Table(box=None, pad_edge=False, padding=(0, 1), title_justify="left")
    table.add_column("K \\ V", style="bold", no_wrap=True)
    for v in columns:
        table.add_column(v, justify="right", min_width=6, no_wrap=True)
    for k in rows:
        table.add_row(k, *(_cell(progress, Pair(k, v), metric) for v in columns))
    return table


def status_view(progress: Progress) -> Iterator[RenderableType]:
    """The current cell, a bar, the time, and what Ctrl-C does next."""
    yield Text(_cell_phrase(progress), no_wrap=True, overflow="ellipsis")
    part = progress.step.done / progress.step.total if progress.step else 0.0
    bar = Table.grid()
    bar.add_row(
        ProgressBar(
            total=len(progress.pairs), completed=progress.done + part, width=BAR_WIDTH
        )
    )
    yield bar
    yield Text(_time_phrase(progress), style="dim")
    if progress.is_ending:
        yield Text("ending after this cell; Ctrl-C again ends at once", style="yellow")
    else:
        yield Text("Ctrl-C ends after this cell", style="dim")


def cell_line(record: CellRecord, progress: Progress) -> Text:
    """One line on a cell that ended, for logs and pipes."""
    place = f"[{record.position:>2}/{len(progress.pairs)}]"
    text = Text(f"{place} {record.pair!s:<13} ")
    if record.has_numbers:
        numbers = (_phrase(m, record, progress) for m in progress.probe.metrics[:4])
        text.append("  ".join(numbers))
    else:
        text.append(f"{record.status}: {visible(record.reason)}", style="yellow")
    text.append(f"  {duration(record.phases.total_s)}")
    left = progress.left_s()
    if left:
        text.append(f"  ({duration(left)} left)", style="dim")
    return text


def value_of(metric: Metric, record: CellRecord, setup: Setup) -> float | None:
    """The cell's value of *metric*; None where it has none."""
    values = metric.values(record, setup, Reading())
    if not values:
        return None
    return float(sum(values)) if metric.is_sum else fmean(values)


def _phrase(metric: Metric, record: CellRecord, progress: Progress) -> str:
    value = value_of(metric, record, progress.setup)
    shown = "-" if value is None else f"{value:.{metric.digits}f}"
    return f"{metric.name} {shown}"


def _cell(progress: Progress, pair: Pair, metric: Metric) -> Text:
    record = progress.records.get(pair)
    if pair == progress.current:
        done = f"{progress.step.done}/{progress.step.total}" if progress.step else "..."
        return Text(done, style="bold reverse")
    if record is None or record.status is Status.INTERRUPTED:
        return Text(NOT_RUN_WORD, style="dim")
    if not record.has_numbers:
        return Text(status_word(record.status), style="yellow")
    value = value_of(metric, record, progress.setup)
    if value is None:
        return Text("-", style="dim")
    return Text(f"{value:.{metric.digits}f}", style=cell_style(metric, value))


def _cell_phrase(progress: Progress) -> str:
    if progress.current is None:
        return "between cells"
    place = progress.pairs.index(progress.current) + 1
    where = f"cell {place} of {len(progress.pairs)}  {progress.current}"
    if progress.step is None:
        return f"{where}  {progress.phase}"
    step = progress.step
    return (
        f"{where}  round {min(step.done + 1, step.total)} of {step.total}  "
        f"{visible(step.what)}"
    )


def _time_phrase(progress: Progress) -> str:
    elapsed = duration(time.monotonic() - progress.started)
    left = progress.left_s()
    remaining = "known after the first cell" if left is None else duration(left)
    failed = f", {progress.failures} without numbers" if progress.failures else ""
    return f"{progress.done} done{failed}   elapsed {elapsed}   left {remaining}"


def say(console: Console, text: str) -> None:
    """Lines that stay."""
    console.print(Text(text, style="bold"))


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """
    Say what takes a moment before the sweep: a spinner, or a line in a log.

    Yields:
        What takes a phrase on how far it is, for the spinner or the log.
    """
    if not console.is_terminal:
        console.print(f"{what} ...")
        yield console.print
        return
    with console.status(what) as status:
        yield lambda far: status.update(f"{what}: {far}")


def note_lines(console: Console, lines: Iterable[str]) -> None:
    """Lines that a person should see once, before anything starts."""
    for line in lines:
        console.print(Text(f"note: {line}", style="yellow"))
