"""Curves of speeds by depth."""

from dataclasses import replace
from pathlib import Path

import pytest
from drawn import ink, shapes
from made_speeds import F16, Q4, Q8, measured, run_of
from matplotlib.text import Annotation

from codeneedle.errors import NothingToShow
from codeneedle.records.record import Attention, Effective
from codeneedle.report.heatmap import Files
from codeneedle.report.speed_pictures import draw_speeds, paint
from codeneedle.report.speeds import speed_table

pytestmark = pytest.mark.slow

ON_CPU = Effective(attention=Attention.CPU, attention_evidence="38 graph splits")
FALLEN = replace(measured(Q4, {0: 1.0, 100: 3.0}), effective=ON_CPU)
RUN = run_of(
    measured(F16, {0: 100.0, 100: 100.0}), measured(Q8, {0: 80.0, 100: 120.0}), FALLEN
)


def test_each_k_type_has_its_curves(tmp_path: Path) -> None:
    figure = paint(speed_table(RUN, "tg"))
    curves = [
        [list(map(float, line.get_ydata())) for line in axes.get_lines()]
        for axes in figure.axes
    ]

    assert [1.0, 1.0] in curves[0]
    assert [0.8, 1.2] in curves[1]
    assert not any(0.03 in curve for curve in curves[2])
    png, svg = draw_speeds(RUN, "tg", Files(folder=tmp_path))
    assert ("depths-tg.png", "depths-tg.svg") == (png.name, svg.name)
    assert ink(png) > 0.02
    assert shapes(svg) > 20


def test_the_scale_is_that_of_compared_cells_and_others_are_listed() -> None:
    """One that is 34 times slower would flatten all curves."""
    axes = paint(speed_table(RUN, "tg")).axes[0]
    low, high = axes.get_ylim()
    notes = " ".join(
        text.get_text().replace("\n", " ")
        for text in axes.texts
        if isinstance(text, Annotation)
    )

    assert 0.7 < low < 0.8
    assert 1.2 < high < 1.3
    assert "q4_0/q4_0 3.0 tokens/s at 100 (38 graph splits)" in notes


def test_without_a_reference_there_are_no_curves(tmp_path: Path) -> None:
    with pytest.raises(NothingToShow):
        draw_speeds(run_of(FALLEN), "tg", Files(folder=tmp_path))
