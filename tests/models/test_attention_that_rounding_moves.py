"""How much attention moves when K is rounded, told from the weights alone."""

import math

import numpy as np
import pytest
import zoo
from made_attention import HEADS, KV_HEADS, SIZE, WIDTH, write_attention

from codeneedle.cache_types import BITS_PER_ELEMENT
from codeneedle.models import moved_attention as module
from codeneedle.models.moved_attention import K_TYPES, moved_attention_by_k_type
from codeneedle.models.weights import read_weights_from_headers


def moved_in(folder, name="a.gguf", **changes):
    """What is told of a made model."""
    return moved_attention_by_k_type(
        read_weights_from_headers(write_attention(folder / name, **changes))
    )


@pytest.mark.parametrize("name", ["llama", "qwen2bias", "qwen3moe"])
def test_the_fewer_bits_k_has_the_more_attention_moves(tmp_path, name):
    moved = moved_attention_by_k_type(
        read_weights_from_headers(zoo.write(name, tmp_path))
    )

    by_bits = sorted(K_TYPES, key=lambda name: -BITS_PER_ELEMENT[name])
    assert sorted(moved.values()) == [moved[name] for name in by_bits]
    assert all(0 < share < 1 for share in moved.values())


def test_a_large_bias_of_k_moves_more_attention_with_every_type(tmp_path):
    plain, small, large = (
        moved_in(tmp_path, f"{bias}.gguf", bias=bias) for bias in (None, 0.0, 200.0)
    )

    assert plain == small
    assert all(large[name] > 2 * plain[name] for name in K_TYPES)


def test_the_same_file_tells_the_same(tmp_path):
    first = moved_in(tmp_path, "a.gguf")

    assert first == moved_in(tmp_path, "b.gguf")


def test_norms_of_heads_and_either_kind_of_positions_are_known(tmp_path):
    norms = {"attn_q_norm.weight": (SIZE,), "attn_k_norm.weight": (SIZE,)}
    plain = moved_in(tmp_path, "a.gguf", architecture="qwen3")
    normed = moved_in(tmp_path, "b.gguf", architecture="qwen3", tensors=norms)

    assert plain.keys() == normed.keys() == {*K_TYPES}
    assert plain != normed
    assert plain != moved_in(tmp_path, "c.gguf", architecture="llama")


def test_of_a_large_model_a_part_is_read_which_tells_about_the_same(
    tmp_path, monkeypatch
):
    weights = read_weights_from_headers(zoo.write("llama", tmp_path))
    whole = moved_attention_by_k_type(weights)
    rows = 2 * module.HEADS * weights.key_length * weights.layers
    monkeypatch.setattr(module, "LARGEST_BLOCK", 1)
    monkeypatch.setattr(module, "MOST_VALUES", rows * weights.embedding // 2)
    moved_attention_by_k_type.cache_clear()
    part = moved_attention_by_k_type(weights)

    assert whole != part
    for name in K_TYPES:
        assert part[name] == pytest.approx(whole[name], rel=0.5)


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e30])
def test_weights_that_are_no_numbers_tell_nothing(tmp_path, number):
    assert {} == moved_in(tmp_path, bias=number)


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "gpt-oss"},
        {"tensors": {"attn_norm.weight": None}},
        {"tensors": {"attn_k.weight": None}},
        {"tensors": {"attn_norm.weight": (WIDTH - 1,)}},
        {"tensors": {"attn_k.weight": (KV_HEADS * SIZE - 1, WIDTH)}},
        {"tensors": {"attn_q.weight": (HEADS * SIZE, WIDTH // 2)}},
        {"tensors": {"attn_q.weight": (SIZE, WIDTH)}},
        {"tensors": {"attn_k_norm.weight": (KV_HEADS * SIZE + 1,)}},
        {"tensors": {"attn_q.bias": (SIZE + 1,)}},
        {"dtype": np.int32},
        {"attention.key_length": 80},
        {"attention.key_length": 1 << 31},
        {"attention.head_count_kv": 3},
        {"attention.head_count": 1 << 31},
        {"attention.head_count_kv": 0},
        {"attention.sliding_window": 512},
        {"attention.scale": 0.5},
        {"embedding_length": 1 << 31},
        {"block_count": 512},
        {"rope.freq_base": math.nan},
        {"rope.freq_base": 0.0},
        {"rope.freq_base": math.inf},
        {"rope.dimension_count": SIZE + 2},
        {"rope.dimension_count": 3},
    ],
)
def test_a_model_that_is_not_computed_or_contradicts_itself_tells_nothing(
    tmp_path, changes
):
    assert {} == moved_in(tmp_path, **changes)


def test_a_file_that_was_cut_or_went_since_it_was_read_tells_nothing(tmp_path):
    path = write_attention(tmp_path / "a.gguf")
    weights = read_weights_from_headers(path)
    path.write_bytes(path.read_bytes()[:-SIZE])

    assert {} == moved_attention_by_k_type(weights)

    moved_attention_by_k_type.cache_clear()
    path.unlink()

    assert {} == moved_attention_by_k_type(weights)


def test_no_more_is_read_than_the_limit_whatever_a_header_states(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_VALUES", 4 * SIZE)

    assert {} == moved_in(tmp_path)
