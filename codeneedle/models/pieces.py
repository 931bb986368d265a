"""
Pieces of one file: what was cut by size for a host, and what a download has so far.

They are known by their names. A model that llama.cpp itself has split is none: its
parts are whole GGUF files.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codeneedle.text import plural

_LETTERS = r"[a-z]|[a-f][a-z]"
"""Endings that ``split`` writes; others, such as ``gz``, are those of archives."""

CUT_AS_MODELS_ARE = re.compile(r"(?P<whole>.+)-(?P<at>\d{5})-of-(?P<of>\d{5})")
"""Names of split models, which some give to pieces, too."""

_PIECES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<whole>.+?)[._-]part[._-]?(?P<at>\d+)[._-]?of[._-]?(?P<of>\d+)",
        r"(?P<whole>.+?)\.(?P<at>\d+)[._-]?of[._-]?(?P<of>\d+)",
        rf"(?P<whole>.+?)[._-](?:part|split)[._-]?(?P<at>\d+|{_LETTERS})",
        rf"(?P<whole>.+?\.gguf)\.?(?P<at>\d{{1,3}}|{_LETTERS})",
        r"(?P<whole>x)(?P<at>[a-f][a-z])",
        CUT_AS_MODELS_ARE.pattern,
    )
)
"""
Names of pieces, as people cut files for hosts: ``m.gguf.part1of2``, ``m.gguf-split-a``,
``m.gguf.aa`` and ``xaa`` of ``split``, ``m.gguf.001``.
"""

_DOWNLOADS = (
    *(".aria2", ".crdownload", ".download", ".downloadinprogress", ".incomplete"),
    *(".opdownload", ".part", ".partial", ".tmp", "-partial", ".!ut"),
)
"""Endings of the names of files that are being fetched."""

MOST_PIECES = 100
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a file."""

    path: Path
    whole: Path  # the file that it is a piece of
    at: str  # its number, or its letters
    count: int | None  # number of all pieces; None if the name does not say it

    def order(self) -> tuple[int, str]:
        """Sort key among pieces of one file: by number, or by letters."""
        return (int(self.at), "") if self.at.isdigit() else (0, self.at.lower())


def parse_piece_name(path: Path) -> Piece | None:
    """The piece that *path* is by its name; None if it is none."""
    name, ending = path.name, ""
    if name.lower().endswith(".gguf"):
        # m.part1of2.gguf
        name, ending = name[: -len(".gguf")], ".gguf"
    for pattern in _PIECES:
        match = pattern.fullmatch(name)
        if match:
            known = match.groupdict()
            whole = f"{known['whole']}{ending}"
            if known["whole"] == "x":
                whole = "model.gguf"
            count = int(known["of"]) if known.get("of") else None
            if count == 0:
                continue
            return Piece(path, path.with_name(whole), known["at"], count)
    return None


def has_download_name(path: Path) -> bool:
    """Whether *path* is called like a file that is being fetched."""
    return path.name.lower().endswith(_DOWNLOADS)


def pieces_of(whole: Path) -> list[Piece]:
    """All pieces of *whole* in its folder, in order, `MOST_PIECES` at most."""
    try:
        named = [parse_piece_name(path) for path in sorted(whole.parent.iterdir())]
    except OSError:
        return []
    pieces = [piece for piece in named if piece and piece.whole == whole]
    return sorted(pieces, key=Piece.order)[:MOST_PIECES]


def part_phrase(piece: Piece) -> str:
    """
    Which one *piece* is, as a phrase: ``part 1 of 2 of m.gguf``.

    Of those in its folder where its name tells no count: ``part 1 of the 2 here of x``.
    """
    here = [found.path for found in pieces_of(piece.whole)]
    if piece.count:
        return f"part {int(piece.at)} of {piece.count} of {piece.whole.name}"
    number = here.index(piece.path) + 1 if piece.path in here else piece.at
    return f"part {number} of the {len(here)} here of {piece.whole.name}"


def join_or_fetch_advice(pieces: Sequence[Piece]) -> str:
    """What to do with the *pieces* of one file: join them, or fetch what is missing."""
    missing = _missing_parts_phrase(pieces)
    whole = pieces[0].whole
    if missing:
        return f"Fetch {missing} of {whole.name} into the same folder; then join all."
    paths = " ".join(shlex.quote(str(piece.path)) for piece in pieces)
    return f"Join them: cat {paths} > {shlex.quote(str(whole))}"


def _missing_parts_phrase(pieces: Sequence[Piece]) -> str:
    """The parts that are not there, as a phrase; empty where none is known to be."""
    if not pieces[0].at.isdigit():
        is_first = not pieces[0].at.lower().strip("a")
        lacking = "the other parts" if is_first else "the first part"
        return "" if is_first and len(pieces) > 1 else lacking
    places = [piece.order()[0] for piece in pieces]
    first = min(1, *places)
    count = pieces[0].count or max(places[-1] - first + 1, 2)
    every = range(first, first + min(count, MOST_PIECES))
    lacking_ones = [str(at) for at in every if at not in places]
    named = ", ".join(lacking_ones[:_NAMED])
    return f"{plural(len(lacking_ones), 'part')} ({named})" if lacking_ones else ""
