"""Panels as PNG and SVG: a small map for each pair, K down and V across."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report.display import display_of
from codeneedle.report.heatmap import (
    BAR_GAP,
    COLOURS,
    INK,
    NOTE_POINTS,
    QUIET,
    TITLE_POINTS,
    TYPE_POINTS,
    Files,
    add_colour_bar_axes,
    better_phrase,
    figure_of,
    label_colour_bar,
    mark_meaning_lines,
    paint_gap,
    picture_facts,
    readable_ink_colour,
    write_notes_below,
    write_pictures,
)
from codeneedle.report.panels import (
    NOTHING,
    Panel,
    Panels,
    Spot,
    length_label,
    panels_heading,
    panels_of,
    refuse_without_reference,
    shown_panel,
    shown_panels,
)
from codeneedle.report.shown import NO_ANSWER, REFERENCE_MARK
from codeneedle.report.tidy import KINDS
from codeneedle.text import escape_invisible, number_text, plural

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

BAR_HEIGHT = 4.0
"""Most of a colour scale, in inches."""

SPOT_POINTS = 7.0


def draw_panels(
    run: Run, metric: Metric, *, difference: bool, files: Files
) -> list[Path]:
    """
    Write ``panels-TASK`` for each task, ``panels-TASK-logp`` of log-probabilities.

    Args:
        run: Records of the retrieval probe alone.
        metric: See `panels.panels_of`.
        difference: Whether to draw what was lost and gained against the reference;
            the files are then called ``panels-TASK-difference``.
        files: Where they go.

    Returns:
        The paths of all files.

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
        paths += write_pictures(painted, files, name=f"panels-{panels.task}{end}")
    return paths


def paint(panels: Panels, run: Run, *, difference: bool) -> Figure:
    """Draw *panels* of *run* on a figure that pyplot does not know."""
    k_types = list(dict.fromkeys(panel.pair.k for panel in panels.panels))
    v_types = list(dict.fromkeys(panel.pair.v for panel in panels.panels))
    across, down = len(v_types), len(k_types)
    wide = max(SPOT_WIDTH * len(panels.lengths), LEAST_PANEL)
    high = SPOT_HEIGHT * len(panels.depths)
    figure = figure_of(
        across * wide + (across - 1) * GAP_ACROSS, down * high + (down - 1) * GAP_DOWN
    )
    space = {"left": 0, "right": 1, "bottom": 0, "top": 1.0}
    space |= {"wspace": GAP_ACROSS / wide, "hspace": GAP_DOWN / high}
    places = figure.subplots(down, across, squeeze=False, gridspec_kw=space)
    for axes in places.flat:
        axes.set_axis_off()
    for panel in panels.panels:
        axes = places[k_types.index(panel.pair.k), v_types.index(panel.pair.v)]
        _paint_panel(axes, panels, panel, difference=difference)
        _label_and_frame_panel(axes, panels, panel)
    for axes, v in zip(places[0], v_types, strict=True):
        _write_text(axes, v, (0.5, 1), (0, 24), weight="bold")
    whole_wide, whole_high = figure.get_size_inches()
    _write_axis_names(places[0, 0], (whole_wide / wide / 2, whole_high / high / 2))
    title = panels_heading(panels, difference=difference)
    title += _question_count_phrase(panels)
    title += "" if difference else better_phrase(panels.metric)
    corner = places[0, 0]
    _write_text(
        corner,
        escape_invisible(title),
        (0, 1),
        (0, 62),
        ha="left",
        size=TITLE_POINTS,
        weight="bold",
    )
    write_notes_below(
        places[-1, 0],
        _picture_notes(panels, difference=difference),
        picture_facts(run),
        below=34,
    )
    if difference:
        _paint_legend(figure)
    else:
        _paint_colour_scale(figure, panels)
    return figure


def _question_count_phrase(panels: Panels) -> str:
    """``, 4 questions a cell``: a share of two tells little."""
    counts = {
        spot.questions for panel in panels.panels for spot in panel.spots.values()
    }
    most = max(counts, default=0)
    least = "" if len(counts) < 2 else f"{min(counts)} to "  # noqa: PLR2004 - as many
    return f", {least}{plural(most, 'question')} a cell"


