"""
Coverage-guided fuzzing of everything that reads bytes from elsewhere.

    pip install 'codeneedle[fuzz]'
    python scripts/fuzz.py                        # a million inputs, all targets
    python scripts/fuzz.py --target gguf --inputs 50000
    python scripts/fuzz.py --target gguf --again crash-0123abcd

Each target is a process of its own: its seeds and stretches of one thing first, then
what atheris makes of them. Nothing but the errors that a reader promises may come out,
within the time and memory that is stated below. Inputs are counted in a file,
so that the number is known of a target that dies, too.

Exit codes: 0, nothing was found; 1, something was, and its reproducers are named;
2, there is no such target; 3, atheris is not installed.
"""

import argparse
import importlib
import importlib.util
import mmap
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fuzz_targets import Target

LONGEST_BYTES = 1 << 16
"""Of an input."""

SLOWEST_S = 5.0
"""Processor time that an input may take: a hundred times what the slowest should."""

HANGS_S = 60
MOST_BYTES = 3 << 30
"""Address space of a target, so that a number in a file cannot become memory."""

INPUTS = 1_000_000
"""Of all targets together, unless ``--inputs`` says else."""

AT_ONCE = 2
"""Processes."""

_DONE = re.compile(r"#\d+\s+\w+\s+cov: (?P<paths>\d+) ft: \d+ corp: (?P<kept>\d+)")


class Count:
    """A number in a file, which outlives whoever counts."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def __int__(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    def up(self) -> None:
        """One more."""
        self._memory[:8] = (int(self) + 1).to_bytes(8, "little")


def fuzz(name: str, *, inputs: int, folder: Path) -> None:
    """Read as many inputs, and end the process: atheris does so by itself."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["codeneedle", "esprima"]):
        target = targets()[name]
        # These are imported when they are first needed, and so would be missed.
        from codeneedle.corpora import languages

        languages.all_languages()
        importlib.import_module("esprima")
    count = Count(folder / "count")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    def read(data: bytes) -> None:
        count.up()
        digest(target, data)

    for data in target.inputs():
        try:
            read(data)
        except BaseException:
            (folder / "crash-before").write_bytes(data)
            raise
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for at, data in enumerate(target.seeds()):
        (corpus / f"seed-{at}").write_bytes(data)
    options = [
        f"-runs={max(1, inputs - int(count))}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={HANGS_S}",
        f"-artifact_prefix={folder}{os.sep}",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], read)
    atheris.Fuzz()


def digest(target: "Target", data: bytes) -> None:
    """
    Have *target* read *data*.

    Raises:
        TimeoutError: If that takes more than `SLOWEST_S` seconds.
        Exception: Whatever else comes out of it is a defect.
    """
    began = time.thread_time()
    with warnings.catch_warnings():
        # A text of somebody's must not make Python complain on our screen.
        warnings.simplefilter("error")
        target.digest(data)
    took_s = time.thread_time() - began
    if took_s > SLOWEST_S:
        raise TimeoutError(f"{len(data)} bytes took {took_s:.1f} s")


def targets() -> "dict[str, Target]":
    """All targets by name; imported late, so that atheris can watch them."""
    found: dict[str, Target] = importlib.import_module("fuzz_targets").TARGETS
    return found


