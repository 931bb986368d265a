"""A source tree of any size: Python, JavaScript and PHP as people write it, seeded."""

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

WORDS = (
    *("account", "batch", "buffer", "cache", "channel", "client", "column", "config"),
    *("cursor", "entry", "event", "field", "filter", "frame", "group", "handle"),
    *("index", "item", "label", "layer", "limit", "line", "list", "message", "node"),
    *("offset", "option", "order", "page", "parent", "part", "path", "query", "queue"),
    *("range", "record", "region", "request", "result", "row", "rule", "schema"),
    *("score", "session", "shape", "signal", "slot", "source", "state", "stream"),
    *("table", "target", "task", "token", "total", "user", "value", "vector", "view"),
)

LARGEST_SHARE = 0.05
"""Of the tree: its largest file, a bundle such as builds leave behind."""

SHARES = (("py", 0.55), ("js", 0.35), ("php", 0.10))
"""Of the bytes, by suffix."""

FILE_BYTES = (2_000, 90_000)
"""Of all other files."""

SHORTEST, LONGEST = 4, 48
"""Statements of a function: some are too short to be asked for."""

PER_FOLDER = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """
    How a language is written, with names to be put in: two of variables and one of a
    number that are the function's own, a word and a number that each statement has.

    Attributes:
        head: How a file begins.
        opening: How a function begins, up to its first statement.
        statements: What it may do.
        closing: How it ends.
    """

    head: str
    opening: str
    statements: tuple[str, ...]
    closing: str


_LANGUAGES = {
    "py": _Language(
        head='"""Made up."""\n\nimport os\n',
        opening="""

def %(own)s(%(a)s, %(b)s=None, *, is_%(a)s=False):
    \"\"\"Return what %(a)s has of %(b)s, in order.\"\"\"
    %(c)s = []
""",
        statements=(
            "    %(w)s = %(a)s.get('%(b)s', %(n)d) if %(b)s else %(n)d\n",
            "    for %(w)s in %(a)s:\n        %(c)s.append(%(w)s * %(n)d)\n",
            """    if %(b)s is not None and len(%(b)s) > %(n)d:
        raise ValueError(f'%(w)s exceeds %(n)d: {%(b)s!r}')
""",
            "    %(c)s.extend(x for x in %(a)s if x != %(n)d)  # keeps order\n",
            """    with open(%(b)s) as %(w)s:
        %(c)s += %(w)s.readlines()[:%(n)d]
""",
            "    %(w)s = {'%(a)s': %(a)s, 'at': [%(n)d, 0x%(n)x], 'is_%(w)s': True}\n",
            "\n",
        ),
        closing="    return %(c)s\n",
    ),
    "js": _Language(
        head="'use strict';\n",
        opening="""
/** Returns what %(a)s has of %(b)s. */
function %(own)s(%(a)s, %(b)s) {
  var %(c)s = [];
""",
        statements=(
            "  var %(w)s_%(n)d = %(a)s[%(n)d] || { %(w)s: '%(b)s', limit: %(n)d };\n",
            """  for (let i = 0; i < %(a)s.length; i++) {
    %(c)s.push(%(a)s[i] * %(n)d);
  }
""",
            """  if (%(b)s && %(b)s.length > %(n)d) {
    throw new Error('%(w)s exceeds ' + %(n)d);
  }
""",
            "  %(c)s.push(...%(a)s.filter((x) => x !== %(n)d)); // keeps order\n",
            "  %(a)s.forEach(function (x) { %(c)s.push(`${x}:%(n)d`); });\n",
            "  %(b)s = /^%(w)s[a-z]{1,%(n)d}$/.test(%(b)s) ? %(b)s : null;\n",
            "\n",
        ),
        closing="  return %(c)s;\n}\n",
    ),
    "php": _Language(
        head="<?php\n\ndeclare(strict_types=1);\n",
        opening="""
/** Returns what $%(a)s has of $%(b)s. */
function %(own)s(array $%(a)s, ?string $%(b)s = null): array
{
    $%(c)s = [];
""",
        statements=(
            "    $%(w)s = $%(a)s['%(b)s'] ?? %(n)d;\n",
            """    foreach ($%(a)s as $key => $%(w)s) {
        $%(c)s[$key] = $%(w)s * %(n)d;
    }
""",
            """    if ($%(b)s !== null && strlen($%(b)s) > %(n)d) {
        throw new RuntimeException("%(w)s exceeds %(n)d");
    }
""",
            "    $%(c)s[] = array_filter($%(a)s, fn ($x) => $x !== %(n)d); // order\n",
            "    $%(w)s = ['%(a)s' => $%(a)s, 'at' => [%(n)d, 0x%(n)x]];\n",
            "\n",
        ),
        closing="    return $%(c)s;\n}\n",
    ),
}


def make_tree(folder: Path, *, size_bytes: int, seed: int = 42) -> int:
    """
    Write a tree of about *size_bytes* into *folder*; the same seed, the same bytes.

    Returns:
        The size of its largest file, in bytes.
    """
    chance = random.Random(seed)  # noqa: S311 - nothing here is secret
    largest = _write(folder / "dist" / "bundle.js", chance, size_bytes * LARGEST_SHARE)
    for suffix, share in SHARES:
        wanted = size_bytes * share
        if suffix == "js":
            wanted -= largest
        numbers = itertools.count()
        while wanted > 0:
            at = next(numbers)
            path = folder / suffix / f"part{at // PER_FOLDER:03}" / f"m{at}.{suffix}"
            wanted -= _write(path, chance, min(wanted, chance.uniform(*FILE_BYTES)))
    return largest


def _write(path: Path, chance: random.Random, size: float) -> int:
    """Whole functions, up to *size* and a part of the last one; what it became."""
    path.parent.mkdir(parents=True, exist_ok=True)
    language = _LANGUAGES[path.suffix.removeprefix(".")]
    parts, length = [language.head], 0
    while length < size:
        parts.append(_function(language, chance))
        length += len(parts[-1])
    return path.write_bytes("".join(parts).encode())


def _function(language: _Language, chance: random.Random) -> str:
    a, b, c, d = chance.choices(WORDS, k=4)
    names: dict[str, str | int] = {"a": a, "b": f"{a}_{b}", "c": f"{c}_{d}s"}
    # A number makes it unlike all others: only such ones can be asked for.
    names["own"] = f"{b}_{c}_{chance.getrandbits(40):x}"
    parts = [language.opening % names]
    count = chance.randint(SHORTEST, LONGEST)
    for statement in chance.choices(language.statements, k=count):
        names["n"] = chance.getrandbits(10)
        names["w"] = WORDS[chance.getrandbits(6) % len(WORDS)]
        parts.append(statement % names)
    parts.append(language.closing % names)
    return "".join(parts)
