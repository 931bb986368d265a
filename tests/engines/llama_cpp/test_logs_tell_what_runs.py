"""llama.cpp's logs: real, broken, from the sources."""

from dataclasses import replace
from pathlib import Path

import pytest

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp.log import (
    cleaned_lines,
    effective_settings,
    find_trouble,
    is_shutting_down,
    last_lines,
    read_log,
    setting_lines,
)
from codeneedle.engines.mismatch import RequestedSettings, differences
from codeneedle.records.record import (
    Attention,
    DeviceMemory,
    Effective,
    KvBuffer,
    Status,
)

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def log(name):
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


ASKED = RequestedSettings(pair=Pair("q8_0", "q4_0"), context=8192)
RUNS = effective_settings(log("real-q8_0-q4_0"))


def test_everything_that_runs_is_read_from_a_real_log():
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
        memory=(
            DeviceMemory(device="CPU_Mapped", weights=1656750, context=0, compute=0),
            DeviceMemory(device="CPU", weights=0, context=5117051, compute=11062477),
        ),
        threads=2,
    )

    assert expected == effective_settings(log("real-q8_0-q4_0"))


def test_the_buffers_of_each_device_add_up_by_what_they_hold():
    """A graph that is reserved again says so again; a draft model has weights alone."""
    text = "\n".join(
        f"load: {device} {kind} buffer size = {mib} MiB"
        for device, kind, mib in (
            ("CUDA0", "model", "10.00"),
            ("CUDA0", "model", "2.00"),
            ("CPU", "output", "0.50"),
            ("CUDA0", "KV", "4.00"),
            ("CUDA0", "KV", "1.00"),
            ("CUDA0", "RS", "0.25"),
            ("CUDA0", "compute", "8.00"),
            ("CUDA0", "compute", "7.00"),
            ("CUDA0", "output", "0.75"),
        )
    )
    begin = "constructing llama_context"
    draft = "load: CUDA0 KV buffer size = 64 MiB\nload: CUDA0 model buffer size = 3 MiB"
    effective = effective_settings(f"{begin}\n{text}\n{begin}\n{draft}")

    def device(name, weights, context, compute):
        sizes = {"weights": weights, "context": context, "compute": compute}
        return DeviceMemory(device=name, **{k: v << 18 for k, v in sizes.items()})

    assert {
        device("CUDA0", 15 << 2, 21, 31),
        device("CPU", 0, 0, 2),
    } == {*effective.memory}


def test_offload_and_buffers_of_all_devices_are_read():
    effective = effective_settings(log("real-cuda-f16-conversion"))

    assert (31, 31) == (effective.offloaded_layers, effective.total_layers)
    assert 20.6 == effective.compute_mib
    assert ("CUDA0",) == effective.devices
    assert 2 == effective.graph_splits
    assert (64, 64) == (effective.rotation_k, effective.rotation_v)
    assert 9.23 == sum(each.k_mib + each.v_mib for each in effective.kv)


def test_both_caches_of_a_sliding_window_count_and_those_of_a_draft_model_do_not():
    """The first context is the model's; what follows belongs to a draft model."""
    effective = effective_settings(log("quoted-iswa-and-draft"))

    assert [32768, 1536] == [buffer.cells for buffer in effective.kv]
    assert {"q8_0"} == {buffer.k_type for buffer in effective.kv}
    assert ("Metal",) == effective.devices


def test_older_builds_are_read_as_well():
    effective = effective_settings(log("quoted-hybrid-old-build"))

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
    """The most telling line gives status and reason, not the last one."""
    found = find_trouble(log(name))

    assert found is not None
    assert status is found.status
    assert words in found.reason


