"""
Where attention runs, asked of a real backend without a GPU: ``make vulkan``.

llama.cpp is built with Vulkan into the cache folder, by Mesa's software driver
(lavapipe). Rules of other backends are imposed on what it says it supports
(scripts/vulkan_patches), so that the scheduler of a real build plays Metal, a machine
without any kernel, and one without bf16. Where a package is missing, it says which to
install. Numbers of random weights show arithmetic, never quality. The sweeps take an
hour and more on two cores: ``--survey`` asks for the surveys alone, and with ``--out``
a run that was ended goes on.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codeneedle.api import LoadedRun, load
from codeneedle.cache_types import Pair, whole_grid
from codeneedle.engines.llama_cpp.arguments import comparison_command
from codeneedle.engines.llama_cpp.backends import backend_named
from codeneedle.engines.llama_cpp.build import ensure_built
from codeneedle.engines.llama_cpp.installation import SERVER, VARIABLE
from codeneedle.errors import MachineError
from codeneedle.models.pretrained import SMOLLM2, checked_built_in_path
from codeneedle.records.record import ON_CPU, Attention
from codeneedle.verdict.statistics import Decision

if TYPE_CHECKING:
    import pandas as pd

HERE = Path(__file__).resolve().parent
PATCHES = sorted((HERE / "vulkan_patches").glob("*.patch"))

PACKAGES = "mesa-vulkan-drivers libvulkan-dev glslc spirv-headers patch"
"""Of Debian, beside compilers: the driver and what the backend is compiled with."""

TYPES = ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")

INSTALL = f"On Debian: apt-get update && apt-get install {PACKAGES}"

LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0"}
"""llama.cpp hides devices of the kind CPU unless they are named."""

REFERENCE = Pair("bf16", "bf16")

CORPUS = """\
[generate]
functions = 6
lines = 5
value_length = 1
name_length = 2
indent = 1
"""
"""
As few functions as a verdict takes, and less than a micro-batch of 512 tokens: with
560, of which 48 are a second one, lavapipe of Mesa 22.3 ended with SIGSEGV.
"""

MOST_TRIES = 20
"""Runs of llama-perplexity until its log is whole: a busy machine often cuts it."""

MOST_SWEEPS = 3
"""Runs of a sweep until all its cells have numbers."""

MEAN_KLD = re.compile(r"^Mean +KLD: +(-?[0-9.]+) ±", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    What a backend has kernels for.

    Attributes:
        name: As it is printed.
        variables: Of the build's environment, which impose it.
        cells: Pairs of `TYPES` with a kernel.
    """

    name: str
    variables: Mapping[str, str]
    cells: frozenset[str]


def _pairs() -> list[Pair]:
    return whole_grid(TYPES, TYPES)


CPU = Rule(name="CPU", variables={}, cells=frozenset(map(str, _pairs())))

METAL = Rule(
    name="Metal",
    variables=LAVAPIPE | {"GGML_ZOO_SAME": "1"},
    cells=frozenset(f"{each}/{each}" for each in TYPES),
)

VULKAN = Rule(
    name="Vulkan",
    variables=LAVAPIPE,
    cells=frozenset(
        str(pair) for pair in _pairs() if (pair.k == "bf16") == (pair.v == "bf16")
    ),
)

RULES = (
    CPU,
    VULKAN,
    METAL,
    Rule(
        name="none",
        variables=LAVAPIPE | {"GGML_ZOO_NONE": "1"},
        cells=frozenset(),
    ),
    Rule(
        name="no-bf16",
        variables=LAVAPIPE | {"GGML_ZOO_NOBF16": "1"},
        cells=frozenset(str(p) for p in _pairs() if "bf16" not in (p.k, p.v)),
    ),
)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="See its docstring.")
    parser.add_argument("--survey", action="store_true", help="ask for surveys alone")
    parser.add_argument("--llama-server", type=Path, help="a build to use as it is")
    parser.add_argument("--without-smollm2", action="store_true")
    parser.add_argument("--out", type=Path, help="keeps the runs, to go on with them")
    return parser.parse_args(arguments)


def main() -> None:
    """Build, ask, compare, and print what was seen."""
    chosen = parsed()
    began = time.monotonic()
    server = chosen.llama_server or _built()
    _refuse_without_device(server)
    with tempfile.TemporaryDirectory(prefix="codeneedle-vulkan-") as name:
        folder = chosen.out or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(server=server.absolute(), folder=folder.absolute())
        _check(bench, chosen)
    took = time.monotonic() - began
    print(f"make vulkan: every assertion holds ({took:.0f} s)")


def _check(bench: "Bench", chosen: argparse.Namespace) -> None:
    micro = bench.tiny("micro")
    models = [micro] if chosen.without_smollm2 else [micro, SMOLLM2.name]
    for model in models:
        for rule in RULES:
            bench.ask(rule, model)
    if not chosen.survey:
        bench.compare_places(micro)
        bench.set_pair()
        if not chosen.without_smollm2:
            bench.diverge(SMOLLM2.name)


