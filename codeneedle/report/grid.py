"""The grid of a run and the summary of several."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from codeneedle.document import Block, Document, Facts, Heading, Lines, Table
from codeneedle.probes import frames
from codeneedle.probes.frames import Cells
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.display import display_of
from codeneedle.report.shown import legend, pivot, shown_cells
from codeneedle.text import NO_VALUE_WORD, number_text

if TYPE_CHECKING:
    from codeneedle.cache_types import PairFlags
    from codeneedle.verdict.judge import Verdict

SUMMARY_DIGITS = 2
"""Fewest decimals of a mean over cells, as in the published table."""


def grid_report(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    also: Sequence[Metric],
    verdicts: Sequence["Verdict"],
) -> Document:
    """
    The summary of all *runs*, then the grids of each with what it was measured on.

    Args:
        runs: In the order to show; records of one probe each.
        metrics: Each shown as a grid; the last in the summary, with its range and
            what is beyond the limit.
        also: Further metrics of the summary, before that one.
        verdicts: The verdict on each run.
    """
    yield summary_table(runs, metrics[-1], also, verdicts)
    for run, verdict in zip(runs, verdicts, strict=True):
        for metric in metrics:
            yield from grid_blocks(run, metric, verdict)
        yield Lines(captions.caution_and_gap_sentences(run), style="bold")
        yield Facts(captions.run_facts(run), is_quiet=True)


def loss_report(
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    also: Sequence[Metric],
    verdicts: Sequence["Verdict"],
    pair_flags_of: Callable[[str], "PairFlags"],
) -> Document:
    """
    The loss of each pair, which pair to set, and what it was measured on.

    Losses of several runs are also shown side by side, by type and by pair. Without any
    loss it is the `grid_report`.

    Args:
        runs: In the order to show; records of one probe each.
        metrics: Grids below the loss, but for what the loss says of them.
        also: Metrics of the summary, behind the loss.
        verdicts: The verdict on each run.
        pair_flags_of: Spells pairs in the words of an engine.
    """
    from codeneedle.report.losses import losses_of
    from codeneedle.report.losses_side_by_side import losses_side_by_side
    from codeneedle.report.verdict import headline_and_gain_lines

    if not any(map(losses_of, verdicts)):
        yield from grid_report(runs, metrics, also, verdicts)
        return
    if runs[1:] or also:
        yield loss_summary(runs, also, verdicts)
    if runs[1:]:
        yield from losses_side_by_side(verdicts)
    for run, verdict in zip(runs, verdicts, strict=True):
        losses = losses_of(verdict)
        if losses:
            values = losses.shown_losses()
            yield Heading(f"{run.name}: {losses.label}")
            yield pivot(values)
            yield headline_and_gain_lines(verdict, pair_flags_of(run.setup.engine))
            yield Facts(legend(values))
        for metric in metrics:
            if not (losses and losses.has_right_token_loss_of(metric)):
                yield from grid_blocks(run, metric, verdict)
        yield Lines(captions.caution_and_gap_sentences(run), style="bold")
        yield Lines(captions.measured_on_lines(verdict.run), style="dim")


def summary_table(
    runs: Sequence[Run],
    metric: Metric,
    also: Sequence[Metric],
    verdicts: Sequence["Verdict"],
) -> Table:
    """
    One row per run, in the form of the published table.

    Numbers are means over cells with a value; the row says how many of how many.
    """
    columns = [*(other for other in also if other.name != metric.name), metric]
    heading = [
        "run",
        "pairs",
        *(_mean_and_sd_heading(column, runs) for column in columns),
        f"{metric.name}\nrange",
        "beyond\nthe limit",
    ]
    of_runs = zip(captions.run_names_or_folders(runs), runs, verdicts, strict=True)
    rows = [
        [name, *_summary_row(run, columns, verdict)] for name, run, verdict in of_runs
    ]
    if not rows[1:]:  # its name stands above its grid
        return Table(heading[1:], [rows[0][1:]], words={heading[-1]})
    return Table(heading, rows, words={heading[0], heading[-1]})


def loss_summary(
    runs: Sequence[Run], also: Sequence[Metric], verdicts: Sequence["Verdict"]
) -> Table:
    """One row per run: its losses, the pair to set, and means of *also*."""
    first = ["run", "pairs", "loss, %\nrange", "set", "beyond\nthe limit"]
    rows = [
        [name, *_loss_summary_row(run, verdict), *_mean_and_sd_texts(run, also)]
        for name, run, verdict in zip(
            captions.run_names_or_folders(runs), runs, verdicts, strict=True
        )
    ]
    heading = [*first, *(_mean_and_sd_heading(metric, runs) for metric in also)]
    if not rows[1:]:  # its name stands above its grid
        return Table(heading[1:], [rows[0][1:]], words={*first[3:]})
    return Table(heading, rows, words={first[0], *first[3:]})


def _loss_summary_row(run: Run, verdict: "Verdict") -> list[str]:
    """
    Pairs, range of losses, answer and what is beyond, of one run.

    Dashes without losses.
    """
    from codeneedle.report.losses import losses_of
    from codeneedle.report.verdict import answer_phrase, beyond_phrase

    losses = losses_of(verdict)
    if losses is None:
        return [str(len(run.records)), NO_VALUE_WORD, NO_VALUE_WORD, NO_VALUE_WORD]
    cells, digits = losses.cells(), losses.digits
    spread = frames.value_spread(cells)
    low, high = (number_text(end, digits=digits) for end in (spread.low, spread.high))
    return [
        _pairs_with_value_text(cells, spread),
        f"{low} - {high}",
        answer_phrase(verdict),
        beyond_phrase(verdict) or NO_VALUE_WORD,
    ]


def _mean_and_sd_texts(run: Run, metrics: Sequence[Metric]) -> list[str]:
    """Mean and deviation of each of *metrics*, over cells with a value."""
    tables = frames.cells_frames(run, metrics)
    return [
        _mean_and_sd_text(metric, frames.value_spread(tables[metric.name]))
        for metric in metrics
    ]


def _pairs_with_value_text(cells: Cells, spread: frames.Spread) -> str:
    """``36``, or ``35 of 36``: pairs with a value."""
    of = sum(not cell.is_hole for cell in cells)
    return str(of) if spread.cells == of else f"{spread.cells} of {of}"


def _summary_row(run: Run, columns: Sequence[Metric], verdict: "Verdict") -> list[str]:
    """Pairs, means of *columns*, and range and what is beyond by the last of them."""
    # A live grid needs no statistics: they take a second to load.
    from codeneedle.report.verdict import beyond_phrase

    metric = columns[-1]
    cells = frames.cells_frame(run, metric)
    spread = frames.value_spread(cells)
    digits = max(display_of(metric).digits, SUMMARY_DIGITS)
    low, high = (number_text(end, digits=digits) for end in (spread.low, spread.high))
    return [
        _pairs_with_value_text(cells, spread),
        *_mean_and_sd_texts(run, columns),
        f"{low} - {high}" if spread.cells else NO_VALUE_WORD,
        beyond_phrase(verdict, metric.name) or NO_VALUE_WORD,
    ]


def grid_blocks(run: Run, metric: Metric, verdict: "Verdict") -> Iterator[Block]:
    """Heading, grid, legend, and the pairs that are within, beyond and open."""
    from codeneedle.report.verdict import decision_entries

    cells = frames.cells_frame(run, metric)
    described = captions.label_with_unit(metric) + captions.mean_or_sum_phrase(
        metric, cells
    )
    values = shown_cells(
        metric, cells, setup=run.setup, inferred=verdict.inferred_pairs
    )
    yield Heading(f"{run.name}: {described}")
    yield pivot(values)
    yield Facts(
        [
            *legend(values),
            *captions.missing_reference_entries(cells),
            *captions.noise_floor_entries(run, metric, cells),
            *decision_entries(verdict, metric.name),
        ]
    )
    yield Lines(
        [
            *captions.unmeasured_metric_lines(run, metric),
            *captions.missing_answer_lines(run),
        ]
    )


def _mean_and_sd_heading(metric: Metric, runs: Sequence[Run]) -> str:
    return f"{_column_heading(metric, runs)}\n(mean +/- sd)"


def _column_heading(metric: Metric, runs: Sequence[Run]) -> str:
    """``avg matched /20``, ``pass /16``; the name alone if runs share no bound."""
    high = display_of(metric).bounds[1]
    counts = {
        frames.largest_observation_count(frames.cells_frame(r, metric)) for r in runs
    }
    if not high or (metric.is_sum and len(counts) != 1):
        return metric.name
    most = high * counts.pop() if metric.is_sum else high
    prefix = "" if metric.is_sum else "avg "
    return f"{prefix}{metric.name} /{most:g}"


def _mean_and_sd_text(metric: Metric, spread: frames.Spread) -> str:
    """``19.20 +/- 0.45``; a dash where no cell has a value."""
    if not spread.cells:
        return NO_VALUE_WORD
    digits = max(display_of(metric).digits, SUMMARY_DIGITS)
    mean, sd = (number_text(value, digits=digits) for value in (spread.mean, spread.sd))
    return f"{mean} +/- {sd}"
