"""The grid of a run and the summary of several, in all forms; scales and colours."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from codeneedle.probes import frames
from codeneedle.probes.frames import Cell, Cells
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import (
    NO_VALUE_WORD,
    REFERENCE_MARK,
    cell_word,
    incomplete_lines,
    number,
    unmeasured_lines,
)
from codeneedle.text import csv_field, json_text, or_null, table_lines, visible

if TYPE_CHECKING:
    from codeneedle.verdict.judge import Verdict

CORNER = "K \\ V"
"""Top left corner of a grid: K types go down, V types across."""

LEAST_COLUMN = 8
"""Least width of a column, in characters."""

SUMMARY_DIGITS = 2
"""Fewest decimals of a mean over cells, as in the published table."""

LEAST_SHARE = 0.05
"""
Least width of a scale, as a share of the values, of metrics that name no least span:
negligible differences must not span all colours.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """
    The ends of a colour scale.

    Attributes:
        low: Value at its lower end.
        high: Value at its upper end; larger than *low*.
    """

    low: float
    high: float

    def place(self, value: float) -> float:
        """Where *value* lies, from 0 (low) to 1 (high)."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def value_scale(
    metric: Metric, values: Iterable[float], *, rounds: int = 1, zoom: bool = False
) -> Scale:
    """
    The natural bounds of *metric*; where there are none, the ends of the *values*.

    Args:
        metric: The metric of *values*.
        values: Of cells; NaN are gaps.
        rounds: Observations of a cell. Bounds are those of one observation; those of
            a sum are multiplied by this.
        zoom: Whether to use the ends of the values despite natural bounds.
    """
    seen = [value for value in values if math.isfinite(value)]
    low, high = (None, None) if zoom else natural_bounds(metric, rounds=rounds)
    if low is not None and high is not None:
        return Scale(low, high)
    low = min(seen, default=0.0) if low is None else low
    high = max(seen, default=1.0) if high is None else high
    return _wide_enough(low, high, metric=metric)


def difference_scale(
    metric: Metric, differences: Iterable[float], *, reference: float, rounds: int = 1
) -> Scale:
    """
    From minus to plus the largest absolute value of *differences*.

    Args:
        metric: The metric that is compared.
        differences: Values less the reference's; NaN are missing.
        reference: The reference's value.
        rounds: As in `value_scale`.
    """
    finite = (abs(each) for each in differences if math.isfinite(each))
    largest = max(finite, default=0.0)
    low, high = natural_bounds(metric, rounds=rounds)
    whole = abs(reference) if low is None or high is None else high - low
    half = max(largest, metric.least_span / 2 or LEAST_SHARE * whole) or 1.0
    return Scale(-half, half)


def natural_bounds(metric: Metric, *, rounds: int) -> tuple[float | None, float | None]:
    """The bounds of a cell's value; those of a sum are multiplied by *rounds*."""
    times = rounds if metric.is_sum else 1
    low, high = metric.bounds
    return (
        None if low is None else low * times,
        None if high is None else high * times,
    )


def _wide_enough(low: float, high: float, *, metric: Metric) -> Scale:
    """From *low* to *high*, wider where that is too narrow; not beyond a bound."""
    share = LEAST_SHARE * max(abs(low), abs(high))
    missing = max((metric.least_span or share or 1.0) - (high - low), 0.0)
    if metric.bounds[1] == high:
        return Scale(low - missing, high)
    if metric.bounds[0] == low:
        return Scale(low, high + missing)
    return Scale(low - missing / 2, high + missing / 2)


RAMP: tuple[tuple[int, int, int], ...] = (
    (68, 1, 84),
    (72, 35, 116),
    (66, 65, 134),
    (54, 93, 141),
    (43, 117, 142),
    (34, 141, 141),
    (32, 164, 134),
    (59, 187, 117),
    (110, 206, 88),
)
"""
Nine even steps of the colour map viridis, dark to light, in sRGB.

Even in lightness, and safe for the colour-blind. It ends at green, 0.78 of the way,
because a grid of good values would be bright yellow otherwise. Listed here so that the
live grid does not import a plotting library. Nathaniel Smith and Stefan van der Walt,
A Better Default Colormap for Matplotlib, SciPy 2015.
"""

_DARK_TEXT, _LIGHT_TEXT = "#000000", "#ffffff"


def cell_style(metric: Metric, value: float, scale: Scale | None = None) -> str:
    """
    The style of a cell, for rich: lighter is better, or higher where neither is.

    Sets text and background, so that it looks the same on dark and light terminals.

    Args:
        metric: Has the better end.
        value: The value; NaN for a gap.
        scale: Of the grid; the metric's natural one if None, which needs two bounds.
    """
    if math.isnan(value):
        return "italic"
    place = (scale or value_scale(metric, [value])).place(value)
    red, green, blue = colour(1 - place if metric.better == "lower" else place)
    return f"{text_colour(red, green, blue)} on {hex_of((red, green, blue))}"


