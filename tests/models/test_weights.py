"""Model files: whole ones are read, others are named for what they are."""

import hashlib
import os
import re

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf

from codeneedle.errors import BadInput, WeightsUnusable
from codeneedle.models.weights import (
    read_header,
    refuse_replaced,
    sha256,
    short_name,
)
from codeneedle.system.files import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_the_shape_of_a_model_is_read(tmp_path):
    """
    Head sizes default to the embedding shared out among the heads.
    """
    found = read_header(write_gguf(tmp_path / "m.gguf"))

    assert ("llama", 4, 256) == (found.architecture, found.layers, found.embedding)
    assert (4, 4, 4, 4) == found.heads
    assert (2, 2, 2, 2) == found.kv_heads
    assert (64, 64) == (found.key_length, found.value_length)
    assert 8192 == found.training_context
    assert 3 == found.vocabulary
    assert found.chat_template is None
    assert tmp_path / "m.gguf" == found.path
    assert (tmp_path / "m.gguf").stat().st_size == found.size_bytes


def test_numbers_may_differ_from_layer_to_layer(tmp_path):
    """
    KV heads written as a list come back per layer; a drafting layer is not counted.
    """
    keys = {
        **SHAPE,
        "llama.attention.head_count_kv": [2, 0, 2, 2],
        "llama.nextn_predict_layers": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    found = read_header(write_gguf(tmp_path / "m.gguf", keys))

    assert 3 == found.layers
    assert (2, 0, 2) == found.kv_heads
    assert "{{ messages }}" == found.chat_template


def test_a_missing_file_offers_its_neighbours(tmp_path):
    """
    A typo in a name is met with the nearest name there is.
    """
    write_gguf(tmp_path / "qwen3-4b-q4_k_m.gguf")

    with pytest.raises(WeightsUnusable, match="does not exist") as caught:
        read_header(tmp_path / "qwen3-4b-q4_k_n.gguf")

    assert "Did you mean 'qwen3-4b-q4_k_m.gguf'?" == caught.value.hint


def test_a_folder_offers_the_models_in_it(tmp_path):
    """
    A split model is offered by its first part, a projector not at all.
    """
    for name in ("b-00001-of-00002", "b-00002-of-00002", "a", "mmproj-a"):
        write_gguf(tmp_path / f"{name}.gguf")

    with pytest.raises(WeightsUnusable, match="is a folder") as caught:
        read_header(tmp_path)

    assert f"In it: {tmp_path}/a.gguf, {tmp_path}/b-00001-of-00002.gguf." == (
        caught.value.hint
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<html><body>Not found</body></html>", "a web page"),
        (bytes(4096), "zeros"),
        (b"GG", "a text file"),
    ],
)
def test_what_is_no_gguf_is_named(tmp_path, content, words):
    """
    The error says what the file looks like.
    """
    path = tmp_path / "m.gguf"
    path.write_bytes(content)

    with pytest.raises(WeightsUnusable, match=words):
        read_header(path)


def test_a_file_that_lacks_a_few_bytes_is_told_so(tmp_path):
    """
    It is not said to have 2.4 of 2.4 MiB.
    """
    path = tmp_path / "m.gguf"
    data = gguf_bytes({**SHAPE, "tokenizer.chat_template": "x" * 2_000_000})
    path.write_bytes(data[:-1])

    with pytest.raises(WeightsUnusable, match="cut short") as caught:
        read_header(path)

    assert f"it has {len(data) - 1:,} of {len(data):,} bytes" in str(caught.value)


@pytest.mark.parametrize("kept", [40, 300, -1])
def test_a_partial_download_is_recognised(tmp_path, kept):
    """
    A file that ends in its header or in its last tensor is cut short.
    """
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes()[:kept])

    with pytest.raises(WeightsUnusable, match="cut short"):
        read_header(path)


@pytest.mark.parametrize(
    ("keys", "changes", "words"),
    [
        ({"general.type": "adapter"}, {}, "LoRA"),
        ({"general.type": "mmproj"}, {}, "projector"),
        ({}, {"tensors": 0}, "vocabulary alone"),
        ({}, {"version": 9}, "version 9"),
        ({}, {"order": ">"}, "byte order"),
        ({"split.count": 3}, {}, "renamed"),
        ({"general.architecture": "unheard-of"}, {}, "unheard-of.block_count"),
    ],
)
def test_a_gguf_that_is_no_language_model_is_refused(tmp_path, keys, changes, words):
    """
    Adapters, projectors, vocabularies and foreign versions say what they are.
    """
    path = write_gguf(tmp_path / "m.gguf", {**SHAPE, **keys}, **changes)

    with pytest.raises(WeightsUnusable, match=re.escape(words)):
        read_header(path)


