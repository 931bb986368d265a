"""Notes of running children, and the end of those left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import msgspec
import psutil
import pytest
from programs import script

from codeneedle.system import orphans
from codeneedle.system.files import CACHE_VARIABLE, file_size_or_zero
from codeneedle.system.orphans import (
    VARIABLE,
    ChildNote,
    Orphan,
    Process,
    end_orphans_and_clean_up,
    host_identity,
    running_with_note,
    start_for_comparison,
)
from codeneedle.system.processes import free_port
from codeneedle.system.watched import run_with_silence_limit

pytestmark = pytest.mark.slow

MARK = "llama-server.0a1b2c3d"
GONE = Process(pid=2**22 + 1, started=1.0)
OURS = Process(pid=os.getpid(), started=start_for_comparison(os.getpid()) or 0.0)


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    """The folder of the notes, empty."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "running"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def orphan():
    """A child as a killed codeneedle may leave it: marked, in a session of its own."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", "echo up; read forever"],
        env={VARIABLE: MARK},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()  # a process has no environment in its first moments
        yield child
        child.kill()


def note_of(**changes):
    """The note of the orphan, whose owner is gone."""
    return replace(ChildNote(mark=MARK, owner=GONE, host=host_identity()), **changes)


def store(folder, note):
    file = folder / f"{note.mark}.json"
    file.write_bytes(msgspec.json.encode(note))
    return file


def test_an_orphan_is_found_and_ended(orphan, notes):
    store(notes, note_of())

    assert [Orphan("llama-server", orphan.pid)] == orphans.orphans()
    assert orphan.poll() is None
    assert [Orphan("llama-server", orphan.pid)] == end_orphans_and_clean_up()
    assert -signal.SIGINT == orphan.wait()
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"owner": OURS}, {"host": "another"}],
    ids=["its owner lives", "another host"],
)
def test_the_note_of_a_living_owner_or_another_host_is_void(orphan, notes, change):
    file = store(notes, note_of(**change))

    assert [] == orphans.orphans()
    assert [] == end_orphans_and_clean_up()
    assert orphan.poll() is None
    assert file.exists()


def test_an_owner_that_is_a_zombie_is_gone(orphan, notes):
    """Killed, and not yet waited for by whoever started it."""
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = Process(pid=owner.pid, started=start_for_comparison(owner.pid) or 0.0)
    store(notes, note_of(owner=known))
    before = end_orphans_and_clean_up()
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)

    after = end_orphans_and_clean_up()
    owner.communicate()

    assert ([], [Orphan("llama-server", orphan.pid)]) == (before, after)


def test_a_process_with_another_mark_is_left_alone(orphan, notes):
    file = store(notes, note_of(mark="llama-server.ffffffff"))

    assert [] == end_orphans_and_clean_up()
    assert orphan.poll() is None
    assert not file.exists()


def test_our_own_process_group_is_never_ended(notes, monkeypatch):
    """Whatever a note says: codeneedle may run in a child of another one."""
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {VARIABLE: MARK})
    monkeypatch.setattr(psutil, "pids", lambda: [os.getpid()])

    assert [] == note_of().find_marked_groups()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"pid": 1}', "[" * 100_000),
        *(
            json.dumps(
                {
                    "mark": mark,
                    "owner": {"pid": pid, "started": 1.0},
                    "host": host_identity(),
                }
            )
            for mark, pid in [
                *((MARK, pid) for pid in (-1, 0, 1, 2**31, 2**70)),
                *((mark, 7) for mark in ("", "llama-server", "../x.0a1b2c3d")),
            ]
        ),
    ],
)
def test_a_note_that_is_none_is_removed(notes, content):
    (notes / "x.json").write_text(content)
    os.mkfifo(notes / "y.json")

    assert [] == end_orphans_and_clean_up()
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize("has_note", [True, False])
def test_a_draft_that_a_sigkill_left_is_removed(orphan, notes, has_note):
    file = store(notes, note_of())
    draft = file.with_suffix(".json.draft")
    draft.write_bytes(file.read_bytes())
    (notes / "x.0a1b2c3d.json.draft").write_bytes(file.read_bytes()[:50])
    if not has_note:
        file.unlink()

    found = orphans.orphans()

    assert [Orphan("llama-server", orphan.pid)] == found == end_orphans_and_clean_up()
    assert [] == list(notes.iterdir())


def test_the_draft_of_a_living_owner_stays(notes):
    draft = store(notes, ChildNote(mark=MARK, owner=OURS, host=host_identity()))
    draft = draft.rename(draft.with_suffix(".json.draft"))

    assert [] == end_orphans_and_clean_up()
    assert draft.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("serve", "--port"), "llama serve"),
        (("fit-params",), "llama fit-params"),
        (("--version",), "llama"),
        (("some.gguf",), "llama"),
        ((), "llama"),
    ],
)
def test_a_program_of_subcommands_is_noted_with_the_one_that_runs(
    tmp_path, notes, words, expected
):
    program = script(tmp_path / "llama", "exec sleep 60")
    argv = [str(program), *words]
    with running_with_note(argv, env={}, log=tmp_path / "log"):
        (file,) = notes.iterdir()
        note = msgspec.json.decode(file.read_bytes(), type=ChildNote)

    assert expected == note.program


def test_a_child_is_noted_while_it_runs(tmp_path, notes):
    with running_with_note(["/bin/cat"], env={}, log=tmp_path / "cat.log") as child:
        child.wait()
    with running_with_note(
        ["/bin/sleep", "60"], env={}, log=tmp_path / "sleep.log"
    ) as child:
        (file,) = notes.iterdir()
        note = msgspec.json.decode(file.read_bytes(), type=ChildNote)
        # The system shows the environment of a child a moment after its start.
        while not note.find_marked_groups():
            assert child.poll() is None

        assert [child.pid] == note.find_marked_groups()
    assert ("sleep", OURS) == (note.program, note.owner)
    assert file.stem == note.mark
    assert [] == list(notes.iterdir())


SERVER = """\
import os, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    print(os.getpid(), file=open(sys.argv[2], "w"), flush=True)
    sys.stdin.read()
