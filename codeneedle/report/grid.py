"""The grid of a run and the summary of several."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from codeneedle.document import Block, Document, Facts, Grid, Heading, Lines, Table
from codeneedle.probes import frames
from codeneedle.probes.frames import Cell, Cells
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions, data
from codeneedle.report.captions import REFERENCE_MARK, cell_word
from codeneedle.report.colours import Scale, cell_style, value_scale
from codeneedle.text import NO_VALUE_WORD, number

if TYPE_CHECKING:
    from codeneedle.verdict.judge import Verdict

SUMMARY_DIGITS = 2
"""Fewest decimals of a mean over cells, as in the published table."""


def report(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    also: Sequence[Metric],
    verdicts: Sequence["Verdict"],
) -> Document:
    """
    The summary of all *runs*, then the grids of each with what it was measured on.

    Several runs are also set beside each other, by type and pair.

    Args:
        runs: In the order to show; records of one probe each.
        metrics: Each shown as a grid; the last in the summary, with its range and
            what is beyond the limit.
        also: Further metrics of the summary, before that one.
        verdicts: The verdict on each run.
    """
    yield summary(runs, metrics[-1], also, verdicts)
    if runs[1:]:
        # Not at the top: it needs the verdict's statistics, and a live grid does not.
        from codeneedle.report.runs import beside_each_other

        yield from beside_each_other(verdicts, metrics[-1])
    for run, verdict in zip(runs, verdicts, strict=True):
        for metric in metrics:
            yield from grid(run, metric, verdict)
        yield Lines(captions.cautions(run.setup), style="bold")
        yield Facts(captions.facts(run), is_quiet=True)


def summary(
    runs: Sequence[Run],
    metric: Metric,
    also: Sequence[Metric],
    verdicts: Sequence["Verdict"],
) -> Table:
    """
    One row per run, in the form of the published table.

    Numbers are means over cells with a value; the row says how many of how many.
    """
    columns = [*(each for each in also if each.name != metric.name), metric]
    heading = [
        "run",
        "pairs",
        *(f"{_heading(each, runs)}\n(mean +/- sd)" for each in columns),
        f"{metric.name}\nrange",
        "beyond\nthe limit",
    ]
    of_runs = zip(captions.names_of(runs), runs, verdicts, strict=True)
    rows = [
        [name, *_summary_row(run, columns, verdict)] for name, run, verdict in of_runs
    ]
    if not rows[1:]:  # its name stands above its grid
        return Table(heading[1:], [rows[0][1:]], words={heading[-1]})
    return Table(heading, rows, words={heading[0], heading[-1]})


def _summary_row(run: Run, columns: Sequence[Metric], verdict: "Verdict") -> list[str]:
    # A live grid needs no statistics: they take a second to load.
    from codeneedle.report.verdict import beyond_phrase

    metric = columns[-1]
    tables = frames.cells_frames(run, columns)
    cells = tables[metric.name]
    spread = frames.spread(cells)
    of = sum(not cell.is_hole for cell in cells)
    digits = max(metric.digits, SUMMARY_DIGITS)
    low, high = (number(end, digits=digits) for end in (spread.low, spread.high))
    return [
        str(of) if spread.cells == of else f"{spread.cells} of {of}",
        *(_mean_and_sd(each, frames.spread(tables[each.name])) for each in columns),
        f"{low} - {high}" if spread.cells else NO_VALUE_WORD,
        beyond_phrase(verdict, metric.name) or NO_VALUE_WORD,
    ]


def grid(run: Run, metric: Metric, verdict: "Verdict") -> Iterator[Block]:
    """Heading, grid, legend, and the pairs that are within, beyond and open."""
    from codeneedle.report.verdict import metric_entries
    from codeneedle.sweep.decide import settled

    cells = frames.cells_frame(run, metric)
    described = captions.described(metric) + captions.combined(metric, cells)
    yield Heading(f"{run.name}: {described}")
    yield values(cells, metric)
    yield Facts(
        [
            *captions.legend_entries(run.setup, cells, metric, settled(verdict)),
            *captions.floor_entries(run, metric, cells),
            *metric_entries(verdict, metric.name),
        ]
    )
    yield Lines(
        [
            *captions.unmeasured_lines(run, metric),
            *captions.incomplete_lines(run, cells),
        ]
    )


def values(cells: Cells, metric: Metric) -> Grid:
    """The styled text of each of *cells*, K down and V across."""
    known = [cell.value for cell in cells]
    scale = value_scale(metric, known, rounds=frames.most_observations(cells))
    reference = frames.reference(cells)
    across = len(frames.v_types(cells))
    flat = [
        _shown(metric, scale, cell, is_reference=cell.pair == reference)
        for cell in cells
    ]
    rows = [flat[at : at + across] for at in range(0, len(flat), across)]
    return Grid(frames.k_types(cells), frames.v_types(cells), rows)


def _shown(metric: Metric, scale: Scale, cell: Cell, *, is_reference: bool) -> Text:
    value = captions.value_text(cell, metric)
    # The blank aligns the digits of a column.
    mark = REFERENCE_MARK if is_reference else " "
    text = (value if cell.has_value else cell_word(cell)) + mark
    is_dim = cell.status == frames.NOT_RUN
    return Text(text, "dim" if is_dim else cell_style(metric, cell.value, scale))


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


# --- as data


def grid_rows(runs: Sequence[Run], metrics: Sequence[Metric]) -> Iterator[data.Row]:
    """A row per run and pair: values of *metrics*, unrounded and in their units."""
    for run in runs:
        for cells in zip(*frames.cells_frames(run, metrics).values(), strict=True):
            row: dict[str, object] = {**data.run_row(run), **_keys(cells[0])}
            for metric, cell in zip(metrics, cells, strict=True):
                row |= data.cell_row(metric, cell)
            yield row


def grid_objects(
    runs: Sequence[Run], metrics: Sequence[Metric], verdicts: Sequence["Verdict"]
) -> list[dict[str, Any]]:
    """
    A list of runs: setup without the needles' text, metrics, and a cell per pair.

    Values are unrounded; null where there is none.
    """
    both = zip(runs, verdicts, strict=True)
    return [_run_object(run, metrics, verdict) for run, verdict in both]


def _keys(cell: Cell) -> dict[str, str]:
    """What all metrics of a pair share."""
    missing = data.HOLE_STATUS if cell.is_hole else data.NOT_RUN_STATUS
    status = cell.status or missing
    return {**data.sides(cell.pair), "status": status, "reason": cell.reason}


def _run_object(
    run: Run, metrics: Sequence[Metric], verdict: "Verdict"
) -> dict[str, Any]:
    columns = frames.cells_frames(run, metrics)
    reference = frames.reference(columns[metrics[0].name])
    return {
        "run": run.name,
        "setup": data.setup_object(run),
        "reference": str(reference) if reference else None,
        "words": {
            name: {
                str(standing.pair): word
                for standing in verdict.compared
                if (word := verdict.word(standing.pair, name))
            }
            for name in columns
        },
        "metrics": [data.metric_object(metric) for metric in metrics],
        "cells": [
            {
                **_keys(row[0]),
                "values": {
                    name: cell.value for name, cell in zip(columns, row, strict=True)
                },
            }
            for row in zip(*columns.values(), strict=True)
        ],
    }
