"""Speeds by depth as PNG and SVG: curves for each K type, a colour for each V type."""

import functools
import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from codeneedle.records.record import Run, Status
from codeneedle.report import captions
from codeneedle.report.display import SPEEDS
from codeneedle.report.heatmap import (
    INK,
    NOTE_POINTS,
    QUIET,
    TYPE_POINTS,
    Files,
    figure_of,
    picture_facts,
    write_notes_below,
    write_pictures,
    write_title,
)
from codeneedle.report.speeds import SpeedTable, speed_table
from codeneedle.text import escape_invisible, number_text

WIDE, HIGH = 2.8, 2.4
"""Of the curves of a K type, in inches."""

ACROSS = 3
"""Most K types beside each other."""

MARGIN = 0.08
"""Room above and below the curves, as a share of their height."""

LISTED = 8
"""Speeds that are not compared which a note names before it counts the others."""


Colour = tuple[float, float, float]


def draw_speeds(run: Run, test: str, files: Files) -> list[Path]:
    """
    Write ``depths-TEST``, and return the paths.

    Raises:
        BadInput: If there is no such test.
        NothingToShow: If no pair has a speed that is compared.
        FolderUnusable: If the disk refuses.
    """
    table = speed_table(run, test)
    if table.reference is None:
        raise captions.nothing_to_show_error(run, test, "throughput")
    painted = functools.partial(paint, table)
    return write_pictures(painted, files, name=f"depths-{test}")


def paint(table: SpeedTable) -> Figure:
    """
    The ratios to the reference by depth.

    The scale is that of compared cells. Others are grey crosses, cut off where they lie
    outside of it, and are listed below.
    """
    import seaborn as sns

    k_types = list(dict.fromkeys(table.frame["k"]))
    v_types = list(dict.fromkeys(table.frame["v"]))
    palette = sns.color_palette("viridis", len(v_types))
    colours = dict(zip(v_types, palette, strict=True))
    across = min(len(k_types), ACROSS)
    down = math.ceil(len(k_types) / across)
    figure = figure_of(across * WIDE, down * HIGH)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.08, hspace=0.25)
    places = list(grid.flat)
    for axes, k_type in zip(places, k_types, strict=False):
        _paint_curves(axes, table, k_type, colours)
    places[across - 1].legend(
        [Line2D([], [], color=colour, marker="o") for colour in colours.values()],
        [f"V {escape_invisible(v_type)}" for v_type in colours],
        bbox_to_anchor=(1.02, 1),
        loc="upper left",
        frameon=False,
    )
    for unused in places[len(k_types) :]:
        unused.set_axis_off()
    low, high = _ratio_axis_bounds(table)
    places[0].set_ylim(low, high)
    places[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    write_title(places[0], _title(table), above=22.0)
    bottom = places[(down - 1) * across]
    write_notes_below(bottom, _speed_notes(table), picture_facts(table.run), below=40.0)
    return figure


def _paint_curves(
    axes: Axes, table: SpeedTable, k_type: str, colours: dict[str, Colour]
) -> None:
    """Paint curves of a K type, a colour per V type; crosses where not compared."""
    import seaborn as sns

    frame = table.frame[table.frame["k"] == k_type]
    compared = frame[frame["compared"]]
    if not compared.empty:
        sns.lineplot(
            compared,
            x="depth",
            y="ratio",
            hue="v",
            palette=colours,
            marker="o",
            errorbar=None,
            legend=False,
            ax=axes,
        )
    apart = frame[~frame["compared"]]
    sns.scatterplot(
        apart, x="depth", y="ratio", marker="X", color=QUIET, legend=False, ax=axes
    )
    axes.axhline(1.0, color=QUIET, linewidth=0.8, linestyle=":")
    axes.text(
        *(0.03, 1.02, f"K {escape_invisible(k_type)}"),
        transform=axes.transAxes,
        size=TYPE_POINTS,
        color=INK,
    )
    axes.set_xlabel("depth, tokens", size=NOTE_POINTS, color=QUIET)
    axes.set_ylabel("of the reference's speed", size=NOTE_POINTS, color=QUIET)
    axes.tick_params(labelbottom=True, labelsize=NOTE_POINTS, labelcolor=INK)
    sns.despine(ax=axes)


def _ratio_axis_bounds(table: SpeedTable) -> tuple[float, float]:
    """The ends of the ratios of compared cells, with some room, and 1 within."""
    ratios = table.frame.loc[table.frame["compared"], "ratio"].dropna()
    low, high = min(1.0, ratios.min()), max(1.0, ratios.max())
    room = MARGIN * ((high - low) or 1.0)
    return low - room, high + room


def _title(table: SpeedTable) -> str:
    what = SPEEDS[table.test].capitalize()
    return escape_invisible(
        f"{what} by depth, beside {table.reference}; higher is better"
    )


def _speed_notes(table: SpeedTable) -> list[str]:
    """The speeds that are not compared, behind what not to conclude."""
    notes = [*captions.caution_and_gap_sentences(table.run)]
    listed = [
        f"{row['pair']} {number_text(row['value'], digits=1)} tokens/s at "
        f"{row['depth']:,} ({_why_not_compared(row['status'], row['reason'])})"
        for row in table.uncompared_rows.to_dict("records")
    ]
    if listed:
        more = len(listed) - LISTED
        rest = f", and {more} more" if more > 0 else ""
        notes.append(
            escape_invisible(f"Not compared: {', '.join(listed[:LISTED])}{rest}")
        )
    return notes


def _why_not_compared(status: str, reason: str) -> str:
    """The status of a cell that is not compared, or where it was measured."""
    return reason if status == Status.FINISHED else status
