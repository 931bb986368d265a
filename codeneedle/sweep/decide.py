"""
What is measured next: the steps of a sweep that decides, what they cost, and further
functions of open pairs of a grid.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from msgspec import structs

from codeneedle.corpora.corpus import LIMIT
from codeneedle.corpora.needles import block_ends
from codeneedle.errors import BadInput
from codeneedle.grid import Pair
from codeneedle.probes import PROBES, probes_named
from codeneedle.probes.metrics import LossKind
from codeneedle.probes.probe import Probe, Times, Work
from codeneedle.probes.recall.choice import planned_choice
from codeneedle.probes.recall.settings import Ask, By, RecallSettings, with_choice
from codeneedle.records.record import CellRecord, Run, Setup, Status, as_json
from codeneedle.sweep.plan import FIRST_ANSWER_S, Plan
from codeneedle.sweep.request import Execution, Request
from codeneedle.sweep.runner import Event, Runner
from codeneedle.text import plural
from codeneedle.verdict import order as ordering
from codeneedle.verdict.judge import Limits, Verdict, cache_size, judge
from codeneedle.verdict.order import Asked, Order, Seen, next_asked, order_in
from codeneedle.verdict.statistics import Decision

MOST_PAIRS = 4
"""Pairs that are measured with further functions at a time."""

TIME_SHARE = 1 / 3
"""The most that further functions take by default, as a share of the sweep's time."""

PROBE, FURTHER = next(
    (probe, further) for probe in PROBES.values() if (further := probe.further)
)
"""Measures open pairs with further functions, and how."""


def tells_loss(probe: Probe) -> bool:
    """Whether *probe* measures losses, rather than speeds or a change alone."""
    kinds = {metric.loss.kind for metric in probe.metrics if metric.loss}
    return bool(kinds - {LossKind.CHANGE})


def deciding(request: Request, execution: Execution) -> Request:
    """
    *request*; if it decides, with the probes that measure losses first, or recall.

    Others measure the pairs that these have measured.

    Raises:
        BadInput: If it decides, and a share of the grid is to be measured.
    """
    if not request.decide:
        return request
    if execution.shard is not None:
        raise BadInput(
            source=f"--shard {execution.shard}",
            reason="a share of the grid cannot choose which pair is measured next",
            hint="Sweep shares with --no-decide, or use --decide without --shard.",
        )
    probes = probes_named(request.probes)
    telling = [probe.name for probe in probes if tells_loss(probe)] or [PROBE.name]
    others = [name for name in request.probes if name not in telling]
    return structs.replace(request, probes=(*telling, *others))


def pairs_to_extend(verdict: Verdict) -> dict[Pair, int]:
    """
    The pairs to measure with further functions, each with its new number of functions.

    Those are open, measured below the limit, and smaller than the cache that is
    recommended so far; at most `MOST_PAIRS`, those that need the fewest functions. The
    number of each is doubled. The reference comes first, where it has fewer than they
    will have. Empty if no pair can be decided.
    """
    ends = FURTHER.unit_ends(verdict.run.setup)
    counts = {
        record.pair: FURTHER.units(record)
        for record in verdict.run.records
        if record.probe == PROBE.name and record.has_numbers
    }
    chosen = verdict.standing(verdict.chosen) if verdict.chosen else None
    largest = cache_size(chosen) if chosen else 1.0
    needed: dict[Pair, tuple[int, int]] = {}
    for standing in verdict.compared:
        row = standing.row(FURTHER.metric)
        if (
            row is None
            or standing.word is not Decision.OPEN
            or row.word is not Decision.OPEN
        ):
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
        goals = {
            p: goal for p, goal in pairs_to_extend(verdict).items() if p not in failed
        }
        if not goals or is_over(verdict.run):
            return list(failed.values())
        with show(goals) as tell:
            for pair, goal in goals.items():
                record = runner.extend(PROBE, pair, goal, tell=tell)
                if not record.has_numbers or FURTHER.units(record) < goal:
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
        looks = FURTHER.look(record, setup)
    if not looks:
        return 0.0
    times, first = FURTHER.times(record), FURTHER.unit_ends(setup)[0]
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
    times = FURTHER.times(record)
    known = len(times.units)
    function_s = math.fsum(times.units) / max(known, 1)
    return _reading_s(record, times) + (goal - known) * function_s


