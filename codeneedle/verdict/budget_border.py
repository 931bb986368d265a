"""
The border of a memory budget: the candidates that fit where nothing finer in weights
and cache does, which of them is measured next, and what they cover.

What is coarser than one of them in weights and in cache is taken to lose no less: it is
not asked, but for one as a check.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.verdict.asking_order import (
    Order,
    PairState,
    StepTarget,
    Why,
    functions_at_next_look,
    is_strictly_finer,
)
from codeneedle.verdict.statistics import Bounds


def undominated_pairs(pairs: Collection[Pair]) -> list[Pair]:
    """Those of *pairs* than which no other is strictly finer, most precise first."""
    return [
        pair
        for pair in most_precise_first(pairs)
        if not any(is_strictly_finer(other, pair) for other in pairs)
    ]


def unmeasured_dominated_pairs(
    pairs: Iterable[Pair], bounds: Mapping[Pair, Bounds]
) -> dict[Pair, Pair]:
    """
    Those of *pairs* without *bounds*, each with a finer one taken to lose no more.

    That is the coarsest with bounds that is as fine in weights, K and V. Empty once one
    with bounds is shown to lose less than a finer one: then none tells of another.
    """
    if has_better_coarser_pair(bounds):
        return {}
    known = most_precise_first(bounds)[::-1]
    found = {}
    for pair in pairs:
        finer = next((other for other in known if is_strictly_finer(other, pair)), None)
        if pair not in bounds and finer is not None:
            found[pair] = finer
    return found


def has_better_coarser_pair(bounds: Mapping[Pair, Bounds]) -> bool:
    """Whether one is shown to lose less than one that is finer in everything."""
    return any(
        is_strictly_finer(finer, pair) and bounds[pair].high < bounds[finer].low
        for finer in bounds
        for pair in bounds
    )


def pair_of_least_upper_loss(bounds: Mapping[Pair, Bounds]) -> Pair | None:
    """The pair with the least upper end, then mean; None if no end is finite."""
    known = {
        pair: interval
        for pair, interval in bounds.items()
        if math.isfinite(interval.high)
    }
    return min(known, key=lambda p: (known[p].high, known[p].mean), default=None)


def next_budget_target(
    order: Order,
    seen: Mapping[Pair, PairState],
    bounds: Mapping[Pair, Bounds],
    fitting: Sequence[Pair],
) -> StepTarget | None:
    """
    What is asked next; None once nothing that fits could lose less.

    First the border, the finest weights first; one that fails gives way to those behind
    it. Then one that is ruled out, as a check; if that is shown to lose less than what
    rules it out, all others that fit. At last further functions of the one that loses
    least, if they may show it within the limit.

    Args:
        order: What was fixed.
        seen: What was measured, or failed, by candidate; the reference is not there.
        bounds: Of those that have a loss.
        fitting: The candidates that fit, the reference not among them.
    """
    look = order.looks[0] if order.looks else 0
    alive = [p for p in fitting if p not in seen or p in bounds]
    new = [pair for pair in undominated_pairs(alive) if pair not in seen]
    if new:
        return StepTarget((new[0],), look, Why.BORDER)
    ours = {pair: interval for pair, interval in bounds.items() if pair in {*fitting}}
    left = [pair for pair in most_precise_first(alive) if pair not in seen]
    if left and has_better_coarser_pair(ours):
        return StepTarget((left[0],), look, Why.UNSURE)
    border = undominated_pairs(alive)
    if left and all(pair in border for pair in ours):
        return StepTarget(
            (max(left, key=lambda p: p.size_to_compare),), look, Why.CHECK
        )
    best = pair_of_least_upper_loss(ours)
    goal = functions_at_next_look(order, seen[best]) if best else None
    return StepTarget((best,), goal, Why.MORE) if best and goal else None
