"""Metrics of the divergence probe."""

from dataclasses import replace

import pytest
from fake_tools import made_statistics
from made_records import failed_record, made_setup

from codeneedle.cache_types import Pair
from codeneedle.probes import frames
from codeneedle.probes.divergence.metrics import (
    METRICS,
    metrics_if_several_contexts,
    precision_percent,
)
from codeneedle.probes.divergence.record import (
    NAME,
    ContextComparison,
    Divergence,
    divergence_of,
)
from codeneedle.records.record import BadRecord, Run, Status, as_json

SETUP = made_setup()


def compared(*contexts, reference="f16/f16", reference_ppl=4.0, **changes):
    """A record with the mean divergences 0.25, 0.5, ... at *contexts*."""
    stored = Divergence(
        reference=reference,
        answers={
            f"{context}x4": ContextComparison(
                context=context,
                chunks=4,
                tokens=1020,
                seconds=1.0,
                base_seconds=1.0,
                reference_ppl=reference_ppl,
                statistics=made_statistics(kld=0.25 * at, **changes),
            )
            for at, context in enumerate(contexts, start=1)
        },
    )
    record = replace(failed_record(Pair("q8_0", "q8_0")), probe=NAME)
    return replace(record, status=Status.FINISHED, observation=as_json(stored))


def values(record, metrics=METRICS):
    """The values of *metrics*, by name."""
    return {metric.name: [*metric.values(record, SETUP)] for metric in metrics}


@pytest.mark.parametrize(
    ("kld_999", "floor_999", "percent"),
    [(0.078709, 0.023258, 94.61), (0.002328, 0.000375, 99.80)],
)
def test_precision_is_as_published_tables_have_it(kld_999, floor_999, percent):
    """Rows of llama.cpp issue #24139, by hand."""
    assert percent == round(precision_percent(kld_999, floor_999), 2)


@pytest.mark.parametrize(
    ("has_floor", "expected"), [(True, [100.0, 77.88]), (False, [None, None])]
)
def test_precision_is_counted_from_the_reference_of_the_run(has_floor, expected):
    pair = compared(512, reference="q8_0/q8_0")
    twice = as_json(divergence_of(compared(256, 512)))
    twice["answers"].pop("256x4")
    less = replace(
        pair,
        pair=Pair("q4_0", "q4_0"),
        observation={**pair.observation, "answers": twice["answers"]},
    )
    run = Run(name="a/b", setup=SETUP, records=(pair, less) if has_floor else (less,))
    metric = next(each for each in METRICS if each.name == "precision")

    cells = {cell.pair: cell for cell in frames.cells_frame(run, metric)}

    found = [cells.get(Pair(t, t)) for t in ("q8_0", "q4_0")]
    values = [cell and cell.has_value and round(cell.value, 2) for cell in found]
    assert expected == [each or None for each in values]


def test_each_metric_is_one_number_of_the_comparison():
    """The perplexity ratio is to the reference before it was rounded to 16 bits."""
    assert {
        "kld": [0.25],
        "kld999": [4.0],
        "precision": [0.25],
        "precision999": [4.0],
        "top1": [88.0],
        "kld-median": [0.1],
        "kld-max": [9.0],
        "dp-rms": [7.0],
        "ppl": [6.0],
        "ppl-ratio": [1.5],
    } == values(compared(512))
    assert [3.0] == values(compared(512, reference_ppl=2.0))["ppl-ratio"]


def test_the_error_of_an_estimate_is_that_of_the_tool():
    """Of a quantile, a greatest value or a ratio there is none."""
    errors = {each.name: each.error for each in METRICS if each.error}
    stated = {"kld": 0.01, "top1": 1.0, "dp-rms": 0.2, "ppl": 0.5}

    assert stated == {name: of(compared(512), SETUP) for name, of in errors.items()}
    assert {None} == {of(compared(), SETUP) for of in errors.values()}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"ppl": None}, {"ppl", "ppl-ratio"}),
        ({"reference_ppl": None}, {"ppl-ratio"}),
        ({}, set()),
    ],
)
def test_a_perplexity_that_no_log_has_told_is_a_gap_with_a_reason(changes, missing):
    whole, record = compared(512), compared(512, **changes)
    gaps = {each.name: each.gap(record, SETUP) for each in METRICS if each.gap}
    found = {name: told for name, told in gaps.items() if told}

    assert {name: [] for name in missing} == {
        name: numbers
        for name, numbers in values(record).items()
        if numbers != values(whole)[name]
    }
    assert missing == {*found}
    assert all(status == Status.FINISHED and why for status, why in found.values())
    assert None is next(e.error for e in METRICS if e.name == "ppl")(
        compared(512, ppl=None), SETUP
    )


def test_mean_divergence_is_the_headline_and_perplexity_never_ranks():
    """Perplexity may improve while the distributions diverge."""
    better = {metric.name: metric.better for metric in METRICS}

    assert "kld" == METRICS[0].name
    assert ("lower", "higher") == (better["kld"], better["top1"])
    assert {"neither"} == {better["ppl"], better["ppl-ratio"]}


def test_the_reference_has_a_noise_floor_of_each_distance():
    distances = {"kld", "kld999", "kld-median", "kld-max", "dp-rms"}
    assert distances == {each.name for each in METRICS if each.floor}


def test_several_contexts_have_metrics_of_their_own():
    record = compared(512, 4096)
    conditions = {NAME: {"contexts": [512, 4096]}}
    more = metrics_if_several_contexts(replace(SETUP, probes=conditions))
    found = values(record, more)

    assert 2 * len(METRICS) == len(found)
    assert ([0.25], [0.5]) == (found["kld@512"], found["kld@4096"])
    assert [0.25] == values(record)["kld"]
    assert [] == values(compared(512), more)["kld@4096"]
    one = {NAME: {"contexts": [512]}}
    assert (
        ()
        == metrics_if_several_contexts(SETUP)
        == metrics_if_several_contexts(replace(SETUP, probes=one))
    )


def test_metrics_state_the_pair_that_they_are_measured_against():
    references = {metric.name: metric.reference for metric in METRICS}
    record = compared(512, reference="q8_0/q8_0")

    assert "q8_0/q8_0" == references["kld"](record)
    assert references["top1"](replace(record, observation=None)) is None
    assert references["ppl"] is None


def test_what_is_stored_is_read_strictly():
    record = compared(512)

    assert divergence_of(replace(record, probe="recall")) is None
    with pytest.raises(BadRecord):
        divergence_of(replace(record, observation={"reference": 3}))
    with pytest.raises(BadRecord, match="contexts of divergence"):
        metrics_if_several_contexts(replace(SETUP, probes={NAME: {"contexts": "all"}}))
