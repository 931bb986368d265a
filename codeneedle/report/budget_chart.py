"""The picture of one budget: memory against loss, with a line for each file."""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from codeneedle.report.charts import (
    LIGHT,
    POINTS,
    Theme,
    paint_chosen_ring,
    picture_element,
)
from codeneedle.report.losses import PERCENT, shown_loss_row
from codeneedle.text import escape_invisible
from codeneedle.verdict.judge import Verdict

MARKERS = ("o", "s", "D", "^", "v")
"""Of the lines, the most precise weights first."""


def budget_chart(verdict: Verdict) -> Markup:
    """Memory against loss of all candidates; empty if fewer than two have both."""
    frame = budget_frame(verdict)
    if len(frame) < 2:  # noqa: PLR2004 - nothing to compare
        return Markup()
    most = verdict.limits.max_memory_bytes
    return picture_element(
        lambda axes, theme: paint_budget(axes, frame, most, theme),
        about="Memory of weights and cache against loss, a line for each file",
    )


def budget_frame(verdict: Verdict) -> pd.DataFrame:
    """
    A row for each candidate with a loss and a size; the reference has a loss of 0.

    Columns: ``weights``, ``pair``, ``memory`` (bytes), ``loss``, ``low`` and ``high``
    (of 100), ``is_set``, ``is_reference``.
    """
    return pd.DataFrame(
        [*_frame_rows(verdict)],
        columns=[
            *("weights", "pair", "memory", "loss", "low", "high"),
            *("is_set", "is_reference"),
        ],
    )


def _frame_rows(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """The rows of `budget_frame`, in the order of the results."""
    for result in verdict.results:
        pair, row = result.pair, shown_loss_row(verdict, result)
        is_reference = pair == verdict.reference
        if not pair.weights or result.memory_bytes is None:
            continue
        if row is None and not is_reference:
            continue
        yield {
            "weights": escape_invisible(pair.weights),
            "pair": escape_invisible(str(pair.without_weights)),
            "memory": result.memory_bytes,
            "loss": PERCENT * row.bounds.mean if row else 0.0,
            "low": PERCENT * row.bounds.low if row else 0.0,
            "high": PERCENT * row.bounds.high if row else 0.0,
            "is_set": pair == verdict.chosen,
            "is_reference": is_reference,
        }


def paint_budget(
    axes: Axes, frame: pd.DataFrame, most: int | None, theme: Theme = LIGHT
) -> None:
    """Draw *frame*, and a budget of *most* bytes as an edge, if there is one."""
    unit, bytes_of_unit = _memory_unit(frame["memory"].max())
    frame = frame.assign(memory=frame["memory"] / bytes_of_unit)
    names = list(dict.fromkeys(frame["weights"]))
    colours = (theme.within, theme.beyond, theme.quiet, theme.ink, theme.line)
    styles = cycle(zip(colours, MARKERS, strict=True))
    for name, (colour, marker) in zip(names, styles, strict=False):
        of_file = frame[frame["weights"] == name].sort_values(["memory", "loss"])
        bars = of_file[of_file["high"].map(math.isfinite)]
        axes.vlines(
            bars["memory"], bars["low"], bars["high"], color=theme.line, linewidth=1
        )
        best = of_file[is_least_loss_so_far(of_file)]
        axes.plot(best["memory"], best["loss"], color=colour, linewidth=1.2, zorder=2)
        axes.plot(
            of_file["memory"],
            of_file["loss"],
            marker=marker,
            markersize=6,
            color=colour,
            linestyle="none",
            label=name,
            zorder=3,
        )
    _paint_budget_edge(axes, None if most is None else most / bytes_of_unit, theme)
    paint_chosen_ring(axes, frame, theme)
    axes.axhline(0.0, color=theme.line, linewidth=0.8, zorder=0)
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.8)
    axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g} {unit}")
    axes.set_xlabel("memory of weights, cache, states and buffers")
    axes.set_ylabel("right tokens lost, of 100")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=min(len(names), 4),
        frameon=False,
        labelcolor=theme.quiet,
        fontsize=POINTS,
    )


def _memory_unit(most: float) -> tuple[str, int]:
    """The unit for memory of up to *most* bytes, and how many bytes it has."""
    return ("GiB", 1 << 30) if most >= 4 << 30 else ("MiB", 1 << 20)


def is_least_loss_so_far(of_file: pd.DataFrame) -> pd.Series:
    """
    Whether each row loses less than all before it.

    Rows have the least memory first.
    """
    return of_file["loss"] < of_file["loss"].cummin().shift(fill_value=math.inf)


def _paint_budget_edge(axes: Axes, most: float | None, theme: Theme) -> None:
    """Paint a dashed line at *most*, in the unit of the axes; none without a budget."""
    if most is None:
        return
    axes.axvline(most, color=theme.ink, linewidth=1.2, linestyle="--", zorder=1)
    axes.annotate(
        "budget",
        (most, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        size=POINTS,
        color=theme.quiet,
    )