# --- all targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What became of a target.

    Attributes:
        name: Of the target.
        inputs: That it has read, by its own count.
        paths: Branches that were seen, by atheris' count.
        kept: Inputs that went where none had gone before.
        seconds: How long it took.
        crashes: Reproducers.
        returncode: Of its process.
    """

    name: str
    inputs: int
    paths: int
    kept: int
    seconds: float
    crashes: tuple[Path, ...]
    returncode: int

    @property
    def failed(self) -> bool:
        """Whether something was found, or the process died of something else."""
        return bool(self.crashes) or self.returncode != 0


def fuzzed(name: str, *, inputs: int, folder: Path) -> Outcome:
    """Fuzz one target in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [
        *(sys.executable, __file__, "--child", "--target", name),
        *("--inputs", str(inputs), "--out", str(folder)),
    ]
    began = time.monotonic()
    with (
        (folder / "log").open("wb") as log,
        tempfile.TemporaryDirectory(prefix="codeneedle-fuzz-") as scratch,
    ):
        done = subprocess.run(
            argv,
            env=os.environ | {"TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    last = _last_state((folder / "log").read_text(errors="replace"))
    return Outcome(
        name=name,
        inputs=int(Count(folder / "count")),
        paths=last[0],
        kept=last[1],
        seconds=time.monotonic() - began,
        crashes=tuple(
            path
            for kind in ("crash-*", "timeout-*", "oom-*", "leak-*")
            for path in sorted(folder.glob(kind))
        ),
        returncode=done.returncode,
    )


def _last_state(log: str) -> tuple[int, int]:
    found = list(_DONE.finditer(log))
    return (int(found[-1]["paths"]), int(found[-1]["kept"])) if found else (0, 0)


def shares(targets: Sequence["Target"], inputs: int) -> dict[str, int]:
    """How many of the *inputs* each target reads, rounded up."""
    whole = sum(target.share for target in targets)
    return {each.name: -(-inputs * each.share // whole) for each in targets}


def all_fuzzed(wanted: dict[str, int], folder: Path, screen: Console) -> list[Outcome]:
    """Fuzz all targets, two at a time; each is told when it is through."""

    def one(name: str) -> Outcome:
        found = fuzzed(name, inputs=wanted[name], folder=folder / name)
        screen.print(f"{name}: {found.inputs:,} inputs in {found.seconds:.0f} s")
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, wanted))


def table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each target, and one for all."""
    shown = Table("target", box=None, header_style="bold")
    for heading in ("inputs", "branches", "new paths", "seconds", "crashes"):
        shown.add_column(heading, justify="right")
    for each in outcomes:
        numbers = (each.inputs, each.paths, each.kept, round(each.seconds))
        words = str(len(each.crashes)) if each.crashes or not each.failed else "died"
        style = "bold red" if each.failed else ""
        shown.add_row(each.name, *(f"{n:,}" for n in numbers), words, style=style)
    total = sum(each.inputs for each in outcomes)
    crashes = sum(len(each.crashes) for each in outcomes)
    shown.add_row("total", f"{total:,}", "", "", "", f"{crashes}")
    return shown


def reproducers(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How to see each crash again."""
    for each in outcomes:
        for path in each.crashes:
            yield f"python scripts/fuzz.py --target {each.name} --again {path}"
        if each.failed and not each.crashes:
            yield f"{each.name} exited with {each.returncode}"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of all targets")
    parser.add_argument("--target", help="this one alone")
    parser.add_argument("--out", type=Path, help="keeps inputs, logs and reproducers")
    parser.add_argument("--again", type=Path, help="reads this input, without atheris")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    """Fuzz what is asked for; the exit code."""
    given = parsed()
    known = {} if given.child else targets()
    if given.child:
        fuzz(given.target, inputs=given.inputs, folder=given.out)
    if given.target is not None and given.target not in known:
        return _refused(f"no target '{given.target}'", f"Known: {', '.join(known)}.", 2)
    if given.again is not None and given.target is None:
        return _refused("--again reads an input", "Say for which one with --target.", 2)
    if given.again is not None:
        digest(known[given.target], given.again.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is None:
        hint = "Run: pip install 'codeneedle[fuzz]' (Linux and CPython only)."
        return _refused("atheris is not installed", hint, 3)
    wanted = [known[given.target]] if given.target else list(known.values())
    out = given.out or Path(tempfile.mkdtemp(prefix="codeneedle-fuzz-out-"))
    screen = Console(stderr=True)
    outcomes = all_fuzzed(shares(wanted, given.inputs), out, screen)
    is_clean = not any(each.failed for each in outcomes)
    Console().print(table(outcomes))
    for line in reproducers(outcomes):
        screen.print(line, soft_wrap=True, markup=False)
    if given.out is None and is_clean:
        shutil.rmtree(out, ignore_errors=True)
    return 0 if is_clean else 1


def _refused(reason: str, hint: str, code: int) -> int:
    print(f"error: {reason}\n hint: {hint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
