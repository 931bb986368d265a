"""What the numbers of cells tell of each other: attention, offload, evidence."""

from dataclasses import replace

import pytest
from made_records import (
    failed_record,
    made_needle,
    made_priming,
    made_record,
    made_round,
    made_setup,
    with_reply,
)

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import (
    ON_CPU,
    Attention,
    CacheEvidence,
    CellRecord,
    Effective,
    Fingerprint,
    Run,
    Status,
    key_of,
)
from codeneedle.records.store import Store
from codeneedle.scores import ComputesNan
from codeneedle.verdict.trust import (
    _has_less_memory_growth,
    inferred_cpu_attention,
    metrics_of,
    suspect_cells,
    trusted_records,
    trusted_run,
)


def cell(
    pair: str,
    *,
    parts: int | None = None,
    layers: int | None = None,
    devices: tuple[str, ...] = ("CUDA0",),
) -> CellRecord:
    """A finished cell whose graph fell into *parts*, with *layers* offloaded."""
    effective = Effective(graph_splits=parts, devices=devices, offloaded_layers=layers)
    return replace(made_record(pair, []), effective=effective)


def test_a_pair_that_computes_nan_in_one_probe_is_no_reference_in_another():
    """Its attention with the CPU alone tells nothing of it in a kernel."""
    numbers = [cell(pair) for pair in ("f16/f16", "q8_0/q8_0")]
    nan = failed_record(
        "f16/f16", status=Status.UNSUPPORTED, reason=str(ComputesNan(token=513))
    )
    elsewhere = replace(nan, pair=Pair("q8_0", "q8_0"), probe="divergence")
    elsewhere = replace(elsewhere, variant=ON_CPU)
    records = (*numbers, replace(nan, probe="divergence"), elsewhere)

    run = trusted_run(Run(name="r", setup=made_setup(), records=records))

    by_pair = {str(each.pair): each for each in run.records if each.probe == "recall"}
    assert by_pair["f16/f16"].computes_nan
    assert by_pair["f16/f16"].reason.endswith("(divergence)")
    assert by_pair["q8_0/q8_0"].has_numbers


def found(*records, asked=()):
    """The suspects among *records*, with status and reason."""
    finished = [record for record in records if record.has_numbers]
    suspect = suspect_cells(finished, grid=asked)
    return {
        str(pair): (trouble.status, trouble.reason) for pair, trouble in suspect.items()
    }


def on_cpu(*records, speeds=None):
    """Those of *records* with attention on the CPU, and what tells."""
    by_pair = {Pair.parse(pair): speed for pair, speed in (speeds or {}).items()}
    finished = [record for record in records if record.has_numbers]
    told = inferred_cpu_attention(
        finished, speed=lambda record: by_pair.get(record.pair)
    )
    return {str(pair): evidence for pair, evidence in told.items()}


def test_a_graph_in_more_parts_than_another_s_left_the_accelerator():
    cells = (
        cell("q4_0/q4_0", parts=2),
        cell("q8_0/q4_0", parts=30),
        cell("bf16/bf16", parts=2),
    )
    assert {"q8_0/q4_0": "30 graph splits, 2 for bf16/bf16"} == on_cpu(*cells)


def test_a_cell_that_tells_itself_where_attention_ran_is_believed():
    told = cell("q8_0/q4_0", parts=30)
    told = replace(told, effective=replace(told.effective, attention=Attention.KERNEL))

    assert {} == on_cpu(told, cell("bf16/bf16", parts=2))


@pytest.mark.parametrize(
    "cells",
    [
        [cell("q8_0/q4_0", parts=30), cell("bf16/bf16", parts=30)],
        [cell("q8_0/q4_0")],
        [cell("q8_0/q4_0"), cell("bf16/bf16", parts=2)],
        [cell("q8_0/q4_0", layers=33), cell("bf16/bf16", layers=33)],
        [cell("q8_0/q4_0"), cell("bf16/bf16", layers=33)],
    ],
    ids=["as many", "none tells", "one tells", "as many layers", "layers of one"],
)
def test_equal_numbers_and_unknown_ones_are_no_sign(cells):
    assert ({}, {}) == (found(*cells), on_cpu(*cells))


def test_cells_that_did_not_finish_are_not_compared():
    crashed = replace(failed_record("q4_0/q4_0"), effective=Effective(graph_splits=1))

    assert {} == on_cpu(crashed, cell("bf16/bf16", parts=2))


