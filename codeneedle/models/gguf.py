"""
Parses the header of a GGUF file: metadata, tensors, the length of the file, a hash of
the tokenizer; and what a file looks like that is none.
"""

import functools
import hashlib
import math
import re
import struct
from dataclasses import dataclass, field, replace

from codeneedle.text import plural

Value = int | float | bool | str | tuple[int | float | bool, ...]
Buffer = bytes | bytearray | memoryview

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 had 32-bit counts and is no longer in use."""

MOST_KEYS = 1 << 16
MOST_ELEMENTS = 1 << 24
MOST_DIMENSIONS = 8
MOST_TENSORS = 1 << 17
MOST_BYTES = 1 << 56
"""Limits far above any model; a file that exceeds one is damaged."""

LONGEST_NAME = (1 << 16) - 1
"""Bytes; the specification's limit for keys."""

LONGEST_ARRAY = 1 << 12
"""Elements; of longer arrays, such as vocabularies, only the length is kept."""

MOST_KEPT = 4 << 20
"""
Bytes of strings and arrays that are kept per file; the rest is skipped, since a damaged
file of gigabytes may be all header. Chat templates have some 10 KB.
"""

DEFAULT_ALIGNMENT = 32
"""Bytes; alignment of tensor data, unless ``general.alignment`` says otherwise."""

MOST_ALIGNMENT = 4 << 20
"""Bytes; a file that states more is damaged."""

# fmt: off
_LOOKS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not fetched"),
    (b"PK\x03\x04", "a zip archive, as PyTorch checkpoints are"),
    (b"\x80\x02", "a pickled PyTorch checkpoint"),
    (b"tjgg", "a model in the old GGML format"),
    (b"lmgg", "a model in the old GGML format"),
    (b"fmgg", "a model in the old GGML format"),
    (b"algg", "a LoRA adapter in the old GGML format"),
    (b"<!doctype html", "a web page, so the download went wrong"),
    (b"<html", "a web page, so the download went wrong"),
    (b"{", "a JSON file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "a program"),
    (b"#!", "a script"),
)
# fmt: on
"""How files begin that are mistaken for GGUF. Old GGML magics are byte-swapped."""

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        **dict(enumerate("BbHhIif?")),
        **dict(enumerate("Qqd", start=10)),
    }.items()
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class BadHeader(ValueError):  # noqa: N818 - named after the fact
    """The bytes are not a readable header; the message says why."""


class EndsTooSoon(BadHeader):
    """The header is longer than the file."""


KEPT_TENSORS = re.compile(
    rb"blk\.(\d{1,3})\.attn_(?:[qk]\.(?:bias|weight)|(?:[qk]_)?norm\.weight"
    rb"|sinks\.weight)"
)
"""Tensors whose place is kept: they tell how sensitive a model is."""


EXPERT_TENSORS = re.compile(rb"blk\.\d{1,3}\.ffn_\w{1,32}_exps\.weight")
"""Tensors of a mixture that hold all experts of a layer, one behind the other."""


TOKENIZER = re.compile(
    r"tokenizer\.ggml\.(?:model|pre|tokens|merges|scores|token_type"
    r"|(?:bos|eos|eot|unknown)_token_id|add_(?:bos_token|eos_token|space_prefix))"
)
"""Keys that say how text becomes tokens: equal ones are one tokenizer."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in its file."""

    kind: int  # of ``enum ggml_type``
    elements: int
    start: int  # bytes from the start of the file
    row: int  # elements of the dimension that lies contiguously


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of a GGUF file."""

    values: dict[str, Value]
    """Values of the keys that hold numbers, strings or short lists of numbers."""

    lengths: dict[str, int]  # number of elements of each key that holds a list
    tensors: int  # number of tensors
    needed_bytes: int  # least length of a file that holds the data of all tensors
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that `KEPT_TENSORS` matches, by name."""

    tokenizer: str = ""
    """A hash of the keys of `TOKENIZER`; empty if there are none."""

    elements: int = 0  # numbers in all tensors
    expert_bytes: int = 0  # what tensors that `EXPERT_TENSORS` matches take


