"""Ratios of speeds, and where a pair overtakes the reference."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_records import made_setup
from made_speeds import F16, Q8, measured, run_of

from codeneedle.probes.throughput.crossover import crossover_phrase
from codeneedle.probes.throughput.metrics import (
    METRICS,
    metrics_at_depths,
)
from codeneedle.probes.throughput.record import NAME, throughput_of
from codeneedle.records.record import Attention, BadRecord, Effective, as_json

TG = METRICS[0]


def crossing(ratios_by_depth):
    """The crossover of a pair that is faster by these ratios."""
    reference = dict.fromkeys(ratios_by_depth, 100.0)
    speeds = {depth: ratio * 100.0 for depth, ratio in ratios_by_depth.items()}
    return crossover_phrase(measured(Q8, speeds), measured(F16, reference))


def test_a_crossover_is_not_read_from_noise():
    """2370 ± 1075 beside 1718 ± 766 was once faster "until 137 tokens"."""

    def cell(pair, *by_depth):
        made = measured(pair, dict.fromkeys((0, 100), 1.0))
        speeds = throughput_of(made).speeds
        noisy = [replace(at, tg=tg) for at, tg in zip(speeds, by_depth, strict=True)]
        answers = {str(at.depth): at for at in noisy}
        stored = as_json(replace(throughput_of(made), answers=answers))
        return replace(made, observation=stored)

    reference = cell(F16, (952.0, 2484.0), (1000.0, 1002.0))
    noisy = cell(Q8, (1295.0, 3445.0), (1000.0, 1001.0))
    slower = cell(Q8, (1295.0, 3445.0), (500.0, 502.0))

    assert "" == crossover_phrase(noisy, reference)
    assert "never" == crossover_phrase(slower, reference)


@pytest.mark.parametrize(
    ("by_depth", "expected"),
    [
        ({0: 1.1, 100: 1.2}, "always"),
        ({0: 0.9, 100: 0.8}, "never"),
        ({0: 1.0, 100: 1.0}, "never"),
        ({0: 0.5, 100: 1.5}, "from 50 tokens"),
        ({0: 0.5, 100: 0.75, 200: 1.25}, "from 150 tokens"),
        ({0: 1.0, 100: 1.5}, "from 0 tokens"),
        ({0: 1.5, 100: 0.5}, "until 50 tokens"),
        ({0: 1.5, 100: 0.5, 200: 1.5}, "from 150 tokens"),
        ({7: 1.5}, "always"),
        ({0: 0.5, 24_690: 1.5}, "from 12,345 tokens"),
        ({}, ""),
    ],
)
def test_the_crossover_by_examples(by_depth, expected):
    """The last crossing counts, because it decides what deeper contexts cost."""
    assert expected == crossing(by_depth)


AHEAD = {"always": "never", "from": "until"}
"""What is said of a pair that ends faster, and of the other one."""

RATIOS = st.dictionaries(
    st.integers(0, 100_000), st.floats(0.01, 100), min_size=1, max_size=6
).map(lambda by_depth: dict(sorted(by_depth.items())))


@given(RATIOS)
def test_a_crossover_lies_within_the_measured_range(by_depth):
    trend, *depth = crossing(by_depth).removesuffix(" tokens").split()

    assert (list(by_depth.values())[-1] * 100.0 > 100.0) == (trend in AHEAD)
    assert bool(depth) == (trend in {"from", "until"})
    for each in depth:
        assert min(by_depth) <= int(each.replace(",", "")) <= max(by_depth)


@given(RATIOS)
def test_exchanging_the_two_mirrors_the_trend(by_depth):
    assume(all(abs(ratio - 1) > 1e-9 for ratio in by_depth.values()))
    theirs = measured(F16, dict.fromkeys(by_depth, 1.0))
    ours = measured(Q8, by_depth)
    both = (
        crossover_phrase(ours, theirs).split()[0],
        crossover_phrase(theirs, ours).split()[0],
    )

    assert both in {*AHEAD.items(), *((one, other) for other, one in AHEAD.items())}


def test_only_depths_that_both_have_count():
    ours = measured(Q8, {0: 50.0, 100: 150.0, 200: None})
    theirs = measured(F16, {0: 100.0, 100: 100.0, 200: 1.0})

    assert "from 50 tokens" == crossover_phrase(ours, theirs)
    converted = Effective(attention=Attention.CONVERTED)
    assert "" == crossover_phrase(replace(ours, effective=converted), theirs)


def test_each_depth_of_the_settings_has_its_metrics():
    assert ["tg@0", "pp@0", "tg@9", "pp@9", "peak@0", "peak@9"] == [
        metric.name for metric in metrics_at_depths(run_of(depths=(0, 9)).setup)
    ]
    assert () == metrics_at_depths(made_setup())
    assert () == TG.values(measured(F16, {0: 1.0}), made_setup())


def test_a_speed_is_that_of_its_depth():
    setup = run_of().setup
    full = measured(Q8, {0: 9.0, 100: 4.0})
    shallow = measured(Q8, {0: 9.0, 100: None})
    at_0, pp_at_0, *_ = metrics_at_depths(setup)

    assert (4.0, 4.0) == TG.values(full, setup)
    assert (9.0, 9.0) == at_0.values(full, setup)
    assert (1.0, 1.0) == pp_at_0.values(full, setup)
    assert () == TG.values(shallow, setup)
    assert () == TG.values(measured(Q8, {0: 9.0}), setup)


def test_a_peak_of_memory_is_that_of_its_depth():
    record, setup = measured(Q8, {0: 9.0, 100: 4.0}), run_of().setup
    stored = throughput_of(record)
    answers = {
        name: replace(each, peak_bytes=(each.depth + 1) << 20)
        for name, each in stored.answers.items()
    }
    record = replace(record, observation=as_json(replace(stored, answers=answers)))
    peaks = [each for each in metrics_at_depths(setup) if each.of == "peak"]

    assert [[1.0], [101.0]] == [each.values(record, setup) for each in peaks]


@pytest.mark.parametrize("observation", [None, {}, {"speeds": "fast"}])
def test_another_observation_is_refused(observation):
    record = replace(measured(F16, {0: 1.0}), observation=observation)
    setup = replace(made_setup(), probes={NAME: {"depths": "all"}})

    with pytest.raises(BadRecord, match=r"f16-f16\.throughput\.json"):
        throughput_of(record)
    with pytest.raises(BadRecord, match=r"setup\.json"):
        metrics_at_depths(setup)
