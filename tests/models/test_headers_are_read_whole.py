"""Headers are read whole, and damaged ones cost neither time nor memory."""

import struct

import pytest
from gguf_files import SHAPE, gguf_bytes
from made_attention import write_attention

from codeneedle.models import gguf
from codeneedle.models.gguf import (
    BadHeader,
    EndsTooSoon,
    Tensor,
    guessed_kind_phrase,
    parse,
)
from codeneedle.models.weights import read_weights_from_headers


def test_values_come_back_and_vocabularies_are_only_counted():
    header = parse(gguf_bytes({**SHAPE, "x.flags": [1, 0, 1], "x.f": 0.5, "x.b": True}))

    assert 256 == header.values["llama.embedding_length"]
    assert "llama" == header.values["general.architecture"]
    assert (1, 0, 1) == header.values["x.flags"]
    assert 0.5 == header.values["x.f"]
    assert header.values["x.b"] is True
    assert 3 == header.lengths["tokenizer.ggml.tokens"]
    assert "tokenizer.ggml.tokens" not in header.values


def test_a_whole_file_is_exactly_as_long_as_it_needs_to_be():
    data = gguf_bytes(tensors=3)

    assert len(data) == parse(data).needed_bytes


def test_a_file_may_end_anywhere_in_its_header():
    data = gguf_bytes(data=False)

    for length in range(4, len(data)):
        with pytest.raises(EndsTooSoon):
            parse(data[:length])


def absurd(at):
    """A file with the count at that byte far too large."""
    data = bytearray(gguf_bytes())
    struct.pack_into("<Q", data, at, 1 << 63)
    return bytes(data)


AFTER = b"tokenizer.ggml.tokens"


@pytest.mark.parametrize(
    "data",
    [
        absurd(8),
        absurd(16),
        absurd(24),
        absurd(gguf_bytes().index(AFTER) + len(AFTER) + 8),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000) + bytes(1_000_000),
        gguf_bytes(version=1),
        gguf_bytes(version=4),
        gguf_bytes(version=3, order=">"),
    ],
    ids=["tensors", "keys", "name", "list", "hole of zeros", "old", "new", "order"],
)
def test_what_cannot_be_read_says_why(data, golden):
    with pytest.raises(BadHeader) as caught:
        parse(data)

    assert golden == str(caught.value)


def test_a_large_vocabulary_is_walked_over():
    tokens = [f"token{n}" for n in range(262_144)]
    header = parse(gguf_bytes({**SHAPE, "tokenizer.ggml.tokens": tokens}))

    assert 262_144 == header.lengths["tokenizer.ggml.tokens"]
    assert len(SHAPE) - 1 == len(header.values)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b'\x80\x10\0\0\0\0\0\0{"__metadata__', "safetensors"),
        (b"PK\x03\x04rest", "zip"),
        (b"  <!DOCTYPE html><html>", "web page"),
        (b"tjgg\x03\0\0\0", "GGML"),
        (bytes(64), "zeros"),
        (b"# a model card", "text"),
        (b"\x01 a model card", "text"),
        (b"a model card\0", "something else"),
        (b"\xfe\xed\xfa\xce", "something else"),
    ],
)
def test_other_files_are_recognised(start, words):
    assert words in guessed_kind_phrase(start)


# What is kept of it


@pytest.mark.parametrize(("count", "is_kept"), [(4096, True), (4097, False)])
def test_of_a_list_of_more_than_4096_numbers_only_the_length_is_kept(count, is_kept):
    numbers = list(range(count))
    header = parse(gguf_bytes({**SHAPE, "x.numbers": numbers, "x.last": 5}))

    assert (count, 5) == (header.lengths["x.numbers"], header.values["x.last"])
    assert (tuple(numbers) if is_kept else None) == header.values.get("x.numbers")


