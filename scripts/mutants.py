"""
Change one operator or number at a time in a pure module, and see whether a test fails.

    python scripts/mutants.py                        100 mutants, the same each time
    python scripts/mutants.py --sample 0 alignment   all mutants of that module

All tests that start no server are run once, and it is noted which lines each executes
(`executed`). Each mutant (cosmic-ray makes them) then runs in a copy of the project
against the tests that execute its line, the quickest first, as many as compute for a
minute; it is caught if one fails, or takes much longer than without it. One that no
test executes has survived.
Exit code 1 if less than 90 of 100 are caught.
"""

import argparse
import difflib
import multiprocessing
import os
import queue
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from executed import Choice, Executed, record, run
from typing_extensions import override

ROOT = Path(__file__).parents[1]
GOAL = 0.9
TESTS = "tests/**/test_*.py"

SLACK_FACTOR = 10.0
LEAST_LIMIT_S = 120.0
"""A mutant is caught by time after so many times what its tests take, and this."""

MODULES = (
    "corpora/needles",
    "engines/llama_cpp/log",
    "engines/llama_cpp/reading",
    "engines/llama_cpp/perplexity_log",
    "cache_types",
    "models/kv_cache",
    "probes/divergence/metrics",
    "probes/frames",
    "probes/generation/loops",
    "probes/generation/metrics",
    "probes/generation/comparing",
    "probes/generation/record",
    "probes/recall/alignment",
    "probes/recall/metrics",
    "probes/reading",
    "probes/recall/rounds",
    "probes/retrieval/metrics",
    "probes/retrieval/scoring",
    "probes/cell_metrics",
    "probes/transcript/choice",
    "probes/transcript/conversations",
    "probes/transcript/metrics",
    "records/comparability",
    "records/record",
    "records/store",
    "report/losses",
    "report/tidy",
    "sweep/running_order",
    "sweep/steps",
    "sweep/runner",
    "sweep/schedule",
    "verdict/commands",
    "verdict/judge",
    "verdict/lengths",
    "verdict/metric_results",
    "verdict/noise_floor",
    "verdict/limits",
    "verdict/next",
    "verdict/asking_order",
    "verdict/statistics",
    "verdict/trust",
)
"""Modules that start no server."""

OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|ZeroIterationForLoop"
    r"|Replace(And|Or|True|False|Break|Continue)With\w+|ReplaceUnaryOperator_Delete_\w+"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is"
    r"|Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt)))"
)
"""Left out: what always ends in a TypeError, such as ``&`` between types."""

PRELOADED = [
    "cosmic_ray.mutating",
    "coverage",
    "hypothesis",
    "msgspec",
    "numpy",
    "pandas",
    "pytest",
    "rich.table",
    "scipy",
]

FORKS = multiprocessing.get_context("forkserver")
"""
Makes processes that have imported all that takes long, once: most of what a short test
takes. The package itself is imported by each of them, from its own copy.
"""

DECLARATION = re.compile(r"@dataclass\(|, strict=|[(, ]\*, |^ *\*,$")
"""Lines whose flags no test can see, but a type checker may: frozen, slots, ``*``."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module: its path from the root, and its source before and after."""

    path: Path
    row: int
    before: str
    after: str

    @override
    def __str__(self) -> str:
        lines = (self.before.splitlines(), self.after.splitlines())
        _, _, place, *changed = difflib.unified_diff(*lines, n=0, lineterm="")
        return "\n    ".join([f"{self.path} {place.split()[1]}", *changed])


def changes(module: str, chance: random.Random) -> Iterator[tuple[Path, int, str, int]]:
    """
    One change for each place of *module* that can be changed, by *chance*.

    It is a path, a row, the name of an operator, and which of its places that is.
    """
    path = Path("codeneedle", f"{module}.py")
    before = (ROOT / path).read_text(encoding="utf-8")
    lines, nodes = before.splitlines(), list(ast_nodes(get_ast(before)))
    places: dict[tuple[tuple[int, int], object], list[tuple[str, int]]] = {}
    for name in filter(OPERATORS.fullmatch, sorted(operator_names())):
        found = map(get_operator(name)().mutation_positions, nodes)
        for count, place in enumerate(place for each in found for place in each):
            places.setdefault(place, []).append((name, count))
    for ((row, _), _), operators in places.items():
        name, count = chance.choice(operators)
        if not DECLARATION.search(lines[row - 1]):
            yield path, row, name, count


def mutant(path: Path, row: int, name: str, count: int) -> Mutant:
    """The module at *path* with a change of `changes`."""
    before = (ROOT / path).read_text(encoding="utf-8")
    return Mutant(path, row, before, mutate_code(before, get_operator(name)(), count))


