"""Charts of the page: names over nothing, the limit as a band, light and dark."""

import itertools
import re
from dataclasses import replace

import pytest
from drawn import pictures_in
from made_grids import lossy_grid
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from syrupy.assertion import SnapshotAssertion

from codeneedle.cache_types import Pair
from codeneedle.report.charts import (
    FORMATS,
    THEMES,
    loss_by_memory_chart,
    loss_by_memory_frame,
    memory_chart,
    memory_chart_pairs,
    memory_frame,
    paint_loss_by_memory,
    paint_memory,
)
from codeneedle.report.losses import losses_of
from codeneedle.verdict.judge import judge

pytestmark = pytest.mark.slow

VERDICT = judge(lossy_grid())
LOSSES = losses_of(VERDICT)
FRAME = loss_by_memory_frame(LOSSES)
SIZES = {
    Pair.parse(pair): [size, 4 * size]
    for pair, size in {
        "bf16/bf16": 2**30,
        "q8_0/q8_0": 2**29,
        "q8_0/q4_1": 2**28,
        "q4_0/q4_0": 2**27,
    }.items()
}


def painted(kind: str) -> tuple[Axes, list[Text]]:
    """The axes of a chart, and the names on it."""
    figure = Figure(figsize=FORMATS[kind], dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = paint_loss_by_memory(axes, FRAME, LOSSES)
    figure.draw_without_rendering()
    return axes, names


@pytest.mark.parametrize("kind", FORMATS)
def test_names_of_the_front_lie_over_no_other_name_point_or_bar(kind: str) -> None:
    axes, names = painted(kind)
    boxes = [Text.get_window_extent(name) for name in names]
    points = axes.transData.transform(FRAME[["memory", "loss"]].to_numpy(float))
    front = FRAME[FRAME["on_front"]]
    bars = [
        Bbox(axes.transData.transform([(row.memory, row.low), (row.memory, row.high)]))
        for row in front.itertuples()
    ]

    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
    assert not any(box.contains(*point) for box in boxes for point in points)
    assert not any(box.overlaps(bar) for box in boxes for bar in bars)
    assert {name.get_text() for name in names} <= {*front["pair"]}
    (chosen,) = [each for each in names if each.get_weight() == "bold"]
    assert str(VERDICT.chosen) == chosen.get_text()


def test_the_axes_are_where_the_points_are_and_the_limit_is_a_band() -> None:
    axes, _ = painted("")
    (low, high), (left, right) = axes.get_ylim(), axes.get_xlim()

    assert -1 < low < 0
    assert FRAME["loss"].max() < high < 1.5 * FRAME["loss"].max()
    assert 0.2 < left < FRAME["memory"].min() < FRAME["memory"].max() < right < 0.9
    (band,) = axes.patches
    assert 1.0 == band.get_bbox().y1


def test_a_chart_is_drawn_for_each_screen_in_light_and_dark(
    golden: SnapshotAssertion,
) -> None:
    chart = loss_by_memory_chart(LOSSES)

    drawn = pictures_in(chart)
    assert len(FORMATS) * len(THEMES) == len({*drawn})
    assert [2, 2] == [
        sum(theme.ink in each for each in drawn) for theme in THEMES.values()
    ]
    assert " and ".join(["(max-width: 600px)", next(iter(THEMES))]) in chart
    assert golden == re.findall(r'alt="([^"]*)"', chart)


def test_text_of_records_is_text_in_a_chart() -> None:
    """Names of types come from a record, which anybody may have written."""
    run = lossy_grid()
    hostile = Pair('<script>alert(1)</script>"--> #010101', "q8_0")
    (first, *others) = [each for each in run.records if str(each.pair) == "q8_0/q4_1"]
    rest = [each for each in run.records if each is not first]
    taken = replace(run, records=(*rest, *others, replace(first, pair=hostile)))

    drawn = pictures_in(loss_by_memory_chart(losses_of(judge(taken))))

    assert any("&lt;script&gt;alert(1)" in each for each in drawn)
    assert not any(re.search(r"<(script|img)", each) for each in drawn)


def test_memory_by_context_has_three_lines_and_the_rest_in_a_table() -> None:
    chart = memory_chart(VERDICT, [4096, 16384], SIZES)

    assert ["bf16/bf16", "q8_0/q4_1", "q4_0/q4_0"] == [
        str(pair) for pair in memory_chart_pairs(VERDICT, SIZES)
    ]
    assert "q8_0/q8_0" not in chart.partition("<details>")[0]
    assert '<td class="words">q8_0/q8_0</td>' in chart.partition("<details>")[2]
    assert "" == memory_chart(VERDICT, [4096], {})


@pytest.mark.parametrize("kind", FORMATS)
def test_contexts_below_the_lines_do_not_touch(kind: str) -> None:
    """Those of the published sweep ran into each other on a phone."""
    contexts = [1024, 4096, 16384, 32768, 65536, 131072]
    sizes = {pair: [of[0] * at for at in contexts] for pair, of in SIZES.items()}
    figure = Figure(figsize=FORMATS[kind], dpi=72, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    paint_memory(axes, memory_frame(VERDICT, contexts, sizes), "q8_0/q4_1")
    figure.draw_without_rendering()
    names = [each for each in axes.get_xticklabels() if each.get_text()]
    boxes = [each.get_window_extent() for each in names]

    assert ["1K", "128K"] == [names[0].get_text(), names[-1].get_text()]
    assert all(one.x1 < two.x0 for one, two in itertools.pairwise(boxes))
