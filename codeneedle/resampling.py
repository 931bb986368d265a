"""Bootstrap intervals of differences, for one cell or for thousands at once."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

SEED = 42
"""Of all chance in reports: the same records give the same report."""

RESAMPLES = 9_999
"""Bootstrap samples behind an interval."""

CONFIDENCE = 0.95
"""Share of bootstrap samples inside an interval."""

_BLOCK = 128
"""Cells that are screened at once: 10 MB of samples."""

_EXACT_BELOW = 2.0**30
"""Whole numbers below this add up without rounding, a few million of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    A cell's value less the reference's.

    Attributes:
        mean: The difference, in the metric's unit.
        low: Lower end of the `CONFIDENCE` interval; NaN where single
            observations give none.
        high: Its upper end. An interval of no width means that no round
            differed, not that none ever would.
        is_paired: Whether rounds were compared needle by needle.
    """

    mean: float
    low: float
    high: float
    is_paired: bool

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def paired_difference(gaps: Numbers, *, is_sum: bool) -> Difference:
    """The `Difference` of two cells by their *gaps*, one per needle."""
    resampled = _total(gaps[_draws(len(gaps))], is_sum=is_sum)
    return _judged(gap_value(gaps, is_sum=is_sum), resampled, is_paired=True)


def gap_value(gaps: Numbers, *, is_sum: bool) -> float:
    """The mean of *gaps*, or their sum."""
    return float(gaps.sum() if is_sum else gaps.mean())


def are_told(gaps: Sequence[Numbers], *, is_sum: bool) -> list[bool]:
    """
    Whether the `paired_difference` of each of *gaps* is told: just the same verdicts.

    A difference is told if all but a few samples lie to one side of zero. Their
    number is counted in products of matrices, for many cells at once; where rounding
    might change it, the cell is resampled by itself.

    Args:
        gaps: Of each cell, one per needle; all of the same length.
        is_sum: Whether sums are compared, not means.
    """
    verdicts: list[bool] = []
    for start in range(0, len(gaps), _BLOCK):
        block = gaps[start : start + _BLOCK]
        found = _screened(np.array(block))
        verdicts += [
            paired_difference(each, is_sum=is_sum).is_told
            if verdict is None
            else verdict
            for each, verdict in zip(block, found, strict=True)
        ]
    return verdicts


def _screened(gaps: Numbers) -> list[bool | None]:
    """For each row of *gaps* whether it is told; None where that is too close."""
    sums = gaps @ _weights(gaps.shape[1])
    # Sums of whole numbers are exact; others are off by some units of the last place.
    largest = np.abs(gaps).max(axis=1)
    is_exact = (gaps == np.rint(gaps)).all(axis=1) & (largest < _EXACT_BELOW)
    slack = np.where(is_exact, 0.0, 1e-9 * largest)[:, np.newaxis]
    first = math.floor((1 - CONFIDENCE) / 2 * (RESAMPLES - 1))
    return [
        _verdict(*counts, last=first + 1)
        for counts in zip(
            np.count_nonzero(sums <= slack, axis=1).tolist(),
            np.count_nonzero(sums >= -slack, axis=1).tolist(),
            np.count_nonzero(sums <= -slack, axis=1).tolist(),
            np.count_nonzero(sums >= slack, axis=1).tolist(),
            strict=True,
        )
    ]


def _verdict(
    most_below: int, most_above: int, fewest_below: int, fewest_above: int, *, last: int
) -> bool | None:
    """
    What numbers of samples tell that are not above zero, or not below it.

    The interval ends between two samples: the one at *last* from either end, and the
    one before it. What both say, it says.
    """
    if most_below < last or most_above < last:
        return True
    return False if fewest_below > last and fewest_above > last else None


@functools.lru_cache(maxsize=4)
def _draws(count: int) -> npt.NDArray[np.int64]:
    """Which of *count* values each sample with replacement holds."""
    chance = np.random.default_rng(SEED)
    return chance.integers(count, size=(RESAMPLES, count))


@functools.lru_cache(maxsize=4)
def _weights(count: int) -> Numbers:
    """How often each of *count* values is in each sample, a column per sample."""
    draws = _draws(count) + count * np.arange(RESAMPLES)[:, np.newaxis]
    times = np.bincount(draws.ravel(), minlength=RESAMPLES * count)
    return times.reshape(RESAMPLES, count).T.astype(np.float64)


def difference_apart(ours: Numbers, theirs: Numbers, *, is_sum: bool) -> Difference:
    """The `Difference` of two cells whose values belong to no common needles."""
    mean = gap_value(ours, is_sum=is_sum) - gap_value(theirs, is_sum=is_sum)
    if min(len(ours), len(theirs)) < 2:  # noqa: PLR2004 - one value has no spread
        return Difference(mean=mean, low=math.nan, high=math.nan, is_paired=False)
    chance = np.random.default_rng(SEED)
    resampled = _resampled(ours, chance, is_sum=is_sum) - _resampled(
        theirs, chance, is_sum=is_sum
    )
    return _judged(mean, resampled, is_paired=False)


def _resampled(
    values: Numbers, chance: np.random.Generator, *, is_sum: bool
) -> Numbers:
    """The mean or sum of each of `RESAMPLES` samples with replacement."""
    drawn = values[chance.integers(len(values), size=(RESAMPLES, len(values)))]
    return _total(drawn, is_sum=is_sum)


def _total(drawn: Numbers, *, is_sum: bool) -> Numbers:
    totals: Numbers = drawn.sum(axis=1) if is_sum else drawn.mean(axis=1)
    return totals


def _judged(mean: float, resampled: Numbers, *, is_paired: bool) -> Difference:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Difference(mean=mean, low=float(low), high=float(high), is_paired=is_paired)
