"""Heatmaps of a grid as PNG, SVG and PDF."""

import functools
import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import (
    Colormap,
    LinearSegmentedColormap,
    ListedColormap,
)
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.errors import FolderUnusable
from codeneedle.probes import frames
from codeneedle.probes.frames import Cells
from codeneedle.probes.metrics import Metric
from codeneedle.records.record import Run
from codeneedle.report import captions
from codeneedle.report.captions import (
    missing_answer_lines,
    unmeasured_metric_lines,
    why_no_reference,
)
from codeneedle.report.colours import (
    RAMP,
    LossScale,
    Scale,
    loss_colour,
    readable_text_colour,
)
from codeneedle.report.display import display_of
from codeneedle.report.losses import Losses
from codeneedle.report.shown import (
    ERROR,
    REFERENCE_MARK,
    SET,
    Shown,
    Style,
    changes_to_show,
    legend,
    shown_cells,
    shown_k_and_v_types,
    split_into_rows,
    values_to_show,
)
from codeneedle.report.verdict import decision_entries, headline_sentences
from codeneedle.system.files import write_atomically
from codeneedle.text import escape_invisible, number_text
from codeneedle.verdict.judge import Verdict
from codeneedle.verdict.statistics import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content of a heatmap."""

    k_types: tuple[str, ...]  # from top to bottom
    v_types: tuple[str, ...]  # from left to right
    squares: Sequence[Sequence[Shown]]
    """A row for each K type, with one for each V type."""

    scale: Scale | LossScale  # the values at the ends of the colour map
    colours: str  # one of `COLOURS`
    caption: str  # label of the colour scale
    title: str  # what is shown, of how many, and which way is better
    notes: tuple[str, ...]  # lines below the cells
    facts: tuple[str, ...]  # what it was measured on; smaller lines below these
    framed: Pair | None  # the pair with a frame; None if there is none


CELL = 0.80
"""Least side of a cell with a label, in inches; all else is drawn around the cells."""

USUAL_TYPES = 6
"""Types of an axis up to which cells grow: smaller grids are as wide as of so many."""

MOST_CELL = 1.6
"""Largest side of a cell, in inches."""

LABELLED = 20
"""
Most types of an axis with which cells have labels.

