"""Which open pairs get further functions, how many, and until when."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import LONG, FakeEngine, forced_to
from made_losses import (
    BEYOND,
    OPEN,
    REFERENCE,
    WITHIN,
    diverging,
    losing,
    losing_run,
    losing_setup,
)
from made_plans import CORPUS, made_world, planned
from made_records import (
    asking_recall,
    forced_of,
    made_forced,
    made_record,
    made_setup,
    observed,
    sized,
    with_scores,
)
from msgspec import structs

from codeneedle.cache_types import Pair
from codeneedle.engines.pace import Pace
from codeneedle.errors import BadInput, CellError
from codeneedle.probes import PROBES
from codeneedle.probes.metrics import FUNCTIONS
from codeneedle.probes.recall.record import Recall, recall_of
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.probes.retrieval.metrics import TEXTS
from codeneedle.records.record import Phases, Run, Status
from codeneedle.report.captions import run_facts, setup_line
from codeneedle.sweep import schedule
from codeneedle.sweep.grid_shares import Share
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.request import (
    Execution,
    Request,
    named_and_implied_probes,
    refuse_decided_share,
)
from codeneedle.sweep.runner import CellStarted, Runner
from codeneedle.sweep.schedule import Schedule, Wanted, is_short_of_task
from codeneedle.sweep.steps import (
    adopt_and_store_order,
    first_look_index,
    first_step_limit_s,
    fix_and_store_order,
    with_steps,
)
from codeneedle.verdict.asking_order import (
    Order,
    StepTarget,
    Why,
    stored_asking_order,
)
from codeneedle.verdict.commands import how_to_decide_phrases, limit_options
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.next import (
    FURTHER,
    NextStep,
    expected_cell_s,
    further_time_ratio,
    next_step,
    pairs_to_extend,
    seconds_for_goals,
)

WHOLE, GOOD, BAD = Pair("f16", "f16"), Pair("q8_0", "q8_0"), Pair("q4_0", "q4_0")


def goals(losses, *, forced=96, asked=None, more=(), reference=16):
    """
    What `further` gives of a run, by pair as text.

    Args:
        losses: By pair, those of 16 functions; repeated for more.
        forced: Functions of the text.
        asked: By pair, how many functions were asked; 16 of others.
        more: Further records.
        reference: Functions of the reference.
    """
    setup = losing_setup([REFERENCE, *losses], forced=forced)
    records = [
        losing(setup, pair, (tuple(each) * 6)[: (asked or {}).get(pair, 16)])
        for pair, each in losses.items()
    ]
    run = losing_run({}, setup=setup, reference="")
    first = losing(setup, REFERENCE, [0.0] * reference)
    found = judge(replace(run, records=(first, *records, *more)))
    return {str(pair): goal for pair, goal in pairs_to_extend(found).items()}


# Which, and how many


def test_an_open_pair_is_doubled_and_the_reference_before_it():
    asked = goals({"q8_0/q8_0": OPEN})

    assert [(REFERENCE, 32), ("q8_0/q8_0", 32)] == list(asked.items())


def test_a_reference_that_has_as_many_is_not_asked():
    assert {"q8_0/q8_0": 32} == goals({"q8_0/q8_0": OPEN}, reference=32)


@pytest.mark.parametrize(("now", "then"), [(16, 32), (20, 32), (32, 64), (64, 96)])
def test_pairs_are_doubled_up_to_96(now, then):
    pair = "q8_0/q8_0"

    asked = goals({pair: OPEN}, asked={pair: now}, reference=96)

    assert {pair: then} == asked


def test_nothing_is_asked_beyond_96_functions_nor_beyond_the_text():
    pair = "q8_0/q8_0"

    assert {} == goals({pair: OPEN}, asked={pair: 96}, reference=96)
    assert {} == goals({pair: OPEN}, forced=16)
    assert {REFERENCE: 20, pair: 20} == goals({pair: OPEN}, forced=20)


def test_only_pairs_that_may_replace_the_recommended_one_are_asked():
    above = tuple(0.015 + each for each in OPEN)
    asked = goals(
        {
            "bf16/q8_0": OPEN,
            "q8_0/q8_0": WITHIN,
            "q8_0/q4_0": OPEN,
            "q4_0/q8_0": above,
            "q4_0/q4_0": BEYOND,
        }
    )

    assert {REFERENCE: 32, "q8_0/q4_0": 32} == asked


def test_a_pair_of_the_size_of_the_recommended_one_is_not_asked():
    assert {} == goals({"q8_0/q4_0": WITHIN, "q4_0/q8_0": OPEN})


def test_without_a_recommended_pair_all_that_are_smaller_are_asked():
    asked = goals({"bf16/q8_0": OPEN, "q8_0/q8_0": OPEN})

    assert {REFERENCE: 32, "bf16/q8_0": 32, "q8_0/q8_0": 32} == asked


def test_at_most_four_are_asked_those_that_need_the_fewest():
    pairs = ["bf16/q8_0", "q8_0/bf16", "q8_0/q8_0", "q8_0/q5_1", "q5_1/q5_1"]
    losses = {
        pair: [0.0005 * at + each for each in OPEN] for at, pair in enumerate(pairs)
    }

    asked = goals(dict(sorted(losses.items(), reverse=True)))

    assert [REFERENCE, *pairs[:4]] == list(asked)


def test_pairs_that_further_functions_cannot_decide_are_not_asked():
    setup = losing_setup([REFERENCE, "q8_0/q8_0", "q8_0/q4_0"], forced=96)
    bounded = losing(setup, "q8_0/q4_0", WITHIN, bounds=1)

    asked = goals({"q5_1/q5_1": [None, *OPEN[1:]]}, more=[bounded])
    klds = [diverging(REFERENCE, [1e-6] * 16), diverging("q8_0/q8_0", [0.0, 0.05] * 8)]
    by_kld = goals({"q8_0/q8_0": WITHIN}, more=klds)

    assert {} == asked
    assert {} == by_kld


def test_recall_that_is_open_beside_what_is_beyond_is_not_asked():
    klds = [diverging(REFERENCE, [1e-6] * 16), diverging("q8_0/q8_0", [0.3, 0.31] * 8)]

    assert {} == goals({"q8_0/q8_0": OPEN}, more=klds)


def test_recall_that_is_open_beside_another_metric_is_asked():
    klds = [diverging(REFERENCE, [1e-6] * 16), diverging("q8_0/q8_0", [0.01] * 16)]

    assert {REFERENCE: 32, "q8_0/q8_0": 32} == goals({"q8_0/q8_0": OPEN}, more=klds)


def test_written_recall_asks_for_no_more():
    setup = asking_recall(made_setup(forced=0), {"way": ["write"]})
    run = Run(name="made", setup=setup, records=(made_record("f16/f16", []),))

    assert {} == pairs_to_extend(judge(run))


# The loop


class World:
    """A run of a text of 40 functions on an engine that loses what a test wishes."""

    def __init__(self, folder, monkeypatch):
        made_world(folder, monkeypatch)
        many = CORPUS.replace("functions = 6", "functions = 40")
        Path("corpora", "many.toml").write_text(many, encoding="utf-8")
        self.engine = FakeEngine(stretches_context=True, force=self.force)
        self.plan = planned(
            corpus="many",
            contexts=(65536,),
            types=("f16", "q8_0", "q4_0"),
            recall=RecallSettings(way=(Way.FORCE,), functions=8, lines=5),
            engine=self.engine,
        )
        self.asked = []
        self.losses = {}
        self.failing = {}
        self.rounds = []

    def force(self, question, right):
        pair = self.engine.served[-1].pair
        number = sum(each == pair for each, _ in self.asked)
        if error := self.failing.pop((pair, number), None):
            return error
        self.asked.append((pair, right))
        loss = self.losses.get(pair, lambda _number: 0.0)(number)
        return forced_to(question, right, logprob=math.log(0.6 - loss), length=LONG)

    @property
    def store(self):
        return self.plan.store

    def runner(self, **changes):
        return Runner(
            run=prepare_run_and_store_setup(self.plan), store=self.store, **changes
        )

    def sweep(self, *pairs):
        self.runner().measure_pairs(self.plan.probes[0], pairs)

    def decide(self, is_over=lambda _run: False):
        """Ask open pairs for more; the records that fall short."""
        self.events, failed = [], []
        measured = tuple(r.pair for r in self.store.read_records("recall"))
        wanted = Wanted(probes=self.plan.probes[:1], pairs=measured, more=True)
        tasks = Schedule(runner=self.runner(), wanted=wanted, limits=Limits())
        for turn in tasks.fix_order_and_yield_tasks(lambda: math.inf):
            task, (pair,) = turn.task, turn.task.pairs
            if is_over(turn.verdict.run):
                break
            self.rounds.append((pair, task.units))
            record = tasks.runner.measure_further_units(
                PROBES["recall"], pair, task.units, tell=self.events.append
            )
            if is_short_of_task(record, task, tasks.runner.run.setup):
                tasks.exclude_from_further_units(pair)
                failed.append(record)
        return failed

    def functions(self, pair):
        return len(recall_of(self.store.read_record_if_there(pair, "recall")).forced)

    def decision(self, pair):
        return judge(self.runner().read_run_and_calibration()).decision(pair)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A run in which nothing was asked."""
    return World(tmp_path, monkeypatch)


