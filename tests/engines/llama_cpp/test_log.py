"""llama.cpp's logs and llama-perplexity's output: real, broken, from the sources."""

import math
from dataclasses import astuple, replace
from pathlib import Path
from signal import SIGXFSZ
from statistics import fmean

import pytest

from codeneedle.engines.engine import exit_phrase
from codeneedle.engines.llama_cpp.base_file import Lengths
from codeneedle.engines.llama_cpp.log import (
    Expected,
    Size,
    by_chunk,
    chunks_done,
    ends_early,
    evidence,
    exit_cause,
    failure,
    fallback,
    final_perplexity,
    is_shutting_down,
    last_lines,
    lines,
    mismatches,
    read,
    read_log,
    size,
    statistics,
    too_short,
    trouble,
)
from codeneedle.engines.tools import Estimate
from codeneedle.grid import Pair
from codeneedle.records.record import Effective, KvBuffer, Status

LOGS = Path(__file__).parents[2] / "helpers" / "logs"


def log(name):
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


ASKED = Expected(pair=Pair("q8_0", "q4_0"), context=8192)
RUNS = read(log("real-q8_0-q4_0"))


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
        threads=2,
    )

    assert expected == read(log("real-q8_0-q4_0"))


def test_offload_and_buffers_of_all_devices_are_read():
    effective = read(log("quoted-cuda-f16-conversion"))

    assert (33, 33) == (effective.offloaded_layers, effective.total_layers)
    assert 368.01 == effective.compute_mib
    assert ("CUDA0",) == effective.devices
    assert 2 == effective.graph_splits
    assert 1664.0 == effective.kv_mib


def test_both_caches_of_a_sliding_window_count_and_those_of_a_draft_model_do_not():
    """The first context is the model's; what follows belongs to a draft model."""
    effective = read(log("quoted-iswa-and-draft"))

    assert [32768, 1536] == [buffer.cells for buffer in effective.kv]
    assert {"q8_0"} == {buffer.k_type for buffer in effective.kv}
    assert ("Metal",) == effective.devices


def test_older_builds_are_read_as_well():
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
    """The most telling line gives status and reason, not the last one."""
    found = trouble(log(name))

    assert found is not None
    assert status is found.status
    assert words in found.reason


@pytest.mark.parametrize(
    ("status", "line"),
    [
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
    ],
)
def test_each_backend_s_message_is_known(status, line):
    found = trouble(f"warming up the model\n0.00.908.334 E {line}\nexiting due to it")

    assert found is not None
    assert (status, line) == (found.status, found.reason)


def test_a_healthy_log_has_no_trouble():
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
    """Attention on the CPU or on converted types is logged once."""
    found = fallback(log(name))

    assert found is not None
    assert status is found.status


def test_the_evidence_is_the_lines_that_name_types_context_and_attention():
    lines = evidence(log("real-q8_0-q4_0"))

    assert any("K (q8_0)" in line for line in lines)
    assert any("flash_attn" in line for line in lines)


def test_the_last_lines_of_a_log_hold_no_control_characters():
    text = "\x1b[31mred\x1b[0m\n\n\x07bell\x00\n\x1b]0;title\x07done\n"

    assert ("red", " bell", "done") == last_lines(text)
    assert 12 == len(last_lines("line\n" * 20))


def test_of_a_line_of_megabytes_only_the_beginning_is_read():
    """Otherwise a model's own text could take minutes to parse."""
    endless = ": compute" * 1_000_000 + "\nllama_context: flash_attn = enabled\n"

    assert "enabled" == read(endless).flash_attention


def running(**changes):
    """The effective settings of the real log, with *changes*."""
    return replace(RUNS, **changes)


def with_v(**changes):
    """Those settings with another buffer of V."""
    return running(kv=(replace(RUNS.kv[0], **changes),))


ALL_LAYERS = replace(ASKED, all_layers=True)
STILL = replace(ASKED, rotation=False)


