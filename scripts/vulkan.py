"""
Where attention runs, asked of a real backend without a GPU: ``make vulkan``.

llama.cpp is built with Vulkan into the cache folder, by Mesa's software driver
(lavapipe). Rules of other backends are imposed on what it says it supports
(scripts/vulkan_patches), so that the scheduler of a real build plays Metal, a machine
without any kernel, and one without bf16. Needs Debian's mesa-vulkan-drivers,
libvulkan-dev, glslc, spirv-headers and patch. Numbers of random weights show
arithmetic, never quality. The sweeps take half an hour and more on two cores;
``--survey`` asks for the surveys alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codeneedle.engines.llama_cpp.backends import backend_named
from codeneedle.engines.llama_cpp.build import build
from codeneedle.engines.llama_cpp.installation import SERVER, VARIABLE
from codeneedle.models.pretrained import SMOLLM2

HERE = Path(__file__).resolve().parent
PATCHES = sorted((HERE / "vulkan_patches").glob("*.patch"))

TYPES = ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")

LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0"}
"""llama.cpp hides devices of the kind CPU unless they are named."""

FLOOR = 0.02
"""
Greatest difference of a KLD by the place of attention, relative or in nats.

Random weights magnify what two kernels round differently; the pages' real models had
0.0583 beside 0.0589.
"""


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


def _pairs() -> list[tuple[str, str]]:
    return [(k, v) for k in TYPES for v in TYPES]


RULES = (
    Rule(
        name="Vulkan's own",
        variables={},
        cells=frozenset(
            f"{k}/{v}" for k, v in _pairs() if (k == "bf16") == (v == "bf16")
        ),
    ),
    Rule(
        name="Metal's, K = V",
        variables={"GGML_ZOO_SAME": "1"},
        cells=frozenset(f"{each}/{each}" for each in TYPES),
    ),
    Rule(
        name="no kernel at all",
        variables={"GGML_ZOO_NONE": "1"},
        cells=frozenset(),
    ),
    Rule(
        name="no bf16",
        variables={"GGML_ZOO_NOBF16": "1"},
        cells=frozenset(f"{k}/{v}" for k, v in _pairs() if "bf16" not in (k, v)),
    ),
)


def main() -> None:
    """Build, ask, compare, and print what was seen."""
    parser = argparse.ArgumentParser(description="See its docstring.")
    parser.add_argument("--survey", action="store_true", help="ask for surveys alone")
    parser.add_argument("--llama-server", type=Path, help="a build to use as it is")
    parser.add_argument("--without-smollm2", action="store_true")
    chosen = parser.parse_args()
    server = chosen.llama_server or _built()
    with tempfile.TemporaryDirectory(prefix="codeneedle-vulkan-") as name:
        bench = Bench(server=server, folder=Path(name))
        models = [bench.tiny("micro")]
        if not chosen.without_smollm2:
            models.append(SMOLLM2.name)
        for model in models:
            for rule in RULES:
                bench.ask(rule, model)
        if not chosen.survey:
            bench.sweep_under_metals_rule(models[0])
            if not chosen.without_smollm2:
                bench.diverge(SMOLLM2.name)
    print("make vulkan: every assertion holds")


def _built() -> Path:
    last = ""

    def report(phase: str, _done: int, _total: int) -> None:
        nonlocal last
        if phase != last:
            print(f"building llama.cpp with Vulkan: {phase}", flush=True)
        last = phase

    return build(report, backend_named("vulkan"), patches=PATCHES) / SERVER


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
        (survey,) = json.loads(self.said(argv, LAVAPIPE | {**rule.variables}))
        told = {
            f"{each['k']}/{each['v']}"
            for each in survey["pairs"]
            if each["attention"] == "kernel"
        }
        took = time.monotonic() - began
        print(f"{rule.name}, {Path(model).stem}: {len(told)} of 36 ({took:.0f} s)")
        _equal(rule.cells, told)

    def sweep_under_metals_rule(self, model: str) -> None:
        """36 squares, K = V set, and numbers as those of the same build on the CPU."""
        rule = LAVAPIPE | {"GGML_ZOO_SAME": "1"}
        metal = self.divergences("metal", model, rule)
        cpu = self.divergences("cpu", model, {})
        _equal(len(_pairs()) - 1, len(metal))  # the reference has no loss
        for pair, kld in metal.items():
            print(f"{pair:12} {kld:.4f} {cpu[pair]:.4f}")
            if abs(kld - cpu[pair]) > max(FLOOR, 0.1 * cpu[pair]):
                sys.exit(f"{pair} differs from the CPU by more than the floor")
        setting = self.verdict("metal")["set"]
        print(f"the verdict sets {setting}")
        if setting is not None:
            _equal(setting["k"], setting["v"])

    def divergences(
        self, name: str, model: str, variables: Mapping[str, str]
    ) -> dict[str, float]:
        """KLD of each pair that has one, from a sweep into the folder *name*."""
        small = ("--chunks", "1", "--divergence-context", "512")
        what = ("--probe", "divergence", "--corpus", "random-bodies-mini")
        asked = ("--types", ",".join(TYPES), "--out", str(self.folder / name))
        self.said(["sweep", "--model", model, *what, *small, *asked], variables)
        return {
            f"{each['k']}/{each['v']}": metric["loss"]
            for each in self.verdict(name)["pairs"]
            for metric in each["metrics"]
            if metric["name"] == "kld"
        }

    def verdict(self, name: str) -> dict[str, Any]:
        """The verdict on the sweep into the folder *name*."""
        (setup,) = (self.folder / name).glob("*/*/setup.json")
        said = self.said(["verdict", str(setup.parent), "--json"], {})
        (verdict,) = json.loads(said)
        return dict(verdict)

    def diverge(self, model: str) -> None:
        """Six pairs of a real model, on two short chunks."""
        pairs = "bf16/bf16,q8_0/q8_0,q8_0/q4_0,q4_0/q8_0,q4_0/q4_0,bf16/q8_0"
        small = ("--chunks", "2", "--divergence-context", "128")
        asked = ("--pairs", pairs, "--out", str(self.folder / "smollm2"))
        what = ("--model", model, "--probe", "divergence", *small, *asked)
        print(self.said(["sweep", *what], LAVAPIPE))

    def said(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        """What the command prints; its progress goes to the screen."""
        program = [sys.executable, "-m", "codeneedle", *argv]
        env = {**os.environ, **variables, VARIABLE: str(self.server)}
        done = subprocess.run(
            program, env=env, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"codeneedle {' '.join(argv)} ended with {done.returncode}")
        return done.stdout


def _equal(expected: Any, told: Any) -> None:
    if expected != told:
        sys.exit(f"expected {expected}, but there is {told}")


if __name__ == "__main__":
    main()
