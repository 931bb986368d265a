"""Panels as PNG and SVG: a small map for each pair, K down and V across."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report.captions import number, status_word
from codeneedle.report.heatmap import (
    BAR,
    BAR_GAP,
    BAR_LABELS,
    COLOURS,
    INK,
    LEAST_WIDTH,
    MARGIN,
    NOTE_POINTS,
    QUIET,
    TYPE_POINTS,
    Head,
    drawn,
    ink_on,
    paint_gap,
    paint_scale,
    run_notes,
)
from codeneedle.report.panels import (
    KINDS,
    NOTHING,
    Panel,
    Panels,
    Spot,
    headline,
    length_word,
    panels_of,
    refuse_without_reference,
)
from codeneedle.text import visible

KIND_COLOURS = dict(
    zip(KINDS, ("#cfcfcf", "#e08214", "#6a51a3", "#8f8f8f"), strict=True)
)
"""Greys for what stayed as it was, orange for losses, purple for gains."""

SPOT_WIDTH, SPOT_HEIGHT = 0.50, 0.32
"""Of a spot, in inches."""

LEAST_PANEL = 1.35
"""Least width of a panel, in inches: the counts above it need it."""

GAP_ACROSS, GAP_DOWN = 0.20, 0.36
"""Between panels, in inches; the counts of a panel stand above it."""

LEFT, TOP, BOTTOM = 1.42, 0.82, 0.50
"""Around all panels, in inches: K types and depths, V types, lengths."""

LEGEND = 1.35
"""Width of the legend of a comparison, in inches."""

SPOT_POINTS = 7.0


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the panels of a picture are, in inches from the left and the bottom."""

    panels: Panels
    right: float

    @property
    def k_types(self) -> list[str]:
        return list(dict.fromkeys(each.pair.k for each in self.panels.panels))

    @property
    def v_types(self) -> list[str]:
        return list(dict.fromkeys(each.pair.v for each in self.panels.panels))

    @property
    def panel_width(self) -> float:
        return max(SPOT_WIDTH * len(self.panels.lengths), LEAST_PANEL)

    @property
    def panel_height(self) -> float:
        return SPOT_HEIGHT * len(self.panels.depths)

    @property
    def all_width(self) -> float:
        count = len(self.v_types)
        return count * self.panel_width + (count - 1) * GAP_ACROSS

    @property
    def all_height(self) -> float:
        count = len(self.k_types)
        return count * self.panel_height + (count - 1) * GAP_DOWN

    @property
    def width(self) -> float:
        return max(LEFT + self.all_width + self.right, LEAST_WIDTH)

    def place(self, panel: Panel) -> tuple[float, float]:
        """The lower left corner of *panel*."""
        across = self.v_types.index(panel.pair.v)
        down = self.k_types.index(panel.pair.k)
        up = len(self.k_types) - 1 - down
        return (
            LEFT + across * (self.panel_width + GAP_ACROSS),
            MARGIN + BOTTOM + up * (self.panel_height + GAP_DOWN),
        )


def draw_panels(
    run: Run, metric: Metric, *, difference: bool, folder: Path
) -> list[Path]:
    """
    Write ``panels-TASK.png`` and ``.svg`` for each task into *folder*.

    Args:
        run: Records of the retrieval probe alone.
        metric: As of `panels.panels_of`.
        difference: Whether to draw what was lost and gained against the reference;
            the files are then called ``panels-TASK-difference``.
        folder: Where the files go; made if it does not exist.

    Returns:
        The paths of all PNG and SVG files.

    Raises:
        BadInput: If there is nothing to draw, or to compare with.
        FolderUnusable: If the disk refuses.
    """
    paths: list[Path] = []
    for panels in panels_of(run, metric):
        end = "-logp" if metric.name.endswith("-logp") else ""
        if difference:
            refuse_without_reference(panels, run)
            end = "-difference"
        painted = functools.partial(paint, panels, run, difference=difference)
        paths += drawn(painted, folder=folder, name=f"panels-{panels.task}{end}")
    return paths