@pytest.mark.parametrize(
    ("asked", "runs", "differences"),
    [
        (ASKED, RUNS, ()),
        # Rounded up to the next 256 tokens.
        (replace(ASKED, context=8000), RUNS, ()),
        (
            Expected(pair=Pair("q4_0", "q4_0"), context=4096),
            running(flash_attention="disabled"),
            (
                "K is q8_0, not q4_0",
                "the context is 8192 tokens, not 4096",
                "flash attention is off, not on",
            ),
        ),
        (
            ASKED,
            Effective(),
            ("the log names no KV cache, so its types cannot be verified",),
        ),
        # A server that only counts may run as it likes.
        (Expected(pair=None, context=512), Effective(context=4), ()),
        (
            ALL_LAYERS,
            running(offloaded_layers=20, total_layers=33),
            ("20 of 33 layers are on the accelerator, not all",),
        ),
        (ASKED, running(offloaded_layers=20, total_layers=33), ()),
        (ALL_LAYERS, running(offloaded_layers=33, total_layers=33), ()),
        # There is no accelerator.
        (ALL_LAYERS, running(offloaded_layers=0, total_layers=33), ()),
        (ALL_LAYERS, running(offloaded_layers=None, total_layers=None), ()),
        (STILL, RUNS, ("quantized values are rotated, although rotation is off",)),
        (STILL, running(rotation_k=0, rotation_v=0), ()),
        # Models that keep K and V in one have no V of their own.
        (ASKED, with_v(v_type="f16"), ("V is f16, not q4_0",)),
        (ASKED, with_v(v_type="f16", v_mib=0.0), ()),
    ],
)
def test_each_difference_from_what_was_asked_for_is_named(asked, runs, differences):
    assert differences == mismatches(asked, runs)


@pytest.mark.parametrize(
    ("line", "differences"),
    [
        (
            "llama_kv_cache: lazy quantization: q8_0 is f16 up to 4096 cells",
            ("K is q8_0, f16 at first, not q8_0",),
        ),
        ("load_tensors: tensor a (size = 9 MiB) lazy read enabled", ()),
    ],
)
def test_a_type_that_is_another_one_at_first_is_a_mismatch(line, differences):
    """A short context would measure f16 under the name of q8_0."""
    assert differences == mismatches(ASKED, read(f"{log('real-q8_0-q4_0')}\n{line}"))


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

    path.write_bytes(path.read_bytes() + bytes(1 << 16))
    assert not is_shutting_down(path)


@pytest.mark.parametrize(
    ("returncode", "phrase", "status", "words"),
    [
        (0, "exit code 0", Status.CRASHED, "does not say why"),
        (3, "exit code 3", Status.CRASHED, "does not say why"),
        (-9, "SIGKILL", Status.CRASHED, "nothing shows that memory ran out"),
        (-SIGXFSZ, "SIGXFSZ", Status.CRASHED, "ulimit -f"),
        (SIGXFSZ, f"exit code {SIGXFSZ:d}", Status.CRASHED, "does not say why"),
        (-11, "SIGSEGV", Status.CRASHED, "does not say why"),
        (-999, "signal 999", Status.CRASHED, "does not say why"),
    ],
)
def test_how_a_program_ended_is_said_by_its_exit_code(
    returncode, phrase, status, words
):
    found = exit_cause(returncode)

    assert phrase == exit_phrase(returncode)
    assert status is found.status
    assert words in found.reason


def test_lines_have_no_time_stamps_and_blank_ones_are_left_out():
    text = "0.00.073.447 I main: x\n\n   \n0.1 I kept\n"

    assert ["main: x", "0.1 I kept"] == list(lines(text))


def printed(name):
    """What llama-perplexity printed."""
    return (LOGS / f"perplexity-{name}.txt").read_text(encoding="utf-8")


