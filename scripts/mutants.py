"""
Change one operator or number at a time in a pure module, and see whether a test fails.

    python scripts/mutants.py                        100 mutants, the same each time
    python scripts/mutants.py --sample 0 alignment   all mutants of scoring/alignment.py

Each mutant (cosmic-ray makes them) runs in a copy of the project against the test files
of its own module; it is caught if they fail or take longer than two minutes. Exit code
1 if less than 85 of 100 are caught.
"""

import argparse
import difflib
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
GOAL = 0.85
LIMIT_S = 120

MODULES = (
    "analysis/verdict",
    "corpora/needles",
    "engines/llama_cpp/log",
    "models/kv_cache",
    "records/comparability",
    "records/record",
    "records/store",
    "scoring/alignment",
    "scoring/rounds",
    "scoring/tasks",
    "sweep/fallbacks",
    "sweep/runner",
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

DECLARATION = re.compile(r"@dataclass\(|, strict=|[(, ]\*, |^ *\*,$")
"""Lines whose flags no test can see, but a type checker may: frozen, slots, ``*``."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module: its path from the root, and its source before and after."""

    path: Path
    before: str
    after: str

    @property
    def line(self) -> str:
        """The line that is changed, as it was."""
        lines = zip(self.before.splitlines(), self.after.splitlines(), strict=False)
        return next(line for line, changed in lines if line != changed)

    def __str__(self) -> str:
        lines = (self.before.splitlines(), self.after.splitlines())
        _, _, place, *changed = difflib.unified_diff(*lines, n=0, lineterm="")
        return "\n    ".join([f"{self.path} {place.split()[1]}", *changed])


def mutants(module: str, chance: random.Random) -> Iterator[Mutant]:
    """One mutant for each place of *module* that can be changed, by *chance*."""
    path = Path("codeneedle", f"{module}.py")
    before = (ROOT / path).read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(before)))
    places: dict[object, list[tuple[str, int]]] = {}
    for name in filter(OPERATORS.fullmatch, sorted(operator_names())):
        found = map(get_operator(name)().mutation_positions, nodes)
        for count, place in enumerate(place for each in found for place in each):
            places.setdefault(place, []).append((name, count))
    for changes in places.values():
        name, count = chance.choice(changes)
        made = Mutant(path, before, mutate_code(before, get_operator(name)(), count))
        if not DECLARATION.search(made.line):
            yield made


def passes(path: Path, copy: Path) -> bool:
    """Whether the tests of the module *path* pass in the *copy* of the project."""
    folder = Path("tests", *path.parent.parts[1:])
    tests = sorted((copy / folder).glob(f"test_{path.stem}*")) or [folder]
    options = ["-xq", "-m", "not real", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, tests)]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(mutant: Mutant, copies: "queue.Queue[Path]") -> bool:
    """Whether tests pass with *mutant* in one of the *copies*, which is restored."""
    copy = copies.get()
    try:
        (copy / mutant.path).write_text(mutant.after, encoding="utf-8")
        return passes(mutant.path, copy)
    finally:
        (copy / mutant.path).write_text(mutant.before, encoding="utf-8")
        copies.put(copy)


def main() -> int:
    """Test mutants and list those that survive."""
    parser = argparse.ArgumentParser(description=str(__doc__).strip().splitlines()[0])
    parser.add_argument("modules", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--sample", type=int, default=100, help="0 is all of them")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    chance = random.Random(asked.seed)  # noqa: S311 - no secret
    modules = [each for each in MODULES if any(part in each for part in asked.modules)]
    chosen = [mutant for module in modules for mutant in mutants(module, chance)]
    chosen = chance.sample(chosen, min(asked.sample or len(chosen), len(chosen)))
    copies: queue.Queue[Path] = queue.Queue()
    survivors = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(asked.jobs) as pool,
    ):
        for job in range(asked.jobs):
            copy = Path(folder, str(job))
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs"))
            copies.put(copy)
        for path in sorted({mutant.path for mutant in chosen}):
            if not passes(path, copy):
                sys.exit(f"the tests of {path} fail without any change")
        tested = {pool.submit(survives, mutant, copies): mutant for mutant in chosen}
        for count, done in enumerate(as_completed(tested), start=1):
            print(f"\r{count} of {len(chosen)}", end="", file=sys.stderr, flush=True)
            if done.result():
                survivors += 1
                print(f"\r{tested[done]}", flush=True)
    caught = len(chosen) - survivors
    print(f"\r{caught} of {len(chosen)} mutants caught; those above were not")
    return int(caught < GOAL * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