def hex_of(rgb: tuple[int, int, int]) -> str:
    """``#440154``."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def colour(place: float) -> tuple[int, int, int]:
    """The colour at *place* of `RAMP`, from 0 (dark) to 1 (light), in sRGB."""
    at = place * (len(RAMP) - 1)
    below = min(int(at), len(RAMP) - 2)
    red, green, blue = (
        round(low + (at - below) * (high - low))
        for low, high in zip(RAMP[below], RAMP[below + 1], strict=True)
    )
    return red, green, blue


def text_colour(red: float, green: float, blue: float) -> str:
    """
    Black or white, whichever has more contrast to a background of 0 to 255 a channel.

    Source:
        Relative luminance and contrast ratio of WCAG 2.1; at a luminance of
        0.179 both contrasts are equal.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4  # noqa: PLR2004
        for c in (red / 255, green / 255, blue / 255)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _DARK_TEXT if luminance > 0.179 else _LIGHT_TEXT  # noqa: PLR2004


def report(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    also: Sequence[Metric],
    found: Sequence["Verdict"],
) -> RenderableType:
    """
    The summary of all *runs*, then the grids of each with what it was measured on.

    Args:
        runs: In the order to show; records of one probe each.
        metrics: Each shown as a grid; the last in the summary, with its range and
            what is beyond the limit.
        also: Further metrics of the summary, before that one.
        found: The verdict on each run.
    """
    parts: list[RenderableType] = [summary(runs, metrics[-1], also, found)]
    for run, on in zip(runs, found, strict=True):
        for metric in metrics:
            parts += [Text(), grid(run, metric, on)]
        parts += [
            *(Text(line, style="bold") for line in captions.cautions(run.setup)),
            Text(),
            captions.facts_table(run),
        ]
    return Group(*parts)


def summary(
    runs: Sequence[Run],
    metric: Metric,
    also: Sequence[Metric],
    found: Sequence["Verdict"],
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
    rows = [
        summary_row(run, metric, also, on) for run, on in zip(runs, found, strict=True)
    ]
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
        "beyond the limit",
    ]


def summary_row(
    run: Run,
    metric: Metric,
    also: Sequence[Metric],
    found: "Verdict",
) -> list[str]:
    """The cells of `summary` for one run; *found* is the verdict on it."""
    columns = _columns(metric, also)
    tables = frames.cells_frames(run, columns)
    cells = tables[metric.name]
    spread = frames.spread(cells)
    digits = max(metric.digits, SUMMARY_DIGITS)
    low, high = (number(end, digits=digits) for end in (spread.low, spread.high))
    value_range = f"{low} - {high}" if spread.cells else NO_VALUE_WORD
    return [
        visible(run.name),
        _of_all(spread.cells, sum(not cell.is_hole for cell in cells)),
        *(_mean_and_sd(each, frames.spread(tables[each.name])) for each in columns),
        value_range,
        _beyond(found, metric) or NO_VALUE_WORD,
    ]


def _beyond(found: "Verdict", metric: Metric) -> str:
    # A live grid needs no statistics: they take a second to load.
    from codeneedle.report.verdict import beyond_phrase

    return beyond_phrase(found, metric.name)


def grid(run: Run, metric: Metric, found: "Verdict") -> RenderableType:
    """Heading, grid, legend, and the pairs that are within, beyond and open."""
    cells = frames.cells_frame(run, metric)
    described = captions.described(metric) + captions.combined(metric, cells)
    heading = Text(f"{visible(run.name)}: {described}", style="bold")
    return Group(
        heading,
        Text(),
        *grid_lines(cells, metric),
        Text(),
        captions.entry_table(
            [
                *captions.legend_entries(run.setup, cells, metric),
                *captions.floor_entries(run, metric, cells),
                *judged_entries(found, metric),
            ]
        ),
        *(Text(line) for line in unmeasured_lines(run, metric)),
        *(Text(line) for line in incomplete_lines(run, cells)),
    )


def judged_entries(found: "Verdict", metric: Metric) -> list[tuple[str, str]]:
    """The pairs of each word by *metric*; nothing where it is not judged."""
    from codeneedle.report.verdict import metric_entries

    return metric_entries(found, metric.name)


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
    value = captions.with_error(cell, metric)
    # The blank aligns the digits of a column.
    mark = REFERENCE_MARK if is_reference else " "
    text = (value if cell.has_value else cell_word(cell)) + mark
    is_dim = cell.status == frames.NOT_RUN
    return Text(text, "dim" if is_dim else cell_style(metric, cell.value, scale))


