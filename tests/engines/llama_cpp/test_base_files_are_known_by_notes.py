"""Base files: sized to the byte, used for the same identity alone."""

import os
from dataclasses import fields, replace

import pytest

from codeneedle.engines.llama_cpp.base_file import (
    MAGIC,
    BaseFile,
    Identity,
    predicted_bytes,
    scored_token_count,
)
from codeneedle.engines.tools import Reference

IDENTITY = Identity(
    text_sha256="aa" * 32,
    weights_sha256="bb" * 32,
    llama="0.6.0 (build 11434, commit abc)",
    reference="f16/f16",
    context=512,
    chunks_asked=4,
    vocabulary=260,
    arguments=("-ngl", "7"),
)


def content(*, context=512, fill=b"\0"):
    """A complete base file, filled with one byte."""
    header = MAGIC + b"".join(n.to_bytes(4, "little") for n in (context, 260, 4))
    whole = predicted_bytes(vocabulary=260, chunks=4, context=context)
    return header + fill * (whole - len(header))


KEPT = Reference(chunks=4, ppl=7.5, seconds=1.0)


@pytest.fixture
def kept(tmp_path):
    """A base file of `IDENTITY`, complete and with its note."""
    base = BaseFile.of(tmp_path, context=512)
    base.clear_files_for_writing()
    base.draft.write_bytes(content())
    base.keep_draft_with_note(IDENTITY, KEPT)
    return base


@pytest.mark.parametrize(
    ("vocabulary", "chunks", "size"),
    [(260, 4, 546_772), (259, 4, 546_772), (128_256, 564, 36_893_861_492)],
)
def test_the_size_is_predicted_to_the_byte(vocabulary, chunks, size):
    """Measured with b11434; the 37 GB for LLaMA 3 are of the tool's README."""
    assert size == predicted_bytes(vocabulary=vocabulary, chunks=chunks, context=512)


@pytest.mark.parametrize(
    ("chunks", "context", "scored"), [(4, 512, 1020), (1, 513, 256), (9, 1, 0)]
)
def test_only_the_second_half_of_a_chunk_is_scored(chunks, context, scored):
    """Its last token predicts nothing."""
    assert scored == scored_token_count(chunks=chunks, context=context)


def test_a_complete_file_of_the_same_identity_is_used(kept):
    assert KEPT == kept.usable_reference(IDENTITY)
    assert not kept.draft.exists()


@pytest.mark.parametrize("field", [field.name for field in fields(Identity)])
def test_a_file_of_another_identity_is_not_used(kept, field):
    value = getattr(IDENTITY, field)
    other = {str: f"{value}x", tuple: ("x",), bool: False, int: 999}[type(value)]

    assert kept.usable_reference(replace(IDENTITY, **{field: other})) is None


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        content()[:19],
        content()[:20],
        content()[:-1],
        content() + b"\0",
        b"GGUF" + content()[4:],
        content(context=256) + b"\0" * (546_772 - len(content(context=256))),
        content(fill=b"\1"),
        content()[:-1] + b"\1",
        content()[:300_000] + b"\1" + content()[300_001:],
        None,
    ],
    ids=[
        *("empty", "half a header", "header", "short", "long", "no base file"),
        *("other context", "other tokens", "other end", "other middle", "missing"),
    ],
)
def test_a_damaged_or_foreign_file_is_not_used(kept, damaged, golden):
    if damaged is None:
        kept.path.unlink()
    else:
        kept.path.write_bytes(damaged)

    assert golden == kept.fault(kept.path, IDENTITY, chunks=4)
    assert kept.usable_reference(IDENTITY) is None


@pytest.mark.parametrize("note", [None, b"", b"{", b"[]", b'{"chunks": 4}'])
def test_a_file_without_a_readable_note_is_not_used(kept, note):
    """The file itself does not state what it was made of."""
    kept.note_path.unlink()
    if note is not None:
        kept.note_path.write_bytes(note)

    assert kept.usable_reference(IDENTITY) is None


@pytest.mark.parametrize("which", ["path", "note_path", "draft"])
def test_whatever_is_in_the_place_of_a_base_file_is_removed(kept, which):
    place = getattr(kept, which)
    place.unlink(missing_ok=True)
    os.mkfifo(place)

    assert (which == "draft") == (kept.usable_reference(IDENTITY) is not None)
    kept.clear_files_for_writing()
    assert [] == list(kept.path.parent.iterdir())
