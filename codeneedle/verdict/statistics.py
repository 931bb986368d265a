"""
Formulas of a verdict: intervals of mean losses and lost shares, the error allowed for
each, within or beyond a limit, units that would decide, McNemar's test, and whether
reading and forcing disagree.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from codeneedle.cache_types import Pair

ALPHA = 0.05
"""
Most sweeps, as a share, in which any pair is wrongly called within the limit; and, for
each metric, in which any is wrongly called beyond it.

A pair is within by all metrics only, so that the first error does not grow with their
number; it is beyond by any of them. `scripts/truth.py` measures both for one metric.
"""

MOST_UNITS = 10_000
"""Largest number of units that `units_needed` returns."""


class Decision(StrEnum):
    """Position of an interval relative to its limit."""

    WITHIN = "within"
    BEYOND = "beyond"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """An interval."""

    mean: float  # the estimate
    low: float  # lower end; minus infinity if nothing is known
    high: float  # upper end; infinity if nothing is known
    units: int  # number of units behind it

    def clip(self, lowest: float, highest: float) -> "Bounds":
        """The interval with its finite ends clipped to *lowest* and *highest*."""
        low = self.low if math.isinf(self.low) else max(self.low, lowest)
        high = self.high if math.isinf(self.high) else min(self.high, highest)
        return replace(self, low=low, high=high)

    def widen(self, by: float) -> "Bounds":
        """The interval, wider by so much at either end."""
        return replace(self, low=self.low - by, high=self.high + by)

    def is_gain_above(self, by: float) -> bool:
        """Whether all of the interval is a gain of more than *by*."""
        return self.high < -by

    def decision(self, limit: float) -> Decision:
        """
        Position of the interval relative to *limit*.

        Open where it gains more than that: a coarser cache cannot, a broken reference
        can.
        """
        if self.is_gain_above(limit):
            return Decision.OPEN
        if self.high <= limit:
            return Decision.WITHIN
        return Decision.BEYOND if self.low > limit else Decision.OPEN


def error_share(look: int, pairs: int) -> float:
    """
    Chance of an error on one side of one interval.

    Args:
        look: How often the pair got further units; 0 for the first sweep. The shares of
            all looks add up to `ALPHA`.
        pairs: Pairs that are compared with the reference, at least 1 (Bonferroni);
            where they share unevenly, as many as would get this share evenly.
    """
    return ALPHA * 0.5 ** (look + 1) / max(pairs, 1)


def mean_loss_interval(losses: Sequence[float], share: float) -> Bounds:
    """
    The mean loss over units, with its confidence interval.

    Args:
        losses: One per unit, at least one; negative for a gain.
        share: Chance of an error on each side, from `error_share`.

    Returns:
        Infinite ends for a single unit; the mean itself if all losses are equal.

    Source:
        Student's t with the correction for skewness of Johnson, Modified t Tests and
        Confidence Intervals for Asymmetrical Populations, JASA 73, 1978, which only
        ever widens the interval here.
    """
    values = np.asarray(losses, dtype=float)
    count, mean = len(values), float(values.mean())
    if count < 2:  # noqa: PLR2004 - one value has no spread
        return Bounds(mean=mean, low=-math.inf, high=math.inf, units=count)
    below, above = _half_widths(values, count, share)
    return Bounds(mean=mean, low=mean - below, high=mean + above, units=count)


def lost_share_interval(lost: int, units: int, share: float) -> Bounds:
    """
    The share of lost units, from 0 to 1, with Clopper and Pearson's interval.

    Args:
        lost: Number of lost units.
        units: Number of all units; without any, the interval is from 0 to 1.
        share: Chance of an error on each side.
    """
    from scipy.special import betaincinv

    low = float(betaincinv(lost, units - lost + 1, share)) if lost else 0.0
    high = float(betaincinv(lost + 1, units - lost, 1 - share)) if lost < units else 1.0
    return Bounds(mean=lost / units if units else 0.0, low=low, high=high, units=units)


def paired_p_value(lost: int, won: int) -> float:
    """
    Chance of so uneven numbers if a sample that differs is as often lost as won.

    Without a sample that differs it is 1.

    Source:
        McNemar's exact test with mid-p, two-sided: Fagerland, Lydersen and Laake, The
        McNemar test for binary matched-pairs data: mid-p and asymptotic are better than
        exact conditional, BMC Medical Research Methodology 13:91, 2013.
    """
    from scipy.special import betainc

    fewer, differ = min(lost, won), lost + won
    if lost == won:
        return 1.0
    # Chances of at most so many, and of fewer: together twice the mid-p of one side.
    at_most = betainc(differ - fewer, fewer + 1, 0.5)
    below = betainc(differ - fewer + 1, fewer, 0.5) if fewer else 0.0
    return float(at_most + below)


def answers_needed(lost: int, units: int, limit: float, *, share: float) -> int | None:
    """
    Number of units whose `lost_share_interval` would lie on one side of *limit*.

    Assumes that the same share of further units is lost. None if more than `MOST_UNITS`
    are needed.

    Args:
        lost: Number of lost units so far.
        units: Number of all units so far, at least 1.
        limit: Largest share of lost units that is accepted.
        share: See `lost_share_interval`.
    """
    from scipy.special import betaincinv

    counts = np.arange(units + 1, MOST_UNITS + 1)
    of_each = np.rint(counts * lost / units)
    # All lost: below 1, as no share is larger.
    high = betaincinv(of_each + 1, np.maximum(counts - of_each, 0.5), 1 - share)
    low = betaincinv(np.maximum(of_each, 0.5), counts - of_each + 1, share)
    is_decided = ((of_each < counts) & (high <= limit)) | (
        (of_each > 0) & (low > limit)
    )
    first = int(is_decided.argmax())
    return int(counts[first]) if is_decided[first] else None


def units_needed(
    losses: Sequence[float], limit: float, *, look: int, pairs: int
) -> int | None:
    """
    Total number of units after which the interval would lie on one side of *limit*.

    Assumes that further units have the same mean, spread and skewness. None if more
    than `MOST_UNITS` are needed, or if there are fewer than two units.

    Args:
        losses: One per unit so far.
        limit: Largest loss that is accepted.
        look: Look of the next interval; see `error_share`.
        pairs: See `error_share`.
    """
    values = np.asarray(losses, dtype=float)
    if len(values) < 2:  # noqa: PLR2004 - no spread
        return None
    gap, share = limit - float(values.mean()), error_share(look, pairs)

    def decides(count: int) -> bool:
        below, above = _half_widths(values, count, share)
        return above <= gap if gap > 0 else below < -gap

    # The width falls with the number of units.
    counts = range(len(values) + 1, MOST_UNITS + 1)
    at = bisect.bisect_left(counts, x=True, key=decides)
    return counts[at] if at < len(counts) else None


def disagreeing_pairs(
    read: Mapping[Pair, Sequence[float]], written: Mapping[Pair, Sequence[float]]
) -> dict[Pair, tuple[float, float]]:
    """
    The pairs on which kernels for prompts disagree with those for single tokens.

    Right tokens can be read in batches or written one by one, and an accelerator may
    compute the two differently. They disagree where one differs from the reference by
    its interval, and that of the other does not reach half of the difference; the
    intervals hold at once for all pairs, in 1 - `ALPHA` of runs.

    Args:
        read: By pair, differences from the reference per unit, by reading.
        written: By pair, such differences by writing; units may be others.

    Returns:
        By pair, both mean differences.
    """
    share = ALPHA / (4 * max(len(read), len(written), 1))
    found = {
        pair: (
            mean_loss_interval(read[pair], share),
            mean_loss_interval(written[pair], share),
        )
        for pair in read
        if pair in written
    }
    return {
        pair: (one.mean, other.mean)
        for pair, (one, other) in found.items()
        if _is_twice_as_far_from_zero(one, other)
        or _is_twice_as_far_from_zero(other, one)
    }


def _is_twice_as_far_from_zero(one: Bounds, other: Bounds) -> bool:
    """Whether *one* is no chance, and *other* by its interval less than half of it."""
    if one.low > 0:
        return other.high < one.mean / 2
    return one.high < 0 and other.low > one.mean / 2


def _half_widths(
    values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    count: int,
    share: float,
) -> tuple[float, float]:
    """Widths of the interval below and above the mean, for *count* such *values*."""
    from scipy.special import stdtrit

    deviations = values - values.mean()
    largest, skewness = float(np.abs(deviations).max()), 0.0
    if largest:
        # Not scipy.stats, which takes long to import. Scaled, as tiny cubes underflow.
        scaled = deviations / largest
        skewness = float((scaled**3).mean()) / float((scaled**2).mean()) ** 1.5
    error = float(deviations.std(ddof=1)) / math.sqrt(count)
    t = float(stdtrit(count - 1, 1 - share))
    lean = skewness * (1 + 2 * t**2) / (6 * math.sqrt(count))
    return error * (t + max(0.0, -lean)), error * (t + max(0.0, lean))
