"""Children: what they get, and that none outlives its block."""

import os
import signal
import sys

import psutil
import pytest

from codeneedle.system import processes
from codeneedle.system.processes import (
    CannotStart,
    ChildWontStop,
    NoAnswer,
    NoLog,
    ends_within,
    output_of,
    running,
)

FOREVER = [sys.executable, "-c", "import time; time.sleep(3600)"]
DEAF = """
import signal, sys, time
for number in map(int, sys.argv[2:]):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").close()
time.sleep(3600)
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


@pytest.fixture
def log(tmp_path):
    """Where a child's output goes."""
    return tmp_path / "child.log"


def deaf_child(mark, *numbers):
    """A child that ignores the signals *numbers*, and says so by the pipe *mark*."""
    os.mkfifo(mark)
    return python(DEAF, mark, *numbers)


def wait_for(mark):
    """Opening one end of a pipe waits until somebody opens the other."""
    mark.open().close()


def graces(monkeypatch, *, interrupt=3600.0, terminate=3600.0, kill=3600.0):
    monkeypatch.setattr(
        processes,
        "GRACES_S",
        (
            (signal.SIGINT, interrupt),
            (signal.SIGTERM, terminate),
            (signal.SIGKILL, kill),
        ),
    )


def test_a_short_question_is_answered_with_code_and_both_streams():
    """
    Output and complaints come apart, with the exit code.
    """
    answer = output_of(
        python("import sys; print('yes'); sys.stderr.write('but'); sys.exit(3)"),
        timeout_s=60,
    )

    assert (3, "yes\n", "but") == (answer.returncode, answer.stdout, answer.stderr)


def test_bytes_that_are_no_text_are_replaced():
    """
    A program may print anything.
    """
    answer = output_of(
        python(r"import sys; sys.stdout.buffer.write(b'a\xffb')"), timeout_s=60
    )

    assert "a\ufffdb" == answer.stdout


def test_of_an_endless_answer_only_the_beginning_is_kept():
    """
    A program that prints on and on neither stalls nor fills our memory.
    """
    code = f"print('x' * {3 * processes.OUTPUT_LIMIT_BYTES})"
    answer = output_of(python(code), timeout_s=60)

    assert (0, processes.OUTPUT_LIMIT_BYTES) == (answer.returncode, len(answer.stdout))


def test_a_program_that_does_not_answer_is_ended(tmp_path):
    """
    Its time is limited, and so is that of its children.
    """
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    started = set(psutil.Process().children(recursive=True))

    with pytest.raises(NoAnswer):
        output_of(python(code, *FOREVER), timeout_s=0.3)

    assert set() == set(psutil.Process().children(recursive=True)) - started


def test_an_answer_is_complete_when_its_program_has_ended(tmp_path):
    """
    A child of it that holds on to its output is not waited for.
    """
    code = "import subprocess, sys; print('yes'); subprocess.Popen(sys.argv[1:])"

    answer = output_of(python(code, *FOREVER), timeout_s=60)

    assert "yes\n" == answer.stdout


@pytest.mark.parametrize("program", ["/nowhere/llama-server", "/etc", "a\0b"])
def test_a_program_that_cannot_be_started_is_named(program):
    """
    Missing, a folder, or no name at all: the error says which program.
    """
    with pytest.raises(CannotStart) as caught:
        output_of([program], timeout_s=60)

    assert program in str(caught.value)


def test_a_child_gets_the_environment_that_it_is_given_and_no_input(log):
    """
    Nothing is inherited beside; and a child that reads waits for nobody.
    """
    code = "import os, sys; print(sorted(os.environ), repr(sys.stdin.read()))"
    with running(
        python(code), env={"ONLY": "this", "LC_ALL": "C.UTF-8"}, log=log
    ) as child:
        assert ends_within(child, 60)

    assert "['LC_ALL', 'ONLY'] ''\n" == log.read_text()


def test_output_and_complaints_are_in_the_log(log):
    """
    Both streams, so that its last words outlive it.
    """
    code = "import os; os.write(1, b'said '); os.write(2, b'complained')"
    with running(python(code), env={}, log=log) as child:
        assert ends_within(child, 60)

    assert "said complained" == log.read_text()


