"""Reads what llama-server prints for ``--version`` and ``--help``."""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"^version: *(?P<version>.+?)\s*$", re.MULTILINE)
_BUILD = re.compile(r"build (?P<new>\d+)|^(?P<old>\d+) \(")

_OPTION_LINE = re.compile(r"\*? {0,14}-")
"""Descriptions stand further to the right; old builds mark some lines with a star."""

_OPTION_NAMES = re.compile(r"(?:-{1,2}[\w-]+)(?:,\s*-{1,2}[\w-]+)*")
_ALLOWED = re.compile(r"allowed values:\s*([A-Za-z][\w.]*(?:\s*,\s*[A-Za-z][\w.]*)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """
    What the two texts say.

    Attributes:
        version: As it is stated, without the word.
        build: Number of the build; None where there is none.
        k_types: Cache types accepted for K; empty if the text does not tell.
        v_types: Cache types accepted for V; likewise.
        options: Long names of all options.
    """

    version: str
    build: int | None
    k_types: tuple[str, ...]
    v_types: tuple[str, ...]
    options: frozenset[str]


def read_help(version_text: str, help_text: str) -> Help | None:
    """What the texts say; None if they are not llama-server's."""
    found = _VERSION.search(version_text)
    sections = _sections(help_text)
    options = frozenset(
        name for names in sections for name in names if name.startswith("--")
    )
    if found is None or "--cache-type-k" not in options:
        return None
    build = _BUILD.search(found["version"])
    return Help(
        version=found["version"],
        build=int(build["new"] or build["old"]) if build else None,
        k_types=_types(sections, "--cache-type-k"),
        v_types=_types(sections, "--cache-type-v"),
        options=options,
    )


def _sections(help_text: str) -> dict[tuple[str, ...], str]:
    """The text of each option, by its names, long and short."""
    sections: dict[tuple[str, ...], str] = {}
    names: tuple[str, ...] = ()
    for line in help_text.splitlines():
        if _OPTION_LINE.match(line):
            found = _OPTION_NAMES.search(line)
            names = tuple(re.split(r",\s*", found[0])) if found else ()
            sections[names] = line
        elif not line.strip() or not line.startswith(" "):
            names = ()
        elif names:
            sections[names] += f" {line.strip()}"
    return sections


def _types(sections: dict[tuple[str, ...], str], option: str) -> tuple[str, ...]:
    for names, text in sections.items():
        found = _ALLOWED.search(text)
        if option in names and found:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", found[1])))
    return ()