def wavering(number):
    """A small loss, and much noise that is gone after the first eight functions."""
    return 0.002 + (0.02 * (-1) ** number if number < 8 else 0.0)


def noisy(number):
    """A loss below the limit that no 40 functions decide."""
    return 0.008 + 0.05 * (-1) ** number


def test_open_pairs_are_asked_until_they_are_decided(world):
    world.losses = {GOOD: wavering, BAD: lambda number: 0.3 + 0.01 * (-1) ** number}
    world.sweep(WHOLE, GOOD, BAD)
    assert ["open", "beyond"] == [world.decision(pair) for pair in (GOOD, BAD)]

    assert [] == world.decide()

    assert ["within", "beyond"] == [world.decision(pair) for pair in (GOOD, BAD)]
    assert [(WHOLE, 16), (GOOD, 16), (WHOLE, 32), (GOOD, 32)] == world.rounds[:4]
    assert [8, world.functions(WHOLE)] == [
        world.functions(pair) for pair in (BAD, GOOD)
    ]
    assert len(world.asked) == len(set(world.asked))
    started = [e.pair for e in world.events if isinstance(e, CellStarted)]
    assert [pair for pair, _ in world.rounds] == started
    before = len(world.asked)
    assert [] == world.decide()
    assert before == len(world.asked)