def test_a_prompt_read_at_less_than_a_quarter_is_suspect(golden):
    """Of the fastest symmetric pair's speed; its reason names both."""
    speeds = {"bf16/bf16": 3000.0, "q8_0/q8_0": 4000.0, "q8_0/q4_0": 999.0}

    assert golden == on_cpu(*map(cell, speeds), speeds=speeds)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        ({"bf16/bf16": 4000.0, "q8_0/q4_0": 1000.0}, []),
        ({"f16/f16": 4000.0, "q5_1/q5_1": 90.0}, ["q5_1/q5_1"]),
        ({"bf16/q4_0": 4000.0, "q8_0/q4_0": 90.0}, []),
        ({"bf16/bf16": 4000.0, "q8_0/q4_0": None}, []),
    ],
    ids=["a quarter", "symmetric itself", "none symmetric", "unknown"],
)
def test_speeds_are_compared_with_the_fastest_symmetric_pair(speeds, expected):
    assert expected == list(on_cpu(*map(cell, speeds), speeds=speeds))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (("CUDA0",), ["q8_0/q4_0"]),
        (("CPU",), []),
        (("CUDA0", "CPU"), ["q8_0/q4_0"]),
    ],
)
def test_only_a_cache_on_an_accelerator_is_held_to_its_speed(devices, expected):
    """A processor takes several times as long for quantized attention."""
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}
    cells = [cell(pair, devices=devices) for pair in speeds]

    assert expected == list(on_cpu(*cells, speeds=speeds))


def test_what_the_scheduler_says_is_the_better_reason():
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}

    told = on_cpu(
        cell("bf16/bf16", parts=2), cell("q8_0/q4_0", parts=30), speeds=speeds
    )

    assert "30 graph splits, 2 for bf16/bf16" == told["q8_0/q4_0"]


@pytest.mark.parametrize(
    ("layers", "pair"),
    [
        ({"bf16/bf16": 20, "q8_0/q8_0": 33, "q4_0/q4_0": 33}, "bf16/bf16"),
        ({"q8_0/q4_0": 33, "bf16/bf16": 20}, "q8_0/q4_0"),
    ],
    ids=["most", "of two the more precise"],
)
def test_a_cell_that_is_offloaded_otherwise_is_mismatched(layers, pair, golden):
    cells = [cell(each, layers=count) for each, count in layers.items()]

    ((suspect, (status, reason)),) = found(*cells).items()
    assert (pair, Status.MISMATCHED) == (suspect, status)
    assert golden == reason


def test_a_cell_that_is_offloaded_otherwise_makes_no_other_suspect():
    """With more layers there its graph has fewer parts, which is no fault of others."""
    suspect = found(
        cell("q4_0/q4_0", layers=33, parts=2),
        cell("q8_0/q8_0", layers=20, parts=30),
        cell("bf16/bf16", layers=20, parts=30),
    )

    assert ["q4_0/q4_0"] == list(suspect)


def proved(pair, *prints, memory=()):
    """A finished cell with evidence: replies as (text, logprobs)."""
    found = tuple(Fingerprint(text=text, logprobs=numbers) for text, numbers in prints)
    effective = Effective(
        cache_evidence=CacheEvidence(fingerprints=found, memory=memory)
    )
    return replace(made_record(pair, []), effective=effective)


def marks(*records):
    """The suspects among *records*, with the reason alone."""
    return {pair: reason for pair, (_, reason) in found(*records).items()}


SAME = (("a", (-0.5, -1.0)),) * 2
OTHER = (("a", (-0.5, -1.01)),) * 2
ROUNDED = (("a", (-0.5, -1.0001)),) * 2
BARELY_OTHER = (("a", (-0.5, -1.0003)),) * 2


@pytest.mark.parametrize(
    ("prints", "is_marked"),
    [
        (SAME, True),
        (ROUNDED, True),
        (BARELY_OTHER, False),
        ((*SAME[:1], ("a", (-0.5, -1.02))), True),
        ((("a", (-0.5, -1.029)), ("a", (-0.5, -1.039))), True),
        ((("a", (-0.5, -1.031)), ("a", (-0.5, -1.041))), False),
        ((("b", ()), ("c", ())), True),
        ((), True),
        (OTHER, False),
        ((("b", (-0.5, -1.0)),) * 2, False),
        ((("b", ()),) * 2, False),
    ],
    ids=[
        *("equal", "equal but for rounding", "barely other"),
        *("noisy", "within thrice the noise", "beyond it"),
        *("unstable", "mute", "other numbers", "other text", "text"),
    ],
)
def test_a_cell_is_verified_by_replies_that_differ_and_repeat_themselves(
    prints, is_marked, golden
):
    """A difference must be larger than that between two askings of one server."""
    marked = found(proved("auto/auto", *SAME), proved("fp8/fp8", *prints))

    status, told = marked.pop("fp8/fp8", (Status.UNVERIFIED, ""))
    assert (Status.UNVERIFIED, is_marked, {}) == (status, bool(told), marked)
    assert golden == told


