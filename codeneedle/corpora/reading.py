"""Source files: found in folders, read as text, and joined into one text."""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from codeneedle.corpora import languages
from codeneedle.corpora.needles import Function
from codeneedle.errors import BadInput
from codeneedle.text import visible

MAX_BYTES = 16_000_000
"""
Most text of a corpus, and of a file. It is four million tokens or more, which no
context holds, and a parser's tree of it takes up to 3 GB.
"""

SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", "venv", "site-packages"},
)
"""Folders of installed or generated code; hidden folders are skipped as well."""

BLANK = "empty"
"""The reason that is not reported of one file among many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    A file of a corpus.

    Attributes:
        label: Its path as the corpus names it, with slashes, safe to print.
        suffix: Of the language that it is read as, with the dot.
        read: Returns its text, whose lines end with newlines and are verbatim
            otherwise. Raises `BadInput` if there is none.
    """

    label: str
    suffix: str
    read: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedText:
    """
    The text of several files, each below a comment line that names it.

    Attributes:
        text: Of a single file it has no such line.
        functions: All that were found, short ones too, by their lines in *text*.
        files: How many are in *text*.
        left_out: Label and reason of files that are not in *text*, and of those
            whose functions could not be found.
    """

    text: str
    functions: tuple[Function, ...]
    files: int
    left_out: tuple[tuple[str, str], ...]


def joined(sources: Iterable[Source], *, limit_bytes: int = MAX_BYTES) -> JoinedText:
    """
    Read *sources* in order, as one text, and find the functions in it.

    The text ends before the first file that would make it longer than `MAX_BYTES`;
    that one and all after it are left out.

    Args:
        sources: Files in the order of the text; the blank ones are passed over.
        limit_bytes: Reading stops with the file that exceeds it, which is part of
            the text; what comes after it is not reported.

    Raises:
        BadInput: If a file is in no known language.
    """
    left_out: list[tuple[str, str]] = []
    read = list(_read(sources, limit_bytes, left_out))
    parts: list[str] = []
    functions: list[Function] = []
    lines = 0
    for source, text in read:
        is_alone = len(read) == 1
        parts.append(text if is_alone else _below_heading(source, text))
        above = lines if is_alone else lines + 1
        try:
            found = languages.functions_in(text, source.suffix)
        except languages.Unparsable as error:
            left_out.append((source.label, str(error)))
        else:
            functions += [replace(each, line=each.line + above) for each in found]
        lines += parts[-1].count("\n")
    return JoinedText(
        text="".join(parts),
        functions=tuple(functions),
        files=len(read),
        left_out=tuple(left_out),
    )


def _read(
    sources: Iterable[Source], limit_bytes: int, left_out: list[tuple[str, str]]
) -> Iterator[tuple[Source, str]]:
    """Each readable source with its text; the others go to *left_out*."""
    size = 0
    for source in sources:
        if size > MAX_BYTES:
            left_out.append((source.label, _BEYOND))
            continue
        try:
            text = source.read()
        except BadInput as error:
            if error.reason != BLANK:
                left_out.append((source.label, error.reason))
            continue
        size += len(text.encode())
        if size > MAX_BYTES:
            left_out.append((source.label, _BEYOND))
            continue
        yield source, text
        if size > limit_bytes:
            return


_LIMIT = f"{MAX_BYTES // 1_000_000} MB"
_BEYOND = f"beyond the first {_LIMIT} of source text"


def _below_heading(source: Source, text: str) -> str:
    """*text* below a comment line that names the file, in its language."""
    language = languages.of_suffix(source.suffix)
    heading = (language.comment if language else "# {}").format(source.label)
    end = "" if text.endswith("\n") else "\n"
    return f"{heading}\n{text}{end}"


# --- finding files


def files_in(folder: Path) -> Iterator[Path]:
    """
    The files below *folder* in a known language, sorted by name in each folder.

    Links are followed, each file and folder is visited once. Pipes, devices and
    sockets are passed over: reading one might never end. A folder that cannot be
    listed is returned itself, so that reading it gives the reason.
    """
    real = os.path.realpath(folder)
    seen = {real}
    # An explicit stack: deeply nested folders exceed the interpreter's.
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
    """Whether a search passes over files and folders of this name."""
    is_hidden = name[0] == "." and name not in {".", ".."}
    return is_hidden or name in SKIPPED_FOLDERS