def test_pairs_that_nothing_decides_are_asked_for_the_whole_text(world):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)

    assert [] == world.decide()

    assert "open" == world.decision(GOOD)
    assert [16, 32, 40] == [units for pair, units in world.rounds if pair == GOOD]
    assert 40 == world.functions(GOOD) == world.functions(WHOLE)


def test_a_run_is_read_and_judged_once_a_turn(world, monkeypatch):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)
    calls = {"read": 0, "judge": 0}

    def counted(name, function):
        def called(*given):
            calls[name] += 1
            return function(*given)

        return called

    monkeypatch.setattr(schedule, "judge", counted("judge", schedule.judge))
    monkeypatch.setattr(
        Runner,
        "read_run_and_calibration",
        counted("read", Runner.read_run_and_calibration),
    )
    world.decide()

    turns = len(world.rounds) + 1
    assert (6 + 1, turns, turns) == (turns, calls["read"], calls["judge"])


def test_the_setup_is_the_same_to_the_byte_before_and_behind_the_reference(world):
    world.runner()
    setup = world.store.folder / "setup.json"
    before = setup.read_bytes()
    world.sweep(WHOLE, GOOD)

    assert before == setup.read_bytes()


def test_it_stops_between_servers_when_the_time_is_up(world):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)

    assert [] == world.decide(lambda _run: True)
    assert [] == world.rounds
    assert [] == world.decide(lambda _run: world.functions(WHOLE) > 8)

    assert (16, 8) == (world.functions(WHOLE), world.functions(GOOD))
    assert [] == world.decide(lambda _run: world.functions(GOOD) > 8)
    assert (16, 16) == (world.functions(WHOLE), world.functions(GOOD))


def test_a_pair_that_fails_is_left_as_it_was_and_the_others_go_on(world):
    other = Pair("q8_0", "q4_0")
    world.losses = {GOOD: noisy, other: noisy}
    world.sweep(WHOLE, GOOD, other)
    world.failing = {(GOOD, 12): CellError("it died", hint="Look.")}

    (failed,) = world.decide()

    assert (GOOD, Status.CRASHED, "it died") == (
        failed.pair,
        failed.status,
        failed.reason,
    )
    assert (12, 40) == (world.functions(GOOD), world.functions(other))
    assert Status.FINISHED is world.store.read_record_if_there(GOOD, "recall").status
    assert "open" == world.decision(GOOD)
    assert [] == world.decide()
    assert 40 == world.functions(GOOD)
    assert len(world.asked) == len(set(world.asked))


def test_a_reference_that_fails_ends_it(world):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)
    world.failing = {(WHOLE, 8): CellError("it died", hint="Look.")}

    failed = world.decide()

    assert WHOLE == failed[0].pair
    assert 1 == len(world.rounds)
    assert (8, 8) == (world.functions(WHOLE), world.functions(GOOD))


def test_an_interruption_leaves_what_was_answered(world):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)
    world.failing = {(GOOD, 12): KeyboardInterrupt()}

    with pytest.raises(KeyboardInterrupt):
        world.decide()

    assert (16, 12) == (world.functions(WHOLE), world.functions(GOOD))
    assert world.store.read_record_if_there(GOOD, "recall").has_numbers
    world.decide()
    assert 40 == world.functions(GOOD)
    assert len(world.asked) == len(set(world.asked))


