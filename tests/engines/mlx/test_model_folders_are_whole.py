"""Model folders, read and refused; MLX need not be installed."""

import json
import os
import re

import pytest

pytest.importorskip("safetensors", reason="mlx-lm, which brings it, is not installed")

import numpy as np
from safetensors.numpy import save_file

from codeneedle.engines.mlx.folder import (
    MOST_JSON_BYTES,
    chat_template_of,
    is_mlx_folder_or_config,
    read_folder,
    read_json,
)
from codeneedle.errors import ToolMissing, WeightsUnusable
from codeneedle.models.weights import load_or_compute_sha256, slug_from_path

CONFIG = {
    "model_type": "qwen2",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "quantization": {"bits": 4, "group_size": 64},
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """A whole folder of two parts."""
    made = tmp_path / "Some-Model-4bit"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text("{}")
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({f"layer.{number}": np.ones((4, 8))}, made / name)
    return made


def test_the_facts_of_a_model_are_read_from_its_configuration(folder):
    found = read_folder(folder)

    assert found == read_folder(folder / "config.json")
    assert folder == found.path
    assert ("qwen2", "4 bits", "Some-Model-4bit") == (
        found.architecture,
        found.file_type,
        found.name,
    )
    assert (3, (4, 4, 4), (2, 2, 2)) == (found.layers, found.heads, found.kv_heads)
    assert (64, 64, 100, 4096) == (
        found.key_length,
        found.value_length,
        found.vocabulary,
        found.training_context,
    )
    assert sum(each.stat().st_size for each in folder.iterdir()) == found.size_bytes
    assert "some-model-4bit" == slug_from_path(found.path)


def test_the_facts_of_a_language_model_with_a_vision_part_are_nested(folder):
    nested = {**CONFIG, "head_dim": 32, "sliding_window": 512}
    outer = {"model_type": "gemma3", "text_config": nested}
    (folder / "config.json").write_text(json.dumps(outer))

    found = read_folder(folder)

    assert (32, 3) == (found.key_length, found.layers)
    assert not found.has_plain_attention


@pytest.mark.parametrize(
    ("keys", "is_plain"),
    [
        ({}, True),
        ({"sliding_window": 512, "use_sliding_window": False}, True),
        ({"sliding_window": 512}, False),
        ({"layer_types": ["full_attention"] * 3}, True),
        ({"layer_types": ["linear_attention", "full_attention"]}, False),
        ({"conv_L_cache": 3}, False),
        ({"kv_lora_rank": 128}, False),
    ],
)
def test_a_config_tells_whether_each_layer_keeps_the_whole_context(
    folder, keys, is_plain
):
    (folder / "config.json").write_text(json.dumps(CONFIG | keys))

    assert is_plain == read_folder(folder).has_plain_attention


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda at: (at / "tokenizer.json").unlink(), "has no tokenizer.json"),
        (lambda at: (at / "config.json").unlink(), "cannot be read"),
        (lambda at: (at / "config.json").write_text("[]"), "holds no object"),
        (lambda at: (at / "config.json").write_text("{"), "cannot be used"),
        (lambda at: (at / "config.json").write_text("{}"), "'num_hidden_layers'"),
        (
            lambda at: (at / "config.json").write_text(
                json.dumps(CONFIG | {"num_hidden_layers": 10**6})
            ),
            "claims to have 1000000 layers",
        ),
        (
            lambda at: [each.unlink() for each in at.glob("model-*")],
            "lacks model.safetensors",
        ),
        (
            lambda at: (at / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-3.safetensors"}}'
            ),
            "lacks model-3.safetensors",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_with_what_is_missing(
    folder, damage, reason
):
    damage(folder)

    with pytest.raises(WeightsUnusable, match=re.escape(reason)):
        read_folder(folder)


@pytest.mark.parametrize("cut", [lambda data: data[:-9], lambda _: b"<html>"])
def test_a_file_of_weights_that_is_cut_short_is_refused(folder, cut):
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(cut(file.read_bytes()))

    with pytest.raises(
        WeightsUnusable, match=r"00002\.safetensors is cut short"
    ) as told:
        read_folder(folder)
    assert "resume" in told.value.hint


def test_without_safetensors_the_package_to_install_is_named(
    folder, monkeypatch, golden
):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)

    with pytest.raises(ToolMissing) as told:
        read_folder(folder)
    assert golden == (str(told.value), told.value.hint)


def test_a_template_is_a_file_or_one_of_several_by_name(folder):
    assert None is chat_template_of(folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text('{"chat_template": "plain"}')
    assert "plain" == chat_template_of(folder)
    several = [
        {"name": "tool_use", "template": "t"},
        {"name": "default", "template": "d"},
    ]
    settings.write_text(json.dumps({"chat_template": several}))
    assert "d" == chat_template_of(folder)
    (folder / "chat_template.jinja").write_text("file")
    assert "file" == chat_template_of(folder) == read_folder(folder).chat_template


def test_a_folder_is_known_by_its_configuration(folder, tmp_path):
    assert is_mlx_folder_or_config(folder)
    assert is_mlx_folder_or_config(folder / "config.json")
    assert not is_mlx_folder_or_config(tmp_path)


def test_a_json_file_of_no_model_is_not_read(tmp_path):
    file = tmp_path / "large.json"
    file.touch()
    os.truncate(file, MOST_JSON_BYTES + 1)

    with pytest.raises(WeightsUnusable, match="larger than 64 MiB"):
        read_json(file)


def test_a_folder_that_changed_after_it_was_read_has_no_hash(folder, golden):
    """Only its engine could tell whether the change matters."""
    found = read_folder(folder)
    assert load_or_compute_sha256(found) == load_or_compute_sha256(read_folder(folder))

    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 101}))

    with pytest.raises(WeightsUnusable) as told:
        load_or_compute_sha256(found)
    assert golden == str(told.value)