def _picture_notes(panels: Panels, *, difference: bool) -> list[str]:
    """If no pair differs, that; then marks, and what was left out."""
    spots = [panel.whole for panel in panels.panels]
    same = difference and not any(spot.counts[1] or spot.counts[2] for spot in spots)
    none = "No pair differs from the reference in any answer."
    shown = shown_panels(panels, difference=difference)
    return [
        *([none] if same else []),
        *mark_meaning_lines(
            shown, {REFERENCE_MARK: "Framed", NO_ANSWER.sign: "Hatched"}
        ),
        *map(escape_invisible, panels.left_out),
    ]


def _paint_panel(axes: Axes, panels: Panels, panel: Panel, *, difference: bool) -> None:
    """Draw a pair: its values with their mean, or changes with their counts."""
    axes.set_axis_on()
    if not panel.spots:
        _paint_panel_without_answers(axes, panels, panel)
        return
    says = (
        "mean "
        f"{number_text(panel.whole.value, digits=display_of(panels.metric).digits)}"
    )
    if difference:
        is_reference = panel.pair == panels.reference
        says = "reference" if is_reference else _changes_text(panel.whole)
        _paint_changes(axes, panels, panel)
    else:
        _paint_values(axes, panels, panel)
    axes.set_title(says, size=NOTE_POINTS, color=QUIET, loc="left", pad=3)


def _spots_by_depth(panels: Panels, panel: Panel) -> list[list[Spot]]:
    """A row for each depth, with a spot for each length."""
    return [
        [panel.spots.get((length, depth), NOTHING) for length in panels.lengths]
        for depth in panels.depths
    ]


def _colour_map_name(panels: Panels) -> str:
    """Which of `COLOURS` shows the metric: lighter is better, or higher."""
    return f"lighter is {'lower' if panels.metric.better == 'lower' else 'higher'}"


