"""Charts of the page: memory against loss, and memory by context, as pictures."""

import base64
import io
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter
from matplotlib.transforms import Bbox

from codeneedle.cache_types import Pair
from codeneedle.document import Table
from codeneedle.report.heatmap import loss_ticks
from codeneedle.report.html import html
from codeneedle.report.losses import PERCENT, Losses
from codeneedle.text import escape_invisible, size_text
from codeneedle.verdict.judge import Verdict, pareto_front_with_chosen_pair
from codeneedle.verdict.statistics import Decision


class Theme(NamedTuple):
    """The colours of a chart: those of the page, light or dark."""

    ink: str
    quiet: str
    line: str
    page: str
    within: str
    beyond: str
    band: str


LIGHT = Theme(
    *("#1b1f24", "#5b6470", "#d5d9df", "#ffffff"), *("#2b6ea8", "#b5500b", "#e6f1fb")
)
DARK = Theme(
    *("#e6e9ee", "#9aa4b1", "#343b45", "#14171b"), *("#7fb8e6", "#f0954a", "#1b2a3a")
)

POINTS = 9.0
"""Size of text."""

FORMATS = {"(max-width: 600px)": (3.9, 4.2), "": (7.6, 4.2)}
"""A chart is drawn for phones and for wide screens: which, and size in inches."""

THEMES = {"(prefers-color-scheme: dark)": DARK, "": LIGHT}

MARKERS = {Decision.WITHIN: "o", Decision.OPEN: "D", Decision.BEYOND: "s"}
"""Of each decision."""


# --- memory against loss


def loss_by_memory_chart(losses: Losses) -> Markup:
    """Each pair's memory against its loss; empty if fewer than two have both."""
    frame = loss_by_memory_frame(losses)
    if len(frame) < 2:  # noqa: PLR2004 - nothing to compare
        return Markup()
    return picture_element(
        lambda axes, theme: paint_loss_by_memory(axes, frame, losses, theme),
        about=f"Memory of each pair against its loss: {losses.label}",
    )


def loss_by_memory_frame(losses: Losses) -> pd.DataFrame:
    """
    A row for each pair with a loss and a size.

    Columns: ``pair``, ``memory`` (share of the reference's), ``loss``, ``low`` and
    ``high`` (of 100), ``decision``, ``on_front``, ``is_set``.
    """
    verdict = losses.verdict
    best = {result.pair for result in pareto_front_with_chosen_pair(verdict)} - {
        verdict.reference
    }
    return pd.DataFrame(
        [
            {
                "pair": escape_invisible(str(result.pair)),
                "memory": result.memory,
                "loss": PERCENT * row.bounds.mean,
                "low": PERCENT * row.bounds.low,
                "high": PERCENT * row.bounds.high,
                "decision": result.decision,
                "on_front": result.pair in best,
                "is_set": result.pair == verdict.chosen,
            }
            for result in verdict.compared_results
            if result.memory is not None and (row := losses.rows.get(result.pair))
        ]
    )


def paint_loss_by_memory(
    axes: Axes, frame: pd.DataFrame, losses: Losses, theme: Theme = LIGHT
) -> list[Annotation]:
    """Draw *frame* and the limit; returns the names on the front that have room."""
    on_front = frame[frame["on_front"]].sort_values("memory")
    _scale_axes_and_paint_limit(axes, frame, on_front, losses, theme)
    axes.plot(
        on_front["memory"], on_front["loss"], color=theme.line, linewidth=1, zorder=1
    )
    bars = on_front[on_front["high"].map(math.isfinite)]
    axes.vlines(
        bars["memory"], bars["low"], bars["high"], color=theme.quiet, linewidth=1.2
    )
    colours = {
        Decision.WITHIN: theme.within,
        Decision.OPEN: theme.quiet,
        Decision.BEYOND: theme.beyond,
    }
    for decision, colour in colours.items():
        for is_filled in (True, False):
            some = frame[
                (frame["decision"] == decision) & (frame["on_front"] == is_filled)
            ]
            axes.plot(
                some["memory"],
                some["loss"],
                MARKERS[decision],
                markersize=7 if is_filled else 5,
                color=colour,
                markerfacecolor=colour if is_filled else theme.page,
                alpha=1 if is_filled else 0.6,
                label=decision if is_filled else None,
                zorder=3 if is_filled else 2,
            )
    paint_chosen_ring(axes, frame, theme)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        labelcolor=theme.quiet,
        fontsize=POINTS,
        handletextpad=0.1,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
    return _place_front_names_if_room(axes, frame, on_front, theme)