# Times


def timed(pair, *, starts, functions, total_s, setup):
    """A record that took so many servers, and one second for each function."""
    forced = [
        with_scores(made_forced(needle), wall_s=1.0)
        for needle in forced_of(setup)[:functions]
    ]
    record = sized(made_record(pair, [], forced=forced))
    recall = Recall(rounds=(), forced=tuple(forced), starts=starts)
    return replace(
        record, phases=Phases(measure_s=total_s), observation=observed(recall)
    )


def test_the_time_of_further_functions_is_set_beside_that_of_the_sweep():
    """A pair of two servers, of which the second read the text again."""
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32)
    records = (
        timed(REFERENCE, starts=1, functions=16, total_s=20.0, setup=setup),
        timed("q8_0/q8_0", starts=2, functions=32, total_s=40.0, setup=setup),
    )
    gap = replace(records[1], status=Status.CRASHED, observation=None)
    run = Run(name="made", setup=setup, records=records)

    assert 0.5 == pytest.approx(further_time_ratio(run), rel=0.05)
    assert 0.0 == further_time_ratio(replace(run, records=(records[0], gap)))
    assert 0.0 == further_time_ratio(replace(run, records=records[:1]))
    assert 0.0 == further_time_ratio(replace(run, records=()))


@pytest.mark.parametrize("starts", [2, 3], ids=["a look passed over", "each look"])
def test_each_further_server_has_read_the_text_once_more(starts):
    """Of 56 s they share alike what 32 functions, two looks further, leave."""
    setup = losing_setup([REFERENCE], forced=64, functions=8)
    record = timed(REFERENCE, starts=starts, functions=32, total_s=56.0, setup=setup)
    functions_s = math.fsum(each.wall_s for each in recall_of(record).forced)
    server_s = (56.0 - functions_s) / starts
    further_s = functions_s * 24 / 32 + server_s * (starts - 1)

    found = further_time_ratio(Run(name="made", setup=setup, records=(record,)))

    assert further_s / (56.0 - further_s) == pytest.approx(found, rel=0.05)


def test_a_cell_that_was_resumed_spent_nothing_on_further_functions():
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32)
    records = (timed(REFERENCE, starts=2, functions=16, total_s=24.0, setup=setup),)

    assert 0.0 == further_time_ratio(Run(name="made", setup=setup, records=records))


def test_the_time_of_more_functions_is_that_of_reading_and_of_each():
    """Four seconds to read the text, one for each function."""
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32)
    records = (timed(REFERENCE, starts=1, functions=16, total_s=20.0, setup=setup),)
    run = Run(name="made", setup=setup, records=records)

    found = seconds_for_goals(run, {Pair.parse(REFERENCE): 32})
    assert 20.0 == pytest.approx(found, rel=0.05)
    assert math.isnan(seconds_for_goals(run, {Pair.parse("q8_0/q8_0"): 32}))


# Steps of a sweep that decides


def reads_at_20(wall_s=1.0):
    """A reference that took 20 s to read, and a second for each of 8 functions."""
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32, functions=8)
    total_s = 20.0 + 8 * wall_s
    return timed(REFERENCE, starts=1, functions=8, total_s=total_s, setup=setup)


def test_a_share_of_a_grid_cannot_decide(golden):
    request = Request(decide=True)

    with pytest.raises(BadInput) as caught:
        refuse_decided_share(request, Execution(shard=Share(number=1, of=2)))
    assert golden == str(caught.value)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("recall",), ("recall",)),
        (("divergence",), ("divergence",)),
        (("throughput",), ("recall", "throughput")),
        (("throughput", "retrieval"), ("retrieval", "throughput")),
        (("divergence", "recall"), ("divergence", "recall")),
    ],
)
def test_probes_that_measure_losses_come_first_or_recall(asked, expected):
    request = Request(decide=True, probes=asked)

    assert expected == named_and_implied_probes(request, is_named=True)
    assert asked == named_and_implied_probes(Request(probes=asked), is_named=True)


def test_a_text_that_is_read_is_read_again_behind_each_look_that_is_passed():
    setup = asking_recall(
        losing_setup([REFERENCE], forced=32, functions=8),
        {"way": ["read"], "functions": 8},
    )
    setup = replace(setup, context=65_536)
    texts = {
        (goal, known): FURTHER.price(setup, goal, known).read
        for goal, known in ((8, 0), (16, 0), (32, 0), (16, 8), (32, 8), (32, 16))
    }
    one = texts[8, 0]

    assert one > 0
    assert [1, 2, 3, 1, 2, 1] == [round(read / one) for read in texts.values()]