def _built() -> Path:
    missing = [name for name in ("glslc", "patch") if not shutil.which(name)]
    if missing:
        sys.exit(f"{missing[0]} is missing. {INSTALL}")
    last = ""

    def report(phase: str, _done: int, _total: int) -> None:
        nonlocal last
        if phase != last:
            print(f"building llama.cpp with Vulkan: {phase}", flush=True)
        last = phase

    try:
        return ensure_built(report, backend_named("vulkan"), patches=PATCHES) / SERVER
    except MachineError as error:
        sys.exit(f"{error}\n{error.hint}\n{INSTALL}")


def _refuse_without_device(server: Path) -> None:
    argv = [str(server), "--list-devices"]
    env = os.environ | LAVAPIPE
    told = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if "Vulkan0" not in told.stdout:
        sys.exit(f"{server} sees no Vulkan device:\n{told.stdout}{INSTALL}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """
    Runs codeneedle with one build.

    Attributes:
        server: Its llama-server.
        folder: For models and runs.
    """

    server: Path
    folder: Path

    def tiny(self, name: str) -> str:
        """A tiny model of random weights, written now."""
        sys.path.insert(0, str(HERE.parent / "tests" / "helpers"))
        import zoo  # type: ignore[import-not-found]

        return str(zoo.write(name, self.folder))

    def ask(self, rule: Rule, model: str) -> None:
        """The survey of *model* is *rule*."""
        began = time.monotonic()
        argv = ["kernels", "--json", "--model", model, "--types", ",".join(TYPES)]
        (survey,) = json.loads(self.said(argv, rule.variables))
        told = {
            f"{each['k']}/{each['v']}"
            for each in survey["pairs"]
            if each["attention"] == "kernel"
        }
        took = time.monotonic() - began
        print(f"{rule.name}, {Path(model).stem}: {len(told)} of 36 ({took:.0f} s)")
        _equal(rule.cells, told)

    def compare_places(self, model: str) -> None:
        """
        36 squares under Metal's rule, and numbers as those of the CPU alone.

        Square roots of KLDs add up as distances do, chunk by chunk as well as over all.
        Reference and pair have both moved from the one build to the other, each by
        about as much as the reference, whose way is measured: so no KLD may differ by
        more than two of these.
        """
        what = ("--probe", "divergence", "--corpus", "random-bodies-mini")
        small = ("--chunks", "1", "--divergence-context", "512")
        asked = (*what, *small, "--types", ",".join(TYPES))
        metal, cpu = (self.swept(rule, model, *asked) for rule in (METAL, CPU))
        moved = math.sqrt(self.divergence_of_builds(metal, cpu))
        here, there = (_by_pair(run.frame("kld")) for run in (metal, cpu))
        placed = _by_pair(metal.attention())
        print(f"{REFERENCE} on Vulkan is {moved:.4f} from itself on the CPU")
        print(f"{'pair':12} attention   Vulkan      CPU  distance")
        farthest = 0.0
        for pair in _pairs():
            place, kld, other = placed[pair], here[pair], there[pair]
            _equal("kernel" if str(pair) in METAL.cells else "cpu", place)
            apart = abs(math.sqrt(max(kld, 0.0)) - math.sqrt(max(other, 0.0)))
            print(f"{pair!s:12} {place:9} {kld:8.5f} {other:8.5f} {apart:9.4f}")
            farthest = max(farthest, apart)
        _holds(farthest <= 2 * moved, f"{farthest:.4f} is more than twice {moved:.4f}")
        for run in (metal, cpu):
            _equal(REFERENCE, run.verdict().reference)
        self.check_place(metal, "kld")

    def divergence_of_builds(self, first: LoadedRun, second: LoadedRun) -> float:
        """KLD in nats of the reference of *first*, beside that of *second*."""
        records = {each.probe: each for each in first.records if each.pair == REFERENCE}
        # A pair is compared as it writes its rows; here the tool compares.
        argv = comparison_command(records["divergence"].command)
        (base,) = (Path(second.run.folder) / "base").glob("*.kld")
        argv[argv.index("--kl-divergence-base") + 1] = str(base)
        for _ in range(MOST_TRIES):
            done = subprocess.run(
                argv,
                env={**os.environ, **METAL.variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            mean = MEAN_KLD.search(done.stdout)
            if mean:
                return float(mean[1])
        sys.exit(f"no statistics in {MOST_TRIES} runs of {' '.join(argv)}")

    def check_place(self, run: LoadedRun, metric: str) -> None:
        """
        The reference was measured with its attention on the CPU, too.

        That it differs from itself shows that attention has moved: with flash attention
        and the cache alone on the CPU it was the same to the last digit.
        """
        there = [record for record in run.run.variants if record.variant == ON_CPU]
        _holds(bool(there), f"{REFERENCE} was not measured on the CPU")
        for record in there:
            _equal((REFERENCE, Attention.CPU), (record.pair, record.attention))
        _, moved = run.verdict().on_cpu[metric]
        print(f"{REFERENCE} with attention on the CPU: {metric} differs by {moved:.2g}")
        _holds(moved > 0, f"{metric} of {REFERENCE} is the same with attention moved")

    def set_pair(self) -> None:
        """
        Under Metal's rule the verdict sets K = V, and names what the CPU would set.

        By lines that the built-in model is forced to say: under another name, as
        nothing is recommended for that model. Smaller than q8_0/q8_0 are mixed pairs
        alone.
        """
        model = self.folder / "nano.gguf"
        shutil.copyfile(checked_built_in_path(), model)
        corpus = self.folder / "short.toml"
        corpus.write_text(CORPUS, encoding="utf-8")
        grid = ("--pairs", "bf16/bf16,q8_0/q8_0,q8_0/q4_0,q4_0/q8_0")
        form = ("--prompt-form", "completion", "--context", "2048")
        asked = ("--way", "force", "--corpus", str(corpus), *form, *grid)
        metal, cpu = (self.swept(rule, str(model), *asked) for rule in (METAL, CPU))
        # Of six functions, the usual limit leaves the mixed pairs open.
        here, there = (run.verdict(max_loss=0.03) for run in (metal, cpu))
        print(f"the verdict sets {here.chosen}; on the CPU alone, {there.chosen}")
        _equal(REFERENCE, here.reference)
        _equal(Pair("q8_0", "q8_0"), here.chosen)
        # Of two pairs of one size, noise decides which is ahead.
        _equal(_types(there.chosen), _types(here.elsewhere))
        _equal(Decision.WITHIN, there.decision(here.elsewhere or REFERENCE))
        self.check_place(metal, "recall-logp")

    def diverge(self, model: str) -> None:
        """Six pairs of a real model, on two short chunks: five have a kernel."""
        pairs = "bf16/bf16,q8_0/q8_0,q8_0/q4_0,q4_0/q8_0,q4_0/q4_0,bf16/q8_0"
        small = ("--chunks", "2", "--divergence-context", "128")
        asked = ("--probe", "divergence", *small, "--pairs", pairs)
        run = self.swept(VULKAN, model, *asked)
        placed, klds = _by_pair(run.attention()), _by_pair(run.frame("kld"))
        for pair in map(Pair.parse, pairs.split(",")):
            place, kld = placed[pair], klds[pair]
            print(f"{pair!s:12} {place:9} {kld:8.5f}")
            _equal("kernel" if str(pair) in VULKAN.cells else "cpu", place)
            _holds(math.isfinite(kld), f"{pair} has no number")
        _equal(REFERENCE, run.verdict().reference)
        self.check_place(run, "kld")

    def swept(self, rule: Rule, model: str, *asked: str) -> LoadedRun:
        """
        The run of a sweep, in a folder of its own.

        The driver ends some servers with SIGSEGV, at no place in particular: their
        cells are measured again.
        """
        began, what = time.monotonic(), f"{Path(model).stem}-{rule.name}"
        out = self.folder / what
        argv = ["sweep", "--model", model, *asked, "--out", str(out), "--retry-failed"]
        for _ in range(MOST_SWEEPS - 1):
            if not self.run(argv, rule.variables).returncode:
                break
        print(self.said(argv, rule.variables))
        print(f"{what}: {time.monotonic() - began:.0f} s")
        (setup,) = out.glob("*/*/setup.json")
        return load(setup.parent)

    def said(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        """What the command prints; its progress goes to the screen."""
        done = self.run(argv, variables)
        if done.returncode:
            sys.exit(f"codeneedle {' '.join(argv)} ended with {done.returncode}")
        return done.stdout

    def run(
        self, argv: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """The command, which has ended, with what it printed."""
        program = [sys.executable, "-m", "codeneedle", *argv]
        env = {**os.environ, **variables, VARIABLE: str(self.server)}
        return subprocess.run(
            program, env=env, stdout=subprocess.PIPE, text=True, check=False
        )


def _types(pair: Pair | None) -> list[str]:
    return sorted((pair.k, pair.v)) if pair else []


def _by_pair(frame: "pd.DataFrame") -> dict[Pair, Any]:
    rows = frame.to_dict("index").items()
    return {Pair(str(k), str(v)): value for k, row in rows for v, value in row.items()}


def _holds(claim: bool, otherwise: str) -> None:
    if not claim:
        sys.exit(otherwise)


def _equal(expected: Any, told: Any) -> None:
    if expected != told:
        sys.exit(f"expected {expected}, but there is {told}")


if __name__ == "__main__":
    main()
