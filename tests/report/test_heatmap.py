"""Heatmaps of a grid as PNG and SVG."""

import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from drawn import ink, shapes
from made_records import LETTERS, failed_record, made_run, made_setup
from made_verdicts import made_verdicts
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from syrupy.assertion import SnapshotAssertion

from codeneedle.cache_types import Pair
from codeneedle.errors import FolderUnusable, NothingToShow
from codeneedle.probes.recall.metrics import METRICS
from codeneedle.records.record import Status
from codeneedle.report.colours import Scale
from codeneedle.report.heatmap import (
    CELL,
    LABELLED,
    Files,
    Picture,
    draw_heatmap,
    loss_picture,
    paint,
    picture_of,
)
from codeneedle.report.losses import losses_of
from codeneedle.report.shown import Style
from codeneedle.verdict.judge import Verdict, judge
from codeneedle.verdict.limits import Limits

pytestmark = pytest.mark.slow

METRIC = {metric.name: metric for metric in METRICS}
MATCHED = METRIC["matched"]
SMALL = made_setup(types_k=["bf16", "q4_0"], types_v=["bf16", "q8_0", "q4_0"])
RUN = made_run(
    lambda pair, at: 20 if pair.k == "bf16" else 10 + at % 2,
    setup=SMALL,
    failed=[failed_record("q4_0/q8_0", Status.OUT_OF_MEMORY)],
    untried=["q4_0/bf16"],
)

