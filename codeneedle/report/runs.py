"""Losses of several runs side by side, by type and by pair."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from codeneedle.cache_types import Pair, by_precision, most_precise_first
from codeneedle.document import Document, Heading, Lines, Table
from codeneedle.report import captions
from codeneedle.report.captions import REFERENCE_MARK
from codeneedle.report.losses import Losses, losses_of
from codeneedle.text import NO_VALUE_WORD, visible
from codeneedle.verdict.judge import Verdict
from codeneedle.verdict.metric_results import MetricResult

FEWEST_PAIRS = 2
"""Pairs of a type from which on their mean is shown."""


def losses_side_by_side(verdicts: Sequence[Verdict]) -> Document:
    """Mean loss of each K and V type, then the loss of each pair; a column per run."""
    of_runs = [losses_of(each) for each in verdicts]
    names = captions.names_of([each.run for each in verdicts])
    columns = [name.replace("/", "/\n") for name in names]
    by_type = list(_type_rows(of_runs))
    if by_type:
        yield Heading("loss, mean over the pairs of a type")
        yield Table(["type", *columns], by_type, words={"type"})
    yield Heading("loss by pair")
    yield Table(["K/V", *columns], list(_pair_rows(of_runs)), words={"K/V"})
    yield Lines([f"{REFERENCE_MARK}  the reference of its run"], style="dim")


def _type_rows(of_runs: Sequence[Losses | None]) -> Iterator[list[str]]:
    """A row for each K type, then for each V type, most precise first."""
    pairs = [pair for losses in of_runs if losses for pair in losses.rows]
    for axis in ("k", "v"):
        for name in by_precision(getattr(pair, axis) for pair in pairs):
            is_of_type = _of_type(axis, name)
            means = [_mean_loss(losses, is_of_type) for losses in of_runs]
            if {*means} != {NO_VALUE_WORD}:
                yield [f"{axis.upper()} {visible(name)}", *means]


def _of_type(axis: str, name: str) -> Callable[[Pair], bool]:
    return lambda pair: getattr(pair, axis) == name


def _mean_loss(losses: Losses | None, is_of_type: Callable[[Pair], bool]) -> str:
    rows = [row for p, row in losses.rows.items() if is_of_type(p)] if losses else []
    if losses is None or len(rows) < FEWEST_PAIRS:
        return NO_VALUE_WORD
    return _phrase(losses, rows[0], fmean(row.bounds.mean for row in rows))


def _pair_rows(of_runs: Sequence[Losses | None]) -> Iterator[list[str]]:
    """A row for each pair of any run, most precise first."""
    shown = [losses for losses in of_runs if losses]
    references = [each.verdict.reference for each in shown if each.verdict.reference]
    pairs = dict.fromkeys(
        [*references, *(pair for each in shown for pair in each.rows)]
    )
    for pair in most_precise_first(pairs):
        yield [visible(str(pair)), *(_cell(losses, pair) for losses in of_runs)]


def _cell(losses: Losses | None, pair: Pair) -> str:
    """``0.2 % within``; a mark for the reference, a dash without a number."""
    if losses and pair == losses.verdict.reference:
        return REFERENCE_MARK
    row = losses.rows.get(pair) if losses else None
    if losses is None or row is None:
        return NO_VALUE_WORD
    return f"{_phrase(losses, row, row.bounds.mean)} {losses.word(pair)}"


def _phrase(losses: Losses, row: MetricResult, value: float) -> str:
    return losses.verdict.limits.phrase(row.kind, value)
