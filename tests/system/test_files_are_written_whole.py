"""Files are written whole, follow no link, and are read only if they are files."""

import os

import pytest

from codeneedle.system.files import (
    file_state_text,
    masked_log_tail,
    move_aside,
    read_json_or_none,
    read_regular,
    reason_of,
    replace_with_empty_file,
    write_atomically,
    write_json_if_possible,
)
from codeneedle.system.secrets import register_secrets_to_mask


def test_a_file_is_written_whole_its_folders_made(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"

    write_atomically(path, b"long and old")
    write_atomically(path, b"new")

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
        write_atomically(path, b"new")

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

    write_atomically(tmp_path / "file", b"new")

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
            replace_with_empty_file(link)

    assert b"precious" == victim.read_bytes()


def test_the_end_of_a_log_is_read_as_text(tmp_path):
    """What is no UTF-8 is replaced; of a missing file, and of a pipe, it is empty."""
    path = tmp_path / "log"
    path.write_bytes(b"abcd\xff")
    os.mkfifo(tmp_path / "pipe")

    assert ["d\ufffd", "abcd\ufffd"] == [
        masked_log_tail(path, limit) for limit in (2, 9)
    ]
    assert ["", ""] == [
        masked_log_tail(tmp_path / name, 9) for name in ("none", "pipe")
    ]


def test_the_end_of_a_log_tells_no_secret_that_takes_three_lines(tmp_path):
    register_secrets_to_mask("sk-0123456789abcdef")
    (tmp_path / "log").write_text("began\nsk-01234\n56789a\nbcdef\n")

    assert "began\n********\n******\n*****\n" == masked_log_tail(tmp_path / "log", 99)


def test_a_created_file_is_appended_to(tmp_path):
    path = tmp_path / "log"
    path.write_text("of yesterday")
    with replace_with_empty_file(path) as ours:
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
    "make",
    [
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.name),
    ],
    ids=["folder", "pipe", "device", "loop"],
)
def test_what_is_not_a_regular_file_is_not_read(tmp_path, make, golden):
    make(tmp_path / "file")

    with pytest.raises(OSError, match=r".") as caught:
        read_regular(tmp_path / "file")

    assert golden == reason_of(caught.value)


@pytest.mark.parametrize("damage", [b"", b"{", b'["7"]', b"\xff", b"[" * 100_000])
def test_a_note_is_read_unless_it_is_damaged_and_need_not_be_written(tmp_path, damage):
    note = tmp_path / "cache" / "note.json"
    write_json_if_possible(note, [7])
    found = read_json_or_none(note, list[int])
    note.write_bytes(damage)
    write_json_if_possible(note / "no" / "folder.json", [7])

    assert [7] == found
    assert None is read_json_or_none(note, list[int])
    assert None is read_json_or_none(tmp_path / "none", list[int])


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
    before = file_state_text(path)
    at = path.stat()
    same = file_state_text(path)

    while path.stat().st_ctime_ns == at.st_ctime_ns:
        path.write_bytes(b"b")
        os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))

    assert same == before
    assert file_state_text(path) != before
