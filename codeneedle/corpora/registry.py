"""
Loads corpora by name or path: built-in ones, corpus files and what they may say, source
files and folders; refuses a text without a function to ask for.
"""

import contextlib
import importlib.metadata
import importlib.resources
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from codeneedle.corpora import languages, needles, reading
from codeneedle.corpora.corpus import Corpus, Kind, longest_beginning
from codeneedle.corpora.needles import FORCED_LINES, Function
from codeneedle.corpora.random_bodies import (
    HEADER,
    MANY,
    MINI,
    SHORT,
    Knobs,
    generate_text,
    is_generated,
)
from codeneedle.corpora.reading import JoinedText, Source
from codeneedle.errors import (
    BadInput,
    RequestError,
    UnknownName,
    msgspec_reason_and_hint,
    refuse_unknown_keys,
)
from codeneedle.system.files import expand_home
from codeneedle.text import escape_invisible, plural

FOLDER = Path("corpora")
"""Folder of named corpora, below the working folder."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Valid names of corpora, which are never paths."""

MAX_CORPUS_FILE_BYTES = 1_000_000
"""Largest corpus file; one with a hundred names has 5 KB."""

_Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """A valid corpus file. It has files or a glob, or else knobs."""

    files: tuple[str, ...] = ()
    """Files and folders, relative to the folder of the corpus file."""

    glob: tuple[str, ...] = ()
    """Patterns of files, relative to the same folder; ``**`` is any folders."""

    limit_bytes: _Positive | None = None
    """Largest text in bytes; a longer one is cut after the last function that fits."""

    sample_k: _Positive = 16  # number of functions of written recall
    sample_seed: int = 42  # seed of their choice
    language: str | None = None
    """Name of the language of all files, whatever their suffixes."""

    kind: Kind | None = None  # what a model knows of the text; ``unseen`` by default
    generate: Knobs | None = None  # knobs of random bodies, instead of files

    @property
    def kind_or_default(self) -> Kind:
        """The stated kind, or the one that follows from the source of the text."""
        return self.kind or ("incompressible" if self.generate else "unseen")

    def origin_phrase(self, path: Path) -> str:
        """The source of the text, given the *path* of the corpus file."""
        if self.generate is not None:
            return f"generated, {self.generate}"
        return escape_invisible(f"{path}: {', '.join((*self.files, *self.glob))}")


def read_corpus_file(path: Path) -> CorpusFile:
    """
    Read and check a corpus file.

    Raises:
        BadInput: If it cannot be read, has an unknown key, or a value that is
            out of range.
        UnknownName: If it names an unknown language.
    """
    table = _read_toml_table(path)
    refuse_unknown_keys(table, _layout_keys(CorpusFile), source=path)
    if isinstance(table.get("generate"), dict):
        refuse_unknown_keys(table["generate"], _layout_keys(Knobs), source=path)
    if isinstance(table.get("glob"), str):
        table["glob"] = [table["glob"]]
    try:
        read = msgspec.convert(table, type=CorpusFile)
    except msgspec.ValidationError as error:
        reason, hint = msgspec_reason_and_hint(
            str(error), otherwise="Give that key another value."
        )
        raise BadInput(source=path, reason=reason, hint=hint) from error
    _refuse_bad_sources_or_language(read, file=path)
    return read


def read_or_generate_text(read: CorpusFile, *, file: Path) -> JoinedText:
    """
    The text that *read* generates, or that of the files that it names.

    Files are in its order, each once, and named relative to *file*, the corpus file.
    They may have any suffix if *read* names their language; otherwise folders and
    patterns contribute files in known languages.

    Raises:
        BadInput: If a file or folder does not exist, a pattern is malformed or matches
            nothing, or a file is in no known language.
    """
    if read.generate is not None:
        return reading.join_and_parse_sources([_random_bodies_source(read.generate)])
    paths: dict[str, Path] = {}
    for path in _named_paths(read, file):
        paths.setdefault(os.path.realpath(path), path)
    above = {os.path.abspath(path.parent) for path in paths.values()}  # noqa: PTH100 - keeps links
    language = languages.all_languages()[read.language] if read.language else None
    return reading.read_and_join_files(
        paths.values(),
        root=Path(os.path.commonpath(above or {"/"})),
        suffix=language.suffixes[0] if language else None,
        limit_bytes=read.limit_bytes,
    )


