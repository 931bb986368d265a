"""All that a person sees while a sweep runs: a grid that fills, or plain lines."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from codeneedle.grid import Pair, by_precision
from codeneedle.metrics import Metric
from codeneedle.probe import Probe, Step
from codeneedle.records import CellRecord, Setup, Status
from codeneedle.report.cells import NOT_RUN_WORD, cell_style, status_word
from codeneedle.report.headline import corpus_line, setup_line
from codeneedle.report.safetext import visible
from codeneedle.runner import CellEnded, CellStarted, CellStepped, Event, Noted
from codeneedle.scored_rounds import Reading
from codeneedle.units import duration, plural

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
        return self.done - sum(r.is_finished for r in self.records.values())

    def left_s(self) -> float | None:
        """Seconds until the end, from the cells so far; None before the first."""
        spent = [r.phases.total_s for r in self.records.values() if r.is_finished]
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
            self._live is None or not event.record.is_finished
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
    if record.is_finished:
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
    if not record.is_finished:
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
