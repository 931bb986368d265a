"""What a server's log tells: on real logs, and on lines from the sources."""

from pathlib import Path

import pytest

from codeneedle.engines.llama_cpp.log import (
    evidence,
    fallback,
    last_words,
    read,
    trouble,
)
from codeneedle.records.record import Effective, KvBuffer, Status

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def log(name):
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def test_everything_that_runs_is_read_from_a_real_log():
    """
    A server started with -lv 4 states each setting that a cell depends on.
    """
    expected = Effective(
        build="11434 (unknown)",
        context=8192,
        flash_attention="enabled",
        kv=(
            KvBuffer(
                cells=8192,
                layers=6,
                k_type="q8_0",
                v_type="q4_0",
                k_mib=3.19,
                v_mib=1.69,
            ),
        ),
        rotation_k=64,
        rotation_v=64,
        graph_splits=1,
        devices=("CPU",),
        compute_mib=10.55,
        threads=2,
    )

    assert expected == read(log("real-q8_0-q4_0"))


def test_offload_and_buffers_of_all_devices_are_read():
    """
    On a GPU the layers there, and the compute buffers of device and host, count.
    """
    effective = read(log("quoted-cuda-f16-conversion"))

    assert (33, 33) == (effective.offloaded_layers, effective.total_layers)
    assert 368.01 == effective.compute_mib
    assert ("CUDA0",) == effective.devices
    assert 2 == effective.graph_splits
    assert 1664.0 == effective.kv_mib


def test_both_caches_of_a_sliding_window_count_and_those_of_a_draft_model_do_not():
    """
    The first context is the model's; what follows belongs to a draft model.
    """
    effective = read(log("quoted-iswa-and-draft"))

    assert [32768, 1536] == [buffer.cells for buffer in effective.kv]
    assert {"q8_0"} == {buffer.k_type for buffer in effective.kv}
    assert ("Metal",) == effective.devices


def test_older_builds_are_read_as_well():
    """
    Without prefixes, with other names, and beside a recurrent state.
    """
    effective = read(log("quoted-hybrid-old-build"))

    assert "6000 (abcdef0)" == effective.build
    assert 4096 == effective.context
    assert "enabled" == effective.flash_attention
    assert [("q4_0", "f16")] == [(b.k_type, b.v_type) for b in effective.kv]
    assert (1, 0) == (effective.rotation_k, effective.rotation_v)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("real-unknown-type", Status.UNSUPPORTED, "Unsupported cache type: q9_0"),
        ("real-fa-off", Status.UNSUPPORTED, "requires flash_attn"),
        ("real-bad-alloc", Status.OUT_OF_MEMORY, "std::bad_alloc"),
        ("quoted-cuda-out-of-memory", Status.OUT_OF_MEMORY, "cudaMalloc failed"),
        ("real-port-taken", Status.CRASHED, "couldn't bind"),
        ("real-no-gguf", Status.CRASHED, "expected 'GGUF'"),
    ],
)
def test_the_reason_of_a_failure_is_found(name, status, words):
    """
    The most telling line gives status and reason, not the last one.
    """
    found = trouble(log(name))

    assert found is not None
    assert status is found.status
    assert words in found.reason


@pytest.mark.parametrize(
    "line",
    [
        "llama_init_from_model: V cache quantization requires flash_attn",
        "quantized V cache was requested, but this requires Flash Attention",
        "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80",
        "tensor (cache_k_l0) in a buffer that cannot run the operation (SET_ROWS)",
        "use of SPLIT_MODE_TENSOR and KV cache quantization not implemented",
    ],
)
def test_what_a_build_cannot_do_is_unsupported(line):
    """
    These cells fail on every try, so none is repeated.
    """
    found = trouble(f"0.00.908.334 E {line}\n0.00.908.335 E exiting due to it")

    assert found is not None
    assert (Status.UNSUPPORTED, line) == (found.status, found.reason)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: out of memory",
        "error: kIOGPUCommandBufferCallbackErrorOutOfMemory",
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "unable to allocate CPU buffer",
        "ggml_aligned_malloc: failed to allocate 8192.00 MB",
    ],
)
def test_every_backend_s_word_for_no_memory_is_known(line):
    """
    CUDA, Metal, Vulkan and the processor word it differently.
    """
    found = trouble(line)

    assert found is not None
    assert Status.OUT_OF_MEMORY is found.status


def test_a_healthy_log_has_no_trouble():
    """
    Warnings of a server that works are no reason of anything.
    """
    healthy = log("real-q8_0-q4_0")

    assert (None, None) == (trouble(healthy), fallback(healthy))


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("quoted-cuda-f16-conversion", Status.FALLBACK_F16),
        ("quoted-attention-on-cpu", Status.FALLBACK_CPU),
    ],
)
def test_a_fallback_is_noticed(name, status):
    """
    A server that attends elsewhere, or in other types, says so once.
    """
    found = fallback(log(name))

    assert found is not None
    assert status is found.status


def test_the_evidence_is_the_lines_that_name_types_context_and_attention():
    """
    A record of a mismatch keeps what it was concluded from.
    """
    lines = evidence(log("real-q8_0-q4_0"))

    assert any("K (q8_0)" in line for line in lines)
    assert any("flash_attn" in line for line in lines)


def test_last_words_are_few_and_harmless():
    """
    Colours and control characters of a log never reach a terminal.
    """
    text = "\x1b[31mred\x1b[0m\n\n\x07bell\x00\n\x1b]0;title\x07done\n"

    assert ("red", " bell", "done") == last_words(text)
    assert ("done",) == last_words(text, lines=1)


def test_lines_of_megabytes_are_read_quickly_enough_to_be_read_at_all():
    """
    Of a line only its beginning is looked at, however it goes on.
    """
    endless = ": compute" * 1_000_000 + "\nllama_context: flash_attn = enabled\n"

    assert "enabled" == read(endless).flash_attention


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed", "out-of-memory"),
        ("libgomp: Thread creation failed: Resource temporarily", "crashed"),
    ],
)
def test_limits_of_memory_and_threads_are_told(line, status):
    """
    Seen under ``ulimit -v``.
    """
    found = trouble(f"warming up the model\n{line}\n")

    assert (status, line) == (found.status, found.reason)
