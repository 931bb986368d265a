"""The built-in model's file: the same bytes everywhere, whole or made again."""

import hashlib

import pytest

from codeneedle.nano import SHA256, CacheNotWritable, built_in_model


def test_the_file_has_the_pinned_bytes_each_time_it_is_made(tmp_path):
    """Two assemblies give the same bytes, and they are the ones that are pinned."""
    made = [built_in_model(tmp_path / name) for name in ("one", "two")]

    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in made]

    assert [SHA256, SHA256] == hashes


def test_a_file_that_is_there_is_not_made_again(tmp_path):
    """A whole file in the cache is used as it is."""
    first = built_in_model(tmp_path)
    before = first.stat()

    again = built_in_model(tmp_path)

    assert (first, before.st_ino, before.st_mtime_ns) == (
        again,
        again.stat().st_ino,
        again.stat().st_mtime_ns,
    )


@pytest.mark.parametrize("damage", [b"", b"GGUF half of it"])
def test_a_damaged_file_is_replaced(tmp_path, damage):
    """A file whose bytes are not the model's is made again, and nothing else stays."""
    path = built_in_model(tmp_path)
    path.write_bytes(damage)

    again = built_in_model(tmp_path)

    assert SHA256 == hashlib.sha256(again.read_bytes()).hexdigest()
    assert [path] == list(tmp_path.iterdir())


def test_the_cache_folder_is_taken_from_the_environment(tmp_path, monkeypatch):
    """CODENEEDLE_CACHE names the folder in which the file is kept."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "mine"))

    assert tmp_path / "mine" == built_in_model().parent


def test_a_cache_that_takes_no_files_is_named_with_a_way_out(tmp_path):
    """A cache folder that cannot be is reported with the variable that moves it."""
    (tmp_path / "file").touch()

    with pytest.raises(CacheNotWritable) as caught:
        built_in_model(tmp_path / "file")

    assert str(tmp_path / "file") in str(caught.value)
    assert "CODENEEDLE_CACHE" in caught.value.hint
