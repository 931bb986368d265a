"""
Tells misplaced lines of an answer, which stand elsewhere in the text that was sent,
from hallucinated ones, by hashes of the text's lines.
"""

import base64
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from codeneedle.corpora.needles import NeedleFacts
from codeneedle.probes.recall.alignment import AlignedLine, Alignment, Mark

DIGEST_BYTES = 4
"""
Bytes that stand for a line.

An invented line is taken for one of a text of 10,000 lines once in 400,000 times.
"""


class TextLines(Struct, frozen=True, omit_defaults=True):
    """
    The lines of a text as hashes: enough to find a line again, and no text.

    A setup stores them, so that an answer can be scored where the text is not at hand.
    """

    digests: str = ""  # of each line, without white space around it; Base64
    functions: tuple[int, ...] = ()  # first lines of its functions from 1, ascending

    def __post_init__(self) -> None:
        """Refuse digests that are cut off, and functions that do not ascend."""
        if len(base64.b64decode(self.digests, validate=True)) % DIGEST_BYTES:
            raise ValueError(f"digests have {DIGEST_BYTES} bytes a line")
        if list(self.functions) != sorted(set(self.functions)):
            raise ValueError("first lines of functions ascend")


NO_LINES = TextLines()
"""Of a text that is not known: nothing stands in it."""


def hash_lines(text: str, functions: Iterable[int]) -> TextLines:
    """The lines of *text*, whose functions begin at the lines *functions*, hashed."""
    hashed = b"".join(map(_line_digest, text.split("\n")))
    return TextLines(base64.b64encode(hashed).decode(), tuple(sorted(set(functions))))


def mark_misplaced_lines(
    score: Alignment, needle: NeedleFacts, text: TextLines
) -> Alignment:
    """
    The alignment *score* of an answer to *needle*, misplaced lines told from invented.

    A line that matches nothing, but stands in *text*, was found in the wrong place and
    copied: it is misplaced, and has the number of its line. Of several places it is the
    one nearest to where the line before it would go on.
    """
    return Alignment(rows=tuple(_mark_misplaced_rows(score.rows, needle, text)))


def _mark_misplaced_rows(
    rows: Sequence[AlignedLine], needle: NeedleFacts, text: TextLines
) -> Iterator[AlignedLine]:
    """The *rows* of an alignment, misplaced ones with the line that they stand in."""
    places = _line_numbers_by_digest(text)
    due = needle.line
    for row in rows:
        placed = row
        if row.produced is not None and (
            found := places.get(_line_digest(row.produced))
        ):
            place = min(found, key=lambda line: (abs(line - due), line))
            due = place + 1
            if row.mark is Mark.HALLUCINATED:
                placed = replace(row, mark=Mark.MISPLACED, place=place)
        yield placed


@functools.lru_cache(maxsize=16)
def _line_numbers_by_digest(text: TextLines) -> Mapping[bytes, Sequence[int]]:
    """The lines that have a digest, from 1, by digest; blank lines are left out."""
    hashed = base64.b64decode(text.digests)
    places: dict[bytes, list[int]] = {}
    for line in range(len(hashed) // DIGEST_BYTES):
        digest = hashed[line * DIGEST_BYTES : (line + 1) * DIGEST_BYTES]
        places.setdefault(digest, []).append(line + 1)
    places.pop(_line_digest(""), None)
    return places


def _line_digest(line: str) -> bytes:
    """Hash of *line* without white space around it."""
    content = line.strip().encode(errors="replace")
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
