"""Hashes of model files: remembered, and not to be fooled."""

import hashlib
import os

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf

from codeneedle.models.weights import (
    WeightsInMotion,
    WeightsMissing,
    WeightsReplaced,
    read_header,
    refuse_replaced,
    sha256,
)
from codeneedle.system.files import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_a_hash_is_that_of_the_bytes_and_is_remembered(tmp_path):
    """
    The second time nothing is read; a change of the file is noticed.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    seen = []

    def progress(done, total):
        seen.append((done, total))

    first = sha256(found, progress=progress)
    again = sha256(found, progress=progress)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == first == again
    assert [(found.size_bytes, found.size_bytes)] == seen

    write_gguf(path, tensors=2)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256(read_header(path))


def test_a_damaged_note_of_a_hash_is_made_again(tmp_path):
    """
    What stands in the cache is believed only if it looks like a hash.
    """
    found = read_header(write_gguf(tmp_path / "m.gguf"))
    right = sha256(found)
    for note in (cache_folder() / "weights").iterdir():
        note.write_text('{"sha256": 7}')

    assert right == sha256(found)


def disguise(path, data):
    """Put *data* at *path*, with the size and the times that were there."""
    was = path.stat()
    path.write_bytes(data)
    # Until the clock of the file system has ticked.
    while path.stat().st_ctime_ns == was.st_ctime_ns:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def other(data):
    """As long as *data*, and with another last byte."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_replaced_file_of_equal_size_and_time_has_another_hash(tmp_path):
    """
    The time that its inode changed cannot be set.
    """
    path = write_gguf(tmp_path / "m.gguf")
    first = sha256(read_header(path))
    size, time = path.stat().st_size, path.stat().st_mtime_ns

    disguise(path, other(gguf_bytes()))

    assert (size, time) == (path.stat().st_size, path.stat().st_mtime_ns)
    assert first != sha256(read_header(path))


def test_weights_that_nothing_touched_are_not_read_again(tmp_path, monkeypatch):
    """
    The look at them between two cells costs next to nothing.
    """
    found = read_header(write_gguf(tmp_path / "m.gguf"))
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "none"))

    refuse_replaced(found, expected="not looked at")

    assert not (tmp_path / "none").exists()


def test_weights_that_were_replaced_are_refused_naming_both_hashes(tmp_path):
    """
    Even if size and time are the same.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    was = sha256(found)
    disguise(path, other(gguf_bytes()))
    now = hashlib.sha256(path.read_bytes()).hexdigest()

    with pytest.raises(WeightsReplaced) as caught:
        refuse_replaced(found, expected=was)

    assert was[:12] in str(caught.value)
    assert now[:12] in str(caught.value)
    assert 2 == caught.value.exit_code


def test_weights_that_were_replaced_by_themselves_are_the_same(tmp_path):
    """
    A copy put in their place, a link to them, a change of who may read them.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    was = sha256(found)
    (tmp_path / "copy").write_bytes(path.read_bytes())

    (tmp_path / "copy").replace(path)
    refuse_replaced(found, expected=was)
    os.link(path, tmp_path / "link")
    path.chmod(0o600)
    refuse_replaced(found, expected=was)


def test_weights_that_vanish_are_missed(tmp_path):
    """
    The path is named.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    path.unlink()

    with pytest.raises(WeightsMissing, match=r"m\.gguf"):
        refuse_replaced(found, expected="any")


def test_weights_that_change_while_they_are_hashed_have_no_hash(tmp_path):
    """
    Half of one file and half of another is neither.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)

    def rewrite(_done, _total):
        disguise(path, other(path.read_bytes()))

    with pytest.raises(WeightsInMotion):
        sha256(found, progress=rewrite)

    assert [] == list(cache_folder().glob("weights/*"))


def test_a_link_that_is_made_meanwhile_is_no_change(tmp_path):
    """
    They are hashed once more, and have the hash of what they hold.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    was = path.stat().st_ctime_ns

    def link(_done, _total):
        while path.stat().st_ctime_ns == was:
            (tmp_path / "backup").unlink(missing_ok=True)
            os.link(path, tmp_path / "backup")

    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256(found, progress=link)


def test_weights_are_hashed_only_while_their_header_holds(tmp_path):
    """
    What was planned by the old header is no plan for the new file.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)
    disguise(path, other(gguf_bytes()))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256(found)

    write_gguf(path, SHAPE | {"llama.context_length": 4096})
    with pytest.raises(WeightsInMotion, match="changes while it is read"):
        sha256(found)