@pytest.mark.parametrize(
    ("room", "text", "numbers"),
    [
        # Three names of 3 bytes, a text of 100 and four numbers of 4 bytes.
        (125, "x" * 100, (1, 1, 1, 1)),
        (121, "x" * 100, None),
        (109, "x" * 100, None),
        (102, "", (1, 1, 1, 1)),
    ],
)
def test_what_has_no_room_is_walked_over(monkeypatch, room, text, numbers):
    monkeypatch.setattr(gguf, "MOST_KEPT", room)
    data = gguf_bytes({"a.t": "x" * 100, "a.n": [1] * 4, "a.l": 7}, tensors=0)
    header = parse(data)

    assert (text, numbers, 7) == (
        header.values["a.t"],
        header.values.get("a.n"),
        header.values["a.l"],
    )
    assert 4 == header.lengths["a.n"]


@pytest.mark.parametrize(
    "name",
    ["llama.block_count", "tokenizer.ggml.tokens", ""],
    ids=["a number", "a list", "no name"],
)
def test_a_key_that_comes_twice_or_has_no_name_is_damage(name, golden):
    data = bytearray(gguf_bytes(tensors=0, data=False))
    struct.pack_into("<Q", data, 16, len(SHAPE) + 1)
    data += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<II", 4, 1)

    with pytest.raises(BadHeader) as caught:
        parse(bytes(data))

    assert golden == str(caught.value)


# Tensors

F32, Q8_0, UNKNOWN = 0, 8, 999


def with_tensors(*tensors, keys=SHAPE):
    """A header whose *tensors* have a name, elements, a type and a place."""
    data = bytearray(gguf_bytes(keys, tensors=0, data=False))
    struct.pack_into("<Q", data, 8, len(tensors))
    for name, elements, kind, start in tensors:
        data += struct.pack("<Q", len(name)) + name
        data += struct.pack("<IQIQ", 1, elements, kind, start)
    return bytes(data)


def data_bytes(*tensors, **changes):
    """What the data of such tensors take of a file."""
    header = with_tensors(*tensors, **changes)
    return parse(header).needed_bytes - (-(-len(header) // 32) * 32)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([(b"a", 32, F32, 0)], 128),
        ([(b"a", 32, F32, 128), (b"b", 1, F32, 0)], 256),
        ([(b"a", 64, Q8_0, 0)], 68),
        ([(b"a", 63, Q8_0, 0)], 34),  # whole blocks alone
        ([(b"a", 32, UNKNOWN, 0)], 0),
        ([(b"a", 32, UNKNOWN, 96)], 96),
    ],
)
def test_a_file_is_as_long_as_the_tensor_that_ends_last(tensors, expected):
    """A type of a newer build counts as nothing."""
    assert expected == data_bytes(*tensors)


@pytest.mark.parametrize(("start", "is_absurd"), [(1 << 56, False), (1 + (1 << 56), 1)])
def test_tensors_beyond_any_file_are_damage(start, is_absurd, golden):
    if is_absurd:
        with pytest.raises(BadHeader) as caught:
            data_bytes((b"a", 32, UNKNOWN, start))
        assert golden == str(caught.value)
    else:
        assert start == data_bytes((b"a", 32, UNKNOWN, start))


def test_a_header_without_tensors_is_a_whole_file():
    """Although the last word of its vocabulary is empty."""
    keys = {**SHAPE, "tokenizer.ggml.tokens": ["a", ""]}
    data = gguf_bytes(keys, tensors=0, data=False)
    header = parse(data)

    assert 2 == header.lengths["tokenizer.ggml.tokens"]
    assert len(data) == header.needed_bytes


