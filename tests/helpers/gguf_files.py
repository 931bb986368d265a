"""GGUF files for tests, byte by byte, so that a test can also break them."""

import os
import struct
from pathlib import Path

SHAPE = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 8192,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
"""A small language model with head size 64."""


def gguf_bytes(keys=SHAPE, *, tensors=1, version=3, order="<", data=True):
    """A file with *keys* and *tensors* of 32 numbers (F32) each."""
    pack = struct.Struct
    head = b"GGUF" + pack(f"{order}IQQ").pack(version, tensors, len(keys))
    body = b"".join(_text(key) + _value(value) for key, value in keys.items())
    infos = b"".join(
        _text(f"tensor.{n}") + struct.pack("<IQIQ", 1, 32, 0, 128 * n)
        for n in range(tensors)
    )
    whole = head + body + infos
    if not data:
        return whole
    return whole + b"\0" * (-len(whole) % 32) + b"\1" * 128 * tensors


def write_gguf(path: Path, keys=SHAPE, **changes) -> Path:
    path.write_bytes(gguf_bytes(keys, **changes))
    return path


def disguise(path: Path, data: bytes) -> None:
    """Put *data* at *path*, with the size and the times that were there."""
    was = path.stat()
    path.write_bytes(data)
    # Until the clock of the file system has ticked.
    while path.stat().st_ctime_ns == was.st_ctime_ns:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def other(data: bytes) -> bytes:
    """As long as *data*, and with another last byte."""
    return data[:-1] + bytes([data[-1] ^ 1])


def _text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value[0], str):
        texts = b"".join(map(_text, value))
        return struct.pack("<IIQ", 9, 8, len(value)) + texts
    numbers = b"".join(struct.pack("<I", each) for each in value)
    return struct.pack("<IIQ", 9, 4, len(value)) + numbers
