"""How a program ended: its exit code, the kernel, the end of its log."""

from pathlib import Path
from signal import SIGXFSZ

import pytest

from codeneedle.engines.exit_causes import (
    Died,
    exit_cause,
    exit_cause_from_log,
    exit_phrase,
    last_lines,
    last_log_lines,
    silence_error,
    trouble_of_sigkill,
)
from codeneedle.engines.llama_cpp import log as llama_log
from codeneedle.engines.reasons import (
    LINE_CHARACTERS,
    MEMORY,
    find_most_telling_trouble,
)
from codeneedle.records.record import Status, Trouble
from codeneedle.system import machine


@pytest.mark.parametrize(
    ("returncode", "phrase"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "SIGKILL"),
        (-SIGXFSZ, "SIGXFSZ"),
        (SIGXFSZ, f"exit code {SIGXFSZ:d}"),
        (-11, "SIGSEGV"),
        # A shell that did not exec says so of its child.
        (137, "exit code 137 (SIGKILL)"),
        (139, "exit code 139 (SIGSEGV)"),
        (255, "exit code 255"),
        (-999, "signal 999"),
    ],
    ids=[
        *("0", "3", "SIGKILL", "SIGXFSZ", "its number", "SIGSEGV"),
        *("SIGKILL of a child", "SIGSEGV of a child", "255", "an unknown signal"),
    ],
)
def test_how_a_program_ended_is_said_by_its_exit_code(
    returncode, phrase, tmp_path, monkeypatch, golden
):
    monkeypatch.setattr(machine, "VMSTAT", tmp_path / "vmstat")
    found = exit_cause(returncode)

    assert phrase == exit_phrase(returncode)
    assert Status.CRASHED is found.status
    assert golden == found.reason


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (None, Status.CRASHED),
        ("pgfault 7\noom_kill 0\nnuma_pages_migrated 3\n", Status.CRASHED),
        ("pgfault 7\noom_kill 99999999\nnuma_hit 3\n", Status.OUT_OF_MEMORY),
        ("pgfault 7\noom_kill many\n", Status.CRASHED),
    ],
)
def test_sigkill_is_a_lack_of_memory_where_the_kernel_says_so(
    text, status, tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "VMSTAT", tmp_path / "vmstat")
    if text is not None:
        machine.VMSTAT.write_text(text)

    assert status is trouble_of_sigkill().status


def test_what_the_log_says_comes_before_the_exit_code(tmp_path, golden):
    facts = {"returncode": -11, "log": tmp_path / "log", "excerpt": ("the end",)}

    told = Died("a tool", cause=Trouble(Status.UNSUPPORTED, "no kernel"), **facts)
    mute = Died("a tool", hint="Ask again.", cause=exit_cause(-11), **facts)

    assert golden == str(told)
    assert (Status.UNSUPPORTED, -11) == (told.status, told.returncode)
    assert ("the end",) == told.log_excerpt
    assert Status.CRASHED is mute.status
    assert golden == mute.hint


def test_a_silent_program_has_a_status_of_its_own(tmp_path, golden):
    found = silence_error(
        "a tool", 0.5, log=tmp_path / "log", excerpt=(), why="as others"
    )

    assert Status.TIMED_OUT is found.status
    assert golden == str(found)


def test_the_end_of_a_log_is_twelve_lines_that_are_safe_to_show(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"{at}\x1b \n\n" for at in range(20)))

    assert tuple(f"{at}\\x1b" for at in range(8, 20)) == last_log_lines(log)
    assert () == last_log_lines(tmp_path / "none")
    assert (LINE_CHARACTERS,) == tuple(map(len, last_lines(["x" * 9999])))