Cells of larger grids are small and without labels: with labels, the picture would be
metres wide and take minutes to draw.
"""

SMALL_CELL = 0.2
"""Side of a cell without a label, in inches."""

BAR, BAR_GAP = 0.16, 0.22
"""Width of the colour scale and its distance from the cells, in inches."""

LEAST_WIDTH = 6.6
"""Least width of lines of text, in inches."""

TITLE_POINTS, NOTE_POINTS, FACT_POINTS = 13.0, 8.5, 6.5
TYPE_POINTS, CELL_POINTS, WORD_POINTS = 10.0, 10.5, 7.0

EM, DIGIT_EM = 0.57, 0.64
"""Mean width of a letter, and width of a digit, relative to the font size."""

POINTS_PER_INCH = 72


def has_room_for_labels(k_types: Sequence[str], v_types: Sequence[str]) -> bool:
    """Whether cells are large enough for labels: `LABELLED` types at most."""
    return max(len(k_types), len(v_types)) <= LABELLED


def _wrap_texts(texts: Iterable[str], *, points: float, inches: float) -> str:
    """*texts*, each broken into lines of *inches*, `LEAST_WIDTH` at least."""
    characters = int(max(inches, LEAST_WIDTH) * POINTS_PER_INCH / (points * EM))
    # A number stays with its sign.
    whole = (text.replace(" %", "\N{NO-BREAK SPACE}%") for text in texts)
    lines = (line for text in whole for line in textwrap.wrap(text, characters))
    return "\n".join(lines)


PIXELS_PER_INCH = 200

INK, QUIET, GAP, HATCH = "#1a1a1a", "#595959", "#f6f6f6", "#d9d9d9"

_DARK_TO_LIGHT = LinearSegmentedColormap.from_list(
    "dark to light", [tuple(part / 255 for part in step) for step in RAMP]
)

COLOURS: dict[str, Colormap] = {
    "lighter is higher": _DARK_TO_LIGHT,
    "lighter is lower": _DARK_TO_LIGHT.reversed(),
    # Orange below 0, white at 0, purple above; safe for the colour-blind.
    "around zero": mpl.colormaps["PuOr"],
    "turns at the limit": ListedColormap(
        [tuple(part / 255 for part in loss_colour(at / 999)) for at in range(1000)]
    ),
}
"""Colour maps by the meaning of their colours."""


def _drawing_settings() -> dict[Any, Any]:
    """What matplotlib draws with: the same bytes on every machine."""
    return {
        # This font comes with matplotlib: the same on every machine.
        "font.family": "DejaVu Sans",
        "svg.fonttype": "path",
        "svg.hashsalt": "codeneedle",
        # As outlines of TrueType, which journals accept.
        "pdf.fonttype": 42,
        "hatch.linewidth": 0.7,
        # Dollar signs in names start no formula.
        "text.parse_math": False,
    }


def paint(picture: Picture) -> Figure:
    """Draw *picture* on a figure that pyplot does not know; it grows with the grid."""
    cell = _cell_side_inches(picture)
    wide, high = len(picture.v_types) * cell, len(picture.k_types) * cell
    figure = figure_of(wide, high)
    axes = figure.add_axes((0, 0, 1, 1))
    _paint_cells(axes, add_colour_bar_axes(figure), picture)
    _paint_types(axes, picture)
    label_colour_bar(figure.axes[1], picture.scale, picture.caption)
    write_title(axes, picture.title)
    write_notes_below(axes, picture.notes, picture.facts)
    return figure


def _cell_side_inches(picture: Picture) -> float:
    """Side of a cell, in inches."""
    types = max(len(picture.k_types), len(picture.v_types))
    if types > LABELLED:
        return SMALL_CELL
    return min(MOST_CELL, max(CELL, USUAL_TYPES * CELL / types))


def _growth_of_text(picture: Picture) -> float:
    """How much larger than usual the text in cells is: less than its cells."""
    return math.sqrt(_cell_side_inches(picture) / CELL)


def figure_of(wide: float, high: float) -> Figure:
    """
    A figure of the size of its cells, in inches.

    Types, text and colour scale lie outside of it: `write_pictures` saves all there is.
    """
    figure = Figure(figsize=(wide, high), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_colour_bar_axes(figure: Figure, *, max_height_inches: float = math.inf) -> Axes:
    """Axes of a colour scale right of *figure*, at most so high."""
    wide, high = figure.get_size_inches()
    share = min(1.0, max_height_inches / high)
    return figure.add_axes((1 + BAR_GAP / wide, 1 - share, BAR / wide, share))


def write_title(axes: Axes, title: str, *, above: float = 6.0) -> None:
    """Write *title* over the types of *axes*, so many points above them."""
    wide, _ = axes.figure.get_size_inches()  # type: ignore[union-attr]
    text = _wrap_texts([title], points=TITLE_POINTS * 1.2, inches=wide)
    axes.set_title(
        text, loc="left", pad=above, size=TITLE_POINTS, color=INK, weight="bold"
    )


def write_notes_below(
    axes: Axes, notes: Iterable[str], facts: Iterable[str], *, below: float = 14.0
) -> None:
    """Write *notes* and, smaller, *facts* so many points below *axes*."""
    wide, _ = axes.figure.get_size_inches()  # type: ignore[union-attr]
    blocks = [(NOTE_POINTS, INK, notes), (FACT_POINTS, QUIET, facts)]
    for points, ink, texts in blocks:
        text = _wrap_texts(texts, points=points, inches=wide)
        if text:
            axes.annotate(
                text,
                (0, 0),
                xycoords="axes fraction",
                xytext=(0, -below),
                textcoords="offset points",
                va="top",
                size=points,
                color=ink,
                linespacing=LINE,
                gid=BELOW,
            )
            below += (text.count("\n") + 1) * points * LINE + points


BELOW = "below"
"""Marks text that a plain picture leaves out."""

LINE = 1.3
"""Distance of lines, relative to the font size."""


def _paint_cells(axes: Axes, bar: Axes, picture: Picture) -> None:
    """Draw the squares, hatched gaps, dashes, text where it fits, and the frame."""
    import seaborn as sns

    sns.heatmap(
        pd.DataFrame(
            [[square.place for square in row] for row in picture.squares],
            index=picture.k_types,
            columns=picture.v_types,
        ),
        ax=axes,
        cbar_ax=bar,
        cmap=COLOURS[picture.colours],
        vmin=0.0,
        vmax=1.0,
        linewidths=1.5,
        linecolor="white",
        square=True,
    )
    for at_k, row in enumerate(picture.squares):
        for at_v, square in enumerate(row):
            if math.isnan(square.place) and square.text:
                paint_gap(axes, at_k, at_v)
            if Style.OPEN in square.style:
                paint_open_dashes(axes, at_k, at_v)
            if has_room_for_labels(picture.k_types, picture.v_types):
                ink = _ink_colour(picture, square)
                _write_cell(
                    axes, square, at_k, at_v, ink=ink, grown=_growth_of_text(picture)
                )
    if picture.framed:
        at_k = picture.k_types.index(picture.framed.k)
        at_v = picture.v_types.index(picture.framed.v)
        frame = Rectangle((at_v, at_k), 1, 1, fill=False, edgecolor=INK, linewidth=2.5)
        frame.set_clip_on(False)
        axes.add_patch(frame)


def paint_open_dashes(axes: Axes, at_k: int, at_v: int) -> None:
    """Dashes within the cell in that row and column: not decided."""
    axes.add_patch(
        Rectangle(
            (at_v + 0.06, at_k + 0.06),
            *(0.88, 0.88),
            fill=False,
            edgecolor=INK,
            linestyle=(0, (3, 3)),
            linewidth=0.8,
        )
    )


def paint_gap(axes: Axes, at_k: int, at_v: int) -> None:
    """Hatch the cell in that row and column."""
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


def _write_cell(
    axes: Axes, square: Shown, at_k: int, at_v: int, *, ink: str, grown: float
) -> None:
    """Draw the text of a cell, as large as fits; *grown* times the usual size."""
    text = square.spelled_text.replace(ERROR.sign, f"\n{ERROR.sign}")
    longest = max(map(len, text.split("\n")))
    fits = 0.86 * CELL * POINTS_PER_INCH / (DIGIT_EM * max(longest, 1))
    how: dict[str, Any] = {"color": ink, "ha": "center", "va": "center"}
    axes.text(
        at_v + 0.5,
        at_k + (0.42 if square.below else 0.5),
        text,
        size=grown * min(CELL_POINTS, fits),
        style="italic" if math.isnan(square.place) else "normal",
        weight="bold" if square.style & (Style.BEYOND | Style.SET) else "normal",
        **how,
    )
    if square.below:
        fits = 0.9 * CELL * POINTS_PER_INCH / (EM * len(square.below))
        size = grown * min(WORD_POINTS, fits)
        axes.text(at_v + 0.5, at_k + 0.72, square.below, size=size, **how)


def _ink_colour(picture: Picture, square: Shown) -> str:
    """The colour of a cell's text; grey in a gap."""
    is_gap = math.isnan(square.place)
    return QUIET if is_gap else readable_ink_colour(picture.colours, square.place)