def _paint_values(axes: Axes, panels: Panels, panel: Panel) -> None:
    """Paint the value of each spot in its colour; gaps are hatched."""
    import seaborn as sns

    rows, scale = _spots_by_depth(panels, panel), panels.scale
    sns.heatmap(
        pd.DataFrame([[spot.value for spot in row] for row in rows]),
        ax=axes,
        cbar=False,
        cmap=COLOURS[_colour_map_name(panels)],
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
            label = number_text(
                spot.value, digits=min(display_of(panels.metric).digits, 2)
            )
            ink = readable_ink_colour(_colour_map_name(panels), scale.place(spot.value))
            _write_spot_label(axes, across + 0.5, down + 0.5, label, ink)


def _paint_changes(axes: Axes, panels: Panels, panel: Panel) -> None:
    """Paint in each spot a bar of its questions by `KINDS`; gaps are hatched."""
    for down, row in enumerate(_spots_by_depth(panels, panel)):
        for across, spot in enumerate(row):
            if spot.shared_question_count:
                _paint_change_bar(axes, spot, across, down)
            else:
                paint_gap(axes, down, across)


def _paint_change_bar(axes: Axes, spot: Spot, across: float, down: float) -> None:
    """
    Paint a bar of the questions of *spot*.

    What was lost or gained has its count if legible.
    """
    left, edge = across + 0.04, 0.06
    for kind, count in zip(KINDS, spot.counts, strict=True):
        share = 0.92 * count / spot.shared_question_count
        box = ((left, down + edge), share, 1 - 2 * edge)
        axes.add_patch(Rectangle(*box, facecolor=KIND_COLOURS[kind], linewidth=0))
        if count and kind in KINDS[1:3] and share > 0.2:  # noqa: PLR2004 - legible
            _write_spot_label(axes, left + share / 2, down + 0.5, str(count), "#ffffff")
        left += share


def _write_spot_label(
    axes: Axes, across: float, down: float, text: str, ink: str
) -> None:
    axes.text(across, down, text, size=SPOT_POINTS, color=ink, ha="center", va="center")


def _paint_panel_without_answers(axes: Axes, panels: Panels, panel: Panel) -> None:
    """Hatch a pair without answers, with the word of its status."""
    for down in range(len(panels.depths)):
        for across in range(len(panels.lengths)):
            paint_gap(axes, down, across)
    axes.text(
        len(panels.lengths) / 2,
        len(panels.depths) / 2,
        shown_panel(panels, panel).spelled_text,
        size=TYPE_POINTS,
        style="italic",
        color=QUIET,
        ha="center",
        va="center",
    )


def _label_and_frame_panel(axes: Axes, panels: Panels, panel: Panel) -> None:
    """Write lengths below the lowest panels, K and depths left; frame the reference."""
    lengths, depths = panels.lengths, panels.depths
    axes.set_xlim(0, len(lengths))
    axes.set_ylim(len(depths), 0)
    axes.set_xticks(np.arange(len(lengths)) + 0.5, map(length_label, lengths))
    axes.set_yticks(np.arange(len(depths)) + 0.5, [f"{depth:g}" for depth in depths])
    axes.tick_params(
        length=0, labelcolor=INK, labelsize=NOTE_POINTS, labelrotation=0, pad=3
    )
    axes.label_outer()
    axes.set_xlabel("")
    axes.set_ylabel("")
    place = axes.get_subplotspec()
    if place and place.is_first_col():
        k = escape_invisible(panel.pair.k)
        _write_text(axes, k, (0, 0.5), (-30, 0), ha="right", weight="bold")
    is_reference = panel.pair == panels.reference
    for spine in axes.spines.values():
        spine.set_visible(is_reference)
        spine.set_edgecolor(INK)
        spine.set_linewidth(1.6)


def _write_text(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    points: tuple[float, float],
    **how: Any,
) -> None:
    """Write *text* so many points right of and above a *place*; *how* is its style."""
    style: dict[str, Any] = {"size": TYPE_POINTS, "color": INK}
    style |= {"ha": "center", "va": "center", "xycoords": "axes fraction"} | how
    style |= {"xytext": points, "textcoords": "offset points"}
    axes.annotate(escape_invisible(text), place, **style)


def _write_axis_names(corner: Axes, middle: tuple[float, float]) -> None:
    """
    Write what the types and the edges are.

    Args:
        corner: The panel at the top left.
        middle: Of all panels, from the top left of that one, in its widths and heights.
    """
    across, down = middle
    quiet = {"color": QUIET}
    small = {"size": NOTE_POINTS, "color": QUIET}
    _write_text(corner, "V cache", (across, 1), (0, 42), **quiet)
    _write_text(corner, "K cache", (0, 1 - down), (-78, 0), rotation=90, **quiet)
    tokens = "length of the text, in tokens"
    _write_text(corner, tokens, (across, 1 - 2 * down), (0, -24), **small)
    _write_text(corner, "depth", (0, 1), (-8, 7), ha="right", **small)


def _paint_colour_scale(figure: Figure, panels: Panels) -> None:
    bar = add_colour_bar_axes(figure, max_height_inches=BAR_HEIGHT)
    mapped = ScalarMappable(Normalize(0.0, 1.0), COLOURS[_colour_map_name(panels)])
    figure.colorbar(mapped, cax=bar).outline.set_visible(False)
    label_colour_bar(bar, panels.scale, panels.metric.unit or "share")


def _paint_legend(figure: Figure) -> None:
    """Paint what the colours of changes mean, right of *figure*."""
    wide, _ = figure.get_size_inches()
    figure.legend(
        handles=[Patch(color=KIND_COLOURS[kind], label=kind) for kind in KINDS],
        loc="upper left",
        bbox_to_anchor=(1 + BAR_GAP / wide, 1),
        borderaxespad=0,
        frameon=False,
        fontsize=NOTE_POINTS,
        labelcolor=INK,
        title="questions",
        title_fontsize=NOTE_POINTS,
        alignment="left",
        handlelength=1.2,
    )


def _changes_text(spot: Spot) -> str:
    """``-12 +3 of 60``: lost and gained, of what both pairs were asked."""
    return f"-{spot.counts[1]} +{spot.counts[2]} of {spot.shared_question_count}"
