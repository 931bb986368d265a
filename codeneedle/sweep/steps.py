"""
For how many functions the first step of a sweep that decides asks, by five minutes; the
order that is stored before it; and the steps that a plan tells.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from codeneedle.cache_types import Pair
from codeneedle.engines.pace import Price
from codeneedle.probes import PROBES
from codeneedle.records.record import Run, as_json
from codeneedle.sweep.contexts import FIRST_ANSWER_S
from codeneedle.sweep.plan import Plan, PlannedStep
from codeneedle.sweep.runner import Runner
from codeneedle.sweep.running_order import measurable_pairs, pair_to_repeat
from codeneedle.text import plural
from codeneedle.verdict.asking_order import Order, stored_asking_order
from codeneedle.verdict.next import (
    FURTHER,
    PROBE,
    expected_cell_s,
    is_extendable,
)


def first_look_index(
    ends: Sequence[int],
    cell_s: Callable[[int], float],
    *,
    cells: int,
    spent_s: float,
    most_s: float = FIRST_ANSWER_S,
) -> int:
    """
    The index in *ends*, numbers of functions, of the first step.

    The largest with which all *cells* of that step, of *cell_s* seconds each, after
    *spent_s* for the reference, take no more than *most_s*; the first if none does.
    """
    left_s = most_s - spent_s
    fitting = [at for at, end in enumerate(ends) if cells * cell_s(end) <= left_s]
    return max(fitting, default=0)


def first_step_limit_s(plan: Plan) -> float:
    """
    What the first step may take, in seconds.

    0 where the user says of how many functions it is.
    """
    named = getattr(plan.kept.settings_of(PROBE), FURTHER.setting)
    return FIRST_ANSWER_S if named is None else 0.0


def fix_and_store_order(
    runner: Runner,
    reference: Pair,
    pairs: Iterable[Pair],
    *,
    unborne: tuple[str, ...] = (),
    most_s: float = FIRST_ANSWER_S,
) -> Order:
    """
    Fix and store the order of the run, before a pair beside *reference* is measured.

    One that the run folder has stays as it is; pairs that may be measured since are
    added to it, and share in the error.

    Args:
        runner: With the finished *reference* in its store.
        reference: The pair that all others are compared with.
        pairs: Those that may be measured.
        unborne: Types of K that are predicted to lose more than is allowed.
        most_s: See `first_look_index`.
    """
    run = runner.read_run_and_calibration()
    stored = stored_asking_order(run.setup)
    wanted = [str(pair) for pair in pairs if pair != reference]
    if stored is not None and {*wanted} <= {*stored.pairs}:
        return stored
    if stored is None:
        new = Order(pairs=tuple(wanted), unborne=unborne)
        stored = _with_looks(new, run, reference, most_s)
    return _store_extended_order(runner, stored, wanted)


def adopt_and_store_order(
    runner: Runner, order: Order, pairs: Iterable[Pair], unborne: tuple[str, ...] = ()
) -> Order:
    """
    Store for the run of *runner* an order with the numbers of functions of *order*.

    For runs that are judged together; one that the folder has keeps its own numbers.

    Args:
        runner: Of a run beside that of the reference.
        order: That of the run with the reference.
        pairs: Those that may be measured.
        unborne: Types of K that the weights of this run are predicted not to bear.
    """
    stored = stored_asking_order(runner.read_run_and_calibration().setup)
    stored = stored or replace(order, pairs=(), unborne=unborne)
    return _store_extended_order(runner, stored, [str(pair) for pair in pairs])


def _store_extended_order(
    runner: Runner, stored: Order, wanted: Sequence[str]
) -> Order:
    """
    Store *stored* with the pairs that are *wanted* behind its own.

    The setup of the runner has it from then on.
    """
    order = replace(stored, pairs=tuple(dict.fromkeys((*stored.pairs, *wanted))))
    runner.store.store_order(as_json(order))
    setup = replace(runner.run.setup, order=as_json(order))
    runner.run = replace(runner.run, setup=setup)
    return order


def _with_looks(order: Order, run: Run, reference: Pair, most_s: float) -> Order:
    """
    A new *order* with its looks; of a *run* that has other pairs, from look 0.

    Else from the look that is likely to come in *most_s* seconds.
    """
    has_looks = PROBE.name in run.setup.probes
    ends = [*FURTHER.units_at_looks(run.setup)] if has_looks else []
    measured = [record for record in run.records if is_extendable(record)]
    own = next((record for record in measured if record.pair == reference), None)
    at = 0
    if ends and own and all(record.pair == reference for record in measured):
        # The reference is asked for as many as the others.
        cells = 1 + len(order.first_step_pairs)
        others_s = _seconds_of_other_probes(run, reference)
        at = first_look_index(
            ends,
            functools.partial(expected_cell_s, own, run.setup),
            cells=cells,
            spent_s=own.phases.total_from_launch_s + cells * others_s,
            most_s=most_s,
        )
    return replace(order, looks=tuple(ends[at:]), skipped=at)


def _seconds_of_other_probes(run: Run, pair: Pair) -> float:
    """What *pair* took for losses of which no more is asked than every pair is."""
    return math.fsum(
        record.phases.total_from_launch_s
        for record in run.records
        if record.pair == pair and record.has_numbers and not is_extendable(record)
        if PROBES[record.probe].has_loss_metric
    )


# --- before the first cell


def with_steps(plan: Plan) -> Plan:
    """
    *plan* with its steps, if it decides, as far as no outcome changes them.

    The reference, the pairs of the first step, then what each further pair takes, and
    each that is asked for more functions; at last the reference once more.
    """
    return (
        replace(plan, steps=(*_planned_steps(plan),)) if plan.request.decide else plan
    )


def _planned_steps(plan: Plan) -> Iterator[PlannedStep]:
    """The steps that `with_steps` says, in the order in which they come."""
    reference, *others = measurable_pairs(plan)
    order = Order(pairs=tuple(map(str, others)), unborne=plan.unborne_types)
    ends = planned_functions_at_looks(plan)
    at = _planned_first_look_index(plan, ends, cells=1 + len(order.first_step_pairs))
    look = ends[at] if ends else 0
    functions = f", {plural(look, 'function')} each" if look else ""
    yield _planned_step(plan, f"{reference}, the reference", 1, look)
    if order.first_step_pairs:
        names = ", ".join(map(str, order.first_step_pairs))
        yield _planned_step(
            plan,
            f"the first answer: {names}{functions}",
            len(order.first_step_pairs),
            look,
        )
    left = len(others) - len(order.first_step_pairs)
    if left > 0:
        what = f"then pair by pair, smaller than what is within: {left} at most"
        yield _planned_step(plan, f"{what}; of each", 1, look)
    if ends[at + 1 :]:
        further, known = ends[at + 1], look
        what = f"an open pair and the reference, {further} functions instead of {known}"
        yield _planned_step(plan, what, 2, further - known)
    if PROBE in plan.probes and (check := plan.bill_of_check(PROBE)):
        what = f"the reference and the pair to set, {check.phrase} for a check"
        yield PlannedStep(what=what, price=check.price * 2)
    if pair_to_repeat(plan, plan.probes[0]):
        yield _planned_step(
            plan, f"{reference} once more", 1, initial_function_count(ends)
        )


def initial_function_count(ends: Sequence[int]) -> int:
    """Functions that every sweep asks for: the first of *ends*; 0 without any."""
    return ends[0] if ends else 0


def planned_functions_at_looks(plan: Plan) -> list[int]:
    """
    Numbers of functions after which a pair is judged; empty where none are asked for.

    By an estimate before any count.
    """
    setup = plan.store.read_intact_setup()
    if setup and PROBE.name in setup.probes:
        return [*FURTHER.units_at_looks(setup)]
    if PROBE not in plan.probes:
        return []
    settings = plan.request.settings_of(PROBE)
    return [*FURTHER.planned_units_at_looks(settings, plan.estimates)]


def _planned_first_look_index(plan: Plan, ends: Sequence[int], *, cells: int) -> int:
    """
    The index in *ends* of the first step, by an estimate.

    0 if the time of one is unknown, and without *ends*.
    """
    times = {end: plan.seconds_of_price(_planned_cell_price(plan, end)) for end in ends}
    known = {end: time_s for end, time_s in times.items() if time_s is not None}
    if not ends or len(known) < len(ends):
        return 0
    return first_look_index(
        ends,
        known.__getitem__,
        cells=cells,
        spent_s=known[ends[0]],
        most_s=first_step_limit_s(plan),
    )


def _planned_step(plan: Plan, what: str, cells: int, functions: int) -> PlannedStep:
    """
    A step of so many *cells*, each asked for *functions*.

    It has no price if that is unknown.
    """
    price = _planned_cell_price(plan, functions)
    return PlannedStep(what=what, price=None if price is None else price * cells)


def _planned_cell_price(plan: Plan, functions: int) -> Price | None:
    """What a pair takes by all probes with losses; None if that is unknown of one."""
    price = Price()
    for probe in (p for p in plan.probes if p.has_loss_metric):
        bill = plan.bill(probe, functions=functions if probe is PROBE else None)
        if bill is None:
            return None
        price += bill.price
    return price