def parse(data: Buffer) -> Header:
    """
    Read the header at the start of *data*, which is the whole file.

    Raises:
        EndsTooSoon: If the file is shorter than its header.
        BadHeader: If it is no GGUF, of another version, or damaged.
    """
    reader = _ByteCursor(data)
    _check_magic_and_version(reader)
    tensors, keys = reader.next_u64(), reader.next_u64()
    if keys > MOST_KEYS or tensors > MOST_TENSORS:
        raise BadHeader(
            f"it claims to have {plural(keys, 'key')} and {plural(tensors, 'tensor')}"
        )
    values: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    hashes: dict[str, bytes] = {}
    for _ in range(keys):
        name, start = _read_key(reader, values, lengths)
        if TOKENIZER.fullmatch(name):
            hashes[name] = reader.hash_from(start)
    kept: dict[str, Tensor] = {}
    extent, elements, expert_bytes = _read_tensor_extent_and_totals(
        reader, tensors, kept
    )
    start = _align(reader.at, values.get("general.alignment", DEFAULT_ALIGNMENT))
    return Header(
        values=values,
        lengths=lengths,
        tensors=tensors,
        needed_bytes=start + extent if tensors else reader.at,
        kept={
            name: replace(tensor, start=start + tensor.start)
            for name, tensor in kept.items()
        },
        tokenizer=_joined_hash(hashes) if hashes else "",
        elements=elements,
        expert_bytes=expert_bytes,
    )


def _joined_hash(hashes: dict[str, bytes]) -> str:
    """One hash for those of several keys, in whatever order they stand."""
    named = (name.encode() + b"\0" + hashes[name] for name in sorted(hashes))
    return hashlib.sha256(b"".join(named)).hexdigest()


def guessed_kind_phrase(start: bytes) -> str:
    """The kind of a file that begins with *start*, as a phrase."""
    if start[8:10] == b'{"':
        return "a safetensors file"
    if start[8:12] in {b"blk.", b"outp"}:
        return "an importance matrix in the old format"
    if not start.strip(b"\0"):
        return "a stretch of zeros: a download that has only just begun"
    for beginning, phrase in _LOOKS:
        if start.lstrip().lower().startswith(beginning.lower()):
            return phrase
    return "a text file" if start.isascii() and 0 not in start else "something else"


class _ByteCursor:
    """A position in bytes that never passes their end."""

    def __init__(self, data: Buffer) -> None:
        self.at = 0
        self._data = data
        self._end = len(data)
        self._room = MOST_KEPT

    def skip(self, size: int) -> int:
        """Advance by *size* bytes; returns where they begin."""
        start = self.at
        if size > self._end - start:
            raise EndsTooSoon("it ends in the middle of its header")
        self.at = start + size
        return start

    def hash_from(self, start: int) -> bytes:
        """A hash of the bytes from *start* up to here."""
        return hashlib.sha256(self._data[start : self.at]).digest()

    def next_number(self, layout: struct.Struct) -> int | float | bool:
        start = self.skip(layout.size)
        value: int | float | bool = layout.unpack_from(self._data, start)[0]
        return value

    def next_u64(self) -> int:
        """The next number of 64 bits, without a sign."""
        return int(self.next_number(_U64))

    def next_u32(self) -> int:
        """The next number of 32 bits, without a sign."""
        return int(self.next_number(_U32))

    def next_bytes(self, size: int) -> bytes:
        """The next *size* bytes, copied."""
        start = self.skip(size)
        return bytes(self._data[start : start + size])

    def next_text_or_none(self) -> str | None:
        """The next string; None if it is too long to be kept."""
        size = self.next_u64()
        if not self.reserve_bytes(size):
            self.skip(size)
            return None
        return self.next_bytes(size).decode(errors="replace")

    def reserve_bytes(self, size: int) -> bool:
        """Whether *size* more bytes may be kept; they are counted if so."""
        if size > self._room:
            return False
        self._room -= size
        return True

    def skip_texts(self, count: int) -> None:
        # Inlined for speed: a vocabulary has hundreds of thousands of strings.
        data, at, last = self._data, self.at, self._end - _U64.size
        unpack = _U64.unpack_from
        for _ in range(count):
            if at > last:
                raise EndsTooSoon("it ends in the middle of its vocabulary")
            at += _U64.size + unpack(data, at)[0]
        self.at = at
        self.skip(0)

    def next_numbers(
        self, layout: struct.Struct, count: int
    ) -> tuple[int | float | bool, ...]:
        start = self.skip(layout.size * count)
        code = layout.format[1:]
        return struct.unpack_from(f"<{count}{code}", self._data, start)


def _check_magic_and_version(reader: _ByteCursor) -> None:
    """Stop at what is no GGUF, or one of another byte order or version."""
    if reader.next_bytes(len(MAGIC)) != MAGIC:
        raise BadHeader("it does not begin with the letters GGUF")
    version = reader.next_u32()
    # A big-endian 3 reads as 3 << 24.
    if version and not version & 0xFFFF:
        raise BadHeader("it was written for a machine with another byte order")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise BadHeader(f"it has GGUF version {version}, we know {known}")


