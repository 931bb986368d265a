"""
A corpus: its text, its functions, which of them are asked, and how
much fits a context.
"""

import bisect
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.corpora import languages, needles, random_bodies, reading
from codeneedle.corpora.needles import ASKED_LINES, Function
from codeneedle.corpora.reading import (
    Gathered,
    Kind,
    Listener,
    Source,
    gathered,
    unheard,
)
from codeneedle.corpora.registry import (
    BUILT_IN,
    NAME,
    Named,
    entries_of,
    names_in,
    read_corpus_file,
    slug,
)
from codeneedle.errors import RequestError, UnknownName
from codeneedle.system.files import exists, expanded
from codeneedle.text import plural, size

FIRST_REACH = 1 << 16
"""Characters of the first text that is tried whether it fits; then twice as many."""


NAMED = 20
"""Files that are named where they are left out; there may be thousands."""


class NothingFits(RequestError):  # noqa: N818 - named after the fact
    """Not even the first function to ask for fits, with what precedes it."""

    def __init__(self, *, name: str, remedy: str) -> None:
        super().__init__(
            f"no part of corpus {name} that holds a function to ask for is short"
            " enough",
            hint=remedy,
        )


class NotWhole(RequestError):  # noqa: N818 - named after the fact
    """A corpus that must not be trimmed, and is longer than any context."""

    def __init__(self, *, name: str, size_bytes: int) -> None:
        super().__init__(
            f"corpus {name} has {size(size_bytes)}, which is more than any context",
            hint="Drop --no-fit to have it trimmed to whole functions.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """
    What a text is the beginning of.

    Attributes:
        sha256: Of the whole text in UTF-8, as hexadecimal digits.
        size_bytes: Of the same.
        functions: How many can be asked for in it.
    """

    sha256: str
    size_bytes: int
    functions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """
    A text to remember, and what is asked of it.

    Attributes:
        name: Lower case, safe as the name of a folder.
        text: Its lines end with newlines. Of a large one, whole files from its
            beginning, more than any context holds.
        origin: Where it comes from, as a phrase, with versions and knobs.
        kind: What a model can know of it beforehand.
        functions: Those that can be asked for, in order of lines.
        cuts: Line numbers after which the text may be cut, ascending.
        sample_k: How many functions are asked for.
        sample_seed: Decides which.
        skipped: Files whose functions are left out, and why.
        whole: What it was before; None if *text* is all there is.
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
    whole: Whole | None = None

    @property
    def sha256(self) -> str:
        """Of the whole text in UTF-8, as hexadecimal digits."""
        if self.whole is not None:
            return self.whole.sha256
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Of the whole text in UTF-8."""
        return self.whole.size_bytes if self.whole else len(self.text.encode())

    @property
    def functions_in_all(self) -> int:
        """How many functions of the whole text can be asked for."""
        return self.whole.functions if self.whole else len(self.functions)

    @property
    def line_count(self) -> int:
        """How many lines of *text* an editor shows."""
        return self.text.count("\n") + (not self.text.endswith("\n"))

    def left_out(self) -> list[str]:
        """A line on each of the first files in `skipped`, and one on all others."""
        named = self.skipped[:NAMED]
        lines = [f"{_end_of(file)}: {reason}" for file, reason in named]
        more = len(self.skipped) - len(lines)
        return [*lines, f"and {plural(more, 'more file')}"] if more else lines

    def refuse_if_cut(self) -> None:
        """
        Stop if *text* is not all there is.

        Raises:
            NotWhole: Naming the size of the whole.
        """
        if self.whole is not None:
            raise NotWhole(name=self.name, size_bytes=self.size_bytes)

    def chosen(self) -> list[Function]:
        """The functions that are asked for, in order of lines."""
        return needles.choose(
            self.functions,
            k=self.sample_k,
            seed=self.sample_seed,
            line_count=self.line_count,
        )


def _end_of(path: str, length: int = 120) -> str:
    return path if len(path) <= length else f"...{path[3 - length :]}"


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
    shorter = longest(corpus, fits)
    if shorter is None:
        raise NothingFits(name=corpus.name, remedy="Choose a larger --context.")
    return shorter


def longest(corpus: Corpus, fits: Callable[[str], bool]) -> Corpus | None:
    """As much of *corpus* as fits; None if nothing would be left to ask for."""
    ends = [match.end() for match in re.finditer("\n", corpus.text)]
    cuts = [ends[cut - 1] for cut in corpus.cuts if cut <= len(ends)]
    fitting = _fitting(cuts, lambda end: fits(corpus.text[:end]))
    if fitting == len(cuts) and corpus.whole is None and fits(corpus.text):
        return corpus
    if fitting == 0:
        return None
    last = corpus.cuts[fitting - 1]
    functions = tuple(f for f in corpus.functions if f.end <= last)
    if not functions:
        return None
    return replace(
        corpus,
        text=corpus.text[: cuts[fitting - 1]],
        functions=functions,
        cuts=corpus.cuts[:fitting],
        whole=None,
    )


def _fitting(ends: Sequence[int], fits: Callable[[int], bool]) -> int:
    """
    How many of *ends*, ascending, fit: the first ones.

    From below: to find out that 16 MB do not fit takes the server as long as all
    other questions together.
    """
    known, reach = 0, FIRST_REACH
    while known < len(ends):
        tried = max(bisect.bisect_right(ends, reach), known + 1)
        if not fits(ends[tried - 1]):
            # As numbers: 0 for those that fit, which come first, 1 for the others.
            return bisect.bisect_left(
                ends, 1, lo=known, hi=tried - 1, key=lambda end: int(not fits(end))
            )
        known, reach = tried, 2 * reach
    return known


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
    if name_or_path and exists(path):
        return _from_path(path, hears)
    if any(separator in name_or_path for separator in "/\\"):
        raise reading.NotFound(path=path)
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
        raise reading.NotFound(path=path)
    entries = list(reading.places(reading.files_in(path), root=path))
    label = reading.printable(str(path))
    read = gathered(entries, name=label, hears=hears)
    origin = f"{label}, files: {read.files}" if read.files else label
    return _built(read, name=name, origin=origin, kind="unseen")


def _from_file(path: Path, *, name: str, hears: Listener) -> Corpus:
    if path.suffix.lower() == ".toml":
        return _from_corpus_file(path, name=name.removesuffix(".toml"), hears=hears)
    label = reading.printable(str(path))
    if languages.of_suffix(path.suffix) is None:
        raise languages.UnknownLanguage(file=label)
    text = reading.read(path, label=label)
    named = reading.printable(path.name)
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
        raise reading.NoText(file=origin, reason=_why_empty(read.skipped))
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
