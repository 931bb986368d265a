"""The verdict sets pairs with a kernel, and says what others would be worth."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from made_losses import BEYOND, REFERENCE, WITHIN, diverging, losing, losing_run
from made_verdicts import without_kernel

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.probes.divergence.metrics import METRICS
from codeneedle.records.record import (
    ON_CPU,
    Attention,
    DeviceMemory,
    Effective,
    KvBuffer,
)
from codeneedle.report.verdict import headline_and_gain_lines
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.noise_floor import noise_floor
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.remarks import remarks

SMALL, SAME = "q8_0/q4_0", "q8_0/q8_0"
LOSSES = {"bf16/q8_0": WITHIN, SAME: WITHIN, SMALL: WITHIN, "q4_0/q4_0": BEYOND}


def kinds(verdict):
    """Kinds of the remarks of *verdict*, with the pairs of each."""
    return {each.kind: tuple(map(str, each.pairs)) for each in remarks(verdict)}


@pytest.mark.parametrize("attention", [Attention.CPU, Attention.CONVERTED])
def test_a_smaller_pair_without_a_kernel_is_named_and_not_set(attention):
    run = without_kernel(losing_run(LOSSES), SMALL, "bf16/q8_0", attention=attention)
    found = judge(run)

    assert (Pair.parse(SAME), Pair.parse(SMALL)) == (found.chosen, found.elsewhere)
    assert "within" == found.decision(Pair.parse(SMALL))
    assert (Pair.parse(SMALL),) == found.worth_compiling
    found_of = kinds(found)
    assert (SMALL,) == found_of[RemarkKind.WITHOUT_KERNEL]
    assert (SMALL,) == found_of[RemarkKind.WORTH_COMPILING]
    assert {SMALL, "bf16/q8_0"} == {*found_of[RemarkKind.ATTENTION]}


@pytest.mark.parametrize(
    ("attention", "is_cured"), [(Attention.CONVERTED, True), (Attention.CPU, False)]
)
def test_the_option_that_compiles_what_is_worth_it_keeps_kernels_that_are_there(
    attention, is_cured
):
    run = without_kernel(losing_run(LOSSES), SMALL, "bf16/q8_0", attention=attention)
    pair_flags = PairFlags(compiles=lambda pairs: " ".join(map(str, pairs)))

    (told,) = (
        each.text
        for each in remarks(judge(run), pair_flags)
        if each.kind is RemarkKind.WORTH_COMPILING
    )

    expected = "(a build with bf16/bf16 q8_0/q8_0 q8_0/q4_0 q4_0/q4_0)"
    assert is_cured == (expected in told)
    assert is_cured == ("a build" in told)


def test_where_every_pair_has_a_kernel_nothing_is_said_of_kernels():
    found = judge(losing_run(LOSSES))

    assert (Pair.parse(SMALL), None, ()) == (
        found.chosen,
        found.elsewhere,
        found.worth_compiling,
    )
    assert not kinds(found).keys() & {
        RemarkKind.WITHOUT_KERNEL,
        RemarkKind.WORTH_COMPILING,
        RemarkKind.ATTENTION,
    }


def test_a_run_without_any_kernel_gives_no_advice():
    run = losing_run(LOSSES)
    run = without_kernel(run, *(str(record.pair) for record in run.records))
    found = judge(run)

    assert found.chosen is None
    assert Outcome.NO_ANSWER is found.outcome
    assert "within" == found.decision(Pair.parse(SMALL))


def test_a_pair_as_large_as_the_reference_is_not_worth_compiling():
    run = without_kernel(losing_run({"f16/f16": WITHIN, SAME: BEYOND}), "f16/f16")
    found = judge(run)

    assert ("within", None) == (found.decision(Pair.parse("f16/f16")), found.chosen)
    assert () == found.worth_compiling


def test_the_reference_is_of_those_in_a_kernel():
    run = without_kernel(losing_run(LOSSES), REFERENCE)

    assert Pair.parse("bf16/q8_0") == judge(run).reference


def test_a_pair_on_the_cpu_is_compared_with_the_reference_there():
    """The place alone loses as much as a pair that is beyond the limit."""
    run = without_kernel(losing_run(LOSSES), "q4_0/q4_0")
    there = losing(run.setup, REFERENCE, BEYOND)
    effective = Effective(attention=Attention.CPU)
    there = replace(there, variant=ON_CPU, effective=effective)
    found = judge(run.with_every_record((*run.records, there)))

    row = found.result(Pair.parse("q4_0/q4_0")).metric_result("recall-logp")
    assert 0 == pytest.approx(row.bounds.mean)
    assert "within" == found.decision(Pair.parse(SAME))
    assert Pair.parse(REFERENCE) == found.reference
    assert 0.1 == pytest.approx(found.on_cpu["recall-logp"][1])
    assert (REFERENCE,) == kinds(found)[RemarkKind.ON_CPU]


def test_a_place_that_shares_no_unit_with_the_reference_has_no_distance_from_it():
    """Nor has it that of the repetition of the reference."""
    (metric,) = (each for each in METRICS if each.name == "kld")
    told = SimpleNamespace(loss_values_by_unit=lambda units, _setup: units)
    floor = noise_floor(
        told, metric.loss, {"1": 0.0}, None, again=[{"1": 0.2}], on_cpu=[{"2": 0.5}]
    )

    assert (0.2, None) == (pytest.approx(floor.repeated), floor.moved)


def test_what_the_place_changes_is_told_of_divergence_too():
    run = losing_run(LOSSES)
    sizes = {"contexts": [512], "chunks": [6]}
    run = replace(run, setup=replace(run.setup, probes={"divergence": sizes}))
    pairs = (REFERENCE, SAME, SMALL)
    cells = [diverging(pair, [0.01 * at] * 6) for at, pair in enumerate(pairs)]
    there = replace(diverging(REFERENCE, [0.004] * 6), variant=ON_CPU)
    found = judge(run.with_every_record((*cells, there)))

    assert 0.004 == pytest.approx(found.on_cpu["kld"][1])


def test_what_there_is_to_gain_stands_before_what_to_set(golden):
    cache = KvBuffer(
        cells=16_384, layers=2, k_type="bf16", v_type="bf16", k_mib=16.0, v_mib=16.0
    )
    small = replace(cache, k_type="q8_0", v_type="q4_0", k_mib=8.5, v_mib=4.5)
    host = DeviceMemory(device="Host", weights=0, context=0, compute=64 << 20)
    sizes = {REFERENCE: cache, SMALL: small}
    run = losing_run(LOSSES)
    records = tuple(
        replace(
            each,
            effective=Effective(
                kv=(sizes[str(each.pair)],) if str(each.pair) in sizes else (),
                recurrent_bytes=299 << 20,
                memory=(host,),
            ),
        )
        for each in run.records
    )
    weights = replace(run.setup.weights, size_bytes=1 << 30)
    setup = replace(run.setup, weights=weights, context=16_384)
    found = judge(replace(run, setup=setup, records=records))

    assert found.memory_saving.pair == found.chosen == Pair.parse(SMALL)
    assert 0.013 == round(found.memory_saving.saved_share, 3)
    assert 23_945 == found.memory_saving.further_tokens_in_saved_memory
    assert golden == headline_and_gain_lines(found, str).lines[0]
    longer = replace(found, limits=replace(found.limits, at=32_768))
    assert golden == headline_and_gain_lines(longer, str).lines[0]
