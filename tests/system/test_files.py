"""Whole writes, new files that follow no link, the lock, and files moved aside."""

import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.system import files
from codeneedle.system.files import (
    CACHE_VARIABLE,
    create,
    emptied,
    holder,
    identity,
    locked,
    made_folder,
    move_aside,
    private_folder,
    read_note,
    read_regular,
    reason_of,
    tail,
    write_note,
    write_whole,
)
from codeneedle.system.orphans import end_orphans
from codeneedle.system.secrets import know


def test_a_file_is_written_whole_its_folders_made(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"

    write_whole(path, b"long and old")
    write_whole(path, b"new")

    assert b"new" == path.read_bytes()
    assert [path] == list(path.parent.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_write_that_does_not_end_well_changes_nothing(
    tmp_path, monkeypatch, error, there
):
    path = tmp_path / "file.json"
    if there:
        path.write_bytes(b"old")

    def fail(_descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(error)):
        write_whole(path, b"new")

    assert [path] * there == list(tmp_path.iterdir())
    assert not there or path.read_bytes() == b"old"


@pytest.mark.parametrize(
    "plant",
    [
        os.mkfifo,
        lambda path: path.symlink_to("victim"),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_a_planted_link_or_pipe_is_replaced_and_no_target_touched(tmp_path, plant):
    """Opening a pipe would wait for a reader."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    plant(tmp_path / "file")

    write_whole(tmp_path / "file", b"new")

    assert b"new" == (tmp_path / "file").read_bytes()
    assert b"precious" == victim.read_bytes()
    assert {"file", "victim"} == {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "file").is_symlink()


def test_a_link_that_comes_back_is_not_followed(tmp_path, monkeypatch):
    """Another process may create it between our unlink and open."""
    victim, link = tmp_path / "victim", tmp_path / "link"
    link.symlink_to("victim")
    monkeypatch.setattr(type(link), "unlink", lambda *_, **__: None)

    for victim_is_there in (False, True):
        if victim_is_there:
            victim.write_bytes(b"precious")
        with pytest.raises(FileExistsError):
            create(link)

    assert b"precious" == victim.read_bytes()


def test_the_end_of_a_log_is_read_as_text(tmp_path):
    """What is no UTF-8 is replaced; of a missing file, and of a pipe, it is empty."""
    path = tmp_path / "log"
    path.write_bytes(b"abcd\xff")
    os.mkfifo(tmp_path / "pipe")

    assert ["d\ufffd", "abcd\ufffd"] == [tail(path, limit) for limit in (2, 9)]
    assert ["", ""] == [tail(tmp_path / name, 9) for name in ("none", "pipe")]


def test_the_end_of_a_log_tells_no_secret_that_takes_three_lines(tmp_path):
    know("sk-0123456789abcdef")
    (tmp_path / "log").write_text("began\nsk-01234\n56789a\nbcdef\n")

    assert "began\n********\n******\n*****\n" == tail(tmp_path / "log", 99)


def test_a_created_file_is_appended_to(tmp_path):
    path = tmp_path / "log"
    path.write_text("of yesterday")
    with create(path) as ours:
        with path.open("ab") as other:
            other.write(b"a")
        ours.write(b"b")

    assert b"ab" == path.read_bytes()


def test_a_file_is_read_and_nothing_is_nothing(tmp_path):
    (tmp_path / "file").write_bytes(b"{}")
    (tmp_path / "link").symlink_to("nowhere")

    assert b"{}" == read_regular(tmp_path / "file")
    assert None is read_regular(tmp_path / "none")
    assert None is read_regular(tmp_path / "link")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path.name), "symbolic links"),
    ],
)
def test_what_is_not_a_regular_file_is_not_read(tmp_path, make, reason):
    make(tmp_path / "file")

    with pytest.raises(OSError, match=r".") as caught:
        read_regular(tmp_path / "file")

    assert reason in reason_of(caught.value)


@pytest.mark.parametrize("damage", [b"", b"{", b'["7"]', b"\xff", b"[" * 100_000])
def test_a_note_is_read_unless_it_is_damaged_and_need_not_be_written(tmp_path, damage):
    note = tmp_path / "cache" / "note.json"
    write_note(note, [7])
    found = read_note(note, list[int])
    note.write_bytes(damage)
    write_note(note / "no" / "folder.json", [7])

    assert [7] == found
    assert None is read_note(note, list[int])
    assert None is read_note(tmp_path / "none", list[int])


def test_a_file_moved_aside_replaces_nothing(tmp_path):
    (tmp_path / "file.damaged-3").symlink_to("nowhere")
    moved = []
    for content in ("a", "b", "c"):
        (tmp_path / "file").write_text(content)
        moved.append(move_aside(tmp_path / "file", "damaged"))

    assert ["file.damaged", "file.damaged-2", "file.damaged-4"] == [
        path.name for path in moved
    ]
    assert ["a", "b", "c"] == [path.read_text() for path in moved]


def test_a_file_has_another_identity_once_written_to(tmp_path):
    """Even if its length and its time of change are the same."""
    path = tmp_path / "file"
    path.write_bytes(b"a")
    before = identity(path)
    at = path.stat()
    same = identity(path)

    while path.stat().st_ctime_ns == at.st_ctime_ns:
        path.write_bytes(b"b")
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))

    assert same == before
    assert identity(path) != before


def test_a_lock_has_one_holder(tmp_path):
    path = tmp_path / "lock"
    assert "" == holder(path)
    with locked(path), pytest.raises(BlockingIOError), locked(path):
        pass

    assert f"pid {os.getpid()} on {platform.node()}" == holder(path)
    with locked(path, is_shared=True):
        assert "" == holder(path)


def test_a_lock_may_be_waited_for(tmp_path):
    path = tmp_path / "lock"
    holder = locked(path)
    holder.__enter__()
    waits = []

    def waiting():
        waits.append(True)
        if len(waits) == 3:
            holder.__exit__(None, None, None)

    with locked(path, waiting=waiting):
        pass

    assert 3 == len(waits)


def test_a_lock_whose_file_was_taken_away_is_lost(tmp_path):
    path = tmp_path / "lock"
    with locked(path) as lock:
        assert not lock.is_lost()
        path.unlink()
        assert lock.is_lost()
        path.touch()
        assert lock.is_lost()


def test_a_lock_is_neither_waited_for_as_a_pipe_nor_made_behind_a_link(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("victim")

    with locked(tmp_path / "pipe"):
        pass
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "link"):
        pass

    assert not (tmp_path / "victim").exists()


def test_free_disk_is_that_of_the_folder_to_be(tmp_path):
    assert files.free_disk_bytes(tmp_path / "not" / "yet") > 0


@pytest.fixture
def wanted(tmp_path):
    """The path of a folder with one file that belongs to it; neither is there yet."""
    return tmp_path / "cache" / "wanted"


def made(wanted, *, react=lambda: None, **options):
    """Make *wanted* with its file; *react* is called half-way."""

    def make(draft):
        (draft / "scratch").touch()
        (draft / "new").mkdir()
        react()
        (draft / "new" / "file").touch()
        return draft / "new"

    return made_folder(wanted, make, is_whole=(wanted / "file").is_file, **options)


def found_in(folder):
    """All that *folder* holds, but for its lock."""
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(str(path) for path in paths if path.suffix != ".lock")


def test_a_folder_is_made_whole_and_once(wanted):
    (wanted.parent / "wanted.draft-1").mkdir(parents=True)
    wanted.mkdir()

    assert wanted == made(wanted)
    assert wanted == made(wanted, react=lambda: pytest.fail("made again"))
    assert ["wanted", "wanted/file"] == found_in(wanted.parent)


def test_a_folder_that_cannot_be_made_whole_is_not_made(wanted):
    with pytest.raises(KeyboardInterrupt):
        made(wanted, react=lambda: signal.raise_signal(signal.SIGINT))

    assert [] == found_in(wanted.parent)
    assert made(wanted).is_dir()


def test_of_two_at_once_the_second_waits_for_the_first(wanted):
    waits = threading.Event()
    others = []

    def second():
        others.append(
            made(wanted, react=lambda: pytest.fail("made twice"), waiting=waits.set)
        )

    thread = threading.Thread(target=second)
    made(wanted, react=lambda: (thread.start(), waits.wait(30)))
    thread.join(30)

    assert waits.is_set()
    assert [wanted] == others


def test_a_folder_for_which_there_is_no_room_is_not_begun(wanted, monkeypatch):
    monkeypatch.setattr(files, "free_disk_bytes", lambda _: 100)
    words = "only 100 B are free, 101 B are needed"

    with pytest.raises(FolderUnusable, match=words) as full:
        made(wanted, needed_bytes=101)
    wanted.parent.joinpath("wanted.lock").unlink()
    wanted.parent.rmdir()
    wanted.parent.touch()
    with pytest.raises(FolderUnusable, match=r"Not a directory|File exists") as taken:
        made(wanted)

    assert all("CODENEEDLE_CACHE" in each.value.hint for each in (full, taken))


def test_a_tree_of_any_depth_is_removed_and_no_link_in_it_is_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(kept)
    inner = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=inner)
        deeper = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)
    files.removed(top)

    assert [kept] == list(tmp_path.iterdir())
    assert (kept / "file").exists()


def test_a_link_is_no_folder_of_ours(tmp_path):
    (tmp_path / "cells").symlink_to(tmp_path)

    with pytest.raises(BadInput, match="it is a link"):
        files.own_folder(tmp_path / "cells")


def test_an_emptied_folder_holds_nothing_and_no_link_is_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path / "kept")

    emptied(out)

    assert [] == list(out.iterdir())
    assert (tmp_path / "kept" / "file").exists()


TELLS = """
from codeneedle.system.files import private_folder
with private_folder() as folder:
    (folder / "server.log").write_text("what was said")
    print(folder, flush=True)
    input()
"""


def test_what_a_killed_program_kept_private_goes_with_the_next_command(
    tmp_path, monkeypatch
):
    """A server that renders conversations may quote them in its log."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", TELLS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        folder = Path(program.stdout.readline().strip())
        mode = folder.stat().st_mode & 0o777
        end_orphans()
        is_kept_in_use = (folder / "server.log").exists()
        program.kill()
    is_left = (folder / "server.log").exists()
    end_orphans()

    assert (0o700, True, True) == (mode, is_kept_in_use, is_left)
    assert not folder.exists()


def test_a_private_folder_is_gone_after_its_block(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with private_folder() as folder:
        (folder / "log").write_text("what was said")

    assert not folder.exists()


def test_without_a_place_for_a_private_folder_a_hint_names_the_variable(
    tmp_path, monkeypatch
):
    (tmp_path / "cache").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))

    with pytest.raises(FolderUnusable) as caught, private_folder():
        pass

    assert CACHE_VARIABLE in caught.value.hint
