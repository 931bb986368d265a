"""What a child gets: environment, folder and log."""

import os
import signal
import sys

import pytest

from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.system import processes
from codeneedle.system.inherited_variables import (
    inherited_variables,
    set_passed_on_variables,
    setup_variables,
    withheld_variables,
)
from codeneedle.system.processes import (
    END_BYTES,
    OMISSION,
    ends_within,
    run_for_output,
    running,
)

pytestmark = pytest.mark.slow

FOREVER = [sys.executable, "-c", "import time; time.sleep(3600)"]


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.fixture
def log(tmp_path):
    """Where a child's output goes."""
    return tmp_path / "child.log"


def graces(monkeypatch, *, interrupt=3600.0, terminate=3600.0):
    monkeypatch.setattr(
        processes,
        "GRACES_S",
        (
            (signal.SIGINT, interrupt),
            (signal.SIGTERM, terminate),
            (signal.SIGKILL, 3600.0),
        ),
    )


def test_a_child_gets_the_environment_that_it_is_given_and_no_input(log):
    code = "import os, sys; print(sorted(os.environ), repr(sys.stdin.read()))"
    code += "; sys.stdout.flush(); os.write(2, b'complained')"
    env = {"ONLY": "this", "LC_ALL": "C.UTF-8"}
    with running(python(code), env=env, log=log) as child:
        assert ends_within(child, 60)

    assert "['LC_ALL', 'ONLY'] ''\ncomplained" == log.read_text()


def test_a_child_of_a_background_job_does_not_ignore_sigint(tmp_path, monkeypatch):
    """Shells make such jobs ignore it, and children inherit that; ours must not."""
    graces(monkeypatch)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with running(FOREVER, env={}, log=tmp_path / "log") as child:
            assert child.poll() is None
        assert signal.SIG_IGN is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert child.returncode != 0


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    log = tmp_path / "gone" / "child.log"

    with pytest.raises(FolderUnusable) as caught, running(FOREVER, env={}, log=log):
        pass

    assert str(log) in str(caught.value)


def test_of_a_long_log_the_ends_are_kept(log):
    """In place, since the disk may be full."""
    code = f"print(*(each * {END_BYTES} for each in 'abc'), sep='', end='')"
    with running(python(code), env={}, log=log) as child:
        assert ends_within(child, 60)

    assert b"a" * END_BYTES + OMISSION + b"c" * END_BYTES == log.read_bytes()


def test_a_child_works_in_the_folder_that_it_is_given(tmp_path):
    with running(["/bin/pwd"], env={}, log=tmp_path / "log", folder=tmp_path) as child:
        child.wait()

    assert f"{tmp_path.resolve()}\n" == (tmp_path / "log").read_text()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("victim")])
def test_a_log_is_created_anew_whatever_has_its_name(tmp_path, log, make):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make(log)
    with running(["/bin/echo", "well"], env={}, log=log) as child:
        assert ends_within(child, 60)

    assert ("well\n", "precious") == (log.read_text(), victim.read_text())


def test_a_log_that_vanishes_does_not_matter(log):
    with running(FOREVER, env={}, log=log) as child:
        log.unlink()
        assert child.poll() is None


def test_children_leave_no_core_dumps():
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"

    assert "0\n" == run_for_output(python(code), timeout_s=60).stdout


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *((name, True) for name in ("PATH", "HOME", "LC_ALL")),
        *((name, True) for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")),
        *((name, True) for name in ("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS",)),
        *((name, True) for name in ("ROCBLAS_TENSILE_LIBPATH", "RADV_PERFTEST")),
        *((name, True) for name in ("ASCEND_RT_VISIBLE_DEVICES", "OPENCL_DEVICE")),
        *((name, False) for name in ("LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY")),
        *((name, False) for name in ("HF_TOKEN", "HTTP_PROXY", "LD_PRELOAD")),
        *((name, False) for name in ("VK_ACCESS_TOKEN", "CUDA_API_KEY", "MKL_SECRET")),
    ],
)
def test_places_languages_and_devices_are_inherited_and_nothing_else(
    monkeypatch, name, is_kept
):
    monkeypatch.setenv(name, "x")

    assert is_kept is (name in inherited_variables())


@pytest.fixture
def _passes_nothing_on():
    yield
    set_passed_on_variables(())


@pytest.mark.usefixtures("_passes_nothing_on")
def test_a_variable_that_is_named_is_inherited_and_told_until_then(monkeypatch):
    for name in ("LLAMA_SET_ROWS", "LLAMA_ARG_CTX_SIZE", "LLAMA_SERVER", "LD_PRELOAD"):
        monkeypatch.setenv(name, "1")

    assert {"LLAMA_SET_ROWS", "LLAMA_ARG_CTX_SIZE", "LD_PRELOAD"} <= {
        *withheld_variables()
    }
    assert "LLAMA_SERVER" not in withheld_variables()
    set_passed_on_variables(["LLAMA_SET_ROWS"])
    assert "1" == inherited_variables()["LLAMA_SET_ROWS"]
    assert "1" == setup_variables()["LLAMA_SET_ROWS"]
    assert "LLAMA_SET_ROWS" not in withheld_variables()
    set_passed_on_variables(())
    assert "LLAMA_SET_ROWS" not in inherited_variables()


@pytest.mark.parametrize(
    "name",
    [
        *("LLAMA_ARG_HOST", "LLAMA_API_KEY", "HF_TOKEN", "LLAMA_ATTN_ROT_DISABLE"),
        *("NOT_SET_HERE", "A=B", "LLAMA_KV_CACHE_LAZY_QUANT", "HIDDEN"),
    ],
)
def test_a_variable_that_must_not_be_passed_on_is_refused(monkeypatch, name):
    for each in ("LLAMA_ARG_HOST", "LLAMA_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(each, "x")
    monkeypatch.setenv("HIDDEN", "http://me:pw@proxy")

    with pytest.raises(BadInput) as refused:
        set_passed_on_variables([name])
    assert refused.value.hint
    assert name not in inherited_variables()
