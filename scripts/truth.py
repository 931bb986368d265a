"""
Measures false alarms and power of the verdict, on grids whose truth is known.

Run it: ``python scripts/truth.py [--grids 1000]``.

Noise models A to D are fitted to the published 6 x 6 sweeps of a 27B model ("KV-Cache
Quantization vs Positional Recall"): of 16 functions, lines matched of 20. Model E is
fitted to stored rounds: forced recall of SmolLM2 (`FITTED`), or with ``--run FOLDER``
the first judged metric of another run. Its coarse types are noisier than its fine
ones, which the tests do not allow for: they permute types within a needle.
"""

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from codeneedle.analysis.verdict import EFFECTS, Numbers
from codeneedle.report.units import scored_metrics

from codeneedle.analysis import verdict
from codeneedle.probes import PROBES
from codeneedle.records.store import Store
from codeneedle.report.table import pair_table
from codeneedle.scoring.rounds import Reading

TYPES, NEEDLES, LINES = 6, 16, 20.0
SHAPE = (TYPES, TYPES, NEEDLES)
SIZES = (0.25, 0.5, 1.0, 2.0)
SHARED = 0.7
JITTER = {"A": 0.03, "C": 0.1, "D": 0.2}
"""Shares of rounds that lose one line."""

Noise = Callable[[np.random.Generator], Numbers]