def readable_ink_colour(colours: str, place: float) -> str:
    """Black or white, whichever has more contrast at *place*, 0 to 1, of *colours*."""
    ground = COLOURS[colours](place)
    red, green, blue = (part * 255 for part in ground[:3])
    return readable_text_colour(red, green, blue)


def _paint_types(axes: Axes, picture: Picture) -> None:
    """V types above the grid, K types left of it, as in the published grids."""
    k_types, v_types = picture.k_types, picture.v_types
    axes.set_xticks([at + 0.5 for at in range(len(v_types))])
    turn = 0 if has_room_for_labels(picture.k_types, picture.v_types) else 90
    axes.set_xticklabels(
        map(escape_invisible, v_types), rotation=turn, size=TYPE_POINTS
    )
    axes.set_yticks([at + 0.5 for at in range(len(k_types))])
    axes.set_yticklabels(map(escape_invisible, k_types), rotation=0, size=TYPE_POINTS)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labelcolor=INK, pad=5)
    axes.set_xlabel("V cache", size=TYPE_POINTS, color=QUIET, labelpad=6)
    axes.set_ylabel("K cache", size=TYPE_POINTS, color=QUIET, labelpad=6)


def label_colour_bar(bar: Axes, scale: Scale | LossScale, caption: str) -> None:
    """Ticks and *caption* of the colour scale *bar*, which goes from 0 to 1."""
    ticks = (
        loss_ticks(scale.limit, scale.high)
        if isinstance(scale, LossScale)
        else _scale_ticks(scale)
    )
    places = [scale.place(tick) for tick in ticks]
    bar.set_yticks(places, [f"{tick:z.4g}" for tick in ticks])
    bar.tick_params(length=3, color=QUIET, labelcolor=INK, labelsize=NOTE_POINTS)
    bar.set_ylabel(escape_invisible(caption), size=NOTE_POINTS, color=QUIET)
    bar.yaxis.set_label_position("right")
    bar.yaxis.tick_right()


