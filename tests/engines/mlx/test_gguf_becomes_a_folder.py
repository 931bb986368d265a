"""GGUF files made into folders of MLX; MLX itself need not be installed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gguf_files import write_gguf
from gguf_to_mlx import (
    _GgufSource,
    converted,
    folder_of,
    tokenizer,
    unpermuted,
)

pytest.importorskip("transformers", reason="mlx-lm, which brings it, is not installed")

from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from transformers.convert_slow_tokenizer import bytes_to_unicode

from codeneedle.engines.mlx.folder import read_folder
from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import (
    load_or_compute_sha256,
    read_weights_from_headers,
    slug_from_path,
)

ALPHABET = list(bytes_to_unicode().values())
KEYS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*ALPHABET, "12", "ab", "<|end|>", "<tool>"],
    "tokenizer.ggml.token_type": [1] * 258 + [3, 4],
    "tokenizer.ggml.merges": ["1 2", "a b"],
    "tokenizer.ggml.bos_token_id": 258,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))


def reason_of(refused):
    """What is wrong with weights, without their path."""
    return str(refused).removeprefix(f"{refused.path} ")


@pytest.fixture
def source(nano):
    """The built-in model as it is read, without its factors of frequencies."""
    made = _GgufSource.of(read_weights_from_headers(nano))
    found = {name: each for name, each in made.tensors.items() if "rope" not in name}
    return replace(made, tensors=found)


def test_pairs_that_are_rotated_together_are_put_half_a_head_apart():
    """GGUF has them beside each other: of two heads of four, 0 and 1 become 0 and 2."""
    rows = np.arange(8)[:, None] * np.ones((8, 3))

    assert [0, 2, 1, 3, 4, 6, 5, 7] == unpermuted(rows, 2)[:, 0].tolist()
    assert [0, 2, 1, 3, 4, 6, 5, 7] == unpermuted(np.arange(8), 2).tolist()


def test_a_model_is_converted_once(nano):
    weights = read_weights_from_headers(nano)

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
    assert folder.name == slug_from_path(found.path)
    assert load_or_compute_sha256(found)


def test_matrices_have_16_bits_a_value_and_vectors_32(nano):
    folder = converted(read_weights_from_headers(nano))
    files = sorted(folder.glob("model-*.safetensors"))
    tensors = [load_file(file) for file in files]

    assert len(files) == 1 + read_weights_from_headers(nano).layers
    assert "model.embed_tokens.weight" in tensors[0]
    for each in tensors:
        for values in each.values():
            assert values.dtype == (np.float16 if values.ndim > 1 else np.float32)


@pytest.mark.parametrize(
    ("split", "tokens"),
    [
        ("gpt-2", ["12", "ab"]),
        ("smollm", ["1", "2", "ab"]),
        ("llama-bpe", ["12", "ab"]),
    ],
)
def test_text_is_split_before_merges_as_the_model_was_trained(tmp_path, split, tokens):
    made = tokenizer(KEYS | {"tokenizer.ggml.pre": split}, path=tmp_path)

    assert tokens == made.encode("12ab").tokens


def test_special_tokens_are_found_in_a_text_and_one_may_begin_it(tmp_path):
    keys = KEYS | {"tokenizer.ggml.pre": "gpt-2"}
    plain = tokenizer(keys, path=tmp_path)
    beginning = tokenizer(keys | {"tokenizer.ggml.add_bos_token": True}, path=tmp_path)

    assert ["a", "<|end|>", "<tool>"] == plain.encode("a<|end|><tool>").tokens
    assert ["<|end|>", "ab"] == beginning.encode("ab").tokens
    plain.encode_special_tokens = True
    assert "<|end|>" not in plain.encode("a<|end|><tool>").tokens


@pytest.mark.parametrize(
    "changes", [{"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "tekken"}]
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path, changes):
    """It would count and cut texts in another way, and say nothing."""
    with pytest.raises(WeightsUnusable, match="its tokenizer is"):
        tokenizer(KEYS | {"tokenizer.ggml.pre": "gpt-2"} | changes, path=tmp_path)


def test_factors_of_rotary_frequencies_become_mlx_lm_s(source):
    """As in files of Llama 3.1; its scaling for long texts would change them again."""
    factors = SimpleNamespace(data=np.array([1.0, 8.0]))
    made = replace(source, tensors={**source.tensors, "rope_freqs.weight": factors})

    scaling = made.config()["rope_scaling"]

    assert {
        "type": "longrope",
        "short_factor": [1.0, 8.0],
        "long_factor": [1.0, 8.0],
        "original_max_position_embeddings": source.weights.training_context,
    } == scaling
    assert "rope_freqs.weight" not in str([list(each) for each in made.parts()])


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"type": "linear", "factor": 4.0},
        ),
    ],
)
def test_positions_may_be_scaled_linearly(source, keys, scaling):
    made = replace(source, keys={**source.keys, **keys})

    assert scaling == made.config()["rope_scaling"]


def test_positions_that_are_scaled_in_another_way_are_refused(source, golden):
    made = replace(source, keys={**source.keys, "llama.rope.scaling.type": "yarn"})

    with pytest.raises(WeightsUnusable) as caught:
        made.config()

    assert golden == reason_of(caught.value)


def test_biases_that_the_file_leaves_out_are_zero(source):
    """MLX has those of all four parts of attention, or none."""
    rows = source.weights.heads[0] * source.weights.key_length
    bias = SimpleNamespace(
        data=np.ones(rows, dtype=np.float32),
        shape=[rows],
        tensor_type=GGMLQuantizationType.F32,
    )
    plain = {n: each for n, each in source.tensors.items() if not n.endswith(".bias")}
    made = replace(source, tensors={**plain, "blk.0.attn_q.bias": bias})
    _, first, *_ = made.parts()

    assert made.config()["attention_bias"]
    assert 1 == first["model.layers.0.self_attn.q_proj.bias"].min()
    for part in ("k_proj", "v_proj", "o_proj"):
        weight, zeros = (
            first[f"model.layers.0.self_attn.{part}.{kind}"]
            for kind in ("weight", "bias")
        )
        assert (len(weight), 0) == (len(zeros), zeros.max())


def test_a_tensor_that_a_llama_does_not_have_is_refused(source, golden):
    made = replace(source, tensors={**source.tensors, "blk.0.ssm_a.weight": None})

    with pytest.raises(WeightsUnusable) as caught:
        list(made.parts())

    assert golden == reason_of(caught.value)


def test_a_model_that_lacks_what_is_needed_leaves_nothing(tmp_path):
    weights = read_weights_from_headers(write_gguf(tmp_path / "made.gguf"))

    with pytest.raises(WeightsUnusable, match="cannot be converted"):
        converted(weights)
    assert not folder_of(weights).exists()


def test_a_model_of_another_architecture_is_refused(tmp_path, golden):
    weights = replace(
        read_weights_from_headers(write_gguf(tmp_path / "m.gguf")), architecture="rwkv"
    )

    with pytest.raises(WeightsUnusable) as caught:
        converted(weights)

    assert golden == reason_of(caught.value)