def _named_paths(read: CorpusFile, file: Path) -> list[Path]:
    """Files that corpus file *file* names: its files and folders, then its patterns."""
    paths: list[Path] = []
    for name in read.files:
        path = file.parent / expand_home(name)
        if not reading.is_file_or_folder(path):
            raise reading.unusable_path_error(path)
        paths += reading.source_files_below(path) if path.is_dir() else [path]
    for pattern in read.glob:
        matches = _matching_files(
            pattern, file=file, any_suffix=read.language is not None
        )
        if not matches:
            raise BadInput(
                source=file,
                reason=f"glob '{pattern}' finds no file in a known language",
                hint=f"It is relative to {file.parent}; '**' is any folders.",
            )
        paths += matches
    return paths


def _matching_files(pattern: str, *, file: Path, any_suffix: bool) -> list[Path]:
    """
    Files of *pattern*, sorted, in known languages unless *any_suffix*.

    Without hidden ones and those in `SKIPPED_FOLDERS`; empty if none is left.
    """
    try:
        paths = sorted(path for path in file.parent.glob(pattern) if path.is_file())
    except (
        OSError,
        ValueError,
        NotImplementedError,
        IndexError,
        RecursionError,  # a thousand folders within one another
    ) as error:
        raise BadInput(
            source=file,
            reason=f"'{pattern}' is not a valid glob: {error}",
            hint="Write a relative pattern such as '../src/**/*.py'.",
        ) from error
    return [
        path
        for path in paths
        if (any_suffix or path.suffix.lower() in languages.suffixes())
        and not any(map(reading.is_skipped, path.relative_to(file.parent).parts))
    ]


def _read_toml_table(path: Path) -> dict[str, Any]:
    """The table in a corpus file; stops at one that cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CORPUS_FILE_BYTES + 1)
        if len(data) > MAX_CORPUS_FILE_BYTES:
            reason = f"larger than {MAX_CORPUS_FILE_BYTES // 1_000_000} MB"
            hint = "A corpus file names the source files, it does not hold them."
            raise BadInput(source=path, reason=reason, hint=hint)
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "Check that it is a readable file in UTF-8."
        raise BadInput(source=path, reason=str(error), hint=hint) from error
    except (ValueError, RecursionError) as error:  # ValueError: a very long number, too
        hint = "Correct that line; text values stand in quotes."
        raise BadInput(source=path, reason=str(error), hint=hint) from error


def _layout_keys(layout: type[CorpusFile | Knobs]) -> list[str]:
    return [field.name for field in fields(layout)]


def _refuse_bad_sources_or_language(read: CorpusFile, *, file: Path) -> None:
    """Stop at both files and knobs, or neither, and at an unknown language."""
    has_files = bool(read.files or read.glob)
    if has_files == (read.generate is not None):
        raise BadInput(
            source=file,
            reason="names both files and a [generate] table"
            if has_files
            else "names no files",
            hint="Give files or glob, or a [generate] table.",
        )
    if read.language is not None and read.language not in languages.all_languages():
        raise UnknownName(
            kind="language", name=read.language, known=languages.all_languages().keys()
        )


# --- built-in corpora and names


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A corpus that comes with this package, with Python, or with another package."""

    kind: Kind  # what a model knows of the text beforehand
    origin: Callable[[], str]  # returns its source, with version or knobs
    source: Callable[[], Source]
    """Reads its text; raises `BadInput` if it is not installed."""


class Named(NamedTuple):
    """An entry of the list of corpora, made without reading its text."""

    name: str
    origin: str
    kind: str


def slug(name: str) -> str:
    """*name* as a folder name in lower case, 80 characters at most, never empty."""
    safe = re.sub(r"[^a-z0-9_.-]+", "-", name.lower())[:80].strip(".-")
    return safe or "corpus"


def _random_bodies_source(knobs: Knobs) -> Source:
    return Source(label="random_bodies.py", suffix=".py", text=generate_text(knobs))


