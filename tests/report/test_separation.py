"""Which metrics tell pairs apart, beyond noise."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_prices import (
    PROBES,
    TG,
    failed,
    fell_back,
    lost,
    made_metric,
    made_probe,
    priced_run,
)

from codeneedle.grid import Pair
from codeneedle.report.comparison import half_interval, price_table, separations
from codeneedle.scoring.rounds import Reading

READING = Reading()


def separated(run=None, probes=PROBES):
    """What each metric of *run* separates, by name."""
    table = price_table(run or priced_run(), probes, READING)
    return {each.metric.name: each for each in separations(table, READING)}


def test_quality_and_speed_separate_memory_does_not():
    """
    A KV cache has no noise, and perplexity no better end.
    """
    assert ["matched", "margin", "kld", "top1", "tg"] == list(separated())


def test_a_floor_is_the_noise():
    """
    All pairs lost at least 7.5 bits, which here is 15 times the floor.
    """
    found = separated()["kld"]

    assert (8, 8) == (found.told, found.compared)
    assert Pair("q4_0", "q4_0") == found.pair
    assert 23.0 == found.difference
    assert 46.0 == found.times_noise


def test_what_is_below_the_floor_is_not_told():
    """
    A noisy floor hides the pairs that lost less.
    """
    assert 4 == separated(priced_run(floor=12))["kld"].told


def test_rounds_are_compared_needle_by_needle():
    """
    Where no round differs, no pair is told apart; where all do, it is.
    """
    run = priced_run(
        matched=lambda pair, at: 12 + at if str(pair) == "q4_0/q4_0" else 18 + at % 2
    )
    found = separated(run)

    assert 1 == found["matched"].told
    assert Pair("q4_0", "q4_0") == found["matched"].pair
    assert -5.0 == found["matched"].difference
    assert 0 == found["margin"].told
    assert 0.0 == found["margin"].times_noise


def test_standard_errors_are_noise():
    """
    Half a percent each way: 1.96 times their hypotenuse is 1.39.
    """
    found = separated()["top1"]

    assert 8 == found.told
    assert pytest.approx(1.96 * math.sqrt(0.5)) == found.noise


def test_single_numbers_without_an_error_tell_nothing():
    """
    Nothing says how large their noise is.
    """
    single = made_probe("divergence", made_metric("quiet"))
    found = separated(probes=[single])["quiet"]

    assert None is found.told
    assert 8 == found.compared
    assert math.isnan(found.noise)


def test_repetitions_have_a_spread():
    """
    Three speeds each, one token per second apart.
    """
    found = separated()["tg"]

    assert 8 == found.told
    assert -23.0 == found.difference
    assert pytest.approx(half_interval([199, 200, 201], [176, 177, 178])) == found.noise


def test_cells_without_sound_values_are_not_compared():
    """
    Failures have none, and fallbacks are another thing.
    """
    run = priced_run(
        changes=[
            failed("throughput", "q8_0/q8_0"),
            fell_back("throughput", "q4_0/q4_0", tg=[1.0, 2.0]),
        ]
    )

    assert 6 == separated(run)["tg"].compared


def test_without_the_reference_nothing_separates():
    """
    There is nothing to be compared with.
    """
    run = priced_run(changes=[failed("throughput", "bf16/bf16")])

    assert "tg" not in separated(run)


def test_without_noise_any_difference_is_infinitely_large():
    """
    Speeds that repeat exactly differ beyond doubt.
    """
    exact = made_metric(TG.name, values=lambda r, *_: [lost(r.pair)] * 3)
    found = separated(probes=[made_probe("throughput", exact)])["tg"]

    assert math.inf == found.times_noise


@pytest.mark.parametrize(
    ("count", "t"), [(2, 4.303), (3, 2.776), (5, 2.306), (16, 2.042)]
)
def test_few_observations_are_less_sure(count, t):
    """
    Student's t of twice the count, less two, as tables have it.
    """
    values = [float(at) for at in range(count)]
    spread = math.sqrt(2 * _variance(values) / count)

    found = half_interval(values, values) / spread

    assert pytest.approx(t, rel=0.11 if count == 2 else 0.03) == found


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
@example([0.0, 1e-160])
def test_an_interval_is_never_negative(values):
    """
    Whatever was observed.
    """
    assert 0 <= half_interval(values, values)


def _variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def test_pairs_are_told_from_the_reference_that_records_name():
    """
    The most precise pair is judged like any other one.
    """
    found = separated(priced_run(against="q8_0/q8_0"))["kld"]

    assert (8, 8) == (found.told, found.compared)
    assert Pair("bf16", "bf16") == found.pair
    assert 15.0 == found.difference
    assert 30.0 == found.times_noise
