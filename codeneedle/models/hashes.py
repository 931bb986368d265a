"""The hash of a model's files, cached; whether they are still those that were read."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from codeneedle.errors import BadInput, WeightsUnusable
from codeneedle.models.mlx_folder import read_folder
from codeneedle.models.weights import (
    FOLDER_FILE,
    Weights,
    identity_of,
    read_header,
    unreadable,
)
from codeneedle.system.files import cache_folder, read_note, write_note
from codeneedle.text import harmless

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes there are."""

_CHUNK_BYTES = 4 << 20
_SHORT_HASH = 12
_TRIES = 3


def sha256(weights: Weights, *, progress: Progress | None = None) -> str:
    """
    The hash of the file, or of all parts in order, as hexadecimal digits; that of
    the name where only that is known.

    Kept in the cache folder, for as long as `files.identity` is the same.

    Args:
        weights: The model.
        progress: Told how far the reading is.

    Raises:
        WeightsUnusable: If a file is gone, cannot be read, or has another header than
            when *weights* was read from it.
    """
    if not weights.is_read:
        return hashlib.sha256(weights.name.encode(errors="replace")).hexdigest()
    digest = _sha256(weights, progress)
    if identity_of(weights.files) != weights.identity:
        read = read_folder if weights.path.name == FOLDER_FILE else read_header
        now = read(weights.path)
        if replace(now, identity=weights.identity) != weights:
            raise _changing(weights.path)
    return digest


def refuse_replaced(
    weights: Weights, *, expected: str, progress: Progress | None = None
) -> None:
    """
    Stop if the files have other contents than when *weights* was read from them.

    Microseconds if their identity is the same; else they are hashed again, since
    renaming them, linking to them or restoring a copy changes their identity, too.

    Args:
        weights: The model as it was.
        expected: Its hash.
        progress: As of `sha256`.

    Raises:
        BadInput: If they have another hash.
        WeightsUnusable: If a file is gone, cannot be read, or keeps changing.
    """
    # Made-up weights are no files.
    if weights.identity and identity_of(weights.files) != weights.identity:
        found = _sha256(weights, progress)
        if found != expected:
            raise BadInput(
                source=weights.path,
                reason="other weights than those that the sweep began with: sha256 "
                f"{found[:_SHORT_HASH]}, was {expected[:_SHORT_HASH]}",
                hint="What has finished is kept. Put the former file back and sweep "
                "again, or choose another folder with --out.",
            )


def _sha256(weights: Weights, progress: Progress | None) -> str:
    """The hash of the files, whose identity is the same before and after reading."""
    for _ in range(_TRIES):
        identity = identity_of(weights.files)
        note = _note(identity)
        known = read_note(note, _Hash)
        digest = known.sha256 if known else _digest(weights, progress)
        # Tried again: making a link or a backup meanwhile changes the identity, too.
        if identity_of(weights.files) == identity:
            if not known:
                write_note(note, _Hash(harmless(str(weights.path)), digest))
            return digest
    raise _changing(weights.path)


def _changing(path: Path) -> WeightsUnusable:
    return WeightsUnusable(
        path=path,
        reason="changes while it is read",
        hint="Is it still being downloaded or copied? Wait for the end of that.",
    )


@dataclass(frozen=True, slots=True)
class _Hash:
    """The note of a hash, and of the file that it was of."""

    file: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


def _note(identity: str) -> Path:
    data = identity.encode(errors="surrogateescape")
    name = hashlib.sha256(data).hexdigest()[:32]
    return cache_folder() / "weights" / f"{name}.json"


def _digest(weights: Weights, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    done = 0
    for path in weights.files:
        try:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    done += count
                    if progress is not None:
                        progress(done, weights.size_bytes)
        except OSError as error:
            raise unreadable(path, error) from error
    return digest.hexdigest()
