"""Scales and colours of grids, the same on a terminal, in pictures and on the page."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from codeneedle.probes.metrics import Metric

LEAST_SHARE = 0.05
"""
Least width of a scale, as a share of the values, of metrics that name no least span:
negligible differences must not span all colours.
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
    The natural bounds of *metric*; where there are none, the ends of the *values*.

    Args:
        metric: The metric of *values*.
        values: Of cells; NaN are gaps.
        rounds: Observations of a cell. Bounds are those of one observation; those of
            a sum are multiplied by this.
        zoom: Whether to use the ends of the values despite natural bounds.
    """
    seen = [value for value in values if math.isfinite(value)]
    low, high = (None, None) if zoom else natural_bounds(metric, rounds=rounds)
    if low is not None and high is not None:
        return Scale(low, high)
    low = min(seen, default=0.0) if low is None else low
    high = max(seen, default=1.0) if high is None else high
    return _wide_enough(low, high, metric=metric)


def difference_scale(
    metric: Metric, differences: Iterable[float], *, reference: float, rounds: int = 1
) -> Scale:
    """
    From minus to plus the largest absolute value of *differences*.

    Args:
        metric: The metric that is compared.
        differences: Values less the reference's; NaN are missing.
        reference: The reference's value.
        rounds: As in `value_scale`.
    """
    finite = (abs(each) for each in differences if math.isfinite(each))
    largest = max(finite, default=0.0)
    low, high = natural_bounds(metric, rounds=rounds)
    whole = abs(reference) if low is None or high is None else high - low
    half = max(largest, metric.least_span / 2 or LEAST_SHARE * whole) or 1.0
    return Scale(-half, half)


def natural_bounds(metric: Metric, *, rounds: int) -> tuple[float | None, float | None]:
    """The bounds of a cell's value; those of a sum are multiplied by *rounds*."""
    times = rounds if metric.is_sum else 1
    low, high = metric.bounds
    return (
        None if low is None else low * times,
        None if high is None else high * times,
    )


def _wide_enough(low: float, high: float, *, metric: Metric) -> Scale:
    """From *low* to *high*, wider where that is too narrow; not beyond a bound."""
    share = LEAST_SHARE * max(abs(low), abs(high))
    missing = max((metric.least_span or share or 1.0) - (high - low), 0.0)
    if metric.bounds[1] == high:
        return Scale(low - missing, high)
    if metric.bounds[0] == low:
        return Scale(low, high + missing)
    return Scale(low - missing / 2, high + missing / 2)


RAMP: tuple[tuple[int, int, int], ...] = (
    (68, 1, 84),
    (72, 35, 116),
    (66, 65, 134),
    (54, 93, 141),
    (43, 117, 142),
    (34, 141, 141),
    (32, 164, 134),
    (59, 187, 117),
    (110, 206, 88),
)
"""
Nine even steps of the colour map viridis, dark to light, in sRGB.

Even in lightness, and safe for the colour-blind. It ends at green, 0.78 of the way,
because a grid of good values would be bright yellow otherwise. Listed here so that the
live grid does not import a plotting library. Nathaniel Smith and Stefan van der Walt,
A Better Default Colormap for Matplotlib, SciPy 2015.
"""

_DARK_TEXT, _LIGHT_TEXT = "#000000", "#ffffff"


def cell_style(metric: Metric, value: float, scale: Scale | None = None) -> str:
    """
    The style of a cell, for rich: lighter is better, or higher where neither is.

    Sets text and background, so that it looks the same on dark and light terminals.

    Args:
        metric: Has the better end.
        value: The value; NaN for a gap.
        scale: Of the grid; the metric's natural one if None, which needs two bounds.
    """
    if math.isnan(value):
        return "italic"
    place = (scale or value_scale(metric, [value])).place(value)
    red, green, blue = colour(1 - place if metric.better == "lower" else place)
    return f"{text_colour(red, green, blue)} on {hex_of((red, green, blue))}"


def hex_of(rgb: tuple[int, int, int]) -> str:
    """``#440154``."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def colour(place: float) -> tuple[int, int, int]:
    """The colour at *place* of `RAMP`, from 0 (dark) to 1 (light), in sRGB."""
    at = place * (len(RAMP) - 1)
    below = min(int(at), len(RAMP) - 2)
    red, green, blue = (
        round(low + (at - below) * (high - low))
        for low, high in zip(RAMP[below], RAMP[below + 1], strict=True)
    )
    return red, green, blue


def text_colour(red: float, green: float, blue: float) -> str:
    """
    Black or white, whichever has more contrast to a background of 0 to 255 a channel.

    Source:
        Relative luminance and contrast ratio of WCAG 2.1; at a luminance of
        0.179 both contrasts are equal.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4  # noqa: PLR2004
        for c in (red / 255, green / 255, blue / 255)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _DARK_TEXT if luminance > 0.179 else _LIGHT_TEXT  # noqa: PLR2004
