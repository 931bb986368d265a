"""Programs for whole sweeps that stand in for llama.cpp's, and misbehave by cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

from programs import script

HERE = Path(__file__).parent
IMPATIENT = HERE / "impatient.py"
TESTS = HERE.parent
RUN = Path("sweeps/tiny/needle-nano")


def server(folder, faults):
    """
    A llama-server in *folder* whose *faults* are chosen by cell.

    Args:
        folder: Where it goes.
        faults: Per cell, ``q8_0-q4_0`` or ``counting``, what `fake_llama` knows.
    """
    chosen = folder / "cell-faults"
    misbehave(folder, faults)
    python = f'"{sys.executable}" -I -S "{TESTS / "fake_llama.py"}"'
    return script(
        folder / "bin" / "llama-server", f'exec {python} --fake-folder "{chosen}" "$@"'
    )


def misbehave(folder, faults):
    """From now on, the cells of the `server` in *folder* have these *faults* alone."""
    chosen = folder / "cell-faults"
    chosen.mkdir(exist_ok=True)
    for file in chosen.iterdir():
        file.unlink()
    for cell, lines in faults.items():
        (chosen / cell).write_text("\n".join(lines), encoding="utf-8")


TOOL = """\
for word; do
  case "$before" in --cache-type-k) k=$word;; --cache-type-v) v=$word;; esac
  before=$word
done
fault=none
if [ -e "{chosen}/$k-$v" ]; then fault=$(cat "{chosen}/$k-$v"); fi
HOME="{folder}"; export HOME
exec "{python}" -S "{fake}" "$fault" "$@"
"""


def tools(folder, faults):
    """
    Stand-ins of llama-perplexity and llama-bench beside the `server` in *folder*.

    Args:
        folder: Where they go.
        faults: By name of the tool, per cell, what the fake of that name knows.
    """
    for name, of_cells in faults.items():
        chosen = folder / f"{name}-faults"
        chosen.mkdir(exist_ok=True)
        for file in chosen.iterdir():
            file.unlink()
        for cell, fault in of_cells.items():
            (chosen / cell).write_text(fault, encoding="utf-8")
        fake = TESTS / f"fake_{name}.py"
        body = TOOL.format(
            chosen=chosen, folder=folder, python=sys.executable, fake=fake
        )
        script(folder / "bin" / f"llama-{name}", body)


def impatient(folder, *arguments, silence_s=1.0, load_s=2.0, **variables):
    """The program in *folder*, with less patience than people have, to its end."""
    limits = {"SILENCE_S": str(silence_s), "LOAD_S": str(load_s)}
    shown = {"COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, IMPATIENT, *map(str, arguments)],
        cwd=folder,
        env=os.environ | shown | limits | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=300,
    )


def record(folder, pair, probe="recall", *, run=RUN):
    """What is stored of a cell; None if nothing is."""
    file = folder / run / "cells" / f"{pair}.{probe}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def problem(stored):
    """What a person is told of a cell without numbers."""
    return f"{stored['status']}: {stored['reason']}"
