"""How metrics are shown: each of every probe, its facets included."""

from dataclasses import fields, replace

import pytest
from made_metrics import made_metric
from made_records import made_setup

from codeneedle.probes import PROBES
from codeneedle.probes.divergence.metrics import metrics_if_several_contexts
from codeneedle.probes.metrics import Metric
from codeneedle.probes.recall.metrics import FORCED
from codeneedle.probes.retrieval.metrics import metrics_of_tasks
from codeneedle.probes.retrieval.task_kinds import TASKS
from codeneedle.probes.throughput.metrics import metrics_at_depths
from codeneedle.probes.transcript.metrics import metrics_of_token_class
from codeneedle.probes.transcript.rendering import Kind
from codeneedle.report.display import DISPLAYS, Display, display_of

SETUP = replace(
    made_setup(),
    probes={
        "divergence": {"contexts": [512, 4096]},
        "retrieval": {"tasks": [*TASKS, "forked"], "lengths": [1024, 4096]},
        "throughput": {
            "depths": [0, 4096],
            "prompt_tokens": 1,
            "generated_tokens": 1,
            "arguments": {},
        },
    },
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(metric for probe in PROBES.values() for metric in probe.metrics),
        *FORCED,
        *metrics_if_several_contexts(SETUP),
        *metrics_of_tasks(SETUP),
        *metrics_at_depths(SETUP),
        *(
            each
            for kind in Kind
            for each in metrics_of_token_class(kind, enters_verdict=False)
        ),
    )
}
"""Every metric that any run may have."""


def test_every_metric_of_every_probe_has_a_display():
    assert [] == [
        metric.name
        for metric in METRICS.values()
        if (metric.of or metric.name) not in DISPLAYS
    ]


def test_no_display_is_without_a_metric():
    named = {*METRICS, *(metric.of for metric in METRICS.values())}

    assert set() == DISPLAYS.keys() - named


@pytest.mark.parametrize(
    "name",
    [
        "tg",
        "tg@4096",
        "peak@4096",
        "kld@512",
        "transcript-right@tool",
        "reuse@turn",
        "nth@4096",
        "forked",
    ],
)
def test_the_label_of_a_facet_says_which(name, golden):
    assert golden == display_of(METRICS[name]).label


def test_facets_have_the_digits_and_the_scale_of_their_whole():
    for facet in METRICS.values():
        if facet.of in METRICS:
            ours, whole = display_of(facet), display_of(METRICS[facet.of])
            assert (whole.digits, whole.bounds, whole.least_span) == (
                (ours.digits, ours.bounds, ours.least_span)
            )


def test_tables_show_tasks_classes_and_ways_but_no_depth_context_or_length():
    shown = {
        facet.facet.partition("=")[0]
        for facet in METRICS.values()
        if facet.of and facet.of != "peak" and display_of(facet).in_table
    }

    assert {"task", "tokens", "cache"} == shown
    assert not display_of(METRICS["nth@4096"]).in_table
    assert not display_of(METRICS["transcript-right@tool"]).in_table


def test_companions_are_metrics():
    beside = {name for each in DISPLAYS.values() for name in each.companions}

    assert set() == beside - METRICS.keys()


@pytest.mark.parametrize(("unit", "digits"), [("%", 1), ("nats", 3), ("lines", 2)])
def test_a_metric_without_an_entry_has_its_name_and_the_decimals_of_its_unit(
    unit, digits
):
    new = replace(made_metric("new"), unit=unit)

    assert Display(label="new", digits=digits, in_table=True) == display_of(new)


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("matched", ((0, 20), 5)),
        ("bonus", ((0, None), 5)),
        ("margin", ((0, None), 1)),
        ("recall-logp", ((None, 0), 0.2)),
        ("recall-right", ((0, 100), 10)),
        ("lead", ((None, None), 1)),
        ("kld", ((0, None), 0.1)),
        ("precision", ((0, None), 10)),
        ("ppl", ((1, None), 0)),
        ("transcript-breaks-at", ((0, None), 5)),
        ("retrieval", ((0, 1), 0.1)),
    ],
)
def test_values_are_drawn_on_scales_of_their_unit(name, scale):
    display = display_of(METRICS[name])

    assert scale == (display.bounds, display.least_span)


def test_what_is_measured_and_how_it_is_shown_share_no_field():
    measured, shown = (
        {field.name for field in fields(kind)} for kind in (Metric, Display)
    )

    assert set() == measured & shown