def test_a_cell_whose_questions_took_all_its_time_has_a_server_for_nothing():
    """By two clocks they may take more."""
    setup = losing_setup([REFERENCE], forced=32, functions=8)
    record = timed(REFERENCE, starts=1, functions=8, total_s=7.5, setup=setup)

    assert 8.0 == pytest.approx(expected_cell_s(record, setup, 8))
    assert 8.0 == pytest.approx(expected_cell_s(record, setup, 16, 8), rel=0.05)


def test_a_cell_of_another_probe_takes_what_it_took():
    record = replace(reads_at_20(), probe="divergence")
    setup = losing_setup([REFERENCE])

    assert [28.0, 28.0] == [expected_cell_s(record, setup, goal) for goal in (8, 96)]


def test_a_cell_takes_its_text_and_its_functions():
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32, functions=8)

    assert [28.0, 44.0, 36.0] == [
        pytest.approx(expected_cell_s(reads_at_20(), setup, *asked), rel=0.05)
        for asked in ((8,), (24,), (24, 8))
    ]


@pytest.mark.parametrize(
    ("function_s", "expected"), [(0.1, 3), (1.0, 1), (2.0, 0), (60.0, 0)]
)
def test_the_first_step_asks_for_as_many_functions_as_five_minutes_hold(
    function_s, expected
):
    """Four cells of 25 s and their functions."""

    def cell_s(functions):
        return 25.0 + functions * function_s

    found = first_look_index([12, 24, 48, 96], cell_s, cells=4, spent_s=60.0)

    assert expected == found


def ordered(world, *pairs, **changes):
    """The order that is fixed once the reference of *world* is measured."""
    world.sweep(WHOLE)
    runner = world.runner()
    return runner, fix_and_store_order(runner, WHOLE, [WHOLE, *pairs], **changes)


def test_the_order_is_fixed_once_and_kept_with_the_run(world):
    runner, order = ordered(world, GOOD, BAD)

    assert ("q8_0/q8_0", "q4_0/q4_0") == order.pairs
    assert (
        order
        == stored_asking_order(runner.run.setup)
        == stored_asking_order(world.store.read_setup())
    )
    assert order == fix_and_store_order(world.runner(), WHOLE, [GOOD])
    more = fix_and_store_order(world.runner(), WHOLE, [GOOD, Pair("q8_0", "f16")])
    assert (*order.pairs, "q8_0/f16") == more.pairs
    assert order.looks == more.looks


def test_types_that_the_weights_are_predicted_not_to_bear_are_kept_with_the_order(
    world,
):
    _, order = ordered(world, GOOD, BAD, unborne=("q4_0",))

    assert (("q4_0",), (GOOD,)) == (order.unborne, order.first_step_pairs)
    assert order == fix_and_store_order(world.runner(), WHOLE, [GOOD, BAD])


def test_other_weights_take_the_numbers_of_functions_and_not_what_is_predicted(world):
    world.sweep(WHOLE)
    first = Order(pairs=(str(BAD),), looks=(8,), unborne=("q4_0",))
    order = adopt_and_store_order(world.runner(), first, [GOOD], unborne=("q5_1",))

    assert order == Order(pairs=(str(GOOD),), looks=(8,), unborne=("q5_1",))


def test_quick_cells_are_asked_for_all_functions_at_once(world):
    _, order = ordered(world, GOOD, BAD)

    assert ((40,), 3) == (order.looks, order.skipped)


def test_a_run_that_has_other_pairs_keeps_the_looks_that_it_has(world):
    world.sweep(WHOLE, GOOD)
    order = fix_and_store_order(world.runner(), WHOLE, [GOOD, BAD])

    assert ((8, 16, 32, 40), 0) == (order.looks, order.skipped)


@pytest.mark.parametrize(
    ("share", "looks"), [(1.001, (16, 32, 40)), (0.999, (8, 16, 32, 40))]
)
def test_the_first_look_is_what_the_reference_and_the_first_pairs_have_time_for(
    world, share, looks
):
    """Of each pair, what else tells its loss counts, too."""
    world.sweep(WHOLE)
    own = world.store.read_record_if_there(WHOLE, "recall")
    for answer in own.observation["answers"].values():
        answer["scores"]["wall_s"] = 2.0
    world.store.write_record(own)
    text = replace(diverging(str(WHOLE), [0.004, 0.004]), phases=Phases(measure_s=7.0))
    world.store.write_record(text)
    like_s = expected_cell_s(own, world.store.read_setup(), 16)
    most_s = (
        own.phases.total_from_launch_s
        + 3 * text.phases.total_from_launch_s
        + share * 3 * like_s
    )
    order = fix_and_store_order(
        world.runner(), WHOLE, [WHOLE, GOOD, BAD], most_s=most_s
    )

    assert looks == order.looks


