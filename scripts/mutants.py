"""
Change one operator or number at a time in a pure module, and see whether a test fails.

    python scripts/mutants.py                        100 mutants, the same each time
    python scripts/mutants.py --sample 0 alignment   all mutants of that module

Each mutant (cosmic-ray makes them) runs in a copy of the project against the test files
of its own module, and if these pass, against all tests of its folder and the golden
reports; it is caught if one fails, or takes ten times as long as without it.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
GOAL = 0.9

SLACK_FACTOR = 10.0
LEAST_LIMIT_S = 120.0
"""A mutant is caught by time after so many times what its tests take, or this."""

FOLDER_LIMIT_S = 900.0
"""Likewise for the tests of its folder and the golden reports, on a busy machine."""

GOLDEN = "tests/test_golden.py"

MODULES = (
    "corpora/needles",
    "engines/llama_cpp/log",
    "engines/llama_cpp/reading",
    "engines/llama_cpp/statistics",
    "cache_types",
    "models/kv_cache",
    "probes/divergence/metrics",
    "probes/frames",
    "probes/generation/loops",
    "probes/generation/metrics",
    "probes/generation/record",
    "probes/recall/alignment",
    "probes/recall/metrics",
    "probes/recall/reading",
    "probes/recall/rounds",
    "probes/retrieval/metrics",
    "probes/retrieval/scoring",
    "probes/transcript/choice",
    "probes/transcript/conversations",
    "probes/transcript/metrics",
    "records/comparability",
    "records/record",
    "records/store",
    "report/losses",
    "report/tidy",
    "sweep/decide",
    "sweep/runner",
    "verdict/judge",
    "verdict/lengths",
    "verdict/limits",
    "verdict/metric_results",
    "verdict/noise_floor",
    "verdict/order",
    "verdict/statistics",
    "verdict/trust",
)
"""
Modules that start no server. Their tests are ``tests/FOLDER/test_MODULE*.py``, or all
of that folder where there is no such file.
"""

OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|ZeroIterationForLoop"
    r"|Replace(And|Or|True|False|Break|Continue)With\w+|ReplaceUnaryOperator_Delete_\w+"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|FloorDiv_Div|Mod_Mul)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is"
    r"|Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt)))"
)
"""Left out: what always ends in a TypeError, such as ``&`` between types."""

PRELOADED = [
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
    before: str
    after: str

    def __str__(self) -> str:
        lines = (self.before.splitlines(), self.after.splitlines())
        _, _, place, *changed = difflib.unified_diff(*lines, n=0, lineterm="")
        return "\n    ".join([f"{self.path} {place.split()[1]}", *changed])


def changes(module: str, chance: random.Random) -> Iterator[tuple[Path, str, int]]:
    """
    One change for each place of *module* that can be changed, by *chance*.

    It is a path, the name of an operator, and which of its places that is.
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
            yield path, name, count


def mutant(path: Path, name: str, count: int) -> Mutant:
    """The module at *path* with a change of `changes`."""
    before = (ROOT / path).read_text(encoding="utf-8")
    return Mutant(path, before, mutate_code(before, get_operator(name)(), count))


def run_tests(copy: Path, tests: Sequence[str]) -> None:
    """Run *tests* in this process, whose exit code tells whether they pass."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path.insert(0, str(copy))
    with Path(os.devnull).open("r+b", buffering=0) as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    import pytest

    options = ["-xq", "-m", "not real", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is loaded
    os._exit(int(pytest.main([*options, *tests])))  # threads of tests may be left


def tests_of(path: Path, copy: Path) -> tuple[list[str], list[str]]:
    """
    The test files of the module *path*, and those of its folder with the golden.

    Beside a module in no folder stand the tests of the whole project, its scripts and
    its documents: those are not of it.
    """
    folder = copy / "tests" / Path(*path.parent.parts[1:])
    every = sorted(map(str, folder.glob("test_*.py")))
    own = sorted(map(str, folder.glob(f"test_{path.stem}*")))
    if path.parent.parts[1:]:
        return own or every, [*every, GOLDEN]
    return own, [*own, GOLDEN]


def passes(copy: Path, tests: Sequence[str], *, limit_s: float | None = None) -> bool:
    """
    Whether *tests* pass in the *copy* of the project.

    Raises:
        TimeoutError: If they are not through after the limit.
    """
    child = FORKS.Process(target=run_tests, args=(copy, tests))
    child.start()
    child.join(limit_s)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise TimeoutError
    return child.exitcode == 0


def outcome(mutant: Mutant, copies: "queue.Queue[Path]", limit_s: float) -> str:
    """``survived``, ``failed`` or ``late``, in one of the *copies*; it is restored."""
    copy = copies.get()
    try:
        (copy / mutant.path).write_text(mutant.after, encoding="utf-8")
        own, every = tests_of(mutant.path, copy)
        survived = passes(copy, own, limit_s=limit_s) and passes(
            copy, every, limit_s=FOLDER_LIMIT_S
        )
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
    return parser.parse_args(arguments)


def main() -> int:
    """Test mutants and list those that survive."""
    asked = parsed()
    FORKS.set_forkserver_preload(PRELOADED)
    chance = random.Random(asked.seed)  # noqa: S311 - no secret
    modules = [each for each in MODULES if any(part in each for part in asked.modules)]
    every = [change for module in modules for change in changes(module, chance)]
    sample = chance.sample(every, min(asked.sample or len(every), len(every)))
    chosen = [mutant(*change) for change in sample]
    copies: queue.Queue[Path] = queue.Queue()
    limits: dict[Path, float] = {}
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(asked.jobs) as pool,
    ):
        for job in range(asked.jobs):
            copy = Path(folder, str(job))
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*"))
            copies.put(copy)
        passed: set[str] = set()
        for path in sorted({mutant.path for mutant in chosen}):
            own, neighbours = tests_of(path, copy)
            if not passed.issuperset(neighbours) and not passes(copy, neighbours):
                sys.exit(f"the tests of {path} fail without any change")
            passed.update(neighbours)
            began = time.monotonic()
            passes(copy, own)
            spent_s = time.monotonic() - began
            limits[path] = max(LEAST_LIMIT_S, SLACK_FACTOR * spent_s)
        tested = {
            pool.submit(outcome, mutant, copies, limits[mutant.path]): mutant
            for mutant in chosen
        }
        for count, done in enumerate(as_completed(tested), start=1):
            print(f"\r{count} of {len(chosen)}", end="", file=sys.stderr, flush=True)
            counts[done.result()] += 1
            if done.result() == "survived":
                print(f"\r{tested[done]}", flush=True)
    caught = counts["failed"] + counts["late"]
    late = f", {counts['late']} of them by time" if counts["late"] else ""
    print(f"\r{caught} of {len(chosen)} mutants caught{late}; those above were not")
    return int(caught < GOAL * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