COMPLETE = printed("q4_0")
LAST = "Same top p: 88.235 ± 1.009 %"
REQUIRED = (
    "Mean PPL(Q)  ",
    "Mean PPL(base)  ",
    "Mean PPL(Q)/PPL(base)",
    "Mean    KLD",
    "Maximum KLD",
    "99.9%   KLD",
    "99.0%   KLD",
    "90.0%   KLD",
    "Median  KLD",
    "Minimum KLD",
    "Mean    Δp",
    "RMS Δp",
    "Same top p:",
)


def test_all_statistics_of_a_complete_output_are_read():
    found = statistics(COMPLETE)

    assert found is not None
    assert Estimate(13381.611444, 3983.09685) == found.ppl
    assert Estimate(2976.113205, 694.97974) == found.ppl_base
    assert Estimate(4.496338, 0.583749) == found.ppl_ratio
    assert Estimate(1.173086, 0.114657) == found.kld
    percentiles = (found.kld_90, found.kld_95, found.kld_99, found.kld_999)
    assert (3.174846, 10.47472, 18.045601, 23.566275) == percentiles
    extremes = (found.kld_min, found.kld_median, found.kld_max)
    assert (-4e-06, 6e-06, 23.709171) == extremes
    assert Estimate(0.077, 0.301) == found.dp_mean
    assert Estimate(9.612, 1.370) == found.dp_rms
    assert Estimate(88.235, 1.009) == found.same_top


def test_each_chunk_by_itself_follows_from_the_means_so_far():
    """Their mean is that of all; shares are whole tokens: 221, 222, 227, 230 of 255."""
    found, whole = by_chunk(COMPLETE, tokens=255), statistics(COMPLETE)

    assert 4 == len(found)
    assert 1.1902 == found[0].kld
    assert -math.log(12192.7235) == pytest.approx(found[0].logp, abs=1e-6)
    assert 2 * 1.27243 - 1.1902 == pytest.approx(found[1].kld)
    assert [221, 222, 227, 230] == [round(2.55 * each.same_top, 3) for each in found]
    means = [fmean(values) for values in zip(*map(astuple, found), strict=True)]
    expected = [-math.log(whole.ppl.value), whole.kld.value, whole.same_top.value]
    assert expected == pytest.approx(means, abs=1e-3)


def test_chunks_without_a_number_have_no_values():
    """A perplexity that is none spoils all that are subtracted from it."""
    for ppl, chunks in (("nan", 0), ("0.0000", 0), ("1.0000", 4)):
        told = COMPLETE.replace("12266.2220", ppl)
        assert chunks == len(by_chunk(told, tokens=255))


def test_a_divergence_of_minus_zero_is_zero():
    """The reference compared with itself prints -0.000000."""
    found = statistics(printed("self-f16"))

    assert found is not None
    assert "0.0" == str(found.kld.value)


def test_no_number_comes_from_an_output_that_is_cut_anywhere():
    whole = statistics(COMPLETE)
    complete_from = COMPLETE.index(LAST) + len(LAST)
    offsets = {
        *range(0, len(COMPLETE), 61),
        *range(complete_from - 90, len(COMPLETE), 7),
        *range(complete_from - 30, complete_from + 3),
    }

    for offset in sorted(offsets):
        expected = whole if offset >= complete_from else None
        assert expected == statistics(COMPLETE[:offset]), offset


@pytest.mark.parametrize("label", REQUIRED)
def test_a_missing_line_makes_the_statistics_incomplete(label):
    lines = COMPLETE.splitlines(keepends=True)
    without = [line for line in lines if not line.startswith(label)]

    assert 1 == len(lines) - len(without)
    assert statistics("".join(without)) is None


@pytest.mark.parametrize(
    "text",
    [
        COMPLETE + COMPLETE,
        f"{COMPLETE}\n{LAST}\n",
        COMPLETE.replace("KLD:   1.173086", "KLD:       -nan"),
        COMPLETE.replace("over 4 chunks", "over 5 chunks"),
    ],
    ids=["two outputs", "a line twice", "no number", "other chunks than announced"],
)
def test_statistics_that_contradict_are_refused(text):
    assert statistics(text) is None


