"""Base files: size predicted, contents verified before use."""

import os
from dataclasses import fields, replace

import pytest

from codeneedle.engines.engine import Reference
from codeneedle.engines.llama_cpp.perplexity import (
    MAGIC,
    BaseFile,
    Identity,
    predicted_bytes,
    row_values,
    scored_tokens,
)

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


def content(*, context=512, vocabulary=260, chunks=4, fill=b"\0"):
    """A complete base file, filled with one byte."""
    numbers = (context, vocabulary, chunks)
    header = MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers)
    whole = predicted_bytes(vocabulary=vocabulary, chunks=chunks, context=context)
    return header + fill * (whole - len(header))


@pytest.fixture
def kept(tmp_path):
    """A base file of `IDENTITY`, complete and with its note."""
    base = BaseFile.of(tmp_path, context=512)
    base.make_room()
    base.draft.write_bytes(content())
    base.keep(IDENTITY, chunks=4, ppl=7.5, seconds=1.0)
    return base


def test_the_size_is_predicted_to_the_byte():
    """
    The built-in model over 4 chunks of 512 tokens: measured with b11434.
    """
    assert 546_772 == predicted_bytes(vocabulary=260, chunks=4, context=512)


def test_the_prediction_agrees_with_the_published_size():
    """
    37 GB for LLaMA 3 over the 564 chunks of wikitext-2, says the tool's README.
    """
    size = predicted_bytes(vocabulary=128_256, chunks=564, context=512)

    assert 37 == round(size / 1e9)


def test_an_odd_vocabulary_is_rounded_up():
    """
    A row has an even number of 16-bit values.
    """
    assert row_values(260) == row_values(259) == 264


@pytest.mark.parametrize(
    ("chunks", "context", "scored"), [(4, 512, 1020), (1, 513, 256), (9, 1, 0)]
)
def test_only_the_second_half_of_a_chunk_is_scored(chunks, context, scored):
    """
    Its last token predicts nothing.
    """
    assert scored == scored_tokens(chunks=chunks, context=context)


def test_a_complete_file_of_the_same_identity_is_used(kept):
    """
    Chunks, perplexity and seconds are those of its note.
    """
    assert Reference(chunks=4, ppl=7.5, seconds=1.0) == kept.usable(IDENTITY)
    assert not kept.draft.exists()


@pytest.mark.parametrize("field", [field.name for field in fields(Identity)])
def test_a_file_of_another_identity_is_not_used(kept, field):
    """
    Text, weights, build, types, context, chunks, arguments: all must be the same.
    """
    value = getattr(IDENTITY, field)
    other = {str: f"{value}x", tuple: ("x",), bool: False, int: 999}[type(value)]

    assert kept.usable(replace(IDENTITY, **{field: other})) is None


@pytest.mark.parametrize("size", [0, 7, 19, 20, 5000, 546_771])
def test_a_truncated_file_is_not_used(kept, size):
    """
    One missing byte suffices.
    """
    kept.path.write_bytes(content()[:size])

    assert kept.usable(IDENTITY) is None


def test_a_longer_file_is_not_used(kept):
    """
    Its size must be as predicted.
    """
    kept.path.write_bytes(content() + b"\0")

    assert kept.usable(IDENTITY) is None


@pytest.mark.parametrize(
    "foreign",
    [
        content(fill=b"\1"),
        b"GGUF" + content()[4:],
        content(context=256) + b"\0" * (546_772 - len(content(context=256))),
        content()[:-1] + b"\1",
    ],
    ids=["other tokens", "no base file", "other context", "other end"],
)
def test_a_foreign_file_of_the_right_size_is_not_used(kept, foreign):
    """
    The note has a hash of its header, its tokens and its end.
    """
    assert 546_772 == len(foreign)
    kept.path.write_bytes(foreign)

    assert kept.usable(IDENTITY) is None


@pytest.mark.parametrize("note", [None, b"", b"{", b"[]", b'{"chunks": 4}'])
def test_a_file_without_a_readable_note_is_not_used(kept, note):
    """
    The file itself does not state what it was made of.
    """
    if note is None:
        kept.note_path.unlink()
    else:
        kept.note_path.write_bytes(note)

    assert kept.usable(IDENTITY) is None


def test_a_note_without_a_file_is_not_used(kept):
    """
    Users may delete the file to free disk.
    """
    kept.path.unlink()

    assert kept.usable(IDENTITY) is None


def test_making_room_removes_file_note_and_draft(kept):
    """
    A file that is written again has no note until it is complete.
    """
    kept.make_room()

    assert [] == list(kept.path.parent.iterdir())


def test_a_fault_is_a_phrase(kept):
    """
    A complete file has none; a missing one has the system's reason.
    """
    assert kept.fault(kept.path, IDENTITY, chunks=4) is None
    kept.path.write_bytes(content()[:300_000])
    said = "it has 300,000 bytes instead of 546,772"
    assert said == kept.fault(kept.path, IDENTITY, chunks=4)
    kept.path.write_bytes(b"")
    said = "its header is that of another file"
    assert said == kept.fault(kept.path, IDENTITY, chunks=4)
    kept.path.unlink()
    said = "No such file or directory"
    assert said == kept.fault(kept.path, IDENTITY, chunks=4)


@pytest.mark.parametrize("which", ["path", "note_path"])
def test_a_pipe_in_the_place_of_a_base_file_is_not_waited_for(kept, which):
    """
    Hole 8: reading it blocked without a word.
    """
    place = getattr(kept, which)
    place.unlink()
    os.mkfifo(place)

    assert kept.usable(IDENTITY) is None
    kept.make_room()
    assert not list(kept.path.parent.iterdir())
