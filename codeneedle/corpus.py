"""Corpora: from a name or a path to a text, and the functions to ask for in it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from codeneedle import folders, languages, random_bodies, sources
from codeneedle.corpusfile import entries_of, read_corpus_file
from codeneedle.corpustext import Corpus, NothingFits, Whole, fitted, longest
from codeneedle.errors import RequestError, UnknownName
from codeneedle.files import expanded, leads_somewhere
from codeneedle.gathering import Gathered, Listener, gathered, unheard
from codeneedle.needles import ASKED_LINES
from codeneedle.shelf import BUILT_IN, NAME, Named, names_in, slug
from codeneedle.sources import Kind, Source

__all__ = ["FOLDER", "Corpus", "NothingFits", "fitted", "load", "names"]

FOLDER = Path("corpora")
"""Where corpora are looked for by name, below the working folder."""


class NothingToAsk(RequestError):  # noqa: N818 - named after the fact
    """A text without a function that could be a needle."""

    def __init__(self, *, name: str, read: Gathered) -> None:
        super().__init__(
            f"corpus {name} has no function to ask for: of {read.found} found,"
            f" the longest has {read.longest} body lines that are not blank",
            hint=_why_not(read.longest, read.skipped),
        )


def _why_not(lines: int, skipped: Sequence[tuple[str, str]]) -> str:
    if skipped and not lines:
        return f"Not all could be read. {skipped[0][0]}: {skipped[0][1]}."
    if lines < ASKED_LINES:
        return f"Add code whose functions have {ASKED_LINES} such lines or more."
    return "No long function has a signature that stands in the text just once."


def _why_empty(skipped: Sequence[tuple[str, str]]) -> str:
    if skipped:
        return f"holds nothing that can be read: {skipped[0][0]} {skipped[0][1]}"
    return "holds no source file in a known language"


def load(
    name_or_path: str, *, folder: Path = FOLDER, hears: Listener = unheard
) -> Corpus:
    """
    The corpus of a name or a path.

    A name is, in this order: a corpus file ``NAME.toml`` in *folder*, a source
    file ``NAME.py`` (or any known suffix) in it, a built-in corpus. All else is
    the path of a file, of a folder, or of a corpus file; such a corpus is named
    after the path's last part.

    Args:
        name_or_path: As a person wrote it.
        folder: Where corpora with a name are.
        hears: Is told how far it is, as a large one takes a minute.

    Raises:
        UnknownName: If nothing has that name.
        NotFound: If the path leads nowhere.
        RequestError: If the text cannot be read or holds nothing to ask for; the
            class says which.
    """
    if NAME.fullmatch(name_or_path):
        place = _file_of(name_or_path, folder)
        if place is not None:
            return _from_file(place, name=slug(name_or_path), hears=hears)
        if name_or_path in BUILT_IN:
            return _from_shelf(name_or_path, hears)
    path = expanded(name_or_path)
    if name_or_path and leads_somewhere(path):
        return _from_path(path, hears)
    if any(separator in name_or_path for separator in "/\\"):
        raise sources.NotFound(path=path)
    known = [named.name for named in names(folder)]
    raise UnknownName(kind="corpus", name=name_or_path, known=known)


def names(folder: Path = FOLDER) -> list[Named]:
    """Every corpus that has a name: those in *folder*, then the built-in ones."""
    listed = {named.name: named for named in names_in(folder)}
    for name, built_in in BUILT_IN.items():
        listed.setdefault(name, Named(name, built_in.origin(), built_in.kind))
    return list(listed.values())


# --- from where


def _file_of(name: str, folder: Path) -> Path | None:
    for suffix in (".toml", *languages.suffixes()):
        path = folder / f"{name}{suffix}"
        if os.path.isfile(path):  # noqa: PTH113 - False for what cannot be a name
            return path
    return None


def _from_shelf(name: str, hears: Listener) -> Corpus:
    built_in = BUILT_IN[name]
    read = gathered([built_in.source()], name=name, hears=hears)
    return _built(read, name=name, origin=built_in.origin(), kind=built_in.kind)


def _from_path(path: Path, hears: Listener) -> Corpus:
    name = slug(Path(os.path.abspath(path)).name)  # noqa: PTH100 - keeps links' names
    if path.is_file():
        return _from_file(path, name=name, hears=hears)
    if not path.is_dir():
        raise sources.NotFound(path=path)
    entries = list(sources.places(folders.files_in(path), root=path))
    label = sources.printable(str(path))
    read = gathered(entries, name=label, hears=hears)
    origin = f"{label}, files: {read.files}" if read.files else label
    return _built(read, name=name, origin=origin, kind="unseen")


def _from_file(path: Path, *, name: str, hears: Listener) -> Corpus:
    if path.suffix.lower() == ".toml":
        return _from_corpus_file(path, name=name.removesuffix(".toml"), hears=hears)
    label = sources.printable(str(path))
    if languages.of_suffix(path.suffix) is None:
        raise languages.UnknownLanguage(file=label)
    text = sources.read(path, label=label)
    named = sources.printable(path.name)
    source = Source(label=named, suffix=path.suffix, text=text)
    is_generated = text.startswith(random_bodies.HEADER)
    kind: Kind = "incompressible" if is_generated else "unseen"
    read = gathered([source], name=label, hears=hears)
    return _built(read, name=name, origin=label, kind=kind)


def _from_corpus_file(path: Path, *, name: str, hears: Listener) -> Corpus:
    said = read_corpus_file(path)
    limit = said.limit_bytes
    entries = entries_of(said, file=path)
    origin = said.origin(path)
    read = gathered(entries, name=origin, limit_bytes=limit, hears=hears)
    whole = _built(read, name=name, origin=origin, kind=said.known_kind)
    whole = replace(whole, sample_k=said.sample_k, sample_seed=said.sample_seed)
    if limit is None or whole.size_bytes <= limit:
        return whole
    shorter = longest(whole, lambda text: len(text.encode()) <= limit)
    if shorter is None:
        raise NothingFits(name=name, remedy=f"Raise limit_bytes in {path}.")
    return shorter


# --- from entries to a corpus


def _built(read: Gathered, *, name: str, origin: str, kind: Kind) -> Corpus:
    if not read.files:
        raise sources.NoText(file=origin, reason=_why_empty(read.skipped))
    if not read.functions:
        raise NothingToAsk(name=name, read=read)
    whole = Whole(
        sha256=read.sha256,
        size_bytes=read.size_bytes,
        functions=read.functions_in_all,
    )
    return Corpus(
        name=name,
        text=read.text,
        origin=origin,
        kind=kind,
        functions=read.functions,
        cuts=read.cuts,
        skipped=read.skipped,
        whole=None if read.is_whole else whole,
    )