TYPES = ["bf16", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

UNJUDGED = Verdict(run=RUN, limits=Limits())


def picture(run=RUN, metric=MATCHED, verdict=UNJUDGED, **options) -> Picture:
    """The picture of *run*; nothing is judged."""
    return picture_of(run, metric, verdict, **options)


def drawn(folder: Path, run=RUN, forms=("png", "svg"), **options) -> list[Path]:
    """The files of its picture."""
    files = Files(folder=folder, forms=forms)
    return draw_heatmap(run, MATCHED, verdict=UNJUDGED, files=files, **options)


def words(figure: Figure) -> list[str]:
    """All text in the cells, as it is drawn."""
    texts = figure.axes[0].texts
    return [text.get_text() for text in texts if not isinstance(text, Annotation)]


def test_a_png_and_an_svg_are_written(tmp_path: Path) -> None:
    png, svg = drawn(tmp_path / "new")
    assert ink(png) > 0.1
    assert shapes(svg) > 20
    (other,) = drawn(tmp_path, forms=("svg",), difference=True)

    assert ("heatmap-matched.png", "heatmap-matched.svg") == (png.name, svg.name)
    assert b"\x89PNG" == png.read_bytes()[:4]
    assert "</svg>" in svg.read_text(encoding="utf-8")
    assert "heatmap-matched-difference.svg" == other.name


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    forms = ("png", "svg", "pdf")
    once, again = (drawn(tmp_path / each, forms=forms) for each in ("a", "b"))

    for first, second in zip(once, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert before == dict(mpl.rcParams)
    assert [] == plt.get_fignums()


def test_cells_hold_their_number_or_their_status() -> None:
    shown = picture()

    assert ["20.00", "20.00", "20.00", "not run", "oom", "10.50"] == (
        words(paint(shown))
    )
    assert Scale(10.5, 20) == shown.scale
    assert "lighter is higher" == shown.colours
    assert "lighter is lower" == picture(metric=METRIC["missing"]).colours


@pytest.mark.parametrize(
    ("count", "usual"), [(1, 2), (2, 4), (3, 6), (4, 6), (6, 6), (8, 8)]
)
def test_a_grid_of_few_types_is_about_as_wide_as_its_text(
    count: int, usual: int
) -> None:
    """As one of so many cells of the usual size."""
    types = TYPES[:count]
    run = made_run(setup=made_setup(types_k=types, types_v=types))
    wide, _ = paint(picture(run)).get_size_inches()

    assert usual * CELL == pytest.approx(wide)


def test_no_line_below_the_losses_ends_with_a_colon() -> None:
    found = filter(None, map(losses_of, made_verdicts().values()))
    notes = [note for losses in found for note in loss_picture(losses, str).notes]

    assert [] == [note for note in notes if note.endswith(":")]


def test_no_line_begins_with_a_sign_that_belongs_to_a_number() -> None:
    """With words before it of every length, one of which fills the line."""
    every = tuple(f"{'x' * count} at most 1.0 %" for count in range(60, 120))
    figure = paint(replace(picture(), notes=every))

    lines = [
        line for text in figure.findobj(Text) for line in text.get_text().split("\n")
    ]
    assert any(line.startswith("1.0") for line in lines)
    assert not any(line.startswith("%") for line in lines)


def test_differences_are_signed_and_centred(golden: SnapshotAssertion) -> None:
    found = judge(RUN)
    shown = picture(verdict=found, difference=True)
    values = picture(verdict=found)
    squares = [square for row in shown.squares for square in row]

    assert ["0.00", "0.00", "0.00", "not run", "oom", "-9.50"] == [
        square.spelled_text for square in squares
    ]
    assert Scale(-9.5, 9.5) == shown.scale
    assert Pair("bf16", "bf16") == shown.framed
    assert [squares[-1]] == [each for each in squares if Style.BEYOND in each.style]
    assert [False, True] == [
        Style.BEYOND in values.squares[at][-1].style for at in (0, 1)
    ]
    beyond = [x for each in (shown, values) for x in each.notes if "Beyond" in x]
    assert golden == beyond


def test_the_picture_says_what_it_shows_and_on_what(golden: SnapshotAssertion) -> None:
    shown = picture()
    notes = "\n".join(shown.facts)

    assert golden == shown.title
    assert "lines" == shown.caption
    assert "Framed: the reference, bf16/bf16" == shown.notes[0]
    for fact in (
        "random-bodies/made-model",
        "made-model",
        "context 8,912 of 12,288 tokens",
        "b11434",
        "Xeon",
        "2025-11-20",
    ):
        assert fact in notes


@pytest.mark.parametrize("difference", [False, True])
def test_a_run_without_numbers_is_not_drawn(
    tmp_path: Path, golden: SnapshotAssertion, *, difference: bool
) -> None:
    setup = replace(SMALL, probes={})
    empty = replace(RUN, records=(), setup=setup, sweep="seed = 42")

    with pytest.raises(NothingToShow) as caught:
        drawn(tmp_path / "new", empty, difference=difference)

    assert golden == str(caught.value)
    asked = f"codeneedle sweep sweeps/{RUN.name} --probe recall"
    assert f"Measure them: {asked}" == caught.value.hint
    assert 1 == caught.value.exit_code
    assert not (tmp_path / "new").exists()


def test_names_are_drawn_verbatim_and_without_warnings(tmp_path: Path) -> None:
    """Dollars, tags and backslashes have no meaning; the font lacks some letters."""
    name = r"a$b$c <b>&amp; \frac{1}{2} $\alpha$ 模型"
    setup = replace(SMALL, weights=replace(SMALL.weights, name=name))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(tmp_path, made_run(setup=setup), forms=("png",))


def test_cells_are_square_and_the_picture_grows_with_the_grid() -> None:
    wide = made_setup(
        needles=1, types_k=["bf16"], types_v=[f"t{at}" for at in range(12)]
    )

    small, large = (paint(picture(made_run(setup=each))) for each in (SMALL, wide))
    axes = small.axes[0]
    figure = axes.figure
    box = axes.get_position().bounds
    inches = [box[2] * figure.get_figwidth() / 3, box[3] * figure.get_figheight() / 2]  # type: ignore[union-attr]

    assert small.get_figwidth() < large.get_figwidth()
    assert inches[0] == pytest.approx(inches[1])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file", encoding="utf-8")

    with pytest.raises(FolderUnusable, match="taken"):
        drawn(taken)


def test_differences_are_to_the_pair_that_records_name() -> None:
    one = replace(MATCHED, reference=lambda _: "q4_0/q4_0")
    several = replace(MATCHED, reference=lambda record: str(record.pair))

    shown = picture(metric=one, difference=True)
    other = picture(metric=several, difference=True)

    assert Pair("q4_0", "q4_0") == shown.framed
    assert "+9.50" == shown.squares[0][0].text
    assert None is other.framed
    assert "20.00" == other.squares[0][0].text
    assert other.notes[-1].startswith("Measured against bf16/bf16 or ")


def test_a_large_grid_has_small_cells_without_labels() -> None:
    types = [f"made_{LETTERS[at]}" for at in range(LABELLED + 1)]
    setup = made_setup(needles=1, types_k=types, types_v=types)
    shown = picture(made_run(setup=setup))

    figure = paint(shown)
    grid = figure.axes[0]

    assert [] == words(figure)
    assert types == [label.get_text() for label in grid.get_xticklabels()]
    assert max(figure.get_size_inches()) < 15


def test_a_picture_of_a_run_that_read_no_corpus_names_none():
    """Of retrieval, evaluations and conversations."""
    uncounted = replace(RUN.setup.corpus, tokens=0, functions=0)
    run = replace(RUN, setup=replace(RUN.setup, corpus=uncounted))

    assert len(picture().facts) - 1 == len(picture(run).facts)