def test_the_95th_percentile_may_be_missing():
    """Old builds do not print it."""
    found = statistics(COMPLETE.replace("95.0%   KLD:  10.474720\n", ""))

    assert found is not None
    assert found.kld_95 is None


@pytest.mark.parametrize(
    "ignored",
    [
        (
            "b.kld has been computed with 512, while the current context is 256. "
            "Increase it with -c and retry"
        ),
        "inconsistent vocabulary (300 vs 260)",
    ],
)
def test_errors_that_the_tool_ignores_are_not_ignored(ignored):
    """The tool logs two errors and goes on; the numbers after them are wrong."""
    text = f"0.00.024.815 E kl_divergence: {ignored}\n{COMPLETE}"

    assert statistics(text) is None
    assert f"kl_divergence: {ignored}" == failure(text).split(" E ")[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base-foreign", "does not look like a file containing log-probabilities"),
        ("base-truncated", "failed reading log-probs for chunk 2"),
        ("base-of-another-context", "computed with 512, while the current context"),
        ("base-of-another-vocabulary", "inconsistent vocabulary (300 vs 260)"),
        ("base-unwritable", "failed to open /nonexistent/x.kld for writing"),
        ("text-too-short", "you need at least 1024 tokens"),
    ],
)
def test_each_way_to_fail_is_named_and_has_no_statistics(name, words):
    """The tool exits 0 on most of these; only its log tells."""
    text = printed(name)

    assert words in (failure(text) or "")
    assert statistics(text) is None
    assert final_perplexity(text) is None


def test_too_few_scored_tokens_have_rows_and_no_statistics():
    """The tool prints running values of 62 tokens, stops there, and exits 0."""
    text = printed("too-few-scored")

    assert 2 == chunks_done(text)
    assert failure(text) is None
    assert statistics(text) is None


def test_an_error_that_is_no_number_leaves_the_value():
    """An RMS of exactly zero has an error of zero by zero."""
    found = statistics(
        COMPLETE.replace("9.612 ± 1.370 %\nSame", "0.000 ±  -nan %\nSame")
    )

    assert found is not None
    assert Estimate(0.0, None) == found.dp_rms


def test_warnings_between_the_lines_are_ignored():
    """Drivers write to the same file."""
    noisy = COMPLETE.replace("Median  KLD", "0.01.000.000 W cuda: slow\nMedian  KLD")

    assert statistics(COMPLETE) == statistics(noisy)


def test_the_final_perplexity_ends_a_run_that_writes():
    """Without it, the base file may be incomplete."""
    text = printed("base")

    assert Estimate(14145.3098, 4242.15655) == final_perplexity(text)
    assert final_perplexity(text[: text.index("Final estimate") + 30]) is None
    assert final_perplexity(printed("disk-full")) is None
    assert final_perplexity(COMPLETE) is None


@pytest.mark.parametrize(
    ("name", "done", "early"),
    [
        ("base", 4, False),
        ("q4_0", 4, False),
        ("disk-full", 1, True),
        ("cut-at-exit", 3, True),
        ("base-truncated", 2, False),
        ("base-foreign", 0, False),
    ],
)
def test_progress_and_early_ends_are_read_in_both_modes(name, done, early):
    """The tool may exit with 0 before its log is written: no result and no error."""
    assert (done, early) == (chunks_done(printed(name)), ends_early(printed(name)))


def test_sizes_are_read():
    assert Size(chunks=4, context=512) == size(printed("base")) == size(COMPLETE)
    assert size(printed("text-too-short")) is None
    assert Lengths(needed=1024, present=701) == too_short(printed("text-too-short"))
    assert too_short(printed("base")) is None
