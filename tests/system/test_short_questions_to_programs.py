"""A short question to a program: its answer, or why there is none."""

import sys

import psutil
import pytest

from codeneedle.errors import ToolFailed
from codeneedle.system import processes
from codeneedle.system.processes import run_for_output

pytestmark = pytest.mark.slow

FOREVER = [sys.executable, "-c", "import time; time.sleep(3600)"]


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_a_short_question_is_answered_with_code_and_both_streams():
    code = r"import sys; sys.stdout.buffer.write(b'a\xff'); sys.exit('but')"

    answer = run_for_output(python(code), timeout_s=60)

    assert (1, "a\ufffd", "but\n") == (answer.returncode, answer.stdout, answer.stderr)


def test_of_an_endless_answer_only_the_beginning_is_kept():
    code = f"print('x' * {3 * processes.OUTPUT_LIMIT_BYTES})"
    answer = run_for_output(python(code), timeout_s=60)

    assert (0, processes.OUTPUT_LIMIT_BYTES) == (answer.returncode, len(answer.stdout))


def test_a_program_that_does_not_answer_is_ended(tmp_path):
    code = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    started = set(psutil.Process().children(recursive=True))

    with pytest.raises(ToolFailed):
        run_for_output(python(code, *FOREVER), timeout_s=0.3)

    assert set() == set(psutil.Process().children(recursive=True)) - started


def test_an_answer_is_complete_when_its_program_has_ended(tmp_path):
    """A child of it that holds on to its output is not waited for."""
    code = "import subprocess, sys; print('yes'); subprocess.Popen(sys.argv[1:])"

    answer = run_for_output(python(code, *FOREVER), timeout_s=60)

    assert "yes\n" == answer.stdout


@pytest.mark.parametrize("program", ["/nowhere/llama-server", "/etc", "a\0b"])
def test_a_program_that_cannot_be_started_is_named(program):
    with pytest.raises(ToolFailed) as caught:
        run_for_output([program], timeout_s=60)

    assert program in str(caught.value)
