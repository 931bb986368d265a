"""Folders are made whole and once, and removed without following a link."""

import os
import signal
import threading

import pytest

from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.system import files
from codeneedle.system.files import ensure_whole_folder, make_or_empty_folder


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

    return ensure_whole_folder(
        wanted, make, is_whole=(wanted / "file").is_file, **options
    )


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
            made(
                wanted,
                react=lambda: pytest.fail("made twice"),
                waiting=waits.set,
            )
        )

    thread = threading.Thread(target=second)
    made(wanted, react=lambda: (thread.start(), waits.wait(30)))
    thread.join(30)

    assert waits.is_set()
    assert [wanted] == others


def test_a_folder_for_which_there_is_no_room_is_not_begun(wanted, leave_free, golden):
    leave_free(100)

    with pytest.raises(FolderUnusable) as full:
        made(wanted, needed_bytes=101)
    wanted.parent.joinpath("wanted.lock").unlink()
    wanted.parent.rmdir()
    wanted.parent.touch()
    with pytest.raises(FolderUnusable, match=r"Not a directory|File exists") as taken:
        made(wanted)

    assert golden == str(full.value)
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
    files.remove_folder(top)

    assert [kept] == list(tmp_path.iterdir())
    assert (kept / "file").exists()


def test_a_link_is_no_folder_of_ours(tmp_path, golden):
    (tmp_path / "cells").symlink_to(tmp_path)

    with pytest.raises(BadInput) as caught:
        files.refuse_linked_folder(tmp_path / "cells")
    assert golden == str(caught.value)


def test_an_emptied_folder_holds_nothing_and_no_link_is_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path / "kept")

    make_or_empty_folder(out)

    assert [] == list(out.iterdir())
    assert (tmp_path / "kept" / "file").exists()
