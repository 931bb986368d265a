"""Which open pairs get further functions, how many, and until when."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, forced_to
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
    made_forced,
    made_record,
    made_setup,
    observed,
    sized,
)

from codeneedle.errors import BadInput, CellError
from codeneedle.grid import Pair
from codeneedle.probes.recall.record import Recall, recall_of
from codeneedle.probes.recall.settings import Ask, RecallSettings
from codeneedle.records.record import Phases, Run, Status
from codeneedle.sweep.decide import (
    decide,
    deciding,
    finalists,
    further,
    settled,
    spent_share,
    time_s,
)
from codeneedle.sweep.prepare import prepare
from codeneedle.sweep.request import Execution, Request
from codeneedle.sweep.runner import CellStarted, Runner
from codeneedle.sweep.workers import Share
from codeneedle.verdict.judge import Limits, judge

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
    return {str(pair): goal for pair, goal in further(found).items()}


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


def test_recall_that_is_open_beside_another_metric_is_asked():
    klds = [diverging(REFERENCE, [1e-6] * 16), diverging("q8_0/q8_0", [0.01] * 16)]

    assert {REFERENCE: 32, "q8_0/q8_0": 32} == goals({"q8_0/q8_0": OPEN}, more=klds)


def test_written_recall_asks_for_no_more():
    setup = replace(made_setup(forced=0), probes={"recall": {"ask": "written"}})
    run = Run(name="made", setup=setup, records=(made_record("f16/f16", []),))

    assert {} == further(judge(run))


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
            recall=RecallSettings(ask=Ask.FORCED, functions=8, lines=5),
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
        return forced_to(question, right, logprob=math.log(0.6 - loss))

    @property
    def store(self):
        return self.plan.store

    def runner(self, **changes):
        return Runner(run=prepare(self.plan), store=self.store, **changes)

    def sweep(self, *pairs):
        self.runner().sweep(self.plan.probes[0], pairs)

    def decide(self, is_over=lambda _run: False):
        @contextlib.contextmanager
        def show(asked):
            self.rounds.append(dict(asked))
            yield self.events.append

        self.events = []
        return decide(self.runner(), Limits(), is_over=is_over, show=show)

    def functions(self, pair):
        return len(recall_of(self.store.record(pair, "recall")).forced)

    def word(self, pair):
        return judge(self.runner().read()).word(pair)


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
    assert ["open", "beyond"] == [world.word(pair) for pair in (GOOD, BAD)]

    assert [] == world.decide()

    assert ["within", "beyond"] == [world.word(pair) for pair in (GOOD, BAD)]
    assert [{WHOLE: 16, GOOD: 16}, {WHOLE: 32, GOOD: 32}] == world.rounds[:2]
    assert [8, world.functions(WHOLE)] == [
        world.functions(pair) for pair in (BAD, GOOD)
    ]
    assert len(world.asked) == len(set(world.asked))
    started = [e.pair for e in world.events if isinstance(e, CellStarted)]
    assert [WHOLE, GOOD] * len(world.rounds) == started
    before = len(world.asked)
    assert [] == world.decide()
    assert before == len(world.asked)


def test_pairs_that_nothing_decides_are_asked_for_the_whole_text(world):
    world.losses = {GOOD: noisy}
    world.sweep(WHOLE, GOOD)

    assert [] == world.decide()

    assert "open" == world.word(GOOD)
    assert [16, 32, 40] == [asked[GOOD] for asked in world.rounds]
    assert 40 == world.functions(GOOD) == world.functions(WHOLE)


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
    assert Status.FINISHED is world.store.record(GOOD, "recall").status
    assert "open" == world.word(GOOD)
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
    assert world.store.record(GOOD, "recall").has_numbers
    world.decide()
    assert 40 == world.functions(GOOD)
    assert len(world.asked) == len(set(world.asked))


# Times


def timed(pair, *, starts, functions, total_s, setup):
    """A record that took so many servers, and one second for each function."""
    forced = [
        replace(made_forced(needle), wall_s=1.0) for needle in setup.forced[:functions]
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

    assert 0.5 == pytest.approx(spent_share(run))
    assert 0.0 == spent_share(replace(run, records=(records[0], gap)))
    assert 0.0 == spent_share(replace(run, records=records[:1]))
    assert 0.0 == spent_share(replace(run, records=()))


def test_a_cell_that_was_resumed_spent_nothing_on_further_functions():
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32)
    records = (timed(REFERENCE, starts=2, functions=16, total_s=24.0, setup=setup),)

    assert 0.0 == spent_share(Run(name="made", setup=setup, records=records))


def test_the_time_of_more_functions_is_that_of_reading_and_of_each():
    """Four seconds to read the text, one for each function."""
    setup = losing_setup([REFERENCE, "q8_0/q8_0"], forced=32)
    records = (timed(REFERENCE, starts=1, functions=16, total_s=20.0, setup=setup),)
    run = Run(name="made", setup=setup, records=records)

    assert 20.0 == pytest.approx(time_s(run, {Pair.parse(REFERENCE): 32}))
    assert math.isnan(time_s(run, {Pair.parse("q8_0/q8_0"): 32}))


# Finalists


def screened(klds, reference=REFERENCE):
    """A run of the screening alone."""
    records = [
        diverging(pair, [each, 1.01 * each] * 8, reference=reference)
        for pair, each in {reference: 1e-9, **klds}.items()
    ]
    setup = losing_setup([reference, *klds])
    return Run(name="made", setup=setup, records=tuple(records))


def test_finalists_are_those_of_which_none_is_smaller_and_nearer():
    run = screened(
        {
            "bf16/q8_0": 0.001,
            "q8_0/bf16": 0.003,
            "q8_0/q8_0": 0.002,
            "q8_0/q4_0": 0.009,
            "q4_0/q8_0": 0.008,
            "q4_0/q4_0": 0.05,
        }
    )

    assert [REFERENCE, "q4_0/q8_0", "q8_0/q8_0", "bf16/q8_0"] == [
        str(pair) for pair in finalists(run, Limits())
    ]


def test_a_pair_of_the_size_of_the_reference_is_no_finalist():
    run = screened({"f16/f16": 0.001, "q8_0/q8_0": 0.002})

    assert [REFERENCE, "q8_0/q8_0"] == [str(pair) for pair in finalists(run, Limits())]


def test_of_many_finalists_five_are_spread_evenly():
    pairs = ["bf16/q8_0", "q8_0/q8_0", "q8_0/q5_1", "q5_1/q5_1", "q5_1/q5_0"]
    pairs += ["q5_0/q5_0", "q5_0/q4_1", "q4_1/q4_1", "q4_0/q4_0"]

    found = finalists(
        screened({pair: 0.001 * (1 + at) for at, pair in enumerate(pairs)}), Limits()
    )

    assert 6 == len(found)
    assert [REFERENCE, pairs[-1], pairs[0]] == [
        str(found[0]),
        str(found[1]),
        str(found[-1]),
    ]


def test_what_a_screening_did_not_propose_is_settled_in_a_sweep_that_decides():
    run = screened({"bf16/q8_0": 0.001, "q8_0/bf16": 0.003, "q8_0/q4_0": 0.2})
    decided = replace(run, sweep='probes = ["divergence", "recall"]\ndecide = true\n')

    found = finalists(run, Limits())
    assert {Pair.parse(each) for each in ("q8_0/bf16", "q8_0/q4_0")} == settled(
        judge(decided)
    )
    assert not settled(judge(decided)) & {*found}
    assert set() == settled(judge(run)) == settled(judge(replace(run, sweep="[")))
    assert set() == settled(judge(replace(decided, records=())))


def test_where_all_is_beyond_the_limit_nothing_is_worth_measuring():
    assert [] == finalists(screened({"q8_0/q8_0": 0.2, "q4_0/q4_0": 0.3}), Limits())


def test_without_a_screening_there_are_no_finalists():
    run = screened({})

    assert [] == finalists(replace(run, records=()), Limits())


def test_a_share_of_a_grid_cannot_decide():
    request = Request(decide=True)

    assert ("divergence", "recall") == deciding(request, Execution()).probes
    with pytest.raises(BadInput, match="a share of the grid cannot choose"):
        deciding(request, Execution(shard=Share(number=1, of=2)))
