"""A corpus: a text to remember, what is asked of it, and how much of it fits."""

import bisect
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from codeneedle import needles
from codeneedle.errors import RequestError
from codeneedle.needles import Function
from codeneedle.sources import Kind
from codeneedle.units import plural, size

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