def _built_in_corpus(knobs: Knobs) -> BuiltIn:
    """The built-in corpus of *knobs*, whose text is not made yet."""
    return BuiltIn(
        kind="incompressible",
        origin=lambda: f"generated, {knobs}",
        source=lambda: _random_bodies_source(knobs),
    )


def _http_server_source() -> Source:
    """``http/server.py`` of this Python."""
    # Read as a resource instead of imported: this works in a zip and runs nothing.
    file = importlib.resources.files("http") / "server.py"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(
            source="corpus http_server",
            reason="this Python was installed without http/server.py as source",
            hint="Use a Python that has its library as source, or another corpus.",
        ) from error
    label = "http/server.py"
    return Source(
        label=label, suffix=".py", text=reading.decode_source_text(data, label=label)
    )


_JQUERY_PACKAGE = "XStatic-jQuery"
_JQUERY_FILE = "xstatic/pkg/jquery/data/jquery.js"


def _jquery_origin() -> str:
    """Package and version of ``jquery.js``, or that it is not installed."""
    try:
        version = importlib.metadata.version(_JQUERY_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return f"jquery.js of {_JQUERY_PACKAGE}, not installed"
    return f"jquery.js of {_JQUERY_PACKAGE} {version}"


def _jquery_source() -> Source:
    """``jquery.js`` of an installed package."""
    # Located by its metadata, as importing the package would need setuptools.
    try:
        package = importlib.metadata.distribution(_JQUERY_PACKAGE)
        data = package.locate_file(_JQUERY_FILE).read_bytes()  # type: ignore[attr-defined]
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise BadInput(
            source="corpus jquery",
            reason=f"the package {_JQUERY_PACKAGE} is not installed",
            hint="Run: pip install 'codeneedle[corpora]'",
        ) from error
    label = "jquery.js"
    return Source(
        label=label, suffix=".js", text=reading.decode_source_text(data, label=label)
    )


SMALL_CORPORA = ("random-bodies-mini", "random-bodies-short")
"""Built-in corpora for short contexts, the one with 20 lines per function first."""

BUILT_IN: Mapping[str, BuiltIn] = {
    "random-bodies": _built_in_corpus(Knobs()),
    "random-bodies-mini": _built_in_corpus(MINI),
    "random-bodies-short": _built_in_corpus(SHORT),
    "random-bodies-many": _built_in_corpus(MANY),
    "http_server": BuiltIn(
        kind="memorised",
        origin=lambda: f"http/server.py of Python {platform.python_version()}",
        source=_http_server_source,
    ),
    "jquery": BuiltIn(kind="memorised", origin=_jquery_origin, source=_jquery_source),
}
"""Corpora without a file, by name."""


def checked_generated_path(knobs: Knobs, out: Path | None = None) -> Path:
    """
    The path for random bodies of *knobs*.

    Args:
        knobs: Knobs of the text.
        out: Path chosen by the user; None for ``corpora/random-bodies.py``, with all
            knobs that are not the default in its name: ``random-bodies-7.py``.

    Raises:
        BadInput: If another text would replace a built-in corpus of the same name.
    """
    usual = asdict(Knobs())
    unusual = {
        name: value for name, value in asdict(knobs).items() if value != usual[name]
    }
    words = ["random-bodies"]
    if "seed" in unusual:
        words.append(str(unusual.pop("seed")))
    words += [f"{name.replace('_', '-')}-{unusual[name]}" for name in unusual]
    default = FOLDER / f"{'-'.join(words)}.py"
    path = out or default
    built_in = BUILT_IN.get(path.stem)
    is_found_by_name = os.path.realpath(path.parent) == os.path.realpath(FOLDER)
    if built_in and is_found_by_name and built_in.origin() != f"generated, {knobs}":
        raise BadInput(
            source=path,
            reason=f"would replace the built-in corpus {path.stem} by another text,"
            " in every later sweep in this folder",
            hint=f"Choose another name, such as --out {default}",
        )
    return path


# --- loading


def refuse_missing_corpus(name_or_path: str) -> None:
    """Stop as `load` does if there is nothing of that name or path."""
    is_there = is_known_name(name_or_path) or os.path.lexists(expand_home(name_or_path))
    if not is_there:
        load(name_or_path)


def load(name_or_path: str, *, folder: Path = FOLDER) -> Corpus:
    """
    The corpus of a name or a path.

    A name is, in this order, that of a corpus file ``NAME.toml`` in *folder*, of a
    source file ``NAME.py`` (or any known suffix) in it, of a built-in corpus. Other
    texts are paths of files, folders or corpus files, after which the corpus is named.

    Args:
        name_or_path: As the user wrote it.
        folder: Folder of named corpora.

    Raises:
        UnknownName: If there is no such name.
        BadInput: If the path leads nowhere, or the text cannot be read or holds no
            function that can be a needle.
    """
    if is_known_name(name_or_path, folder):
        file = _find_file_of_name(name_or_path, folder)
        if file is not None:
            return _corpus_from_file(file, name=slug(name_or_path))
        built_in = BUILT_IN[name_or_path]
        text = reading.join_and_parse_sources([built_in.source()])
        origin, kind = built_in.origin(), built_in.kind
        return _corpus_of_text(text, name=name_or_path, origin=origin, kind=kind)
    path = expand_home(name_or_path)
    is_path = any(separator in name_or_path for separator in "/\\")
    # Not exists(): a link that leads nowhere has an error of its own.
    if is_path or (name_or_path and os.path.lexists(path)):
        return _corpus_from_path(path)
    known = [named.name for named in named_corpora(folder)]
    raise UnknownName(kind="corpus", name=name_or_path, known=known)


def is_known_name(name_or_path: str, folder: Path = FOLDER) -> bool:
    """Whether a corpus has that name, in *folder* or built in."""
    can_be = NAME.fullmatch(name_or_path)
    is_known = name_or_path in BUILT_IN
    return bool(can_be and (is_known or _find_file_of_name(name_or_path, folder)))


def named_corpora(folder: Path = FOLDER) -> list[Named]:
    """
    All named corpora: those in *folder*, then the built-in ones.

    One in *folder* hides the built-in one of its name.
    """
    listed = {named.name: named for named in _named_corpora_in(folder)}
    for name, built_in in BUILT_IN.items():
        listed.setdefault(name, Named(name, built_in.origin(), built_in.kind))
    return list(listed.values())


def _named_corpora_in(folder: Path) -> Iterator[Named]:
    """The corpus files and source files in *folder*, including invalid ones."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not (NAME.fullmatch(path.stem) and path.is_file()):
            continue
        if path.suffix == ".toml":
            yield Named(slug(path.stem), *_origin_or_error_and_kind(path))
        elif path.suffix in languages.suffixes():
            yield Named(slug(path.stem), str(path), _kind_of_file(path))


def _origin_or_error_and_kind(path: Path) -> tuple[str, str]:
    """Origin and kind of a corpus file; of an invalid one, the error and a dash."""
    try:
        read = read_corpus_file(path)
    except RequestError as error:
        return str(error), "-"
    return read.origin_phrase(path), read.kind_or_default


def _kind_of_file(path: Path) -> Kind:
    """What a model knows of a file: nothing if it was generated."""
    with contextlib.suppress(OSError):  # reported when it is loaded
        if is_generated(path):
            return "incompressible"
    return "unseen"


def _find_file_of_name(name: str, folder: Path) -> Path | None:
    """The corpus file of *name* in *folder*, else a source file; None without."""
    for suffix in (".toml", *languages.suffixes()):
        path = folder / f"{name}{suffix}"
        if os.path.isfile(path):  # noqa: PTH113 - False for what cannot be a name
            return path
    return None


def _corpus_from_path(path: Path) -> Corpus:
    """The corpus of a file or of all files below a folder, named after it."""
    if not reading.is_file_or_folder(path):
        raise reading.unusable_path_error(path)
    name = slug(Path(os.path.abspath(path)).name)  # noqa: PTH100 - keeps links' names
    if path.is_file():
        return _corpus_from_file(path, name=name)
    read = reading.read_and_join_files(reading.source_files_below(path), root=path)
    label = escape_invisible(str(path))
    origin = f"{label}, files: {read.files}" if read.files else label
    return _corpus_of_text(read, name=name, origin=origin, kind="unseen")


def _corpus_from_file(path: Path, *, name: str) -> Corpus:
    """The corpus of a corpus file or a source file, in a known language."""
    if path.suffix.lower() == ".toml":
        return _corpus_from_corpus_file(path, name=name.removesuffix(".toml"))
    label = escape_invisible(str(path))
    languages.language_of_suffix(path.suffix, source=label)
    text = reading.read_source_text(path, label=label)
    kind: Kind = "incompressible" if text.startswith(HEADER) else "unseen"
    source = Source(label=escape_invisible(path.name), suffix=path.suffix, text=text)
    return _corpus_of_text(
        reading.join_and_parse_sources([source]), name=name, origin=label, kind=kind
    )


def _corpus_from_corpus_file(path: Path, *, name: str) -> Corpus:
    """The corpus that a corpus file describes, cut to its limit of bytes."""
    described = read_corpus_file(path)
    read = read_or_generate_text(described, file=path)
    origin, kind = described.origin_phrase(path), described.kind_or_default
    whole = replace(
        _corpus_of_text(read, name=name, origin=origin, kind=kind),
        sample_k=described.sample_k,
        sample_seed=described.sample_seed,
    )
    limit = described.limit_bytes
    if limit is None or whole.size_bytes <= limit:
        return whole
    shorter = longest_beginning(whole, lambda text: len(text.encode()) <= limit)
    if shorter is None:
        raise BadInput(
            source=f"corpus {name}",
            reason="no part of it that holds a function to ask for is short enough",
            hint=f"Raise limit_bytes in {path}.",
        )
    return shorter


def _corpus_of_text(read: JoinedText, *, name: str, origin: str, kind: Kind) -> Corpus:
    """A corpus of what was *read*; stops where there is no function to ask for."""
    if not read.files:
        reason = _why_no_text(read.left_out)
        hint = "Choose a readable file of source code."
        raise BadInput(source=origin, reason=reason, hint=hint)
    functions = needles.eligible_functions(read.text, read.functions)
    if not functions:
        raise _nothing_to_ask_error(read, name=name)
    return Corpus(
        name=name,
        text=read.text,
        origin=origin,
        kind=kind,
        functions=tuple(functions),
        cuts=tuple(needles.cut_line_numbers(read.functions)),
        skipped=(*read.left_out, *_copied_functions_left_out(read, functions)),
        checks=read.checks,
    )


def _copied_functions_left_out(
    read: JoinedText, functions: Sequence[Function]
) -> Iterator[tuple[str, str]]:
    """How many of *read* are copies of *functions*, and the reason; nothing if none."""
    bodies = {needles.stripped_body_lines(function) for function in functions}
    every = sum(
        needles.stripped_body_lines(function) in bodies for function in read.functions
    )
    if every > len(functions):
        count = plural(every - len(functions), "function")
        yield count, "equal bodies: copies of functions that are asked for"


def _why_no_text(left_out: Sequence[tuple[str, str]]) -> str:
    """Why there is no text, as a phrase; the first file that was left out tells."""
    if left_out:
        label, reason = left_out[0]
        return f"holds nothing that can be read: {label}: {reason}"
    return "holds no source file in a known language"


def _nothing_to_ask_error(read: JoinedText, *, name: str) -> BadInput:
    """The error for a text without a function to ask for, with what it lacks."""
    count = len(read.functions)
    lines = max(
        (function.nonblank_line_count for function in read.functions), default=0
    )
    if read.left_out and not lines:
        label, reason = read.left_out[0]
        hint = f"Not all could be read. {label}: {reason}."
    elif lines < FORCED_LINES:
        hint = f"Add code whose functions have {FORCED_LINES} such lines or more."
    else:
        hint = "No long function has a signature that occurs in the text just once."
    return BadInput(
        source=f"corpus {name}",
        reason=f"no function to ask for: of {count} found, the longest has {lines}"
        " body lines that are not blank",
        hint=hint,
    )
