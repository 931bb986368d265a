"""Model files: whole ones are read, others are named for what they are."""

import os
import re
from pathlib import Path

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf

from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import read_weights_from_headers, slug_from_path


def test_the_shape_of_a_model_is_read(tmp_path):
    """Head sizes default to the embedding shared out among the heads."""
    found = read_weights_from_headers(write_gguf(tmp_path / "m.gguf"))

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
    """KV heads as a list come back per layer; a drafting layer is not counted."""
    keys = {
        **SHAPE,
        "llama.attention.head_count_kv": [2, 0, 2, 2],
        "llama.nextn_predict_layers": 1,
        "tokenizer.chat_template": "{{ messages }}",
    }
    found = read_weights_from_headers(write_gguf(tmp_path / "m.gguf", keys))

    assert 3 == found.layers
    assert (2, 0, 2) == found.kv_heads
    assert "{{ messages }}" == found.chat_template


def test_a_missing_file_offers_its_neighbours(tmp_path):
    write_gguf(tmp_path / "qwen3-4b-q4_k_m.gguf")

    with pytest.raises(WeightsUnusable, match="does not exist") as caught:
        read_weights_from_headers(tmp_path / "qwen3-4b-q4_k_n.gguf")

    assert "Did you mean 'qwen3-4b-q4_k_m.gguf'?" == caught.value.hint


def test_a_folder_offers_the_models_in_it(tmp_path):
    for name in ("b-00001-of-00002", "b-00002-of-00002", "a", "mmproj-a"):
        write_gguf(tmp_path / f"{name}.gguf")

    with pytest.raises(WeightsUnusable, match="is a folder") as caught:
        read_weights_from_headers(tmp_path)

    assert f"In it: {tmp_path}/a.gguf, {tmp_path}/b-00001-of-00002.gguf." == (
        caught.value.hint
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.write_bytes(bytes(4096)), "zeros"),
        (lambda path: path.write_bytes(b"GG"), "a text file"),
        (lambda path: path.write_bytes(gguf_bytes()[:40]), "cut short"),
        (lambda path: path.write_bytes(gguf_bytes()[:-1]), "cut short"),
        (Path.mkdir, "is a folder"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to(path.name), "symbolic links"),
        (lambda path: path.symlink_to("nowhere.gguf"), "does not exist"),
        (lambda _: None, "does not exist"),
    ],
)
def test_what_is_no_usable_file_is_named(tmp_path, make, words):
    make(tmp_path / "m.gguf")

    with pytest.raises(WeightsUnusable, match=words) as caught:
        read_weights_from_headers(tmp_path / "m.gguf")

    assert 3 == caught.value.exit_code
    assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_weights_that_may_not_be_read_are_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    path.chmod(0)

    with pytest.raises(WeightsUnusable, match="cannot be read"):
        read_weights_from_headers(path)


def test_a_file_that_lacks_a_few_bytes_is_told_so(tmp_path):
    """It is not said to have 2.4 of 2.4 MiB."""
    path = tmp_path / "m.gguf"
    data = gguf_bytes({**SHAPE, "tokenizer.chat_template": "x" * 2_000_000})
    path.write_bytes(data[:-1])

    with pytest.raises(WeightsUnusable, match="cut short") as caught:
        read_weights_from_headers(path)

    assert f"it has {len(data) - 1:,} of {len(data):,} bytes" in str(caught.value)


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
    path = write_gguf(tmp_path / "m.gguf", {**SHAPE, **keys}, **changes)

    with pytest.raises(WeightsUnusable, match=re.escape(words)):
        read_weights_from_headers(path)


def test_a_split_model_is_found_from_any_part_and_a_missing_one_is_named(tmp_path):
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf")
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf")
    lonely = write_gguf(tmp_path / "n-00001-of-00003.gguf")
    (tmp_path / "n-00003-of-00003.gguf").mkdir()

    found = read_weights_from_headers(second)

    assert (first, second) == found.files
    assert first == found.path
    assert 2 * first.stat().st_size == found.size_bytes
    with pytest.raises(WeightsUnusable, match=r"2 of the 3 .*n-00002-of.*n-00003"):
        read_weights_from_headers(lonely)


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
    assert name == slug_from_path(tmp_path / file)
