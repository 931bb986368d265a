"""
The two published 6 x 6 grids, written as records.

Only means over 16 functions are published ("KV-Cache Quantization vs Positional
Recall", runs 3 and 4), so rounds are made that give them: of run 3, four fragile
functions lose most lines, and one round loses 18, as its count of passes says.
"""

import random
from dataclasses import replace

from made_records import made_run, made_setup, sized

from codeneedle.grid import DEFAULT_TYPES, Pair
from codeneedle.records.record import Run

FUNCTIONS, LINES = 16, 20

RUN_3 = """
    19.25 19.38 19.44 18.38 19.19 19.44
    19.19 19.56 19.56 19.44 19.44 19.56
    19.44 19.31 19.62 19.38 19.56 19.12
    19.50 19.38 19.56 19.50 19.50 19.50
    19.31 19.56 19.56 19.44 19.06 19.25
    19.56 19.56 19.44 19.56 19.44 19.56
"""
"""122K tokens of PHP: matched lines, K down and V across, most precise first."""

RUN_4 = """
    20.00 20.00 20.00 20.00 20.00 20.00
    20.00 19.94 19.94 20.00 20.00 20.00
    20.00 20.00 20.00 20.00 20.00 20.00
    20.00 20.00 20.00 20.00 20.00 20.00
    20.00 20.00 20.00 20.00 20.00 20.00
    20.00 20.00 20.00 20.00 19.94 20.00
"""
"""140K tokens of incompressible Python, likewise."""

FRAGILE = (0, 4, 8, 12)
BROKEN, BROKEN_LINES = 6, 18
"""The function of which one round of run 3 lost most lines."""


def published_run(grid: str) -> Run:
    """A run whose cells have the means of *grid*."""
    pairs = [Pair(k, v) for k in DEFAULT_TYPES for v in DEFAULT_TYPES]
    means = map(float, grid.split())
    lost = {
        pair: _lost_lines(round((LINES - mean) * FUNCTIONS), seed=at)
        for at, (pair, mean) in enumerate(zip(pairs, means, strict=True))
    }
    run = made_run(lambda pair, at: LINES - lost[pair][at], setup=made_setup())
    return replace(run, records=tuple(map(sized, run.records)))


def _lost_lines(total: int, *, seed: int) -> list[int]:
    """*total* lost lines, by function; which ones lose is drawn for each cell."""
    chance = random.Random(seed)  # noqa: S311 - no secrets
    lost = [0] * FUNCTIONS
    if total > BROKEN_LINES:
        lost[BROKEN], total = BROKEN_LINES, total - BROKEN_LINES
    others = [at for at in range(FUNCTIONS) if at not in {*FRAGILE, BROKEN}]
    for at in chance.sample([*FRAGILE * 3, *chance.sample(others, 3)], total):
        lost[at] += 1
    return lost
