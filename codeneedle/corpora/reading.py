"""
Finds source files in folders and joins them to one text; leaves out hidden, installed,
binary and minified ones, and what is too large.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from codeneedle.corpora import encodings, languages
from codeneedle.corpora.needles import Function
from codeneedle.errors import BadInput
from codeneedle.system.files import open_regular
from codeneedle.text import escape_invisible

MAX_BYTES = 16_000_000
"""
Most text of a corpus, and of a file. It is four million tokens or more, which no
context holds, and a parser's tree of it takes up to 3 GB.
"""

MOST_MEAN = 5_000
"""Mean characters of a line of code that somebody wrote; minified code has more."""

SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", "venv", "site-packages"},
)
"""Folders of installed or generated code; hidden folders are skipped as well."""

BLANK = "empty"
"""Reason that is not reported for one of several files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file of a corpus, read."""

    label: str  # its path as the corpus names it, with slashes, safe to print
    suffix: str  # of the language that it is read as, with the dot
    text: str  # its lines end with newlines and are verbatim otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedText:
    """The text of several files, each below a comment line that names it."""

    text: str  # of a single file it has no such line
    functions: tuple[Function, ...]
    """All functions with their lines in *text*, short ones included."""

    files: int  # number of files in *text*
    left_out: tuple[tuple[str, str], ...]
    """Label and reason of files that are not in *text*, or could not be parsed."""

    checks: tuple[tuple[str, Callable[[], str]], ...] = ()
    """
    Label and check of files that a second parser can read; a check returns its
    objection to the functions, empty without one.
    """


def join_and_parse_sources(
    sources: Sequence[Source], left_out: Iterable[tuple[str, str]] = ()
) -> JoinedText:
    """
    One text of all *sources*, and the functions in it.

    A file that cannot be parsed stays in the text, with the functions that were found
    in it; the reason is in `left_out` of the result.

    Args:
        sources: In the order of the text.
        left_out: Label and reason of files that could not be read.

    Raises:
        BadInput: If a file is in no known language.
    """
    unparsable: list[tuple[str, str]] = []
    checks: list[tuple[str, Callable[[], str]]] = []
    parts: list[str] = []
    functions: list[Function] = []
    lines = 0
    for source in sources:
        language = languages.language_of_suffix(
            source.suffix, source=f"a '{source.suffix}' file"
        )
        if len(sources) > 1:
            parts.append(f"{language.comment.format(source.label)}\n")
            lines += 1
        try:
            parsed = language.functions(source.text)
        except languages.Unparsable as error:
            unparsable.append((source.label, str(error)))
            parsed = [*error.kept]
        if parsed and language.unconfirmed:
            check = partial(language.unconfirmed, source.text, parsed)
            checks.append((source.label, check))
        functions += [
            replace(function, line=function.line + lines) for function in parsed
        ]
        is_ended = len(sources) == 1 or source.text.endswith("\n")
        parts.append(source.text if is_ended else f"{source.text}\n")
        lines += parts[-1].count("\n")
    return JoinedText(
        text="".join(parts),
        functions=tuple(functions),
        files=len(sources),
        left_out=(*left_out, *unparsable),
        checks=tuple(checks),
    )


def read_and_join_files(
    paths: Iterable[Path],
    *,
    root: Path,
    suffix: str | None = None,
    limit_bytes: int | None = None,
) -> JoinedText:
    """
    The files at *paths*, in order, as one text; blank ones are passed over.

    Files that cannot be read as text are left out: `left_out` of the result has the
    reasons. The text ends before the first file that would make it longer than
    `MAX_BYTES`; that one and all after it are left out.

    Args:
        paths: Of the files.
        root: Labels are relative to it.
        suffix: Suffix of the language of all files; None for their own.
        limit_bytes: The file that exceeds it is the last one in the text; later files
            are not reported.

    Raises:
        BadInput: If a file is in no known language.
    """
    read: list[Source] = []
    left_out: list[tuple[str, str]] = []
    size = 0
    for path in paths:
        label = escape_invisible(Path(os.path.relpath(path, root)).as_posix())
        if size <= MAX_BYTES:
            try:
                text = read_source_text(path, label=label)
            except BadInput as error:
                if error.reason != BLANK:
                    left_out.append((label, error.reason))
                continue
            size += len(text.encode())
        if size > MAX_BYTES:
            left_out.append((label, f"beyond the first {_LIMIT} of source text"))
            continue
        read.append(Source(label=label, suffix=suffix or path.suffix, text=text))
        if limit_bytes and size > limit_bytes:
            break
    return join_and_parse_sources(read, left_out)


_LIMIT = f"{MAX_BYTES // 1_000_000} MB"


# --- finding files


def source_files_below(folder: Path) -> Iterator[Path]:
    """
    The files below *folder* in a known language, sorted by name in each folder.

    Hidden ones and `SKIPPED_FOLDERS` in it are left out. Links are followed, files and
    folders are visited once. Links that lead nowhere are passed over, and so are pipes,
    devices and sockets, since reading one might never end. Another path that is not
    accessible is returned, so that reading it gives the reason.
    """
    suffixes = set(languages.suffixes())
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            facts = path.stat()
        except OSError:  # a link to itself; or in a folder that may only be listed
            if not os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises
                yield path
            continue
        if (facts.st_dev, facts.st_ino) in seen:
            continue
        seen.add((facts.st_dev, facts.st_ino))
        if stat.S_ISDIR(facts.st_mode):
            try:
                names = sorted(os.listdir(path), reverse=True)  # noqa: PTH208 - names
            except OSError:
                yield path
            else:
                waiting += (path / name for name in names if not is_skipped(name))
        elif stat.S_ISREG(facts.st_mode) and path.suffix.lower() in suffixes:
            yield path


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or holds installed code."""
    is_hidden = name[0] == "." and name not in {".", ".."}
    return is_hidden or name in SKIPPED_FOLDERS