def paint_chosen_ring(axes: Axes, frame: pd.DataFrame, theme: Theme) -> None:
    """Draw a ring round what is set, where *frame* says ``is_set``."""
    chosen = frame[frame["is_set"]]
    axes.plot(
        chosen["memory"],
        chosen["loss"],
        "o",
        markersize=15,
        markerfacecolor="none",
        markeredgecolor=theme.ink,
        markeredgewidth=1.8,
        zorder=4,
    )


def _scale_axes_and_paint_limit(
    axes: Axes,
    frame: pd.DataFrame,
    on_front: pd.DataFrame,
    losses: Losses,
    theme: Theme,
) -> None:
    """Scale axes to the points and the colours, and paint the limit as a band."""
    limit, what = losses.limit, losses.what
    seen = [*frame["loss"], *on_front["low"], *on_front["high"], 0.0, limit]
    low, high = min(filter(math.isfinite, seen)), max(filter(math.isfinite, seen))
    axes.set_yscale("symlog", linthresh=limit, linscale=0.8)
    axes.set_ylim(low - 0.2 * limit, high * 1.25)
    axes.yaxis.set_major_locator(FixedLocator(loss_ticks(limit, high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
    room = 0.08 * (frame["memory"].max() - frame["memory"].min() or 1.0)
    axes.set_xlim(frame["memory"].min() - room, frame["memory"].max() + room)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.axhspan(axes.get_ylim()[0], limit, color=theme.band, linewidth=0, zorder=0)
    axes.annotate(
        "limit",
        (1, limit),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        size=POINTS,
        color=theme.quiet,
    )
    axes.set_xlabel("KV memory, of the reference's")
    axes.set_ylabel(f"{what} lost, of 100")


def _frame_rows(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of *frame*, a field for each column."""
    yield from frame.itertuples()


# --- labels that lie over nothing


NEAR = 9
"""Points from a point to its label where there is room."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A place of a label: so many points right of and above its point."""

    across: float
    up: float

    @property
    def text_alignment(self) -> dict[str, Any]:
        """Which part of the text lies there: ``ha`` and ``va`` of matplotlib."""
        ha = "left" if self.across > 0 else "right" if self.across < 0 else "center"
        va = "bottom" if self.up > 0 else "top" if self.up < 0 else "center"
        return {"ha": ha, "va": va}

    @property
    def is_far(self) -> bool:
        """Whether a label there does not touch its point."""
        return max(abs(self.across), abs(self.up)) > NEAR


SIDES = [
    _Side(across * far, up * far)
    for far in (NEAR, 14, 20, 26)
    for across, up in itertools.product((1, -1, 0), repeat=2)
    if across or up
]
"""Places of a label, the best first: right, then left, at growing distances."""


def _place_front_names_if_room(
    axes: Axes, frame: pd.DataFrame, on_front: pd.DataFrame, theme: Theme
) -> list[Annotation]:
    """
    Write the names of *on_front* where they lie over no point, bar or other name.

    What is set comes first, then what loses least; names without room are left out.
    """
    figure = axes.get_figure()
    assert isinstance(figure, Figure)  # noqa: S101 - axes of a figure, not of a subfigure
    figure.draw_without_rendering()
    taken = [*_point_boxes(axes, frame), *_interval_boxes(axes, on_front)]
    labels = []
    # What is to be set first, then by what it loses: names without room are left out.
    for row in _frame_rows(
        on_front.sort_values(["is_set", "loss"], ascending=[False, True])
    ):
        label = _place_name_if_room(axes, row, taken, theme)
        if label:
            taken.append(_text_box(label))
            labels.append(label)
    return labels


def _place_name_if_room(
    axes: Axes, row: Any, taken: Sequence[Bbox], theme: Theme
) -> Annotation | None:
    """Write the pair of *row* at the first of `SIDES` that is free; None if none is."""
    tried = _write_name(axes, row, SIDES[0], theme)
    inside = axes.bbox.padded(2)

    def is_free_after_moving(side: _Side) -> bool:
        tried.xyann = (side.across, side.up)
        tried.set(**side.text_alignment)
        box = _text_box(tried)
        is_inside = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
        return is_inside and not any(box.overlaps(other) for other in taken)

    found = next(filter(is_free_after_moving, SIDES), None)
    # Drawn anew: only the place that is taken has a line, whose path takes long.
    tried.remove()
    return _write_name(axes, row, found, theme, is_tied=found.is_far) if found else None


def _write_name(
    axes: Axes, row: Any, side: _Side, theme: Theme, *, is_tied: bool = False
) -> Annotation:
    """Write the pair of *row* at *side* of its point, with a line if *is_tied*."""
    line = {"arrowstyle": "-", "color": theme.quiet, "linewidth": 0.6}
    return axes.annotate(
        row.pair,
        (row.memory, row.loss),
        xytext=(side.across, side.up),
        textcoords="offset points",
        size=POINTS,
        color=theme.ink,
        weight="bold" if row.is_set else "normal",
        arrowprops=line if is_tied else None,
        **side.text_alignment,
    )


def _text_box(label: Annotation) -> Bbox:
    """Where the text of *label* lies, without its line; takes it out of the layout."""
    label.set_in_layout(False)
    label.get_window_extent()  # finds its place
    return Bbox(Text.get_window_extent(label).padded(1).get_points())


def _point_boxes(axes: Axes, frame: pd.DataFrame) -> Iterator[Bbox]:
    """The boxes of the points of *frame*, in pixels, that labels keep off."""
    places = axes.transData.transform(frame[["memory", "loss"]].to_numpy(float))
    for x, y in places:
        yield Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)


def _interval_boxes(axes: Axes, on_front: pd.DataFrame) -> Iterator[Bbox]:
    """The boxes of the finite intervals of *on_front*, in pixels."""
    for end in _frame_rows(on_front):
        if math.isfinite(end.high):
            (x, low), (_, high) = axes.transData.transform(
                [(end.memory, end.low), (end.memory, end.high)]
            )
            yield Bbox.from_extents(x - 1, low, x + 1, high)


# --- memory by context


Sizes = Mapping[Pair, Sequence[float | None]]
"""Bytes of the KV cache of each pair, by context."""


def memory_chart(verdict: Verdict, contexts: Sequence[int], sizes: Sizes) -> Markup:
    """
    Lines of the reference, the pair to set and the smallest; a table of all.

    Empty where no size is known.
    """
    frame = memory_frame(verdict, contexts, sizes)
    if frame.empty:
        return Markup()
    chosen = escape_invisible(str(verdict.chosen))
    chart = picture_element(
        lambda axes, theme: paint_memory(axes, frame, chosen, theme),
        about="Size of the KV cache by context, of three pairs",
    )
    summary = Markup("<details><summary>All pairs</summary>{}</details>")
    return chart + summary.format(html([_memory_table(contexts, sizes)]))


def memory_frame(
    verdict: Verdict, contexts: Sequence[int], sizes: Sizes
) -> pd.DataFrame:
    """A row for each line and context. Columns: ``pair``, ``context``, ``bytes``."""
    return pd.DataFrame(
        [
            {"pair": escape_invisible(str(pair)), "context": context, "bytes": count}
            for pair in memory_chart_pairs(verdict, sizes)
            for context, count in zip(contexts, sizes[pair], strict=True)
        ]
    )


def memory_chart_pairs(verdict: Verdict, sizes: Sizes) -> list[Pair]:
    """The reference, the pair to set and the smallest, each once, if of known size."""
    known = [pair for pair, of in sizes.items() if of and all(size for size in of)]
    smallest = min(known, key=lambda pair: sizes[pair][-1] or math.inf, default=None)
    named = dict.fromkeys((verdict.reference, verdict.chosen, smallest))
    return [pair for pair in named if pair in known]


def paint_memory(
    axes: Axes, frame: pd.DataFrame, chosen: str, theme: Theme = LIGHT
) -> None:
    """Draw *frame*, with a name at the end of each line."""
    import seaborn as sns

    order = list(dict.fromkeys(frame["pair"]))
    palette = {pair: theme.within if pair == chosen else theme.quiet for pair in order}
    sns.lineplot(
        frame, x="context", y="bytes", hue="pair", palette=palette, marker="o",
        markeredgewidth=0, legend=False, ax=axes,
    )  # fmt: skip
    contexts = sorted({*frame["context"]})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    figure = axes.get_figure(root=True)
    width = figure.bbox.width if figure else axes.bbox.width
    named = _contexts_to_label(contexts, width - BESIDE)
    axes.xaxis.set_major_formatter(
        lambda tick, _: _short_count(round(tick)) if round(tick) in named else ""
    )
    low, high = frame["bytes"].min(), frame["bytes"].max()
    powers = [2.0**power for power in range(10, 60, 2)]
    axes.yaxis.set_major_locator(
        FixedLocator([p for p in powers if low / 2 < p < high * 2])
    )
    axes.yaxis.set_major_formatter(lambda tick, _: size_text(round(tick)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    ends = frame[frame["context"] == contexts[-1]].sort_values("bytes")
    above = -math.inf
    for end in _frame_rows(ends):
        _, y = axes.transData.transform((end.context, end.bytes))
        above = max(y, above + POINTS * 1.4)  # names below each other do not touch
        axes.annotate(
            f"{end.pair}{' (set)' if end.pair == chosen else ''}",
            (end.context, end.bytes),
            xytext=(7, above - y),
            textcoords="offset points",
            va="center",
            size=POINTS,
            color=theme.ink,
            weight="bold" if end.pair == chosen else "normal",
            annotation_clip=False,
        )
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("KV cache")


BESIDE = 160.0
"""Points that sizes and pairs take beside the lines."""


def _contexts_to_label(contexts: Sequence[int], width: float) -> set[int]:
    """Those of ascending *contexts* whose names do not touch on *width* points."""
    octaves = math.log2(contexts[-1] / contexts[0]) or 1.0
    named: list[int] = []
    for context in reversed(contexts):
        letters = (
            len(_short_count(context) + _short_count(named[-1])) / 2 if named else 0
        )
        room = (0.7 * letters + 0.5) * POINTS
        if not named or math.log2(named[-1] / context) * width / octaves >= room:
            named.append(context)
    return set(named)


def _short_count(tokens: int) -> str:
    """``32K`` of 32,768; ``4,000`` if not a multiple of 1,024."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def _memory_table(contexts: Sequence[int], sizes: Sizes) -> Table:
    """The size of each pair at each context; empty where it is unknown."""
    rows = [
        [str(pair), *("" if count is None else size_text(count) for count in of)]
        for pair, of in sizes.items()
    ]
    return Table(
        ["K/V", *(f"{context:,}" for context in contexts)], rows, words={"K/V"}
    )


# --- as pictures


def picture_element(paint: Callable[[Axes, Theme], object], *, about: str) -> Markup:
    """
    What *paint* draws, as one element: a browser takes the picture that fits.

    Pictures are inside of the page: it asks for nothing.

    Args:
        paint: Draws on axes, in the colours of a theme.
        about: What is drawn, for those who do not see it.
    """
    drawn = {
        " and ".join(filter(None, [screen, scheme])): _picture_url(paint, inches, theme)
        for (screen, inches), (scheme, theme) in itertools.product(
            FORMATS.items(), THEMES.items()
        )
    }
    image = drawn.pop("")
    sources = (
        Markup('<source media="{}" srcset="{}">').format(media, source)
        for media, source in drawn.items()
    )
    return Markup('<picture>{}<img class="chart" alt="{}" src="{}"></picture>').format(
        Markup().join(sources), escape_invisible(about), image
    )


def _picture_url(
    paint: Callable[[Axes, Theme], object], inches: tuple[float, float], theme: Theme
) -> str:
    """What *paint* draws, as SVG in a ``data:`` address."""
    with mpl.rc_context(_chart_style(theme)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=inches, dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure.add_subplot(), theme)
        content = io.BytesIO()
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(content, format="svg", transparent=True, metadata=none)
    return f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"


def _chart_style(theme: Theme) -> dict[Any, Any]:
    """What matplotlib draws with in the colours of *theme*."""
    return {
        "font.family": ["DejaVu Sans", "sans-serif"],
        "font.size": POINTS,
        "svg.fonttype": "none",
        "svg.hashsalt": "codeneedle",
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": theme.line,
        "axes.labelcolor": theme.quiet,
        "xtick.color": theme.line,
        "ytick.color": theme.line,
        "xtick.labelcolor": theme.quiet,
        "ytick.labelcolor": theme.quiet,
        "axes.grid": True,
        "grid.color": theme.line,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
    }
