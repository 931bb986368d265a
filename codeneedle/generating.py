"""Writes generated corpora to disk."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from codeneedle.errors import RequestError
from codeneedle.files import write_whole
from codeneedle.random_bodies import HEADER, Knobs, text_of
from codeneedle.store import FolderUnwritable
from codeneedle.units import plural, size


class FileInTheWay(RequestError):  # noqa: N818 - named after the fact
    """A file that we did not write stands where a corpus should go."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"{path} is there already, and is no generated corpus",
            hint="Choose another --out, or move that file away.",
        )


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
    Generate the text of *knobs* into *path*; an earlier one there is replaced.

    Raises:
        FileInTheWay: If something else is there.
        FolderUnwritable: If the disk refuses.
    """
    data = text_of(knobs).encode()
    try:
        if path.exists() and not _is_generated(path):
            raise FileInTheWay(path=path)
        write_whole(path, data)
    except OSError as error:
        raise FolderUnwritable(folder=path.parent, reason=str(error)) from error
    return Written(path, knobs, len(data), hashlib.sha256(data).hexdigest())


def _is_generated(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER.encode()
