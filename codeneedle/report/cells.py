"""How one cell of a grid looks: its word, its number, its colour."""

import math

from codeneedle.metrics import Metric
from codeneedle.records import Status
from codeneedle.report.scale import Scale, value_scale

NOT_RUN_WORD = "."
"""Of a pair that was not tried."""

NO_VALUE_WORD = "-"
"""Of a finished cell that has no value of the metric."""

STATUS_WORDS: dict[Status, str] = {
    Status.FINISHED: NO_VALUE_WORD,
    Status.UNSUPPORTED: "unsupp.",
    Status.FALLBACK_CPU: "on-cpu",
    Status.FALLBACK_F16: "as-f16",
    Status.OUT_OF_MEMORY: "oom",
    Status.TIMED_OUT: "t/o",
    Status.CRASHED: "crash",
    Status.MISMATCHED: "mismatch",
    Status.INTERRUPTED: "intr.",
}
"""Short enough for a column; what they stand for is said below the grid."""

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

Even in lightness, and safe for the colour-blind. It ends at the green, 0.78 of
the way: in the yellow that follows, a grid where all is well would shout. Spelled
out, since the live grid should not wait for a plotting library. Nathaniel Smith and
Stefan van der Walt, A Better Default Colormap for Matplotlib, SciPy 2015.
"""

_DARK_TEXT, _LIGHT_TEXT = "#000000", "#ffffff"


def status_word(status: str) -> str:
    """The short word of a status, or of none: ``oom``, ``.``."""
    return STATUS_WORDS[Status(status)] if status else NOT_RUN_WORD


def cell_text(metric: Metric, value: float | Status | None) -> str:
    """
    What stands in a cell.

    Args:
        metric: Tells the decimals.
        value: A number; the status of a cell without one; None if not tried.
    """
    if value is None:
        return NOT_RUN_WORD
    if isinstance(value, Status):
        return STATUS_WORDS[value]
    return number(value, digits=metric.digits)


def number(value: float, *, digits: int, sign: bool = False) -> str:
    """A number with its decimals, never ``-0.00``; the word for none if it is NaN."""
    if math.isnan(value):
        return NO_VALUE_WORD
    return f"{value:{'+' if sign and round(value, digits) else ''}z.{digits}f}"


def cell_style(
    metric: Metric, value: float | Status | None, scale: Scale | None = None
) -> str:
    """
    How rich draws a cell: the lighter the better, or the higher where none is better.

    Both text and ground are set, so it reads the same on dark and light terminals.

    Args:
        metric: Tells which end is good.
        value: As in `cell_text`.
        scale: Of the grid; the metric's natural one if None, which fits only
            where that has two ends.
    """
    if value is None:
        return "dim"
    if isinstance(value, Status) or math.isnan(value):
        return "italic"
    place = (scale or value_scale(metric, [value])).place(value)
    red, green, blue = colour(1 - place if metric.better == "lower" else place)
    return f"{text_colour(red, green, blue)} on #{red:02x}{green:02x}{blue:02x}"


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
    Black or white, whichever stands out more on a ground of 0 to 255 a channel.

    Source:
        Relative luminance and contrast ratio of WCAG 2.1; at a luminance of
        0.179 both contrast alike.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4  # noqa: PLR2004
        for c in (red / 255, green / 255, blue / 255)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _DARK_TEXT if luminance > 0.179 else _LIGHT_TEXT  # noqa: PLR2004