def test_a_split_model_is_found_from_any_part(tmp_path):
    """
    The parts are listed in order, and the first is what a server gets.
    """
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf")
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf")

    found = read_header(second)

    assert (first, second) == found.files
    assert first == found.path
    assert 2 * first.stat().st_size == found.size_bytes


def test_a_missing_part_is_named(tmp_path):
    """
    The error lists the parts that are not there.
    """
    path = write_gguf(tmp_path / "m-00001-of-00003.gguf")
    write_gguf(tmp_path / "m-00003-of-00003.gguf")

    with pytest.raises(WeightsUnusable, match=r"1 of the 3 .*m-00002-of"):
        read_header(path)


def test_problems_with_weights_are_problems_of_the_machine(tmp_path):
    """
    All of them end with exit code 3 and name a next action.
    """
    with pytest.raises(WeightsUnusable) as caught:
        read_header(tmp_path / "none.gguf")

    assert 3 == caught.value.exit_code
    assert caught.value.hint


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-4B-Instruct-2507-Q4_K_M.gguf", "qwen3-4b-instruct-2507-q4_k_m"),
        ("big-00002-of-00009.gguf", "big"),
        ("Mein Modell (2).gguf", "mein-modell-2"),
        ("....gguf", "model"),
        ("x" * 300 + ".gguf", "x" * 100),
    ],
)
def test_a_short_name_is_safe_as_a_folder(tmp_path, file, name):
    """
    The quantization stays in it, white space and capitals do not.
    """
    assert name == short_name(tmp_path / file)


def split_keys(number, *, count=2, tensors=2):
    """What `llama-gguf-split` writes into part *number*, counted from 0."""
    return {
        **SHAPE,
        "split.no": number,
        "split.count": count,
        "split.tensors.count": tensors,
    }


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (split_keys(0), "says that it is number 0 from 0"),
        (split_keys(1, count=3), "says that there are 3"),
    ],
)
def test_a_part_of_another_model_is_refused(tmp_path, second, words):
    """
    What a part says of itself must go with its name and with the first one.
    """
    write_gguf(tmp_path / "m-00001-of-00002.gguf", split_keys(0))
    other = write_gguf(tmp_path / "m-00002-of-00002.gguf", second)

    with pytest.raises(WeightsUnusable, match=words) as caught:
        read_header(other)

    assert str(other) in str(caught.value)


def test_parts_that_do_not_make_a_whole_are_refused(tmp_path):
    """
    The first part tells how many tensors there are in all.
    """
    path = write_gguf(tmp_path / "m-00001-of-00002.gguf", split_keys(0))
    write_gguf(tmp_path / "m-00002-of-00002.gguf", split_keys(1), tensors=2)

    with pytest.raises(WeightsUnusable, match=r"says 2 tensors.* have 3"):
        read_header(path)


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


def test_hashing_can_be_interrupted_at_any_chunk(tmp_path):
    """
    A file of 60 GB takes minutes: Ctrl-C ends that, and nothing is remembered.
    """
    path = write_gguf(tmp_path / "m.gguf")
    os.truncate(path, 9 << 20)
    found = read_header(path)
    seen = []

    def interrupted(done, total):
        seen.append((done, total))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sha256(found, progress=interrupted)

    assert [(4 << 20, 9 << 20)] == seen
    assert not (cache_folder() / "weights").exists()


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
    Between two cells, only their identity is compared.
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

    with pytest.raises(BadInput, match="other weights") as caught:
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

    with pytest.raises(WeightsUnusable, match=r"m\.gguf does not exist"):
        refuse_replaced(found, expected="any")


def test_weights_that_change_while_they_are_hashed_have_no_hash(tmp_path):
    """
    Half of one file and half of another is neither.
    """
    path = write_gguf(tmp_path / "m.gguf")
    found = read_header(path)

    def rewrite(_done, _total):
        disguise(path, other(path.read_bytes()))

    with pytest.raises(WeightsUnusable, match="changes while"):
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
    with pytest.raises(WeightsUnusable, match="changes while it is read"):
        sha256(found)
