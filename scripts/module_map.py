"""Lists every module with the first sentence of what it holds."""

import ast
import signal
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("codeneedle", "docs/extensions", "scripts")


def module_lines() -> list[str]:
    """A line for each module, by folder: its path, and its first sentence."""
    paths = [path for folder in FOLDERS for path in _modules_of(ROOT / folder)]
    return [
        line
        for folder, modules in groupby(paths, key=lambda path: path.parent)
        for line in ("", f"{folder.relative_to(ROOT)}/", *map(_module_line, modules))
    ][1:]


def _modules_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"), key=lambda path: (path.parent, path.name))


def _module_line(path: Path) -> str:
    """``  judge.py  What the records of a run say of each pair``."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0]
    return f"  {path.name:24}  {sentence.rstrip('.:')}"


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # head may have enough
    print("\n".join(module_lines()))
