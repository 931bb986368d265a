"""Losses of several runs side by side, by type and by pair."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from codeneedle.cache_types import Pair, distinct_most_precise_first, most_precise_first
from codeneedle.document import Document, Facts, Heading, Table
from codeneedle.report import captions
from codeneedle.report.losses import PERCENT, Losses, losses_of
from codeneedle.report.shown import (
    FEW_PAIRS,
    NOT_RUN,
    REFERENCE_MARK,
    Shown,
    Style,
    legend,
)
from codeneedle.text import escape_invisible, number_text
from codeneedle.verdict.judge import Verdict

FEWEST_PAIRS = 2
"""Pairs of a type from which on their mean is shown."""


def losses_side_by_side(verdicts: Sequence[Verdict]) -> Document:
    """Mean loss of each K and V type, then the loss of each pair; a column per run."""
    of_runs = [losses_of(verdict) for verdict in verdicts]
    names = captions.run_names_or_folders([verdict.run for verdict in verdicts])
    columns = [name.replace("/", "/\n") for name in names]
    by_type = list(_mean_loss_rows_by_type(of_runs))
    if by_type:
        yield Heading("loss, mean over the pairs of a type, of 100")
        yield Table(["type", *columns], by_type, words={"type"})
        if any(FEW_PAIRS.sign in row for row in by_type):
            yield Facts([(FEW_PAIRS.sign, FEW_PAIRS.meaning)])
    shown = [
        {square.pair: square for square in losses.shown_losses()} if losses else {}
        for losses in of_runs
    ]
    pairs = [*_measured_pairs(of_runs)]
    rows = [[_shown_cell(of_run, pair) for of_run in shown] for pair in pairs]
    yield Heading("loss by pair, of 100")
    yield Table(
        ["K/V", *columns],
        [
            [escape_invisible(str(pair)), *(_cell_text(cell) for cell in row)]
            for pair, row in zip(pairs, rows, strict=True)
        ],
        words={"K/V"},
    )
    yield Facts(legend(cell for row in rows for cell in row))


def _mean_loss_rows_by_type(of_runs: Sequence[Losses | None]) -> Iterator[list[str]]:
    """
    A row for each K type, then for each V type, most precise first.

    Types of which no run has enough pairs are left out.
    """
    pairs = [pair for losses in of_runs if losses for pair in losses.rows]
    for axis in ("k", "v"):
        for name in distinct_most_precise_first(getattr(pair, axis) for pair in pairs):
            is_of_type = functools.partial(_has_type, axis, name)
            means = [_mean_loss_text(losses, is_of_type) for losses in of_runs]
            if {*means} != {FEW_PAIRS.sign}:
                yield [f"{axis.upper()} {escape_invisible(name)}", *means]


def _has_type(axis: str, name: str, pair: Pair) -> bool:
    return bool(getattr(pair, axis) == name)


def _mean_loss_text(losses: Losses | None, is_of_type: Callable[[Pair], bool]) -> str:
    """
    The mean loss of the pairs of a type, of 100.

    A dash of fewer than `FEWEST_PAIRS`.
    """
    rows = [row for p, row in losses.rows.items() if is_of_type(p)] if losses else []
    if losses is None or len(rows) < FEWEST_PAIRS:
        return FEW_PAIRS.sign
    mean = fmean(row.bounds.mean for row in rows)
    return number_text(PERCENT * mean, digits=losses.digits)


def _measured_pairs(of_runs: Sequence[Losses | None]) -> list[Pair]:
    """Each pair with a loss in any run, and the references; most precise first."""
    shown = [losses for losses in of_runs if losses]
    references = [
        losses.verdict.reference for losses in shown if losses.verdict.reference
    ]
    return most_precise_first({*references, *(pair for e in shown for pair in e.rows)})


def _shown_cell(of_run: Mapping[Pair, Shown], pair: Pair) -> Shown:
    """What a run has of *pair*, which other runs have measured; a dot if nothing."""
    value = of_run.get(pair)
    if value and value.text:
        return value
    return Shown(pair=pair, text=NOT_RUN.sign, marks=(NOT_RUN,))


def _cell_text(shown: Shown) -> str:
    """``0.2 within``; a mark for the reference."""
    if Style.REFERENCE in shown.style:
        return REFERENCE_MARK
    return f"{shown.text} {shown.below}".rstrip()
