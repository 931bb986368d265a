"""Fallbacks that only the numbers of other cells show."""

from dataclasses import replace

import pytest
from made_records import failed_record, made_record

from codeneedle.grid import Pair
from codeneedle.records.record import CellRecord, Effective, Status
from codeneedle.sweep.fallbacks import suspects

ASYMMETRIC = Pair("q8_0", "q4_0")


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


def found(*records, speeds=None, has_device=True):
    """The suspects among *records*; of speeds, by pair, the given ones."""
    by_pair = {Pair.parse(pair): speed for pair, speed in (speeds or {}).items()}
    return suspects(
        records, speed=lambda record: by_pair.get(record.pair), has_device=has_device
    )


def test_a_graph_in_more_parts_than_another_s_left_the_accelerator():
    """
    The reason names both numbers, and the most precise pair that has the fewest.
    """
    suspect = found(
        cell("q4_0/q4_0", parts=2),
        cell("q8_0/q4_0", parts=30),
        cell("bf16/bf16", parts=2),
    )

    assert [ASYMMETRIC] == list(suspect)
    assert Status.FALLBACK_CPU is suspect[ASYMMETRIC].status
    assert "the graph falls into 30 parts, 2 for bf16/bf16" == (
        suspect[ASYMMETRIC].reason
    )


def test_graphs_in_as_many_parts_are_no_sign():
    """
    How many there are depends on the model; that they differ is the sign.
    """
    assert {} == found(cell("q8_0/q4_0", parts=30), cell("bf16/bf16", parts=30))


def test_a_log_without_parts_proves_nothing():
    """
    Of cells that do not tell, and where no cell does, nothing is said.
    """
    silent = cell("q8_0/q4_0")

    assert {} == found(silent)
    assert {} == found(silent, cell("bf16/bf16", parts=2))


@pytest.mark.parametrize("has_device", [True, False])
def test_parts_count_with_and_without_an_accelerator(has_device):
    """
    llama.cpp's scheduler reports them itself.
    """
    cells = cell("q8_0/q4_0", parts=3), cell("bf16/bf16", parts=1)

    assert [ASYMMETRIC] == list(found(*cells, has_device=has_device))


def test_cells_that_did_not_finish_are_not_compared():
    """
    They have a status already, and what ran before they failed is not known.
    """
    crashed = replace(failed_record("q4_0/q4_0"), effective=Effective(graph_splits=1))
    named = replace(cell("q8_0/q4_0", parts=30), status=Status.FALLBACK_CPU)

    assert {} == found(crashed, named, cell("bf16/bf16", parts=2))


def test_a_prompt_read_at_less_than_a_quarter_is_suspect():
    """
    Of the fastest symmetric pair's speed; its reason names both.
    """
    speeds = {"bf16/bf16": 3000.0, "q8_0/q8_0": 4000.0, "q8_0/q4_0": 999.0}

    suspect = found(*map(cell, speeds), speeds=speeds)

    assert [ASYMMETRIC] == list(suspect)
    assert Status.FALLBACK_CPU is suspect[ASYMMETRIC].status
    assert "it reads 999 tokens/s of a prompt, q8_0/q8_0 reads 4,000" == (
        suspect[ASYMMETRIC].reason
    )


def test_a_quarter_of_the_speed_is_still_believed():
    """
    Kernels differ; the limit itself is no sign.
    """
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 1000.0}

    assert {} == found(*map(cell, speeds), speeds=speeds)


def test_a_symmetric_pair_may_be_slow_itself():
    """
    Not every build has attention for every type, even alike on both sides.
    """
    speeds = {"f16/f16": 4000.0, "q5_1/q5_1": 90.0}

    assert [Pair("q5_1", "q5_1")] == list(found(*map(cell, speeds), speeds=speeds))


def test_without_a_symmetric_pair_no_speed_is_suspect():
    """
    Of two asymmetric pairs the faster may have fallen back as well.
    """
    speeds = {"bf16/q4_0": 4000.0, "q8_0/q4_0": 90.0}

    assert {} == found(*map(cell, speeds), speeds=speeds)


def test_a_cell_without_a_speed_is_not_slow():
    """
    A probe that reads no whole prompt has no say.
    """
    speeds = {"bf16/bf16": 4000.0}

    assert {} == found(cell("bf16/bf16"), cell("q8_0/q4_0"), speeds=speeds)


def test_without_an_accelerator_slowness_is_legitimate():
    """
    A processor takes several times as long for quantized attention.
    """
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}

    assert {} == found(*map(cell, speeds), speeds=speeds, has_device=False)


def test_a_cache_that_was_put_on_the_host_is_not_held_to_the_accelerator_s_speed():
    """
    Who offloads nothing gets attention on the processor, as wished.
    """
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}
    cells = [cell(pair, devices=("CPU",)) for pair in speeds]

    assert {} == found(*cells, speeds=speeds)


def test_a_cache_on_both_is_held_to_it():
    """
    Where part of the layers is offloaded, that part would be slow.
    """
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}
    cells = [cell(pair, devices=("CUDA0", "CPU")) for pair in speeds]

    assert [ASYMMETRIC] == list(found(*cells, speeds=speeds))


def test_what_the_scheduler_says_is_the_better_reason():
    """
    A cell that is slow and in more parts is told by its parts.
    """
    speeds = {"bf16/bf16": 4000.0, "q8_0/q4_0": 90.0}

    suspect = found(
        cell("bf16/bf16", parts=2), cell("q8_0/q4_0", parts=30), speeds=speeds
    )

    assert suspect[ASYMMETRIC].reason.startswith("the graph falls into 30 parts")


def test_a_cell_that_is_offloaded_otherwise_than_most_is_mismatched():
    """
    The reason names both numbers, and the most precise pair that has the usual one.
    """
    suspect = found(
        cell("bf16/bf16", layers=20),
        cell("q8_0/q8_0", layers=33),
        cell("q4_0/q4_0", layers=33),
    )

    assert [Pair("bf16", "bf16")] == list(suspect)
    (trouble,) = suspect.values()
    assert Status.MISMATCHED is trouble.status
    assert "20 layers on the accelerator, 33 for q8_0/q8_0" == trouble.reason


def test_of_two_cells_the_more_precise_one_tells_how_many_layers_are_right():
    """
    Neither number is more frequent, and both are never left to be compared.
    """
    suspect = found(cell("q8_0/q4_0", layers=33), cell("bf16/bf16", layers=20))

    assert [ASYMMETRIC] == list(suspect)
    assert "33 layers on the accelerator, 20 for bf16/bf16" == (
        suspect[ASYMMETRIC].reason
    )


def test_as_many_layers_and_unknown_ones_are_no_sign():
    """
    A build without accelerators tells no number, and all cells of it alike.
    """
    assert {} == found(cell("q8_0/q4_0", layers=33), cell("bf16/bf16", layers=33))
    assert {} == found(cell("q8_0/q4_0"), cell("bf16/bf16", layers=33))


def test_a_cell_that_is_offloaded_otherwise_makes_no_other_suspect():
    """
    With more layers there its graph has fewer parts, which is no fault of others.
    """
    suspect = found(
        cell("q4_0/q4_0", layers=33, parts=2),
        cell("q8_0/q8_0", layers=20, parts=30),
        cell("bf16/bf16", layers=20, parts=30),
    )

    assert [Pair("q4_0", "q4_0")] == list(suspect)
