"""Headers are read whole, and damaged ones cost neither time nor memory."""

import struct

import pytest
from gguf_files import SHAPE, gguf_bytes

from codeneedle.models.gguf import BadHeader, EndsTooSoon, looks_like, parse


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
    ("data", "words"),
    [
        (absurd(8), "claims to have .* tensors"),
        (absurd(16), "claims to have .* keys"),
        (absurd(24), "ends in the middle"),
        (absurd(gguf_bytes().index(AFTER) + len(AFTER) + 8), "list in it claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000) + bytes(1_000_000), "damaged"),
        (gguf_bytes(version=1), "version 1"),
        (gguf_bytes(version=4), "version 4"),
        (gguf_bytes(version=3, order=">"), "byte order"),
    ],
    ids=["tensors", "keys", "name", "list", "hole of zeros", "old", "new", "order"],
)
def test_what_cannot_be_read_says_why(data, words):
    with pytest.raises(BadHeader, match=words):
        parse(data)


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
        (b"\xfe\xed\xfa\xce", "something else"),
    ],
)
def test_other_files_are_recognised(start, words):
    assert words in looks_like(start)
