"""What may be concluded from cells."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import failed_record, made_record, made_round, made_run, made_setup
from unhurried import unhurried

from codeneedle.analysis import frames, stats
from codeneedle.analysis.recall import METRICS
from codeneedle.grid import BITS_PER_ELEMENT, DEFAULT_TYPES, Pair
from codeneedle.records.record import Round, Status
from codeneedle.scoring.rounds import Reading

METRIC = {metric.name: metric for metric in METRICS}
READING = Reading()
REFERENCE = Pair("bf16", "bf16")

PAIRS = [Pair(k, v) for k in DEFAULT_TYPES for v in DEFAULT_TYPES]

PUBLISHED = """
    19.25 19.38 19.44 18.38 19.19 19.44
    19.19 19.56 19.56 19.44 19.44 19.56
    19.44 19.31 19.62 19.38 19.56 19.12
    19.50 19.38 19.56 19.50 19.50 19.50
    19.31 19.56 19.56 19.44 19.06 19.25
    19.56 19.56 19.44 19.56 19.44 19.56
"""
"""A published grid of 36 pairs, K down and V across, most precise first."""


def cells(values: Iterable[float | str]) -> list[frames.Cell]:
    """A full 6x6 grid of *values*, in order; NaN are failed cells."""
    return [
        frames.Cell(
            pair=pair,
            value=value,
            status="crashed" if math.isnan(value) else "finished",
        )
        for pair, value in zip(PAIRS, map(float, values), strict=True)
    ]


def by_bits(slope: float) -> list[float]:
    return [
        10 + slope * (BITS_PER_ELEMENT[k] + BITS_PER_ELEMENT[v])
        for k in DEFAULT_TYPES
        for v in DEFAULT_TYPES
    ]


def test_a_published_grid_gives_the_published_numbers() -> None:
    """
    36 cells at 122K tokens: 19.40 +/- 0.22, from 18.38 to 19.62, no gradient.
    """
    published = cells(PUBLISHED.split())

    found = stats.spread(published)

    assert ("19.40", "0.22") == (f"{found.mean:.2f}", f"{found.sd:.2f}")
    assert (18.38, 19.62, 36) == (found.low, found.high, found.cells)
    assert "none" == stats.gradient(published).words


def test_the_spread_divides_by_the_number_of_cells() -> None:
    """
    One cell of 15 among 36 of 16 is 15.97 +/- 0.16, as published; n - 1 gives 0.17.
    """
    found = stats.spread(cells([15, *[16] * 35]))

    assert ("15.97", "0.16") == (f"{found.mean:.2f}", f"{found.sd:.2f}")


def test_failed_cells_are_not_averaged() -> None:
    """
    They are counted by status instead.
    """
    some = cells([math.nan, *[20] * 35])

    assert (20.0, 0.0, 35) == (
        stats.spread(some).mean,
        stats.spread(some).sd,
        stats.spread(some).cells,
    )
    assert {"crashed": 1, "finished": 35} == stats.counts(some)


def test_no_finished_cell_gives_no_numbers() -> None:
    """
    The spread of nothing is NaN, and its gradient is not told.
    """
    nothing = cells([math.nan] * 36)

    assert math.isnan(stats.spread(nothing).mean)
    assert "too few cells" == stats.gradient(nothing).words


@pytest.mark.parametrize(("slope", "way", "rho"), [(1, "rises", 1), (-1, "falls", -1)])
def test_values_that_follow_the_bits_have_a_gradient(
    slope: float, way: str, rho: float
) -> None:
    """
    A metric that follows precision is told with its direction.
    """
    found = stats.gradient(cells(by_bits(slope)))

    assert rho == pytest.approx(found.rho)
    assert found.is_told
    assert found.words.startswith(f"{way} with precision")


def test_a_flat_grid_has_no_gradient() -> None:
    """
    Where all values are equal there is no order to compare.
    """
    found = stats.gradient(cells([20] * 36))

    assert "none" == found.words
    assert not found.is_told


def test_one_bad_cell_makes_no_gradient() -> None:
    """
    Ranks do not care how bad it is.
    """
    assert "none" == stats.gradient(cells([*[20] * 35, 0])).words


def test_few_cells_are_said_to_be_few() -> None:
    """
    Four corners cannot tell a gradient from chance.
    """
    corners = [cells(by_bits(1))[at] for at in (0, 5, 30, 35)]

    assert "too few cells" == stats.gradient(corners).words


def test_types_of_unknown_size_are_left_out() -> None:
    """
    A fork's type has no known place among the bits.
    """
    strange = [
        replace(cell, pair=Pair(cell.pair.k.replace("q4_0", "turbo3"), cell.pair.v))
        for cell in cells(by_bits(1))
    ]

    assert 30 == stats.gradient(strange).cells


@unhurried
@given(st.permutations(range(36)))
def test_chance_is_seeded(order: Sequence[int]) -> None:
    """
    The same values give the same share of orders, which is never zero.
    """
    shuffled = cells(order)

    once, again = stats.gradient(shuffled), stats.gradient(shuffled)

    assert once == again
    assert 0 < once.p <= 1


def test_a_pair_that_loses_the_same_everywhere_differs_for_certain() -> None:
    """
    Paired needle by needle, a constant loss has an interval of no width.
    """
    run = made_run(lambda pair, at: at if pair == REFERENCE else at - (at > 0))

    found = stats.difference(
        run, Pair("q4_0", "q4_0"), REFERENCE, METRIC["matched"], READING
    )

    assert found.is_paired
    assert -15 / 16 == found.mean
    assert found.low < found.mean < found.high < 0
    assert found.is_told


def test_pairing_takes_out_what_makes_a_needle_hard() -> None:
    """
    Needles differ by far more than the pairs do; drawn apart, nothing is told.
    """
    run = made_run(lambda pair, at: 4 + at - (pair != REFERENCE))
    pair = Pair("q4_0", "q4_0")

    paired = stats.difference(run, pair, REFERENCE, METRIC["matched"], READING)
    other = replace(run, setup=replace(run.setup, needles=(*run.setup.needles,) * 2))
    apart = stats.difference(other, pair, REFERENCE, METRIC["matched"], READING)

    assert paired.is_told
    assert not apart.is_paired
    assert not apart.is_told


def test_sums_are_compared_as_sums() -> None:
    """
    Two rounds fewer of sixteen are a difference of two rounds.
    """
    run = made_run(lambda pair, at: 0 if pair != REFERENCE and at < 2 else 20)

    found = stats.difference(
        run, Pair("q4_0", "q4_0"), REFERENCE, METRIC["pass"], READING
    )

    assert -2 == found.mean


def test_a_round_without_an_answer_breaks_the_pairing_honestly() -> None:
    """
    Rounds that cannot be matched with needles are drawn apart, and it says so.
    """
    setup = made_setup(needles=4, types_k=["bf16", "q4_0"], types_v=["bf16"])
    run = made_run(setup=setup, untried=["q4_0/bf16"])
    rounds = [made_round(needle) for needle in setup.needles[1:]]
    lost = Round(needle=setup.needles[0].name, prompt_sha256="d0", error="HTTP 500")
    run = replace(
        run, records=(*run.records, made_record("q4_0/bf16", [lost, *rounds]))
    )

    found = stats.difference(
        run, Pair("q4_0", "bf16"), REFERENCE, METRIC["matched"], READING
    )

    assert not found.is_paired
    assert 0 == found.mean


def test_single_numbers_have_no_interval() -> None:
    """
    One size of a cache has no spread to draw from.
    """
    found = stats.difference(
        made_run(), Pair("q4_0", "q4_0"), REFERENCE, METRIC["kv"], READING
    )

    assert 0 == found.mean
    assert math.isnan(found.low)
    assert not found.is_told


def test_a_failed_pair_has_no_difference() -> None:
    """
    What did not finish cannot be compared.
    """
    run = made_run(failed=[failed_record("q4_0/q4_0", Status.CRASHED)])

    with pytest.raises(KeyError):
        stats.difference(
            run, Pair("q4_0", "q4_0"), REFERENCE, METRIC["matched"], READING
        )


def test_cells_frames_and_statistics_agree_on_what_was_tried() -> None:
    """
    A pair that nobody tried is not among the tried.
    """
    run = made_run(untried=["q4_0/q4_0"])

    assert 35 == stats.tried(frames.cells_frame(run, METRIC["matched"], READING))
