"""A sweep that decides, from the reference to its verdict, on an engine of a test."""

import contextlib
import io
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import LONG, TYPES, FakeEngine, forced_to
from fake_tools import FakeDivergence
from made_plans import CORPUS, made_world, planned
from made_reading import HalfTool, ReadingEngine
from rich.console import Console

from codeneedle.cache_types import Pair
from codeneedle.cli import sweep as sweep_module
from codeneedle.cli.sweep import Page, _set_up_run
from codeneedle.engines.engine import Ability, CacheTypes
from codeneedle.errors import CellError
from codeneedle.probes.recall import ways
from codeneedle.probes.recall.record import recall_of
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.sweep import schedule
from codeneedle.sweep.measure import Options
from codeneedle.sweep.request import Request
from codeneedle.verdict.judge import judge
from codeneedle.verdict.limits import Limits

BAD = Pair("q4_0", "q4_0")
FEW = 6
TYPES_ASKED = ("f16", "q8_0", "q5_1", "q4_0")
LOSSES = {"f16": 0.0, "q8_0": 0.001, "q5_1": 0.003, "q4_0": 0.1}


class Deciding:
    """A run of a text of 12 functions, in which pairs lose by their types."""

    def __init__(self, folder, monkeypatch, engine=FakeEngine, **of_engine):
        made_world(folder, monkeypatch)
        many = CORPUS.replace("functions = 6", "functions = 12")
        Path("corpora", "many.toml").write_text(many, encoding="utf-8")
        types = CacheTypes(k=(*TYPES, "q5_1"), v=(*TYPES, "q5_1"))
        self.engine = engine(types=types, stretches_context=True, **of_engine)
        self.engine.force = self.force
        self.failing = set()
        self.losses = LOSSES
        self.asked = 0
        self.wall_s = self.drift = 0.0
        self.dying = None

    def force(self, question, right):
        pair = self.engine.served[-1].pair
        if pair in self.failing or (pair == self.dying and self.asked >= FEW):
            return CellError("it died", hint="Look.")
        self.asked += 1
        loss = self.losses[pair.k] + self.losses[pair.v] / 4
        loss += 0.001 * (self.asked % 2) + self.drift * self.asked
        chance = math.log(0.6 - loss)
        wall_s = self.wall_s
        return forced_to(question, right, logprob=chance, length=LONG, wall_s=wall_s)

    def sweep(
        self, *probes, types=TYPES_ASKED, functions=12, way=(Way.FORCE,), **options
    ):
        """Run it to its end; its exit code."""
        plan = planned(
            corpus="many",
            contexts=(65536,),
            types=types,
            probes=probes or ("recall",),
            recall=RecallSettings(way=way, functions=functions, lines=5),
            decide=True,
            engine=self.engine,
        )
        self.told, self.shown = io.StringIO(), io.StringIO()
        self.page = Page(
            plan=replace(plan, kept=Request()),
            console=Console(file=self.told, width=200),
            shown=Console(file=self.shown, width=100),
            options=Options(limits=Limits(), **options),
            is_last=True,
            began=time.monotonic(),
        )
        with contextlib.ExitStack() as stack:
            run = _set_up_run(self.page.plan, self.page.console, stack)
            return self.page.sweep(run)

    def verdict(self):
        return judge(self.page.runner.read_run_and_calibration())

    def served(self, pair):
        """How many servers of *pair* there were."""
        return sum(cell.pair == pair for cell in self.engine.served)


@pytest.fixture
def deciding(tmp_path, monkeypatch):
    """A run in which nothing was asked."""
    return Deciding(tmp_path, monkeypatch)


def test_a_pair_that_fails_is_measured_again_once_where_that_is_asked_for(deciding):
    deciding.failing = {BAD}

    codes = [deciding.sweep(), deciding.sweep(retry_failed=True)]
    assert ([1, 1], 2) == (codes, deciding.served(BAD))
    deciding.failing = set()
    assert 0 == deciding.sweep(retry_failed=True)
    assert "beyond" == deciding.verdict().decision(BAD)


def test_a_pair_that_fails_in_a_new_run_is_not_measured_at_each_step(deciding):
    deciding.failing = {BAD}

    assert 1 == deciding.sweep(retry_failed=True)
    assert 1 == deciding.served(BAD)
    assert deciding.verdict().chosen


def test_what_an_earlier_command_measured_is_no_answer_of_this_one(deciding, golden):
    deciding.sweep(types=("f16", "q8_0"))
    assert "what is stored" not in deciding.told.getvalue()

    deciding.sweep(types=("f16", "q8_0", "q4_0"))
    first, *_ = [
        line for line in deciding.told.getvalue().splitlines() if "so far" in line
    ]
    assert golden == first


def test_a_probe_in_which_the_reference_has_nothing_to_lose_is_left_out(
    deciding, golden
):
    code = deciding.sweep("recall", "retrieval")
    probes = {(r.probe, str(r.pair)) for r in deciding.verdict().run.records}

    assert (1, True) == (code, deciding.verdict().chosen is not None)
    assert {pair for probe, pair in probes if probe == "retrieval"} == {"f16/f16"}
    [line] = [x for x in deciding.told.getvalue().splitlines() if "show nothing" in x]
    assert golden == line