LOGS = Path(__file__).parents[1] / "helpers" / "logs"
LACKS = (LOGS / "lack-of-memory.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LACKS)
def test_a_lack_of_memory_is_known_in_the_words_of_every_backend(line, tmp_path):
    log = tmp_path / "log"
    log.write_text(f"loading\n{line}\nserver: exiting due to model loading error\n")

    for found in (exit_cause_from_log(log, -6), llama_log.cause(log.read_text(), -6)):
        assert (Status.OUT_OF_MEMORY, line) == (found.status, found.reason)


LACKS_NOTHING = [
    "WARNING: failed to allocate 8.00 MB of pinned memory: out of memory",
    "prompt cache update: failed to allocate a state",
    "compute buffer allocation failed, retrying without pipeline parallelism",
    "If you run out of memory, lower --gpu-memory-utilization",
    "set expandable_segments to avoid running out of memory",
    "warning: failed to munlock buffer: Cannot allocate memory",
    "current allocated size is greater than the recommended max working set size",
    "failed to find a memory slot for batch of size 512",
]


@pytest.mark.parametrize("line", LACKS_NOTHING)
def test_what_only_makes_a_program_slower_is_no_lack_of_memory(line):
    assert MEMORY.search(line) is None


LAST_LINES = {
    # No phrase that is known, but what the end of a log complains of.
    "no backends": (
        """loading model 'm.gguf'
model_load_from_file: no backends are loaded. hint: use ggml_backend_load()
common_init_: failed to load model 'm.gguf'
load_model: failed to load model, 'm.gguf'
server: exiting due to model loading error""",
        "model_load_from_file: no backends are loaded. hint: use ggml_backend_load()",
    ),
    "an exception of SYCL": (
        """loading model
Exception caught at file:/src/ggml-sycl.cpp, line:5177, func:operator()
SYCL error: CHECK_TRY_ERROR(op()): the device is lost
/src/ggml-sycl/common.hpp:115: SYCL error""",
        "SYCL error: CHECK_TRY_ERROR(op()): the device is lost",
    ),
    "an assertion above a stack": (
        """/src/fattn.cu:12: GGML_ASSERT(max_bias == 0.0f) failed
#0  0x00007f in wait4 () from /lib/libc.so.6
#1  0x00007f in ggml_abort () from libggml-base.so
/usr/lib/libggml-base.so(ggml_abort+0x15a)[0x7f]
Aborted (core dumped)""",
        "/src/fattn.cu:12: GGML_ASSERT(max_bias == 0.0f) failed",
    ),
    "an option above a usage text": (
        "error: unknown value for --flash-attn: '--cache-type-k'\n"
        "usage: server [options]\n\noptions:\n"
        + "  -e, --error N    fail after N errors\n"
        * 900,
        "error: unknown value for --flash-attn: '--cache-type-k'",
    ),
    "an option below a usage text": (
        """\
usage: vllm serve [model_tag] [options]
vllm: error: unrecognized arguments: --kv-cache-type q4_0""",
        "vllm: error: unrecognized arguments: --kv-cache-type q4_0",
    ),
    "what Python raised last": (
        """Traceback (most recent call last):
  File "/a/b.py", line 3, in load
KeyError: 'rope'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/b.py", line 5, in load
ValueError: this type needs a head size of 64""",
        "ValueError: this type needs a head size of 64",
    ),
    "the root cause of another process": (
        """(EngineCore pid=7) ERROR 11-01 [core.py:7] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-01 [core.py:7] ValueError: no kernel for fp4
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/a/b.py", line 5, in run
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
""",
        "ValueError: no kernel for fp4",
    ),
    "a lock of memory": (
        "warning: failed to mlock 4096-byte buffer (after previously locking 0 bytes)",
        "warning: failed to mlock 4096-byte buffer (after previously locking 0 bytes)",
    ),
    "a rule": (
        "INFO ready\nFATAL: kernel image is invalid for this device\nINFO bye",
        "FATAL: kernel image is invalid for this device",
    ),
}


@pytest.mark.parametrize("name", LAST_LINES)
def test_the_reason_is_the_most_telling_of_the_last_lines(name, tmp_path):
    text, line = LAST_LINES[name]
    log = tmp_path / "log"
    log.write_text(text)

    assert line == exit_cause_from_log(log, 1).reason
    assert line == llama_log.cause(text, 1).reason


def test_lines_without_a_complaint_are_no_reason_of_llama_cpp_and_the_last_of_others(
    tmp_path,
):
    healthy = "loading the model\nn_ctx is not the size of the training\n0 errors: 0\n"
    log = tmp_path / "log"
    log.write_text(healthy)

    assert find_most_telling_trouble(healthy.splitlines()) is None
    assert exit_cause(-11) == llama_log.cause(healthy, -11)
    assert "0 errors: 0" == exit_cause_from_log(log, -11).reason
    assert exit_cause(1) == exit_cause_from_log(tmp_path / "none", 1)


def test_a_signal_tells_more_than_a_complaint_and_less_than_a_lack_of_memory(tmp_path):
    log = tmp_path / "log"
    log.write_text("error: a request was refused\n")
    complains = exit_cause_from_log(log, -9)
    log.write_text("cudaMalloc failed: out of memory\n")

    assert exit_cause(-9).reason == complains.reason
    assert Status.OUT_OF_MEMORY is exit_cause_from_log(log, -9).status


def test_a_server_that_ended_well_was_stopped_whatever_it_complained_of():
    ends = "cleaning up before exit...\n"
    complains = f"error: a request was refused\n{ends}"
    stopped = llama_log.cause(ends, 0)

    assert stopped == llama_log.cause(complains, 0)
    assert stopped != llama_log.cause(complains, 1)


def test_a_complaint_of_long_ago_is_no_reason(tmp_path):
    log = tmp_path / "log"
    log.write_text("error: a request was refused\n" + "ready\n" * 60)

    assert "ready" == exit_cause_from_log(log, -11).reason