def _scale_ticks(scale: Scale) -> list[float]:
    """Both ends, and round numbers between them that do not overlap the ends."""
    inner = MaxNLocator(nbins=5).tick_values(scale.low, scale.high)
    apart = 0.07
    kept = [
        float(tick) + 0.0
        for tick in inner
        if apart < (tick - scale.low) / (scale.high - scale.low) < 1 - apart
    ]
    return [scale.low, *kept, scale.high]


def loss_ticks(limit: float, high: float) -> list[float]:
    """No loss, the *limit*, and 2, 5, 10, 20, ... times it, up to *high*."""
    times = (step * 10**power for power in range(4) for step in (2, 5, 10))
    beyond = itertools.takewhile(
        lambda at: at <= high, (limit * factor for factor in times)
    )
    return [0.0, limit, *beyond]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Which files a picture is written to."""

    folder: Path  # where they go; made if it does not exist
    forms: Sequence[str] = ("png", "svg")  # their endings: png, svg, pdf
    is_plain: bool = False
    """Whether the text below the picture is left out, for a paper."""


def draw_losses(losses: Losses, pair_flags: PairFlags, files: Files) -> list[Path]:
    """
    Write ``heatmap-loss``.

    Raises:
        FolderUnusable: If the disk refuses.
    """
    picture = loss_picture(losses, pair_flags)
    return write_pictures(functools.partial(paint, picture), files, name="heatmap-loss")


def loss_picture(losses: Losses, pair_flags: PairFlags) -> Picture:
    """The loss of each pair with its word, and a frame around the pair to set."""
    shown, verdict = losses.shown_losses(), losses.verdict
    k_types, v_types = shown_k_and_v_types(shown)
    return Picture(
        k_types=tuple(k_types),
        v_types=tuple(v_types),
        squares=split_into_rows(shown, len(v_types)),
        scale=losses.scale,
        colours="turns at the limit",
        caption=f"of 100 {losses.what}; limit {losses.limit:g}",
        title=_escaped_with_capital(losses.label),
        notes=(
            *captions.caution_and_gap_sentences(verdict.run),
            # What to set and what that loses, without the command that goes on.
            *(
                escape_invisible(line.strip())
                for line in headline_sentences(verdict, pair_flags)[:2]
            ),
            *mark_meaning_lines(shown, {REFERENCE_MARK: "", SET.sign: ""}),
        ),
        facts=captions.measured_on_lines(verdict.run),
        framed=verdict.chosen,
    )


def mark_meaning_lines(
    shown: Sequence[Shown], drawn: Mapping[str, str]
) -> Iterator[str]:
    """
    A line for each mark, but for those that a square spells itself.

    Args:
        shown: What has them.
        drawn: By sign, how marks look that are drawn and not written; empty for those
            that other lines tell of.
    """
    for sign, meaning in legend(shown, is_spelled=True):
        if word := drawn.get(sign, sign):
            yield f"{word}: {meaning}"


def draw_heatmap(
    run: Run,
    metric: Metric,
    *,
    difference: bool = False,
    verdict: Verdict,
    files: Files,
) -> list[Path]:
    """
    Write ``heatmap-METRIC``.

    Args:
        run: Records of one probe.
        metric: What to draw.
        difference: Whether to draw each pair's value less the reference's; the files
            are then called ``heatmap-METRIC-difference``.
        verdict: The verdict on the run: pairs beyond the limit by *metric* are bold.
        files: Where it goes.

    Returns:
        The paths of all files.

    Raises:
        NothingToShow: If no cell has a value.
        FolderUnusable: If the disk refuses.
    """
    picture = picture_of(run, metric, verdict, difference=difference)
    if all(math.isnan(square.place) for row in picture.squares for square in row):
        probe = captions.probe_name_of_metric(run, metric.name)
        raise captions.nothing_to_show_error(run, metric.name, probe)
    name = f"heatmap-{metric.name}{'-difference' if difference else ''}"
    return write_pictures(functools.partial(paint, picture), files, name=name)


def write_pictures(
    painted: Callable[[], Figure], files: Files, *, name: str
) -> list[Path]:
    """
    Write what *painted* returns; the same picture gives the same bytes.

    Raises:
        FolderUnusable: If the disk refuses.
    """
    with mpl.rc_context(_drawing_settings()), warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = painted()
        if files.is_plain:
            for text in figure.findobj(lambda artist: artist.get_gid() == BELOW):
                text.remove()
        contents = {form: _bytes_of(figure, form) for form in files.forms}
    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        # Files are replaced whole: an earlier picture is not lost on an error.
        return [
            _write_file(files.folder / f"{name}.{form}", content)
            for form, content in contents.items()
        ]
    except OSError as error:
        raise FolderUnusable(folder=files.folder, reason=str(error)) from error


METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What matplotlib would write into each form, without dates."""


