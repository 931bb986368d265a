"""Scales and colours of grids."""

import math
from typing import Any

import matplotlib as mpl
import pytest
from rich.style import Style

from codeneedle.probes.recall.metrics import FORCED, METRICS
from codeneedle.report.colours import (
    RAMP,
    Scale,
    cell_style,
    difference_scale,
    loss_colour,
    loss_scale,
    readable_text_colour,
    value_scale,
    viridis_colour,
)

METRIC = {metric.name: metric for metric in METRICS}


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


def test_lighter_is_better() -> None:
    light, dark, half = (
        "on #{:02x}{:02x}{:02x}".format(*each) for each in (RAMP[-1], RAMP[0], RAMP[4])
    )

    assert light in cell_style(20, Scale(0, 20))
    assert dark in cell_style(0, Scale(0, 20))
    assert light in cell_style(0, Scale(0, 20, is_lighter_low=True))
    assert half in cell_style(50.0, Scale(0, 100))


@pytest.mark.parametrize("value", [20.0, 0.0, math.nan])
def test_styles_are_styles(value: float) -> None:
    style = Style.parse(cell_style(value, Scale(0, 20)))

    assert (style.bgcolor is not None) == (value in {20.0, 0.0})


def test_text_is_legible_and_the_ramp_grows_lighter() -> None:
    """The contrast is at least 4.5 all along the scale, as WCAG AA asks."""
    grounds = [viridis_colour(step / 100) for step in range(101)]
    lightness = [luminance(*ground) for ground in grounds]

    assert 4.5 <= min(
        contrast(ground, readable_text_colour(*ground)) for ground in grounds
    )
    assert sorted(lightness) == lightness


def test_the_ramp_is_viridis() -> None:
    """The steps of matplotlib's map, up to 0.78."""
    viridis = mpl.colormaps["viridis"]
    steps = [viridis(step / 8 * 0.78)[:3] for step in range(9)]

    assert list(RAMP) == [tuple(round(part * 255) for part in step) for step in steps]


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [0.0, 0.0]])
def test_a_scale_is_never_empty(values: list[float]) -> None:
    scale = value_scale(METRIC["margin"], values)

    assert scale.low < scale.high
    assert [0, 0, 1] == [scale.place(at) for at in (scale.low, -3, scale.high + 7)]


def test_nearly_equal_values_are_not_stretched() -> None:
    scale = value_scale(METRIC["decode"], [999.5, 1000.5])

    assert 0.9 < scale.place(999.5) < scale.place(1000.5) == 1


@pytest.mark.parametrize(
    ("metric", "values", "options", "expected"),
    [
        ("matched", [19.94, 20.0], {}, Scale(15, 20)),
        ("matched", [1.0], {}, Scale(0, 5)),
        ("matched", [2.0, 20.0], {}, Scale(2, 20)),
        ("pass", [15.0], {"rounds": 16}, Scale(14.25, 15)),
        ("missing", [20.0], {}, Scale(15, 20, is_lighter_low=True)),
        ("decode", [700.0, math.nan, 800.0], {}, Scale(700, 800)),
    ],
)
def test_a_scale_has_its_ends_at_the_values_unless_they_hardly_differ(
    metric: str, values: list[float], options: dict[str, Any], expected: Scale
) -> None:
    assert expected == value_scale(METRIC[metric], values, **options)


def test_the_colour_of_a_loss_turns_at_the_limit_and_darkens_with_the_loss() -> None:
    """Blue is more than red up to the limit; lightness falls, in grey by a step."""
    scale = loss_scale(1.0, [0.2, 11.3, math.nan])
    losses = [-0.4, 0.0, 0.2, 0.5, 1.0, 1.01, 2.0, 5.0, 11.3]
    grounds = [loss_colour(scale.place(loss)) for loss in losses]
    lightness = [luminance(*ground) for ground in grounds]

    assert [blue > red for red, _, blue in grounds] == [loss <= 1 for loss in losses]
    assert sorted(lightness, reverse=True) == lightness
    assert 4.5 <= min(
        contrast(ground, readable_text_colour(*ground)) for ground in grounds
    )
    assert 11.3 == scale.high
    assert 4.0 == loss_scale(1.0, [0.2]).high


@pytest.mark.parametrize("values", [[0.0, -4.9e-5, -0.02], [0.0, 0.0]])
def test_log_probabilities_that_hardly_differ_have_one_colour(values: list[float]):
    metric = FORCED[0]
    scale = value_scale(metric, values)

    assert Scale(-0.2, 0) == scale
    assert 0.9 <= min(map(scale.place, values))


@pytest.mark.parametrize(("least", "end"), [(-4.0, 4), (-0.0625, 2.5)])
def test_differences_are_centred_on_zero(least: float, end: float) -> None:
    gaps = [least, 0.03125, math.nan]

    assert Scale(-end, end) == difference_scale(METRIC["matched"], gaps, reference=20)
