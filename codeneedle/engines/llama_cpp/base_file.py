"""
Base files: a reference's distributions on disk, in llama-perplexity's format; when one
is used again, how many tokens are scored, and which texts are too short.
"""

import contextlib
import hashlib
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from codeneedle.cache_types import Pair
from codeneedle.engines.distributions import values_per_row
from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.tools import DivergenceTask, Reference, ToolRun
from codeneedle.errors import BadInput, CellError, FolderUnusable
from codeneedle.system.contents import cached_content_hash
from codeneedle.system.files import (
    file_size_or_zero,
    open_regular,
    read_json_or_none,
    refuse_linked_folder,
    write_atomically,
)
from codeneedle.text import plural

MAGIC = b"_logits_"
HEADER = struct.Struct("<8sIii")

LEAST_SCORED = 100
"""With fewer scored tokens, the tool makes no statistics: ``perplexity.cpp``."""


FEWEST_CHUNKS = 2
"""Chunks without which llama-perplexity compares nothing."""


def scored_token_count(*, chunks: int, context: int) -> int:
    """
    How many tokens are compared: the second half of each chunk but its last token.

    Source:
        ``kl_divergence`` in ``perplexity.cpp`` of llama.cpp b11434.
    """
    return chunks * max(0, context - 1 - context // 2)


def predicted_bytes(*, vocabulary: int, chunks: int, context: int) -> int:
    """Exact size of a base file, in bytes."""
    scored = scored_token_count(chunks=chunks, context=context)
    tokens_bytes = 4 * chunks * context
    return HEADER.size + tokens_bytes + 2 * values_per_row(vocabulary) * scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a base file was made of; all of it must be equal for it to be used."""

    text_sha256: str  # of the text, as it was handed to the tool
    weights_sha256: str  # of the model
    llama: str  # the tool's version, as it states it
    reference: str  # cache types it ran with: ``f16/f16``
    context: int  # length of a chunk, in tokens
    chunks_asked: int  # chunks wanted; a short text has fewer
    vocabulary: int  # tokens the model knows
    arguments: tuple[str, ...] = ()  # further arguments that the tool was given
    rotation: bool = True  # whether it was free to rotate quantized values


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFileFacts:
    """What is stored beside a base file."""

    identity: Identity  # what it was made of
    chunks: int  # chunks in it
    size_bytes: int  # its length
    fingerprint: str  # SHA-256 of all of it
    ppl: float | None  # perplexity, before it was rounded into the file; None if untold
    seconds: float  # how long it took to make


@dataclass(frozen=True, slots=True)
class BaseFile:
    """The path of the base file of one context, whether it exists or not."""

    path: Path

    @classmethod
    def of(cls, folder: Path, *, context: int) -> Self:
        """
        The base file for chunks of *context* tokens, in the run folder *folder*.

        Raises:
            BadInput: If its own folder there is a link.
        """
        return cls(refuse_linked_folder(folder / "base") / f"{context}.kld")

    @property
    def note_path(self) -> Path:
        """Where its `BaseFileFacts` stand."""
        return self.path.with_name(f"{self.path.name}.json")

    @property
    def draft(self) -> Path:
        """Where it is written, until it is known to be complete."""
        return self.path.with_name(f"{self.path.name}.draft")

    def usable_reference(self, identity: Identity) -> Reference | None:
        """What it holds, if it is complete and was made of *identity*; else None."""
        note = read_json_or_none(self.note_path, BaseFileFacts)
        if note is None or note.identity != identity:
            return None
        if self.fault(self.path, identity, chunks=note.chunks) is not None:
            return None
        if cached_content_hash(self.path) != note.fingerprint:
            return None
        return Reference(chunks=note.chunks, ppl=note.ppl, seconds=note.seconds)

    @staticmethod
    def fault(path: Path, identity: Identity, *, chunks: int) -> str | None:
        """What is wrong with header or size of the file at *path*; None if nothing."""
        expected = predicted_bytes(
            vocabulary=identity.vocabulary, chunks=chunks, context=identity.context
        )
        try:
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                header = file.read(HEADER.size)
        except OSError as error:
            return error.strerror or str(error)
        # Unpacked, since a note may state more chunks than 32 bits can hold.
        stated = HEADER.unpack(header) if len(header) == HEADER.size else ()
        if stated != (MAGIC, identity.context, identity.vocabulary, chunks):
            return "its header is that of another file"
        if size != expected:
            return f"it has {size:,} bytes instead of {expected:,}"
        return None

    def keep_draft_with_note(self, identity: Identity, reference: Reference) -> None:
        """
        Make the draft, which has no `fault`, the base file, and note what it is of.

        Raises:
            OSError: If the disk refuses.
        """
        self.note_path.unlink(missing_ok=True)
        chunks = reference.chunks
        note = BaseFileFacts(
            identity=identity,
            chunks=chunks,
            size_bytes=self.draft.stat().st_size,
            fingerprint=cached_content_hash(self.draft),
            ppl=reference.ppl,
            seconds=reference.seconds,
        )
        self.draft.replace(self.path)
        # Last: a file without a note is never used.
        write_atomically(self.note_path, msgspec.json.format(msgspec.json.encode(note)))

    def clear_files_for_writing(self) -> None:
        """
        Make the folder, and remove the file, its note and its draft from it.

        Raises:
            OSError: If the disk refuses.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.note_path, self.path, self.draft):
            path.unlink(missing_ok=True)

    def present_bytes(self) -> int:
        """Bytes on disk that `clear_files_for_writing` would free."""
        return sum(
            path.stat().st_size for path in (self.path, self.draft) if path.is_file()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Run of a tool: it writes the base file of the reference, or compares with it."""

    task: DivergenceTask  # what is compared
    text: Path | None  # the text to write the base file from; None to compare
    log: Path  # receives what the tool says

    @property
    def pair(self) -> Pair:
        """Cache types that it runs with: the reference's to write, else the task's."""
        return self.task.pair if self.text is None else self.task.reference

    @property
    def base(self) -> Path:
        """Path of the base file to write, which is its draft, or to compare with."""
        file = BaseFile.of(self.task.folder, context=self.task.context)
        return file.path if self.text is None else file.draft

    def written_bytes(self) -> int:
        """What it has written of a base file, which grows while the log is silent."""
        return 0 if self.text is None else file_size_or_zero(self.base)

    def fault(self) -> str:
        """What is wrong with what came so far, as a phrase; empty if none is found."""
        return ""

    def first_nan_token(self) -> int | None:
        """Number, from 1, of the first token known to be NaN; None if none is yet."""
        return None

    def too_short_error(self, lengths: "Lengths") -> BadInput:
        """The error for a text of these *lengths*."""
        return text_too_short_error(
            self.task.text_name,
            lengths,
            context=self.task.context,
            chunks=self.task.chunks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The length of a text that is too short, in tokens."""

    present: int  # what the text has, at most
    needed: int  # what it takes, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFileStatistics:
    """What a tool says of the base file that it wrote."""

    chunks: int  # chunks in it
    ppl: float | None  # perplexity, before rounding; None if untold


Notify = Callable[[ToolRun], None]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFileTool(ABC):
    """The part of an `tools.DivergenceTool` that keeps references in base files."""

    version: str  # see `tools.DivergenceTool`
    model: ModelSpec  # what it computes with
    arguments: tuple[str, ...] = ()  # see `tools.DivergenceTool`

    @abstractmethod
    def write_base(
        self, job: Job, note: Notify, progress: Progress
    ) -> BaseFileStatistics:
        """
        Run *job* to its end; it writes its draft.

        Raises:
            BadInput: If the text turns out to be too short.
            CellError: See `tools.DivergenceTool.write_reference`.
        """

    def check(
        self, *, text_name: str, text_bytes: int, context: int, chunks: int
    ) -> None:
        """Refuse a text that is too short; see `tools.DivergenceTool`."""
        # A text has no more tokens than bytes, but for one or two at the start.
        lengths = Lengths(
            present=text_bytes + 2, needed=max(FEWEST_CHUNKS, chunks) * context
        )
        if lengths.present < lengths.needed:
            raise text_too_short_error(
                text_name, lengths, context=context, chunks=chunks
            )
        refuse_too_few_tokens(chunks=chunks, context=context)

    def bytes_to_write(self, folder: Path, *, context: int, chunks: int) -> int:
        """Bytes that are missing beside what it replaces."""
        present = BaseFile.of(folder, context=context).present_bytes()
        return max(0, self.base_bytes(chunks=chunks, context=context) - present)

    def base_bytes(self, *, chunks: int, context: int) -> int:
        """Size of a base file of this model, in bytes."""
        return predicted_bytes(
            vocabulary=self.model.weights.vocabulary, chunks=chunks, context=context
        )

    def identity(self, task: DivergenceTask) -> Identity:
        """What the base file of *task* is made of."""
        return Identity(
            text_sha256=hashlib.sha256(task.text).hexdigest(),
            weights_sha256=task.weights_sha256,
            llama=self.version,
            reference=str(task.reference),
            context=task.context,
            chunks_asked=task.chunks,
            vocabulary=self.model.weights.vocabulary,
            arguments=self.arguments,
            rotation=self.model.rotation,
        )

    def find_stored_reference(self, task: DivergenceTask) -> Reference | None:
        """The base file of *task*; None unless it is whole and of the same input."""
        base = BaseFile.of(task.folder, context=task.context)
        return base.usable_reference(self.identity(task))

    def write_reference(
        self, task: DivergenceTask, *, log: Path, note: Notify, progress: Progress
    ) -> Reference:
        """Run the tool on the text of *task*; see `tools.DivergenceTool`."""
        base = BaseFile.of(task.folder, context=task.context)
        identity = self.identity(task)
        with translating_folder_errors(base.path.parent):
            base.clear_files_for_writing()
            text = write_text_file(base.path.parent, task.text)
        started = time.monotonic()
        try:
            written = self.write_base(
                Job(task=task, text=text, log=log), note, progress
            )
            fault = base.fault(base.draft, identity, chunks=written.chunks)
            if fault is not None:
                raise CellError(
                    f"the base file is not whole: {fault}",
                    hint=f"Is the disk of {base.path.parent} full?",
                )
            refuse_too_few_tokens(chunks=written.chunks, context=task.context)
            seconds = round(time.monotonic() - started, 4)
            kept = Reference(chunks=written.chunks, ppl=written.ppl, seconds=seconds)
            with translating_folder_errors(base.path.parent):
                base.keep_draft_with_note(identity, kept)
            return kept
        finally:
            with contextlib.suppress(OSError):
                base.draft.unlink(missing_ok=True)


def write_text_file(folder: Path, text: bytes) -> Path:
    """
    The file in *folder* that holds *text*, for a tool that reads files alone.

    Raises:
        OSError: If the disk refuses.
    """
    path = folder / f"{hashlib.sha256(text).hexdigest()[:16]}.txt"
    write_atomically(path, text)
    return path


@contextlib.contextmanager
def translating_folder_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` of a block that writes to *folder* into a `FolderUnusable`."""
    try:
        yield
    except OSError as error:
        raise FolderUnusable(folder=folder, reason=str(error)) from error


def text_too_short_error(
    name: str, lengths: Lengths, *, context: int, chunks: int
) -> BadInput:
    """The error for the text of this *name*; its hint names what fits."""
    fitting = lengths.present // context
    shorter = lengths.present // max(FEWEST_CHUNKS, chunks)
    is_shorter = FEWEST_CHUNKS <= fitting < chunks
    ways = [
        f"{option} {value} or less"
        for option, value, is_possible in (
            (
                "--chunks",
                fitting,
                is_shorter and _has_enough_scored_tokens(fitting, context),
            ),
            (
                "--divergence-context",
                shorter,
                _has_enough_scored_tokens(chunks, shorter),
            ),
        )
        if is_possible
    ]
    least = max(FEWEST_CHUNKS, chunks)
    fewest = ", the fewest," if least == FEWEST_CHUNKS else ""
    return BadInput(
        source=name,
        reason=f"it has at most {lengths.present:,} tokens, and comparing "
        f"distributions on {least:,} chunks of {context:,} tokens{fewest} takes "
        f"{lengths.needed:,}",
        hint=f"Use {', or '.join([*ways, 'a longer --text'])}.",
    )


def _has_enough_scored_tokens(chunks: int, context: int) -> bool:
    """Whether so many chunks of *context* tokens have `LEAST_SCORED` scored ones."""
    return scored_token_count(chunks=chunks, context=context) >= LEAST_SCORED


def refuse_too_few_tokens(*, chunks: int, context: int) -> None:
    """
    Stop at fewer scored tokens than statistics are made of.

    Raises:
        BadInput: Naming how many there are.
    """
    if _has_enough_scored_tokens(chunks, context):
        return
    scored = scored_token_count(chunks=chunks, context=context)
    raise BadInput(
        source="--chunks",
        reason=f"{plural(chunks, 'chunk')} of {context:,} tokens score {scored} "
        f"tokens; llama-perplexity makes no statistics of fewer than {LEAST_SCORED}",
        hint="Use more --chunks, a larger --divergence-context or a longer --text.",
    )
