"""The grid of a run and the summary of several, for a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.analysis import frames, stats
from codeneedle.analysis.frames import Cell, Cells
from codeneedle.analysis.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import (
    REFERENCE_MARK,
    incomplete_lines,
    unmeasured_lines,
)
from codeneedle.report.cells import (
    NO_VALUE_WORD,
    Scale,
    cell_style,
    number,
    status_word,
    value_scale,
)
from codeneedle.scoring.rounds import Reading
from codeneedle.text import visible

CORNER = "K \\ V"
"""Top left corner of a grid: K types go down, V types across."""

LEAST_COLUMN = 8
"""Least width of a column, in characters."""

SUMMARY_DIGITS = 2
"""Fewest decimals of a mean over cells, as in the published table."""


def report(
    runs: Sequence[Run], metric: Metric, also: Sequence[Metric], reading: Reading
) -> RenderableType:
    """
    The summary of all *runs*, then the grid of each with what it was measured on.

    Args:
        runs: In the order to show; records of one probe each.
        metric: Shown as a grid, and in the summary with its range and gradient.
        also: Further metrics of the summary, before *metric*.
        reading: How stored replies are read.
    """
    parts: list[RenderableType] = [summary(runs, metric, also, reading)]
    for run in runs:
        parts += [Text(), grid(run, metric, reading)]
    return Group(*parts)


def summary(
    runs: Sequence[Run], metric: Metric, also: Sequence[Metric], reading: Reading
) -> RenderableType:
    """
    One row per run, in the form of the published table.

    Numbers are means over cells with a value; the row says how many of how many.
    Names of runs can be long, so each is printed on a line above its row. A single run
    has none here: its name is printed above its grid.
    """
    headings = [
        heading.replace(" (mean", "\n(mean")
        for heading in summary_headings(runs, metric, also)[1:]
    ]
    rows = [summary_row(run, metric, also, reading) for run in runs]
    columns = list(zip(headings, *(row[1:] for row in rows), strict=True))
    widths = [_width(column) for column in columns]
    if len(rows) == 1:
        return _aligned(headings, rows[0][1:], widths)
    parts: list[RenderableType] = [_aligned(headings, [], widths)]
    for name, *row in rows:
        parts += [_unbroken(Text(name, style="bold")), _aligned([], row, widths)]
    return Group(*parts)


def _aligned(
    headings: Sequence[str], row: Sequence[str], widths: Sequence[int]
) -> Table:
    """Headings or a row of a summary; only the last column, of words, may fold."""
    table = Table(
        box=box.ASCII2, show_edge=False, pad_edge=False, show_header=bool(headings)
    )
    last = len(widths) - 1
    for at, width in enumerate(widths):
        heading = headings[at] if headings else ""
        fixed = None if at == last else width
        table.add_column(heading, width=fixed, overflow="fold")
    if row:
        table.add_row(*map(Text, row))
    return table


def _width(texts: Sequence[str]) -> int:
    lines = (line for text in texts for line in text.splitlines())
    return max(LEAST_COLUMN, *map(len, lines))


def summary_headings(
    runs: Sequence[Run], metric: Metric, also: Sequence[Metric]
) -> list[str]:
    """The headings of `summary`, with the upper bound where all *runs* share it."""
    return [
        "run",
        "pairs",
        *(f"{_heading(each, runs)} (mean +/- sd)" for each in _columns(metric, also)),
        f"{metric.name} range",
        "gradient?",
    ]


def summary_row(
    run: Run, metric: Metric, also: Sequence[Metric], reading: Reading
) -> list[str]:
    """The cells of `summary` for one run."""
    columns = _columns(metric, also)
    tables = frames.cells_frames(run, columns, reading)
    cells = tables[metric.name]
    spread = stats.spread(cells)
    digits = max(metric.digits, SUMMARY_DIGITS)
    low, high = (number(end, digits=digits) for end in (spread.low, spread.high))
    value_range = f"{low} - {high}" if spread.cells else NO_VALUE_WORD
    return [
        visible(run.name),
        _of_all(spread.cells, len(cells)),
        *(_mean_and_sd(each, stats.spread(tables[each.name])) for each in columns),
        value_range,
        stats.gradient(cells).words,
    ]


def grid(run: Run, metric: Metric, reading: Reading) -> RenderableType:
    """Heading, grid, legend, cautions, and what it was measured on."""
    cells = frames.cells_frame(run, metric, reading)
    described = _described(metric, frames.most_observations(cells))
    heading = Text(f"{visible(run.name)}: {described}", style="bold")
    return Group(
        heading,
        Text(),
        *grid_lines(cells, metric),
        Text(),
        captions.entry_table(captions.legend_entries(run.setup, cells, metric)),
        *(Text(line) for line in unmeasured_lines(run, metric)),
        *(Text(line) for line in incomplete_lines(cells)),
        *(Text(line, style="bold") for line in captions.cautions(run.setup)),
        Text(),
        captions.facts_table(run),
    )


def grid_lines(cells: Cells, metric: Metric) -> list[Text]:
    """The grid itself, a line for each K type below a line of V types."""
    rows = grid_texts(cells, metric)
    v_types = [visible(v) for v in frames.v_types(cells)]
    k_types = [visible(k) for k in frames.k_types(cells)]
    left = max(len(word) for word in (CORNER, *k_types))
    widths = [
        max(LEAST_COLUMN, len(v) + 3, *(len(row[at]) + 2 for row in rows))
        for at, v in enumerate(v_types)
    ]
    # The blank behind a type is the place of the reference's mark in the rows.
    heads = (f"{v} ".rjust(width) for v, width in zip(v_types, widths, strict=True))
    lines = [_unbroken(Text("".join([CORNER.ljust(left), *heads]), style="bold"))]
    for k, row in zip(k_types, rows, strict=True):
        line = Text(k.ljust(left), style="bold")
        for text, width in zip(row, widths, strict=True):
            line.append(" ")
            line.append(text.plain.rjust(width - 1), style=f"not bold {text.style}")
        lines.append(_unbroken(line))
    return lines


def grid_texts(cells: Cells, metric: Metric) -> list[list[Text]]:
    """The styled text of each cell of a `frames.cells_frame`, K down and V across."""
    values = [cell.value for cell in cells]
    scale = value_scale(metric, values, rounds=frames.most_observations(cells))
    reference = frames.reference(cells)
    across = len(frames.v_types(cells))
    flat = [
        _shown(metric, scale, cell, is_reference=cell.pair == reference)
        for cell in cells
    ]
    return [flat[at : at + across] for at in range(0, len(flat), across)]


def _shown(metric: Metric, scale: Scale, cell: Cell, *, is_reference: bool) -> Text:
    value = number(cell.value, digits=metric.digits)
    # The blank aligns the digits of a column.
    mark = REFERENCE_MARK if is_reference else " "
    text = (value if cell.has_value else status_word(cell.status)) + mark
    is_dim = cell.status == frames.NOT_RUN
    return Text(text, "dim" if is_dim else cell_style(metric, cell.value, scale))


def _described(metric: Metric, values: int) -> str:
    """The label, its unit, and how many observations a cell's number combines."""
    unit = "" if metric.unit in metric.label else f", {metric.unit}"
    how = "sum" if metric.is_sum else "mean"
    return f"{metric.label}{unit}" + (f" ({how} of {values})" if values > 1 else "")


def _columns(metric: Metric, also: Sequence[Metric]) -> list[Metric]:
    return [*(each for each in also if each.name != metric.name), metric]


def _heading(metric: Metric, runs: Sequence[Run]) -> str:
    """``matched /20``, ``pass /16``; without a bound that the runs do not share."""
    high = metric.bounds[1]
    needles = {len(run.setup.needles) for run in runs}
    if high is None or (metric.is_sum and len(needles) != 1):
        return metric.name
    most = high * needles.pop() if metric.is_sum else high
    prefix = "" if metric.is_sum else "avg "
    return f"{prefix}{metric.name} /{most:g}"


def _mean_and_sd(metric: Metric, spread: stats.Spread) -> str:
    if not spread.cells:
        return NO_VALUE_WORD
    digits = max(metric.digits, SUMMARY_DIGITS)
    return f"{spread.mean:.{digits}f} +/- {spread.sd:.{digits}f}"


def _of_all(cells: int, of: int) -> str:
    return str(of) if cells == of else f"{cells} of {of}"


def _unbroken(line: Text) -> Text:
    """A line that rich does not fold, nor cut when printed with ``crop=False``."""
    line.no_wrap, line.overflow = True, "ignore"
    return line
