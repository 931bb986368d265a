"""Corpora by name: the built-in ones and corpus files (``corpora/NAME.toml``)."""

import importlib.metadata
import importlib.resources
import os
import platform
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec

from codeneedle.corpora import languages, reading
from codeneedle.corpora.random_bodies import MINI, Knobs
from codeneedle.corpora.reading import Entry, Kind, Source
from codeneedle.errors import RequestError, UnknownName, did_you_mean
from codeneedle.system.files import exists, expanded

MAX_BYTES = 1_000_000
"""Longest corpus file that is read: a table of names and numbers."""

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class BadCorpusFile(RequestError):  # noqa: N818 - named after the fact
    """The corpus file can be mended, and the command be run again."""

    def __init__(self, *, file: Path, reason: str, hint: str) -> None:
        super().__init__(f"{file}: {reason}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile:
    """
    A corpus file, checked. It has files or a glob, or it has knobs.

    Attributes:
        files: Files and folders, relative to the corpus file's folder.
        glob: Patterns of files, relative to it too; ``**`` is any folders.
        limit_bytes: Longest text, in bytes; what exceeds it is cut off after the
            last function that fits whole.
        sample_k: How many functions are asked for.
        sample_seed: Decides which.
        language: Name of the language that all files are read as, whatever they
            are called.
        kind: What a model can know of it; ``unseen`` if not given.
        generate: Knobs of random bodies, instead of files.
    """

    files: tuple[str, ...] = ()
    glob: tuple[str, ...] = ()
    limit_bytes: _Positive | None = None
    sample_k: _Positive = 16
    sample_seed: int = 42
    language: str | None = None
    kind: Kind | None = None
    generate: Knobs | None = None

    @property
    def known_kind(self) -> Kind:
        """The kind it gives, else what it names is by nature."""
        return self.kind or ("incompressible" if self.generate else "unseen")

    def origin(self, path: Path) -> str:
        """Where its text comes from, if *path* is its own."""
        if self.generate is not None:
            return f"generated, {self.generate}"
        return reading.printable(f"{path}: {', '.join((*self.files, *self.glob))}")


def read_corpus_file(path: Path) -> CorpusFile:
    """
    Read and check a corpus file.

    Raises:
        BadCorpusFile: If it cannot be read, has a key that nobody knows, or a
            value that cannot be.
        BadKnob: If it has a knob that is out of range.
    """
    table = _table(path)
    _refuse_unknown(table, CorpusFile, file=path)
    if isinstance(table.get("generate"), dict):
        _refuse_unknown(table["generate"], Knobs, file=path)
    if isinstance(table.get("glob"), str):
        table["glob"] = [table["glob"]]
    try:
        read = msgspec.convert(table, type=CorpusFile)
    except msgspec.ValidationError as error:
        raise BadCorpusFile(
            file=path, reason=str(error), hint="Give that key another value."
        ) from error
    _refuse_nonsense(read, file=path)
    return read


def entries_of(read: CorpusFile, *, file: Path) -> list[Entry]:
    """
    What corpus file *file* names; nothing of it is read yet.

    Raises:
        NotFound: If a file or folder does not exist.
        BadCorpusFile: If a pattern is none, or finds nothing.
    """
    if read.generate is not None:
        return [reading.generated(read.generate)]
    paths = list(paths_of(read, file=file))
    above = {os.path.abspath(path.parent) for path in paths}  # noqa: PTH100 - keeps links
    language = languages.known()[read.language] if read.language else None
    return list(
        reading.places(
            paths,
            root=Path(os.path.commonpath(above or {"/"})),
            suffix=language.suffixes[0] if language else None,
        )
    )


def paths_of(read: CorpusFile, *, file: Path) -> Iterator[Path]:
    """
    The files that corpus file *file* names, in its order, each once.

    Files that it names one by one may have any suffix if it names their language;
    folders and patterns give those in a known language.

    Raises:
        NotFound: If a file or folder does not exist.
        BadCorpusFile: If a pattern is none, or finds nothing.
    """
    seen: set[str] = set()
    for path in _paths_of(read, file=file):
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield path


def _paths_of(read: CorpusFile, *, file: Path) -> Iterator[Path]:
    for name in read.files:
        path = file.parent / expanded(name)
        if not exists(path):
            raise reading.NotFound(path=path)
        yield from reading.files_in(path) if path.is_dir() else [path]
    for pattern in read.glob:
        found = _matches(pattern, file=file, any_suffix=read.language is not None)
        if not found:
            raise BadCorpusFile(
                file=file,
                reason=f"glob '{pattern}' finds no file in a known language",
                hint=f"It is relative to {file.parent}; '**' is any folders.",
            )
        yield from found


def _matches(pattern: str, *, file: Path, any_suffix: bool) -> list[Path]:
    try:
        found = sorted(path for path in file.parent.glob(pattern) if path.is_file())
    except (
        OSError,
        ValueError,
        NotImplementedError,
        IndexError,
        RecursionError,  # a thousand folders within one another
    ) as error:
        raise BadCorpusFile(
            file=file,
            reason=f"'{pattern}' is no glob: {error}",
            hint="Write a relative pattern such as '../src/**/*.py'.",
        ) from error
    return [
        path
        for path in found
        if (any_suffix or languages.of_suffix(path.suffix))
        and not any(map(reading.is_skipped, path.relative_to(file.parent).parts))
    ]


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            reason = f"is longer than {MAX_BYTES // 1_000_000} MB"
            hint = "A corpus file names the source files, it does not hold them."
            raise BadCorpusFile(file=path, reason=reason, hint=hint)
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "Check that it is a readable file in UTF-8."
        raise BadCorpusFile(file=path, reason=str(error), hint=hint) from error
    except (ValueError, RecursionError) as error:  # a number without end, too
        hint = "Mend that place; text values stand in quotes."
        raise BadCorpusFile(file=path, reason=str(error), hint=hint) from error


def _refuse_unknown(
    table: Mapping[str, object], layout: type[CorpusFile | Knobs], *, file: Path
) -> None:
    """Stop at a key we would ignore: a typo must not quietly run a default."""
    known = [field.name for field in fields(layout)]
    for key in table:
        if key not in known:
            reason = f"unknown key '{key}'"
            raise BadCorpusFile(file=file, reason=reason, hint=did_you_mean(key, known))


def _refuse_nonsense(read: CorpusFile, *, file: Path) -> None:
    has_files = bool(read.files or read.glob)
    if has_files == (read.generate is not None):
        raise BadCorpusFile(
            file=file,
            reason="it names both files and knobs"
            if has_files
            else "it names no files",
            hint="Give files or glob, or a [generate] table.",
        )
    if read.language is not None and read.language not in languages.known():
        raise UnknownName(
            kind="language", name=read.language, known=languages.known().keys()
        )


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""What can be a name: never a path, and never a way out of a folder."""

_JQUERY_PACKAGE = "XStatic-jQuery"
_JQUERY_FILE = "xstatic/pkg/jquery/data/jquery.js"


class MissingExtra(RequestError):  # noqa: N818 - named after the fact
    """A corpus of a package that is not installed."""

    def __init__(self, *, name: str, package: str) -> None:
        super().__init__(
            f"corpus {name} comes with the package {package}, which is not installed",
            hint="Run: pip install 'codeneedle[corpora]'",
        )


class MissingSource(RequestError):  # noqa: N818 - named after the fact
    """This interpreter came without the sources of its library."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} is not on this machine",
            hint="Use a Python that has its library as source, or another corpus.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """
    A corpus on the shelf.

    Attributes:
        kind: What a model can know of it beforehand.
        origin: Where it comes from, with version and knobs.
        source: Its text; raises `RequestError` where it is not at hand.
    """

    kind: Kind
    origin: Callable[[], str]
    source: Callable[[], Source]


class Named(NamedTuple):
    """What a list of corpora says of one; its text is not read for that."""

    name: str
    origin: str
    kind: str


def names_in(folder: Path) -> Iterator[Named]:
    """The corpus files and source files in *folder*, also those that are broken."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if not (NAME.fullmatch(path.stem) and path.is_file()):
            continue
        if path.suffix == ".toml":
            yield Named(slug(path.stem), *_said_by(path))
        elif path.suffix in languages.suffixes():
            yield Named(slug(path.stem), str(path), "unseen")


def _said_by(path: Path) -> tuple[str, str]:
    """Origin and kind of a corpus file; of a broken one, what is wrong with it."""
    try:
        read = read_corpus_file(path)
    except RequestError as error:
        return str(error), "-"
    return read.origin(path), read.known_kind


def slug(name: str) -> str:
    """*name* in lower case, safe as the name of a folder, never empty."""
    safe = re.sub(r"[^a-z0-9_.-]+", "-", name.lower())[:80].strip(".-")
    return safe or "corpus"


def _generated(knobs: Knobs) -> BuiltIn:
    return BuiltIn(
        kind="incompressible",
        origin=lambda: f"generated, {knobs}",
        source=lambda: reading.generated(knobs),
    )


def _http_server() -> Source:
    # As a resource, not imported: nothing of it runs, and a zip will do.
    file = importlib.resources.files("http") / "server.py"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise MissingSource(file="http/server.py") from error
    text = reading.decoded(data, label="http/server.py")
    return Source(label="http/server.py", suffix=".py", text=text)


def _jquery_origin() -> str:
    try:
        version = importlib.metadata.version(_JQUERY_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return f"jquery.js of {_JQUERY_PACKAGE}, not installed"
    return f"jquery.js of {_JQUERY_PACKAGE} {version}"


def _jquery() -> Source:
    # Found by its metadata: to import the package would need setuptools.
    try:
        package = importlib.metadata.distribution(_JQUERY_PACKAGE)
        data = package.locate_file(_JQUERY_FILE).read_bytes()  # type: ignore[attr-defined]
    except (importlib.metadata.PackageNotFoundError, OSError) as error:
        raise MissingExtra(name="jquery", package=_JQUERY_PACKAGE) from error
    text = reading.decoded(data, label="jquery.js")
    return Source(label="jquery.js", suffix=".js", text=text)


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "random-bodies": _generated(Knobs()),
        "random-bodies-mini": _generated(MINI),
        "http_server": BuiltIn(
            kind="memorised",
            origin=lambda: f"http/server.py of Python {platform.python_version()}",
            source=_http_server,
        ),
        "jquery": BuiltIn(kind="memorised", origin=_jquery_origin, source=_jquery),
    }
)
"""Every corpus on the shelf, by name."""
