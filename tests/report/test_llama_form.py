"""Divergence in the form that llama.cpp's maintainers read."""

import math
from dataclasses import astuple, replace

import msgspec
import pytest
from made_divergences import DIALECT, golden_run
from printing import printed

from codeneedle.engines.tools import Estimate
from codeneedle.errors import BadInput
from codeneedle.probes.divergence.record import divergence_of
from codeneedle.records.record import Run
from codeneedle.report.llama_form import (
    divergence_document,
    pareto_pairs_not_beyond,
    ppl_difference,
)
from codeneedle.verdict.judge import judge


@pytest.fixture
def run():
    """A stored run of f16 and q4_0."""
    return golden_run()


def test_a_pair_that_loses_more_for_its_size_is_not_worth_compiling(run):
    assert ["f16/f16", "q4_0/f16", "q4_0/q4_0"] == (
        sorted(map(str, pareto_pairs_not_beyond(judge(run))))
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


def test_a_type_of_a_fork_has_its_measured_bits(run):
    """Not those of its name; too small a cache, as this one is, is rounded too much."""
    stored = msgspec.json.encode(replace(run, root=None)).replace(b"q4_0", b"turbo3")
    small = msgspec.json.decode(stored, type=Run)
    large = replace(small, records=tuple(map(enlarged, small.records)))

    assert ["16", "-"] == bits_of(small)
    assert ["16", "9.75"] == bits_of(large)


def enlarged(record):
    """*record* with a cache of 64 MiB in f16, of which turbo3 takes 3.5 bits."""
    k, v = ({"f16": 64.0, "turbo3": 14.0}[name] for name in astuple(record.pair))
    caches = [replace(each, k_mib=k, v_mib=v) for each in record.effective.kv]
    return replace(record, effective=replace(record.effective, kv=tuple(caches)))


def bits_of(run):
    """Bits of a value of f16/f16 and of f16/turbo3."""
    lines = printed(divergence_document(judge(run), DIALECT)).splitlines()
    rows = {tuple(line.split()[:2]): line.split()[2] for line in lines if "." in line}
    return [rows["f16", "f16"], rows["f16", "turbo3"]]


def test_a_run_without_divergence_is_refused(run):
    speeds = [each for each in run.records if each.probe != "divergence"]

    with pytest.raises(BadInput, match="has no divergence"):
        divergence_document(judge(replace(run, records=tuple(speeds))), DIALECT)


@pytest.mark.parametrize(("rotation", "variables"), [(True, 0), (False, 5)])
def test_commands_leave_out_the_rotation_that_the_run_left_out(
    run, rotation, variables
):
    setup = replace(run.setup, rotation=rotation)
    text = printed(divergence_document(judge(replace(run, setup=setup)), DIALECT))

    assert variables == text.count("LLAMA_ATTN_ROT_DISABLE=1 llama-perplexity")


def test_a_context_without_figures_has_no_table_and_is_among_the_commands(run):
    sizes = {"contexts": [256, 64], "chunks": [3, 1]}
    probes = run.setup.probes | {"divergence": run.setup.probes["divergence"] | sizes}
    run = replace(run, setup=replace(run.setup, probes=probes))
    text = printed(divergence_document(judge(run), DIALECT))

    assert (1, 1) == (text.count("PPL(base)"), text.count("\n3 chunks of 256 tokens"))
    assert "; 1 chunk of 64" in text