SAID_BY_BACKENDS = [
    (
        "unsupported",
        "llama_init_from_model: V cache quantization requires flash_attn",
    ),
    (
        "unsupported",
        "quantized V cache was requested, but this requires Flash Attention",
    ),
    (
        "unsupported",
        "K cache type q8_0 with block size 32 does not divide n_embd_head_k=80",
    ),
    (
        "unsupported",
        "tensor (cache_k_l0) in a buffer that cannot run the operation (SET_ROWS)",
    ),
    (
        "unsupported",
        "use of SPLIT_MODE_TENSOR and KV cache quantization not implemented",
    ),
    (
        "unsupported",
        "GGML_ASSERT(ret.axis != GGML_BACKEND_SPLIT_AXIS_UNKNOWN) failed",
    ),
    (
        "unsupported",
        "model does not support different K (q5_1) and V (f16) cache types",
    ),
    ("out-of-memory", "CUDA error: out of memory"),
    ("out-of-memory", "error: kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    ("out-of-memory", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    ("out-of-memory", "unable to allocate CPU buffer"),
    ("out-of-memory", "ggml_aligned_malloc: failed to allocate 8192.00 MB"),
    # Seen under ulimit -v.
    ("out-of-memory", "ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed"),
    ("crashed", "libgomp: Thread creation failed: Resource temporarily"),
]
"""What ends a server, and the line of its log that says so."""


@pytest.mark.parametrize(("status", "line"), SAID_BY_BACKENDS)
def test_each_backend_s_message_is_known(status, line):
    found = find_trouble(
        f"warming up the model\n0.00.908.334 E {line}\nexiting due to it"
    )

    assert found is not None
    assert (status, line) == (found.status, found.reason)


REFUSAL = "llama_init_from_model: V cache type q8_0 with block size 32 does not divide"


def test_what_an_abort_writes_before_a_line_is_no_part_of_it():
    """Seen: the runtime of C++ writes where the logger's thread does."""
    found = find_trouble(
        "terminate called after throwing an instance of '0.00.319.894 E " + REFUSAL
    )

    assert REFUSAL == found.reason


@pytest.mark.parametrize("name", ["real-q8_0-q4_0", "real-cuda-kernel"])
def test_a_healthy_log_has_no_trouble(name):
    healthy = log(name)

    assert (None, None) == (
        find_trouble(healthy),
        effective_settings(healthy).attention,
    )


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("real-cuda-f16-conversion", Attention.CONVERTED),
        ("quoted-attention-on-cpu", Attention.CPU),
    ],
)
def test_a_line_that_tells_where_attention_runs_is_read(name, attention):
    effective = effective_settings(log(name))

    assert attention is effective.attention
    assert effective.attention_evidence


def test_the_evidence_is_the_lines_that_name_types_context_and_attention():
    lines = setting_lines(log("real-q8_0-q4_0"))

    assert any("K (q8_0)" in line for line in lines)
    assert any("flash_attn" in line for line in lines)


def test_the_last_lines_of_a_log_hold_no_control_characters():
    text = "\x1b[31mred\x1b[0m\n\n\x07bell\x00\n\x1b]0;title\x07done\n"

    assert ("red", " bell", "done") == last_lines(text)
    assert 12 == len(last_lines("line\n" * 20))


def test_of_a_line_of_megabytes_only_the_beginning_is_read():
    """Otherwise a model's own text could take minutes to parse."""
    endless = ": compute" * 1_000_000 + "\nllama_context: flash_attn = enabled\n"

    assert "enabled" == effective_settings(endless).flash_attention


def running(**changes):
    """The effective settings of the real log, with *changes*."""
    return replace(RUNS, **changes)


def with_v(**changes):
    """Those settings with another buffer of V."""
    return running(kv=(replace(RUNS.kv[0], **changes),))


ALL_LAYERS = replace(ASKED, all_layers=True)
STILL = replace(ASKED, rotation=False)


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        pytest.param(
            RequestedSettings(pair=Pair("q4_0", "q4_0"), context=4096),
            running(flash_attention="disabled"),
            id="K, context and flash attention",
        ),
        pytest.param(ASKED, Effective(), id="a log that tells nothing"),
        pytest.param(
            ALL_LAYERS,
            running(offloaded_layers=20, total_layers=33),
            id="a part of the layers",
        ),
        pytest.param(STILL, RUNS, id="rotation"),
        pytest.param(ASKED, with_v(v_type="f16"), id="V"),
    ],
)
def test_each_difference_from_what_was_asked_for_is_named(asked, runs, golden):
    assert golden == differences(asked, runs)


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        (ASKED, RUNS),
        # Rounded up to the next 256 tokens.
        (replace(ASKED, context=8000), RUNS),
        # A server that only counts may run as it likes.
        (RequestedSettings(pair=None, context=512), Effective(context=4)),
        (ASKED, running(offloaded_layers=20, total_layers=33)),
        (ALL_LAYERS, running(offloaded_layers=33, total_layers=33)),
        # There is no accelerator.
        (ALL_LAYERS, running(offloaded_layers=0, total_layers=33)),
        (ALL_LAYERS, running(offloaded_layers=None, total_layers=None)),
        (STILL, running(rotation_k=0, rotation_v=0)),
        # Models that keep K and V in one have no V of their own.
        (ASKED, with_v(v_type="f16", v_mib=0.0)),
    ],
)
def test_what_runs_as_it_was_asked_for_has_no_difference(asked, runs):
    assert () == differences(asked, runs)