def paint(panels: Panels, run: Run, *, difference: bool) -> Figure:
    """Draw *panels* of *run* on a figure that pyplot does not know."""
    right = BAR_GAP + (LEGEND if difference else BAR + BAR_LABELS)
    at = _Layout(panels, right)
    title = headline(panels, difference=difference)
    notes = (*run_notes(run), *map(visible, panels.notes))
    head = Head(visible(title), notes, room=at.width - 2 * MARGIN)
    height = MARGIN + BOTTOM + at.all_height + TOP + head.height + MARGIN
    figure = Figure(figsize=(at.width, height), facecolor="white")
    FigureCanvasAgg(figure)
    head.write(figure)
    for panel in panels.panels:
        axes = _axes(figure, *at.place(panel), at.panel_width, at.panel_height)
        if not panel.has_spots:
            _paint_missing(axes, panels, panel)
        elif difference:
            _paint_changes(axes, panels, panel)
        else:
            _paint_values(axes, panels, panel)
        _paint_edges(axes, at, panel)
        says = f"mean {number(panel.whole.value, digits=panels.metric.digits)}"
        if difference:
            is_reference = panel.pair == panels.reference
            says = "reference" if is_reference else _changes(panel.whole)
        if panel.has_spots:
            axes.set_title(says, size=NOTE_POINTS, color=QUIET, loc="left", pad=3)
    _paint_names(figure, at)
    left = LEFT + at.all_width + BAR_GAP
    if difference:
        _paint_legend(figure, left, MARGIN + BOTTOM + at.all_height)
    else:
        bar_height = min(at.all_height, 4.0)
        bottom = MARGIN + BOTTOM + at.all_height - bar_height
        _paint_bar(_axes(figure, left, bottom, BAR, bar_height), panels)
    return figure


def _axes(figure: Figure, left: float, bottom: float, wide: float, high: float) -> Axes:
    """Axes at a place in inches."""
    width, height = figure.get_size_inches()
    return figure.add_axes((left / width, bottom / height, wide / width, high / height))


def _spots(panels: Panels, panel: Panel) -> list[list[Spot]]:
    """A row for each depth, with a spot for each length."""
    return [
        [panel.spots.get((length, depth), NOTHING) for length in panels.lengths]
        for depth in panels.depths
    ]


def _colours(panels: Panels) -> str:
    return f"lighter is {'lower' if panels.metric.better == 'lower' else 'higher'}"


def _paint_values(axes: Axes, panels: Panels, panel: Panel) -> None:
    rows, scale = _spots(panels, panel), panels.scale
    sns.heatmap(
        pd.DataFrame([[spot.value for spot in row] for row in rows]),
        ax=axes,
        cbar=False,
        cmap=COLOURS[_colours(panels)],
        vmin=scale.low,
        vmax=scale.high,
        linewidths=1.0,
        linecolor="white",
    )
    for down, row in enumerate(rows):
        for across, spot in enumerate(row):
            if math.isnan(spot.value):
                paint_gap(axes, down, across)
                continue
            label = number(spot.value, digits=min(panels.metric.digits, 2))
            ink = ink_on(_colours(panels), scale.place(spot.value))
            _label(axes, across + 0.5, down + 0.5, label, ink)


def _paint_changes(axes: Axes, panels: Panels, panel: Panel) -> None:
    """In each spot, a bar of all its questions, in the order of `KINDS`."""
    for down, row in enumerate(_spots(panels, panel)):
        for across, spot in enumerate(row):
            if spot.n:
                _paint_shares(axes, spot, across, down)
            else:
                paint_gap(axes, down, across)


def _paint_shares(axes: Axes, spot: Spot, across: float, down: float) -> None:
    left, edge = across + 0.04, 0.06
    for kind, count in zip(KINDS, spot.counts, strict=True):
        share = 0.92 * count / spot.n
        box = ((left, down + edge), share, 1 - 2 * edge)
        axes.add_patch(Rectangle(*box, facecolor=KIND_COLOURS[kind], linewidth=0))
        if count and kind in KINDS[1:3] and share > 0.2:  # noqa: PLR2004 - legible
            _label(axes, left + share / 2, down + 0.5, str(count), "#ffffff")
        left += share


def _label(axes: Axes, across: float, down: float, text: str, ink: str) -> None:
    axes.text(across, down, text, size=SPOT_POINTS, color=ink, ha="center", va="center")


