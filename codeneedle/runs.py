"""The runs in a folder of run folders, found by name."""

import os
from pathlib import Path

from codeneedle.cellfiles import CELLS
from codeneedle.errors import RequestError, did_you_mean
from codeneedle.store import SETUP, Store


class NoSuchRun(RequestError):  # noqa: N818 - named after the fact
    """No run folder has this name."""

    def __init__(self, *, name: str, root: Path, known: list[str]) -> None:
        super().__init__(
            f"no sweep called '{name}' in {root}{os.sep}",
            hint=did_you_mean(name, known)
            if known
            else "Run 'codeneedle sweep' first.",
        )
        self.known = known


def find_runs(root: Path, name: str) -> list[Store]:
    """
    The runs called *name*, newest first: a corpus, ``corpus/model``, or a prefix.

    An exact corpus or model name wins over a mere prefix.

    Raises:
        NoSuchRun: If nothing in *root* has that name.
    """
    known = {
        f"{path.parent.parent.name}/{path.parent.name}": path
        for path in root.glob(f"*/*/{SETUP}")
    }
    wanted = name.strip("/")
    exact = [run for run in known if wanted in {run, run.split("/")[0]}]
    found = exact or [run for run in known if run.startswith(wanted)]
    if not found or not wanted:
        raise NoSuchRun(name=name, root=root, known=sorted(known))
    newest = sorted(
        found, key=lambda run: _last_change(known[run].parent), reverse=True
    )
    return [Store(known[run].parent) for run in newest]


def _last_change(folder: Path) -> float:
    files = [folder / SETUP, *(folder / CELLS).glob("*.json")]
    return max(path.stat().st_mtime for path in files if path.exists())
