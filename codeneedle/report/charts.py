"""Charts of the page: memory against loss, and memory by context, as inline SVG."""

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
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
from codeneedle.report.verdict import pareto_front
from codeneedle.text import size, visible
from codeneedle.verdict.judge import Verdict
from codeneedle.verdict.statistics import Decision

THEME = {
    "#010101": "var(--ink)",
    "#020202": "var(--quiet)",
    "#030303": "var(--line)",
    "#040404": "var(--within)",
    "#050505": "var(--beyond)",
    "#060606": "var(--band)",
    "#070707": "var(--page)",
}
"""Colours of a chart, and the variables of the page that stand in their place."""

INK, QUIET, LINE, WITHIN, BEYOND, BAND, PAGE = THEME

POINTS = 9.0
"""Size of text."""

FORMATS = {"wide": (7.6, 4.2), "narrow": (3.9, 4.2)}
"""A chart is drawn for wide screens and for phones: class, and size in inches."""

MARKS = {
    Decision.WITHIN: ("o", WITHIN),
    Decision.OPEN: ("D", QUIET),
    Decision.BEYOND: ("s", BEYOND),
}
"""Marker and colour of each decision."""


# --- memory against loss


def front_charts(losses: Losses, *, number: int = 0) -> Markup:
    """
    Each pair's memory against its loss, for both formats; empty without sizes.

    *number* is that of the run on its page.
    """
    frame = front_frame(losses)
    if len(frame) < 2:  # noqa: PLR2004 - nothing to compare
        return Markup()
    return drawn_charts(
        lambda axes: paint_front(axes, frame, losses), f"front-{number}"
    )


def front_frame(losses: Losses) -> pd.DataFrame:
    """
    A row for each pair with a loss and a size.

    Columns: ``pair``, ``memory`` (share of the reference's), ``loss``, ``low`` and
    ``high`` (of 100), ``decision``, ``speed``, ``on_front``, ``is_set``.
    """
    verdict = losses.verdict
    best = {each.pair for each in pareto_front(verdict)} - {verdict.reference}
    return pd.DataFrame(
        [
            {
                "pair": visible(str(each.pair)),
                "memory": each.memory,
                "loss": PERCENT * row.bounds.mean,
                "low": PERCENT * row.bounds.low,
                "high": PERCENT * row.bounds.high,
                "decision": each.decision,
                "speed": each.speed,
                "on_front": each.pair in best,
                "is_set": each.pair == verdict.chosen,
            }
            for each in verdict.compared
            if each.memory is not None and (row := losses.rows.get(each.pair))
        ]
    )


def paint_front(axes: Axes, frame: pd.DataFrame, losses: Losses) -> list[Annotation]:
    """Draw *frame*; returns the labels of the pairs on the front."""
    on_front = frame[frame["on_front"]].sort_values("memory")
    _paint_limit(axes, frame, on_front, losses)
    axes.plot(on_front["memory"], on_front["loss"], color=LINE, linewidth=1, zorder=1)
    bars = on_front[on_front["high"].map(math.isfinite)]
    axes.vlines(bars["memory"], bars["low"], bars["high"], color=QUIET, linewidth=1.2)
    for decision, (marker, colour) in MARKS.items():
        for is_filled in (True, False):
            some = frame[
                (frame["decision"] == decision) & (frame["on_front"] == is_filled)
            ]
            axes.plot(
                some["memory"],
                some["loss"],
                marker,
                markersize=7 if is_filled else 5,
                color=colour,
                markerfacecolor=colour if is_filled else PAGE,
                alpha=1 if is_filled else 0.6,
                label=decision if is_filled else None,
                zorder=3 if is_filled else 2,
            )
    chosen = frame[frame["is_set"]]
    axes.plot(
        chosen["memory"],
        chosen["loss"],
        "o",
        markersize=15,
        markerfacecolor="none",
        markeredgecolor=INK,
        markeredgewidth=1.8,
        zorder=4,
    )
    _paint_tips(axes, frame)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        labelcolor=QUIET,
        fontsize=POINTS,
        handletextpad=0.1,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
    return _place_labels(axes, frame, on_front)


def _paint_limit(
    axes: Axes, frame: pd.DataFrame, on_front: pd.DataFrame, losses: Losses
) -> None:
    """Axes where the points are, on the scale of the colours; the limit as a band."""
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
    axes.axhspan(axes.get_ylim()[0], limit, color=BAND, linewidth=0, zorder=0)
    axes.annotate(
        "limit",
        (1, limit),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        size=POINTS,
        color=QUIET,
    )
    axes.set_xlabel("KV memory, of the reference's")
    axes.set_ylabel(f"{what} lost, of 100")


