"""
Draws the pictures of the documentation, each for light and for dark pages.

    python scripts/pictures.py [FOLDER]     # default: docs/pictures
    python scripts/pictures.py --readme RUN # those of the README, of another run
    python scripts/pictures.py --budget 700MiB 32K RUN RUN ... # of files of weights
    python scripts/pictures.py --task FOLDER # of what humaneval.py has measured
    python scripts/pictures.py --length RUN RUN ... # right tokens by length

They are of the run in docs/runs: `codeneedle sweep gradient`, with four types. The same
run gives the same pictures. Those of the README are of `make sweep`.
"""

import argparse
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import humaneval
import matplotlib as mpl
from humaneval import Beside
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.spines import Spine
from matplotlib.text import Text

import codeneedle
from codeneedle.cli.engines import engine_pair_flags
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.recall.probe import PROBE as RECALL
from codeneedle.quantities import parse_memory_size, parse_token_count
from codeneedle.records.record import Run
from codeneedle.report import charts, heatmap
from codeneedle.report.budget_chart import budget_frame, paint_budget
from codeneedle.report.losses import Losses, losses_of
from codeneedle.verdict.joint import join_runs
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.statistics import Bounds

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / "docs" / "runs" / "random-bodies-short" / "smollm2-135m-instruct.q4_1"

LIGHT = {
    "ink": "#1a1a1a",
    "quiet": "#595959",
    "line": "#c9ced6",
    "within": "#1f6f9f",
    "beyond": "#c4570c",
    "band": "#e6f0f7",
    "page": "#ffffff",
    "box": "#f4f8fb",
    "frame": "#1a1a1a",
}
DARK = {
    "ink": "#e6e6e6",
    "quiet": "#a4a7ad",
    "line": "#474c55",
    "within": "#9ecae1",
    "beyond": "#fdae61",
    "band": "#1b2833",
    "page": "#131416",  # of the theme, as --color-background-primary
    "box": "#1d2128",
    "frame": "#2b8cd6",  # on light squares, beside a dark page
}
"""Colours by their part; those of a page's charts have the same names."""

THEMES = {"": LIGHT, "-dark": DARK}
"""Colours by what the file's name ends with."""


def losses_of_run(folder: Path) -> Losses:
    """The losses of the run in *folder*, against the usual limit."""
    run = codeneedle.load(folder).run
    losses = losses_of(judge(run, Limits()))
    if losses is None:
        raise SystemExit(f"{folder} has no losses")
    return losses


def without_text_below(figure: Figure) -> Figure:
    """*figure* of a report without the sentences below it."""
    for text in figure.findobj(lambda artist: artist.get_gid() == heatmap.BELOW):
        text.remove()
    return figure


def restyled(figure: Figure, colours: Mapping[str, str]) -> Figure:
    """*figure* of a report in these colours."""
    swap = {heatmap.INK: colours["ink"], heatmap.QUIET: colours["quiet"]}
    figure.set_facecolor("none")
    for artist in figure.findobj():
        if isinstance(artist, Text | Line2D):
            shown = to_hex(artist.get_color())
            is_tick = isinstance(artist, Line2D) and shown == "#000000"
            artist.set_color(colours["quiet"] if is_tick else swap.get(shown, shown))
        elif isinstance(artist, QuadMesh) and len(artist.get_edgecolor()) == 1:
            artist.set_edgecolor(colours["page"])
        elif isinstance(artist, Patch) and not isinstance(artist, Spine):
            shown = to_hex(artist.get_edgecolor())
            if artist.get_linewidth() > 1 and shown in swap:
                artist.set_edgecolor(colours["frame"])
    return figure


def svg(figure: Figure) -> str:
    """*figure* as SVG without a date; its background is that of the page."""
    content = io.StringIO()
    none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(
        content, format="svg", transparent=True, bbox_inches="tight", metadata=none
    )
    return content.getvalue()


def loss(colours: Mapping[str, str]) -> str:
    """The loss of each pair."""
    losses = losses_of_run(SMOLLM2)
    picture = heatmap.loss_picture(
        losses, engine_pair_flags(losses.verdict.run.setup.engine)
    )
    with mpl.rc_context(heatmap._drawing_settings()):  # noqa: SLF001 - its font and its ids
        figure = without_text_below(heatmap.paint(picture))
        return svg(restyled(figure, colours))


