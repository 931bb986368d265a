"""Writes generated corpora to disk."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from codeneedle.files import write_whole
from codeneedle.random_bodies import Knobs, text_of
from codeneedle.store import FolderUnwritable
from codeneedle.units import plural, size


@dataclass(frozen=True, slots=True)
class Written:
    """A generated corpus, where it is, and what tells it from others."""

    path: Path
    knobs: Knobs
    size_bytes: int
    sha256: str

    def __str__(self) -> str:
        functions = plural(self.knobs.functions, "function")
        return (
            f"{self.path}: {functions}, {size(self.size_bytes)}, sha256 {self.sha256}"
        )


def write(knobs: Knobs, path: Path) -> Written:
    """
    Generate the text of *knobs* into *path*; what was there is replaced.

    Raises:
        FolderUnwritable: If the disk refuses.
    """
    data = text_of(knobs).encode()
    try:
        write_whole(path, data)
    except OSError as error:
        raise FolderUnwritable(folder=path.parent, reason=str(error)) from error
    return Written(path, knobs, len(data), hashlib.sha256(data).hexdigest())