@pytest.mark.parametrize(
    "line",
    [
        "llama_kv_cache: lazy quantization: q8_0 is f16 up to 4096 cells",
        "load_tensors: tensor a (size = 9 MiB) lazy read enabled",
    ],
    ids=["a lazy type", "lazy weights"],
)
def test_a_type_that_is_another_one_at_first_is_a_mismatch(line, golden):
    """A short context would measure f16 under the name of q8_0."""
    assert golden == differences(
        ASKED, effective_settings(f"{log('real-q8_0-q4_0')}\n{line}")
    )


def test_of_a_line_that_is_written_again_the_last_counts():
    again = "Flash Attention was auto, set to {}\nbuild: {} (abc)\n"
    effective = effective_settings(
        again.format("enabled", 1) + again.format("disabled", 2)
    )

    assert ("disabled", "2 (abc)") == (effective.flash_attention, effective.build)


def test_graphs_of_devices_add_up_and_one_that_is_reserved_again_counts_once():
    text = "".join(
        f"sched_reserve: {device} compute buffer size = {mib} MiB\n"
        for device, mib in (("CUDA0", 9.5), ("CUDA1", 8.25), ("CUDA0", 8.25))
    )

    assert 16.5 == effective_settings(text).compute_mib


def test_the_state_of_a_compressor_counts_beside_the_cache():
    """DeepSeek 4 keeps it in buffers of its own: ``llama-kv-cache-dsv4.cpp``."""
    found = effective_settings(
        "llama_dsv4_comp_state:      CUDA0 DSV4 csa state buffer size =     1.50 MiB\n"
        "llama_dsv4_comp_state:      CUDA0 DSV4 hca state buffer size =     0.25 MiB\n"
        "llama_kv_cache:      CUDA0 KV buffer size =     2.00 MiB\n"
    )

    assert (7 << 18, 15 << 18) == (found.recurrent_bytes, found.memory[0].context)


def test_states_of_recurrent_layers_are_read_in_bytes():
    line = (
        "llama_memory_recurrent: size = {} MiB ( 1 cells, 24 layers, 1 seqs), "
        "R (f32): 1.00 MiB, S (f32): 0.25 MiB, P (f32): 0.25 MiB\n"
    )

    assert (
        7 << 18
        == effective_settings(line.format("1.50") + line.format("0.25")).recurrent_bytes
    )
    assert 0 == RUNS.recurrent_bytes


def test_the_command_that_a_log_begins_with_is_no_part_of_it(tmp_path):
    path = tmp_path / "log"
    path.write_text("$ llama-server --path out of memory\none\n$ two\n")

    assert "one\n$ two\n" == read_log(path)
    path.write_text("$ llama-server")
    assert "" == read_log(path)


def test_both_ends_of_a_long_log_are_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"abcdef")

    assert "abcdef" == read_log(path, end_bytes=3)
    assert "ab\n[...]\nef" == read_log(path, end_bytes=2)
    assert "" == read_log(tmp_path / "none")


def test_a_server_that_shuts_down_says_so_near_the_end_of_its_log(tmp_path):
    """Long ago does not count: the phrase may stand in a prompt."""
    path = tmp_path / "log"
    path.write_bytes(b"srv operator(): cleaning up before exit...\nbye\n")
    assert is_shutting_down(path)

    said = b"cleaning up before exit"
    path.write_bytes(said + bytes((16 << 10) - len(said)))
    assert is_shutting_down(path)
    path.write_bytes(said + bytes((16 << 10) - len(said) + 1))
    assert not is_shutting_down(path)


def test_lines_have_no_time_stamps_and_blank_ones_are_left_out():
    text = "0.00.073.447 I main: x\n\n   \n0.1 I kept\n"

    assert ["main: x", "0.1 I kept"] == list(cleaned_lines(text))


def test_flash_attention_that_was_asked_for_and_switched_off_is_a_mismatch(golden):
    said = (
        "llama_context: flash_attn            = enabled\n"
        "llama_context: Flash Attention not supported, set to disabled\n"
        "llama_kv_cache: size =  1.00 MiB (  4096 cells,   3 layers,  1/1 seqs), "
        "K (q8_0):    0.50 MiB, V (q4_0):    0.50 MiB\n"
    )
    expected = RequestedSettings(pair=Pair("q8_0", "q4_0"), context=4096)

    unlike = differences(expected, effective_settings(said))

    assert golden == unlike
    assert () == differences(replace(expected, flash=False), effective_settings(said))
