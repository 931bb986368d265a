"""
The running order of a grid: shuffled, the reference first where it decides something,
pairs without a kernel last; and which pair is measured once more at the end.
"""

from collections.abc import Collection

from codeneedle.cache_types import FIRST, Pair, most_precise
from codeneedle.probes.probe import Probe
from codeneedle.sweep.plan import Plan

TRIED_FROM = 6
"""Cells of a grid from which on its reference is measured before all others."""


def measures_reference_first(plan: Plan) -> bool:
    """Whether the grid is long, so that its reference is measured first."""
    return len(plan.pairs) >= TRIED_FROM


def running_order(
    plan: Plan,
    probe: Probe,
    pairs: Collection[Pair] | None = None,
    *,
    tries_reference: bool = True,
) -> tuple[Pair, ...]:
    """
    The running order of *probe*: shuffled, pairs without a kernel last.

    That of a sweep that decides is the order of *pairs*: outcomes choose them.

    Args:
        plan: Has the pairs of the grid, and what is known of their kernels.
        probe: What measures; one that calibrates begins with the reference.
        pairs: Of those of the plan; None for all.
        tries_reference: Whether the reference of a long grid comes first.
    """
    if plan.request.decide:
        return measurable_pairs(plan) if pairs is None else tuple(pairs)
    wanted = set(plan.pairs if pairs is None else pairs)
    last = wanted & {*plan.pairs_without_kernel}
    is_led = (tries_reference and measures_reference_first(plan)) or (
        probe.calibrating is not None
    )
    first = most_precise(wanted - last or last) if wanted and is_led else None
    ordered = (pair for pair in plan.pairs if pair in wanted)
    return tuple(sorted(ordered, key=lambda pair: (pair != first, pair in last)))


def measurable_pairs(plan: Plan) -> tuple[Pair, ...]:
    """
    The pairs that a sweep may decide on: the reference, those of `FIRST`, the others.

    Those that are known to be refused are not among them; empty if all are.
    """
    possible = plan.possible_pairs
    if not possible:
        return ()
    reference = most_precise(set(possible) - {*plan.pairs_without_kernel})
    return tuple(
        dict.fromkeys((reference, *(p for p in FIRST if p in possible), *possible))
    )


def pair_to_repeat(plan: Plan, probe: Probe) -> Pair | None:
    """
    The most precise pair, if *probe* measures it again after all others; else None.

    None for the built-in model, and of a single pair.
    """
    # The built-in model is an instrument: its tests show that it repeats itself.
    if plan.is_built_in or not probe.repeats or not plan.possible_pairs[1:]:
        return None
    return most_precise(set(plan.possible_pairs) - {*plan.pairs_without_kernel})