"""
"""Listens on a port, writes its pid, and stays."""

LEAVING = {
    "a session of its own": 'setsid {python} -c "$SERVER" {port} {pid} </dev/zero &',
    "a double fork": '(setsid sh -c "(exec {python} -c \\"\\$SERVER\\" {port} {pid}'
    ' </dev/zero >/dev/null 2>&1 &)")',
}
"""How a start command leaves a process behind that bears the mark."""


def left_by(script, tmp_path):
    """What a start command of that *script* leaves; None if it was ended."""
    pid, port = tmp_path / "pid", free_port("127.0.0.1")
    script = script.format(python=sys.executable, port=port, pid=pid)
    waiting = f'{script}\nwhile ! [ -s "{pid}" ]; do sleep 0.01; done; exit 0'
    with running_with_note(
        ["/bin/sh", "-c", waiting],
        env={"PATH": os.environ["PATH"], "SERVER": SERVER},
        log=tmp_path / "log",
    ) as child:
        child.wait()
    return psutil.Process(int(pid.read_text())) if alive(pid) else None


def alive(pid):
    """Whether the process of the number in the file *pid* runs."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(int(pid.read_text())).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("script", LEAVING.values(), ids=LEAVING)
def test_what_a_start_command_leaves_behind_is_ended(tmp_path, notes, script):
    assert None is left_by(script, tmp_path)
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize(
    ("script", "limits", "expected"),
    [
        ("exit 3", {"silence_s": 60}, 3),
        ("sleep 60", {"silence_s": 0.1}, None),
        (
            "for _ in 1 2 3 4 5 6 7 8; do sleep 0.2; echo on >> more; done",
            {"silence_s": 0.9},
            0,
        ),
    ],
    ids=["it ends", "it is silent", "another file grows"],
)
def test_a_program_is_watched_until_it_ends_or_stops_writing(
    tmp_path, script, limits, expected
):
    seen = []
    more = tmp_path / "more"
    script = script.replace("more", str(more))

    found = run_with_silence_limit(
        ["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        log=tmp_path / "log",
        written=lambda: file_size_or_zero(more),
        grown=lambda: seen.append(more.exists()),
        **limits,
    )

    assert expected == found
    assert any(seen) == more.exists()


def test_the_note_of_a_child_that_will_not_end_stays(tmp_path, notes, monkeypatch):
    monkeypatch.setattr(ChildNote, "find_marked_groups", lambda _: [2**22 + 1])
    with running_with_note(["/bin/cat"], env={}, log=tmp_path / "log"):
        pass

    assert 1 == len(list(notes.iterdir()))


def test_a_cache_folder_that_takes_no_file_is_no_obstacle(tmp_path, notes):
    notes.rmdir()
    notes.touch()
    with running_with_note(["/bin/sleep", "60"], env={}, log=tmp_path / "log") as child:
        assert child.poll() is None

    assert not psutil.pid_exists(child.pid)