def _reading_s(record: CellRecord, times: Times) -> float:
    """Seconds of one server of *record* without its questions."""
    if times.text_s is not None:
        return times.text_s
    return max(record.phases.total_s - times.questions_s, 0.0) / times.servers


# --- the steps of a sweep that decides


@dataclass(frozen=True, slots=True)
class Cost:
    """What the cells of a probe take, in seconds."""

    server_s: float  # one server with its text, before the first question
    function_s: float = 0.0  # a function; 0 where every pair is asked the same
    ends: tuple[int, ...] = ()
    """
    Numbers of functions behind which the text is read again, in any case; empty if a
    server reads it once.
    """

    def of(self, functions: int, known: int = 0) -> float:
        """Seconds until it has so many *functions*, if so many are *known*."""
        texts = 1 + sum(known < end < functions for end in self.ends)
        return texts * self.server_s + (functions - known) * self.function_s


def cost_of(record: CellRecord, setup: Setup) -> Cost:
    """What a cell like that of *record*, under *setup*, takes."""
    if record.probe != PROBE.name or not FURTHER.units(record):
        return Cost(record.phases.total_s)
    times = FURTHER.times(record)
    function_s = math.fsum(times.units) / len(times.units)
    ends = FURTHER.unit_ends(setup) if times.text_s is not None else ()
    return Cost(_reading_s(record, times), function_s, tuple(ends))


def first_look(
    ends: Sequence[int],
    cost: Cost,
    *,
    cells: int,
    spent_s: float,
    most_s: float = FIRST_ANSWER_S,
) -> int:
    """
    Which of *ends*, numbers of functions, is that of the first step.

    The largest with which all *cells* of that step, after *spent_s* for the reference,
    take no more than *most_s*; the first of them if none does.
    """
    left_s = most_s - spent_s
    fitting = [at for at, end in enumerate(ends) if cells * cost.of(end) <= left_s]
    return max(fitting, default=0)


def fix_order(
    runner: Runner,
    reference: Pair,
    pairs: Iterable[Pair],
    *,
    most_s: float = FIRST_ANSWER_S,
) -> Order:
    """
    The order of the run, which is stored before a pair beside the reference is.

    One that the run folder has stays as it is; pairs that may be measured since are
    added to it, and share in the error.

    Args:
        runner: With the finished *reference* in its store.
        reference: The pair that all others are compared with.
        pairs: Those that may be measured.
        most_s: As of `first_look`.
    """
    run = runner.read()
    stored, wanted = order_in(run.setup), [str(p) for p in pairs if p != reference]
    if stored is not None and {*wanted} <= {*stored.pairs}:
        return stored
    if stored is None:
        stored = _new_order(run, reference, wanted, most_s)
    order = replace(stored, pairs=tuple(dict.fromkeys((*stored.pairs, *wanted))))
    runner.store.calibrate(ordering.NAME, as_json(order))
    runner.add_calibration({ordering.NAME: as_json(order)})
    return order


def _new_order(run: Run, reference: Pair, pairs: Sequence[str], most_s: float) -> Order:
    """The order of a *run* that has none; of one that has other pairs, from look 0."""
    ends = [*FURTHER.unit_ends(run.setup)] if PROBE.name in run.setup.probes else []
    own = next((r for r in run.records if _is_asked(r) and r.pair == reference), None)
    at, order = 0, Order(pairs=tuple(pairs), looks=tuple(ends))
    if ends and own and all(r.pair == reference for r in run.records if _is_asked(r)):
        # The reference is asked for as many as the others.
        at = first_look(
            ends,
            cost_of(own, run.setup),
            cells=1 + len(order.first),
            spent_s=own.phases.total_s,
            most_s=most_s,
        )
    return replace(order, looks=tuple(ends[at:]), skipped=at)


def _is_asked(record: CellRecord) -> bool:
    return record.probe == PROBE.name and record.has_numbers