def _bytes_of(figure: Figure, form: str) -> bytes:
    """*figure* with all that lies outside of it, as a file of that *form*."""
    content = io.BytesIO()
    figure.savefig(
        content,
        format=form,
        bbox_inches="tight",
        pad_inches=0.25,
        dpi=PIXELS_PER_INCH,
        metadata=METADATA[form],
    )
    return content.getvalue()


def _write_file(file: Path, content: bytes) -> Path:
    write_atomically(file, content)
    return file


def picture_of(
    run: Run,
    metric: Metric,
    verdict: Verdict,
    *,
    difference: bool = False,
) -> Picture:
    """
    The value of every pair, or with *difference* that less the reference's.

    Of values, lighter is better, or higher where neither is. Without a reference there
    are no differences, and values are shown.
    """
    cells = frames.cells_frame(run, metric)
    reference, display = frames.reference_pair(cells), display_of(metric)
    numbers = values_to_show(metric, cells)
    first = next((cell for cell in cells if cell.pair == reference), None)
    decisions = {cell.pair: verdict.decision(cell.pair, metric.name) for cell in cells}
    caption = metric.unit or metric.name
    if first and difference:
        numbers = changes_to_show(metric, cells, first)
        colours, caption = "around zero", f"difference, {caption}"
        label = number_text(first.value, digits=display.digits)
        title = f"{display.label}: difference from {reference} ({label})"
    else:
        is_lighter_low = numbers.scale.is_lighter_low
        colours = f"lighter is {'lower' if is_lighter_low else 'higher'}"
        title = display.label + captions.mean_or_sum_phrase(metric, cells)
    shown = shown_cells(
        metric,
        cells,
        numbers=numbers,
        setup=run.setup,
        inferred=verdict.inferred_pairs,
        beyond={p for p, word in decisions.items() if word == Decision.BEYOND},
    )
    k_types, v_types = shown_k_and_v_types(shown)
    return Picture(
        k_types=tuple(k_types),
        v_types=tuple(v_types),
        squares=split_into_rows(shown, len(v_types)),
        scale=numbers.scale,
        colours=colours,
        caption=caption,
        title=_escaped_with_capital(f"{title}{better_phrase(metric)}"),
        notes=_heatmap_notes(run, metric, cells, shown, verdict),
        facts=picture_facts(run),
        framed=reference,
    )


def better_phrase(metric: Metric) -> str:
    """``; higher is better``; empty where neither end is."""
    return "" if metric.better == "neither" else f"; {metric.better} is better"


def picture_facts(run: Run) -> tuple[str, ...]:
    """What *run* was measured on, a line each."""
    facts, engine = dict(captions.run_facts(run)), run.setup.engine
    return (
        escape_invisible(
            f"{run.name}  |  {facts['model']}  |  context {facts['context']}"
        ),
        *([facts["corpus"]] if "corpus" in facts else []),
        *(f"{name}: {phrase}" for name, phrase in captions.probe_settings_entries(run)),
        f"{engine} {facts[engine]}  |  {facts['machine']}  |  {facts['date']}",
    )


def _heatmap_notes(
    run: Run, metric: Metric, cells: Cells, shown: Sequence[Shown], verdict: Verdict
) -> tuple[str, ...]:
    """What stands below a heatmap: cautions, marks, gaps, and pairs by decision."""
    return (
        *captions.caution_and_gap_sentences(run),
        *mark_meaning_lines(shown, {REFERENCE_MARK: "Framed"}),
        *map(_escaped_with_capital, unmeasured_metric_lines(run, metric)),
        *map(_escaped_with_capital, missing_answer_lines(run)),
        *filter(None, [_escaped_with_capital(why_no_reference(cells))]),
        *(
            _decision_note(*metric_entry)
            for metric_entry in decision_entries(verdict, metric.name)
        ),
    )


def _decision_note(word: str, phrase: str) -> str:
    """Which pairs are within, open or, with bold labels, beyond the limit."""
    mark = " (bold)" if word == Decision.BEYOND else ""
    return f"{_escaped_with_capital(word)}{mark}: {phrase}"


def _escaped_with_capital(label: str) -> str:
    return escape_invisible(label[:1].upper() + label[1:])
