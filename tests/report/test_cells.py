"""The text, colour and scale of a cell."""

import math

import matplotlib as mpl
import pytest
from rich.style import Style

from codeneedle.analysis.metrics import Metric
from codeneedle.analysis.recall import METRICS
from codeneedle.records.record import Status
from codeneedle.report.cells import (
    RAMP,
    STATUS_WORDS,
    Scale,
    cell_style,
    colour,
    difference_scale,
    number,
    status_word,
    text_colour,
    value_scale,
)

METRIC: dict[str, Metric] = {metric.name: metric for metric in METRICS}


def luminance(red: float, green: float, blue: float) -> float:
    """Relative luminance of a colour of 0 to 255 a channel, by WCAG 2.1."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (red / 255, green / 255, blue / 255)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(ground: tuple[int, int, int], text: str) -> float:
    """Contrast ratio of *text*, black or white, on *ground*."""
    light, dark = sorted(
        (luminance(*ground), 0.0 if text == "#000000" else 1.0), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def test_every_status_has_a_short_word_of_its_own() -> None:
    """
    Of at most 8 characters.
    """
    words = [STATUS_WORDS[status] for status in Status]

    assert sorted(set(words)) == sorted(words)
    assert 8 >= max(map(len, words))


def test_a_pair_that_was_not_run_is_a_dot() -> None:
    """
    And a number that does not exist a dash.
    """
    assert (".", "oom", "-") == (
        status_word(""),
        status_word("out-of-memory"),
        number(math.nan, digits=2),
    )


def test_zero_has_no_sign() -> None:
    """
    A difference that rounds to nothing is 0.00, neither plus nor minus.
    """
    assert "0.00" == number(-0.001, digits=2)
    assert "0.00" == number(0.001, digits=2, sign=True)
    assert "+0.31" == number(0.3125, digits=2, sign=True)


def test_lighter_is_better() -> None:
    """
    The best of 0 to 20 matched lines is light; the best of missing ones is, too.
    """
    light, dark = RAMP[-1], RAMP[0]

    assert "on #{:02x}{:02x}{:02x}".format(*light) in cell_style(METRIC["matched"], 20)
    assert "on #{:02x}{:02x}{:02x}".format(*dark) in cell_style(METRIC["matched"], 0)
    assert "on #{:02x}{:02x}{:02x}".format(*light) in cell_style(METRIC["missing"], 0)


@pytest.mark.parametrize("value", [20.0, 0.0, math.nan])
def test_styles_are_styles(value: float) -> None:
    """
    Rich parses each, and no gap has the background of a value.
    """
    style = Style.parse(cell_style(METRIC["matched"], value))

    assert (style.bgcolor is not None) == (value in {20.0, 0.0})


def test_text_is_legible_on_every_colour() -> None:
    """
    The contrast is at least 4.5 all along the scale, as WCAG AA asks.
    """
    grounds = [colour(step / 100) for step in range(101)]

    assert 4.5 <= min(contrast(ground, text_colour(*ground)) for ground in grounds)


def test_the_ramp_grows_lighter_with_every_step() -> None:
    """
    The order is visible without colour.
    """
    lightness = [luminance(*colour(step / 100)) for step in range(101)]

    assert sorted(lightness) == lightness


def test_the_ramp_is_viridis() -> None:
    """
    The steps of matplotlib's map, up to 0.78.
    """
    viridis = mpl.colormaps["viridis"]
    steps = [viridis(step / 8 * 0.78)[:3] for step in range(9)]

    assert list(RAMP) == [tuple(round(part * 255) for part in step) for step in steps]


def test_a_scale_may_be_given() -> None:
    """
    For a metric without natural bounds.
    """
    half = cell_style(METRIC["decode"], 50.0, Scale(0, 100))

    assert "on #{:02x}{:02x}{:02x}".format(*colour(0.5)) in half


def test_natural_ends_win_over_the_values() -> None:
    """
    19.94 and 20.00 of 20 lines are nearly the same colour.
    """
    assert Scale(0, 20) == value_scale(METRIC["matched"], [19.94, 20.0])


def test_zoom_takes_the_values_alone() -> None:
    """
    The colours span them.
    """
    assert Scale(15, 20) == value_scale(METRIC["matched"], [15.0, 20.0], zoom=True)


def test_the_bounds_of_a_sum_are_multiplied_by_the_rounds() -> None:
    """
    Passes of 16 rounds: 0 to 16.
    """
    assert Scale(0, 16) == value_scale(METRIC["pass"], [15.0], rounds=16)


def test_an_open_end_is_that_of_the_values() -> None:
    """
    Speeds: from 0 to the fastest; gaps do not count.
    """
    assert Scale(0, 800) == value_scale(METRIC["decode"], [700.0, math.nan, 800.0])


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [0.0, 0.0]])
def test_a_scale_is_never_empty(values: list[float]) -> None:
    """
    Its ends differ, so that a place on it exists.
    """
    scale = value_scale(METRIC["margin"], values)

    assert scale.low < scale.high
    assert 0 == scale.place(scale.low)


def test_nearly_equal_values_are_not_stretched() -> None:
    """
    With zoom, too, a difference of 0.1 % stays in the middle of the scale.
    """
    scale = value_scale(METRIC["decode"], [999.5, 1000.5], zoom=True)

    assert 0.4 < scale.place(999.5) < scale.place(1000.5) < 0.6


def test_differences_are_centred_on_zero() -> None:
    """
    Both ends are the largest absolute difference away.
    """
    gaps = [-4.0, 1.0, math.nan]

    assert Scale(-4, 4) == difference_scale(METRIC["matched"], gaps, reference=20)


def test_small_differences_stay_pale() -> None:
    """
    One missed line of 320 is hardly coloured.
    """
    gaps = [-0.0625, 0.0]

    assert Scale(-1, 1) == difference_scale(METRIC["matched"], gaps, reference=20)


def test_values_beyond_the_ends_take_the_ends() -> None:
    """
    Places are between 0 and 1.
    """
    assert (0, 1) == (Scale(0, 1).place(-3), Scale(0, 1).place(7))