def test_without_a_reference_there_is_no_answer_and_each_was_tried_once(
    deciding, golden
):
    first = [Pair("f16", "f16"), Pair("f16", "q8_0"), Pair("q8_0", "f16")]
    deciding.failing = {*first}

    assert 1 == deciding.sweep()
    assert golden == deciding.shown.getvalue()
    deciding.failing.remove(first[2])
    deciding.sweep(types=("f16", "q8_0"), retry_failed=True)
    assert [2, 2] == [deciding.served(pair) for pair in first[:2]]


def test_a_reference_that_is_measured_again_is_asked_for_as_many_as_the_others(
    deciding, monkeypatch
):
    """Six are asked at least; five minutes hold all 12."""
    monkeypatch.setattr(ways, "DECIDING_FUNCTIONS", FEW)
    reference = Pair("f16", "f16")
    deciding.sweep(types=("f16", "q8_0"), functions=None)
    store = deciding.page.plan.store
    for path in (store.folder / "cells").glob(f"{reference.slug}.*.json"):
        path.unlink()
    before = deciding.served(reference)
    deciding.sweep(types=("f16", "q8_0"), functions=None)

    asked = recall_of(
        deciding.page.plan.store.read_record_if_there(reference, "recall")
    ).forced
    assert 12 == len(asked)
    # It was asked once, and once more behind all others.
    assert 2 == deciding.served(reference) - before


def test_functions_that_are_named_are_those_of_the_first_step(deciding):
    """Although five minutes hold all 12; open pairs are asked for more."""
    deciding.sweep(types=("f16", "q8_0"), functions=FEW)
    records = deciding.page.plan.store.read_records()

    assert FEW == min(len(recall_of(record).forced) for record in records)


def test_a_reference_that_fails_further_on_ends_it_and_that_is_said(
    deciding, monkeypatch, golden
):
    monkeypatch.setattr(ways, "DECIDING_FUNCTIONS", FEW)
    deciding.dying = Pair("f16", "f16")

    assert 1 == deciding.sweep(types=("f16", "q8_0"), functions=None)
    [line] = [x for x in deciding.told.getvalue().splitlines() if "nothing else" in x]
    assert golden == line


def test_recall_is_not_asked_of_a_pair_that_is_beyond_by_ordinary_text(deciding):
    """Ordinary text is read first, as it is quickest."""

    def logprob(pair, place):
        return math.log(0.6 - 0.1 * (pair.k == "q4_0") - 0.001 * (place % 3))

    tool = FakeDivergence(logprob=logprob)
    deciding.engine.divergence_tool = lambda: tool
    deciding.losses = dict.fromkeys(LOSSES, 0.0)
    deciding.sweep("divergence", "recall")

    records = deciding.verdict().run.records
    asked = {str(each.pair) for each in records if each.probe == "recall"}
    read = {str(each.pair) for each in records if each.probe == "divergence"}
    assert "q4_0/q4_0" in read - asked
    assert {"f16/f16", "q8_0/q8_0", "q8_0/q4_0"} <= asked & read
    assert Pair("q5_1", "q4_0") == deciding.verdict().chosen


def test_a_run_is_judged_once_a_turn_and_once_at_its_end(deciding, monkeypatch):
    calls = []

    def counted(module, name):
        function = getattr(module, name)

        def called(*given, **named):
            calls.append(f"{module.__name__.rpartition('.')[2]}.{name}")
            return function(*given, **named)

        monkeypatch.setattr(module, name, called)

    counted(schedule, "judge")
    counted(schedule, "next_task")
    counted(sweep_module, "judge")
    deciding.sweep()

    turns = calls.count("schedule.next_task")
    assert turns > 3
    assert (turns, 1) == (calls.count("schedule.judge"), calls.count("sweep.judge"))


def test_another_probe_is_asked_of_a_run_that_is_decided(deciding):
    deciding.sweep(types=("f16", "q8_0"))
    deciding.sweep("recall", "divergence", types=("f16", "q8_0"))
    told = {(r.probe, str(r.pair)) for r in deciding.verdict().run.records}

    assert {("divergence", "f16/f16"), ("divergence", "q8_0/q8_0")} <= told


def test_where_nothing_measured_has_a_say_no_further_pair_is_asked(deciding):
    deciding.drift = 0.0006
    deciding.sweep(types=("f16", "q8_0"))
    before = len(deciding.engine.served)
    found = deciding.verdict()
    deciding.sweep(types=("f16", "q8_0"))

    assert "recall-logp" in found.silent
    assert before == len(deciding.engine.served)


def test_a_setup_that_was_lost_asks_for_nothing_that_was_read_before(
    tmp_path, monkeypatch
):
    deciding = Deciding(
        tmp_path, monkeypatch, ReadingEngine, abilities=frozenset(Ability)
    )
    engine = deciding.engine
    engine.tool, engine.devices = HalfTool(), ("GPU0",)
    asked = {"types": ("f16", "q8_0"), "way": (Way.READ,)}
    deciding.sweep(**asked)
    before = len(engine.tool.tasks)
    setup = deciding.page.plan.store.folder / "setup.json"
    setup.write_text("{cut off")
    deciding.sweep(**asked)

    assert before == len(engine.tool.tasks) > 0
    read = recall_of(
        deciding.page.plan.store.read_record_if_there(Pair("q8_0", "q8_0"), "recall")
    )
    assert 12 == len(read.read) == len({each.name for each in read.read})
