"""Notes of running children, and the end of those left behind."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import msgspec
import psutil
import pytest

from codeneedle.system import orphans
from codeneedle.system.files import CACHE_VARIABLE
from codeneedle.system.orphans import (
    VARIABLE,
    Note,
    Orphan,
    Process,
    end_orphans,
    noted,
    started_at,
    this_host,
    watched,
)

MARK = "llama-server.0a1b2c3d"
GONE = Process(pid=2**22 + 1, started=1.0)
OURS = Process(pid=os.getpid(), started=started_at(os.getpid()) or 0.0)


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


def note_of(orphan):
    """The note of *orphan*, whose owner is gone."""
    child = Process(pid=orphan.pid, started=started_at(orphan.pid) or 0.0)
    return Note(mark=MARK, owner=GONE, host=this_host(), child=child)


def store(folder, note):
    file = folder / f"{note.mark}.json"
    file.write_bytes(msgspec.json.encode(note))
    return file


@pytest.mark.parametrize("is_known", [True, False])
def test_an_orphan_is_found_and_ended(orphan, notes, is_known):
    """
    By its pid, or by its mark alone if its owner was killed before it noted the pid.
    """
    note = note_of(orphan)
    store(notes, note if is_known else replace(note, child=None))

    assert [Orphan("llama-server", orphan.pid)] == orphans.orphans()
    assert orphan.poll() is None
    assert [Orphan("llama-server", orphan.pid)] == end_orphans()
    assert -signal.SIGINT == orphan.wait()
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"owner": OURS}, {"host": "another"}],
    ids=["its owner lives", "another host"],
)
def test_the_note_of_a_living_owner_or_another_host_is_void(orphan, notes, change):
    """
    It ends nobody, and stays.
    """
    file = store(notes, replace(note_of(orphan), **change))

    assert [] == orphans.orphans()
    assert [] == end_orphans()
    assert orphan.poll() is None
    assert file.exists()


def test_an_owner_that_is_a_zombie_is_gone(orphan, notes):
    """
    Killed, and not yet waited for by whoever started it.
    """
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    known = Process(pid=owner.pid, started=started_at(owner.pid) or 0.0)
    store(notes, replace(note_of(orphan), owner=known))
    before = end_orphans()
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)

    after = end_orphans()
    owner.communicate()

    assert ([], [Orphan("llama-server", orphan.pid)]) == (before, after)


@pytest.mark.parametrize(
    "change",
    [
        {"started": 1.0},
        {"mark": "llama-server.ffffffff"},
        {"pid": os.getpid(), "started": OURS.started},
    ],
)
def test_a_stranger_with_the_same_pid_is_left_alone(orphan, notes, change):
    """
    One fact that differs is enough; only the note goes.
    """
    note = note_of(orphan)
    child = replace(note.child, **{k: v for k, v in change.items() if k != "mark"})
    file = store(notes, replace(note, child=child, mark=change.get("mark", MARK)))

    assert [] == end_orphans()
    assert orphan.poll() is None
    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"pid": 1}', "[" * 100_000),
        *(
            json.dumps(
                {
                    "mark": mark,
                    "owner": {"pid": 7, "started": 1.0},
                    "host": this_host(),
                    "child": {"pid": pid, "started": 1.0},
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
    """
    No process is ended for it. One that is a pipe is not waited for.
    """
    (notes / "x.json").write_text(content)
    os.mkfifo(notes / "y.json")

    assert [] == end_orphans()
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize("has_note", [True, False])
def test_a_draft_that_a_sigkill_left_is_removed(orphan, notes, has_note):
    """
    With the child that it names, if that runs; what is cut short names none.
    """
    file = store(notes, note_of(orphan))
    draft = file.with_suffix(".json.draft")
    draft.write_bytes(file.read_bytes())
    (notes / "x.0a1b2c3d.json.draft").write_bytes(file.read_bytes()[:50])
    if not has_note:
        file.unlink()

    found = orphans.orphans()

    assert [Orphan("llama-server", orphan.pid)] == found == end_orphans()
    assert [] == list(notes.iterdir())


def test_the_draft_of_a_living_owner_stays(notes):
    """
    It is about to become the note.
    """
    draft = store(notes, Note(mark=MARK, owner=OURS, host=this_host()))
    draft = draft.rename(draft.with_suffix(".json.draft"))

    assert [] == end_orphans()
    assert draft.exists()


def test_a_child_is_noted_while_it_runs(tmp_path, notes):
    """
    With its owner and its mark; the note is gone with it.
    """
    with noted(["/bin/cat"], env={}, log=tmp_path / "cat.log") as child:
        child.wait()
    with noted(["/bin/sleep", "60"], env={}, log=tmp_path / "sleep.log") as child:
        (file,) = notes.iterdir()
        note = msgspec.json.decode(file.read_bytes(), type=Note)
        # The system shows the environment of a child a moment after its start.
        while note.pid() is None:
            assert child.poll() is None

    assert note.child
    assert (child.pid, "sleep", OURS) == (note.child.pid, note.program, note.owner)
    assert file.stem == note.mark
    assert [] == list(notes.iterdir())


@pytest.mark.parametrize(
    ("script", "limits", "expected"),
    [
        ("exit 3", {"silence_s": 60}, 3),
        ("sleep 60", {"silence_s": 0.1}, None),
        ("while sleep 0.05; do echo on; done", {"silence_s": 60, "longest_s": 1}, None),
        (
            "for _ in 1 2 3 4 5 6 7 8; do sleep 0.2; echo on >> more; done",
            {"silence_s": 0.9},
            0,
        ),
    ],
    ids=["it ends", "it is silent", "it has no end", "another file grows"],
)
def test_a_program_is_watched_until_it_ends_or_stops_writing(
    tmp_path, monkeypatch, script, limits, expected
):
    """
    Its exit code; None for one that took too long and was ended.
    """
    monkeypatch.setattr(orphans, "POLL_S", 0.02)
    seen = []
    more = tmp_path / "more"
    script = script.replace("more", str(more))

    found = watched(
        ["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        files=(tmp_path / "log", more),
        grown=lambda: seen.append(more.exists()),
        **limits,
    )

    assert expected == found
    assert any(seen) == more.exists()


def test_the_note_of_a_child_that_will_not_end_stays(tmp_path, notes, monkeypatch):
    """
    The next command finds it.
    """
    monkeypatch.setattr(Note, "pid", lambda _: 4711)
    with noted(["/bin/cat"], env={}, log=tmp_path / "log"):
        pass

    assert 1 == len(list(notes.iterdir()))


def test_a_cache_folder_that_takes_no_file_is_no_obstacle(tmp_path, notes):
    """
    The child is killed together with us all the same.
    """
    notes.rmdir()
    notes.touch()
    with noted(["/bin/sleep", "60"], env={}, log=tmp_path / "log") as child:
        assert child.poll() is None

    assert not psutil.pid_exists(child.pid)