@pytest.mark.parametrize(
    ("reference", "other", "is_marked"),
    [
        ((0, 200), (0, 100), False),
        ((0, 200), (0, 190), True),
        ((0, 200), (0, 300), True),
        ((70_000, 70_005), (70_020, 69_980), True),
        ((10_000, 12_000), (10_000, 2_000), True),
    ],
    ids=["half", "5 %", "more", "all taken at the start", "a device without answer"],
)
def test_memory_that_grows_less_with_the_context_is_evidence_too(
    reference, other, is_marked
):
    """Growing faster than the reference, or shrinking, proves nothing."""
    cells = [
        proved(pair, *SAME, memory=((1024, less << 20), (2048, more << 20)))
        for pair, (less, more) in (("auto/auto", reference), ("fp8/fp8", other))
    ]

    reason = marks(*cells).get("fp8/fp8", "")

    assert is_marked is ("bytes a token" in reason) is bool(reason)


def test_without_evidence_of_the_most_precise_pair_nothing_is_verified():
    cells = [proved("q8_0/q8_0", *SAME), proved("q4_0/q4_0", *OTHER)]

    marked = found(*cells, asked=[Pair("f16", "f16"), Pair("q8_0", "q8_0")])

    assert {Status.UNVERIFIED} == {status for status, _ in marked.values()}
    assert ["q4_0/q4_0", "q8_0/q8_0"] == sorted(marked)
    assert "no evidence of f16/f16" in marked["q8_0/q8_0"][1]


@pytest.mark.parametrize(
    ("pair", "is_marked"),
    [
        ("q8_0/q8_0", True),
        ("fp8/auto", True),
        ("turbo/turbo", True),
        ("f16/f16", False),
        ("f32/f32", False),
        ("auto/auto", False),
    ],
)
def test_a_lone_pair_that_is_quantized_is_unverified(pair, is_marked, golden):
    marked = marks(proved(pair, *SAME))

    assert ({pair} if is_marked else set()) == set(marked)
    assert golden == marked


def test_a_quantized_reference_is_verified_by_a_pair_that_differs_from_it(golden):
    first, same = proved("q8_0/q8_0", *SAME), proved("q4_0/q4_0", *SAME)

    marked = marks(first, same)

    assert {"q8_0/q8_0", "q4_0/q4_0"} == set(marked)
    assert golden == marked["q8_0/q8_0"]
    asked = [Pair("q8_0", "q8_0"), Pair("q4_0", "q4_0")]
    ((alone, (status, reason)),) = found(first, asked=asked).items()
    assert ("q8_0/q8_0", Status.UNVERIFIED) == (alone, status)
    assert golden == reason
    assert {} == marks(first, proved("q4_0/q4_0", *OTHER))


def test_a_server_that_ignores_one_type_is_caught_by_the_other_pair(golden):
    """V alone: q8_0/q4_0 is not the reference, but in every digit q8_0/q8_0."""
    reference = proved("f16/f16", *SAME)
    whole, half = proved("q8_0/q8_0", *OTHER), proved("q8_0/q4_0", *OTHER)

    assert golden == marks(reference, half, whole)
    # The replies of two good types are often the same.
    mute = [proved(p, *((("b", ()),) * 2)) for p in ("q8_0/q8_0", "q8_0/q4_0")]
    assert {} == marks(reference, *mute)


def test_a_server_that_tells_needs_no_evidence():
    assert {} == marks(cell("f16/f16"), cell("q8_0/q8_0"))


