"""Source files and folders read as one text with the functions in it."""

import contextlib
import hashlib
import itertools
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from codeneedle.corpora import languages, needles, workers
from codeneedle.corpora.needles import Finder, Function, Piece, pieces
from codeneedle.corpora.random_bodies import Knobs, text_of
from codeneedle.corpora.workers import Lost, Team
from codeneedle.errors import RequestError

SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
"""Folders of other people's code, and of none; hidden ones are skipped as well."""


def files_in(folder: Path) -> Iterator[Path]:
    """
    The files below *folder* in a known language, sorted by name in each folder.

    Links are followed, each file and folder is visited once. What is no file, such
    as a pipe, is passed over; opening it might never end. A folder that cannot be
    listed is given itself, as whoever reads it learns why.
    """
    real = os.path.realpath(folder)
    seen = {real}
    # A stack of our own: no depth of folders can exhaust the interpreter's.
    open_folders = [_listed(str(folder), real)]
    while open_folders:
        found = next(open_folders[-1], None)
        if found is None:
            open_folders.pop()
            continue
        path, real, is_folder = found
        if real in seen:
            continue
        seen.add(real)
        if is_folder:
            open_folders.append(_listed(path, real))
        else:
            yield Path(path)


def is_skipped(name: str) -> bool:
    """Whether a file or folder of this name is passed over in a search."""
    return name in SKIPPED or (name[0] == "." and name not in {".", ".."})


def _listed(folder: str, real: str) -> Iterator[tuple[str, str, bool]]:
    """Of what is worth a visit in *folder*: path, real path, and if it is a folder."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        yield folder, f"{real}/.", False  # the second name keeps it from being seen
        return
    for entry in found:
        if is_skipped(entry.name):
            continue
        kind = _kind(entry)
        if kind is not None:
            # Only links need a look at every folder on the way.
            is_link = entry.is_symlink()
            place = os.path.realpath(entry.path) if is_link else f"{real}/{entry.name}"
            yield entry.path, place, kind == "folder"


def _kind(entry: os.DirEntry[str]) -> str | None:
    """``folder``, ``file`` if in a known language, or None."""
    try:
        if entry.is_dir():
            return "folder"
        is_source = languages.of_suffix(Path(entry.name).suffix) is not None
        return "file" if is_source and entry.is_file() else None
    except OSError:  # a link into a folder that is closed to us, or round in a circle
        return None


Kind = Literal["incompressible", "unseen", "memorised"]
"""What a model can know of a text beforehand: nothing, its language, all of it."""

MAX_FILE_BYTES = 16_000_000
"""
Longest file that is read. A parser's tree takes up to 200 times the room of its text,
and no context holds as much: it would be four million tokens.
"""

EMPTY = "is empty"
"""The reason that is not worth telling of one file among many."""


class NotFound(RequestError):  # noqa: N818 - named after the fact
    """A path that leads nowhere, or to what is neither file nor folder."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"there is no file or folder {printable(str(path))}",
            hint="Check the path; 'codeneedle corpus list' shows the names there are.",
        )


