"""Divergence in the form that llama.cpp's maintainers read."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.arguments import (
    base_command,
    build_option,
    comparison,
)
from codeneedle.engines.tools import Estimate
from codeneedle.errors import BadInput
from codeneedle.probes.divergence.record import divergence_of
from codeneedle.records.store import Store
from codeneedle.report.llama_form import (
    Dialect,
    llama_form,
    ppl_difference,
    worth_compiling,
)
from codeneedle.verdict.judge import judge

GOLDEN = Path(__file__).parents[1] / "golden" / "runs" / "divergence"
DIALECT = Dialect(base=base_command, compares=comparison, build=build_option)


@pytest.fixture
def run():
    """A stored run of f16 and q4_0."""
    return Store(GOLDEN / "golden" / "needle-nano").read()


def test_a_pair_that_loses_more_for_its_size_is_not_worth_compiling(run):
    assert ["f16/f16", "q4_0/f16", "q4_0/q4_0"] == (
        sorted(map(str, worth_compiling(judge(run))))
    )


def test_the_error_of_a_difference_takes_the_covariance_into_account(run):
    record = next(r for r in run.records if r.probe == "divergence")
    found = divergence_of(record).answers["256x3"].statistics
    same = replace(
        found,
        ppl=Estimate(11.0, 0.22),
        ppl_base=Estimate(10.0, 0.2),
        ppl_ratio=Estimate(1.1, 0.0),
    )
    apart = replace(same, ppl_ratio=Estimate(1.1, 1.1 * math.hypot(0.02, 0.02)))

    assert (1.0, 0.02) == pytest.approx(
        (ppl_difference(same).value, ppl_difference(same).error)
    )
    assert math.hypot(0.22, 0.2) == pytest.approx(ppl_difference(apart).error)


def test_a_run_without_divergence_is_refused(run):
    speeds = [each for each in run.records if each.probe != "divergence"]

    with pytest.raises(BadInput, match="has no divergence"):
        llama_form(judge(replace(run, records=tuple(speeds))), DIALECT)
