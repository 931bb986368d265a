"""Corpora: from a name or a path to a text, and the functions to ask for in it."""

import bisect
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle import languages, needles, random_bodies, sources
from codeneedle.corpusfile import read_corpus_file, sources_of
from codeneedle.errors import RequestError, UnknownName
from codeneedle.files import expanded, leads_somewhere
from codeneedle.needles import ASKED_LINES, Function
from codeneedle.shelf import BUILT_IN, NAME, Named, names_in, slug
from codeneedle.sources import Kind, Source

FOLDER = Path("corpora")
"""Where corpora are looked for by name, below the working folder."""


class NothingToAsk(RequestError):  # noqa: N818 - named after the fact
    """A text without a function that could be a needle."""

    def __init__(
        self,
        *,
        name: str,
        functions: Sequence[Function],
        skipped: Sequence[tuple[str, str]],
    ) -> None:
        lines = max((f.content_lines for f in functions), default=0)
        super().__init__(
            f"corpus {name} has no function to ask for: of {len(functions)} found,"
            f" the longest has {lines} body lines that are not blank",
            hint=_why_not(lines, skipped),
        )


def _why_not(lines: int, skipped: Sequence[tuple[str, str]]) -> str:
    if skipped and not lines:
        return f"Not all could be read. {skipped[0][0]}: {skipped[0][1]}."
    if lines < ASKED_LINES:
        return f"Add code whose functions have {ASKED_LINES} such lines or more."
    return "No long function has a signature that stands in the text just once."