def test_the_places_of_what_makes_k_are_kept_from_the_start_of_the_file():
    names = [b"blk.0.attn_k.bias", b"blk.11.attn_sinks.weight", b"blk.0.attn_v.bias"]
    data = with_tensors(*((name, 4, F32, 32 * at) for at, name in enumerate(names)))
    start = -(-len(data) // 32) * 32

    assert {
        "blk.0.attn_k.bias": Tensor(kind=F32, elements=4, start=start, row=4),
        "blk.11.attn_sinks.weight": Tensor(F32, elements=4, start=start + 32, row=4),
    } == parse(data).kept


@pytest.mark.parametrize(
    ("length", "is_damaged"), [(0, True), (1, False), (65_535, False), (65_536, True)]
)
def test_a_tensor_has_a_name_of_at_most_65535_bytes(length, is_damaged, golden):
    data = with_tensors((b"n" * length, 4, F32, 0))

    if is_damaged:
        with pytest.raises(BadHeader) as caught:
            parse(data)
        assert golden == str(caught.value)
    else:
        assert 1 == parse(data).tensors


@pytest.mark.parametrize(
    ("alignment", "is_known"),
    [(0, False), (1, True), (4 << 20, True), ((4 << 20) + 1, False), ("32", False)],
)
def test_tensors_are_aligned_to_a_number_of_bytes(alignment, is_known, golden):
    data = with_tensors((b"a", 8, F32, 0), keys={"general.alignment": alignment})

    if is_known:
        assert -(-len(data) // alignment) * alignment + 32 == parse(data).needed_bytes
    else:
        with pytest.raises(BadHeader) as caught:
            parse(data)
        assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "keys", "is_absurd"),
    [
        (0, 1 << 16, False),
        (0, (1 << 16) + 1, True),
        (1 << 17, 1, False),
        ((1 << 17) + 1, 1, True),
    ],
)
def test_more_keys_and_tensors_than_any_model_has_are_not_walked_over(
    tensors, keys, is_absurd, golden
):
    with pytest.raises(BadHeader) as raised:
        parse(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys))

    assert is_absurd == (not isinstance(raised.value, EndsTooSoon))
    assert golden == str(raised.value)


@pytest.mark.parametrize(
    ("count", "is_absurd"), [(1 << 24, False), ((1 << 24) + 1, True)]
)
def test_a_longer_list_than_any_model_has_is_not_walked_over(count, is_absurd, golden):
    data = gguf_bytes().replace(
        AFTER + struct.pack("<IIQ", 9, 8, 3),
        AFTER + struct.pack("<IIQ", 9, 8, count),
    )
    with pytest.raises(BadHeader) as raised:
        parse(data)

    assert is_absurd == (not isinstance(raised.value, EndsTooSoon))
    assert golden == str(raised.value)


@pytest.mark.parametrize(("dimensions", "is_absurd"), [(8, False), (9, True)])
def test_a_tensor_has_eight_dimensions_at_most(dimensions, is_absurd, golden):
    data = bytearray(gguf_bytes(tensors=0, data=False))
    struct.pack_into("<Q", data, 8, 1)
    data += struct.pack("<Q", 1) + b"a" + struct.pack("<I", dimensions)
    data += struct.pack(f"<{dimensions}Q", *[2] * dimensions)
    data += struct.pack("<IQ", F32, 0)

    if is_absurd:
        with pytest.raises(BadHeader) as caught:
            parse(bytes(data))
        assert golden == str(caught.value)
    else:
        assert 4 * 2**8 == parse(bytes(data)).needed_bytes - -(-len(data) // 32) * 32


EXPERTS = {f"ffn_{name}_exps.weight": (8, 4, 128) for name in ("up", "down", "gate")}


@pytest.mark.parametrize(
    ("used", "unused"),
    [(2, 6 / 8), (8, 0), (None, 0), (9, 0)],
)
def test_what_a_token_does_not_pass_through_of_a_mixture_is_known(
    used, unused, tmp_path
):
    keys = {"expert_count": 8} | ({} if used is None else {"expert_used_count": used})
    path = write_attention(
        tmp_path / "m.gguf", architecture="qwen3moe", tensors=EXPERTS, **keys
    )

    of_experts = 4 * 3 * 8 * 4 * 128
    assert unused * of_experts == read_weights_from_headers(path).unused_bytes
