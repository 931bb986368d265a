"""Gathering: many files read once, as one text, of which memory holds a beginning."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from codeneedle import needles, workers
from codeneedle.extracts import Extract, Known, Task, extract
from codeneedle.mentions import Finder, Piece, pieces
from codeneedle.needles import Function
from codeneedle.parts import Entry, Kept, Parts
from codeneedle.sources import TooLarge
from codeneedle.workers import Lost, Team

MAX_BYTES = 200_000_000
"""Most that is read for a corpus: two minutes of work on two cores."""

HELD_BYTES = 16_000_000
"""
Text that is held at least, if there is as much: four million tokens and more. The
rest is only counted: no context can hold it, and memory need not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    How far a corpus has been read.

    Attributes:
        phase: What is done, as a phrase.
        done_bytes: How much of it is done.
        total_bytes: How much there is, as the files' sizes say.
    """

    phase: str
    done_bytes: int
    total_bytes: int


Listener = Callable[[Progress], None]
"""Hears of progress, often; told in the thread that reads."""


def unheard(_progress: Progress) -> None:
    """Hear of progress, and tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """
    A text of several files, each below a comment line that names it.

    Attributes:
        text: Of the first files, whole ones: all, or `HELD_BYTES` and more.
        is_whole: Whether that is all.
        sha256: Of all text in UTF-8, as hexadecimal digits.
        size_bytes: Of all text in UTF-8.
        functions: Those in *text* that can be asked for, by their lines there.
        functions_in_all: How many can be asked for in all text.
        cuts: Line numbers after which *text* may be cut, ascending.
        found: Functions in all text, those included that cannot be asked for.
        longest: Body lines that are not blank, of the longest of them.
        files: How many there are in all text.
        skipped: Files that are not in it, or whose functions are not, and why.
    """

    text: str
    is_whole: bool
    sha256: str
    size_bytes: int
    functions: tuple[Function, ...]
    functions_in_all: int
    cuts: tuple[int, ...]
    found: int
    longest: int
    files: int
    skipped: tuple[tuple[str, str], ...]


def gathered(
    entries: Sequence[Entry],
    *,
    name: str,
    limit_bytes: int | None = None,
    hears: Listener = unheard,
) -> Gathered:
    """
    Read all *entries*, find their functions, and tell which can be asked for.

    Files are parsed on all cores if there is much to parse. Memory holds the first
    of them, what has to be known of the functions of the others, and for each core
    the file that it works on.

    Args:
        entries: In the order of the text.
        name: Of what they are, for errors.
        limit_bytes: Reading stops once there are more, and all of it is held.
        hears: Is told how far it is.

    Raises:
        TooLarge: If the files are longer than `MAX_BYTES` together, without limit.
        SourceChanged: If one that is not held changes meanwhile.
        CannotStart: If the system refuses to start a process.
    """
    to_read = sum(entry.size_bytes for entry in entries)
    if limit_bytes is not None:
        to_read = min(to_read, limit_bytes)
    if to_read > MAX_BYTES:
        raise TooLarge(what=name, limit_bytes=MAX_BYTES)
    told = _Told(hears, to_read)
    team = workers.team(to_read)
    kept = Kept(hold_bytes=max(HELD_BYTES, limit_bytes or 0))
    parts = Parts(entries, limit_bytes)
    heap = _Heap()
    _extract(parts, kept, heap, team, told)
    once = _once(kept, heap.quoted(), team, told)
    asked, in_all = heap.asked(once)
    return Gathered(
        text="".join(kept.held),
        is_whole=not kept.rest,
        sha256=kept.digest.hexdigest(),
        size_bytes=kept.size_bytes,
        functions=tuple(asked),
        functions_in_all=in_all,
        cuts=tuple(heap.cuts),
        found=heap.found,
        longest=heap.longest,
        files=parts.count,
        skipped=(*parts.skipped, *heap.unparsable),
    )


@dataclass(slots=True)
class _Told:
    """Tells how far it is."""

    hears: Listener
    total_bytes: int
    phase: str = ""
    done_bytes: int = 0

    def begin(self, phase: str) -> None:
        """Count from nothing again."""
        self.phase, self.done_bytes = phase, 0
        self.add(0)

    def add(self, size: int) -> None:
        """So much more is done."""
        self.done_bytes += size
        done = min(self.done_bytes, self.total_bytes)
        self.hears(
            Progress(phase=self.phase, done_bytes=done, total_bytes=self.total_bytes)
        )


@dataclass(slots=True)
class _Heap:
    """All that files have in them."""

    functions: list[Function] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    found: int = 0
    longest: int = 0
    unparsable: list[tuple[str, str]] = field(default_factory=list)

    def add(self, label: str, extract: Extract) -> None:
        """Take in what is in the file of that *label*, by the corpus's lines."""
        self.functions += extract.functions
        self.known += extract.known
        self.cuts += extract.cuts
        self.found += extract.found
        self.longest = max(self.longest, extract.longest)
        if extract.unparsable is not None:
            self.unparsable.append((label, extract.unparsable))

    def quoted(self) -> set[str]:
        """What may stand in the text just once, of all that could be asked for."""
        held = {needles.quoted(function) for function in self.functions}
        return held | {known.quoted for known in self.known}

    def asked(self, once: Container[str]) -> tuple[list[Function], int]:
        """
        The held ones whose signatures are in *once*, and how many there are in all.

        As `needles.eligible` has them: names are told apart by those of all.
        """
        held = [f for f in self.functions if needles.quoted(f) in once]
        others = [known for known in self.known if known.quoted in once]
        names = Counter(function.name for function in held)
        names.update(known.name for known in others)
        return needles.distinctly_named(held, names), len(held) + len(others)


def _extract(parts: Parts, kept: Kept, heap: _Heap, team: Team, told: _Told) -> None:
    """Read all *parts* onto *kept*, and put what is in them on *heap*."""
    told.begin("reading the corpus")
    begun: deque[tuple[str, int, int]] = deque()

    def tasks() -> Iterator[Task]:
        for part in parts:
            is_held = kept.put(part)
            begun.append((part.source.label, part.lines, len(part.text)))
            yield Task(part.source.text, part.source.suffix, is_held)

    with contextlib.closing(team.map(extract, tasks())) as answers:
        for answer in answers:
            label, lines, size = begun.popleft()
            if isinstance(answer, Lost):
                answer = Extract(unparsable=answer.reason)  # noqa: PLW2901
            heap.add(label, answer.below(lines))
            told.add(size)


def _once(kept: Kept, quoted: set[str], team: Team, told: _Told) -> set[str]:
    """Those of *quoted* that stand in the text just once."""
    told.begin("comparing signatures")
    finder = Finder(quoted)
    begun: deque[Piece] = deque()

    def tasks() -> Iterator[Piece]:
        for piece in pieces(kept.texts(), max(map(len, quoted), default=1) - 1):
            begun.append(piece)
            yield piece

    seen: Counter[str] = Counter()
    with contextlib.closing(team.map(finder.counts_in, tasks())) as answers:
        for answer in answers:
            piece = begun.popleft()
            # Nothing in a search can end a worker; a stranger may have done it.
            seen += finder.counts_in(piece) if isinstance(answer, Lost) else answer
            told.add(piece.until)
    return {string for string in quoted if seen[string] == 1}