def _read_key(
    reader: _ByteCursor, values: dict[str, Value], lengths: dict[str, int]
) -> tuple[str, int]:
    """
    Read the next key into *values*; of an array, its length into *lengths*.

    Returns:
        Its name, and where its value begins.

    Raises:
        BadHeader: If its name is empty or known, or its value of no known kind.
    """
    name = reader.next_text_or_none()
    # Zeros would otherwise parse as millions of keys with an empty name.
    if not name or name in values or name in lengths:
        raise BadHeader("its list of keys is damaged")
    start = reader.at
    kind = reader.next_u32()
    if kind == _STRING:
        text = reader.next_text_or_none()
        values[name] = "" if text is None else text
    elif kind == _ARRAY:
        _read_array(reader, name, values, lengths)
    else:
        values[name] = reader.next_number(_scalar_layout(kind))
    return name, start


def _read_array(
    reader: _ByteCursor, name: str, values: dict[str, Value], lengths: dict[str, int]
) -> None:
    """Read a list: its length, and its numbers if it is short; never strings."""
    kind, count = reader.next_u32(), reader.next_u64()
    if count > MOST_ELEMENTS:
        raise BadHeader(f"a list in it claims to have {count:,} elements")
    lengths[name] = count
    if kind == _STRING:
        reader.skip_texts(count)
        return
    layout = _scalar_layout(kind)
    if count > LONGEST_ARRAY or not reader.reserve_bytes(layout.size * count):
        reader.skip(layout.size * count)
    else:
        values[name] = reader.next_numbers(layout, count)


def _scalar_layout(kind: int) -> struct.Struct:
    """The layout of values of *kind*; stops at an unknown one."""
    layout = _SCALARS.get(kind)
    if layout is None:
        raise BadHeader(f"it holds a value of an unknown kind ({kind})")
    return layout


def _read_tensor_extent_and_totals(
    reader: _ByteCursor, tensors: int, kept: dict[str, Tensor]
) -> tuple[int, int, int]:
    """
    Bytes from the start of the data to the end of the last tensor, the numbers in all
    of them, and the bytes of experts; fills *kept*.
    """
    extent = elements = expert_bytes = 0
    for _ in range(tensors):
        length = reader.next_u64()
        if not 0 < length <= LONGEST_NAME:
            raise BadHeader("its list of tensors is damaged")
        name = reader.next_bytes(length)
        tensor, size = _read_tensor(reader)
        extent = max(extent, tensor.start + size)
        elements += tensor.elements
        expert_bytes += size if EXPERT_TENSORS.fullmatch(name) else 0
        if KEPT_TENSORS.fullmatch(name):
            kept[name.decode()] = tensor
    if extent > MOST_BYTES:
        raise BadHeader(f"its tensors claim to take {extent} bytes")
    return extent, elements, expert_bytes


def _read_tensor(reader: _ByteCursor) -> tuple[Tensor, int]:
    """The next tensor, its start counted from that of all data, and its bytes."""
    dimensions = reader.next_u32()
    if dimensions > MOST_DIMENSIONS:
        raise BadHeader(f"it holds a tensor of {dimensions} dimensions")
    lengths = [reader.next_u64() for _ in range(dimensions)]
    elements, row = math.prod(lengths), lengths[0] if lengths else 1
    kind = reader.next_u32()
    values, size = block_values_and_bytes(kind)
    return Tensor(kind, elements, reader.next_u64(), row), elements // values * size


def block_values_and_bytes(kind: int) -> tuple[int, int]:
    """
    Values and bytes of a block of tensors of *kind*, by ``enum ggml_type``.

    An unknown kind counts as 0 bytes, so that a newer file is not called too short.
    """
    return _block_sizes().get(kind, (1, 0))


@functools.cache
def _block_sizes() -> dict[int, tuple[int, int]]:
    """Values and bytes of a block, by ``enum ggml_type``."""
    from gguf import GGML_QUANT_SIZES

    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


def _align(at: int, alignment: object) -> int:
    """*at*, rounded up to a multiple of *alignment*; stops if that is none."""
    if not isinstance(alignment, int) or not 0 < alignment <= MOST_ALIGNMENT:
        raise BadHeader("its tensors are aligned to no number of bytes")
    return -(-at // alignment) * alignment