@dataclass(frozen=True, slots=True)
class NextStep:
    """What is measured next."""

    asked: Asked  # of which pairs, and why
    goals: Mapping[Pair, int]
    """
    By pair that has numbers, how many functions it has afterwards; the reference first,
    where it has fewer than the others will have.
    """

    time_s: float  # seconds that it takes, about; NaN where nothing is known

    @property
    def new(self) -> tuple[Pair, ...]:
        """The pairs that have no numbers yet."""
        return tuple(pair for pair in self.asked.pairs if pair not in self.goals)

    @property
    def shorter(self) -> "NextStep | None":
        """The same with one pair less; None of a single pair."""
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
    order = order_in(verdict.run.setup)
    if order is None:
        return None
    if not may_continue:
        order = replace(order, looks=order.looks[:1])
    seen = _seen(verdict, probes)
    if seen and verdict.silent and not any(each.rows for each in verdict.standings):
        # Nothing that is measured has a say: no further pair changes that.
        return None
    seen |= {p: replace(each, needed=None) for p, each in seen.items() if p in failed}
    asked = next_asked(order, seen, verdict.reference)
    if asked is None:
        return None
    known = {r.pair: FURTHER.units(r) for r in verdict.run.records if _is_asked(r)}
    every = [*([verdict.reference] if verdict.reference else []), *asked.pairs]
    has = {pair: known[pair] for pair in every if pair in known}
    goals = {pair: asked.goal for pair, count in has.items() if count < asked.goal}
    return NextStep(asked, goals, _step_s(verdict, probes, asked, goals, known))


def _step_s(
    verdict: Verdict,
    probes: Sequence[str],
    asked: Asked,
    goals: Mapping[Pair, int],
    known: Mapping[Pair, int],
) -> float:
    """Seconds of a step, by what the reference or the pair itself has taken."""
    records = {(r.pair, r.probe): r for r in verdict.run.records if r.has_numbers}
    total = 0.0
    for pair, goal in goals.items():
        cost = cost_of(records[pair, PROBE.name], verdict.run.setup)
        total += cost.of(goal, known[pair])
    for pair in asked.pairs:
        if pair in goals:
            continue
        for probe in probes:
            like = verdict.reference and records.get((verdict.reference, probe))
            setup = verdict.run.setup
            total += cost_of(like, setup).of(asked.goal) if like else math.nan
    return total


def _seen(verdict: Verdict, probes: Sequence[str]) -> dict[Pair, Seen]:
    """What was measured of each pair by all *probes*, or failed."""
    tried = {
        (record.pair, record.probe): record
        for record in verdict.run.records
        if record.status is not Status.INTERRUPTED
    }
    seen = {}
    for standing in verdict.standings:
        pair = standing.pair
        if pair == verdict.reference or any((pair, p) not in tried for p in probes):
            continue
        row = standing.row(FURTHER.metric)
        asked = tried.get((pair, PROBE.name))
        seen[pair] = Seen(
            word=standing.word,
            units=FURTHER.units(asked) if asked and asked.has_numbers else 0,
            needed=row.needed if row and not row.remark else None,
            is_below=row is not None and row.bounds.mean < row.limit,
        )
    return seen


