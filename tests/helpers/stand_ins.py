"""Programs for whole sweeps that stand in for llama.cpp's, and misbehave by cell."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from programs import script

HERE = Path(__file__).parent
IMPATIENT = HERE / "impatient.py"
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
    python = f'"{sys.executable}" -I -S "{HERE / "fake_llama.py"}"'
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
        fake = HERE / f"fake_{name}.py"
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


def struck(path, command, name, number, delay_s):
    """
    The program in *path*, of whose first child called *name* something becomes.

    Args:
        path: Working folder.
        command: Arguments.
        name: Of a program that computes a cell.
        number: The signal that it gets.
        delay_s: How long after its start, in seconds.
    """
    limits = {"SILENCE_S": "3", "LOAD_S": "6", "NO_COLOR": "1", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, IMPATIENT, *map(str, command)],
        cwd=path,
        env=os.environ | limits,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as sweep:
        while sweep.poll() is None and not (pid := _computing(path, name)):
            pass
        if sweep.poll() is None:
            time.sleep(delay_s)  # the moment is chance
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        said, _ = sweep.communicate(timeout=120)
    return subprocess.CompletedProcess(command, sweep.returncode, said)


def _computing(path, name):
    """The pid of a program called *name* that has a cell's cache types, in *path*."""
    for process in psutil.process_iter(["name", "cmdline"]):
        is_cell = "--cache-type-k" in (process.info["cmdline"] or ())
        with contextlib.suppress(psutil.Error):
            is_one = process.info["name"] == name and is_cell
            if is_one and process.cwd() == str(path):
                return process.pid
    return None


def record(folder, pair, probe="recall", *, run=RUN):
    """What is stored of a cell; None if nothing is."""
    file = folder / run / "cells" / f"{pair}.{probe}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def problem(stored):
    """What a person is told of a cell without numbers."""
    return f"{stored['status']}: {stored['reason']}"
