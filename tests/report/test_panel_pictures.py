"""Panels as pictures: what is drawn, and where it goes."""

import itertools
import math
from dataclasses import replace

import pytest
from drawn import ink, shapes
from made_panels import BY_NAME, RIGHT, RUN, SETUP, record_of, run_of, unless
from made_records import failed_record
from matplotlib.colors import to_hex

from codeneedle.errors import NothingToShow
from codeneedle.probes.retrieval.record import NAME
from codeneedle.report.heatmap import Files
from codeneedle.report.panel_pictures import KIND_COLOURS, draw_panels, paint
from codeneedle.report.panels import panels_of

pytestmark = pytest.mark.slow

LEAST_INK, LEAST_SHAPES = 0.05, 20
"""Of a picture that is not empty."""


def figure(run, *, difference=False):
    (found,) = panels_of(run, RIGHT)
    return paint(found, run, difference=difference)


def words(of_figure):
    """All texts of a figure."""
    texts = list(of_figure.texts)
    for axes in of_figure.axes:
        texts += [*axes.texts, axes.title, *axes.get_xticklabels()]
        texts += [axes._left_title, *axes.get_yticklabels()]
    return {text.get_text() for text in texts}


def files(folder, forms=("png", "svg")):
    return Files(folder=folder, forms=forms)


def test_each_task_has_a_png_and_an_svg(tmp_path):
    drawn = draw_panels(RUN, RIGHT, difference=False, files=files(tmp_path))

    assert ["panels-multikey.png", "panels-multikey.svg"] == [p.name for p in drawn]
    assert ink(drawn[0]) > LEAST_INK
    assert shapes(drawn[1]) > LEAST_SHAPES


@pytest.mark.parametrize(
    ("metric", "difference", "stem"),
    [
        ("retrieval", True, "panels-multikey-difference"),
        ("multikey-logp", False, "panels-multikey-logp"),
    ],
)
def test_comparisons_and_log_probabilities_have_files_of_their_own(
    tmp_path, metric, difference, stem
):
    into = files(tmp_path, forms=("png",))
    drawn = draw_panels(RUN, BY_NAME[metric], difference=difference, files=into)

    assert {stem} == {path.stem for path in drawn}
    assert ink(drawn[0]) > LEAST_INK


def test_values_types_lengths_and_depths_are_written(golden):
    written = words(figure(RUN))

    assert {
        "1.00",
        "0.00",
        "mean 0.83",
        "f16",
        "q4_0",
        "1K",
        "2K",
        "0.1",
        "0.9",
    } <= written
    assert golden == [text for text in written if "multikey:" in text]
    assert any("random-bodies/made-model" in text for text in written)


def test_a_comparison_is_drawn_as_shares_of_four_colours():
    drawn = figure(RUN, difference=True)
    other = drawn.axes[1]
    colours = {
        to_hex(patch.get_facecolor()): patch.get_width()
        for patch in other.patches
        if patch.get_width()
    }

    assert {"-2 +2 of 12", "reference"} <= words(drawn)
    assert {KIND_COLOURS[kind] for kind in ("both right", "lost", "gained")} == (
        colours.keys()
    )
    assert {0.92} == {round(width, 9) for width in colours.values()}


def test_a_comparison_without_a_difference_says_so(golden):
    same = run_of(
        record_of("f16/f16", unless(None)), record_of("q4_0/f16", unless(None))
    )

    assert golden == [
        [text for text in words(figure(run, difference=True)) if "differs" in text]
        for run in (same, RUN)
    ]


def test_a_pair_without_answers_and_a_length_that_was_left_out_are_hatched():
    left_out = [("multikey", 4096, "too hard")]
    failed = replace(failed_record("q4_0/f16"), probe=NAME)
    run = run_of(record_of("f16/f16", unless(None)), failed, left_out=left_out)
    first, second = figure(run).axes[:2]

    def hatched(axes):
        """Columns, of lengths, and rows, of depths, that are hatched."""
        return {
            (math.floor(patch.get_x()), math.floor(patch.get_y()))
            for patch in axes.patches
            if patch.get_hatch() is not None
        }

    assert {(2, row) for row in range(3)} == hatched(first)
    assert set(itertools.product(range(3), range(3))) == hatched(second)
    assert "crash" in {text.get_text() for text in second.texts}


def test_nothing_to_draw_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(NothingToShow):
        draw_panels(
            run_of(setup=SETUP),
            RIGHT,
            difference=True,
            files=files(tmp_path / "new"),
        )

    assert not (tmp_path / "new").exists()
