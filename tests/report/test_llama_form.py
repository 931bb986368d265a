"""Divergence in the form that llama.cpp's maintainers read."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.engines.engine import Estimate
from codeneedle.engines.llama_cpp.arguments import (
    base_command,
    build_option,
    comparison,
)
from codeneedle.errors import BadInput
from codeneedle.probes.divergence.record import divergence_of
from codeneedle.records.store import Store
from codeneedle.report.llama_form import (
    Dialect,
    llama_form,
    ppl_difference,
    worth_compiling,
)
from codeneedle.report.markdown import markdown
from codeneedle.verdict.judge import judge

GOLDEN = Path(__file__).parents[1] / "golden" / "runs" / "divergence"
DIALECT = Dialect(base=base_command, compares=comparison, build=build_option)


@pytest.fixture
def run():
    """A stored run of f16 and q4_0."""
    return Store(GOLDEN / "golden" / "needle-nano").read()


def test_each_figure_stands_with_the_error_that_the_tool_states(run):
    lines = markdown(llama_form(judge(run), DIALECT)).splitlines()
    row = next(line for line in lines if line.startswith("| q4\\_0 | f16"))

    assert "| K | V | BPV | PPL | ΔPPL | KLD |" in "\n".join(lines)
    for figure in ("| 10.25 |", "17646.8280 ± 8043.5900", "0.543385 ± 0.102708"):
        assert figure in row
    assert row.endswith("| -0.315 ± 0.447 | 8.721 ± 2.482 | 92.65 ± 1.34 |")


def test_the_reference_has_a_row_for_either_measurement(run):
    text = markdown(llama_form(judge(run), DIALECT))

    assert "| f16 | f16 | 16 | 13854.9691 | - |" in text
    assert "| f16 | f16, again | 16 | 13854.9691 ± 6226.6787 |" in text


def test_the_commands_need_no_program_of_ours_and_name_the_kernels(run):
    text = markdown(llama_form(judge(run), DIALECT))
    commands = text.partition("<pre>")[2]

    assert 1 == commands.count("--file text.txt --chunks 3")
    assert 4 == commands.count("--kl-divergence-base base.kld --kl-divergence\n")
    assert '-DGGML_CUDA_FA_QUANTS="f16-f16;q4_0-f16;q4_0-q4_0"' in commands
    assert "f16/q4_0" not in map(str, worth_compiling(judge(run)))


def test_the_error_of_a_difference_takes_the_covariance_into_account(run):
    record = next(r for r in run.records if r.probe == "divergence")
    found = divergence_of(record).contexts[0].statistics
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