def start(
    copy: Path, target: Callable[..., int], *arguments: object
) -> "multiprocessing.process.BaseProcess":
    """A process that calls *target* in the *copy* of the project: its exit code."""
    child = FORKS.Process(target=in_copy, args=(copy, target, *arguments))
    child.start()
    return child


def in_copy(copy: Path, target: Callable[..., int], *arguments: object) -> None:
    """Call *target* in the *copy*, in silence, and end with what it returns."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path.insert(0, str(copy))
    with Path(os.devnull).open("r+b", buffering=0) as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    os._exit(target(*arguments))  # threads of tests may be left


def measured(copies: Sequence[Path], kept: Path) -> Executed:
    """
    What tests execute: of a run of them all, unless it is in the folder *kept* already.

    Raises:
        SystemExit: If pytest can not run them.
    """
    files = sorted(str(each.relative_to(ROOT)) for each in ROOT.glob(TESTS))
    if not (kept / "0.json").exists():
        kept.mkdir(parents=True, exist_ok=True)
        children = [
            start(copy, record, files[job :: len(copies)], kept / f"{job}.json")
            for job, copy in enumerate(copies)
        ]
        for child in children:
            child.join()
        if any(child.exitcode not in {0, 1} for child in children):
            sys.exit("the tests cannot be run: see what pytest says")
    return Executed.read(ROOT, kept.glob("*.json"))


def passes(copy: Path, choice: Choice) -> bool:
    """
    Whether these tests pass in the *copy* of the project.

    Raises:
        TimeoutError: If they are not through after the limit.
    """
    child = start(copy, run, choice.tests)
    child.join(LEAST_LIMIT_S + SLACK_FACTOR * choice.takes_s)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError
    return child.exitcode == 0


def outcome(
    mutant: Mutant, copies: "queue.Queue[Path]", steps: Sequence[Choice]
) -> str:
    """``survived``, ``failed`` or ``late``, in one of the *copies*; it is restored."""
    copy = copies.get()
    try:
        (copy / mutant.path).write_text(mutant.after, encoding="utf-8")
        survived = all(passes(copy, step) for step in steps if step.tests)
    except TimeoutError:
        return "late"
    finally:
        (copy / mutant.path).write_text(mutant.before, encoding="utf-8")
        copies.put(copy)
    return "survived" if survived else "failed"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    parser.add_argument("modules", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--sample", type=int, default=100, help="0 is all of them")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="that the tests of a mutant compute"
    )
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FOLDER",
        help="keep what tests execute, for further seeds of the same sources",
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Test mutants and list those that survive."""
    asked, began = parsed(), time.monotonic()
    FORKS.set_forkserver_preload(PRELOADED)
    chance = random.Random(asked.seed)  # noqa: S311 - no secret
    modules = [each for each in MODULES if any(part in each for part in asked.modules)]
    every = [change for module in modules for change in changes(module, chance)]
    sample = chance.sample(every, min(asked.sample or len(every), len(every)))
    chosen = [mutant(*change) for change in sample]
    copies: queue.Queue[Path] = queue.Queue()
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(asked.jobs) as pool,
    ):
        made = [Path(folder, str(job)) for job in range(asked.jobs)]
        for copy in made:
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*"))
            copies.put(copy)
        executed = measured(made, asked.kept or Path(folder, "kept"))
        print(
            f"{len(executed)} tests, and {len(executed.failed)} that fail in a copy"
            f" and are left out, after {spent(began)}",
            flush=True,
        )
        tested = {}
        for each in chosen:
            steps = executed.steps(str(each.path), each.row, asked.seconds)
            tested[pool.submit(outcome, each, copies, steps)] = each, steps
        for count, done in enumerate(as_completed(tested), start=1):
            print(f"\r{count} of {len(chosen)}", end="", file=sys.stderr, flush=True)
            counts[done.result()] += 1
            if done.result() == "survived":
                each, steps = tested[done]
                print(f"\r{each}\n    {told(steps)}", flush=True)
    caught = counts["failed"] + counts["late"]
    late = f", {counts['late']} of them by time" if counts["late"] else ""
    print(
        f"\r{caught} of {len(chosen)} mutants caught{late}, in {spent(began)};"
        " those above were not"
    )
    return int(caught < GOAL * len(chosen))


def spent(began: float) -> str:
    """Minutes since then."""
    return f"{(time.monotonic() - began) / 60:.1f} minutes"


def told(steps: Sequence[Choice]) -> str:
    """How many tests a survivor has passed."""
    passed = sum(len(step.tests) for step in steps)
    if not passed:
        return "no test executes the line"
    return f"passed {passed} tests; {steps[-1].left_out} left out for time"


if __name__ == "__main__":
    sys.exit(main())
