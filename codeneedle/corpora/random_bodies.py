"""
Random bodies: generates incompressible Python functions by a seed and further knobs,
also families of confusable twins.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_letters, digits

from typing_extensions import override

from codeneedle.corpora.needles import FORCED_LINES, WRITTEN_LINES
from codeneedle.corpora.reading import MAX_BYTES
from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.system.files import write_atomically
from codeneedle.text import plural, size_text

ALPHABET = ascii_letters + digits
"""Characters of literals and of names after the first: 62."""

FIRST_ALPHABET = ascii_letters
"""First characters of names: 52."""

HEADER = "# Random bodies, construction 1: "
"""Beginning of every text; the number changes with the construction."""

# Not `keyword.kwlist`, as texts must not depend on the version of Python.
_KEYWORDS = frozenset({
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case",
    "class", "continue", "def", "del", "elif", "else", "except", "finally", "for",
    "from", "global", "if", "import", "in", "is", "lambda", "lazy", "match",
    "nonlocal", "not", "or", "pass", "raise", "return", "try", "type", "while",
    "with", "yield",
})  # fmt: skip


INDENT = 4
"""Default indentation of body lines, as in PEP 8."""

TWIN_NAME = 9
"""Least length of a twin's name: one more than the longest keyword."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """
    The parameters of the generator; they determine every byte of the text.

    Raises:
        BadInput: If a knob is out of its range, if the names are too short to be all
            different, or if the text is longer than `MAX_BYTES`.
    """

    functions: int = 200  # number of functions; at least 1
    lines: int = WRITTEN_LINES
    """Body lines per function; at least 5, the number that is forced."""

    value_length: int = 24  # characters per literal; at least 1
    name_length: int = 16  # characters per name; at least 1
    seed: int = 42  # any integer of 64 bits
    indent: int = INDENT  # blanks before each body line; at least 1
    twins: int = 1
    """
    Size of families of similar functions; 1 for none. Names in a family differ in the
    last character (the last two if there are more than 62), bodies in some lines.
    """

    differ: int = 1
    """
    Number of lines in which twins differ, from 1 to *lines*, spread evenly over the
    body; a single one is in the middle.
    """

    def __post_init__(self) -> None:
        if self.differ > 1 and self.twins == 1:
            raise BadInput(
                source="random bodies",
                key="differ",
                reason="there are no twins that could differ",
                hint="Set twins, the size of a family, to 2 or more as well.",
            )
        for knob, least, most in (
            ("seed", -(2**63), 2**63 - 1),
            ("functions", 1, MAX_BYTES),
            ("lines", FORCED_LINES, MAX_BYTES),
            ("value_length", 1, MAX_BYTES),
            ("name_length", 1, MAX_BYTES),
            ("indent", 1, MAX_BYTES),
            ("twins", 1, len(ALPHABET) ** 2),
            ("differ", 1, self.lines),
        ):
            if not least <= getattr(self, knob) <= most:
                raise BadInput(
                    source="random bodies",
                    key=knob,
                    reason="out of range",
                    hint=f"{knob} must be from {least:,} to {most:,}.",
                )
        if self.size_bytes > MAX_BYTES:
            raise BadInput(
                source="random bodies",
                reason=f"these knobs make {self.size_bytes / 1e6:.0f} MB,"
                f" the limit is {MAX_BYTES / 1e6:.0f} MB",
                hint="Choose fewer functions or lines, or shorter names and literals.",
            )
        if self.twins > 1 and self.name_length < TWIN_NAME:
            raise BadInput(
                source="random bodies",
                key="name_length",
                reason="names of twins are longer than any keyword",
                hint=f"name_length must be at least {TWIN_NAME}, or twins 1.",
            )
        names = self.functions * (self.lines + 1)
        # At most half of all names, so that unused ones are drawn quickly.
        exist = len(FIRST_ALPHABET) * len(ALPHABET) ** (min(self.name_length, 8) - 1)
        if 2 * names > exist:
            raise BadInput(
                source="random bodies",
                reason=f"there are too few names of {self.name_length} characters"
                f" for {names} different ones",
                hint="Choose a greater name_length, or fewer functions or lines.",
            )

    @property
    def size_bytes(self) -> int:
        """Exact length of the functions, without the header."""
        line = len(' = ""\n') + self.indent + self.name_length + self.value_length
        return self.functions * (
            len("\n\ndef ():\n") + self.name_length + self.lines * line
        )

    @override
    def __str__(self) -> str:
        return (
            f"functions={self.functions} lines={self.lines}"
            f" value_length={self.value_length} name_length={self.name_length}"
            f" seed={self.seed}"
            # Defaults are omitted: the header is part of the text, whose bytes must not
            # change when a knob is added.
            f"{f' indent={self.indent}' if self.indent != INDENT else ''}"
            f"{f' twins={self.twins} differ={self.differ}' if self.twins > 1 else ''}"
        )


MINI = Knobs(functions=16, value_length=4, name_length=4, indent=1)
"""5 KB with lines of 15 characters, which a tiny model reads 36 times in minutes."""

SHORT = Knobs(functions=20, lines=5, value_length=2, name_length=3, indent=1)
"""20 short functions, 990 tokens of SmolLM2, to force lines on a small computer."""

MANY = replace(SHORT, functions=96)
"""As many of them as open pairs may be asked for: 4,632 tokens of SmolLM2."""


def generate_text(knobs: Knobs) -> str:
    """
    Python functions whose bodies are ``<random name> = "<random literal>"`` lines.

    The default knobs make 201 KB.

    The construction determines every byte on any platform and Python:

    1. Random bytes are the SHA-256 digests of ``<seed>:0``, ``<seed>:1`` and so on, in
       ASCII, one after the other.
    2. A character of an alphabet of n characters is the next byte modulo n; bytes that
       are not less than the greatest multiple of n up to 256 are skipped, so that all
       characters are equally likely.
    3. A name is a letter followed by letters or digits. Keywords of Python and names
       that the text already has are dropped and drawn again.
    4. Drawn in order: the name of a function, then the name and the literal of each of
       its lines.
    5. For a family of twins: the common beginning of their names, then the name and the
       literal of each common line; then, twin by twin, those of the lines in which
       twins differ. Their names end with the characters of `ALPHABET` in order.

    A character of `ALPHABET` has log2(62) = 5.954 bits, the first one of a name
    log2(52) = 5.700 bits, a default line of 40 random characters 237.9 bits.

    Returns:
        A header line with the knobs, then the functions, each after two blank lines, in
        ASCII, ending with a newline. More functions with the same other knobs extend
        the text of fewer.
    """
    stream = random_bytes(knobs.seed)
    functions = (
        _twin_functions(knobs, stream)
        if knobs.twins > 1
        else _unrelated_functions(knobs, stream)
    )
    indent = " " * knobs.indent
    parts = [f"{HEADER}{knobs}\n"]
    for name, lines in itertools.islice(functions, knobs.functions):
        parts.append(f"\n\ndef {name}():\n")
        parts += [f'{indent}{variable} = "{literal}"\n' for variable, literal in lines]
    return "".join(parts)


_Function = tuple[str, Iterable[tuple[str, str]]]


def _unrelated_functions(knobs: Knobs, stream: Iterator[int]) -> Iterator[_Function]:
    """Names and lines of unrelated functions, endlessly, drawn from *stream*."""
    names = _draw_names(stream, length=knobs.name_length)
    while True:
        name = next(names)
        yield (
            name,
            [_draw_name_and_literal(knobs, names, stream) for _ in range(knobs.lines)],
        )


def _twin_functions(knobs: Knobs, stream: Iterator[int]) -> Iterator[_Function]:
    """Names and lines of functions, family by family, endlessly."""
    endings = [*ALPHABET]
    if knobs.twins > len(endings):
        endings = list(map("".join, itertools.product(ALPHABET, repeat=2)))
    stems = _draw_names(stream, length=knobs.name_length - len(endings[0]))
    names = _draw_names(stream, length=knobs.name_length)
    lines, differ = knobs.lines, knobs.differ
    differing = {(2 * n + 1) * lines // (2 * differ) for n in range(differ)}
    while True:
        stem = next(stems)
        shared = [
            _draw_name_and_literal(knobs, names, stream) for _ in range(knobs.lines)
        ]
        for ending in endings[: knobs.twins]:
            yield (
                f"{stem}{ending}",
                [
                    _draw_name_and_literal(knobs, names, stream)
                    if n in differing
                    else line
                    for n, line in enumerate(shared)
                ],
            )


def _draw_name_and_literal(
    knobs: Knobs, names: Iterator[str], stream: Iterator[int]
) -> tuple[str, str]:
    """Name and literal of the next line."""
    name = next(names)
    return name, _draw_text(stream, ALPHABET, knobs.value_length)


def random_bytes(seed: int | str) -> Iterator[int]:
    """The bytes of step 1 of `generate_text`, endlessly."""
    for counter in itertools.count():
        yield from hashlib.sha256(f"{seed}:{counter}".encode()).digest()


def _draw_text(stream: Iterator[int], alphabet: str, length: int) -> str:
    """So many characters of *alphabet*, by step 2 of `generate_text`."""
    fair = 256 - 256 % len(alphabet)
    bytes_ = itertools.islice((byte for byte in stream if byte < fair), length)
    return "".join(alphabet[byte % len(alphabet)] for byte in bytes_)


def _draw_names(stream: Iterator[int], *, length: int) -> Iterator[str]:
    """Endless distinct names, none a keyword, drawn from *stream* on demand."""
    taken = set(_KEYWORDS)
    while True:
        name = _draw_text(stream, FIRST_ALPHABET, 1) + _draw_text(
            stream, ALPHABET, length - 1
        )
        if name not in taken:
            taken.add(name)
            yield name


def write_and_describe_corpus(knobs: Knobs, path: Path) -> str:
    """
    Write the text of *knobs* to *path*, replacing an earlier generated text.

    Returns:
        A line with path, number of functions, size and hash.

    Raises:
        BadInput: If *path* is a file that was not generated.
        FolderUnusable: If it cannot be written.
    """
    data = generate_text(knobs).encode()
    try:
        if path.exists() and not is_generated(path):
            raise BadInput(
                source=path,
                reason="exists already and is not a generated corpus",
                hint="Choose another --out, or move that file away.",
            )
        write_atomically(path, data)
    except OSError as error:
        raise FolderUnusable(folder=path.parent, reason=str(error)) from error
    functions, sha256 = plural(knobs.functions, "function"), hashlib.sha256(data)
    return f"{path}: {functions}, {size_text(len(data))}, sha256 {sha256.hexdigest()}"


def is_generated(path: Path) -> bool:
    """Whether *path* is a file that begins as those that are generated do."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER.encode()
