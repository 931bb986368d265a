"""Weights are known by a hash, which is remembered and noticed when they change."""

import hashlib
import os

import pytest
from gguf_files import SHAPE, disguise, gguf_bytes, other, write_gguf

from codeneedle.errors import BadInput, WeightsUnusable
from codeneedle.models.weights import (
    load_or_compute_sha256,
    read_weights_from_headers,
    refuse_replaced,
)
from codeneedle.system.files import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_a_hash_is_that_of_the_bytes_and_is_remembered(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)
    seen = []

    def progress(done, total):
        seen.append((done, total))

    first = load_or_compute_sha256(found, progress=progress)
    again = load_or_compute_sha256(found, progress=progress)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == first == again
    assert [(found.size_bytes, found.size_bytes)] == seen


def test_hashing_can_be_interrupted_at_any_chunk(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    os.truncate(path, 9 << 20)
    found = read_weights_from_headers(path)
    seen = []

    def interrupted(done, total):
        seen.append((done, total))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_or_compute_sha256(found, progress=interrupted)

    assert [(4 << 20, 9 << 20)] == seen
    assert not (cache_folder() / "weights").exists()


def test_weights_that_were_replaced_are_refused_naming_both_hashes(tmp_path):
    """Size and time may be equal: the time that the inode changed cannot be set."""
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)
    was = load_or_compute_sha256(found)
    disguise(path, other(gguf_bytes()))
    now = load_or_compute_sha256(read_weights_from_headers(path))

    with pytest.raises(BadInput, match="other weights") as caught:
        refuse_replaced(found, expected=was)

    assert was != now == hashlib.sha256(path.read_bytes()).hexdigest()
    assert was[:12] in str(caught.value)
    assert now[:12] in str(caught.value)
    path.unlink()
    with pytest.raises(WeightsUnusable, match=r"m\.gguf does not exist"):
        refuse_replaced(found, expected="any")


def test_weights_that_were_replaced_by_themselves_are_the_same(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)
    refuse_replaced(found, expected="not looked at")
    was = load_or_compute_sha256(found)
    (tmp_path / "copy").write_bytes(path.read_bytes())

    (tmp_path / "copy").replace(path)
    refuse_replaced(found, expected=was)
    os.link(path, tmp_path / "link")
    path.chmod(0o600)
    refuse_replaced(found, expected=was)


def test_weights_that_change_while_they_are_hashed_have_no_hash(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)

    def rewrite(_done, _total):
        disguise(path, other(path.read_bytes()))

    with pytest.raises(WeightsUnusable, match="changes while"):
        load_or_compute_sha256(found, progress=rewrite)

    assert [] == list(cache_folder().glob("weights/*"))


def test_a_link_that_is_made_meanwhile_is_no_change(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)
    was = path.stat().st_ctime_ns

    def link(_done, _total):
        while path.stat().st_ctime_ns == was:
            (tmp_path / "backup").unlink(missing_ok=True)
            os.link(path, tmp_path / "backup")

    assert hashlib.sha256(path.read_bytes()).hexdigest() == load_or_compute_sha256(
        found, progress=link
    )


def test_weights_are_hashed_only_while_their_header_holds(tmp_path, golden):
    path = write_gguf(tmp_path / "m.gguf")
    found = read_weights_from_headers(path)
    disguise(path, other(gguf_bytes()))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == load_or_compute_sha256(
        found
    )

    write_gguf(path, SHAPE | {"llama.context_length": 4096})
    with pytest.raises(WeightsUnusable) as caught:
        load_or_compute_sha256(found)

    assert golden == str(caught.value)


def test_weights_that_are_gone_are_answered_with_the_option_that_names_them(tmp_path):
    with pytest.raises(WeightsUnusable, match="does not exist") as caught:
        read_weights_from_headers(tmp_path / "gone" / "moved.gguf")

    assert caught.value.hint.endswith(": --model PATH")
