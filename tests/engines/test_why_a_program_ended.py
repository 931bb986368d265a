"""How a program ended: its exit code, the kernel, the end of its log."""

from signal import SIGXFSZ

import pytest

from codeneedle.engines.ended import (
    LINE_CHARACTERS,
    Died,
    end_of,
    exit_cause,
    exit_phrase,
    killed,
    last_lines,
    silent,
)
from codeneedle.records.record import Status, Trouble
from codeneedle.system import machine


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

    assert status is killed().status
    assert "SIGKILL" in killed().reason


def test_what_the_log_says_comes_before_the_exit_code(tmp_path):
    facts = {"returncode": -11, "log": tmp_path / "log", "excerpt": ("the end",)}

    told = Died("a tool", cause=Trouble(Status.UNSUPPORTED, "no kernel"), **facts)
    mute = Died("a tool", hint="Ask again.", **facts)

    assert "a tool ended with SIGSEGV: no kernel" == str(told)
    assert (Status.UNSUPPORTED, -11) == (told.status, told.returncode)
    assert ("the end",) == told.log_excerpt
    assert Status.CRASHED is mute.status
    assert mute.hint.startswith("Ask again. The end of its log is in ")


def test_a_silent_program_has_a_status_of_its_own(tmp_path):
    found = silent("a tool", 0.5, log=tmp_path / "log", excerpt=(), why="as others")

    assert Status.TIMED_OUT is found.status
    assert str(found).endswith("has written nothing for 0.5 s; as others")


def test_the_end_of_a_log_is_twelve_lines_that_are_safe_to_show(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"{at}\x1b \n\n" for at in range(20)))

    assert tuple(f"{at}\\x1b" for at in range(8, 20)) == end_of(log)
    assert () == end_of(tmp_path / "none")
    assert (LINE_CHARACTERS,) == tuple(map(len, last_lines(["x" * 9999])))
