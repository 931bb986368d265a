"""
A corpus: its text and functions, how many of these recall asks for by default and at
most, and the longest beginning of whole functions that fits a limit.
"""

import bisect
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from codeneedle.corpora import needles
from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES, Function
from codeneedle.text import plural

Kind = Literal["incompressible", "unseen", "memorised"]
"""What a model knows of a text beforehand: nothing, its language, all of it."""

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
    """A text to remember, and its functions."""

    name: str  # lower case, safe as the name of a folder
    text: str  # its lines end with newlines
    origin: str  # source of the text, as a phrase, with versions and knobs
    kind: Kind  # what a model can know of it beforehand
    functions: tuple[Function, ...]  # those that can be needles, in order of lines
    cuts: tuple[int, ...]  # line numbers after which the text may be cut, ascending
    sample_k: int = 16  # number of functions of written recall
    sample_seed: int = 42  # seed of their choice
    skipped: tuple[tuple[str, str], ...] = ()
    """Label and reason of files that are left out, or whose functions are."""

    checks: tuple[tuple[str, Callable[[], str]], ...] = field(
        default=(), repr=False, compare=False
    )
    """See `reading.JoinedText`; they take seconds."""

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

    def skipped_file_lines(self) -> list[str]:
        """Lines on the first files in `skipped`, and one on all others."""
        return _unread_file_lines(self.skipped)

    def second_parser_doubt_lines(self) -> list[str]:
        """Lines on files that a second parser doubts or cannot read; takes seconds."""
        doubts = [(file, check()) for file, check in self.checks]
        return _unread_file_lines([(file, doubt) for file, doubt in doubts if doubt])

    def long_enough_functions(self, lines: int) -> list[Function]:
        """The functions with *lines* lines or more that are not blank."""
        return [
            function
            for function in self.functions
            if function.nonblank_line_count >= lines
        ]

    def shortest_beginning(self, lines: int, functions: int = 1) -> str:
        """
        The shortest beginning with *functions* functions of *lines* lines or more.

        Cut where the corpus may be cut; there must be so many.
        """
        ends = sorted(
            function.last_line_number for function in self.long_enough_functions(lines)
        )
        end = ends[functions - 1]
        cut = next((cut for cut in self.cuts if cut >= end), self.line_count)
        return "\n".join([*self.text.split("\n")[:cut], ""])

    def written_recall_functions(self) -> list[Function]:
        """The functions of written recall, at most `sample_k`, in order of lines."""
        return needles.choose_functions(
            self.long_enough_functions(WRITTEN_LINES),
            k=self.sample_k,
            seed=self.sample_seed,
            line_count=self.line_count,
        )

    def forced_recall_functions(self, first: int, lines: int) -> list[Function]:
        """
        The functions of forced recall, in asking order.

        At most `LIMIT` or *first*, whichever is more.

        Args:
            first: Number of functions that every sweep asks for.
            lines: Least number of their lines that are not blank.
        """
        return needles.choose_in_blocks(
            self.long_enough_functions(lines),
            first=first,
            limit=max(first, LIMIT),
            seed=self.sample_seed,
            line_count=self.line_count,
        )


def _unread_file_lines(files: Sequence[tuple[str, str]]) -> list[str]:
    """Lines on the first of *files* with their reasons, and one on all others."""
    lines = [f"{_shorten_path(file)}: {reason}" for file, reason in files[:NAMED_FILES]]
    more = len(files) - len(lines)
    return [*lines, f"and {plural(more, 'more file')}"] if more else lines


def _shorten_path(path: str, length: int = 120) -> str:
    """*path*, or its last *length* characters with dots in front."""
    return path if len(path) <= length else f"...{path[3 - length :]}"


def longest_beginning(
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
    fitting = _count_fitting(candidates, lambda end: fits(corpus.text[:end]))
    if fitting == len(candidates):
        return corpus
    cuts = corpus.cuts[:fitting]
    functions = [
        function
        for function in corpus.functions
        if cuts and function.last_line_number <= cuts[-1]
    ]
    if not any(function.nonblank_line_count >= lines for function in functions):
        return None
    text = corpus.text[: ends[fitting - 1]]
    return replace(corpus, text=text, functions=tuple(functions), cuts=cuts)


def _count_fitting(ends: Sequence[int], fits: Callable[[int], bool]) -> int:
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