def _columns(metric: Metric, also: Sequence[Metric]) -> list[Metric]:
    return [*(each for each in also if each.name != metric.name), metric]


def _heading(metric: Metric, runs: Sequence[Run]) -> str:
    """``matched /20``, ``pass /16``; without a bound of 0, or that runs differ in."""
    high = metric.bounds[1]
    needles = {len(run.setup.needles) for run in runs}
    if not high or (metric.is_sum and len(needles) != 1):
        return metric.name
    most = high * needles.pop() if metric.is_sum else high
    prefix = "" if metric.is_sum else "avg "
    return f"{prefix}{metric.name} /{most:g}"


def _mean_and_sd(metric: Metric, spread: frames.Spread) -> str:
    if not spread.cells:
        return NO_VALUE_WORD
    digits = max(metric.digits, SUMMARY_DIGITS)
    mean, sd = (number(each, digits=digits) for each in (spread.mean, spread.sd))
    return f"{mean} +/- {sd}"


def _of_all(cells: int, of: int) -> str:
    return str(of) if cells == of else f"{cells} of {of}"


def _unbroken(line: Text) -> Text:
    """A line that rich does not fold, nor cut when printed with ``crop=False``."""
    line.no_wrap, line.overflow = True, "ignore"
    return line


# --- CSV, JSON and Markdown


def grid_csv(runs: Sequence[Run], metrics: Sequence[Metric]) -> str:
    """
    One row per run and pair, with `captions.csv_headings` for each of *metrics*.

    Values are unrounded and in the metrics' units; empty where there is none.
    """
    headings = [word for metric in metrics for word in captions.csv_headings(metric)]
    lines: list[list[object]] = [
        [*captions.CSV_RUN, "k", "v", "status", "reason", *headings]
    ]
    for run in runs:
        columns = frames.cells_frames(run, metrics)
        for row in zip(*columns.values(), strict=True):
            keys = map(csv_field, (*captions.csv_run(run), *_keys(row[0]).values()))
            numbers = [number for cell in row for number in captions.csv_numbers(cell)]
            lines.append([*keys, *numbers])
    return captions.csv_text(lines)


def grid_json(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    found: Sequence["Verdict"],
) -> str:
    """
    A list of runs: setup without the needles' text, metrics, and a cell per pair.

    Values are unrounded; null where there is none. *found* has a verdict on each run.
    """
    both = zip(runs, found, strict=True)
    return json_text([_run_object(run, metrics, on) for run, on in both])


def grid_markdown(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    also: Sequence[Metric],
    found: Sequence["Verdict"],
) -> str:
    """The summary, then each grid with its legend, as GitHub renders tables."""
    both = list(zip(runs, found, strict=True))
    rows = [summary_row(run, metrics[-1], also, on) for run, on in both]
    parts = [f"{table_lines([summary_headings(runs, metrics[-1], also), *rows])}\n"]
    parts += [_grid_part(run, each, on) for run, on in both for each in metrics]
    return "\n".join(parts)


def _keys(cell: Cell) -> dict[str, str]:
    """What all metrics of a pair share."""
    missing = captions.HOLE_STATUS if cell.is_hole else captions.NOT_RUN_STATUS
    status = cell.status or missing
    return {**captions.sides(cell.pair), "status": status, "reason": cell.reason}


def _run_object(
    run: Run, metrics: Sequence[Metric], found: "Verdict"
) -> dict[str, Any]:
    columns = frames.cells_frames(run, metrics)
    reference = frames.reference(columns[metrics[0].name])
    return {
        "run": run.name,
        "setup": captions.setup_object(run),
        "reference": str(reference) if reference else None,
        "words": {
            name: {
                str(standing.pair): word
                for standing in found.compared
                if (word := found.word(standing.pair, name))
            }
            for name in columns
        },
        "metrics": [captions.metric_object(metric) for metric in metrics],
        "cells": [
            {
                **_keys(row[0]),
                "values": {
                    name: or_null(cell.value)
                    for name, cell in zip(columns, row, strict=True)
                },
            }
            for row in zip(*columns.values(), strict=True)
        ],
    }


def _grid_part(run: Run, metric: Metric, found: "Verdict") -> str:
    cells = frames.cells_frame(run, metric)
    rows = [
        [k, *(text.plain.strip() for text in row)]
        for k, row in zip(frames.k_types(cells), grid_texts(cells, metric), strict=True)
    ]
    return captions.markdown(
        f"{run.name}: {metric.label}",
        [[CORNER, *frames.v_types(cells)], *rows],
        sentences=[
            *unmeasured_lines(run, metric),
            *incomplete_lines(run, cells),
            *captions.cautions(run.setup),
        ],
        entries=[
            *captions.legend_entries(run.setup, cells, metric),
            *judged_entries(found, metric),
            *captions.facts(run),
        ],
    )
