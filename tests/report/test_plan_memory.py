"""KV memory as predicted and as measured, on a terminal."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine
from gguf_files import SHAPE, gguf_bytes, write_gguf
from made_records import failed_record, made_record, made_run, made_setup
from rich.console import Console

from codeneedle.grid import Pair
from codeneedle.models.gguf import parse
from codeneedle.models.kv_cache import Room, predicted
from codeneedle.models.weights import weights_of
from codeneedle.records.record import Effective, KvBuffer, Status, WeightsFacts
from codeneedle.report.plan import (
    measured,
    measured_view,
    memory_view,
    planned_memory,
    weights_of_run,
)

GIB = 1 << 30
WEIGHTS = weights_of(
    parse(gguf_bytes(SHAPE)), files=[Path("m.gguf")], size_bytes=3 << 20
)
"""4 layers, 2 KV heads of 64: 1 MiB of K per 1,024 tokens in f16."""


def printed(view, width=80):
    """What a terminal of *width* columns gets, line by line."""
    console = Console(file=io.StringIO(), width=width)
    console.print(view, crop=False)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def table_of(*pairs, room=8 * GIB, weights=WEIGHTS):
    """The predicted table of *pairs*."""
    plan = predicted(weights, map(Pair.parse, pairs), Room(room, "of this machine"))
    return printed(memory_view(plan))


def served(pair, *, k_mib, v_mib, context=4096, **changes):
    """A finished record whose server named these sizes."""
    parsed = Pair.parse(pair)
    kv = KvBuffer(
        cells=context,
        layers=4,
        k_type=parsed.k,
        v_type=parsed.v,
        k_mib=k_mib,
        v_mib=v_mib,
    )
    effective = Effective(context=context, kv=(kv,), compute_mib=6.52)
    return replace(made_record(pair, []), effective=effective, **changes)


def run_of(*records):
    """A run of *records* alone."""
    return replace(made_run(), records=records)


def test_a_plan_has_a_row_per_pair():
    """
    Sizes at each context, and the longest context; training context is marked.
    """
    lines = table_of("q8_0/q4_0", "f16/f16")

    assert "K/V          1K    4K     8K   longest" == lines[1]
    assert "f16/f16     2.0   8.0   16.0    8,192*" == lines[3]
    assert "q8_0/q4_0   0.8   3.2    6.5    8,192*" == lines[4]
    assert "* the context that the weights were trained for" == lines[-1]
    assert "*" not in "".join(table_of("f16/f16", room=530 << 20))


def test_a_plan_explains_the_longest_context():
    """
    Memory, weights and the allowance for compute buffers are named.
    """
    said = " ".join(table_of("f16/f16"))

    assert "fits into the 8.0 GiB of this machine with 3.0 MiB of weights" in said
    assert "of compute buffers" in said


def test_a_pair_that_cannot_be_served_says_so():
    """
    The reason is below the table.
    """
    odd = replace(WEIGHTS, key_length=80)

    lines = table_of("q8_0/q4_0", weights=odd)

    assert lines[3].endswith("cannot")
    assert "cannot: block of 32 does not divide head size 80" in lines


def test_an_unknown_size_is_a_question_mark():
    """
    The type of a fork has no size here.
    """
    lines = table_of("turbo3/f16")

    assert ["turbo3/f16", "?", "?", "?", "?"] == lines[3].split()
    assert "? unknown for this architecture or cache type" in lines


def test_36_pairs_fit_80_columns():
    """
    A model of long contexts has the widest table.
    """
    large = replace(
        WEIGHTS, layers=36, kv_heads=(8,) * 36, training_context=262_144, key_length=128
    )

    lines = table_of("bf16/bf16", "iq4_nl/iq4_nl", weights=large, room=64 * GIB)

    assert 80 >= max(map(len, lines))


def test_measured_sizes_are_next_to_the_predicted_ones():
    """
    K and V apart, per 1,000 tokens, compute buffers, and the peak of the process.
    """
    record = served("f16/q4_0", k_mib=4.0, v_mib=1.12, peak_rss_bytes=64 << 20)

    lines = printed(measured_view(run_of(record), WEIGHTS))

    expected = ["f16/q4_0", "4.00", "4.00", "1.12", "1.12", "1.250", "6.5", "64.0"]
    assert expected == lines[3].split()
    assert (
        "K and V are as predicted within the rounding of the log: 1 pair" == lines[-1]
    )


def test_memory_on_devices_has_a_column_where_it_is_known():
    """
    Cells without a value have a dash.
    """
    known = served("bf16/q4_0", k_mib=4.0, v_mib=1.12, device_bytes=70_656 << 20)
    unknown = served("f16/q4_0", k_mib=4.0, v_mib=1.12)

    lines = printed(measured_view(run_of(known, unknown), WEIGHTS))

    assert "device" == lines[1].split()[-1]
    assert "peak" == printed(measured_view(run_of(unknown)))[1].split()[-1]
    assert {"bf16/q4_0": "70,656", "f16/q4_0": "-"} == {
        line.split()[0]: line.split()[-1] for line in lines[3:5]
    }


def test_measured_sizes_on_a_large_accelerator_fit_80_columns():
    """
    Gigabytes of cache in 32K tokens, and a column more.
    """
    record = served(
        "bf16/bf16",
        k_mib=2048.0,
        v_mib=2048.0,
        context=32_768,
        peak_rss_bytes=70_000 << 20,
        device_bytes=79_000 << 20,
    )
    record = replace(record, effective=replace(record.effective, compute_mib=1250.5))
    large = replace(
        WEIGHTS, layers=32, kv_heads=(8,) * 32, key_length=128, value_length=128
    )

    lines = printed(measured_view(run_of(record), large))

    expected = [*["2,048"] * 4, "125.0", "1,250", "70,000", "79,000"]
    assert expected == lines[3].split()[1:]
    assert 80 >= max(map(len, lines[1:4]))


def test_a_difference_is_flagged():
    """
    V was asked for as q4_0, and is as large as f16.
    """
    record = served("f16/q4_0", k_mib=4.0, v_mib=4.0)

    lines = printed(measured_view(run_of(record), WEIGHTS))

    assert "4.00!" == lines[3].split()[3]
    assert "! not as predicted: f16/q4_0" == lines[-1]


def test_the_longest_context_of_a_pair_counts():
    """
    Probes may serve the same pair with several contexts.
    """
    short = served("f16/f16", k_mib=1.0, v_mib=1.0, context=1024)
    long = served("f16/f16", k_mib=4.0, v_mib=4.0)

    found = measured(run_of(short, long, replace(short, probe="other")), WEIGHTS)
    lines = printed(measured_view(run_of(short, long), WEIGHTS))

    assert [(4.0, 4.0)] == [(each.k_mib, each.v_mib) for each in found]
    assert [(4.0, 4.0)] == [each.predicted for each in found]
    assert (
        "random-bodies/made-model: measured memory, MiB, context 4,096 tokens"
        == (lines[0])
    )


def test_a_server_counts_before_a_tool_with_a_longer_context():
    """
    Only its process was observed, so that it has a peak.
    """
    server = served("f16/f16", k_mib=4.0, v_mib=4.0, peak_rss_bytes=64 << 20)
    tool = served("f16/f16", k_mib=8.0, v_mib=8.0, context=8192)

    (found,) = measured(run_of(tool, server), WEIGHTS)

    assert (64.0, 4096) == (found.peak_mib, found.context)


def test_pairs_come_in_order_of_precision():
    """
    Cells without a cache in their log are left out.
    """
    run = run_of(
        served("q4_0/f16", k_mib=1, v_mib=1),
        failed_record("q8_0/q8_0"),
        served("f16/q4_0", k_mib=1, v_mib=1),
    )

    assert ["f16/q4_0", "q4_0/f16"] == [str(m.pair) for m in measured(run, None)]


def test_without_weights_there_is_no_prediction():
    """
    The weights of an old run may be gone.
    """
    run = run_of(served("f16/f16", k_mib=2, v_mib=2, command=("x", "--model", "/no")))

    lines = printed(measured_view(run))

    assert "?" == lines[3].split()[2]
    assert "no prediction: the weights are not where they were" in " ".join(lines)


def test_a_run_without_finished_cells_has_no_sizes():
    """
    A line says so.
    """
    lines = printed(measured_view(run_of(failed_record("f16/f16"))))

    assert "no finished cell has the size of its KV cache in its log" in lines
    assert "left out: f16/f16 crashed: it died" == lines[-1]


@pytest.mark.parametrize("status", [Status.INTERRUPTED, Status.FALLBACK_CPU])
def test_memory_leaves_out_cells_that_did_not_finish(status):
    """
    Their logs may have sizes, but only finished cells have numbers, as in a grid.
    """
    sizes = {"k_mib": 4.0, "v_mib": 4.0}
    stopped = replace(served("f16/q4_0", **sizes), status=status, reason="Ctrl-C")

    lines = printed(measured_view(run_of(stopped, served("f16/f16", **sizes)), WEIGHTS))

    assert "f16/q4_0" not in "".join(lines[:-2])
    assert (
        "K and V are as predicted within the rounding of the log: 1 pair" == (lines[-2])
    )
    assert f"left out: f16/q4_0 {status}: Ctrl-C" == lines[-1]


def test_a_pair_that_one_probe_finished_is_not_left_out():
    """
    Its size is known from that probe.
    """
    finished = served("f16/f16", k_mib=4.0, v_mib=4.0)
    stopped = replace(finished, status=Status.INTERRUPTED, probe="throughput")

    text = "\n".join(printed(measured_view(run_of(stopped, finished), WEIGHTS)))

    assert "left out" not in text


def test_the_weights_are_found_where_the_records_say(tmp_path):
    """
    A file of the same size at the same path.
    """
    path = write_gguf(tmp_path / "m.gguf")
    command = ("llama-server", "--model", str(path))
    facts = WeightsFacts(name="m", sha256="ab" * 32, size_bytes=path.stat().st_size)
    run = replace(
        run_of(served("f16/f16", k_mib=2, v_mib=2, command=command)),
        setup=replace(made_setup(), weights=facts),
    )

    assert 4 == weights_of_run(run).layers
    other = replace(facts, size_bytes=1)
    assert None is weights_of_run(replace(run, setup=replace(run.setup, weights=other)))


def planned(*devices):
    """A plan with as much as its memory depends on."""
    return SimpleNamespace(
        weights=WEIGHTS,
        pairs=(Pair("q4_0", "q4_0"), Pair("f16", "f16")),
        engine=FakeEngine(devices=devices),
    )


@pytest.mark.parametrize(
    ("devices", "where"), [((), "of this machine"), (("CUDA0 L4 (64 MiB)",), "of CUDA")]
)
def test_a_plan_uses_the_memory_of_devices_or_of_the_machine(devices, where):
    """
    With accelerators, all layers are offloaded.
    """
    assert where == planned_memory(planned(*devices)).room.where


def test_a_device_that_is_too_small_allows_nothing():
    """
    Each pair has its row, the largest first.
    """
    lines = printed(memory_view(planned_memory(planned("CUDA0 tiny (64 MiB)"))))

    assert ["f16/f16", "q4_0/q4_0"] == [line.split()[0] for line in lines[3:5]]
    assert ["0", "0"] == [line.split()[-1] for line in lines[3:5]]
