"""What the child says, read; MLX need not be installed."""

import pytest

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import CellSpec
from codeneedle.engines.mlx.log import (
    ChunkRead,
    LayerCache,
    Memory,
    Running,
    cause,
    child_environment,
    differences,
    emit,
    error_of_end,
    events_of_kind,
    last_event,
    last_lines,
    read_log,
    running_settings,
)
from codeneedle.engines.mlx.settings import MlxSettings
from codeneedle.records.record import Status

CELL = CellSpec(Pair("kv8", "kv4"), 512)
SETTINGS = MlxSettings(group_size=(64, 32))


def layer(number=0, **changes):
    """A layer that is what `CELL` and `SETTINGS` ask for."""
    facts = {
        "layer": number,
        "class_name": "SplitKVCache",
        "k": "kv8",
        "v": "kv4",
        "k_group_size": 64,
        "v_group_size": 32,
        "k_bytes_per_token": 72.0,
        "v_bytes_per_token": 48.0,
    }
    return LayerCache(**(facts | changes))


@pytest.fixture
def said(capsys):
    """A log in which a child says what runs."""

    def write(*layers, **changes):
        facts = {"build": "mlx 1, cpu", "context": 512, "quantized_kv_start": 0}
        emit(Running(layers=layers, **(facts | changes)))
        return f"a library's line\n{capsys.readouterr().out}another\n"

    return write


def test_what_was_asked_for_is_no_mismatch(said):
    """Layers that keep a state instead of K and V change nothing, and are named."""
    log = said(layer(), LayerCache(layer=1, class_name="ArraysCache"))

    assert () == differences(CELL, SETTINGS, log)
    assert ("layer 1: ArraysCache",) == running_settings(log).unquantized


def test_each_difference_is_named_once(said, golden):
    log = said(
        layer(0, v="kv8", v_group_size=64),
        layer(1, v="kv8", v_group_size=64),
        context=256,
        quantized_kv_start=5000,
    )

    assert golden == differences(CELL, SETTINGS, log)


def test_a_cache_that_could_not_be_quantized_is_a_mismatch(said, golden):
    log = said(layer(), LayerCache(layer=1, class_name="ChunkedKVCache"))

    assert golden == differences(CELL, SETTINGS, log)


def test_a_cache_without_the_bound_asked_for_is_a_mismatch(said, golden):
    """Most models make their own caches, and ignore a size."""
    settings = MlxSettings(group_size=(64, 32), max_kv_size=128)

    assert golden == differences(CELL, settings, said(layer()))
    assert () == differences(CELL, settings, said(layer(tokens=128)))


def test_a_child_that_says_nothing_is_a_mismatch(said, golden):
    nothing = differences(CELL, SETTINGS, "hello\n")

    assert golden == nothing
    assert nothing == differences(CELL, SETTINGS, said(layer(), context="many"))


def test_memory_is_counted_by_layers_and_cells(said):
    log = said(layer(0), layer(1), layer(2, tokens=128))

    found = running_settings(log)

    mib = 2**20
    assert [(512, 2), (128, 1)] == [
        (each.cells, each.layers) for each in sorted(found.kv, key=lambda e: -e.cells)
    ]
    assert round((2 * 512 + 128) * 120 / mib, 3) == round(
        sum(each.k_mib + each.v_mib for each in found.kv), 3
    )


def test_damaged_lines_and_those_of_libraries_are_left_out(capsys):
    emit(Memory(peak_bytes=1))
    emit(ChunkRead())
    emit(Memory(peak_bytes=2))
    whole = capsys.readouterr().out
    log = f"{whole}codeneedle-mlx: [[[\n{whole[:25]}\nMemory 3\n"

    assert [Memory(peak_bytes=1), Memory(peak_bytes=2)] == events_of_kind(log, Memory)
    assert ChunkRead() == last_event(log, ChunkRead)
    assert None is last_event(log, Running)
    assert ("Memory 3",) == last_lines(log)


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert "" == read_log(tmp_path / "none.log")


def test_a_child_gets_no_more_than_it_needs(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libopenblas.so.0")
    monkeypatch.setenv("HF_TOKEN", "hf-of-the-user")

    found = child_environment()

    assert ("libopenblas.so.0", "1") == (found["LD_PRELOAD"], found["HF_HUB_OFFLINE"])
    assert "HF_TOKEN" not in found


def test_the_error_of_a_child_that_ended_has_the_end_of_its_log(tmp_path):
    log = tmp_path / "child.log"
    log.write_bytes(b"one\nMemoryError: \xff\x07 no room\n")

    error = error_of_end(1, log)

    assert Status.OUT_OF_MEMORY == error.status
    assert 2 == len(error.log_excerpt)
    assert "no room" in str(error)
    assert str(log) in error.hint


def test_a_failure_has_the_reason_of_its_last_exception():
    oom = "Traceback\nRuntimeError: [malloc] Unable to allocate 9 bytes.\n"
    group = (
        "ValueError: [quantize] The last dimension of the matrix needs to be divisible "
        "by the quantization group size 64.\n"
    )

    sinks = "ValueError: Quantized SDPA does not support attention sinks.\n"
    metal = (
        "libc++abi: terminating due to uncaught exception of type std::runtime_error: "
        "[METAL] Command buffer execution failed: Insufficient Memory\n"
    )

    assert [
        Status.OUT_OF_MEMORY,
        Status.OUT_OF_MEMORY,
        Status.UNSUPPORTED,
        Status.UNSUPPORTED,
        Status.CRASHED,
        Status.CRASHED,
    ] == [
        cause(each, 1).status
        for each in (oom, metal, group, sinks, "KeyError: 'x'", "")
    ]