def test_a_child_of_a_job_in_the_background_hears_us(tmp_path, monkeypatch):
    """
    Shells have such jobs ignore Ctrl-C, and children inherit that; ours do not, so
    the first request to leave is enough.
    """
    graces(monkeypatch)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with running(FOREVER, env={}, log=tmp_path / "log") as child:
            assert child.poll() is None
        assert signal.SIG_IGN is signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert child.returncode != 0


def test_a_child_ends_with_its_block_and_no_grace_is_waited_out(log, monkeypatch):
    """
    A child that leaves when asked is not waited for any longer.
    """
    graces(monkeypatch)

    with running(FOREVER, env={}, log=log) as child:
        assert child.poll() is None

    assert not psutil.pid_exists(child.pid)


def test_a_child_ends_when_its_block_fails(log):
    """
    However a block is left, its child does not outlive it.
    """
    with (
        pytest.raises(ZeroDivisionError),
        running(FOREVER, env={}, log=log) as child,
    ):
        _ = 1 / 0

    assert not psutil.pid_exists(child.pid)


def test_a_child_that_ignores_requests_is_killed(log, tmp_path, monkeypatch):
    """
    After SIGINT and SIGTERM comes SIGKILL.
    """
    graces(monkeypatch, interrupt=0.1, terminate=0.1)
    mark = tmp_path / "deaf"
    argv = deaf_child(mark, signal.SIGINT, signal.SIGTERM)

    with running(argv, env={}, log=log) as child:
        wait_for(mark)

    assert -signal.SIGKILL == child.returncode


def test_a_suspended_child_is_asked_as_politely_as_others(log, monkeypatch):
    """
    It is woken, so that it hears the first request.
    """
    graces(monkeypatch)
    with running(["/bin/sleep", "3600"], env={}, log=log) as child:
        os.kill(child.pid, signal.SIGSTOP)

    assert -signal.SIGINT == child.returncode


def test_children_of_a_child_end_with_it(log, tmp_path, monkeypatch):
    """
    The whole group goes, even if its leader has left before.
    """
    graces(monkeypatch, interrupt=0.1, terminate=0.1)
    mark = tmp_path / "deaf"
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid)"
    argv = python(code, *deaf_child(mark, signal.SIGINT, signal.SIGTERM))

    with running(argv, env={}, log=log) as child:
        assert ends_within(child, 60)
        wait_for(mark)
    grandchild = int(log.read_text())

    assert not psutil.pid_exists(grandchild) or (
        psutil.STATUS_ZOMBIE == psutil.Process(grandchild).status()
    )


def test_a_child_that_cannot_be_ended_is_reported(log, monkeypatch):
    """
    What survives every request is told, with its process group.
    """
    monkeypatch.setattr(processes, "GRACES_S", ())
    with pytest.raises(ChildWontStop) as caught, running(FOREVER, env={}, log=log) as c:
        pass
    c.kill()
    c.wait()

    assert str(c.pid) in str(caught.value)


def test_ctrl_c_while_stopping_skips_to_the_next_request(log, tmp_path, monkeypatch):
    """
    It is not lost either: it arrives when the child is gone.
    """
    graces(monkeypatch)
    request = processes._signal

    def interrupted(group, number):
        request(group, number)
        if number == signal.SIGINT:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes, "_signal", interrupted)
    mark = tmp_path / "deaf"
    argv = deaf_child(mark, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), running(argv, env={}, log=log) as child:
        wait_for(mark)

    assert -signal.SIGTERM == child.returncode


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    """
    A run folder may be gone, or its disk full.
    """
    log = tmp_path / "gone" / "child.log"

    with pytest.raises(NoLog) as caught, running(FOREVER, env={}, log=log):
        pass

    assert str(log) in str(caught.value)


def test_a_child_whose_block_was_never_left_ends_with_us(tmp_path):
    """
    The last line of defence, for a signal at the worst of moments.
    """
    code = """
import sys
from pathlib import Path
from codeneedle.system import processes
block = processes.running(["/bin/sleep", "3600"], env={}, log=Path(sys.argv[1]))
child = block.__enter__()
processes.stop = lambda child: None
print(child.pid)
"""
    answer = output_of(python(code, tmp_path / "log"), timeout_s=60)
    pid = int(answer.stdout)

    assert not psutil.pid_exists(pid) or (
        psutil.STATUS_ZOMBIE == psutil.Process(pid).status()
    )
