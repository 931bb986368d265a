"""Which metrics tell the pairs of a grid from the reference, and by how much."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codeneedle import resampling, stats
from codeneedle.grid import Pair
from codeneedle.metrics import Metric
from codeneedle.records import CellRecord
from codeneedle.report.pricetable import Column, PriceTable
from codeneedle.scored_rounds import Reading

NORMAL_95 = 1.96
"""Standard errors to either side that hold 95 % of a normal distribution."""

FEWEST = 2
"""Observations that have a spread."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """
    One pair against the reference.

    Attributes:
        pair: The one that is judged.
        difference: Its value less the reference's.
        noise: How large a difference would be noise; NaN if unknown, or if it is
            still to be drawn from the gaps.
        is_told: Whether it is larger than that.
        gaps: What each needle has more than with the reference, where both have all.
    """

    pair: Pair
    difference: float
    noise: float
    is_told: bool
    gaps: resampling.Numbers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """
    How well one metric separates the pairs.

    Attributes:
        metric: Which one.
        compared: Pairs with a value, the reference not counted.
        told: How many of these differ from the reference beyond noise; None where
            nothing says how large the noise is.
        pair: The one that differs most.
        difference: By how much, in the metric's unit.
        noise: How large a difference of this pair would still be noise: half of
            an interval, or the noise floor; NaN if unknown.
    """

    metric: Metric
    compared: int
    told: int | None
    pair: Pair
    difference: float
    noise: float

    @property
    def times_noise(self) -> float:
        """The difference in units of the noise; infinite where there was none."""
        if self.noise:
            return abs(self.difference) / self.noise
        return math.inf if self.difference else 0.0


def separations(table: PriceTable, reading: Reading) -> Iterator[Separation]:
    """
    What each shown metric of quality and of speed tells of the pairs.

    Pairs are compared with the column's reference: by the noise floor where the
    metric has one, by their observations where there are several, by standard errors
    where these are stored. About one pair in twenty is told apart by chance alone.
    """
    for column in table.shown:
        metric = column.metric
        if metric.better == "neither" or metric.group == "memory":
            continue
        judged = _resolved(list(_judged(table, column, reading)), metric)
        if judged:
            yield _separation(metric, judged)


def _separation(metric: Metric, judged: list[_Judged]) -> Separation:
    most = max(judged, key=lambda each: abs(each.difference))
    is_known = any(e.gaps is not None or not math.isnan(e.noise) for e in judged)
    return Separation(
        metric=metric,
        compared=len(judged),
        told=sum(each.is_told for each in judged) if is_known else None,
        pair=most.pair,
        difference=most.difference,
        noise=_noise(most, metric),
    )


def _resolved(judged: list[_Judged], metric: Metric) -> list[_Judged]:
    """*judged*, with the verdicts of those that have gaps."""
    gaps = [each.gaps for each in judged if each.gaps is not None]
    told = iter(resampling.are_told(gaps, is_sum=metric.is_sum))
    return [
        each if each.gaps is None else replace(each, is_told=next(told))
        for each in judged
    ]


def _noise(judged: _Judged, metric: Metric) -> float:
    if judged.gaps is None:
        return judged.noise
    found = resampling.paired_difference(judged.gaps, is_sum=metric.is_sum)
    return (found.high - found.low) / 2


def _judged(table: PriceTable, column: Column, reading: Reading) -> Iterator[_Judged]:
    name = column.metric.name
    finished = {each.pair: each for each in column.run.records if each.is_finished}
    if column.against not in finished or math.isnan(column.reference):
        return
    reference = finished[column.against]
    for row in table.rows:
        record = finished.get(row.pair)
        if record is None or record is reference:
            continue
        if math.isnan(row.entries[name].value):
            continue
        yield _compared(column, record, reference, row.entries[name].value, reading)


def _compared(
    column: Column,
    record: CellRecord,
    reference: CellRecord,
    value: float,
    reading: Reading,
) -> _Judged:
    metric, setup = column.metric, column.run.setup
    gap = value - column.reference
    error = _error(column, record, reference, reading)
    if metric.floor:
        least = max(abs(column.reference), 0.0 if math.isnan(error) else error)
        return _Judged(record.pair, gap, least, gap > least)
    ours, theirs = (metric.values(each, setup, reading) for each in (record, reference))
    if min(len(ours), len(theirs)) < FEWEST:
        return _Judged(record.pair, gap, error, abs(gap) > error)
    gaps = stats.paired_gaps(ours, theirs, column.run)
    if gaps is not None:
        mean = resampling.gap_value(gaps, is_sum=metric.is_sum)
        return _Judged(record.pair, mean, math.nan, is_told=False, gaps=gaps)
    noise = half_interval(ours, theirs)
    return _Judged(record.pair, gap, noise, abs(gap) > noise)


def half_interval(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """
    Half of the 95 % interval of the difference of two means.

    Repetitions of a speed are few, and a bootstrap of five is far too sure.

    Args:
        ours: Two observations or more.
        theirs: Likewise, not paired with them.

    Source:
        Welch, The generalization of Student's problem when several different
        population variances are involved, 1947. Quantile of Student's t by its
        expansion at the normal one: Abramowitz & Stegun, 26.7.5; 0.3 % too low
        with 8 degrees of freedom, 10 % with 2.
    """
    parts = [statistics.variance(each) / len(each) for each in (ours, theirs)]
    whole = math.fsum(parts)
    if not whole:
        return 0.0
    # Shares of the whole, because squares of tiny variances would be nothing.
    shares = (
        (part / whole) ** 2 / (len(each) - 1)
        for part, each in zip(parts, (ours, theirs), strict=True)
    )
    freedom = 1 / math.fsum(shares)
    z = NORMAL_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return (z + first / freedom + second / freedom**2) * math.sqrt(whole)


def _error(
    column: Column, record: CellRecord, reference: CellRecord, reading: Reading
) -> float:
    """
    Half of the 95 % interval of the difference; NaN where errors are not stored.

    As if the two were independent: of the same text they are not, and differ less
    by chance than this says.
    """
    if column.metric.error is None:
        return math.nan
    errors = [
        column.metric.error(each, column.run.setup, reading)
        for each in (record, reference)
    ]
    known = [error for error in errors if error is not None]
    return NORMAL_95 * math.hypot(*known) if len(known) == len(errors) else math.nan
