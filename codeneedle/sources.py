"""Sources: finds files of source text in folders, and reads them verbatim."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from codeneedle import languages
from codeneedle.errors import RequestError
from codeneedle.needles import Function
from codeneedle.random_bodies import Knobs, text_of

Kind = Literal["incompressible", "unseen", "memorised"]
"""What a model can know of a text beforehand: nothing, its language, all of it."""

MAX_BYTES = 100_000_000
"""Most that is read for a corpus; the largest contexts hold a tenth of it."""

EMPTY = "is empty"
"""The reason that is not worth telling of one file among many."""

SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
"""Folders of other people's code, and of none; hidden ones are skipped as well."""


class NotFound(RequestError):  # noqa: N818 - named after the fact
    """A path that leads nowhere, or to what is neither file nor folder."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"there is no file or folder {path}",
            hint="Check the path; 'codeneedle corpus list' shows the names there are.",
        )


class NoText(RequestError):  # noqa: N818 - named after the fact
    """A file that cannot be read, or holds nothing to ask for."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(
            f"{file} {reason}", hint="Choose a readable file of source code."
        )
        self.reason = reason


class TooLarge(RequestError):  # noqa: N818 - named after the fact
    """More text than any context could hold."""

    def __init__(self, *, what: str) -> None:
        super().__init__(
            f"{what} holds more than {MAX_BYTES // 1_000_000} MB of source text",
            hint="Name fewer files, or set limit_bytes in a corpus file.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    One file of a corpus.

    Attributes:
        label: Its path as the corpus names it, with slashes.
        suffix: Of the language that it is read as, with the dot.
        text: Its lines end with newlines; apart from that, verbatim.
    """

    label: str
    suffix: str
    text: str


@dataclass(frozen=True, slots=True)
class Joined:
    """
    The text of a corpus.

    Attributes:
        text: Of all its files.
        functions: All of them, by their lines in that text.
        unparsable: Files whose functions are not among them, and why.
    """

    text: str
    functions: Sequence[Function]
    unparsable: Sequence[tuple[str, str]]


def read(path: Path, *, label: str) -> str:
    """
    The text of a file, as an editor shows it.

    A byte order mark is dropped, and every line ends with a newline, as no
    tokenizer would see the difference that matters. Bytes that are not UTF-8 make
    the whole file be read as Latin-1, which keeps each byte as one character.

    Raises:
        NoText: If it cannot be read, is empty, or is binary.
        TooLarge: If it is longer than `MAX_BYTES`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TooLarge(what=label)
        data = path.read_bytes()
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise NoText(file=label, reason=reason) from error
    return decoded(data, label=label)


def decoded(data: bytes, *, label: str) -> str:
    """
    What *data* says; see `read`.

    Raises:
        NoText: If it is empty or binary.
    """
    if not data.strip():
        raise NoText(file=label, reason=EMPTY)
    if b"\0" in data:
        # No source text has a null character; UTF-16 has one in every line.
        raise NoText(file=label, reason="is binary, or in UTF-16")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def generated(knobs: Knobs) -> Source:
    """Random bodies as a file of a corpus."""
    return Source(label="random_bodies.py", suffix=".py", text=text_of(knobs))


def read_all(
    paths: Iterable[Path],
    *,
    root: Path,
    suffix: str | None = None,
    enough_bytes: int | None = None,
) -> tuple[list[Source], list[tuple[str, str]]]:
    """
    The files as sources, and which could not be read, and why; empty ones are neither.

    Args:
        paths: Of the files.
        root: They are labelled relative to it.
        suffix: Of the language that all are read as; None for each its own.
        enough_bytes: Reading stops once there are more.

    Raises:
        TooLarge: If one, or all together, are longer than `MAX_BYTES`.
    """
    found: list[Source] = []
    skipped: list[tuple[str, str]] = []
    size = 0
    for path in paths:
        label = _label(path, root)
        try:
            text = read(path, label=label)
        except NoText as error:
            skipped += [(label, error.reason)] if error.reason != EMPTY else []
            continue
        found.append(Source(label=label, suffix=suffix or path.suffix, text=text))
        size += len(text.encode())
        if enough_bytes is not None and size > enough_bytes:
            break
        if size > MAX_BYTES:
            raise TooLarge(what=str(root))
    return found, skipped


def joined(found: Sequence[Source]) -> Joined:
    """One text of several files, each below a comment line that names it."""
    parts: list[str] = []
    functions: list[Function] = []
    unparsable: list[tuple[str, str]] = []
    lines = 0
    for source in found:
        if len(found) > 1:
            parts.append(f"{_header(source)}\n")
            lines += 1
        try:
            here = languages.functions_in(source.text, source.suffix)
        except languages.Unparsable as error:
            unparsable.append((source.label, str(error)))
            here = []
        functions += [replace(f, line=f.line + lines) for f in here]
        ends = len(found) == 1 or source.text.endswith("\n")
        parts.append(source.text if ends else f"{source.text}\n")
        lines += parts[-1].count("\n")
    return Joined("".join(parts), functions, unparsable)


def files_in(folder: Path) -> Iterator[Path]:
    """
    The files below *folder* in a known language, in an order all machines share.

    Links are followed, each file and folder is visited once. Folders that cannot
    be read are taken as empty.
    """
    yield from _files_in(folder, {os.path.realpath(folder)})


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is passed over in a search."""
    return name in SKIPPED_FOLDERS or (name[0] == "." and name not in {".", ".."})


def _header(source: Source) -> str:
    """A comment line that names the file, in its language."""
    language = languages.of_suffix(source.suffix)
    return (language.comment if language else "# {}").format(source.label)


def _files_in(folder: Path, seen: set[str]) -> Iterator[Path]:
    for name in _names_in(folder):
        path = folder / name
        real = os.path.realpath(path)
        if is_skipped(name) or real in seen:
            continue
        seen.add(real)
        if path.is_dir():
            yield from _files_in(path, seen)
        elif path.is_file() and languages.of_suffix(path.suffix):
            yield path


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _label(path: Path, root: Path) -> str:
    """The path below *root*, with slashes; safe to print and to send."""
    label = Path(os.path.relpath(path, root)).as_posix()
    return "".join(char if char.isprintable() else "?" for char in label)
