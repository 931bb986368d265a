"""Folders: the source files below one, in an order that all machines share."""

import os
from collections.abc import Iterator
from pathlib import Path

from codeneedle import languages

SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
"""Folders of other people's code, and of none; hidden ones are skipped as well."""


def files_in(folder: Path) -> Iterator[Path]:
    """
    The files below *folder* in a known language, sorted by name in each folder.

    Links are followed, each file and folder is visited once. What is no file, such
    as a pipe, is passed over; opening it might never end. A folder that cannot be
    listed is given itself, as whoever reads it learns why.
    """
    real = os.path.realpath(folder)
    seen = {real}
    # A stack of our own: no depth of folders can exhaust the interpreter's.
    open_folders = [_listed(str(folder), real)]
    while open_folders:
        found = next(open_folders[-1], None)
        if found is None:
            open_folders.pop()
            continue
        path, real, is_folder = found
        if real in seen:
            continue
        seen.add(real)
        if is_folder:
            open_folders.append(_listed(path, real))
        else:
            yield Path(path)


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is passed over in a search."""
    return name in SKIPPED or (name[0] == "." and name not in {".", ".."})


def _listed(folder: str, real: str) -> Iterator[tuple[str, str, bool]]:
    """Of what is worth a visit in *folder*: path, real path, and if it is a folder."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        yield folder, f"{real}/.", False  # the second name keeps it from being seen
        return
    for entry in found:
        if is_skipped(entry.name):
            continue
        kind = _kind(entry)
        if kind is not None:
            # Only links need a look at every folder on the way.
            is_link = entry.is_symlink()
            place = os.path.realpath(entry.path) if is_link else f"{real}/{entry.name}"
            yield entry.path, place, kind == "folder"


def _kind(entry: os.DirEntry[str]) -> str | None:
    """``folder``, ``file`` if in a known language, or None."""
    try:
        if entry.is_dir():
            return "folder"
        is_source = languages.of_suffix(Path(entry.name).suffix) is not None
        return "file" if is_source and entry.is_file() else None
    except OSError:  # a link into a folder that is closed to us, or round in a circle
        return None
