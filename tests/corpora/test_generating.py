"""Generated corpora on disk."""

import hashlib

import pytest

from codeneedle.corpora.random_bodies import BadKnob, Knobs, text_of, write
from codeneedle.errors import FolderUnusable

FEW = Knobs(functions=2, value_length=6, name_length=5, lines=20, seed=7)


def test_a_corpus_is_written_and_told_with_its_hash(tmp_path):
    """
    What is told is true of the file.
    """
    path = tmp_path / "new" / "bodies.py"

    written = write(FEW, path)

    data = path.read_bytes()
    assert text_of(FEW).encode() == data
    assert hashlib.sha256(data).hexdigest() == written.sha256
    assert len(data) == written.size_bytes
    assert f"{path}: 2 functions, " in str(written)
    assert str(written).endswith(written.sha256)


def test_what_was_there_is_replaced(tmp_path):
    """
    By the same bytes for the same knobs.
    """
    path = tmp_path / "bodies.py"
    write(Knobs(functions=1, seed=1), path)

    assert write(FEW, path).sha256 == write(FEW, path).sha256
    assert text_of(FEW) == path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """
    As an error of this machine, with a hint.
    """
    (tmp_path / "file").write_text("")

    with pytest.raises(FolderUnusable) as caught:
        write(FEW, tmp_path / "file" / "bodies.py")

    assert str(tmp_path / "file") in str(caught.value)
    assert 3 == caught.value.exit_code


def test_knobs_that_cannot_be_write_nothing(tmp_path):
    """
    Not even a folder.
    """
    with pytest.raises(BadKnob):
        write(Knobs(functions=0), tmp_path / "new" / "bodies.py")

    assert [] == list(tmp_path.iterdir())
