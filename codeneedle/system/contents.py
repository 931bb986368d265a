"""
Hashes of the contents of files, and the files that words of a command line name. A hash
is kept for as long as its file is the same by `files.file_state_text`.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from codeneedle.system.files import (
    cache_folder,
    file_state_text,
    read_json_or_none,
    write_json_if_possible,
)

KEPT_FROM_BYTES = 1 << 20
"""Size of a file from which on its hash is kept: less is read as fast as a note."""


@dataclass(frozen=True, slots=True)
class _ContentHash:
    """The note of a hash, and of the file that it was of."""

    file: str
    sha256: str


def cached_content_hash(path: Path) -> str:
    """SHA-256 of the file at *path*; empty if it cannot be read."""
    try:
        same, size = file_state_text(path), path.stat().st_size
        if size < KEPT_FROM_BYTES:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        name = hashlib.sha256(same.encode(errors="replace")).hexdigest()[:32]
        note = cache_folder() / "contents" / f"{name}.json"
        if known := read_json_or_none(note, _ContentHash):
            return known.sha256
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        write_json_if_possible(note, _ContentHash(path.name, digest))
    except OSError:
        return ""
    return digest


def joint_hash(paths: Iterable[Path]) -> str:
    """A hash of the contents of all files at *paths*, links resolved, in any order."""
    files = {path.resolve() for path in paths}
    hashes = sorted(cached_content_hash(path) for path in files)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def existing_files_in_words(words: Iterable[str]) -> Iterator[Path]:
    """
    The files that *words* of a command line name, each once.

    A word names one by itself, behind ``=``, as an item of a list with commas, or in
    front of a colon: ``--lora-scaled a.gguf:0.5``.
    """
    seen: set[Path] = set()
    for word in words:
        for name in _possible_file_names(word):
            path = Path(name)
            with contextlib.suppress(OSError, ValueError):
                if path.is_file() and path not in seen:
                    seen.add(path)
                    yield path


def _possible_file_names(word: str) -> Iterator[str]:
    """What may name a file in *word*: it, its value, items, each without a colon."""
    for part in (word, word.partition("=")[2]):
        for item in dict.fromkeys((part, *part.split(","))):
            yield from filter(None, (item, item.rpartition(":")[0]))


def file_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """The hashes of the files at *paths* by name, those of equal names numbered."""
    hashes: dict[str, str] = {}
    for path in paths:
        name, number = path.name, 1
        while name in hashes:
            number += 1
            name = f"{path.name} ({number})"
        hashes[name] = cached_content_hash(path)
    return hashes