def is_file_or_folder(path: Path) -> bool:
    """Whether *path* leads to a regular file or a folder."""
    # Path.is_file raises for a name that is too long.
    return os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113


def unusable_path_error(path: Path) -> BadInput:
    """The error for a *path* that leads to neither a file nor a folder."""
    hint = "Check the path; 'codeneedle corpus list' shows the names there are."
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink raises
            reason = (
                f"a symbolic link to {escape_invisible(os.readlink(path))}: {reason}"  # noqa: PTH115
            )
            hint = "Remove the link, or let it point to a file or folder of code."
    else:
        kind = _KINDS.get(stat.filemode(mode)[0], "a special file")
        reason = f"{kind}, not a file or folder of source code"
        hint = "Name a file or folder of source code."
        if stat.S_ISFIFO(mode):
            hint = "Save what is written to it to a file, and name that file."
    return BadInput(source=escape_invisible(str(path)), reason=reason, hint=hint)


_KINDS = {"p": "a named pipe", "c": "a device", "b": "a device", "s": "a socket"}
"""Kinds of special files, by the first letter of ``ls -l``."""


# --- reading files


def read_source_text(path: Path, *, label: str) -> str:
    """
    The text of a file, as an editor shows it; see `decode_source_text`.

    Raises:
        BadInput: If it cannot be read, is not a regular file, is larger than
            `MAX_BYTES`, or is refused by `decode_source_text`.
    """
    try:
        # Not path.open(): a file may have become a pipe since it was found.
        with open_regular(path) as file:
            # The size that stat reports is 0 in /proc, and a file may grow.
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        reason = getattr(error, "strerror", None) or error
        raise _not_text_error(label, f"cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise BadInput(
            source=label,
            reason=f"larger than {_LIMIT}",
            hint="Choose shorter files, or divide it.",
        )
    return decode_source_text(data, label=label)


def decode_source_text(data: bytes, *, label: str) -> str:
    """
    The text of *data*, the contents of a file.

    A byte order mark is dropped, and all line ends become newlines.

    Raises:
        BadInput: If it is blank, binary or minified, or its encoding is not known.
    """
    if not data.strip():
        raise _not_text_error(label, BLANK)
    try:
        text = encodings.decode_bytes(data)
    except encodings.Undecodable as error:
        raise BadInput(source=label, reason=str(error), hint=encodings.HINT) from error
    if not text.strip():
        raise _not_text_error(label, BLANK)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    mean = len(text) // (text.count("\n") + 1)
    if mean > MOST_MEAN:
        raise _not_text_error(
            label, f"minified: its lines have {mean:,} characters or more"
        )
    return text


def _not_text_error(label: str, reason: str) -> BadInput:
    return BadInput(
        source=label, reason=reason, hint="Choose a readable file of source code."
    )