class NothingFits(RequestError):  # noqa: N818 - named after the fact
    """Not even the first function to ask for fits, with what precedes it."""

    def __init__(self, *, name: str, remedy: str) -> None:
        super().__init__(
            f"no part of corpus {name} that holds a function to ask for is short"
            " enough",
            hint=remedy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """
    A text to remember, and what is asked of it.

    Attributes:
        name: Lower case, safe as the name of a folder.
        text: Its lines end with newlines.
        origin: Where it comes from, as a phrase, with versions and knobs.
        kind: What a model can know of it beforehand.
        functions: Those that can be asked for, in order of lines.
        cuts: Line numbers after which the text may be cut, ascending.
        sample_k: How many functions are asked for.
        sample_seed: Decides which.
        skipped: Files whose functions are left out, and why.
    """

    name: str
    text: str
    origin: str
    kind: Kind
    functions: tuple[Function, ...]
    cuts: tuple[int, ...]
    sample_k: int = 16
    sample_seed: int = 42
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def line_count(self) -> int:
        """How many lines an editor shows."""
        return self.text.count("\n") + (not self.text.endswith("\n"))

    def chosen(self) -> list[Function]:
        """The functions that are asked for, in order of lines."""
        return needles.choose(
            self.functions,
            k=self.sample_k,
            seed=self.sample_seed,
            line_count=self.line_count,
        )


def load(name_or_path: str, *, folder: Path = FOLDER) -> Corpus:
    """
    The corpus of a name or a path.

    A name is, in this order: a corpus file ``NAME.toml`` in *folder*, a source
    file ``NAME.py`` (or any known suffix) in it, a built-in corpus. All else is
    the path of a file, of a folder, or of a corpus file; such a corpus is named
    after the path's last part.

    Raises:
        UnknownName: If nothing has that name.
        NotFound: If the path leads nowhere.
        RequestError: If the text cannot be read or holds nothing to ask for; the
            class says which.
    """
    if NAME.fullmatch(name_or_path):
        place = _file_of(name_or_path, folder)
        if place is not None:
            return _from_file(place, name=slug(name_or_path))
        if name_or_path in BUILT_IN:
            return _from_shelf(name_or_path)
    path = expanded(name_or_path)
    if name_or_path and leads_somewhere(path):
        return _from_path(path)
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


def fitted(corpus: Corpus, *, fits: Callable[[str], bool]) -> Corpus:
    """
    The whole corpus if it fits, else as much of it as does.

    The text is cut after the last line of an outermost function; it begins as
    before. Functions beyond the cut go.

    Args:
        corpus: The whole one.
        fits: Whether a text fits; if one does, so do all that it begins with.
            Called once for each halving of the number of functions.

    Raises:
        NothingFits: If no function to ask for remains.
    """
    shorter = _longest(corpus, fits)
    if shorter is None:
        raise NothingFits(name=corpus.name, remedy="Choose a larger --context.")
    return shorter


# --- from where


def _file_of(name: str, folder: Path) -> Path | None:
    for suffix in (".toml", *languages.suffixes()):
        path = folder / f"{name}{suffix}"
        if os.path.isfile(path):  # noqa: PTH113 - False for what cannot be a name
            return path
    return None


def _from_shelf(name: str) -> Corpus:
    built_in = BUILT_IN[name]
    text = [built_in.source()]
    return _built(text, name=name, origin=built_in.origin(), kind=built_in.kind)


def _from_path(path: Path) -> Corpus:
    name = slug(Path(os.path.abspath(path)).name)  # noqa: PTH100 - keeps links' names
    if path.is_file():
        return _from_file(path, name=name)
    if not path.is_dir():
        raise sources.NotFound(path=path)
    found, skipped = sources.read_all(sources.files_in(path), root=path)
    if not found:
        reason = "holds no source file in a known language"
        raise sources.NoText(file=str(path), reason=reason)
    origin = f"{path}, files: {len(found)}"
    return _built(found, name=name, origin=origin, kind="unseen", skipped=skipped)


def _from_file(path: Path, *, name: str) -> Corpus:
    if path.suffix.lower() == ".toml":
        return _from_corpus_file(path, name=name.removesuffix(".toml"))
    if languages.of_suffix(path.suffix) is None:
        raise languages.UnknownLanguage(file=str(path))
    text = sources.read(path, label=str(path))
    source = Source(label=path.name, suffix=path.suffix, text=text)
    is_generated = text.startswith(random_bodies.HEADER)
    kind: Kind = "incompressible" if is_generated else "unseen"
    return _built([source], name=name, origin=str(path), kind=kind)


def _from_corpus_file(path: Path, *, name: str) -> Corpus:
    read = read_corpus_file(path)
    found, skipped = sources_of(read, file=path)
    whole = _built(
        found,
        name=name,
        origin=read.origin(path),
        kind=read.known_kind,
        skipped=skipped,
    )
    whole = replace(whole, sample_k=read.sample_k, sample_seed=read.sample_seed)
    limit = read.limit_bytes
    if limit is None:
        return whole
    shorter = _longest(whole, lambda text: len(text.encode()) <= limit)
    if shorter is None:
        raise NothingFits(name=name, remedy=f"Raise limit_bytes in {path}.")
    return shorter


# --- from sources to a corpus


def _built(
    found: Sequence[Source],
    *,
    name: str,
    origin: str,
    kind: Kind,
    skipped: Sequence[tuple[str, str]] = (),
) -> Corpus:
    whole = sources.joined(found)
    asked = needles.eligible(whole.text, whole.functions)
    skipped = (*skipped, *whole.unparsable)
    if not asked:
        raise NothingToAsk(name=name, functions=whole.functions, skipped=skipped)
    return Corpus(
        name=name,
        text=whole.text,
        origin=origin,
        kind=kind,
        functions=tuple(asked),
        cuts=tuple(needles.cut_points(whole.functions)),
        skipped=skipped,
    )


def _longest(corpus: Corpus, fits: Callable[[str], bool]) -> Corpus | None:
    """As much of *corpus* as fits; None if nothing would be left to ask for."""
    if fits(corpus.text):
        return corpus
    ends = [match.end() for match in re.finditer("\n", corpus.text)]
    cuts = [cut for cut in corpus.cuts if cut <= len(ends)]
    # As numbers: 0 for those that fit, which come first, 1 for the others.
    fitting = bisect.bisect_left(
        cuts, 1, key=lambda cut: int(not fits(corpus.text[: ends[cut - 1]]))
    )
    if fitting == 0:
        return None
    last = cuts[fitting - 1]
    functions = tuple(f for f in corpus.functions if f.end <= last)
    if not functions:
        return None
    text = corpus.text[: ends[last - 1]]
    return replace(corpus, text=text, functions=functions, cuts=tuple(cuts[:fitting]))