# --- before the first cell


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step as a plan tells it."""

    what: str  # what it does, as a phrase
    read: int  # tokens that are read
    forced: int  # tokens that are written or forced one after the other
    time_s: float | None  # seconds that it takes, about; None if nothing is known


def planned_steps(plan: Plan) -> list[PlannedStep]:
    """
    What a sweep that decides does, as far as no outcome changes it.

    The reference, the pairs of the first step, then what each further pair takes, and
    each that is asked for more functions; at last the reference once more.
    """
    return [*_planned_steps(plan)]


def _planned_steps(plan: Plan) -> Iterator[PlannedStep]:
    reference, *others = plan.order(plan.probes[0])
    order = Order(pairs=tuple(map(str, others)))
    ends, cost = plan_looks(plan), planned_cost(plan)
    at = 0
    if cost and ends:
        cells = 1 + len(order.first)
        spent_s = _planned_cells(plan, ends[0], is_first=True)[2] or 0.0
        at = first_look(ends, cost, cells=cells, spent_s=spent_s)
    look = ends[at] if ends else 0
    each = f", {plural(look, 'function')} each" if look else ""
    yield _planned(plan, f"{reference}, the reference", 1, look, is_first=True)
    if order.first:
        names = ", ".join(map(str, order.first))
        yield _planned(plan, f"the first answer: {names}{each}", len(order.first), look)
    left = len(others) - len(order.first)
    if left > 0:
        what = f"then pair by pair, smaller than what is within: {left} at most"
        yield _planned(plan, f"{what}; of each", 1, look)
    if ends[at + 1 :]:
        further, known = ends[at + 1], look
        what = f"an open pair and the reference, {further} functions instead of {known}"
        yield _planned(plan, what, 2, further - known)
    if lead := _lead(plan):
        what = f"the pair to set, {lead.phrase} for a check"
        yield PlannedStep(
            what=what,
            read=sum(lead.texts),
            forced=lead.written,
            time_s=plan.time_of(lead),
        )
    if plan.repeated(plan.probes[0]):
        yield _planned(plan, f"{reference} once more", 1, plan_first(ends))


def _lead(plan: Plan) -> Work | None:
    """What the reference takes beside all others, and the pair to set takes again."""
    works = (plan.work(probe) for probe in plan.probes if probe is PROBE)
    return next((work.first for work in works if work), None)


def plan_first(ends: Sequence[int]) -> int:
    """Functions that every sweep asks for, of *ends*."""
    return ends[0] if ends else 0


def plan_looks(plan: Plan) -> list[int]:
    """As `Further.unit_ends`, by an estimate where no function was counted yet."""
    setup = plan.store.intact_setup()
    if setup and PROBE.name in setup.probes:
        return [*FURTHER.unit_ends(setup)]
    chosen, outlook = plan.request.chosen(PROBE.name, RecallSettings), plan.outlook
    if PROBE not in plan.probes or Ask.FORCED not in chosen.parts:
        return []
    functions = math.floor(
        outlook.share * len(outlook.corpus.of_length(chosen.line_count))
    )
    choice = planned_choice(chosen, outlook)
    first = (choice and choice.functions) or chosen.function_count
    return block_ends(first, min(functions, LIMIT)) if functions else []


def planned_cost(plan: Plan) -> Cost | None:
    """What a cell takes by the pace of *plan*; None if nothing is known."""
    ends = plan_looks(plan)
    one = _planned_cells(plan, 0)[2]
    more = _planned_cells(plan, plan_first(ends))[2]
    if one is None or more is None:
        return None
    function_s = (more - one) / max(plan_first(ends), 1)
    settings = plan.request.chosen(PROBE.name, RecallSettings)
    choice = planned_choice(settings, plan.outlook)
    is_read = (choice or with_choice(settings, plan.outlook.setup)).by is By.READING
    return Cost(one, function_s, tuple(ends) if is_read else ())


def _planned(
    plan: Plan, what: str, cells: int, functions: int, *, is_first: bool = False
) -> PlannedStep:
    read, forced, time_s = _planned_cells(plan, functions, is_first=is_first)
    return PlannedStep(
        what=what,
        read=cells * read,
        forced=cells * forced,
        time_s=None if time_s is None else cells * time_s,
    )


def _planned_cells(
    plan: Plan, functions: int, *, is_first: bool = False
) -> tuple[int, int, float | None]:
    """Tokens read and forced of one cell of each probe with losses, and its seconds."""
    read, forced, times = 0, 0, []
    for probe in plan.probes:
        if tells_loss(probe):
            count = functions if probe is PROBE else None
            work = plan.work(probe, functions=count)
            lead = work.first if work and is_first else None
            for each in filter(None, (work, lead)):
                read += sum(each.texts)
                forced += each.written
            times.append(plan.cell_s(probe, functions=count, is_first=is_first))
    known = [each for each in times if each is not None]
    return read, forced, math.fsum(known) if len(known) == len(times) else None
