"""Scales and colours of grids, the same on a terminal, in pictures and on the page."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codeneedle.probes.metrics import Metric
from codeneedle.report.display import display_of

LEAST_SHARE = 0.05
"""
Least width of a scale, as a share of the values, of metrics that name no least span:
negligible differences must not span all colours.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """The ends of a colour scale."""

    low: float  # value at its lower end
    high: float  # value at its upper end; larger than *low*
    is_lighter_low: bool = False  # whether low values are better, and lighter

    def place(self, value: float) -> float:
        """Where *value* lies, from 0 (low) to 1 (high)."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def colour(self, value: float) -> "Rgb":
        """The colour of *value*: lighter is better, or higher where neither is."""
        place = self.place(value)
        return viridis_colour(1 - place if self.is_lighter_low else place)


@dataclass(frozen=True, slots=True)
class LossScale:
    """
    The scale of a loss: even from 0 to the limit, and in equal ratios beyond it.

    A place of `TURN` or more is beyond the limit.
    """

    limit: float
    high: float  # value at its upper end; larger than *limit*

    def place(self, value: float) -> float:
        """Where *value* lies, from 0 (no loss) to 1."""
        if value <= self.limit:
            return min(max(value / self.limit, 0.0) * TURN, TURN - 0.001)
        share = math.log(value / self.limit) / math.log(self.high / self.limit)
        return min(TURN + (1 - TURN) * share, 1.0)

    def colour(self, value: float) -> "Rgb":
        """The colour of *value*, which turns at the limit."""
        return loss_colour(self.place(value))


TURN = 0.4
"""Place of the limit on the scale of a loss."""

LEAST_RATIO = 4.0
"""Least ratio of the upper end of the scale of a loss to the limit."""


def loss_scale(limit: float, losses: Iterable[float]) -> LossScale:
    """
    From 0 to the largest of *losses*, `LEAST_RATIO` limits at least.

    NaN are gaps.
    """
    seen = [loss for loss in losses if math.isfinite(loss)]
    return LossScale(limit, max([LEAST_RATIO * limit, *seen]))


def value_scale(metric: Metric, values: Iterable[float], *, rounds: int = 1) -> Scale:
    """
    From the least to the largest of *values*, and at least the metric's least span.

    Args:
        metric: The metric of *values*.
        values: Of cells; NaN are gaps. Without any, the ends are the metric's bounds.
        rounds: Observations of a cell. Bounds are those of one observation; those of
            a sum are multiplied by this.
    """
    seen = [value for value in values if math.isfinite(value)]
    natural = natural_bounds(metric, rounds=rounds)
    low, high = (bound or 0.0 for bound in natural)
    if seen:
        low, high = _widen_to_least_span(
            min(seen), max(seen), metric=metric, natural=natural
        )
    elif high <= low:
        high = low + 1.0
    return Scale(low, high, is_lighter_low=metric.better == "lower")


def difference_scale(
    metric: Metric, differences: Iterable[float], *, reference: float, rounds: int = 1
) -> Scale:
    """
    From minus to plus the largest absolute value of *differences*.

    Args:
        metric: The metric that is compared.
        differences: Values less the reference's; NaN are missing.
        reference: The reference's value.
        rounds: See `value_scale`.
    """
    finite = (
        abs(difference) for difference in differences if math.isfinite(difference)
    )
    largest = max(finite, default=0.0)
    low, high = natural_bounds(metric, rounds=rounds)
    span = display_of(metric).least_span
    whole = abs(reference) if low is None or high is None else high - low
    half = max(largest, span / 2 or LEAST_SHARE * whole) or 1.0
    return Scale(-half, half)


def natural_bounds(metric: Metric, *, rounds: int) -> tuple[float | None, float | None]:
    """The bounds of a cell's value; those of a sum are multiplied by *rounds*."""
    times = rounds if metric.is_sum else 1
    low, high = display_of(metric).bounds
    return (
        None if low is None else low * times,
        None if high is None else high * times,
    )


def _widen_to_least_span(
    low: float,
    high: float,
    *,
    metric: Metric,
    natural: tuple[float | None, float | None],
) -> tuple[float, float]:
    """
    The scale from *low* to *high*, at least as wide as the metric's least span.

    It is widened at the end of worse values, so that values that hardly differ are all
    light, and stays between the *natural* bounds.
    """
    share = LEAST_SHARE * max(abs(low), abs(high))
    missing = max((display_of(metric).least_span or share or 1.0) - (high - low), 0.0)
    least, most = natural
    below = {"higher": missing, "lower": 0.0, "neither": missing / 2}[metric.better]
    low, high = low - below, high + (missing - below)
    if most is not None and high > most:
        return low - (high - most), most
    if least is not None and low < least:
        return least, high + (least - low)
    return low, high


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

WITHIN_RAMP: tuple[tuple[int, int, int], ...] = ((237, 245, 252), (158, 202, 225))
"""Blue, from no loss to the limit, after the lighter half of ColorBrewer's Blues."""

BEYOND_RAMP: tuple[tuple[int, int, int], ...] = (
    (253, 174, 97),
    (241, 131, 55),
    (217, 95, 14),
    (166, 59, 8),
    (102, 37, 6),
)
"""
Orange to brown, from the limit on, after ColorBrewer's YlOrBr.

Blue and orange differ for all of the colour-blind, and both ramps grow darker with the
loss, so that the order is seen in grey, too. Cynthia Brewer, colorbrewer2.org.
"""

Rgb = tuple[int, int, int]

_DARK_TEXT, _LIGHT_TEXT = "#000000", "#ffffff"


def cell_style(value: float, scale: Scale | LossScale) -> str:
    """
    The style of a *value*, for rich; NaN is a gap.

    Sets text and background, so that it looks the same on dark and light terminals.
    """
    if math.isnan(value):
        return "italic"
    ground = scale.colour(value)
    return f"{readable_text_colour(*ground)} on {hex_of(ground)}"


def loss_colour(place: float) -> Rgb:
    """The colour at *place*, 0 to 1, of the scale of a loss; it turns at the limit."""
    if place < TURN:
        return _mixed_colour(WITHIN_RAMP, place / TURN)
    return _mixed_colour(BEYOND_RAMP, (place - TURN) / (1 - TURN))


def hex_of(rgb: Rgb) -> str:
    """``#440154``."""
    return "#{:02x}{:02x}{:02x}".format(*rgb)


def viridis_colour(place: float) -> Rgb:
    """The colour at *place* of `RAMP`, from 0 (dark) to 1 (light), in sRGB."""
    return _mixed_colour(RAMP, place)


def _mixed_colour(ramp: Sequence[Rgb], place: float) -> Rgb:
    """The colour at *place*, 0 to 1, between the steps of *ramp*."""
    at = place * (len(ramp) - 1)
    below = min(int(at), len(ramp) - 2)
    red, green, blue = (
        round(low + (at - below) * (high - low))
        for low, high in zip(ramp[below], ramp[below + 1], strict=True)
    )
    return red, green, blue


def readable_text_colour(red: float, green: float, blue: float) -> str:
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