@pytest.mark.parametrize(
    ("reference_mib", "saved_mib", "is_smaller"),
    [
        (1000, 40, False),
        (1000, 60, True),
        (100, 15, False),
        (100, 17, True),
        (63, 60, False),
        (64, 60, True),
        (100, 100, False),
    ],
    ids=[
        *("share", "beyond it", "little", "beyond it", "no growth", "some growth"),
        "none of its own",
    ],
)
def test_a_cache_is_smaller_that_grows_by_a_twentieth_less_and_by_16_mib(
    reference_mib, saved_mib, is_smaller
):
    def growing(mib):
        return CacheEvidence(memory=((1024, 1 << 30), (2048, (1 << 30) + (mib << 20))))

    own, reference = growing(reference_mib - saved_mib), growing(reference_mib)

    assert is_smaller == _has_less_memory_growth(own, reference)
    assert not _has_less_memory_growth(CacheEvidence(), reference)


# --- whole runs

TYPES = ("f16", "q8_0", "q4_0")
SETUP = made_setup(types_k=TYPES, types_v=TYPES)
F16, Q8, Q4 = (Pair(name, name) for name in TYPES)


def told(*records, setup=SETUP):
    """Status and reason of *records* beside each other, by pair, probe and variant."""
    run = trusted_run(Run(name="a/b", setup=setup, records=records))
    return {
        key_of(r)[: 3 if r.variant else 2]: (r.status.value, r.reason)
        for r in run.every_record
    }


def test_a_run_is_trusted_as_far_as_its_cells_agree_and_stays_as_it_is_stored():
    records = (cell("f16/f16", parts=2), cell("q4_0/q4_0", parts=30))
    run = Run(name="a/b", setup=SETUP, records=records)

    found = trusted_run(run)

    other = found.records[1]
    assert (Status.FINISHED, Attention.CPU, "30 graph splits, 2 for f16/f16") == (
        other.status,
        other.attention,
        other.effective.attention_evidence,
    )
    assert records[0] == found.records[0]
    assert found == trusted_run(found)


def test_what_belongs_to_the_grid_counts_whether_or_not_it_was_measured(golden):
    records = (proved("q8_0/q8_0", *SAME), proved("q4_0/q4_0", *OTHER))

    ((status, reason),) = {*told(*records).values()}
    assert "unverified" == status
    assert golden == reason


def test_cells_of_other_probes_and_of_other_devices_are_not_compared():
    """Layers and parts of the graph are those of a device and of a program."""
    records = [
        cell("f16/f16", parts=2, layers=33),
        replace(cell("q8_0/q8_0", parts=30, layers=33), probe="throughput"),
        replace(cell("q4_0/q4_0", parts=3, layers=30), device="a smaller one"),
    ]

    assert {("finished", "")} == set(told(*records).values())


def test_what_was_measured_once_more_stands_beside_the_first_records():
    setup = made_setup(types_k=TYPES[1:], types_v=TYPES[1:])
    records = [proved("q8_0/q8_0", *SAME), proved("q4_0/q4_0", *OTHER)]
    again = replace(records[0], variant="again")

    found = told(*records, again, setup=setup)

    assert 3 == len(found)
    assert {("finished", "")} == set(found.values())


@pytest.mark.parametrize(
    ("devices", "attention"), [(("CUDA0",), Attention.CPU), (("CPU",), None)]
)
def test_a_slow_prompt_marks_a_cell_of_a_run_on_an_accelerator(devices, attention):
    needle = made_needle()

    def reading(pair, prompt_ms):
        priming = with_reply(made_priming(needle), prompt_ms=prompt_ms)
        record = made_record(pair, [made_round(needle)], priming=priming)
        return replace(record, effective=Effective(devices=devices))

    records = (reading("f16/f16", 3000.0), reading("q4_0/q4_0", 30_000.0))
    found = trusted_run(Run(name="a/b", setup=SETUP, records=records))

    assert attention == found.records[1].attention


def test_the_probes_that_read_prompts_tell_how_fast():
    told = {p for p in PROBES if any(m.is_prompt_speed for m in metrics_of(p))}

    assert {"recall", "retrieval", "throughput"} == told
    assert () == metrics_of("unknown")


def test_records_of_a_folder_are_trusted_beside_those_of_their_probe(tmp_path):
    bare, whole = Store(tmp_path / "bare"), Store(tmp_path / "whole")
    whole.check_and_store_setup(SETUP)
    for store in (bare, whole):
        for record in (cell("f16/f16", parts=2), cell("q4_0/q4_0", parts=30)):
            store.write_record(record)

    assert None is trusted_records(bare, "recall")[Q4].attention
    assert Attention.CPU is trusted_records(whole, "recall")[Q4].attention
    assert {} == trusted_records(whole, "divergence")
