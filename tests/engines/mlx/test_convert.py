"""GGUF files made into folders of MLX; MLX need not be installed."""

import json

import numpy as np
import pytest
from gguf_files import write_gguf

from codeneedle.engines.mlx.convert import converted, folder_of, unpermuted
from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import read_folder, read_header, sha256, short_name


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))


def test_pairs_that_are_rotated_together_are_put_half_a_head_apart():
    """
    GGUF has them beside each other: of two heads of four, 0 and 1 become 0 and 2.
    """
    rows = np.arange(8)[:, None] * np.ones((8, 3))

    assert [0, 2, 1, 3, 4, 6, 5, 7] == unpermuted(rows, 2)[:, 0].tolist()
    assert [0, 2, 1, 3, 4, 6, 5, 7] == unpermuted(np.arange(8), 2).tolist()


def test_a_model_is_converted_once(nano):
    """
    The folder says of the model what the file says, and is a whole one.
    """
    weights = read_header(nano)

    folder = converted(weights)
    written = (folder / "config.json").stat().st_mtime_ns
    found = read_folder(folder)

    assert folder == converted(weights)
    assert written == (folder / "config.json").stat().st_mtime_ns
    for name in ("layers", "embedding", "heads", "kv_heads", "key_length"):
        assert getattr(weights, name) == getattr(found, name)
    assert (weights.vocabulary, weights.chat_template) == (
        found.vocabulary,
        found.chat_template,
    )
    assert folder.name == short_name(found.path)
    assert sha256(found)


def test_a_folder_that_was_cut_short_is_refused(nano):
    """
    A part, its end, the tokenizer: whatever is missing is named.
    """
    folder = converted(read_header(nano))
    file = folder / "model.safetensors"
    whole = file.read_bytes()

    file.write_bytes(whole[:-9])
    with pytest.raises(WeightsUnusable, match="cut short"):
        read_folder(folder)
    file.write_bytes(b"<html>")
    with pytest.raises(WeightsUnusable, match="safetensors"):
        read_folder(folder)
    file.write_bytes(whole)
    index = {"weight_map": {"a": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsUnusable, match=r"lacks model-2\.safetensors"):
        read_folder(folder)


def test_a_model_without_a_tokenizer_of_ours_leaves_nothing(tmp_path):
    """
    Neither a folder nor a draft.
    """
    weights = read_header(write_gguf(tmp_path / "made.gguf"))

    with pytest.raises(WeightsUnusable, match="cannot be converted"):
        converted(weights)
    assert not folder_of(weights).exists()