def steps(world, **changes):
    """The next step of *world*, by the order that it has."""
    return next_step(
        judge(world.runner().read_run_and_calibration()), ["recall"], **changes
    )


def take(world, step):
    """Measure *step*."""
    for pair, goal in step.goals.items():
        world.runner().measure_further_units(world.plan.probes[0], pair, goal)
    if step.new_pairs:
        pairs = [WHOLE, *step.new_pairs]
        world.runner(goal=step.asked.goal).measure_pairs(world.plan.probes[0], pairs)


def test_without_an_order_there_is_no_step(world):
    world.sweep(WHOLE, GOOD)

    assert steps(world) is None


def test_a_step_that_is_too_long_has_fewer_pairs():
    asked = StepTarget((GOOD, BAD), 8, Why.FIRST)
    shorter = NextStep(asked, {}, 60.0).without_last_pair

    assert ((GOOD,), 30.0) == (shorter.asked.pairs, shorter.time_s)
    assert shorter.without_last_pair is None

    asked = StepTarget((WHOLE, GOOD, BAD), 8, Why.FIRST)
    shorter = NextStep(asked, {WHOLE: 8, BAD: 8}, 60.0).without_last_pair
    assert (40.0, {WHOLE: 8}) == (shorter.time_s, shorter.goals)
    assert (GOOD,) == shorter.new_pairs


def test_steps_go_on_until_nothing_could_change_the_answer(world):
    def good(number):
        return 0.002 + (0.012 * (-1) ** number if number < 8 else 0.0)

    world.losses = {GOOD: good, BAD: lambda number: 0.3 + 0.01 * (-1) ** number}
    ordered(world, GOOD, BAD, most_s=0.0)

    first = steps(world)
    assert first == steps(world, may_continue=False)
    setup, reference = (
        world.store.read_setup(),
        world.store.read_record_if_there(WHOLE, "recall"),
    )
    assert first.time_s == pytest.approx(
        2 * expected_cell_s(reference, setup, 8), abs=1e-9
    )
    take(world, first)
    assert (Why.FIRST, (GOOD, BAD), {}) == (
        first.asked.why,
        first.new_pairs,
        first.goals,
    )
    assert 8 == world.functions(GOOD) == world.functions(WHOLE)
    more = steps(world)
    assert ((GOOD,), {WHOLE: 16, GOOD: 16}) == (more.asked.pairs, dict(more.goals))
    own = [world.store.read_record_if_there(pair, "recall") for pair in (WHOLE, GOOD)]
    expected_s = sum(expected_cell_s(record, setup, 16, 8) for record in own)
    assert more.time_s == pytest.approx(expected_s, abs=1e-9)
    assert steps(world, may_continue=False) is None
    assert steps(world, failed={GOOD}) is None
    while step := steps(world):
        take(world, step)

    assert ["within", "beyond"] == [world.decision(pair) for pair in (GOOD, BAD)]
    assert 8 == world.functions(BAD)
    assert len(world.asked) == len(set(world.asked))


def test_a_step_takes_as_long_as_the_latest_pair(world):
    """The reference came first: by now the machine may be slower."""
    ordered(world, GOOD, BAD, most_s=0.0)
    world.sweep(GOOD)
    run = world.runner().read_run_and_calibration()
    latest = next(each for each in run.records if each.pair == GOOD)
    slow = replace(latest, phases=Phases(measure_s=100.0))
    others = [each for each in run.records if each is not latest]
    found = [
        next_step(judge(replace(run, records=(*others, each))), ["recall"])
        for each in (latest, slow)
    ]

    assert [(BAD,), (BAD,)] == [step.asked.pairs for step in found]
    assert 90 < found[1].time_s - found[0].time_s < 110


def forced_phrase(line):
    """What *line*, of a setup, says of forced functions."""
    (phrase,) = [each for each in line.split(", ") if "forced" in each]
    return phrase


def test_a_run_that_decides_is_told_by_the_functions_that_each_pair_is_asked_for(
    world, golden
):
    """The settings say how many there are at least, 8."""
    runner, order = ordered(world, GOOD, BAD)

    assert (40,) == order.looks
    without = replace(runner.run.setup, order={})
    assert golden == [
        forced_phrase(setup_line(setup)) for setup in (runner.run.setup, without)
    ]


