"""How a heatmap is painted: its proportions, its type, its colours."""

import io
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from codeneedle.files import write_whole
from codeneedle.report.cells import RAMP, text_colour
from codeneedle.report.layout import (
    BAR,
    BAR_GAP,
    CELL,
    CELL_POINTS,
    DIGIT_EM,
    MARGIN,
    NOTE_LINE,
    NOTE_POINTS,
    POINTS_PER_INCH,
    TITLE_LINE,
    TITLE_POINTS,
    TYPE_POINTS,
    Layout,
    has_labels,
    laid_out,
)
from codeneedle.report.picture import Picture, Square
from codeneedle.report.safetext import visible
from codeneedle.report.scale import Scale

PIXELS_PER_INCH = 200

INK, QUIET, GAP, HATCH = "#1a1a1a", "#595959", "#f6f6f6", "#d9d9d9"

_DARK_TO_LIGHT = LinearSegmentedColormap.from_list(
    "dark to light", [tuple(part / 255 for part in step) for step in RAMP]
)

COLOURS: dict[str, Colormap] = {
    "lighter is higher": _DARK_TO_LIGHT,
    "lighter is lower": _DARK_TO_LIGHT.reversed(),
    # Orange below, white at zero, purple above; safe for the colour-blind.
    "around zero": mpl.colormaps["PuOr"],
}
"""Colour maps by what they say."""


def save(picture: Picture, *, png: Path, svg: Path) -> None:
    """
    Paint *picture* into two files; the same picture gives the same bytes.

    Raises:
        OSError: If the disk refuses.
    """
    with mpl.rc_context(_settings()), warnings.catch_warnings():
        # A name in another script is drawn with boxes; the reader sees it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = paint(picture)
        pixels, curves = io.BytesIO(), io.BytesIO()
        figure.savefig(
            pixels, format="png", dpi=PIXELS_PER_INCH, metadata={"Software": None}
        )
        figure.savefig(curves, format="svg", metadata={"Date": None, "Creator": None})
    # An earlier picture stays until the new one is whole.
    write_whole(png, pixels.getvalue())
    write_whole(svg, curves.getvalue())


def _settings() -> dict[Any, Any]:
    return {
        # This font comes with matplotlib: alike on every machine.
        "font.family": "DejaVu Sans",
        "svg.fonttype": "path",
        "svg.hashsalt": "codeneedle",
        "hatch.linewidth": 0.7,
        # A dollar in a name is a dollar.
        "text.parse_math": False,
    }


def paint(picture: Picture) -> Figure:
    """Paint *picture*; it belongs to no window and to no list of open figures."""
    layout = laid_out(picture)
    figure = Figure(figsize=(layout.width, layout.height), facecolor="white")
    FigureCanvasAgg(figure)
    left, bottom, wide, high = layout.grid
    axes = figure.add_axes(layout.share(*layout.grid))
    bar = figure.add_axes(
        layout.share(left + wide + BAR_GAP, bottom, BAR, high), label="scale"
    )
    _paint_heading(figure, layout)
    _paint_cells(axes, bar, picture)
    _paint_types(axes, picture)
    _paint_scale(bar, picture)
    return figure


def _paint_heading(figure: Figure, layout: Layout) -> None:
    title_top = layout.height - MARGIN
    notes_top = title_top - TITLE_LINE * len(layout.title) - 0.06
    for lines, top, points, line, colour, weight in (
        (layout.title, title_top, TITLE_POINTS, TITLE_LINE, INK, "bold"),
        (layout.notes, notes_top, NOTE_POINTS, NOTE_LINE, QUIET, "normal"),
    ):
        for at, words in enumerate(lines):
            figure.text(
                MARGIN / layout.width,
                (top - at * line) / layout.height,
                words,
                size=points,
                color=colour,
                weight=weight,
                va="top",
            )