def fragile(chance: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> Numbers:
    """
    Like run 3: a quarter of the needles lose 0 to 3 lines at random per cell, 3 % of
    the other rounds lose one, and one round in 576 loses 18.
    """
    is_fragile = np.arange(NEEDLES) % 4 == 0
    lost = np.where(
        is_fragile,
        chance.integers(0, 4, size=shape),
        chance.random(shape) < JITTER["A"],
    ).astype(float)
    lost[chance.random(shape) < 1 / 576] = 18.0
    scores: Numbers = LINES - lost
    return scores


def shared(chance: np.random.Generator) -> Numbers:
    """The same, with 70 % of replies shared by all cells of a V type."""
    own = fragile(chance)
    column = fragile(chance, (1, TYPES, NEEDLES))
    is_shared = chance.random(SHAPE) < SHARED
    scores: Numbers = np.where(is_shared, column, own)
    return scores


def clean(chance: np.random.Generator) -> Numbers:
    """Like run 4: 3 of 576 rounds lose one line."""
    scores: Numbers = LINES - (chance.random(SHAPE) < 3 / 576).astype(float)
    return scores


def memorised(chance: np.random.Generator) -> Numbers:
    """Like run 1: small fixed deficits, jitter of one line, 4 of 576 rounds lost."""
    fixed = chance.permutation(np.repeat((0.0, 1.0), (10, 6)))
    scores = LINES - fixed - (chance.random(SHAPE) < JITTER["C"])
    scores[chance.random(SHAPE) < 4 / 576] = 4.0
    return scores


def unseen(chance: np.random.Generator) -> Numbers:
    """Like run 2: fixed deficits of a line on average, jitter of one line."""
    fixed = chance.permutation(np.repeat((0.0, 1.0, 3.0), (7, 6, 3)))
    scores: Numbers = LINES - fixed - (chance.random(SHAPE) < JITTER["D"])
    return scores


@dataclass(frozen=True, slots=True)
class Fit:
    """
    Standard deviations of a needle's scores, after what all needles share.

    Attributes:
        by_k: With each K type, in all cells of that type alike.
        by_v: Likewise with each V type.
        by_cell: In each cell of each K type, beyond these.
    """

    by_k: tuple[float, ...]
    by_v: tuple[float, ...]
    by_cell: tuple[float, ...]

    def noise(self, chance: np.random.Generator) -> Numbers:
        """Scores of a grid on which no type matters."""
        k = np.array(self.by_k)[:, np.newaxis, np.newaxis]
        v = np.array(self.by_v)[np.newaxis, :, np.newaxis]
        cell = np.array(self.by_cell)[:, np.newaxis, np.newaxis]
        shape = (len(self.by_k), len(self.by_v), NEEDLES)
        scores: Numbers = (
            k * chance.standard_normal((len(self.by_k), 1, NEEDLES))
            + v * chance.standard_normal((1, len(self.by_v), NEEDLES))
            + cell * chance.standard_normal(shape)
        )
        return scores

    @property
    def correlation(self) -> float:
        """Of two cells of one K type, over needles: the mean over types."""
        k, cell = np.square(self.by_k), np.square(self.by_cell)
        return float((k / (k + cell + np.square(self.by_v).mean())).mean())


FITTED = Fit(
    by_k=(0.019, 0.020, 0.019, 0.004, 0.033, 0.029),
    by_v=(0.017, 0.009, 0.008, 0.016, 0.023, 0.015),
    by_cell=(0.016, 0.013, 0.023, 0.022, 0.031, 0.044),
)
"""
SmolLM2-135M-Instruct Q4_1, forced recall of 3 functions in 36 pairs, nats per token:
with --run, ``sweeps/gradient.toml`` gives it again.
"""


def fitted(folder: Path) -> Fit:
    """The standard deviations of the first judged metric of the run in *folder*."""
    run = Store(folder).read()
    if run is None:
        raise SystemExit(f"{folder} holds no run")
    table = pair_table(run, tuple(PROBES.values()), Reading())
    scores = next(iter(scored_metrics(table).values())).table()
    needles = scores.shape[2]
    if np.isnan(scores).any() or needles < 2:  # noqa: PLR2004 - a spread needs two
        raise SystemExit(f"{folder} has gaps, or a single needle")
    own = scores - scores.mean(axis=2, keepdims=True)
    own -= own.mean(axis=(0, 1), keepdims=True)
    own *= math.sqrt(needles / (needles - 1))
    k, v = own.mean(axis=1), own.mean(axis=0)
    rest = own - k[:, np.newaxis] - v[np.newaxis]
    spreads = (k.std(axis=1), v.std(axis=1), rest.std(axis=(1, 2)))
    return Fit(*(tuple(each.round(4).tolist()) for each in spreads))


MODELS: dict[str, Noise] = {
    "A, like run 3": fragile,
    "Ac, replies shared": shared,
    "B, like run 4": clean,
    "C, like run 1": memorised,
    "D, like run 2": unseen,
    "E, SmolLM2, forced": FITTED.noise,
}


def is_alarmed(scores: Numbers, seed: int) -> bool:
    """Whether anything is said of the grid: an axis, an odd cell."""
    odd = verdict.odd_cell(scores, seed=seed)
    if odd is not None:
        return True
    return any(verdict.axis_finding(scores, axis, seed=seed).matters for axis in (0, 1))


def interval(hits: int, count: int) -> str:
    """A share in per cent with its 95 % interval by Wilson."""
    z, share = 1.96, hits / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half /= 1 + z * z / count
    low, high = 100 * max(0, centre - half), 100 * min(1, centre + half)
    return f"{100 * share:5.1f} [{low:.1f}, {high:.1f}]"


def power(kind: str, size: float, grids: int, *, is_step: bool) -> str:
    """How often a V effect is found on grids of model A, alpha 2 %."""
    chance = np.random.default_rng(2)
    hits = 0
    for seed in range(grids):
        scores = verdict.with_effect(
            fragile(chance), 1, kind=kind, size=size, chance=chance, is_step=is_step
        )
        hits += verdict.axis_finding(scores, 1, seed=seed).matters
    return interval(hits, grids)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=int, default=1_000)
    parser.add_argument("--run", type=Path, help="fit model E to this run folder")
    asked = parser.parse_args()
    models = dict(MODELS)
    if asked.run:
        fit = fitted(asked.run)
        print(f"{fit}\ncorrelation of cells of one K type: {fit.correlation:.2f}")
        models["E, " + asked.run.name] = fit.noise
    title = "False alarms over the whole grid"
    print(f"{title}, % of {asked.grids:,} grids [95 % interval]")
    for name, noise in models.items():
        chance = np.random.default_rng(1)
        hits = sum(is_alarmed(noise(chance), seed) for seed in range(asked.grids))
        print(f"  {name:20} {interval(hits, asked.grids)}", flush=True)
    print("Power to find a V effect, lines between the finest and the coarsest type")
    print(f"  {'':26}" + "".join(f"{size:>21}" for size in SIZES))
    for kind, is_step in itertools.product(EFFECTS, (False, True)):
        shape = "coarsest alone" if is_step else "by precision"
        row = (power(kind, size, asked.grids, is_step=is_step) for size in SIZES)
        print(
            f"  {kind:11}{shape:15}{''.join(f'{each:>21}' for each in row)}", flush=True
        )


if __name__ == "__main__":
    main()
