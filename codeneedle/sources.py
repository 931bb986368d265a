"""Sources: files of source text, and how each is read."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from codeneedle.errors import RequestError
from codeneedle.random_bodies import Knobs, text_of

Kind = Literal["incompressible", "unseen", "memorised"]
"""What a model can know of a text beforehand: nothing, its language, all of it."""

MAX_FILE_BYTES = 16_000_000
"""
Longest file that is read. A parser's tree takes up to 200 times the room of its text,
and no context holds as much: it would be four million tokens.
"""

EMPTY = "is empty"
"""The reason that is not worth telling of one file among many."""


class NotFound(RequestError):  # noqa: N818 - named after the fact
    """A path that leads nowhere, or to what is neither file nor folder."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"there is no file or folder {printable(str(path))}",
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

    def __init__(self, *, what: str, limit_bytes: int) -> None:
        super().__init__(
            f"{what} holds more than {limit_bytes // 1_000_000} MB of source text",
            hint="Name fewer files, or set limit_bytes in a corpus file.",
        )


class FileTooLarge(NoText):
    """A file that is longer than any that is read."""

    def __init__(self, *, file: str) -> None:
        limit = f"{MAX_FILE_BYTES // 1_000_000} MB"
        super().__init__(file=file, reason=f"is longer than {limit}")
        self.hint = "Choose shorter files, or divide it."


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

    @property
    def size_bytes(self) -> int:
        """About how long it is; exact for ASCII."""
        return len(self.text)

    def source(self) -> "Source":
        """Itself, as it is here already."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where a source is.

    Attributes:
        path: Of the file.
        label: As in `Source`.
        suffix: As in `Source`.
        size_bytes: How long the file was when it was found; 0 if nobody knows.
    """

    path: Path
    label: str
    suffix: str
    size_bytes: int

    def source(self) -> Source:
        """
        The source, read now.

        Raises:
            NoText: If it cannot be read.
        """
        text = read(self.path, label=self.label)
        return Source(label=self.label, suffix=self.suffix, text=text)


def read(path: Path, *, label: str) -> str:
    """
    The text of a file, as an editor shows it.

    A byte order mark is dropped, and every line ends with a newline, as no
    tokenizer would see the difference that matters. Bytes that are not UTF-8 make
    the whole file be read as Latin-1, which keeps each byte as one character.

    Raises:
        NoText: If it cannot be read, is no file, is empty, or is binary.
        FileTooLarge: If it is longer than `MAX_FILE_BYTES`.
    """
    try:
        data = _bytes(path, label=label)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        said = getattr(error, "strerror", None) or error
        raise NoText(file=label, reason=f"cannot be read: {said}") from error
    return decoded(data, label=label)


def decoded(data: bytes, *, label: str) -> str:
    """
    What *data* says; see `read`.

    Raises:
        NoText: If it is empty or binary.
    """
    if not data.strip():
        raise NoText(file=label, reason=EMPTY)
    if b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff")):
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


def places(
    paths: Iterable[Path], *, root: Path, suffix: str | None = None
) -> Iterator[Place]:
    """
    Where the sources are that *paths* lead to.

    Args:
        paths: Of the files.
        root: They are labelled relative to it.
        suffix: Of the language that all are read as; None for each its own.
    """
    for path in paths:
        yield Place(
            path=path,
            label=printable(Path(os.path.relpath(path, root)).as_posix()),
            suffix=suffix or path.suffix,
            size_bytes=_size_bytes(path),
        )


def printable(name: str) -> str:
    """*name*, safe to print, to send and to store: never a line end or an escape."""
    return "".join(char if char.isprintable() else "?" for char in name)


def _bytes(path: Path, *, label: str) -> bytes:
    # What became a pipe or a terminal since it was found must not be waited for.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(opened, "rb") as file:  # noqa: PTH123 - of a number
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise NoText(file=label, reason="is no file")
        # By what comes, not by what it says: a file may grow, and /proc says 0.
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise FileTooLarge(file=label)
    return data


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0
