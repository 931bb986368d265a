"""No child outlives its block or us, and none writes without end."""

import datetime as dt
import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest

from codeneedle.errors import ToolFailed
from codeneedle.system import processes
from codeneedle.system.processes import (
    ends_within,
    run_for_output,
    run_until_last_words,
    running,
)

pytestmark = pytest.mark.slow

FOREVER = [sys.executable, "-c", "import time; time.sleep(3600)"]
STUBBORN = """
import signal, sys, time
for number in map(int, sys.argv[2:]):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(3600)
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def has_ended(pid):
    """Whether *pid* does not run, or is a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def log(tmp_path):
    """Where a child's output goes."""
    return tmp_path / "child.log"


def stubborn_child(mark, *numbers):
    """A child that ignores the signals *numbers*, and says so by the pipe *mark*."""
    os.mkfifo(mark)
    return python(STUBBORN, mark, *numbers)


def wait_for(mark):
    """Wait for the child: opening a pipe blocks until its other end is opened."""
    mark.open().close()


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


def test_a_child_ends_with_its_block_and_no_grace_is_waited_out(log, monkeypatch):
    graces(monkeypatch)
    with (
        pytest.raises(ZeroDivisionError),
        running(FOREVER, env={}, log=log) as child,
    ):
        _ = 1 / 0

    assert not psutil.pid_exists(child.pid)


def test_a_suspended_child_is_continued_to_handle_the_signal(log, monkeypatch):
    graces(monkeypatch)
    with running(["/bin/sleep", "3600"], env={}, log=log) as child:
        os.kill(child.pid, signal.SIGSTOP)

    assert -signal.SIGINT == child.returncode


def test_children_of_a_child_end_with_it(log, tmp_path, monkeypatch):
    graces(monkeypatch, interrupt=0.1, terminate=0.1)
    mark = tmp_path / "ready"
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid)"
    argv = python(code, *stubborn_child(mark, signal.SIGINT, signal.SIGTERM))

    with running(argv, env={}, log=log) as child:
        assert ends_within(child, 60)
        wait_for(mark)

    assert has_ended(int(log.read_text()))


def test_a_child_that_cannot_be_ended_is_reported(log, monkeypatch):
    monkeypatch.setattr(processes, "GRACES_S", ())
    with pytest.raises(ToolFailed) as caught, running(FOREVER, env={}, log=log) as c:
        pass
    c.kill()
    c.wait()

    assert str(c.pid) in str(caught.value)


def test_ctrl_c_while_stopping_skips_to_the_next_request(log, tmp_path, monkeypatch):
    graces(monkeypatch)
    request = processes._signal_group

    def interrupted(group, number):
        request(group, number)
        if number == signal.SIGINT:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "_signal_group", interrupted)
    mark = tmp_path / "ready"
    argv = stubborn_child(mark, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), running(argv, env={}, log=log) as child:
        wait_for(mark)

    assert -signal.SIGTERM == child.returncode


def test_a_child_whose_block_was_never_left_ends_with_us(tmp_path):
    """A signal at the wrong moment may skip a `finally`."""
    code = """
import sys
from pathlib import Path
from codeneedle.system import processes
block = processes.running(["/bin/sleep", "3600"], env={}, log=Path(sys.argv[1]))
child = block.__enter__()
processes.stop = lambda child: None
print(child.pid)
"""
    answer = run_for_output(python(code, tmp_path / "log"), timeout_s=60)

    assert "" == answer.stderr
    assert has_ended(int(answer.stdout))


@pytest.mark.parametrize("thread", ["main", "another"])
def test_a_child_and_its_group_are_killed_when_we_are(tmp_path, thread):
    code = """
import sys, threading, time
from pathlib import Path
from codeneedle.system import processes
def start():
    argv = [sys.executable, "-c", sys.argv[2]]
    block.append(processes.running(argv, env={}, log=Path(sys.argv[1])))
    block[0].__enter__()
block = []
if sys.argv[3] == "main":
    start()
else:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
print("started", flush=True)
time.sleep(3600)
"""
    child = """
import os, subprocess, time
print(os.getpid(), subprocess.Popen(["/bin/sleep", "3600"]).pid, flush=True)
time.sleep(3600)
"""
    log = tmp_path / "log"
    owner = subprocess.Popen(python(code, log, child, thread), stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        while len(pids := log.read_text().split()) < 2:
            pass
        lived = [not has_ended(int(pid)) for pid in pids]
        owner.kill()
    limit = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=60)
    while not all(has_ended(int(pid)) for pid in pids):
        assert dt.datetime.now(dt.UTC) < limit, pids

    assert [True, True] == lived


def test_nothing_is_left_of_the_watch_over_a_child(log):
    before = set(psutil.Process().children())
    with running(python("print('done')"), env={}, log=log) as child:
        assert ends_within(child, 60)

    assert 0 == child.returncode
    assert before == set(psutil.Process().children())


def test_a_child_that_writes_without_end_is_ended(log):
    """By the system, once its log has the size that a file may have."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    endless = ["/bin/sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxx; done"]

    with running(endless, env={}, log=log, file_limit_bytes=1 << 16) as child:
        assert ends_within(child, 60)

    assert -signal.SIGXFSZ == child.returncode
    assert 1 << 16 == log.stat().st_size
    assert before == resource.getrlimit(resource.RLIMIT_FSIZE)


LATE_LOGGER = """
import os, sys, threading, time
threading.Thread(target=lambda: (time.sleep(0.2), os.write(2, b"last words\\n")),
                 daemon=True).start()
sys.stdout.write("an answer\\n")
sys.stdout.flush()
os._exit(0)
"""


def test_a_program_with_a_late_log_ends_once_it_is_whole():
    answer = run_until_last_words(
        python(LATE_LOGGER), timeout_s=60, env={}, last_words=b"last words"
    )

    assert ("an answer\n", "last words\n") == (answer.stdout, answer.stderr)
