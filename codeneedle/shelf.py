"""The shelf: which corpora have a name, and where their text comes from."""

import importlib.metadata
import importlib.resources
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from codeneedle import languages, sources
from codeneedle.corpusfile import read_corpus_file
from codeneedle.errors import RequestError
from codeneedle.random_bodies import MINI, Knobs
from codeneedle.sources import Kind, Source

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
        source=lambda: sources.generated(knobs),
    )


def _http_server() -> Source:
    # As a resource, not imported: nothing of it runs, and a zip will do.
    file = importlib.resources.files("http") / "server.py"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise MissingSource(file="http/server.py") from error
    text = sources.decoded(data, label="http/server.py")
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
    text = sources.decoded(data, label="jquery.js")
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
