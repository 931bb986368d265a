"""Parts: many files, one below the other, of which a beginning is kept."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from codeneedle import languages, sources
from codeneedle.errors import RequestError
from codeneedle.sources import NoText, Place, Source

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
                if error.reason != sources.EMPTY:
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
