"""Several runs beside each other: what each sets, and its losses by type and pair."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from codeneedle.document import Document, Heading, Lines, Table
from codeneedle.grid import Pair, by_precision, most_precise_first
from codeneedle.probes.metrics import Metric
from codeneedle.report import captions
from codeneedle.report.captions import REFERENCE_MARK
from codeneedle.text import NO_VALUE_WORD, visible
from codeneedle.verdict.judge import Row, Verdict

FEWEST_PAIRS = 2
"""Pairs of a type from which on their mean is shown."""


def beside_each_other(verdicts: Sequence[Verdict], metric: Metric) -> Document:
    """
    What each run sets, then its losses by type and by pair, in a column per run.

    Args:
        verdicts: Of the runs, in the order to show.
        metric: Whose losses are shown.
    """
    names = captions.names_of([each.run for each in verdicts])
    yield Heading("what to set")
    heading = ["run", "set", "memory", "loss", "at most"]
    both = zip(names, verdicts, strict=True)
    rows = [[name, *_set_row(verdict)] for name, verdict in both]
    yield Table(heading, rows, words=set(heading[:2]))
    tables = [_rows(verdict, metric) for verdict in verdicts]
    if not any(tables):
        yield Lines([f"No pair has a loss by {metric.name}: try another --metric."])
        return
    columns = [name.replace("/", "/\n") for name in names]
    by_type = list(_type_rows(verdicts, tables))
    if by_type:
        yield Heading(f"loss by {metric.name}, mean over the pairs of a type")
        yield Table(["type", *columns], by_type, words={"type"})
    yield Heading(f"loss by {metric.name}")
    pairs = list(_pair_rows(verdicts, tables))
    yield Table(["K/V", *columns], pairs, words={"K/V"})
    yield Lines([f"{REFERENCE_MARK}  the reference of its run"], style="dim")


def _set_row(verdict: Verdict) -> list[str]:
    """The pair to set, its memory, its loss and the bound of that."""
    standing = verdict.standing(verdict.chosen) if verdict.chosen else None
    if verdict.is_instrument or verdict.reference is None:
        return ["none", *[NO_VALUE_WORD] * 3]
    if standing is None or standing.leading is None:
        return [f"keep {visible(str(verdict.reference))}", *[NO_VALUE_WORD] * 3]
    row, memory = standing.leading, standing.memory
    return [
        visible(str(standing.pair)) + (f", {standing.word}" if standing.word else ""),
        NO_VALUE_WORD if memory is None else f"{memory:.0%}",
        *(_loss(verdict, row, end) for end in (row.bounds.mean, row.bounds.high)),
    ]


def _rows(verdict: Verdict, metric: Metric) -> dict[Pair, Row]:
    """What *metric* says of each pair; nothing where it has no say."""
    if metric.name in verdict.silent:
        return {}
    rows = ((each.pair, each.row(metric.name)) for each in verdict.compared)
    return {pair: row for pair, row in rows if row}


def _type_rows(
    verdicts: Sequence[Verdict], tables: Sequence[Mapping[Pair, Row]]
) -> Iterator[list[str]]:
    """A row for each K type, then for each V type, most precise first."""
    pairs = [pair for table in tables for pair in table]
    for axis in ("k", "v"):
        for name in by_precision(getattr(pair, axis) for pair in pairs):
            means = [
                _mean_loss(
                    verdict, [table[p] for p in table if getattr(p, axis) == name]
                )
                for verdict, table in zip(verdicts, tables, strict=True)
            ]
            if any(mean != NO_VALUE_WORD for mean in means):
                yield [f"{axis.upper()} {visible(name)}", *means]


def _mean_loss(verdict: Verdict, rows: Sequence[Row]) -> str:
    if len(rows) < FEWEST_PAIRS:
        return NO_VALUE_WORD
    return _loss(verdict, rows[0], fmean(row.bounds.mean for row in rows))


def _pair_rows(
    verdicts: Sequence[Verdict], tables: Sequence[Mapping[Pair, Row]]
) -> Iterator[list[str]]:
    """A row for each pair of any run, most precise first."""
    references = [each.reference for each in verdicts if each.reference]
    every = dict.fromkeys([*references, *(pair for table in tables for pair in table)])
    for pair in most_precise_first(every):
        both = zip(verdicts, tables, strict=True)
        cells = (_cell(verdict, table, pair) for verdict, table in both)
        yield [visible(str(pair)), *cells]


def _cell(verdict: Verdict, table: Mapping[Pair, Row], pair: Pair) -> str:
    """``0.2 % within``; a mark for the reference, a dash without a number."""
    if pair == verdict.reference:
        return REFERENCE_MARK
    row = table.get(pair)
    if row is None:
        return NO_VALUE_WORD
    return f"{_loss(verdict, row, row.bounds.mean)} {row.word}"


def _loss(verdict: Verdict, row: Row, value: float) -> str:
    if not math.isfinite(value):
        return NO_VALUE_WORD
    return verdict.limits.phrase(row.kind, value)
