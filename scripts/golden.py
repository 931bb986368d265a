"""
Golden runs: what sweeps store and what reports say of it, to hold changes against.

    python scripts/golden.py measure FOLDER   # sweep the four runs into FOLDER
    python scripts/golden.py differ FOLDER    # where FOLDER differs from tests/golden
    python scripts/golden.py report           # write tests/golden/*.txt anew

Times, dates, process facts and the machine are left out of the comparison.
"""

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz_seeds import made
from gguf_to_mlx import converted

from codeneedle.cache_types import Pair, PairFlags
from codeneedle.cli.main import main as run_codeneedle
from codeneedle.models.pretrained import checked_built_in_path
from codeneedle.models.weights import read_weights_from_headers
from codeneedle.report.verdict import brief_document

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
RUNS = GOLDEN / "runs"

SWEEPS = {
    "recall": "--types f16,q4_0 --context 3072 --corpus golden --no-more",
    "divergence": "--types f16,q4_0 --context 2048 --corpus golden "
    "--probe divergence,throughput --divergence-context 256 --chunks 3 "
    "--repetitions 1 --depths 0",
    "retrieval": "--types f16,q4_0 --context 2048 --corpus golden --probe retrieval "
    "--tasks single,multikey --lengths 512,1K --depths 0.2,0.8 --questions 2",
    "mlx": "--engine mlx --model needle-nano --types f16,kv4 --context 2048 "
    "--corpus golden --way force --functions 4 --probe recall,divergence "
    "--divergence-context 256 --chunks 3",
}
"""Arguments of each sweep, on the built-in model."""

CORPUS = """[generate]
functions = 6
lines = 21
value_length = 4
name_length = 4
indent = 1
seed = 11
"""

REPORTS = (
    "grid golden",
    "grid golden --csv",
    "grid golden --json",
    "grid golden --markdown",
    "table golden",
    "table golden --csv",
    "table golden --json",
    "table golden --markdown",
    "table golden --form llama.cpp",
    "verdict golden",
    "verdict golden --json",
    "verdict golden --markdown",
    "memory golden",
    "show golden q4_0/q4_0",
    "panels golden",
)

CHANGING = re.compile(
    r"(?:.*_)?(?:ms|s|seconds|rss_bytes|device_bytes|port|pid)$"
    r"|started|created|command|identity|setup|log_excerpt|sha256_of_log|machine|llama|build"
    r"|pp|tg|cpu|seal|sum|mem.*|version|proof|position"
)
"""Keys that differ from run to run."""


PATHS = re.compile(r"(?<!\S)/\S*/(?=\S)")
"""Folders of programs and weights in commands."""


def measure(folder: Path) -> None:
    """Sweep each of `SWEEPS` into a folder of its own below *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpora").mkdir(exist_ok=True)
    (folder / "corpora" / "golden.toml").write_text(CORPUS, encoding="utf-8")
    nano = folder / "needle-nano"
    nano.symlink_to(converted(read_weights_from_headers(checked_built_in_path())))
    for name, words in SWEEPS.items():
        command = [sys.executable, "-m", "codeneedle", "sweep", *words.split()]
        subprocess.run([*command, "--out", name], cwd=folder, check=False)


def files(folder: Path) -> Iterator[Path]:
    """The setups and records below *folder*, without logs."""
    for path in sorted(folder.rglob("*.json")):
        if "logs" not in path.parts:
            yield path.relative_to(folder)


def read(path: Path) -> Any:
    """A stored file without its checksum."""
    text = path.read_text(encoding="utf-8")
    start = min(at for at in (text.find("{"), text.find("[")) if at >= 0)
    value, _ = json.JSONDecoder().raw_decode(text[start:])
    return value


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Where two stored values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            if not CHANGING.fullmatch(key):
                one, other = ours.get(key, "(none)"), theirs.get(key, "(none)")
                yield from differences(one, other, f"{place}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{place}: {len(ours)} and {len(theirs)} entries"
        for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(one, other, f"{place}[{at}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} and {theirs!r}"


def differ(folder: Path) -> int:
    """Print where *folder* differs from the golden runs; how often it does."""
    count = 0
    for path in sorted({*files(RUNS), *files(folder)}):
        if not (RUNS / path).is_file() or not (folder / path).is_file():
            print(f"{path}: only in one")
            count += 1
            continue
        for line in differences(read(RUNS / path), read(folder / path)):
            print(f"{path}{line}")
            count += 1
    return count


def report(name: str) -> str:
    """Every report of one golden run, each below its command."""
    os.environ["COLUMNS"] = "80"
    with contextlib.chdir(RUNS / name):
        return "".join(
            f"$ codeneedle {words}\n{PATHS.sub('', _printed(words))}\n"
            for words in REPORTS
        )


def verdicts() -> str:
    """The verdicts on made runs, in words: those of golden runs recommend nothing."""
    printed, flags = made("printing").printed, PairFlags(asked)
    return "\n".join(
        f"# {name}: {verdict.outcome}\n\n"
        f"{printed(brief_document(verdict, flags), width=80)}"
        for name, verdict in made("made_verdicts").made_verdicts().items()
    )


def refusals() -> str:
    """Refusals, in words, each with its hint."""
    return "\n".join(
        f"# {what}\n\n{error}\nhint: {error.hint}\n"
        for what, error in made("made_refusals").made_refusals().items()
    )


def asked(pair: Pair) -> str:
    """How a user asks for *pair*."""
    return f"-ctk {pair.k} -ctv {pair.v}"


def _printed(words: str) -> str:
    """What a command prints and how it ends."""
    out, former = io.StringIO(), sys.argv
    sys.argv = ["codeneedle", *words.split(), "--out", "."]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            run_codeneedle()
    except SystemExit as end:
        out.write(f"[exit {end.code}]\n")
    finally:
        sys.argv = former
    return out.getvalue()


def main() -> None:
    """Measure, compare, or write reports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "differ", "report"])
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    if given.what == "measure":
        measure(given.folder)
    elif given.what == "differ":
        sys.exit(1 if differ(given.folder) else 0)
    else:
        for name in SWEEPS:
            (GOLDEN / f"{name}.txt").write_text(report(name), encoding="utf-8")
        (GOLDEN / "verdicts.txt").write_text(verdicts(), encoding="utf-8")
        (GOLDEN / "refusals.txt").write_text(refusals(), encoding="utf-8")


if __name__ == "__main__":
    main()