def _listed(folder: str, real: str) -> Iterator[tuple[str, str, bool]]:
    """Path, real path, and whether it is a folder, of each entry to visit."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        # The folder itself was seen already, so it needs another real path.
        yield folder, f"{real}/.", False
        return
    for entry in found:
        if is_skipped(entry.name):
            continue
        is_folder = _is_folder(entry)
        if is_folder is not None:
            # Only for links is the real path looked up, which takes a while.
            is_link = entry.is_symlink()
            place = os.path.realpath(entry.path) if is_link else f"{real}/{entry.name}"
            yield entry.path, place, is_folder


def _is_folder(entry: os.DirEntry[str]) -> bool | None:
    """Whether it is a folder; None if it is neither a folder nor a source file."""
    try:
        if entry.is_dir():
            return True
        is_source = languages.of_suffix(Path(entry.name).suffix) is not None
        return False if is_source and entry.is_file() else None
    except OSError:  # a link to itself, or into a folder without permission
        return None


def sources_of(
    paths: Iterable[Path], *, root: Path, suffix: str | None = None
) -> Iterator[Source]:
    """
    The files at *paths* as sources.

    Args:
        paths: Of the files.
        root: Labels are relative to it.
        suffix: Of the language that all are read as; None for their own.
    """
    for path in paths:
        label = visible(Path(os.path.relpath(path, root)).as_posix())
        yield Source(
            label=label,
            suffix=suffix or path.suffix,
            read=partial(read_text, path, label=label),
        )


def is_file_or_folder(path: Path) -> bool:
    """Whether *path* leads to a regular file or a folder."""
    # Path.is_file raises for a name that is too long.
    return os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113


def unusable(path: Path) -> BadInput:
    """The error for a *path* that leads to neither a file nor a folder."""
    hint = "Check the path; 'codeneedle corpus list' shows the names there are."
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises
            reason = f"a symbolic link to {visible(os.readlink(path))}: {reason}"  # noqa: PTH115
            hint = "Remove the link, or let it point to a file or folder of code."
    else:
        reason = f"{_kind_of(mode)}, not a file or folder of source code"
        hint = "Name a file or folder of source code."
        if stat.S_ISFIFO(mode):
            hint = "Save what is written to it to a file, and name that file."
    return BadInput(source=visible(str(path)), reason=reason, hint=hint)


def _kind_of(mode: int) -> str:
    """What a file is that is not regular, from the mode of ``stat(2)``."""
    for is_kind, name in _KINDS:
        if is_kind(mode):
            return name
    return "neither a file nor a folder"


_KINDS: Sequence[tuple[Callable[[int], bool], str]] = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
)


# --- reading files


def read_text(path: Path, *, label: str) -> str:
    """
    The text of a file, as an editor shows it; see `decoded`.

    Raises:
        BadInput: If it cannot be read, is not a regular file, is larger than
            `MAX_BYTES`, is blank, or is binary.
    """
    try:
        data = _bytes(path, label=label)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        reason = getattr(error, "strerror", None) or error
        raise _not_text(label, f"cannot be read: {reason}") from error
    return decoded(data, label=label)


def _bytes(path: Path, *, label: str) -> bytes:
    # O_NONBLOCK: a file may have become a pipe since it was found.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(opened, "rb") as file:  # noqa: PTH123 - of a number
        mode = os.fstat(opened).st_mode
        if not stat.S_ISREG(mode):
            raise _not_text(label, f"{_kind_of(mode)}, not a file")
        # The size that stat reports is 0 in /proc, and a file may grow.
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadInput(
            source=label,
            reason=f"larger than {_LIMIT}",
            hint="Choose shorter files, or divide it.",
        )
    return data


def decoded(data: bytes, *, label: str) -> str:
    """
    The text of *data*, the contents of a file.

    A byte order mark is dropped, and every line ends with a newline. Bytes that
    are not UTF-8 make the whole file be read as Latin-1, which keeps each byte as
    one character.

    Raises:
        BadInput: If it is blank or binary.
    """
    if not data.strip():
        raise _not_text(label, BLANK)
    if b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        # UTF-16 has a null character in every line of code.
        raise _not_text(label, "binary or UTF-16, not text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _not_text(label: str, reason: str) -> BadInput:
    return BadInput(
        source=label, reason=reason, hint="Choose a readable file of source code."
    )