def draw_readme(run: Path, folder: Path = ROOT / ".github") -> list[Path]:
    """Write the pictures of the README, of the loss of each pair of *run*."""
    losses = losses_of_run(run)
    picture = heatmap.loss_picture(
        losses, engine_pair_flags(losses.verdict.run.setup.engine)
    )
    written = []
    for end, colours in THEMES.items():
        file = folder / f"heatmap{end}.png"
        with mpl.rc_context(heatmap._drawing_settings()):  # noqa: SLF001 - its font
            figure = restyled(heatmap.paint(picture), colours)
            figure.savefig(
                file, dpi=150, facecolor=colours["page"], bbox_inches="tight"
            )
        written.append(file)
    return written


def front(colours: Mapping[str, str]) -> str:
    """Memory against loss."""
    losses = losses_of_run(SMOLLM2)
    frame = charts.loss_by_memory_frame(losses)
    return chart(
        lambda axes, theme: charts.paint_loss_by_memory(axes, frame, losses, theme),
        colours,
    )


def chart(
    paint: Callable[..., object], colours: Mapping[str, str], *, panels: int = 1
) -> str:
    """What *paint* draws on *panels* side by side, as SVG in these *colours*."""
    theme = charts.Theme(*(colours[part] for part in charts.Theme._fields))
    style = charts._chart_style(theme) | {"svg.fonttype": "path"}  # noqa: SLF001
    with mpl.rc_context(style), warnings.catch_warnings():
        figure = Figure(figsize=(7.6, 4.2), dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        side_by_side = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
        paint(*side_by_side, theme)
        return svg(figure)


TASK = "task"
"""The picture of losses beside the scores of a task."""

KINDS = {
    "recall": ("^", -0.27, "recall"),
    "solutions": ("s", -0.09, "solutions"),
    "answers": ("D", 0.09, "solutions as answers"),
    "text": ("o", 0.27, "ordinary text"),
}
"""Markers, places beside a pair and names of losses, by the field of `Beside`."""


def draw_task(folder: Path, into: Path = ROOT / "docs" / "pictures") -> list[Path]:
    """Write losses of right tokens beside the points that a task loses."""
    rows = [row for row in humaneval.by_loss(folder) if row[1].solutions]
    return write_both(
        into / TASK,
        partial(
            chart,
            lambda left, right, theme: paint_task(left, right, rows, theme),
            panels=2,
        ),
    )


def write_both(stem: Path, draw_in: Callable[[Mapping[str, str]], str]) -> list[Path]:
    """Write what *draw_in* makes of light and of dark colours; returns both paths."""
    written = []
    for end, colours in THEMES.items():
        file = stem.with_name(f"{stem.name}{end}.svg")
        file.write_text(draw_in(colours), encoding="utf-8")
        written.append(file)
    return written


def paint_task(
    left: Axes, right: Axes, rows: Sequence[tuple[str, Beside]], theme: charts.Theme
) -> None:
    """Losses of right tokens on the *left*, those of the score on the *right*."""
    places = range(len(rows))
    for axes in (left, right):
        axes.axvline(0, color=theme.line, linewidth=1)
        axes.tick_params(length=0)
    for field, (marker, shift, _) in KINDS.items():
        for place, (_, row) in zip(places, rows, strict=True):
            bounds = getattr(row, field)
            paint_bounds(left, place + shift, bounds, marker, theme.within)
    for place, (_, row) in zip(places, rows, strict=True):
        bounds = row.score.bounds if row.score else None
        paint_bounds(right, place, bounds, "D", theme.beyond)
        if row.score:
            flips = f"{row.score.lost} lost, {row.score.won} won"
            at = (100 * row.score.bounds.mean, place)
            right.annotate(
                flips,
                at,
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                color=theme.quiet,
                fontsize=9,
            )
    left.set_yticks(places, [pair for pair, _ in rows])
    left.invert_yaxis()
    left.set_title("right tokens lost, of 100", fontsize=11, color=theme.ink)
    right.set_title("points of the score lost", fontsize=11, color=theme.ink)
    shown = [
        Line2D([], [], linestyle="", marker=marker, color=theme.within, label=name)
        for marker, _, name in KINDS.values()
    ]
    left.legend(handles=shown, loc="upper right", frameon=False, labelcolor=theme.ink)


def paint_bounds(
    axes: Axes, place: float, bounds: Bounds | None, marker: str, colour: str
) -> None:
    """A mean as a *marker*, and its interval as a line; nothing of no *bounds*."""
    if bounds is None:
        return
    ends = [100 * bounds.low, 100 * bounds.high]
    axes.plot(ends, [place] * 2, color=colour, linewidth=1.5, alpha=0.5)
    axes.plot([100 * bounds.mean], [place], marker=marker, color=colour)


BUDGET = "budget"
"""The picture of files of weights, whose runs are not among those of `docs`."""


def draw_budget(
    most: str, at: str, runs: Iterable[str], folder: Path = ROOT / "docs" / "pictures"
) -> list[Path]:
    """Write memory against loss of *runs*, and the budget of *most* at *at* tokens."""
    limits = Limits(
        max_memory_bytes=parse_memory_size("--budget", most),
        at=parse_token_count("--budget", at),
    )
    loaded = [codeneedle.load(Path(run)).run for run in runs]
    frame = budget_frame(judge(join_runs(loaded, limits.at), limits))
    return write_both(
        folder / BUDGET,
        partial(
            chart,
            lambda axes, theme: paint_budget(
                axes, frame, limits.max_memory_bytes, theme
            ),
        ),
    )


LENGTH = "length"
"""The picture of texts of several lengths."""

LABEL_STEP = 4.5
"""Least distance of two names of pairs, in right tokens of 100."""

MUCH = 0.05
"""Share of right tokens that a pair loses which is drawn in the colour of *beyond*."""


def draw_length(
    runs: Iterable[Path], folder: Path = ROOT / "docs" / "pictures"
) -> list[Path]:
    """Write the right tokens of each pair of *runs*, by the length of their text."""
    by_pair: dict[str, dict[int, Bounds]] = {}
    for run in (codeneedle.load(path).run for path in runs):
        for pair, right in _right_tokens(run):
            by_pair.setdefault(pair, {})[run.setup.corpus.tokens] = right
    return write_both(
        folder / LENGTH,
        partial(chart, lambda axes, theme: paint_length(axes, by_pair, theme)),
    )


def _right_tokens(run: Run) -> Iterator[tuple[str, Bounds]]:
    """
    The share of right tokens of recall, by pair, the reference first.

    What a pair loses, with its interval, is taken from what the reference has.
    """
    verdict = judge(run, Limits())
    logp, *_ = FORCED
    records = {each.pair: each for each in run.of_probe(RECALL.name).records}
    if verdict.reference is None:
        return
    right = logp.loss_values_by_unit(records[verdict.reference], run.setup)
    own = fmean(right.values())
    yield str(verdict.reference), Bounds(mean=own, low=own, high=own, units=len(right))
    for result in verdict.compared_results:
        if row := result.metric_result(logp.name):
            low, high = own - row.bounds.high, own - row.bounds.low
            mean = own - row.bounds.mean
            yield str(result.pair), replace(row.bounds, mean=mean, low=low, high=high)


def paint_length(
    axes: Axes,
    by_pair: Mapping[str, Mapping[int, Bounds]],
    theme: charts.Theme,
) -> None:
    """A line of right tokens for each pair, with intervals, over tokens."""
    reference, own = next(iter(by_pair.items()))
    labels: list[tuple[int, float, str, str]] = []
    for pair, points in by_pair.items():
        tokens = sorted(points)
        means = [100 * points[at].mean for at in tokens]
        lost = max(own[at].mean - points[at].mean for at in tokens)
        colour = theme.beyond if lost > MUCH else theme.within
        colour = theme.ink if pair == reference else colour
        axes.plot(tokens, means, marker="o", color=colour)
        for at in tokens:
            ends = [100 * points[at].low, 100 * points[at].high]
            axes.plot([at, at], ends, color=colour, linewidth=1.5, alpha=0.5)
        labels.append((tokens[-1], means[-1], pair, colour))
    places: dict[int, float] = {}
    for at, mean, pair, colour in sorted(labels, key=lambda label: -label[1]):
        places[at] = min(mean, places.get(at, mean + LABEL_STEP) - LABEL_STEP)
        axes.annotate(
            pair,
            (at, places[at]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.set_xscale("log", base=2)
    ticks = sorted({at for points in by_pair.values() for at in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(length=0)
    axes.margins(x=0.15)
    axes.set_ylim(0, 100)
    axes.set_xlabel("tokens of the text", color=theme.quiet)
    axes.set_title("right tokens of 100", fontsize=11, color=theme.ink)


# --- how it works: boxes from left to right, in two rows

BOXES = (
    ("request", "options, sweep file"),
    ("plan", "pairs, kernels,\nmemory, time"),
    ("cell", "one server for each pair:\nstart, verify, ask, end"),
    ("record", "answers as they came,\none file for each cell"),
    ("statistics", "loss of each pair,\nwith its interval"),
    ("report", "verdict, grid,\npicture, page"),
)
WIDTH, HEIGHT, GAP = 200, 92, 44


def inside(colours: Mapping[str, str]) -> str:
    """The way from a request to a report."""
    wide, high = 3 * WIDTH + 2 * GAP + 4, 2 * HEIGHT + 70 + 4
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif"',
        f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">',
    ]
    for at, (title, text) in enumerate(BOXES):
        parts += _box(at, title, text, colours)
    parts += [_arrow(at, colours) for at in range(len(BOXES) - 1)]
    return "\n".join([*parts, "</svg>\n"])


def _corner(at: int) -> tuple[int, int]:
    row, column = divmod(at, 3)
    return 2 + column * (WIDTH + GAP), 2 + row * (HEIGHT + 70)


def _box(at: int, title: str, text: str, colours: Mapping[str, str]) -> Iterator[str]:
    x, y = _corner(at)
    edge = colours["beyond" if title == "cell" else "line"]
    yield (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="10" '
        f'fill="{colours["box"]}" stroke="{edge}" stroke-width="1.5"/>'
    )
    middle = x + WIDTH // 2
    yield (
        f'<text x="{middle}" y="{y + 30}" text-anchor="middle" font-size="17" '
        f'font-weight="600" fill="{colours["ink"]}">{title}</text>'
    )
    for line, words in enumerate(text.split("\n")):
        yield (
            f'<text x="{middle}" y="{y + 53 + 19 * line}" text-anchor="middle" '
            f'font-size="14" fill="{colours["quiet"]}">{words}</text>'
        )


def _arrow(at: int, colours: Mapping[str, str]) -> str:
    """From a box to the next one; from the end of the first row back to the second."""
    x, y = _corner(at)
    to_x, to_y = _corner(at + 1)
    if to_y == y:
        start, end = x + WIDTH + 6, to_x - 8
        line = f"M{start} {y + HEIGHT // 2}H{end}"
        tip = f"M{end - 7} {y + HEIGHT // 2 - 6}l8 6l-8 6"
    else:
        out, into = x + WIDTH // 2, to_x + WIDTH // 2
        half = y + HEIGHT + 35
        line = (
            f"M{out} {y + HEIGHT + 6}V{half - 10}q0 10 -10 10H{into + 10}"
            f"q-10 0 -10 10V{to_y - 8}"
        )
        tip = f"M{into - 6} {to_y - 15}l6 8l6 -8"
    return (
        f'<path d="{line}{tip}" fill="none" stroke="{colours["quiet"]}" '
        'stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"/>'
    )


PICTURES: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "loss": loss,
    "front": front,
    "inside": inside,
}


def draw(folder: Path, names: Iterable[str] = PICTURES) -> list[Path]:
    """Write the pictures of these *names* into *folder*; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        file for name in names for file in write_both(folder / name, PICTURES[name])
    ]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The *arguments* of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "docs" / "pictures"
    )
    parser.add_argument("--readme", metavar="RUN", type=Path)
    parser.add_argument("--budget", metavar="WORD", nargs="+")
    parser.add_argument("--task", metavar="FOLDER", type=Path)
    parser.add_argument("--length", metavar="RUN", type=Path, nargs="+")
    return parser.parse_args(arguments)


def main() -> None:
    """Draw all pictures, and print where they are."""
    chosen = parsed()
    if chosen.budget:
        most, at, *runs = chosen.budget
        written = draw_budget(most, at, runs)
    elif chosen.task:
        written = draw_task(chosen.task)
    elif chosen.length:
        written = draw_length(chosen.length)
    else:
        written = draw_readme(chosen.readme) if chosen.readme else draw(chosen.folder)
    for file in written:
        print(file)


if __name__ == "__main__":
    main()