def _paint_missing(axes: Axes, panels: Panels, panel: Panel) -> None:
    """A pair without answers: hatched, with the word of its status."""
    for down in range(len(panels.depths)):
        for across in range(len(panels.lengths)):
            paint_gap(axes, down, across)
    axes.text(
        len(panels.lengths) / 2,
        len(panels.depths) / 2,
        status_word(panel.status) if panel.status else "not run",
        size=TYPE_POINTS,
        style="italic",
        color=QUIET,
        ha="center",
        va="center",
    )


def _paint_edges(axes: Axes, at: _Layout, panel: Panel) -> None:
    """Lengths below the lowest panels, depths left of the first; a frame."""
    is_left = panel.pair.v == at.v_types[0]
    is_low = panel.pair.k == at.k_types[-1]
    lengths = [length_word(each) if is_low else "" for each in at.panels.lengths]
    depths = [f"{each:g}" if is_left else "" for each in at.panels.depths]
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(len(depths), 0)
    axes.set_xticks([each + 0.5 for each in range(len(lengths))])
    axes.set_yticks([each + 0.5 for each in range(len(depths))])
    axes.set_xticklabels(lengths, rotation=0, size=NOTE_POINTS)
    axes.set_yticklabels(depths, rotation=0, size=NOTE_POINTS)
    axes.tick_params(length=0, labelcolor=INK, pad=3)
    is_reference = panel.pair == at.panels.reference
    for spine in axes.spines.values():
        spine.set_visible(is_reference)
        spine.set_edgecolor(INK)
        spine.set_linewidth(1.6)


def _paint_names(figure: Figure, at: _Layout) -> None:
    """Types of K and V beside the panels, and what their edges mean."""
    width, height = figure.get_size_inches()

    def write(x: float, y: float, text: str, **how: Any) -> None:
        style: dict[str, Any] = {"size": TYPE_POINTS, "color": INK}
        style |= {"ha": "center", "va": "center"} | how
        figure.text(x / width, y / height, visible(text), **style)

    top = MARGIN + BOTTOM + at.all_height
    middle_across, middle_down = LEFT + at.all_width / 2, top - at.all_height / 2
    for number_of, v in enumerate(at.v_types):
        left = LEFT + number_of * (at.panel_width + GAP_ACROSS)
        write(left + at.panel_width / 2, top + 0.36, v, weight="bold")
    for number_of, k in enumerate(at.k_types):
        y = top - number_of * (at.panel_height + GAP_DOWN) - at.panel_height / 2
        write(LEFT - 0.42, y, k, weight="bold", ha="right")
    write(middle_across, top + 0.62, "V cache", color=QUIET)
    write(LEFT - 1.08, middle_down, "K cache", color=QUIET, rotation=90)
    small = {"size": NOTE_POINTS, "color": QUIET}
    write(middle_across, MARGIN + 0.12, "length of the text, in tokens", **small)
    write(LEFT - 0.14, top + 0.09, "depth", ha="right", **small)


def _paint_bar(bar: Axes, panels: Panels) -> None:
    """The colour scale."""
    steps = 256
    colours = COLOURS[_colours(panels)]
    low, high = panels.scale.low, panels.scale.high
    ramp = [[at / (steps - 1)] for at in range(steps)]
    bar.imshow(
        ramp, cmap=colours, aspect="auto", origin="lower", extent=(0, 1, low, high)
    )
    bar.set_xticks([])
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    for spine in bar.spines.values():
        spine.set_visible(False)
    paint_scale(bar, panels.scale, panels.metric.unit or "share")


def _paint_legend(figure: Figure, left: float, top: float) -> None:
    width, height = figure.get_size_inches()
    figure.legend(
        handles=[Patch(color=KIND_COLOURS[kind], label=kind) for kind in KINDS],
        loc="upper left",
        bbox_to_anchor=(left / width, top / height),
        borderaxespad=0,
        frameon=False,
        fontsize=NOTE_POINTS,
        labelcolor=INK,
        title="questions",
        title_fontsize=NOTE_POINTS,
        alignment="left",
        handlelength=1.2,
    )


def _changes(spot: Spot) -> str:
    """``-12 +3 of 60``."""
    return f"-{spot.counts[1]} +{spot.counts[2]} of {spot.n}"