class NoText(RequestError):  # noqa: N818 - named after the fact
    """A file that cannot be read, or holds nothing to ask for."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(
            f"{file} {reason}", hint="Choose a readable file of source code."
        )
        self.reason = reason


class TooLarge(RequestError):  # noqa: N818 - named after the fact
    """More text than any context could hold."""

    def __init__(self, *, what: str, limit_bytes: int) -> None:
        super().__init__(
            f"{what} holds more than {limit_bytes // 1_000_000} MB of source text",
            hint="Name fewer files, or set limit_bytes in a corpus file.",
        )


class FileTooLarge(NoText):
    """A file that is longer than any that is read."""

    def __init__(self, *, file: str) -> None:
        limit = f"{MAX_FILE_BYTES // 1_000_000} MB"
        super().__init__(file=file, reason=f"is longer than {limit}")
        self.hint = "Choose shorter files, or divide it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    One file of a corpus.

    Attributes:
        label: Its path as the corpus names it, with slashes.
        suffix: Of the language that it is read as, with the dot.
        text: Its lines end with newlines; apart from that, verbatim.
    """

    label: str
    suffix: str
    text: str

    @property
    def size_bytes(self) -> int:
        """About how long it is; exact for ASCII."""
        return len(self.text)

    def source(self) -> "Source":
        """Itself, as it is here already."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """
    Where a source is.

    Attributes:
        path: Of the file.
        label: As in `Source`.
        suffix: As in `Source`.
        size_bytes: How long the file was when it was found; 0 if nobody knows.
    """

    path: Path
    label: str
    suffix: str
    size_bytes: int

    def source(self) -> Source:
        """
        The source, read now.

        Raises:
            NoText: If it cannot be read.
        """
        text = read(self.path, label=self.label)
        return Source(label=self.label, suffix=self.suffix, text=text)


def read(path: Path, *, label: str) -> str:
    """
    The text of a file, as an editor shows it.

    A byte order mark is dropped, and every line ends with a newline, as no
    tokenizer would see the difference that matters. Bytes that are not UTF-8 make
    the whole file be read as Latin-1, which keeps each byte as one character.

    Raises:
        NoText: If it cannot be read, is no file, is empty, or is binary.
        FileTooLarge: If it is longer than `MAX_FILE_BYTES`.
    """
    try:
        data = _bytes(path, label=label)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        said = getattr(error, "strerror", None) or error
        raise NoText(file=label, reason=f"cannot be read: {said}") from error
    return decoded(data, label=label)


def decoded(data: bytes, *, label: str) -> str:
    """
    What *data* says; see `read`.

    Raises:
        NoText: If it is empty or binary.
    """
    if not data.strip():
        raise NoText(file=label, reason=EMPTY)
    if b"\0" in data or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        # No source text has a null character; UTF-16 has one in every line.
        raise NoText(file=label, reason="is binary, or in UTF-16")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def generated(knobs: Knobs) -> Source:
    """Random bodies as a file of a corpus."""
    return Source(label="random_bodies.py", suffix=".py", text=text_of(knobs))


def places(
    paths: Iterable[Path], *, root: Path, suffix: str | None = None
) -> Iterator[Place]:
    """
    Where the sources are that *paths* lead to.

    Args:
        paths: Of the files.
        root: They are labelled relative to it.
        suffix: Of the language that all are read as; None for each its own.
    """
    for path in paths:
        yield Place(
            path=path,
            label=printable(Path(os.path.relpath(path, root)).as_posix()),
            suffix=suffix or path.suffix,
            size_bytes=_size_bytes(path),
        )


def printable(name: str) -> str:
    """*name*, safe to print, to send and to store: never a line end or an escape."""
    return "".join(char if char.isprintable() else "?" for char in name)


def _bytes(path: Path, *, label: str) -> bytes:
    # What became a pipe or a terminal since it was found must not be waited for.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(opened, "rb") as file:  # noqa: PTH123 - of a number
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise NoText(file=label, reason="is no file")
        # By what comes, not by what it says: a file may grow, and /proc says 0.
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise FileTooLarge(file=label)
    return data


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


class Task(NamedTuple):
    """
    A file to be looked at.

    Attributes:
        text: All of it.
        suffix: Of the language that it is read as, with the dot.
        is_kept: Whether its text stays in memory, so that its functions must.
    """

    text: str
    suffix: str
    is_kept: bool


class Known(NamedTuple):
    """Of a function whose text is not kept: its name, and what a question quotes."""

    name: str
    quoted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """
    What there is in a file.

    Attributes:
        functions: Those long enough to be asked for, of a file that is kept.
        known: The same, of one that is not.
        cuts: Line numbers after which it may be cut, if it is kept.
        found: How many functions there are, short ones too.
        longest: Body lines that are not blank, of the longest.
        unparsable: Why there are none; None if it was parsed.
    """

    functions: tuple[Function, ...] = ()
    known: tuple[Known, ...] = ()
    cuts: tuple[int, ...] = ()
    found: int = 0
    longest: int = 0
    unparsable: str | None = None

    def below(self, lines: int) -> "Extract":
        """The same, of a file that begins after so many *lines* of a corpus."""
        functions = tuple(replace(f, line=f.line + lines) for f in self.functions)
        cuts = tuple(cut + lines for cut in self.cuts)
        return replace(self, functions=functions, cuts=cuts)


def extract(task: Task) -> Extract:
    """What there is in the file of *task*; lines are counted from its own first."""
    try:
        found = languages.functions_in(task.text, task.suffix)
    except languages.Unparsable as error:
        return Extract(unparsable=str(error))
    long = needles.long_enough(found)
    return Extract(
        functions=tuple(long) if task.is_kept else (),
        known=() if task.is_kept else tuple(_known(long)),
        cuts=tuple(needles.cut_points(found)) if task.is_kept else (),
        found=len(found),
        longest=max((function.content_lines for function in found), default=0),
    )


def _known(functions: Sequence[Function]) -> list[Known]:
    return [Known(f.name, needles.quoted(f)) for f in functions]


Entry = Place | Source


class SourceChanged(RequestError):  # noqa: N818 - named after the fact
    """A file that was not the same when it was read again."""

    def __init__(self, *, file: str) -> None:
        super().__init__(
            f"{file} changed while the corpus was read",
            hint="Run it again when nothing writes there, or name a copy.",
        )


class Part(NamedTuple):
    """A file as it stands in the corpus, and how many lines are before its own."""

    entry: Entry
    source: Source
    text: str
    lines: int


@dataclass(slots=True)
class Parts:
    """Reads files, and remembers which could not be read, and why."""

    entries: Sequence[Entry]
    limit_bytes: int | None
    count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Part]:
        readable = self._readable()
        # Two at first: one that stays alone has no heading.
        first = list(itertools.islice(readable, 2))
        lines = 0
        for entry, source in itertools.chain(first, readable):
            self.count += 1
            text = source.text if len(first) == 1 else _below_heading(source)
            before = lines + (len(first) > 1)
            lines += text.count("\n")
            yield Part(entry, source, text, before)

    def _readable(self) -> Iterator[tuple[Entry, Source]]:
        size = 0
        for entry in self.entries:
            try:
                source = entry.source()
            except NoText as error:
                if error.reason != EMPTY:
                    self.skipped.append((entry.label, error.reason))
                continue
            yield entry, source
            size += len(source.text.encode()) if self.limit_bytes else 0
            if self.limit_bytes and size > self.limit_bytes:
                return


def _below_heading(source: Source) -> str:
    """The text below a comment line that names the file, in its language."""
    language = languages.of_suffix(source.suffix)
    heading = (language.comment if language else "# {}").format(source.label)
    end = "" if source.text.endswith("\n") else "\n"
    return f"{heading}\n{source.text}{end}"


@dataclass(slots=True, kw_only=True)
class Kept:
    """The text: what is held of it, and what must be known of the rest."""

    hold_bytes: int
    held: list[str] = field(default_factory=list)
    rest: list[tuple[Entry, int]] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    size_bytes: int = 0

    def put(self, part: Part) -> bool:
        """Take *part* in; whether it is held."""
        is_held = self.size_bytes < self.hold_bytes
        data = part.text.encode()
        self.digest.update(data)
        self.size_bytes += len(data)
        if is_held:
            self.held.append(part.text)
        else:
            self.rest.append((part.entry, hash(part.text)))
        return is_held

    def texts(self) -> Iterator[str]:
        """
        The whole text in order, read again where it is not held.

        Raises:
            SourceChanged: If a file is not as it was.
        """
        yield from self.held
        for entry, before in self.rest:
            try:
                text = _below_heading(entry.source())
            except NoText as error:
                raise SourceChanged(file=entry.label) from error
            if hash(text) != before:
                raise SourceChanged(file=entry.label)
            yield text


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
        ToolFailed: If the system refuses to start a process.
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
