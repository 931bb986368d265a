"""Memory against loss, a line for each file of weights, on the page of several runs."""

import re
from dataclasses import replace

import pytest
from drawn import pictures_in
from made_weights import BYTES, three_runs

from codeneedle.cli.engines import engine_pair_flags
from codeneedle.report.budget_chart import (
    budget_chart,
    budget_frame,
    is_least_loss_so_far,
)
from codeneedle.report.page import joint_verdict_or_none, page
from codeneedle.verdict.limits import Limits

pytestmark = pytest.mark.slow

LIMITS = Limits(max_memory_bytes=900_000_000, at=8192)


@pytest.fixture(name="verdict", scope="module")
def verdict_fixture():
    return joint_verdict_or_none(three_runs(), LIMITS)


@pytest.fixture(scope="module")
def drawn(verdict):
    """The pictures of its chart."""
    return pictures_in(budget_chart(verdict))


def test_each_candidate_is_a_point(verdict):
    frame = budget_frame(verdict)

    assert 9 == len(frame)
    assert [*BYTES] == list(dict.fromkeys(frame["weights"]))
    assert [("Q8_0", "f16/f16")] == [
        *frame[frame["is_reference"]][["weights", "pair"]].itertuples(
            index=False, name=None
        )
    ]


def test_what_is_set_has_a_ring_and_the_budget_an_edge(verdict, drawn):
    (chosen,) = budget_frame(verdict).query("is_set").itertuples()

    assert ("Q6_K", "f16/f16") == (chosen.weights, chosen.pair)
    for each in drawn:
        assert ">budget<" in each
        assert all(f">{name}<" in each for name in BYTES)


def test_a_line_goes_through_what_no_smaller_pair_loses_as_little_as(verdict, drawn):
    frame = budget_frame(verdict)
    assert all(" MiB<" in each for each in drawn)
    of_file = frame[frame["weights"] == "Q8_0"].sort_values(["memory", "loss"])
    kept = of_file[is_least_loss_so_far(of_file)]

    assert kept["loss"].is_monotonic_decreasing
    assert of_file["loss"].min() == kept["loss"].min()


def test_a_page_of_files_of_one_model_has_it(golden):
    text = page(three_runs(), LIMITS, engine_pair_flags)

    assert golden == re.findall(r'id="h-budget">([^<]*)', text)
    assert "Set: -m made-q6_k" in text
    # The budget is of the whole, and says nothing about the cache of one file.
    assert "fits into" not in text


def test_a_page_of_others_has_none():
    first, other, _ = three_runs()
    model = replace(other.setup.model, tokenizer="other")
    other = replace(other, setup=replace(other.setup, model=model))

    assert joint_verdict_or_none([first, other], LIMITS) is None
    assert joint_verdict_or_none([first], LIMITS) is None
    assert "h-budget" not in page([first, other], LIMITS, engine_pair_flags)
