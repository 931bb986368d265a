"""Hashes of model files, remembered for as long as the files stay what they are."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from codeneedle.cache import cache_folder
from codeneedle.errors import MachineError, RequestError
from codeneedle.files import write_whole
from codeneedle.keeping import why
from codeneedle.weights import Weights, WeightsUnreadable, identity_of, read_header

_CHUNK_BYTES = 4 << 20
_SHORT_HASH = 12
_TRIES = 3


class WeightsInMotion(MachineError):  # noqa: N818 - named after the fact
    """The file was written to while it was looked at."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"{path} changes while it is read",
            hint="Is it still being downloaded or copied? Wait for the end of that.",
        )


class WeightsReplaced(RequestError):  # noqa: N818 - named after the fact
    """Other weights lie where those were that the sweep began with."""

    def __init__(self, *, path: Path, was: str, now: str) -> None:
        super().__init__(
            f"the weights at {path} were replaced while the sweep ran: "
            f"sha256 {was[:_SHORT_HASH]}, now {now[:_SHORT_HASH]}",
            hint="What has finished is kept. Put the former file back and sweep "
            "again, or choose another folder with --out.",
        )


def sha256(
    weights: Weights, *, progress: Callable[[int, int], None] | None = None
) -> str:
    """
    The hash of the file, or of all parts in order, as hexadecimal digits.

    Remembered in the cache folder for as long as `files.identity` is the same.

    Args:
        weights: The model.
        progress: Called with the bytes read so far and the bytes there are.

    Raises:
        MachineError: If a file is gone, cannot be read, or has changed since its
            header was read, so that it says something else.
    """
    digest = _sha256(weights, progress)
    if identity_of(weights.files) != weights.identity and not _says_the_same(weights):
        raise WeightsInMotion(path=weights.path)
    return digest


def refuse_replaced(weights: Weights, *, expected: str) -> None:
    """
    Stop if the files are not those any more that *weights* was read from.

    A few microseconds as long as nothing touches them. Touched ones are hashed
    again: those that were merely renamed, linked to or restored are the same.

    Args:
        weights: The model as it was.
        expected: Its hash.

    Raises:
        WeightsReplaced: If they have another hash.
        MachineError: If a file is gone, cannot be read, or changes all the time.
    """
    # Made-up weights are no files.
    if weights.identity and identity_of(weights.files) != weights.identity:
        found = _sha256(weights, None)
        if found != expected:
            raise WeightsReplaced(path=weights.path, was=expected, now=found)


def _says_the_same(weights: Weights) -> bool:
    now = read_header(weights.path)
    return replace(now, identity=weights.identity) == weights


def _sha256(weights: Weights, progress: Callable[[int, int], None] | None) -> str:
    """The hash of files that stay what they are while they are read."""
    for _ in range(_TRIES):
        identity = identity_of(weights.files)
        note = _note(identity)
        remembered = _remembered(note)
        digest = remembered or _digest(weights, progress)
        # Not so if somebody writes to them; but a link or a backup is soon made.
        if identity_of(weights.files) == identity:
            if not remembered:
                _remember(note, weights.path, digest)
            return digest
    raise WeightsInMotion(path=weights.path)


def _remember(note: Path, path: Path, digest: str) -> None:
    # A cache that cannot be written costs time, nothing else.
    with contextlib.suppress(OSError):
        content = json.dumps({"file": str(path), "sha256": digest})
        write_whole(note, content.encode())


def _note(identity: str) -> Path:
    data = identity.encode(errors="surrogateescape")
    name = hashlib.sha256(data).hexdigest()[:32]
    return cache_folder() / "weights" / f"{name}.json"


def _remembered(note: Path) -> str | None:
    try:
        digest = json.loads(note.read_bytes())["sha256"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    is_digest = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)
    return digest if is_digest else None


def _digest(weights: Weights, progress: Callable[[int, int], None] | None) -> str:
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
            raise WeightsUnreadable(path=path, reason=why(error)) from error
    return digest.hexdigest()
