"""llama-perplexity's base files: the reference's logits, their size, their identity."""

import contextlib
import hashlib
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from codeneedle.engines.engine import Reference
from codeneedle.system.files import open_regular, read_regular, write_whole

MAGIC = b"_logits_"
_HEADER = struct.Struct("<8sIii")
_TAIL_BYTES = 1 << 16

LEAST_SCORED = 100
"""With fewer scored tokens, the tool makes no statistics: ``perplexity.cpp``."""


def scored_tokens(*, chunks: int, context: int) -> int:
    """
    How many tokens are compared: the second half of each chunk but its last token.

    Source:
        ``kl_divergence`` in ``perplexity.cpp`` of llama.cpp b11434.
    """
    return chunks * max(0, context - 1 - context // 2)


def row_values(vocabulary: int) -> int:
    """
    16-bit values that a scored token takes: an even vocabulary, scale and minimum.

    Source:
        ``nv`` in ``process_logits``, ``perplexity.cpp`` of llama.cpp b11434.
    """
    return 2 * ((vocabulary + 1) // 2) + 4


def predicted_bytes(*, vocabulary: int, chunks: int, context: int) -> int:
    """Exact size of a base file, in bytes."""
    scored = scored_tokens(chunks=chunks, context=context)
    tokens_bytes = 4 * chunks * context
    return _HEADER.size + tokens_bytes + 2 * row_values(vocabulary) * scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """
    What a base file was made of; all of it must be equal for it to be used.

    Attributes:
        text_sha256: Of the text, as it was handed to the tool.
        weights_sha256: Of the model.
        llama: The tool's version, as it states it.
        reference: Cache types it ran with: ``f16/f16``.
        context: Length of a chunk, in tokens.
        chunks_asked: Chunks wanted; a short text has fewer.
        vocabulary: Tokens the model knows.
        arguments: Further arguments that the tool was given.
        rotation: Whether it was free to rotate quantized values.
    """

    text_sha256: str
    weights_sha256: str
    llama: str
    reference: str
    context: int
    chunks_asked: int
    vocabulary: int
    arguments: tuple[str, ...] = ()
    rotation: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """
    What is stored beside a base file.

    Attributes:
        identity: What it was made of.
        chunks: Chunks in it.
        size_bytes: Its length.
        fingerprint: SHA-256 of its header, its tokens and its end.
        ppl: Perplexity of the reference, before it was rounded into the file.
        seconds: How long it took to make.
    """

    identity: Identity
    chunks: int
    size_bytes: int
    fingerprint: str
    ppl: float
    seconds: float


@dataclass(frozen=True, slots=True)
class BaseFile:
    """The path of the base file of one context, whether it exists or not."""

    path: Path

    @classmethod
    def of(cls, folder: Path, *, context: int) -> "BaseFile":
        """That of *context* tokens, in the run folder *folder*."""
        return cls(folder / "base" / f"{context}.kld")

    @property
    def note_path(self) -> Path:
        """Of its `Note`."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def draft(self) -> Path:
        """Where it is written, until it is known to be complete."""
        return self.path.with_name(f"{self.path.name}.draft")

    def usable(self, identity: Identity) -> Reference | None:
        """What it holds, if it is complete and was made of *identity*; else None."""
        note = self._note()
        if note is None or note.identity != identity:
            return None
        is_whole = self.fault(self.path, identity, chunks=note.chunks) is None
        if not is_whole or _fingerprint(self.path, note) != note.fingerprint:
            return None
        return _reference(note)

    @staticmethod
    def fault(path: Path, identity: Identity, *, chunks: int) -> str | None:
        """What is wrong with the file at *path*, as a phrase; None if nothing."""
        expected = predicted_bytes(
            vocabulary=identity.vocabulary, chunks=chunks, context=identity.context
        )
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                header = file.read(_HEADER.size)
        except OSError as error:
            return error.strerror or str(error)
        # Unpacked, since a note may state more chunks than 32 bits can hold.
        stated = _HEADER.unpack(header) if len(header) == _HEADER.size else ()
        if stated != (MAGIC, identity.context, identity.vocabulary, chunks):
            return "its header is that of another file"
        if size != expected:
            return f"it has {size:,} bytes instead of {expected:,}"
        return None

    def keep(
        self, identity: Identity, *, chunks: int, ppl: float, seconds: float
    ) -> Reference:
        """
        Make the draft, which has no `fault`, the base file.

        Raises:
            OSError: If the disk refuses.
        """
        self._forget()
        note = Note(
            identity=identity,
            chunks=chunks,
            size_bytes=self.draft.stat().st_size,
            fingerprint="",
            ppl=ppl,
            seconds=seconds,
        )
        fingerprint = _fingerprint(self.draft, note)
        note = replace(note, fingerprint=fingerprint)
        self.draft.replace(self.path)
        # Last: a file without a note is never used.
        write_whole(self.note_path, msgspec.json.format(msgspec.json.encode(note)))
        return _reference(note)

    def drop_draft(self) -> None:
        """Remove the draft."""
        with contextlib.suppress(OSError):
            self.draft.unlink(missing_ok=True)

    def make_room(self) -> None:
        """
        Remove the file, its note and its draft, before it is written.

        Raises:
            OSError: If the disk refuses.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._forget()
        self.path.unlink(missing_ok=True)
        self.draft.unlink(missing_ok=True)

    def present_bytes(self) -> int:
        """Bytes on disk that `make_room` would free."""
        return sum(
            path.stat().st_size for path in (self.path, self.draft) if path.is_file()
        )

    def _forget(self) -> None:
        self.note_path.unlink(missing_ok=True)

    def _note(self) -> Note | None:
        try:
            return msgspec.json.decode(read_regular(self.note_path) or b"", type=Note)
        except (OSError, ValueError, RecursionError):
            return None


def _reference(note: Note) -> Reference:
    return Reference(chunks=note.chunks, ppl=note.ppl, seconds=note.seconds)


def _fingerprint(path: Path, note: Note) -> str:
    """Of the header, the tokens and the end; the whole file may be gigabytes."""
    digest = hashlib.sha256()
    context = note.identity.context
    with contextlib.suppress(OSError), open_regular(path) as file:
        digest.update(file.read(_HEADER.size + 4 * note.chunks * context))
        file.seek(-min(_TAIL_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
        digest.update(file.read())
    return digest.hexdigest()
