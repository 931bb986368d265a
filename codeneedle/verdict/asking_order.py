"""
The order of a sweep that decides: which pair is asked next, which ones a finer pair
beyond the limit rules out, and among how many pairs the error is shared.
"""

import bisect
import itertools
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override

from codeneedle.cache_types import (
    FIRST,
    Candidate,
    Pair,
    bits_per_value,
    most_precise_first,
)
from codeneedle.probes import PROBES
from codeneedle.records.record import Run, Setup, from_json
from codeneedle.records.store import SETUP
from codeneedle.verdict.statistics import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """
    What a sweep that decides fixes before a pair is measured beside the reference.

    Which pair is asked next may depend on all that was seen: neither the share of a
    pair nor the numbers of functions after which it is judged do.
    """

    pairs: tuple[str, ...]  # those that may be measured, the reference not among them
    looks: tuple[int, ...] = ()
    """
    Numbers of functions after which a pair is judged, ascending; empty if every pair is
    asked the same.
    """

    unborne: tuple[str, ...] = ()
    """Types of K that the weights alone are predicted not to bear: they come last."""

    skipped: int = 0
    """How many smaller numbers the probe has, at which no pair is judged."""

    @property
    def eligible_pairs(self) -> tuple[Pair, ...]:
        """The pairs that may be measured."""
        return tuple(map(Pair.parse, self.pairs))

    @property
    def first_step_pairs(self) -> tuple[Pair, ...]:
        """The pairs of the first step: those of `FIRST` whose K may be borne."""
        pairs = (pair for pair in FIRST if str(pair) in self.pairs)
        return tuple(pair for pair in pairs if pair.k not in self.unborne)

    def error_sharing_count(self, pair: Pair, measured: Collection[Pair] = ()) -> int:
        """
        Among how many pairs `error_share` shares `ALPHA` evenly, for *pair*.

        Half of it is for the first pairs, half for all others: those of this order, and
        others that were *measured*.
        """
        first = set(self.first_step_pairs)
        rest = {*self.eligible_pairs, *measured} - first
        if not (first and rest):
            return max(len(first), len(rest), 1)
        return 2 * len(first if pair in first else rest)

    def look_number_in_order(self, look: int) -> int:
        """
        The number of a look at a pair by this order; *look* is its number without it.

        A grid in the same folder may look where this order does not: with the share of
        a later look, so that the shares of all looks still add up to `ALPHA`.
        """
        if look < self.skipped:
            return len(self.looks) + look
        return look - self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class JointOrder(Order):
    """The order of several runs that are judged together, of candidates."""

    candidates: tuple[Candidate, ...]  # all that may be measured, the reference, too
    too_large: tuple[Candidate, ...] = ()
    """Those of the grids that did not fit when it was fixed, and have no share."""

    is_fixed: bool = True
    """Whether it was fixed beforehand; False of grids, whose pairs all share."""

    @property
    @override
    def eligible_pairs(self) -> tuple[Pair, ...]:
        """The candidates that may be measured, the reference among them."""
        return self.candidates

    @property
    @override
    def first_step_pairs(self) -> tuple[Pair, ...]:
        """Empty: candidates have no first step."""
        return ()

    @override
    def error_sharing_count(self, pair: Pair, measured: Collection[Pair] = ()) -> int:
        """All others that may be measured or were; for grids those *measured*."""
        if not self.is_fixed:
            return max(len(measured), 1)
        # One of them is the reference.
        return max(len({*self.candidates, *measured}) - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRun(Run):
    """Runs of several files of weights, whose candidates stand on one scale."""

    runs: tuple[Run, ...]  # one of each file, the most precise weights first
    order: JointOrder

    @property
    def incomparable_probes(self) -> tuple[str, ...]:
        """`differently_calibrated_probes` of these runs."""
        return differently_calibrated_probes([run.setup for run in self.runs])


def differently_calibrated_probes(setups: Sequence[Setup]) -> tuple[str, ...]:
    """Names of probes whose questions the references of *setups* set differently."""
    return tuple(
        name
        for name, probe in PROBES.items()
        if probe.calibrating and probe.calibrating.decides
        if _values_differ([s.calibrated[name] for s in setups if name in s.calibrated])
    )


def _values_differ(values: Sequence[object]) -> bool:
    return any(one != other for one, other in itertools.pairwise(values))


def order_of(run: Run) -> Order | None:
    """The order of *run*; None of one that measures a grid."""
    return run.order if isinstance(run, JointRun) else stored_asking_order(run.setup)


def order_of_deciding_sweep(run: Run) -> Order | None:
    """
    The order of *run*, by which pairs share the error.

    Of a sweep that decides whose own is lost all of the grid share it: fewer would say
    more than was measured. None of a sweep that measures a grid.
    """
    if order := order_of(run):
        return order
    try:
        decides = "decide" in run.sweep and tomllib.loads(run.sweep).get("decide")
    except tomllib.TOMLDecodeError:
        decides = False
    return Order(pairs=tuple(map(str, run.setup.grid))) if decides is True else None


def stored_asking_order(setup: Setup) -> Order | None:
    """What *setup* keeps of the order; None of a sweep that measures a grid."""
    return from_json(setup.order, Order, file=SETUP) if setup.order else None


def is_strictly_finer(finer: Pair, coarser: Pair) -> bool:
    """
    Whether *finer* is as precise as *coarser* in both K and V, and another pair.

    Types of equal size are not compared: neither is the more precise one. Nor are
    weights of equal size; of candidates those of *finer* must be as precise, too.
    """
    sides = ((finer.k, coarser.k), (finer.v, coarser.v))
    return (
        finer != coarser
        and _has_weights_as_fine(finer, coarser)
        and all(
            one == other
            or (bits_per_value(one) or 0.0) > (bits_per_value(other) or math.inf)
            for one, other in sides
        )
    )


def _has_weights_as_fine(finer: Pair, coarser: Pair) -> bool:
    is_same = finer.weights == coarser.weights
    return is_same or finer.weight_bits > coarser.weight_bits


def pairs_ruled_out_by_finer(
    decisions: Mapping[Pair, Decision], pairs: Iterable[Pair]
) -> dict[Pair, Pair]:
    """
    Those of *pairs* without a decision that are beyond the limit, as a finer pair is.

    Args:
        decisions: Of the pairs that were measured.
        pairs: Those that may be measured.

    Returns:
        By pair, the coarsest that is as precise in both K and V, and beyond. Nothing
        where a pair is within although a finer one is beyond: then no pair tells of
        another.
    """
    beyond = [
        p
        for p in most_precise_first(decisions)[::-1]
        if decisions[p] is Decision.BEYOND
    ]
    if any(
        decision is Decision.WITHIN
        and any(is_strictly_finer(other, pair) for other in beyond)
        for pair, decision in decisions.items()
    ):
        return {}
    found = {}
    for pair in pairs:
        finer = next(
            (other for other in beyond if is_strictly_finer(other, pair)), None
        )
        if pair not in decisions and finer is not None:
            found[pair] = finer
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PairState:
    """What was seen of a pair."""

    decision: Decision | None  # its decision; None if it failed, or has none
    units: int  # its functions
    needed: int | None
    """Functions that would decide it if it is open; None if none would."""

    is_below: bool  # whether its loss is measured below the limit


class Why(StrEnum):
    """Why a step is next."""

    FIRST = "the first answer"
    MORE = "further functions may decide it"
    SMALLER = "smaller than what is within the limit"
    UNLIKELY = "smaller, but less precise than a pair above the limit"
    UNBORNE = "smaller, but the weights are predicted not to bear its K"
    CHECK = "ruled out, and measured as a check"
    BORDER = "fits, and nothing finer does"
    UNSURE = "fits, and the check says that finer ones do not rule it out"


@dataclass(frozen=True, slots=True)
class StepTarget:
    """What is asked next."""

    pairs: tuple[Pair, ...]  # of which pairs
    goal: int  # how many functions each has afterwards; 0 where all are asked the same
    why: Why  # why these


def next_target(
    order: Order, seen: Mapping[Pair, PairState], reference: Pair | None = None
) -> StepTarget | None:
    """
    What is asked next; None once nothing is left that could change the answer.

    First the pairs of the first step; while none is within the limit, the open one that
    the fewest functions decide. Then, of the pairs that are smaller than the
    smallest one within the limit and not ruled out: one that is open, and that its next
    look is likely to decide; one that was not measured, which settles most of the
    others whichever way it comes out; once, a pair that is ruled out; open pairs that a
    later look is likely to decide. At last those that were not measured and are less
    precise than an open one above the limit.

    Args:
        order: What was fixed.
        seen: By pair, what was measured so far; the reference is not among them.
        reference: The pair that others are compared with; None for one that is not
            quantized. One that is not smaller is never set.
    """
    look = order.looks[0] if order.looks else 0
    if first := tuple(pair for pair in order.first_step_pairs if pair not in seen):
        return StepTarget(first, look, Why.FIRST)
    decisions = {pair: state.decision for pair, state in seen.items() if state.decision}
    within = [
        p.size_to_compare
        for p, decision in decisions.items()
        if decision is Decision.WITHIN
    ]
    out = pairs_ruled_out_by_finer(decisions, order.eligible_pairs)
    largest = min(within, default=reference.size_to_compare if reference else 1.0)
    # One of unknown size may be smaller.
    sizes = {pair: pair.size_to_compare for pair in order.eligible_pairs}
    smaller = [p for p, size in sizes.items() if size < largest or math.isinf(size)]
    looks = _next_and_deciding_looks(
        order, {pair: seen[pair] for pair in smaller if pair in seen}
    )
    near = {pair: soon for pair, (soon, late) in looks.items() if soon == late}
    if not within and looks:
        near = {pair: soon for pair, (soon, _) in looks.items()}
    if near:
        return _cheapest_extension(near, seen)
    far = {pair: late for pair, (_, late) in looks.items()}
    new = [pair for pair in smaller if pair not in seen and pair not in out]
    unborne = [pair for pair in new if pair.k in order.unborne]
    unlikely = [
        pair for pair in _pairs_probably_beyond(new, seen) if pair not in unborne
    ]
    ruled = [pair for pair in smaller if pair in out and pair not in seen]
    likely = [pair for pair in new if pair not in {*unlikely, *unborne}]
    if likely:
        return StepTarget((_most_settling(likely),), look, Why.SMALLER)
    if ruled and not _is_inference_checked(order, decisions):
        return StepTarget((max(ruled, key=_size_key),), look, Why.CHECK)
    if far:
        return _cheapest_extension(far, seen)
    return _least_likely_target(unlikely, unborne, look)


def _least_likely_target(
    unlikely: Collection[Pair], unborne: Collection[Pair], look: int
) -> StepTarget | None:
    """One of the pairs that hardly change the answer; None if there is none."""
    if unlikely:
        return StepTarget((_most_settling(unlikely),), look, Why.UNLIKELY)
    if unborne:
        return StepTarget((_pair_finer_than_most(unborne),), look, Why.UNBORNE)
    return None


def _cheapest_extension(
    goals: Mapping[Pair, int], seen: Mapping[Pair, PairState]
) -> StepTarget:
    """More functions of the pair that the fewest decide; of several, the smallest."""
    pair = min(
        goals,
        key=lambda open_pair: (seen[open_pair].needed or 0, *_size_key(open_pair)),
    )
    return StepTarget((pair,), goals[pair], Why.MORE)


def _next_and_deciding_looks(
    order: Order, seen: Mapping[Pair, PairState]
) -> dict[Pair, tuple[int, int]]:
    """
    The next look at each open pair below the limit, and the one likely to decide it.

    Both as numbers of functions, of the pairs that a look can decide. Each look costs
    another reading of the text, so that those between these two may be passed over.
    """
    return {
        pair: (soon, order.looks[bisect.bisect_left(order.looks, state.needed or 0)])
        for pair, state in seen.items()
        if (soon := functions_at_next_look(order, state))
    }


def functions_at_next_look(order: Order, state: PairState) -> int | None:
    """Functions after the next look at an open pair that a look may show to be within.

    None of any other.
    """
    is_open = state.decision is Decision.OPEN and state.is_below
    most = max(order.looks, default=0)
    if not is_open or not state.needed or not state.units < state.needed <= most:
        return None
    return order.looks[bisect.bisect_right(order.looks, state.units)]


def _pairs_probably_beyond(
    new: Iterable[Pair], seen: Mapping[Pair, PairState]
) -> list[Pair]:
    """Those of *new* that are less precise than an open pair above the limit."""
    above = [
        pair
        for pair, state in seen.items()
        if state.decision is Decision.OPEN and not state.is_below
    ]
    return [
        pair for pair in new if any(is_strictly_finer(other, pair) for other in above)
    ]


def _most_settling(new: Collection[Pair]) -> Pair:
    """
    The pair of *new* that settles most of them, whichever way it comes out.

    Within, it settles all that are not smaller; beyond, all that it covers. Of several,
    the smallest.
    """

    def settling_key(pair: Pair) -> tuple[int, float, str]:
        within = sum(other.size_to_compare >= pair.size_to_compare for other in new)
        beyond = 1 + sum(is_strictly_finer(pair, other) for other in new)
        return min(within, beyond), -pair.size_to_compare, str(pair)

    return max(new, key=settling_key)


def _pair_finer_than_most(new: Collection[Pair]) -> Pair:
    """
    The pair of *new* that settles most of them by being beyond the limit.

    Of several, the smallest.
    """

    def finer_than_key(pair: Pair) -> tuple[int, float, str]:
        found = sum(is_strictly_finer(pair, other) for other in new)
        return found, -pair.size_to_compare, str(pair)

    return max(new, key=finer_than_key)


def _is_inference_checked(order: Order, decisions: Mapping[Pair, Decision]) -> bool:
    """Whether a finer pair rules out one that was measured after the first step."""
    beyond = [
        pair for pair, decision in decisions.items() if decision is Decision.BEYOND
    ]
    others = decisions.keys() - {*order.first_step_pairs}
    return any(
        is_strictly_finer(finer_pair, pair) for pair in others for finer_pair in beyond
    )


def _size_key(pair: Pair) -> tuple[float, str]:
    """What sorts pairs by size, those of equal size by name."""
    return pair.size_to_compare, str(pair)
