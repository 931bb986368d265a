"""
Measures false alarms and power of the verdict, on grids whose truth is known.

Run it: ``python scripts/truth.py [--grids 1000]``.

Noise models, fitted to the published 6 x 6 sweeps of a 27B model ("KV-Cache
Quantization vs Positional Recall"): of 16 functions, lines matched of 20.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np

from codeneedle.analysis import verdict
from codeneedle.analysis.verdict import EFFECTS, Numbers

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


MODELS: dict[str, Noise] = {
    "A, like run 3": fragile,
    "Ac, replies shared": shared,
    "B, like run 4": clean,
    "C, like run 1": memorised,
    "D, like run 2": unseen,
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


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grids", type=int, default=1_000)
    grids = parser.parse_args().grids
    print(f"False alarms over the whole grid, % of {grids:,} grids [95 % interval]")
    for name, noise in MODELS.items():
        chance = np.random.default_rng(1)
        hits = sum(is_alarmed(noise(chance), seed) for seed in range(grids))
        print(f"  {name:20} {interval(hits, grids)}", flush=True)
    print("Power to find a V effect, lines between the finest and the coarsest type")
    print(f"  {'':12}" + "".join(f"{size:>20}" for size in SIZES))
    for kind in EFFECTS:
        row = []
        for size in SIZES:
            chance = np.random.default_rng(2)
            hits = sum(
                verdict.axis_finding(
                    verdict.with_effect(
                        fragile(chance), 1, kind=kind, size=size, chance=chance
                    ),
                    1,
                    seed=seed,
                ).matters
                for seed in range(grids)
            )
            row.append(interval(hits, grids))
        print(f"  {kind:12}" + "".join(f"{cell:>20}" for cell in row), flush=True)


if __name__ == "__main__":
    main()
