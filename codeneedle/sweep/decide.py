"""
Chooses pairs by a screening, and measures open pairs with further functions until each
is decided or the time is up.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from msgspec import structs

from codeneedle.errors import BadInput, RequestError
from codeneedle.grid import Pair
from codeneedle.probes import PROBES
from codeneedle.probes.probe import Times
from codeneedle.records.record import CellRecord, Run, Setup
from codeneedle.records.store import SWEEP
from codeneedle.sweep.request import Execution, Request, decoded
from codeneedle.sweep.runner import Event, Runner
from codeneedle.verdict.judge import Limits, Verdict, best_by_size, cache_size, judge
from codeneedle.verdict.statistics import Word

MOST_PAIRS = 4
"""Pairs that are measured with further functions at a time."""

SCREENS = tuple(name for name, probe in PROBES.items() if probe.screens)
"""Probes that screen; the first is the default."""

FINALISTS = 5
"""Pairs that a screening proposes, at most."""

TIME_SHARE = 1 / 3
"""The most that further functions take by default, as a share of the sweep's time."""

PROBE = next(probe for probe in PROBES.values() if probe.continued_metric)
"""Measures open pairs with further functions."""


def deciding(request: Request, execution: Execution) -> Request:
    """
    *request*; if it decides, with a probe that screens all pairs before those that
    measure a few.

    Raises:
        BadInput: If it decides, and a share of the grid is to be measured.
    """
    if not request.decide:
        return request
    if execution.shard is not None:
        raise BadInput(
            source=f"--shard {execution.shard}",
            reason="a share of the grid cannot choose which pairs to measure further",
            hint="Sweep shares with --probe divergence --no-decide, then use --decide "
            "without --shard.",
        )
    screens = [name for name in request.probes if name in SCREENS] or [*SCREENS[:1]]
    others = [name for name in request.probes if name not in SCREENS] or [PROBE.name]
    return structs.replace(request, probes=(*screens, *others))


def further(verdict: Verdict) -> dict[Pair, int]:
    """
    The pairs to measure with further functions, each with its new number of functions.

    Those are open, measured below the limit, and smaller than the cache that is
    recommended so far; at most `MOST_PAIRS`, those that need the fewest functions. The
    number of each is doubled. The reference comes first, where it has fewer than they
    will have. Empty if no pair can be decided.
    """
    ends = PROBE.unit_ends(verdict.run.setup)
    counts = {
        record.pair: PROBE.units(record)
        for record in verdict.run.records
        if record.probe == PROBE.name and record.has_numbers
    }
    chosen = verdict.standing(verdict.chosen) if verdict.chosen else None
    largest = cache_size(chosen) if chosen else 1.0
    needed: dict[Pair, tuple[int, int]] = {}
    for standing in verdict.compared:
        row = standing.row(PROBE.continued_metric)
        if row is None or standing.word is not Word.OPEN or row.word is not Word.OPEN:
            continue
        goal = next((end for end in ends if end > counts.get(standing.pair, 0)), 0)
        is_below = row.bounds.mean < row.limit and cache_size(standing) < largest
        if goal and row.needed and is_below and not row.remark:
            needed[standing.pair] = (row.needed, goal)
    pairs = sorted(needed, key=lambda pair: (needed[pair][0], str(pair)))[:MOST_PAIRS]
    goals = {pair: needed[pair][1] for pair in pairs}
    most = max(goals.values(), default=0)
    if verdict.reference and most > counts.get(verdict.reference, 0):
        return {verdict.reference: most, **goals}
    return goals


Show = Callable[[Mapping[Pair, int]], AbstractContextManager[Callable[[Event], None]]]
"""Takes pairs with their new numbers of functions; yields what shows events."""


def decide(
    runner: Runner, limits: Limits, *, is_over: Callable[[Run], bool], show: Show
) -> list[CellRecord]:
    """
    Measure open pairs with further functions until none is left that could be decided.

    Args:
        runner: Measures cells.
        limits: Largest losses that the user accepts.
        is_over: Whether to stop, by the run so far; called before each server.
        show: Shows each pass over the open pairs.

    Returns:
        The records of cells that failed; their earlier answers are kept.

    Raises:
        KeyboardInterrupt: As it came.
    """
    failed: dict[Pair, CellRecord] = {}
    while True:
        verdict = judge(runner.read(), limits)
        goals = {p: goal for p, goal in further(verdict).items() if p not in failed}
        if not goals or is_over(verdict.run):
            return list(failed.values())
        with show(goals) as tell:
            for pair, goal in goals.items():
                record = runner.extend(PROBE, pair, goal, tell=tell)
                if not record.has_numbers or PROBE.units(record) < goal:
                    failed[pair] = record
                # Without the reference, answers of others are compared with nothing.
                if verdict.reference in failed or is_over(runner.read()):
                    return list(failed.values())


def spent_share(run: Run) -> float:
    """Time of further functions, divided by that of everything else."""
    whole = math.fsum(record.phases.total_s for record in run.records)
    more = math.fsum(_further_s(record, run.setup) for record in run.records)
    return more / (whole - more) if whole > more else 0.0


def _further_s(record: CellRecord, setup: Setup) -> float:
    """Seconds of the further functions of *record*, with their servers."""
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
    """Seconds that the functions of *goals* take, about; NaN where that is unknown."""
    total = 0.0
    for record in run.records:
        if record.probe == PROBE.name and record.pair in goals and record.has_numbers:
            total += _cell_s(record, goals[record.pair])
    return total or math.nan


def _cell_s(record: CellRecord, goal: int) -> float:
    """Seconds of one more server of *record*, until it has *goal* functions."""
    times = PROBE.times(record)
    known = len(times.units)
    function_s = math.fsum(times.units) / max(known, 1)
    return _reading_s(record, times) + (goal - known) * function_s


def _reading_s(record: CellRecord, times: Times) -> float:
    """Seconds of one server of *record* without its questions."""
    return max(record.phases.total_s - times.questions_s, 0.0) / times.servers


def settled(verdict: Verdict) -> set[Pair]:
    """
    The pairs that a sweep which decides screens alone.

    Empty for other runs, and where the screening has proposed nothing.
    """
    run = verdict.run
    try:
        decides = decoded(run.sweep, source=SWEEP).decide
    except RequestError:
        return set()
    proposed = decides and finalists(run, verdict.limits)
    screened = {record.pair for record in run.records if record.probe in SCREENS}
    return screened - {*proposed} if proposed else set()


def finalists(run: Run, limits: Limits) -> list[Pair]:
    """
    The reference and the pairs that are worth measuring, by the screening of *run*.

    Of the pairs that are not beyond the limit, those of which no other has a smaller
    cache and a smaller divergence; of more than `FINALISTS`, evenly spread ones. Empty
    where there is none of them.
    """
    records = tuple(record for record in run.records if record.probe in SCREENS)
    verdict = judge(replace(run, records=records), limits)
    fitting = [
        standing
        for standing in verdict.compared
        if cache_size(standing) < 1 and standing.word is not Word.BEYOND
    ]
    front = best_by_size(fitting)
    step = max((len(front) - 1) / (FINALISTS - 1), 1.0)
    chosen = dict.fromkeys(
        front[round(at * step)].pair for at in range(min(FINALISTS, len(front)))
    )
    return [verdict.reference, *chosen] if verdict.reference and chosen else []
