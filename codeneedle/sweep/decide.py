"""Asks open pairs for further functions until each is decided, or the time is up."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from codeneedle.errors import RequestError
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Times
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.records.store import SWEEP
from codeneedle.sweep.request import decoded
from codeneedle.sweep.runner import Event, Runner
from codeneedle.verdict.judge import Limits, Verdict, best_by_size, cache_size, judge
from codeneedle.verdict.statistics import Word

MOST_PAIRS = 4
"""Pairs that are asked for further functions at a time."""

SCREENS = tuple(name for name, probe in PROBES.items() if probe.screens)
"""
Probes that screen. The first is the default: with SmolLM2 on two cores four chunks of
divergence take 19 s a pair where 16 copies take 75 s.
"""

FINALISTS = 5
"""Pairs that a screening proposes, at most."""

TIME_SHARE = 1 / 3
"""Of the time of a sweep, the most that its further functions take by themselves."""

PROBE = next(probe for probe in PROBES.values() if probe.continued_metric)
"""What open pairs are asked in addition."""


def further(found: Verdict) -> dict[Pair, int]:
    """
    The pairs to ask for further functions, and how many altogether; empty if none.

    Those are open, measured below the limit, and smaller than the cache that is
    recommended so far; at most `MOST_PAIRS`, those that need the fewest functions. Each
    is doubled. The reference comes first, where it has fewer than they will have.
    """
    ends = PROBE.unit_ends(found.run.setup)
    asked = {
        record.pair: PROBE.units(record)
        for record in found.run.records
        if record.probe == PROBE.name and record.has_numbers
    }
    chosen = found.standing(found.chosen) if found.chosen else None
    largest = cache_size(chosen) if chosen else 1.0
    needed: dict[Pair, tuple[int, int]] = {}
    for each in found.compared:
        row = each.row(PROBE.continued_metric)
        if row is None or each.word is not Word.OPEN or row.word is not Word.OPEN:
            continue
        goal = next((end for end in ends if end > asked.get(each.pair, 0)), 0)
        is_below = row.bounds.mean < row.limit and cache_size(each) < largest
        if goal and row.needed and is_below and not row.remark:
            needed[each.pair] = (row.needed, goal)
    pairs = sorted(needed, key=lambda pair: (needed[pair][0], str(pair)))[:MOST_PAIRS]
    goals = {pair: needed[pair][1] for pair in pairs}
    most = max(goals.values(), default=0)
    if found.reference and most > asked.get(found.reference, 0):
        return {found.reference: most, **goals}
    return goals


Show = Callable[[Mapping[Pair, int]], AbstractContextManager[Callable[[Event], None]]]
"""Begins to show a round of pairs and functions; gives what takes its events."""


def decide(
    runner: Runner, limits: Limits, *, is_over: Callable[[Run], bool], show: Show
) -> list[CellRecord]:
    """
    Ask open pairs for further functions until none is left that could be decided.

    Args:
        runner: Measures cells.
        limits: What the pairs are held against.
        is_over: Whether to stop, by the run so far; asked before each server.
        show: Shows each round.

    Returns:
        The records of cells that failed; what was answered before is kept.

    Raises:
        KeyboardInterrupt: As it came.
    """
    failed: dict[Pair, CellRecord] = {}
    while True:
        found = judge(runner.read(), limits)
        asked = {p: goal for p, goal in further(found).items() if p not in failed}
        if not asked or is_over(found.run):
            return list(failed.values())
        with show(asked) as tell:
            for pair, goal in asked.items():
                record = runner.extend(PROBE, pair, goal, tell=tell)
                if not record.has_numbers or PROBE.units(record) < goal:
                    failed[pair] = record
                # Without the reference, what others answer is compared with nothing.
                if found.reference in failed or is_over(runner.read()):
                    return list(failed.values())


def spent_share(run: Run) -> float:
    """Time that further functions took, by the time of all else that was measured."""
    whole = math.fsum(record.phases.total_s for record in run.records)
    more = math.fsum(_further_s(record, run.setup) for record in run.records)
    return more / (whole - more) if whole > more else 0.0


def _further_s(record: CellRecord, setup: Setup) -> float:
    """Seconds that further functions of *record* took, with their servers."""
    looks = 0
    if record.probe == PROBE.name and record.has_numbers:
        looks = PROBE.look(record, setup)
    if not looks:
        return 0.0
    times, first = PROBE.times(record), PROBE.unit_ends(setup)[0]
    # A reference may pass over a look.
    servers = min(looks, times.servers - 1)
    return math.fsum(times.units[first:]) + servers * _reading_s(record, times)


def time_s(run: Run, goals: Mapping[Pair, int]) -> float:
    """Seconds that it takes to ask each pair of *goals*; NaN where that is unknown."""
    total = 0.0
    for record in run.records:
        if record.probe == PROBE.name and record.pair in goals and record.has_numbers:
            total += _cell_s(record, goals[record.pair])
    return total or math.nan


def _cell_s(record: CellRecord, goal: int) -> float:
    """Seconds of one more server of *record*, until it has *goal* functions."""
    times = PROBE.times(record)
    known = len(times.units)
    each = math.fsum(times.units) / max(known, 1)
    return _reading_s(record, times) + (goal - known) * each


def _reading_s(record: CellRecord, times: Times) -> float:
    """Seconds of one server of *record* without its questions."""
    return max(record.phases.total_s - times.questions_s, 0.0) / times.servers


def settled(verdict: Verdict) -> set[Pair]:
    """
    The pairs that a sweep which decides measures no further, as it screened them alone.

    Empty for other runs, and where the screening has proposed nothing.
    """
    run = verdict.run
    try:
        decides = decoded(run.sweep, source=SWEEP).decide
    except RequestError:
        return set()
    records = tuple(each for each in run.records if each.probe in SCREENS)
    proposed = decides and finalists(replace(run, records=records), verdict.limits)
    return {each.pair for each in records} - {*proposed} if proposed else set()


def finalists(run: Run, limits: Limits) -> list[Pair]:
    """
    The reference and the pairs that are worth to be measured, by a screening alone.

    Of the pairs that are not beyond the limit, those of which no other has a smaller
    cache and a smaller divergence; of more than `FINALISTS`, evenly spread ones. Empty
    where there is none of them.

    Args:
        run: With the records of the probes that screen alone.
        limits: What the pairs are held against.
    """
    found = judge(run, limits)
    fitting = [
        each
        for each in found.compared
        if cache_size(each) < 1 and each.word is not Word.BEYOND
    ]
    front = best_by_size(fitting)
    step = max((len(front) - 1) / (FINALISTS - 1), 1.0)
    chosen = dict.fromkeys(
        front[round(at * step)].pair for at in range(min(FINALISTS, len(front)))
    )
    return [found.reference, *chosen] if found.reference and chosen else []
