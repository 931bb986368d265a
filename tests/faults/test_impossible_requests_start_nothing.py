"""Requests that cannot be met: a line and a hint, before a server or a cell starts."""

import os
import shlex
import subprocess

import pytest
from calls import called
from injections import error_line, statuses
from started_sweeps import ONE, command, controls, ended, on_terminal

pytestmark = pytest.mark.real

DIVERGENCE = "--probe divergence"
SWEEPS = {
    f"{DIVERGENCE} --chunks 99999": "Use --chunks 16 or less",
    "-- --grammar x": "It changes the answers",
    f"{DIVERGENCE} --text /nonexistent": "Name a plain text file",
    f"{DIVERGENCE} --divergence-context 0": "whole number of 2 or more",
    "--probe throughput --depths -5": "Give one, for example --depths",
    "-- --logit-bias 1+5": "It changes the answers",
    "--out ''": "Give it a value",
    "--corpus ./loop.py": "Remove the link",
    "--corpus /dev/zero": "Name a file or folder",
    "--model ./loop.py": "ls -l loop.py",
}
"""Words of a sweep, and words of the hint."""

OTHERS = {"--version extra": "See codeneedle --help", "grid tiny >&-": "Redirect it"}


@pytest.fixture(autouse=True)
def _needed(llama_server, nano):
    """The program and the weights are there."""


def test_what_cannot_be_asked_for_is_refused_before_a_server_starts(
    folder, ledger, times
):
    (folder.path / "loop.py").symlink_to("loop.py")
    for words, hint in [*SWEEPS.items()][: times(99, quick=2)]:
        done = called(folder.path, "sweep", *ONE, *shlex.split(words))
        assert done.returncode in {2, 3}, words
        assert hint in done.stderr.partition(" hint: ")[2], words
        assert "fitting" not in done.stderr, words
        assert not (folder.path / "sweeps").exists()
        ledger.note(f"a request: {words}", error_line(done.stderr), of=folder)
    for words, hint in OTHERS.items():
        is_closed = words.endswith(">&-")
        before = (lambda: os.close(1)) if is_closed else None
        code, said = ended(folder.path, *words.split()[:2], before=before)
        assert 2 == code, words
        assert hint in said, words
        ledger.note(f"a request: {words}", error_line(said), of=folder)


def test_a_folder_of_any_name_is_printed_for_a_shell_and_safely(folder, ledger):
    path, out = folder.path, "o ut$(touch pwned)'"
    swept = called(path, "sweep", *ONE, "--out", out)
    shown = swept.stderr.partition("look at them:\n")[2].splitlines()[:2]
    program = shlex.join(command()[:3])
    script = "\n".join(shown).replace("codeneedle ", f"{program} ")
    shell = ["/bin/sh", "-ec", script]
    done = subprocess.run(shell, cwd=path, capture_output=True, check=False)
    (path / out).rename(path / "a\x1b[2Jb")
    code, raw = on_terminal(path, "sweep", *ONE, "--out", "a\x1b[2Jb")

    assert 0 == done.returncode, done.stderr
    assert ["a\x1b[2Jb", "corpora"] == sorted(file.name for file in path.iterdir())
    assert (0, []) == (code, controls(raw))
    assert rb"a\x1b[2Jb" in raw
    assert ["finished"] == statuses(path)
    ledger.note("a folder named for a shell and a terminal", of=folder)
