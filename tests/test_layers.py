"""The architecture, as a test: folders import downwards only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import codeneedle

PACKAGE = Path(codeneedle.__file__).parent

FOLDERS = (
    "__main__",
    "cli",
    "report",
    "sweep",
    "verdict",
    "probes",
    "analysis",
    "scoring",
    "engines",
    "corpora",
    "models",
    "records",
    "system",
    "grid",
    "text",
    "errors",
    "__init__",
)
"""Folders and flat modules, from the top: each imports from those below it only."""

ONLY = {
    "httpx": {"engines/client.py"},
    "subprocess": {"system/processes.py"},
    "pandas": {"analysis", "report"},
    "seaborn": {"report"},
    "matplotlib": {"report"},
    "typer": {"cli"},
}
"""Libraries that belong to one place."""


def sources() -> Iterator[Path]:
    """The modules of the package, relative to its folder."""
    yield from (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))


def folder(path: Path) -> str:
    """The folder of a module, or the name of a flat one."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code_strings(path: Path) -> Iterator[str]:
    """Strings in the code of a module without spaces: no prose, no docstrings."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and " " not in value:
            yield value


def imported_folders(path: Path) -> Iterator[str]:
    """Folders of this package that a module imports from."""
    for dotted in imported(path):
        root, _, rest = dotted.partition(".")
        if root == "codeneedle":
            first = rest.split(".")[0]
            yield first if first in FOLDERS else "__init__"


def test_every_folder_has_a_place_in_the_order():
    """
    A new folder is added to the order before it is used.
    """
    assert set() == {folder(path) for path in sources()} - set(FOLDERS)


def test_folders_import_only_from_folders_below_them():
    """
    Folder-level imports form one line downwards, without a circle.
    """
    upward = {
        (str(path), target)
        for path in sources()
        for target in imported_folders(path)
        if FOLDERS.index(target) < FOLDERS.index(folder(path))
    }

    assert set() == upward


def test_only_the_command_line_knows_which_engine_there_is():
    """
    Flags, log lines and endpoints of llama.cpp are known to its folder; `cli` chooses
    it, and all else goes through the engine protocol.
    """
    strangers = {
        str(path)
        for path in sources()
        for dotted in imported(path)
        if dotted.startswith("codeneedle.engines.llama_cpp")
        if path.parts[0] != "cli" and path.parts[:2] != ("engines", "llama_cpp")
    }

    assert set() == strangers


WORDS_OF_LLAMA_SERVER = re.compile(
    r"--(ctx-size|cache-type-[kv]|flash-attn|n-gpu-layers|no-context-shift|spec-type)"
    r"|/(health|props|slots|completion|apply-template|tokenize)\b|print_timing|kv_cache:"
)
"""Its flags, endpoints and log lines, of each the ones that we use most."""


def test_only_its_own_folder_knows_the_words_of_llama_server():
    """
    Flags, log lines and endpoints stand in code of `engines` alone, if not in text
    that users read.
    """
    found = {
        f"{path}: {word[0]}"
        for path in sources()
        if not str(path).startswith("engines/")
        for text in code_strings(path)
        if (word := WORDS_OF_LLAMA_SERVER.search(text))
    }

    assert set() == found


@pytest.mark.parametrize("library", sorted(ONLY))
def test_a_library_stays_in_its_place(library):
    """
    One place knows how to talk to one kind of world.
    """
    strangers = {
        str(path)
        for path in sources()
        for dotted in imported(path)
        if dotted.split(".")[0] == library
        if not any(str(path).startswith(place) for place in ONLY[library])
    }

    assert set() == strangers