def test_a_footer_tells_of_how_many_functions_the_cells_have(world, golden):
    """Of every pair 8, of one 16; and what the first step of a sweep was."""
    runner, _ = ordered(world, GOOD, most_s=0.0)
    world.losses = {GOOD: noisy}
    take(world, steps(world))
    first = dict(run_facts(runner.read_run_and_calibration()))
    runner.measure_further_units(world.plan.probes[0], GOOD, 16)
    more = dict(run_facts(runner.read_run_and_calibration()))

    assert golden == [forced_phrase(each["context"]) for each in (first, more)]
    assert "functions 8" in more["recall"]


def test_a_cell_that_was_ended_early_is_asked_again_up_to_its_goal(world):
    world.losses = {GOOD: noisy}
    ordered(world, GOOD)
    world.failing = {(GOOD, 20): KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        take(world, steps(world))
    assert 20 == world.functions(GOOD)

    step = steps(world)
    assert (GOOD,) == step.asked.pairs
    take(world, step)

    assert 40 == world.functions(GOOD)
    assert len(world.asked) == len(set(world.asked))


def test_a_pair_that_failed_is_seen(world):
    ordered(world, GOOD, BAD)
    world.failing = {(GOOD, 0): CellError("it died", hint="Look.")}
    take(world, steps(world))

    assert world.functions(BAD)
    assert steps(world) is None


def test_a_plan_whose_lines_are_read_tells_their_check(world, golden):
    plan = world.plan
    reading = structs.replace(
        plan.request, decide=True, recall=RecallSettings(way=(Way.READ,), functions=8)
    )
    slow = Pace(start_s=0, read_s=0.005, write_s=5.0, read_back_s=0, write_back_s=0)
    plan = replace(plan, request=reading, pace=slow, unread="")
    first, then, *_, check, _again = with_steps(plan).steps

    assert golden == check.what
    assert (0, first.price * 3) == (then.price.written, then.price)
    assert 2 * plan.estimates.sent_corpus_tokens == check.price.read


def test_a_plan_tells_the_steps_before_the_first_cell(world, golden):
    plan = replace(
        world.plan,
        request=structs.replace(world.plan.request, decide=True),
        pace=Pace(
            start_s=0, read_s=0.005, write_s=1 / 15, read_back_s=0, write_back_s=0
        ),
    )
    found = with_steps(plan).steps

    assert golden == [step.what for step in found]
    one = found[0].price
    assert one * 3 == found[1].price
    assert one.read * 0.005 + one.written / 15 == pytest.approx(
        plan.seconds_of_price(one)
    )
    # Eight further functions of two cells; a cell is asked for eight otherwise.
    assert [one, one * 2, one] == [step.price for step in found[2:]]


def test_a_plan_whose_pairs_are_all_in_the_first_step_has_no_other_step(world, golden):
    request = structs.replace(world.plan.request, decide=True)
    plan = replace(world.plan, request=request, pairs=(WHOLE, GOOD))

    assert golden == [step.what for step in with_steps(plan).steps]


@pytest.mark.parametrize(
    "write_s", [None, 1 / 15, 1 / 15e6], ids=["unknown", "slow", "fast"]
)
def test_a_plan_has_a_step_of_further_functions_unless_all_are_asked_at_once(
    world, write_s, golden
):
    """How many are asked first follows from the pace, where one is known."""
    pace = write_s and Pace(
        start_s=0, read_s=1e-9, write_s=write_s, read_back_s=0, write_back_s=0
    )
    plan = deciding_plan(world, pace)

    assert golden == [step.what for step in with_steps(plan).steps]


def deciding_plan(world, pace, way=Way.FORCE, **changes):
    """The plan of *world* of a sweep that decides, with a *pace*."""
    recall = structs.replace(world.plan.request.recall, way=(way,))
    request = structs.replace(world.plan.request, decide=True, recall=recall)
    facts = {"kept": Request(), "pace": pace, **changes}
    return replace(world.plan, request=request, **facts)


@pytest.mark.parametrize(("named", "first"), [(None, 40), (8, 8)])
def test_functions_that_the_user_names_are_those_of_the_first_step(world, named, first):
    kept = Request(recall=RecallSettings(functions=named))
    plan = deciding_plan(world, writing(1e-6), kept=kept)
    told = with_steps(plan).steps[1].what
    _, order = ordered(world, GOOD, most_s=1e9 * first_step_limit_s(plan))

    assert told.endswith(f", {first} functions each")
    assert first == order.looks[0]


def writing(write_s, start_s=0.0):
    """A pace at which prompts cost nothing."""
    return Pace(
        start_s=start_s, read_s=0, write_s=write_s, read_back_s=0, write_back_s=0
    )


def test_a_planned_cell_takes_its_server_and_its_functions(world):
    plan = deciding_plan(world, writing(1.0, start_s=3.0))
    first = with_steps(plan).steps[0].price

    assert plan.seconds_of_price(first) == pytest.approx(3.0 + first.written)
    assert deciding_plan(world, None).seconds_of_price(first) is None


@pytest.mark.parametrize(("way", "texts"), [(Way.READ, 3), (Way.FORCE, 1)])
def test_a_plan_reads_the_text_again_at_each_look_where_lines_are_read(
    world, way, texts
):
    plan = deciding_plan(world, writing(5.0), way=way)
    one, many = (
        plan.bill(PROBES["recall"], functions=count).price for count in (8, 32)
    )

    assert texts == pytest.approx(many.read / one.read, rel=0.2)


def function_s(world):
    """Tokens of a planned function."""
    return with_steps(deciding_plan(world, writing(1.0))).steps[2].price.written / 8


@pytest.mark.parametrize(("share", "first"), [(0.999, 16), (1.001, 8)])
def test_a_plan_asks_first_for_what_the_reference_and_three_pairs_have_time_for(
    world, share, first
):
    """The reference for 8 functions, and then four cells for 16, take five minutes."""
    pace = writing(share * 300 / (8 + 4 * 16) / function_s(world))

    assert (
        with_steps(deciding_plan(world, pace))
        .steps[1]
        .what.endswith(f", {first} functions each")
    )


@pytest.mark.parametrize("first", [8, 32])
def test_a_plan_has_a_step_of_further_functions_up_to_the_last_look(
    world, first, golden
):
    pace = writing(0.999 * 300 / (8 + 4 * first) / function_s(world))
    plan = deciding_plan(world, pace)

    assert golden == [step.what for step in with_steps(plan).steps]


@pytest.mark.parametrize("pace", [None, writing(1.0)], ids=["unknown", "known"])
def test_a_plan_without_recall_has_no_functions(world, pace, golden):
    divergence = PROBES["divergence"]
    plan = deciding_plan(world, pace, probes=(divergence,))

    assert golden == [step.what for step in with_steps(plan).steps]


# What is said of it


@pytest.mark.parametrize(
    ("limits", "options"),
    [
        ({}, []),
        ({"max_loss": 0.02}, ["--max-loss", "2%"]),
        ({"max_lost": 0.125}, ["--max-lost", "12.5%"]),
        (
            {"max_loss": 0.005, "max_eval_lost": 0.03},
            ["--max-loss", "0.5%", "--max-eval-lost", "3%"],
        ),
        (
            {"max_memory_bytes": 9 << 30, "at": 32_768},
            ["--max-memory", "9GiB", "--at", "32768"],
        ),
    ],
)
def test_a_command_has_the_limits_that_are_not_the_default(limits, options):
    verdict = judge(losing_run({"q8_0/q8_0": WITHIN}), Limits(**limits))

    assert options == limit_options(verdict)


def test_where_no_function_is_scored_more_of_them_take_a_new_run(golden):
    """As of a probe whose metric names no units of its own."""
    assert golden == ways(20, whole=64, forced=0)


def ways(needed, *, whole, kind=FUNCTIONS, losses=OPEN, forced=16):
    """What is said of a pair of a run of 16 functions of a text of so many."""
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=forced)
    corpus = replace(setup.corpus, functions=16, functions_before=whole)
    setup = replace(setup, corpus=corpus, context=1000)
    run = losing_run({"q8_0/q8_0": losses}, setup=setup)
    verdict = judge(replace(run, root=Path("sweeps")))
    (way,) = how_to_decide_phrases(verdict, verdict.result(GOOD), needed, kind)
    return way


@pytest.mark.parametrize(
    ("needed", "whole", "is_there"),
    [(17, 17, True), (18, 17, False), (16, 17, False), (17, 16, False)],
)
def test_a_longer_context_is_named_where_the_text_has_as_many_functions(
    needed, whole, is_there, golden
):
    """A sixteenth of the context for each function, to a multiple of 256."""
    way = ways(needed, whole=whole)

    assert golden == way
    context = 1024 if needed == 16 else 1280
    assert f"--functions {needed} --context {context}" in way
    assert is_there == ("--corpus FILE" not in way)


def test_an_open_pair_of_a_text_with_more_functions_is_asked_for_more():
    way = ways(20, whole=32, forced=32)

    assert "--more" in way
    assert "--max" not in way


def test_other_units_than_functions_take_a_new_run(golden):
    assert golden == ways(20, whole=16, kind=TEXTS)
