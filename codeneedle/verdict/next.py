"""
Which open pairs are asked for further functions, and for how many; and how long these
and the next step take.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.observations import Observed, observation_of
from codeneedle.records.record import CellRecord, Run, Setup, Status
from codeneedle.verdict.asking_order import (
    JointOrder,
    PairState,
    StepTarget,
    next_target,
    order_of,
)
from codeneedle.verdict.budget_border import next_budget_target
from codeneedle.verdict.judge import Verdict, relative_cache_size
from codeneedle.verdict.statistics import Decision

MOST_PAIRS = 4
"""Pairs that are measured with further functions at a time."""


PROBE, FURTHER = next(
    (probe, further) for probe in PROBES.values() if (further := probe.further)
)
"""Measures open pairs with further functions, and how."""


def pairs_to_extend(verdict: Verdict) -> dict[Pair, int]:
    """
    The pairs to measure with further functions, each with its new number of functions.

    Those are open, measured below the limit, and smaller than the cache that is
    recommended so far; at most `MOST_PAIRS`, those that need the fewest functions. The
    number of each is doubled. The reference comes first, where it has fewer than they
    will have. Empty if no pair can be decided.
    """
    ends = FURTHER.units_at_looks(verdict.run.setup)
    counts = {
        record.pair: FURTHER.units(record)
        for record in verdict.run.records
        if record.probe == PROBE.name and record.has_numbers
    }
    chosen = verdict.result(verdict.chosen) if verdict.chosen else None
    largest = relative_cache_size(chosen) if chosen else 1.0
    needed: dict[Pair, tuple[int, int]] = {}
    for result in verdict.compared_results:
        row = result.metric_result(FURTHER.metric)
        if (
            row is None
            or result.decision is not Decision.OPEN
            or row.decision is not Decision.OPEN
        ):
            continue
        goal = next((end for end in ends if end > counts.get(result.pair, 0)), 0)
        is_below = row.bounds.mean < row.limit and relative_cache_size(result) < largest
        if goal and row.needed and is_below and not row.doubts_phrase:
            needed[result.pair] = (row.needed, goal)
    pairs = sorted(needed, key=lambda pair: (needed[pair][0], str(pair)))[:MOST_PAIRS]
    goals = {pair: needed[pair][1] for pair in pairs}
    most = max(goals.values(), default=0)
    if verdict.reference and most > counts.get(verdict.reference, 0):
        return {verdict.reference: most, **goals}
    return goals


def further_time_ratio(run: Run) -> float:
    """Time of further functions, divided by that of everything else."""
    whole = math.fsum(record.phases.total_from_launch_s for record in run.every_record)
    more = math.fsum(_further_units_s(record, run.setup) for record in run.records)
    return more / (whole - more) if whole > more else 0.0


def _further_units_s(record: CellRecord, setup: Setup) -> float:
    """Seconds of the further functions of *record*, with their servers."""
    if not is_extendable(record):
        return 0.0
    units, ends = FURTHER.units(record), FURTHER.units_at_looks(setup)
    looks = FURTHER.look_number(record, setup)
    if not looks:
        return 0.0
    # A reference may pass over a look: one server for several.
    servers = min(looks, observation_of(record, Observed).starts - 1)
    text = FURTHER.price(setup, ends[0], ends[0])
    price = FURTHER.price(setup, units, ends[0]) + text * (servers - 1)
    return FURTHER.pace(record, setup).seconds_for(price)


def seconds_for_goals(run: Run, goals: Mapping[Pair, int]) -> float:
    """Seconds that the functions of *goals* take, about; NaN where that is unknown."""
    records = [r for r in run.records if is_extendable(r) and r.pair in goals]
    times = (
        expected_cell_s(record, run.setup, goals[record.pair], FURTHER.units(record))
        for record in records
    )
    return math.fsum(times) or math.nan


def expected_cell_s(
    record: CellRecord, setup: Setup, goal: int, known: int = 0
) -> float:
    """
    Seconds of a cell like that of *record*, under *setup*.

    Of one that open pairs are asked more of: until it has *goal* units, if so many are
    *known*.
    """
    if not (goal and is_extendable(record) and FURTHER.units(record)):
        return record.phases.total_from_launch_s
    return FURTHER.pace(record, setup).seconds_for(FURTHER.price(setup, goal, known))


def is_extendable(record: CellRecord) -> bool:
    """Whether *record* has numbers of the probe that asks open pairs for more units."""
    return record.probe == PROBE.name and record.has_numbers


@dataclass(frozen=True, slots=True)
class NextStep:
    """What is measured next."""

    asked: StepTarget  # of which pairs, and why
    goals: Mapping[Pair, int]
    """
    By pair that has numbers, how many functions it has afterwards; the reference first,
    where it has fewer than the others will have.
    """

    time_s: float  # seconds that it takes, about; NaN where nothing is known

    @property
    def new_pairs(self) -> tuple[Pair, ...]:
        """The pairs that have no numbers yet."""
        return tuple(pair for pair in self.asked.pairs if pair not in self.goals)

    @property
    def without_last_pair(self) -> "NextStep | None":
        """This step without its last pair; None of a single pair."""
        *pairs, last = self.asked.pairs
        if not pairs:
            return None
        goals = {p: goal for p, goal in self.goals.items() if p != last}
        time_s = self.time_s * len(pairs) / (len(pairs) + 1)
        return NextStep(replace(self.asked, pairs=tuple(pairs)), goals, time_s)


def next_step(
    verdict: Verdict,
    probes: Sequence[str],
    *,
    may_continue: bool = True,
    failed: Collection[Pair] = (),
) -> NextStep | None:
    """
    The next step of a sweep that decides; None once nothing can change the answer.

    Args:
        verdict: On the run so far, which has an order.
        probes: Names of those that measure losses: a pair is seen by all of them.
        may_continue: Whether open pairs may be measured with further functions.
        failed: Pairs that cannot.
    """
    order = order_of(verdict.run)
    if order is None or verdict.reference_doubts_by_metric:
        return None
    if isinstance(order, JointOrder):
        others = (c for c in order.candidates if c != verdict.reference)
        order = replace(order, candidates=tuple(others))
    if not may_continue:
        order = replace(order, looks=order.looks[:1])
    seen = _states_of_pairs(verdict, probes)
    if (
        seen
        and verdict.silent
        and not any(result.metric_results for result in verdict.results)
    ):
        # Nothing that is measured has a say: no further pair changes that.
        return None
    seen |= {p: replace(state, needed=None) for p, state in seen.items() if p in failed}
    if isinstance(order, JointOrder) and verdict.limits.max_memory_bytes:
        known_losses = {p: b for p, b in verdict.loss_bounds.items() if p in seen}
        asked = next_budget_target(
            order, seen, known_losses, verdict.fitting_candidates
        )
    else:
        asked = next_target(order, seen, verdict.reference)
    if asked is None:
        return None
    known = {r.pair: FURTHER.units(r) for r in verdict.run.records if is_extendable(r)}
    every = [*([verdict.reference] if verdict.reference else []), *asked.pairs]
    has = {pair: known[pair] for pair in every if pair in known}
    goals = {pair: asked.goal for pair, count in has.items() if count < asked.goal}
    return NextStep(
        asked, goals, _expected_step_s(verdict, probes, asked, goals, known)
    )


def _expected_step_s(
    verdict: Verdict,
    probes: Sequence[str],
    asked: StepTarget,
    goals: Mapping[Pair, int],
    known: Mapping[Pair, int],
) -> float:
    """Seconds of a step, by cells of its pairs, else the latest; NaN if unknown."""
    records = {(r.pair, r.probe): r for r in verdict.run.records if r.has_numbers}
    latest = {r.probe: r for r in sorted(records.values(), key=lambda r: r.started)}
    total = 0.0
    for pair, goal in goals.items():
        own = records[pair, PROBE.name]
        total += expected_cell_s(own, verdict.run.setup, goal, known[pair])
    for pair in asked.pairs:
        if pair in goals:
            continue
        for probe in probes:
            like, setup = latest.get(probe), verdict.run.setup
            total += expected_cell_s(like, setup, asked.goal) if like else math.nan
    return total


def _states_of_pairs(verdict: Verdict, probes: Sequence[str]) -> dict[Pair, PairState]:
    """
    What was seen of each pair that all *probes* have tried, or that is beyond already.

    The reference is not among them, and interrupted cells do not count.
    """
    tried = {
        (record.pair, record.probe): record
        for record in verdict.run.records
        if record.status is not Status.INTERRUPTED
    }
    seen = {}
    for result in verdict.results:
        pair = result.pair
        is_whole = all((pair, p) in tried for p in probes)
        is_beyond = result.decision is Decision.BEYOND
        if pair == verdict.reference or not (is_whole or is_beyond):
            continue
        row = result.metric_result(FURTHER.metric)
        asked = tried.get((pair, PROBE.name))
        seen[pair] = PairState(
            decision=result.decision,
            units=FURTHER.units(asked) if asked and asked.has_numbers else 0,
            needed=row.needed if row and not row.doubts_phrase else None,
            is_below=row is not None
            and all(
                token_result.bounds.mean < token_result.limit
                for token_result in result.right_token_results
            ),
        )
    return seen
