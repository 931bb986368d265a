"""
A corpus: its text, its functions, the choice of those in questions, and the part of the
text that fits a context.
"""

import bisect
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from codeneedle.corpora import languages, needles, random_bodies, reading
from codeneedle.corpora.needles import ASKED_LINES, FORCED_LINES, Function
from codeneedle.corpora.reading import JoinedText, Source
from codeneedle.corpora.registry import (
    BUILT_IN,
    FOLDER,
    NAME,
    Kind,
    Named,
    names_in,
    read_corpus_file,
    read_named,
    slug,
)
from codeneedle.errors import BadInput, UnknownName
from codeneedle.system.files import expanded
from codeneedle.text import plural, visible

NAMED_FILES = 20
"""Limit of the files that are named as left out; there may be thousands."""

FUNCTIONS = 32
"""Default number of functions of forced recall, if the text has so many."""

LIMIT = 96
"""Limit of the functions of forced recall."""

FIRST_TRIED_CHARACTERS = 1 << 16
"""Length of the first text that is tried whether it fits; doubled while it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """
    A text to remember, and its functions.

    Attributes:
        name: Lower case, safe as the name of a folder.
        text: Its lines end with newlines.
        origin: Source of the text, as a phrase, with versions and knobs.
        kind: What a model can know of it beforehand.
        functions: Those that can be needles, in order of lines.
        cuts: Line numbers after which the text may be cut, ascending.
        sample_k: Number of functions of written recall.
        sample_seed: Seed of their choice.
        skipped: Label and reason of files that are left out, or whose functions are.
        checks: As in `reading.JoinedText`; they take seconds.
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
    checks: tuple[tuple[str, Callable[[], str]], ...] = field(
        default=(), repr=False, compare=False
    )

    @property
    def sha256(self) -> str:
        """Hash of the text in UTF-8, as hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())

    @property
    def line_count(self) -> int:
        """Number of lines of *text* that an editor shows."""
        return self.text.count("\n") + (not self.text.endswith("\n"))

    def left_out(self) -> list[str]:
        """Lines on the first files in `skipped`, and one on all others."""
        return _listed(self.skipped)

    def doubts(self) -> list[str]:
        """Lines on the files in which a second parser does not find the functions."""
        doubts = [(file, check()) for file, check in self.checks]
        return _listed([(file, doubt) for file, doubt in doubts if doubt])

    def of_length(self, lines: int) -> list[Function]:
        """The functions with *lines* lines or more that are not blank."""
        return [each for each in self.functions if each.content_lines >= lines]

    def shortest(self, lines: int, functions: int = 1) -> str:
        """The shortest text that has *functions* functions of *lines* lines or more."""
        ends = sorted(function.end for function in self.of_length(lines))
        end = ends[functions - 1]
        cut = next((cut for cut in self.cuts if cut >= end), self.line_count)
        return "\n".join([*self.text.split("\n")[:cut], ""])

    def written(self) -> list[Function]:
        """The functions of written recall, in order of lines."""
        return needles.choose(
            self.of_length(ASKED_LINES),
            k=self.sample_k,
            seed=self.sample_seed,
            line_count=self.line_count,
        )

    def forced(self, first: int, lines: int) -> list[Function]:
        """
        The functions of forced recall, at most `LIMIT`, in asking order.

        Args:
            first: Number of functions that every sweep asks for.
            lines: Least number of their lines that are not blank.
        """
        return needles.in_blocks(
            self.of_length(lines),
            first=first,
            limit=max(first, LIMIT),
            seed=self.sample_seed,
            line_count=self.line_count,
        )


def _listed(files: Sequence[tuple[str, str]]) -> list[str]:
    """Lines on the first of *files* with their reasons, and one on all others."""
    lines = [f"{_shortened(file)}: {reason}" for file, reason in files[:NAMED_FILES]]
    more = len(files) - len(lines)
    return [*lines, f"and {plural(more, 'more file')}"] if more else lines


def _shortened(path: str, length: int = 120) -> str:
    return path if len(path) <= length else f"...{path[3 - length :]}"


# --- fitting


def longest(
    corpus: Corpus, fits: Callable[[str], bool], *, lines: int = FORCED_LINES
) -> Corpus | None:
    """
    The longest beginning of *corpus* that fits; None if it holds no function.

    The text is cut after the last line of an outermost function.

    Args:
        corpus: The whole corpus.
        fits: Whether a text fits; the beginnings of a text that fits do, too. Called
            about twice for each halving of the number of functions.
        lines: Lines that are not blank of a function that must remain.
    """
    line_ends = [match.end() for match in re.finditer("\n", corpus.text)]
    ends = [line_ends[cut - 1] for cut in corpus.cuts if cut <= len(line_ends)]
    candidates = ends if len(corpus.text) in ends else [*ends, len(corpus.text)]
    fitting = _fitting(candidates, lambda end: fits(corpus.text[:end]))
    if fitting == len(candidates):
        return corpus
    cuts = corpus.cuts[:fitting]
    functions = [each for each in corpus.functions if cuts and each.end <= cuts[-1]]
    if not any(function.content_lines >= lines for function in functions):
        return None
    text = corpus.text[: ends[fitting - 1]]
    return replace(corpus, text=text, functions=tuple(functions), cuts=cuts)


def _fitting(ends: Sequence[int], fits: Callable[[int], bool]) -> int:
    """
    The number of *ends*, in ascending order, that fit.

    Lengths are doubled from a small one on: a server takes as long to tokenize 16 MB as
    all shorter texts together.
    """
    known, reach = 0, FIRST_TRIED_CHARACTERS
    while known < len(ends):
        tried = max(bisect.bisect_right(ends, reach), known + 1)
        if not fits(ends[tried - 1]):
            return bisect.bisect_left(
                ends, 1, lo=known, hi=tried - 1, key=lambda end: int(not fits(end))
            )
        known, reach = tried, 2 * reach
    return known


# --- loading


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
    if is_name(name_or_path, folder):
        file = _file_of(name_or_path, folder)
        if file is not None:
            return _from_file(file, name=slug(name_or_path))
        built_in = BUILT_IN[name_or_path]
        text = reading.joined([built_in.source()])
        origin, kind = built_in.origin(), built_in.kind
        return _corpus(text, name=name_or_path, origin=origin, kind=kind)
    path = expanded(name_or_path)
    is_path = any(separator in name_or_path for separator in "/\\")
    # Not exists(): a link that leads nowhere has an error of its own.
    if is_path or (name_or_path and os.path.lexists(path)):
        return _from_path(path)
    known = [named.name for named in names(folder)]
    raise UnknownName(kind="corpus", name=name_or_path, known=known)


def is_name(name_or_path: str, folder: Path = FOLDER) -> bool:
    """Whether a corpus has that name."""
    can_be = NAME.fullmatch(name_or_path)
    is_known = name_or_path in BUILT_IN
    return bool(can_be and (is_known or _file_of(name_or_path, folder)))


def names(folder: Path = FOLDER) -> list[Named]:
    """All named corpora: those in *folder*, then the built-in ones."""
    listed = {named.name: named for named in names_in(folder)}
    for name, built_in in BUILT_IN.items():
        listed.setdefault(name, Named(name, built_in.origin(), built_in.kind))
    return list(listed.values())


def _file_of(name: str, folder: Path) -> Path | None:
    for suffix in (".toml", *languages.suffixes()):
        path = folder / f"{name}{suffix}"
        if os.path.isfile(path):  # noqa: PTH113 - False for what cannot be a name
            return path
    return None


def _from_path(path: Path) -> Corpus:
    if not reading.is_file_or_folder(path):
        raise reading.unusable(path)
    name = slug(Path(os.path.abspath(path)).name)  # noqa: PTH100 - keeps links' names
    if path.is_file():
        return _from_file(path, name=name)
    read = reading.read_files(reading.files_in(path), root=path)
    label = visible(str(path))
    origin = f"{label}, files: {read.files}" if read.files else label
    return _corpus(read, name=name, origin=origin, kind="unseen")


def _from_file(path: Path, *, name: str) -> Corpus:
    if path.suffix.lower() == ".toml":
        return _from_corpus_file(path, name=name.removesuffix(".toml"))
    label = visible(str(path))
    languages.of_suffix(path.suffix, source=label)
    text = reading.read_text(path, label=label)
    is_generated = text.startswith(random_bodies.HEADER)
    kind: Kind = "incompressible" if is_generated else "unseen"
    source = Source(label=visible(path.name), suffix=path.suffix, text=text)
    return _corpus(reading.joined([source]), name=name, origin=label, kind=kind)


def _from_corpus_file(path: Path, *, name: str) -> Corpus:
    described = read_corpus_file(path)
    read = read_named(described, file=path)
    origin, kind = described.origin(path), described.known_kind
    whole = replace(
        _corpus(read, name=name, origin=origin, kind=kind),
        sample_k=described.sample_k,
        sample_seed=described.sample_seed,
    )
    limit = described.limit_bytes
    if limit is None or whole.size_bytes <= limit:
        return whole
    shorter = longest(whole, lambda text: len(text.encode()) <= limit)
    if shorter is None:
        raise BadInput(
            source=f"corpus {name}",
            reason="no part of it that holds a function to ask for is short enough",
            hint=f"Raise limit_bytes in {path}.",
        )
    return shorter


def _corpus(read: JoinedText, *, name: str, origin: str, kind: Kind) -> Corpus:
    if not read.files:
        reason = _why_no_text(read.left_out)
        hint = "Choose a readable file of source code."
        raise BadInput(source=origin, reason=reason, hint=hint)
    functions = needles.eligible(read.text, read.functions)
    if not functions:
        raise _nothing_to_ask(read, name=name)
    return Corpus(
        name=name,
        text=read.text,
        origin=origin,
        kind=kind,
        functions=tuple(functions),
        cuts=tuple(needles.cut_points(read.functions)),
        skipped=read.left_out,
        checks=read.checks,
    )


def _why_no_text(left_out: Sequence[tuple[str, str]]) -> str:
    if left_out:
        label, reason = left_out[0]
        return f"holds nothing that can be read: {label}: {reason}"
    return "holds no source file in a known language"


def _nothing_to_ask(read: JoinedText, *, name: str) -> BadInput:
    count = len(read.functions)
    lines = max((function.content_lines for function in read.functions), default=0)
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
