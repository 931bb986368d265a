"""Scales: between which ends a metric's values are drawn, so that noise stays flat."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from codeneedle.metrics import Metric

NARROWEST = 0.05
"""
Of the natural range, or of the values where there is none: a scale is at least
this wide, so that differences nobody would care for do not become a rainbow.
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
    The natural ends of *metric*; where there are none, those of the *values*.

    Args:
        metric: Whose values they are.
        values: Of cells; NaN are gaps.
        rounds: Observations of a cell: the bounds are those of one observation,
            so that a sum has so many times as much room.
        zoom: Whether the values' own ends count, whatever the natural ones are.
    """
    seen = [value for value in values if math.isfinite(value)]
    low, high = (None, None) if zoom else natural_bounds(metric, rounds=rounds)
    if low is not None and high is not None:
        return Scale(low, high)
    low = min(seen, default=0.0) if low is None else low
    high = max(seen, default=1.0) if high is None else high
    return _wide_enough(low, high, metric=metric)


def difference_scale(
    metric: Metric, gaps: Iterable[float], *, reference: float, rounds: int = 1
) -> Scale:
    """
    As far to either side of zero as the largest of the *gaps*.

    Args:
        metric: Whose values are compared.
        gaps: Values less the reference's; NaN are missing.
        reference: The reference's value.
        rounds: As in `value_scale`.
    """
    largest = max((abs(gap) for gap in gaps if math.isfinite(gap)), default=0.0)
    low, high = natural_bounds(metric, rounds=rounds)
    whole = abs(reference) if low is None or high is None else high - low
    half = max(largest, NARROWEST * whole) or 1.0
    return Scale(-half, half)


def natural_bounds(metric: Metric, *, rounds: int) -> tuple[float | None, float | None]:
    """The ends of a cell's value; a sum has *rounds* times as much room."""
    times = rounds if metric.is_sum else 1
    low, high = metric.bounds
    return (
        None if low is None else low * times,
        None if high is None else high * times,
    )


def _wide_enough(low: float, high: float, *, metric: Metric) -> Scale:
    missing = NARROWEST * max(abs(low), abs(high)) - (high - low)
    if missing > 0 and metric.bounds[0] == low:
        return Scale(low, high + missing)
    if missing > 0:
        return Scale(low - missing / 2, high + missing / 2)
    return Scale(low, high if high > low else low + 1)