def _paint_tips(axes: Axes, frame: pd.DataFrame) -> None:
    """Unseen discs that a pointer finds; `inline` gives them their text."""
    for row in _rows(frame):
        known = math.isfinite(row.high)
        ends = f" ({row.low:z.1f} to {row.high:z.1f})" if known else ""
        lines = [
            f"{row.pair}: {row.decision}{', set' if row.is_set else ''}",
            f"memory {row.memory:.0%}",
            f"loss {row.loss:z.1f} of 100{ends}",
        ]
        if row.speed is not None and math.isfinite(row.speed):
            lines.append(f"writing speed {row.speed:.0%}")
        tip = f"{TIP}{'; '.join(lines)}"
        axes.plot(row.memory, row.loss, "o", markersize=14, alpha=0, gid=tip)


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of *frame*, a field for each column."""
    yield from frame.itertuples()


# --- labels that lie over nothing


@dataclass(frozen=True, slots=True)
class _Side:
    """A place of a label: so many points right of and above its point."""

    across: float
    up: float

    @property
    def style(self) -> dict[str, Any]:
        """Which part of the text lies there."""
        ha = "left" if self.across > 0 else "right" if self.across < 0 else "center"
        va = "bottom" if self.up > 0 else "top" if self.up < 0 else "center"
        return {"ha": ha, "va": va}


SIDES = [
    _Side(across * far, up * far)
    for far in (9, 14, 20, 26)
    for across, up in itertools.product((1, -1, 0), repeat=2)
    if across or up
]
"""Places of a label, the best first: right, then left, at growing distances."""


def _place_labels(
    axes: Axes, frame: pd.DataFrame, on_front: pd.DataFrame
) -> list[Annotation]:
    """Write the names of *on_front* where they lie over no point, bar or other name."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)  # noqa: S101 - axes of a figure, not of a subfigure
    figure.draw_without_rendering()
    taken = [*_points(axes, frame), *_bars(axes, on_front)]
    labels = []
    # What is to be set first, then by what it loses: names without room are left out.
    for row in _rows(on_front.sort_values(["is_set", "loss"], ascending=[False, True])):
        label = _placed(axes, row, taken)
        if label:
            taken.append(_box(label))
            labels.append(label)
    return labels


def _placed(axes: Axes, row: Any, taken: Sequence[Bbox]) -> Annotation | None:
    """The name of the pair of *row* at the first of `SIDES` that is free, if any is."""
    for side in SIDES:
        is_far = max(abs(side.across), abs(side.up)) > SIDES[0].across
        label = axes.annotate(
            row.pair,
            (row.memory, row.loss),
            xytext=(side.across, side.up),
            textcoords="offset points",
            size=POINTS,
            color=INK,
            weight="bold" if row.is_set else "normal",
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.6}
            if is_far
            else None,
            **side.style,
        )
        box, inside = _box(label), axes.bbox.padded(2)
        is_inside = inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1)
        if is_inside and not any(box.overlaps(each) for each in taken):
            return label
        label.remove()
    return None


def _box(label: Annotation) -> Bbox:
    """Where the text of *label* lies, without its line."""
    label.set_in_layout(False)
    label.get_window_extent()  # finds its place
    return Bbox(Text.get_window_extent(label).padded(1).get_points())


def _points(axes: Axes, frame: pd.DataFrame) -> Iterator[Bbox]:
    places = axes.transData.transform(frame[["memory", "loss"]].to_numpy(float))
    for x, y in places:
        yield Bbox.from_extents(x - 6, y - 6, x + 6, y + 6)


def _bars(axes: Axes, on_front: pd.DataFrame) -> Iterator[Bbox]:
    for end in _rows(on_front):
        if math.isfinite(end.high):
            (x, low), (_, high) = axes.transData.transform(
                [(end.memory, end.low), (end.memory, end.high)]
            )
            yield Bbox.from_extents(x - 1, low, x + 1, high)


# --- memory by context


Sizes = Mapping[Pair, Sequence[float | None]]
"""Bytes of the KV cache of each pair, by context."""


def memory_charts(
    verdict: Verdict, contexts: Sequence[int], sizes: Sizes, *, number: int = 0
) -> Markup:
    """
    Lines of the reference, the pair to set and the smallest; a table of all.

    *number* is that of the run on its page.
    """
    frame = memory_frame(verdict, contexts, sizes)
    if frame.empty:
        return Markup()
    chosen = visible(str(verdict.chosen))
    charts = drawn_charts(
        lambda axes: paint_memory(axes, frame, chosen), f"memory-{number}"
    )
    summary = Markup("<details><summary>All pairs</summary>{}</details>")
    return charts + summary.format(html([_memory_table(contexts, sizes)]))


def memory_frame(
    verdict: Verdict, contexts: Sequence[int], sizes: Sizes
) -> pd.DataFrame:
    """A row for each line and context. Columns: ``pair``, ``context``, ``bytes``."""
    return pd.DataFrame(
        [
            {"pair": visible(str(pair)), "context": context, "bytes": count}
            for pair in shown_pairs(verdict, sizes)
            for context, count in zip(contexts, sizes[pair], strict=True)
        ]
    )


