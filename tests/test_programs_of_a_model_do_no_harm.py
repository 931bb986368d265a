"""What a model wrote is executed where it reaches nothing, within its limits."""

import subprocess
import sys
from pathlib import Path

import pytest
import sandbox
from sandboxed import confined

pytestmark = pytest.mark.slow

HARMLESS = "import math, re, typing\nopen('own', 'w').write('text')"

STOPPED = {
    "a fork bomb": "import os\nwhile True:\n    os.fork()",
    "a thread": "import threading\nthreading.Thread(target=print).start()",
    "a memory hog": "held = []\nwhile True:\n    held.append(bytes(1 << 24))",
    "a network": "import socket\nsocket.create_connection(('192.0.2.1', 80))",
    "this machine's network": "import socket\nsocket.create_connection(('::1', 1))",
    "a file of the system": "open('/usr/written', 'w')",
    "a new folder": "import os\nos.mkdir('/made')",
    "a large file": "open('own', 'wb').write(bytes(1 << 21))",
    "many files": "for n in range(9):\n  open(str(n), 'wb').write(bytes(1 << 20))",
    "an early end": "import os\nos._exit(0)",
    "an end by exception": "raise SystemExit(0)",
    "much output": "while True:\n    print('x' * 1000)",
}


@confined
def test_a_program_runs_to_its_end_with_a_folder_of_its_own():
    assert sandbox.Outcome(is_done=True, ending="") == sandbox.execute(HARMLESS)


@confined
@pytest.mark.parametrize("what", STOPPED)
def test_a_program_is_stopped_at(what):
    assert not sandbox.execute(STOPPED[what]).is_done


@confined
def test_an_endless_loop_ends_by_its_processor_time():
    assert not sandbox.execute("while True:\n    pass", cpu_s=1).is_done


@confined
def test_a_program_that_sleeps_ends_by_the_clock(golden):
    wall_s = 10.0  # until then it has begun
    outcome = sandbox.execute("import time\ntime.sleep(1e6)", wall_s=wall_s)

    assert golden == outcome.ending


@confined
def test_a_program_sees_no_file_of_its_user_and_no_other_process(tmp_path):
    own = tmp_path / "own"
    own.write_text("secret", encoding="utf-8")
    looks = (
        "import os\n"
        f"assert not os.path.exists({str(own)!r})\n"
        "assert not os.path.exists('/proc') and not os.path.exists('/etc')\n"
        "assert 1 == os.getpid() and not os.environ.get('HOME')\n"
    )

    assert sandbox.Outcome(is_done=True, ending="") == sandbox.execute(looks)


@confined
def test_a_program_has_no_right_to_leave():
    leaves = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x10000000) == -1 and libc.unshare(0x20000) == -1\n"
        "assert libc.chroot(b'.') == -1 and libc.mount(b'x', b'.', b'tmpfs', 0, 0)\n"
    )

    assert sandbox.Outcome(is_done=True, ending="") == sandbox.execute(leaves)


def test_without_unshare_there_is_no_sandbox(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(sandbox.NoSandbox, match="unshare"):
        sandbox.refuse_without()


@pytest.mark.parametrize("fails", ["exit 1", "exec sleep 60"])
def test_a_sandbox_that_does_not_start_is_no_wrong_answer(fails, tmp_path, monkeypatch):
    unshare = tmp_path / "unshare"
    unshare.write_text(f"#!/bin/sh\n{fails}\n", encoding="utf-8")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(sandbox.NoSandbox):
        sandbox.execute(HARMLESS, wall_s=1.0)


def test_limits_hold_for_who_asks_for_no_sandbox():
    grows = "held = []\nwhile True:\n    held.append(bytes(1 << 24))"

    assert not sandbox.execute(grows, is_confined=False).is_done
    assert sandbox.execute("1 + 1", is_confined=False).is_done


@confined
def test_the_script_says_that_a_sandbox_works():
    script = Path(sandbox.__file__)

    done = subprocess.run([sys.executable, script], capture_output=True, check=False)

    assert (0, b"a sandbox works here\n") == (done.returncode, done.stdout)
