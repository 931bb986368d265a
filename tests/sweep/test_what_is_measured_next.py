"""What a sweep measures next, by what was measured so far."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from made_losses import (
    BEYOND,
    OPEN,
    WITHIN,
    diverging,
    losing,
    losing_setup,
    repeated,
    text_read,
)
from made_records import asking_recall, failed_record
from made_verdicts import BELOW, evaluation, without_kernel

from codeneedle.cache_types import Pair
from codeneedle.probes import PROBES
from codeneedle.records.record import (
    CellRecord,
    Key,
    Run,
    Setup,
    Status,
    key_of,
)
from codeneedle.sweep import schedule
from codeneedle.sweep.measure import TimeLimit
from codeneedle.sweep.schedule import (
    JudgedTask,
    Stage,
    Taken,
    Task,
    Variant,
    Wanted,
    is_short_of_task,
    next_task,
)
from codeneedle.verdict.asking_order import StepTarget, Why
from codeneedle.verdict.judge import judge
from codeneedle.verdict.next import NextStep
from codeneedle.verdict.trust import trusted_run

NAMES = ("bf16/bf16", "q8_0/q8_0", "q4_0/q4_0")
PAIRS = WHOLE, GOOD, BAD = tuple(map(Pair.parse, NAMES))
RECALL = PROBES["recall"]
GRID = Wanted(probes=(RECALL,), pairs=PAIRS)
DECIDING = replace(GRID, decides=True, repeats=frozenset({"recall"}))
NOTHING = (0.0,) * 64


def setup_of(*, forced: int = 16, way: str = "force", decides: bool = False) -> Setup:
    """A run of these pairs, of whose functions 16 are asked of each."""
    setup = losing_setup(NAMES, forced=forced, functions=16)
    asked = {"way": [way], "functions": 16, "lines": 5}
    order = {"pairs": list(NAMES[1:]), "looks": [16, 32, 64][: forced // 16]}
    return replace(asking_recall(setup, asked), order=order if decides else {})


def run_of(
    losses: Mapping[Pair, Sequence[float]], setup: Setup, *more: CellRecord
) -> Run:
    """What was measured of some pairs."""
    records = tuple(losing(setup, str(pair), each) for pair, each in losses.items())
    run = Run(name="made", setup=setup, records=())
    return trusted_run(run.with_every_record((*records, *more)))


def next_of(
    run: Run,
    wanted: Wanted = GRID,
    taken: Taken | None = None,
    left_s: float = math.inf,
) -> Task | None:
    """What is next in *run*."""
    verdict = judge(run)
    return next_task(run, wanted, verdict, taken or Taken(), left_s=left_s)


def seen(task: Task | None) -> tuple[object, ...] | None:
    """What tells *task* from others, in short."""
    if task is None:
        return None
    pairs = " ".join(map(str, task.pairs))
    return (pairs, str(task.variant or task.stage), task.units)


ALL = {WHOLE: NOTHING[:16], GOOD: WITHIN, BAD: BEYOND}
EVERY = " ".join(NAMES)


# A grid


def test_a_grid_asks_every_pair_until_all_have_whole_records() -> None:
    setup = setup_of()
    part = dict(list(ALL.items())[:2])
    cut = replace(losing(setup, "q4_0/q4_0", BEYOND), status=Status.INTERRUPTED)
    grid = (EVERY, "grid", None)

    assert [grid, grid, grid, None] == [
        seen(next_of(run_of(losses, setup, *more)))
        for losses, more in (({}, ()), (part, ()), (part, (cut,)), (ALL, ()))
    ]


def test_cells_that_failed_are_measured_again_once_where_that_is_asked_for() -> None:
    setup = setup_of()
    gap = replace(
        losing(setup, "q4_0/q4_0", BEYOND), status=Status.CRASHED, observation=None
    )
    run = run_of({WHOLE: NOTHING[:16], GOOD: WITHIN}, setup, gap)
    again = replace(GRID, retries=True)
    task = next_of(run, again)

    assert next_of(run) is None
    assert (EVERY, "grid", None) == seen(task)
    assert task is not None
    assert next_of(run, again, Taken(tasks={task})) is None


def test_a_probe_without_anything_to_lose_is_left_out() -> None:
    assert next_of(run_of({}, setup_of()), taken=Taken(silent={"recall"})) is None


def open_run(**counts: int) -> Run:
    """A pair is open; so many functions are known of the reference and of it."""
    setup = setup_of(forced=64)
    known = {WHOLE: counts.get("whole", 16), GOOD: counts.get("good", 16)}
    losses = {
        WHOLE: NOTHING[: known[WHOLE]],
        GOOD: (OPEN * 4)[: known[GOOD]],
        BAD: BEYOND,
    }
    return run_of(losses, setup)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, ("bf16/bf16", "further", 32)),
        ({"whole": 32}, ("q8_0/q8_0", "further", 32)),
        ({"whole": 32, "good": 32}, ("bf16/bf16", "further", 64)),
    ],
)
def test_open_pairs_are_asked_for_more_behind_the_reference(
    counts: Mapping[str, int], expected: tuple[object, ...]
) -> None:
    always = replace(GRID, more=True)

    assert expected == seen(next_of(open_run(**counts), always))
    assert next_of(open_run(**counts), replace(always, may_extend=False)) is None
    failed = Taken(failed={WHOLE, GOOD})
    assert next_of(open_run(**counts), always, failed) is None


@pytest.mark.parametrize(
    ("share", "goes_on"), [(0.33, True), (1 / 3, False), (0.34, False)]
)
def test_unless_asked_for_further_functions_take_a_third_of_the_other_time(
    monkeypatch: pytest.MonkeyPatch, share: float, *, goes_on: bool
) -> None:
    monkeypatch.setattr(schedule, "further_time_ratio", lambda _run: share)

    assert goes_on == (next_of(open_run()) is not None)
    assert next_of(open_run(), replace(GRID, more=True)) is not None


def test_the_reference_is_measured_once_more_behind_all_others() -> None:
    wanted, setup = replace(GRID, repeats=frozenset({"recall"})), setup_of()
    again = repeated(losing(setup, "bf16/bf16", NOTHING[:16]))

    assert ("bf16/bf16", "again", None) == seen(next_of(run_of(ALL, setup), wanted))
    assert next_of(run_of(ALL, setup, again), wanted) is None
    alone = replace(wanted, pairs=(WHOLE,))
    assert next_of(run_of({WHOLE: NOTHING[:16]}, setup), alone) is None


def test_a_reference_with_which_one_pair_is_compared_is_measured_once_more() -> None:
    setup = setup_of()
    wanted = replace(GRID, pairs=(WHOLE, GOOD), repeats=frozenset({"recall"}))
    alone, both = {WHOLE: NOTHING[:16]}, {WHOLE: NOTHING[:16], GOOD: WITHIN}

    assert ("bf16/bf16", "again", None) == seen(next_of(run_of(both, setup), wanted))
    only = replace(wanted, pairs=(WHOLE,))
    assert next_of(run_of(alone, setup), only) is None


def test_the_reference_goes_to_the_cpu_where_some_pairs_ran_there() -> None:
    run = without_kernel(run_of(ALL, setup_of()), "q4_0/q4_0")
    wanted = replace(GRID, can_be_on_cpu=lambda _pair: True)

    assert ("bf16/bf16", "on-cpu", None) == seen(next_of(run, wanted))
    assert next_of(run) is None
    assert next_of(run_of(ALL, setup_of()), wanted) is None


def test_the_reference_is_measured_on_each_other_kind_of_device() -> None:
    setup = setup_of()
    devices = ("L4, 1 thread", "A1, 1 thread")
    records = [
        replace(losing(setup, str(pair), losses), device=devices[0])
        for pair, losses in ALL.items()
    ]
    task = next_of(run_of({}, setup, *records), replace(GRID, devices=devices))

    assert ("bf16/bf16", "elsewhere", None) == seen(task)
    assert task is not None
    assert ("on-a1", devices[1]) == (task.record_variant, task.device)


def as_read(record: CellRecord, *, is_checked: bool) -> CellRecord:
    """*record*, whose lines were forced, as if they had been read; or both."""
    forced = (record.observation or {})["answers"]
    read = {key.replace("forced ", "read made "): each for key, each in forced.items()}
    answers = {**forced, **read} if is_checked else read
    return replace(
        record, observation={**(record.observation or {}), "answers": answers}
    )


@pytest.mark.parametrize(
    ("is_checked", "expected"),
    [(False, ("bf16/bf16 q8_0/q8_0", "check", None)), (True, None)],
)
def test_the_pair_to_set_and_the_reference_are_checked_once_where_lines_were_read(
    is_checked: bool, expected: tuple[object, ...] | None
) -> None:
    """Whatever other probes have measured of them."""
    forced = run_of(ALL, setup_of()).records
    read = [as_read(record, is_checked=is_checked) for record in forced]
    run = run_of({}, setup_of(way="read"), *read, diverging("bf16/bf16", [0.0] * 8))

    assert expected == seen(next_of(run))


def test_pairs_without_a_kernel_are_measured_last() -> None:
    wanted, setup = replace(GRID, without_kernel=frozenset({BAD})), setup_of()
    part = {WHOLE: NOTHING[:16], GOOD: WITHIN}

    assert [
        ("bf16/bf16 q8_0/q8_0", "grid", None),
        (EVERY, "without kernel", None),
        None,
    ] == [seen(next_of(run_of(losses, setup), wanted)) for losses in ({}, part, ALL)]


def test_an_evaluation_is_not_repeated_on_the_cpu_where_some_pairs_ran_there() -> None:
    """Its intervals have the noise of sampling already."""
    run = without_kernel(evaluation(20, {"q8_0/q8_0": 11}), "q8_0/q8_0")
    wanted = Wanted(
        probes=(PROBES["eval"],), pairs=run.setup.grid, can_be_on_cpu=lambda _pair: True
    )

    assert next_of(run, wanted) is None


@pytest.mark.parametrize(
    ("units", "is_short"), [(None, False), (16, False), (17, True)]
)
def test_a_record_is_short_of_a_task_for_more_functions_than_it_has(
    units: int | None, *, is_short: bool
) -> None:
    setup = setup_of(forced=32)
    task = Task(probe="recall", pairs=(GOOD,), units=units, is_further=True)
    gap = failed_record(NAMES[1])

    assert is_short == is_short_of_task(losing(setup, NAMES[1], WITHIN), task, setup)
    assert is_short_of_task(gap, task, setup)


def test_only_further_functions_and_checks_ask_a_pair_that_has_numbers() -> None:
    plain = next_of(run_of({}, setup_of()))
    further = next_of(open_run(), replace(GRID, more=True))
    check = Task(probe="recall", pairs=(GOOD,), variant=Variant.CHECK)

    assert [False, True, True] == [
        each is not None and each.is_extension_or_check
        for each in (plain, further, check)
    ]


# A sweep that decides


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({}, ("bf16/bf16", "grid", 16)),
        ({WHOLE: NOTHING[:16]}, (EVERY, "step", 16)),
        ({WHOLE: NOTHING[:16], GOOD: WITHIN}, (EVERY, "step", 16)),
        (ALL, ("bf16/bf16", "again", None)),
    ],
)
def test_a_sweep_that_decides_goes_step_by_step(
    losses: Mapping[Pair, Sequence[float]], expected: tuple[object, ...]
) -> None:
    setup = setup_of(decides=True)

    assert expected == seen(next_of(run_of(losses, setup), DECIDING))


def test_before_its_order_is_fixed_the_reference_alone_is_asked() -> None:
    setup = setup_of()

    assert ("bf16/bf16", "grid", None) == seen(next_of(run_of({}, setup), DECIDING))
    assert next_of(run_of({WHOLE: NOTHING[:16]}, setup), DECIDING) is None


def test_the_next_pair_is_the_reference_where_the_most_precise_one_fails() -> None:
    setup = setup_of(decides=True)
    gap = replace(
        losing(setup, "bf16/bf16", NOTHING[:16]),
        status=Status.CRASHED,
        observation=None,
    )

    assert ("q8_0/q8_0", "grid", 16) == seen(next_of(run_of({}, setup, gap), DECIDING))


def test_a_probe_that_failed_on_the_reference_is_tried_again_once() -> None:
    setup, telling = setup_of(decides=True), (RECALL, PROBES["divergence"])
    wanted = replace(DECIDING, probes=telling, retries=True)
    gap = replace(failed_record(NAMES[0]), probe="divergence")
    run = run_of({WHOLE: NOTHING[:16]}, setup, gap)
    again = next_of(run, wanted)
    assert again is not None

    assert ("divergence", (WHOLE,)) == (again.probe, again.pairs)
    assert (EVERY, "step", 16) == seen(next_of(run, wanted, Taken(tasks={again})))


def test_a_step_of_open_pairs_begins_with_the_reference() -> None:
    setup = setup_of(forced=64, decides=True)
    losses = {WHOLE: NOTHING[:16], GOOD: BELOW, BAD: BEYOND}
    run = run_of(losses, setup)
    extended = run_of({**losses, WHOLE: NOTHING[:32]}, setup)

    assert ("bf16/bf16", "step", 32) == seen(next_of(run, DECIDING))
    assert ("q8_0/q8_0", "step", 32) == seen(next_of(extended, DECIDING))
    failed = Taken(failed={WHOLE})
    assert ("bf16/bf16", "again", None) == seen(next_of(run, DECIDING, failed))
    brief = replace(DECIDING, more=False)
    assert ("bf16/bf16", "again", None) == seen(next_of(run, brief))


def test_a_step_has_as_many_pairs_as_the_time_holds() -> None:
    setup = setup_of(decides=True)
    run = run_of({WHOLE: NOTHING[:16]}, setup)
    whole = next_of(run, DECIDING)
    assert whole is not None
    assert whole.step is not None
    one = next_of(run, DECIDING, left_s=0.75 * whole.step.time_s)

    assert ("bf16/bf16 q8_0/q8_0", "step", 16) == seen(one)
    assert whole == next_of(run, DECIDING, left_s=whole.step.time_s)


def test_other_probes_measure_what_was_asked_once_no_step_is_left() -> None:
    probes = (RECALL, PROBES["throughput"])
    wanted = replace(DECIDING, probes=probes)
    task = next_of(run_of(ALL, setup_of(decides=True)), wanted)

    assert task is not None
    assert ("throughput", {*PAIRS}) == (task.probe, {*task.pairs})


def test_a_pair_that_is_beyond_by_ordinary_text_is_not_asked_to_recall() -> None:
    setup, telling = setup_of(decides=True), (PROBES["divergence"], RECALL)
    read = [
        text_read(str(pair), [loss] * 8)
        for pair, loss in ((WHOLE, 0.0), (GOOD, 0.001), (BAD, 0.2))
    ]
    run = run_of({WHOLE: NOTHING[:16]}, setup, *read)
    task = next_of(run, replace(DECIDING, probes=telling))

    assert task is not None
    assert ("recall", (WHOLE, GOOD)) == (task.probe, task.pairs)


# Both


def cells(task: Task) -> Iterator[tuple[Pair, int]]:
    """What *task* measures, and up to how many functions."""
    for pair in task.pairs:
        yield pair, task.units or 16


BEHIND = replace(
    GRID,
    more=True,
    repeats=frozenset({"recall"}),
    can_be_on_cpu=lambda _pair: True,
    devices=("L4, 1 thread", "A1, 1 thread"),
)
"""A grid with all that is measured behind it."""


@pytest.mark.parametrize(
    ("wanted", "variants"),
    [
        (replace(GRID, more=True), set()),
        (DECIDING, {"again"}),
        (BEHIND, {"again", "on-cpu", "on-a1"}),
        (replace(BEHIND, decides=True), {"again", "on-cpu", "on-a1"}),
        (replace(DECIDING, retries=True), {"again"}),
    ],
    ids=["grid", "decides", "grid and behind", "decides and behind", "again once"],
)
def test_a_sweep_that_is_killed_behind_any_record_goes_on_with_the_same_task(
    wanted: Wanted, variants: set[str]
) -> None:
    setup = setup_of(forced=64, decides=wanted.decides)
    losses = {WHOLE: NOTHING, GOOD: BELOW * 4, BAD: BEYOND * 4}
    records: dict[Key, CellRecord] = {}
    taken, turns = Taken(), 0

    def stored() -> Run:
        run = Run(name="made", setup=setup, records=())
        run = trusted_run(run.with_every_record(tuple(records.values())))
        return without_kernel(run, "q4_0/q4_0") if wanted.devices else run

    while task := next_of(stored(), wanted, taken):
        assert task == next_of(stored(), wanted), "a fresh command"
        for pair, units in cells(task):
            assert task == next_of(stored(), wanted), "killed inside of it"
            known = records.get(Key(pair, "recall"))
            if known and not (task.is_further or task.variant):
                continue
            record = losing(setup, str(pair), losses[pair][:units])
            device = task.device or next(iter(wanted.devices), "")
            record = replace(record, variant=task.record_variant, device=device)
            records[key_of(record)] = record
            if next_of(stored(), wanted) != task:
                break
        taken.tasks.add(task)
        turns += 1

    assert turns > 2
    assert variants == {key.variant for key in records} - {""}
    assert next_of(stored(), wanted) is None
    assert Stage.GRID == Task(probe="recall", pairs=PAIRS).stage


@pytest.mark.parametrize(
    ("spent_s", "time_s", "may_begin"),
    [
        (0.0, 10.0, True),
        (0.0, 101.0, False),
        (0.0, math.nan, True),
        (0.0, None, True),
        (101.0, None, False),
    ],
)
def test_a_task_begins_if_its_step_ends_in_time_as_far_as_is_known(
    spent_s: float, time_s: float | None, *, may_begin: bool
) -> None:
    limit = TimeLimit(time.monotonic() - spent_s, 100.5)
    asked = StepTarget((GOOD,), 16, Why.SMALLER)
    step = None if time_s is None else NextStep(asked, {}, time_s)
    task = Task(probe="recall", pairs=(GOOD,), step=step)
    turn = JudgedTask(task, judge(run_of({}, setup_of())))

    assert may_begin == limit.allows(turn)
    assert TimeLimit(0.0).allows(turn)