def shown_pairs(verdict: Verdict, sizes: Sizes) -> list[Pair]:
    """The reference, the pair to set and the smallest, each once, with a size."""
    known = [pair for pair, of in sizes.items() if of and all(each for each in of)]
    smallest = min(known, key=lambda pair: sizes[pair][-1] or math.inf, default=None)
    named = dict.fromkeys((verdict.reference, verdict.chosen, smallest))
    return [pair for pair in named if pair in known]


def paint_memory(axes: Axes, frame: pd.DataFrame, chosen: str) -> None:
    """Draw *frame*, with a name at the end of each line."""
    order = list(dict.fromkeys(frame["pair"]))
    palette = {pair: WITHIN if pair == chosen else QUIET for pair in order}
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
    named = _named(contexts, width - BESIDE)
    axes.xaxis.set_major_formatter(
        lambda tick, _: _short(round(tick)) if round(tick) in named else ""
    )
    low, high = frame["bytes"].min(), frame["bytes"].max()
    powers = [2.0**power for power in range(10, 60, 2)]
    axes.yaxis.set_major_locator(
        FixedLocator([p for p in powers if low / 2 < p < high * 2])
    )
    axes.yaxis.set_major_formatter(lambda tick, _: size(round(tick)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    ends = frame[frame["context"] == contexts[-1]].sort_values("bytes")
    above = -math.inf
    for end in _rows(ends):
        _, y = axes.transData.transform((end.context, end.bytes))
        above = max(y, above + POINTS * 1.4)  # names below each other do not touch
        axes.annotate(
            f"{end.pair}{' (set)' if end.pair == chosen else ''}",
            (end.context, end.bytes),
            xytext=(7, above - y),
            textcoords="offset points",
            va="center",
            size=POINTS,
            color=INK,
            weight="bold" if end.pair == chosen else "normal",
            annotation_clip=False,
        )
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("KV cache")


BESIDE = 160.0
"""Points that sizes and pairs take beside the lines."""


def _named(contexts: Sequence[int], width: float) -> set[int]:
    """Those of ascending *contexts* whose names do not touch on *width* points."""
    octaves = math.log2(contexts[-1] / contexts[0]) or 1.0
    named: list[int] = []
    for each in reversed(contexts):
        letters = len(_short(each) + _short(named[-1])) / 2 if named else 0
        room = (0.7 * letters + 0.5) * POINTS
        if not named or math.log2(named[-1] / each) * width / octaves >= room:
            named.append(each)
    return set(named)


def _short(tokens: int) -> str:
    """``32K`` of 32,768."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def _memory_table(contexts: Sequence[int], sizes: Sizes) -> Table:
    rows = [
        [str(pair), *("" if count is None else size(count) for count in of)]
        for pair, of in sizes.items()
    ]
    return Table(["K/V", *(f"{each:,}" for each in contexts)], rows, words={"K/V"})


# --- inline SVG


TIP = "tip: "
"""Begins the name of an artist that shows the rest of it to a pointer."""


def drawn_charts(paint: Callable[[Axes], object], name: str) -> Markup:
    """What *paint* draws, once for each of `FORMATS`."""
    return Markup().join(
        inline(paint, inches, salt=f"{name}-{kind}", kind=kind)
        for kind, inches in FORMATS.items()
    )


def inline(
    paint: Callable[[Axes], object],
    inches: tuple[float, float],
    *,
    salt: str,
    kind: str,
) -> Markup:
    """
    What *paint* draws on axes, as an SVG element in the colours of the page.

    It asks for nothing, and names nothing outside of itself.

    Args:
        paint: Draws on the axes.
        inches: Width and height.
        salt: Differs between the charts of a page, so that their parts do, too.
        kind: Its class.
    """
    with mpl.rc_context(_style(salt)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=inches, dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure.add_subplot())
        content = io.StringIO()
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(content, format="svg", transparent=True, metadata=none)
    return Markup(_themed(content.getvalue(), kind))  # noqa: S704 - escaped by matplotlib


def _style(salt: str) -> dict[Any, Any]:
    return {
        "font.family": "DejaVu Sans",
        "font.size": POINTS,
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "svg.id": None,
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": LINE,
        "axes.labelcolor": QUIET,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": QUIET,
        "ytick.labelcolor": QUIET,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.5,
        "axes.axisbelow": True,
    }


NEEDLESS = r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->"


def _themed(svg: str, kind: str) -> str:
    """*svg* as an element of the page: its colours are variables, tips are titles."""
    _, _, body = svg.partition("<svg ")
    box = re.search(r'viewBox="([^"]*)"', body)
    _, _, body = body.partition(">")
    body = re.sub(NEEDLESS, "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = re.sub(rf'<g id="{TIP}([^"]*)">', r'<g class="tip"><title>\1</title>', body)
    body = re.sub(r' id="[a-zA-Z][\w.]*_\d+"', "", body)
    body = re.sub(r"\n\s*", "\n", body)
    for colour, variable in THEME.items():
        body = body.replace(colour, variable)
    return (
        f'<svg class="chart {kind}" role="img" viewBox="{box[1] if box else ""}">{body}'
    )
