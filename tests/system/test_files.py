"""Files that are there whole or not at all."""

import os

import pytest

from codeneedle.system.files import write_whole


def test_a_file_is_written_whole_its_folders_made(tmp_path):
    """
    Nothing but the file is left.
    """
    path = tmp_path / "a" / "b" / "file.json"

    write_whole(path, b"{}")

    assert b"{}" == path.read_bytes()
    assert [path] == list(path.parent.iterdir())


def test_what_was_there_is_replaced(tmp_path):
    """
    A shorter text leaves nothing of a longer one.
    """
    path = tmp_path / "file.json"
    write_whole(path, b"long and old")

    write_whole(path, b"new")

    assert b"new" == path.read_bytes()


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_write_that_does_not_end_well_changes_nothing(
    tmp_path, monkeypatch, error, there
):
    """
    What was there stays, what was not there is not; no draft is left either way.
    """
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


def test_a_draft_that_was_left_behind_is_in_nobodys_way(tmp_path):
    """
    A machine that stopped in the middle leaves one.
    """
    path = tmp_path / "file.json"
    (tmp_path / "file.json.draft").write_bytes(b"half of something far longer")

    write_whole(path, b"new")

    assert [b"new"] == [each.read_bytes() for each in tmp_path.iterdir()]