def _paint_cells(axes: Axes, bar: Axes, picture: Picture) -> None:
    sns.heatmap(
        pd.DataFrame(
            [[square.value for square in row] for row in picture.squares],
            index=picture.k_types,
            columns=picture.v_types,
        ),
        ax=axes,
        cbar_ax=bar,
        cmap=COLOURS[picture.colours],
        vmin=picture.scale.low,
        vmax=picture.scale.high,
        linewidths=1.5,
        linecolor="white",
        square=True,
    )
    for at_k, row in enumerate(picture.squares):
        for at_v, square in enumerate(row):
            if square.is_gap:
                _paint_gap(axes, at_k, at_v)
            if has_labels(picture.k_types, picture.v_types):
                _write(axes, square, at_k, at_v, ink=_ink(picture, square))
    if picture.reference:
        at_k = picture.k_types.index(picture.reference.k)
        at_v = picture.v_types.index(picture.reference.v)
        _paint_frame(axes, at_k, at_v)


def _paint_gap(axes: Axes, at_k: int, at_v: int) -> None:
    inset = 0.012
    axes.add_patch(
        Rectangle(
            (at_v + inset, at_k + inset),
            1 - 2 * inset,
            1 - 2 * inset,
            facecolor=GAP,
            edgecolor=HATCH,
            hatch="////",
            linewidth=0,
        )
    )


def _write(axes: Axes, square: Square, at_k: int, at_v: int, *, ink: str) -> None:
    """The label of a cell, as large as fits."""
    fits = 0.86 * CELL * POINTS_PER_INCH / (DIGIT_EM * max(len(square.label), 1))
    axes.text(
        at_v + 0.5,
        at_k + 0.5,
        square.label,
        size=min(CELL_POINTS, fits),
        style="italic" if square.is_gap else "normal",
        weight="bold" if square.is_bold else "normal",
        color=ink,
        ha="center",
        va="center",
    )


def _ink(picture: Picture, square: Square) -> str:
    """Black or white, whichever can be read on the cell; grey in a gap."""
    if square.is_gap:
        return QUIET
    ground = COLOURS[picture.colours](picture.scale.place(square.value))
    red, green, blue = (part * 255 for part in ground[:3])
    return text_colour(red, green, blue)


def _paint_frame(axes: Axes, at_k: int, at_v: int) -> None:
    axes.add_patch(
        Rectangle(
            (at_v, at_k), 1, 1, fill=False, edgecolor=INK, linewidth=2, clip_on=False
        )
    )


def _paint_types(axes: Axes, picture: Picture) -> None:
    """V types above the grid, K types left of it, as the published grids have them."""
    k_types, v_types = picture.k_types, picture.v_types
    axes.set_xticks([at + 0.5 for at in range(len(v_types))])
    turn = 0 if has_labels(picture.k_types, picture.v_types) else 90
    axes.set_xticklabels(map(visible, v_types), rotation=turn, size=TYPE_POINTS)
    axes.set_yticks([at + 0.5 for at in range(len(k_types))])
    axes.set_yticklabels(map(visible, k_types), rotation=0, size=TYPE_POINTS)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelcolor=INK, pad=5)
    axes.set_xlabel("V cache", size=TYPE_POINTS, color=QUIET, labelpad=6)
    axes.set_ylabel("K cache", size=TYPE_POINTS, color=QUIET, labelpad=6)


def _paint_scale(bar: Axes, picture: Picture) -> None:
    bar.set_yticks(_ticks(picture.scale))
    bar.set_yticklabels([f"{tick:.4g}" for tick in _ticks(picture.scale)])
    bar.tick_params(length=3, color=QUIET, labelcolor=INK, labelsize=NOTE_POINTS)
    bar.set_ylabel(visible(picture.caption), size=NOTE_POINTS + 0.5, color=QUIET)


def _ticks(scale: Scale) -> list[float]:
    """Both ends, and round numbers that keep some distance from them."""
    inner = MaxNLocator(nbins=5).tick_values(scale.low, scale.high)
    apart = 0.07
    kept = [
        float(tick) + 0.0
        for tick in inner
        if apart < (tick - scale.low) / (scale.high - scale.low) < 1 - apart
    ]
    return [scale.low, *kept, scale.high]
