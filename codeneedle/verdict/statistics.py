"""Intervals for mean losses and for shares of lost answers, over units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.special import betaincinv, stdtrit

ALPHA = 0.05
"""
Share of sweeps in which some pair may be called within although it is beyond.

The same share holds for the reverse error, per metric.
"""

MOST_UNITS = 10_000
"""Units up to which `units_needed` looks for an answer."""


class Word(StrEnum):
    """Where an interval lies beside its limit."""

    WITHIN = "within"
    BEYOND = "beyond"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """
    An interval.

    Attributes:
        mean: Its estimate.
        low: Its lower end; minus infinity where nothing is known.
        high: Its upper end; infinity where nothing is known.
        units: How many units it rests on.
    """

    mean: float
    low: float
    high: float
    units: int

    def clipped(self, lowest: float, highest: float) -> "Bounds":
        """The same, with ends from *lowest* to *highest*; infinite ones stay."""
        low = self.low if math.isinf(self.low) else max(self.low, lowest)
        high = self.high if math.isinf(self.high) else min(self.high, highest)
        return replace(self, low=low, high=high)

    def word(self, limit: float) -> Word:
        """Where the interval lies beside *limit*."""
        if self.high <= limit:
            return Word.WITHIN
        return Word.BEYOND if self.low > limit else Word.OPEN


def error_share(look: int, pairs: int) -> float:
    """
    Chance of an error on one side of one interval.

    Args:
        look: How often the pair was given further units; 0 for the first sweep.
            The shares of all looks add up to `ALPHA`.
        pairs: Pairs that are compared with the reference, at least 1 (Bonferroni).
    """
    return ALPHA * 0.5 ** (look + 1) / max(pairs, 1)


def interval(losses: Sequence[float], share: float) -> Bounds:
    """
    The mean loss over units, with an interval for units like these.

    Args:
        losses: One for each unit, at least one; negative where a unit gains.
        share: Chance of an error on each side, from `error_share`.

    Returns:
        Infinite ends for a single unit, the mean itself where all losses are equal.

    Source:
        Student's t with the correction for skewness of Johnson, Modified t Tests and
        Confidence Intervals for Asymmetrical Populations, JASA 73, 1978, which only
        ever widens the interval here.
    """
    values = np.asarray(losses, dtype=float)
    count, mean = len(values), float(values.mean())
    if count < 2:  # noqa: PLR2004 - one value has no spread
        return Bounds(mean=mean, low=-math.inf, high=math.inf, units=count)
    below, above = _half_widths(_spread(values), count, share)
    return Bounds(mean=mean, low=mean - below, high=mean + above, units=count)


def lost_share(lost: int, units: int, share: float) -> Bounds:
    """
    The share of units that are lost, from 0 to 1, with Clopper and Pearson's interval.

    Args:
        lost: Lost units.
        units: All units; the interval is from 0 to 1 without any.
        share: Chance of an error on each side.
    """
    low = float(betaincinv(lost, units - lost + 1, share)) if lost else 0.0
    high = float(betaincinv(lost + 1, units - lost, 1 - share)) if lost < units else 1.0
    return Bounds(mean=lost / units if units else 0.0, low=low, high=high, units=units)


def units_needed(
    losses: Sequence[float], limit: float, *, look: int, pairs: int
) -> int | None:
    """
    Units altogether after which the interval would lie on one side of *limit*.

    If further units have the mean, the spread and the skewness of those that there
    are. None if even `MOST_UNITS` would not do, and of fewer than two units.

    Args:
        losses: One for each unit so far.
        limit: Largest loss that is borne.
        look: Of the next interval.
        pairs: As in `error_share`.
    """
    values = np.asarray(losses, dtype=float)
    if len(values) < 2:  # noqa: PLR2004 - no spread
        return None
    gap, spread = limit - float(values.mean()), _spread(values)
    share = error_share(look, pairs)

    def decides(count: int) -> bool:
        below, above = _half_widths(spread, count, share)
        return above <= gap if gap > 0 else below < -gap

    # The width falls with the number of units: bisection.
    few, many = len(values), MOST_UNITS
    if not decides(many):
        return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if decides(middle) else (middle, many)
    return many


@dataclass(frozen=True, slots=True)
class _Spread:
    """Standard deviation and skewness of losses."""

    sd: float
    skewness: float


def _spread(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> _Spread:
    deviations = values - values.mean()
    sd, largest = float(deviations.std(ddof=1)), float(np.abs(deviations).max())
    if not largest:
        return _Spread(sd=0.0, skewness=0.0)
    # By the largest: cubes of what impossible tokens differ by are 0 by rounding.
    scaled = deviations / largest
    variance = float((scaled**2).mean())
    return _Spread(sd=sd, skewness=float((scaled**3).mean()) / variance**1.5)


def _half_widths(spread: _Spread, count: int, share: float) -> tuple[float, float]:
    """What the interval extends below and above the mean of *count* units."""
    error = spread.sd / math.sqrt(count)
    t = float(stdtrit(count - 1, 1 - share))
    lean = spread.skewness * (1 + 2 * t**2) / (6 * math.sqrt(count))
    return error * (t + max(0.0, -lean)), error * (t + max(0.0, lean))
