"""Deciding pairs: which are chosen, how long each is asked, what is kept and said."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine, reply_to
from injections import TINY
from made_copies import copied
from made_plans import CORPUS, made_world, planned
from made_records import failed_record, made_setup, sized
from rich.console import Console

from codeneedle.analysis.recall import Ask
from codeneedle.analysis.retrieval import retrieval_of
from codeneedle.cli import decide as module
from codeneedle.cli.decide import Wish, decide, deciding, finalists, price
from codeneedle.cli.options import pair_of_types, time_span
from codeneedle.errors import BadInput, CellError
from codeneedle.grid import BITS_PER_ELEMENT, Pair
from codeneedle.probes import PROBES
from codeneedle.probes.probe import ProbeContext
from codeneedle.probes.recall import RecallSettings
from codeneedle.probes.retrieval_plan import RetrievalSettings
from codeneedle.records.record import Phases, Run, Status
from codeneedle.report.judgement import COSTS, FREE, UNDECIDED, judge
from codeneedle.report.verdict import settling, statements
from codeneedle.scoring.rounds import Reading, recall_of
from codeneedle.sweep.prepare import prepare
from codeneedle.sweep.request import Request
from codeneedle.sweep.runner import Runner
from codeneedle.text import duration

TYPES = ("f16", "q8_0", "q4_0")
WHOLE, GOOD, BAD = Pair("f16", "f16"), Pair("q8_0", "q8_0"), Pair("q4_0", "q4_0")


def screened(pair, loss=None):
    """A record of the screening; it loses as many bits as its types save, or *loss*."""
    bits = BITS_PER_ELEMENT[pair.k] + BITS_PER_ELEMENT[pair.v]
    lost = (32 - bits) / 100 if loss is None else loss
    return sized(copied(pair, [-1 - 0.1 * at - lost for at in range(8)]))


def screening(*records, types=TYPES):
    """A run of the screening alone, of all pairs of *types*, *records* in place."""
    setup = made_setup(types_k=types, types_v=types)
    found = {
        pair: screened(pair) for pair in (Pair(k, v) for k in types for v in types)
    }
    found |= {record.pair: record for record in records}
    return Run(name="made", setup=setup, records=tuple(found.values()))


class World:
    """A run of 60 functions on a fake engine that can lose some of them."""

    def __init__(self, folder, monkeypatch):
        made_world(folder, monkeypatch)
        many = CORPUS.replace("functions = 6", "functions = 60")
        Path("corpora", "many.toml").write_text(many, encoding="utf-8")
        self.engine = FakeEngine(stretches_context=True, reply=self.reply)
        self.asked = []
        self.lost = {}
        self.failing = {}
        self.plan = planned(
            corpus="many",
            contexts=(65536,),
            k_types=TYPES,
            v_types=TYPES,
            words=("--corpus", "many", "--", "-t", "1"),
            engine=self.engine,
            **self.probe,
        )
        self.said = io.StringIO()

    probe = {"settings": {"recall": RecallSettings(ask=Ask.WRITTEN)}}  # noqa: RUF012

    @property
    def store(self):
        return self.plan.store

    def reply(self, question):
        pair = self.engine.served[-1].pair
        if len(question.prompt) and question.max_tokens > 8:
            every = self.store.setup().every_needle
            ends = {n.name: question.prompt.rfind(n.signature) for n in every}
            needle = next(n for n in every if n.name == max(ends, key=ends.get))
            self.asked.append((pair, needle.name))
            number = sum(each == pair for each, _ in self.asked)
            error = self.failing.get((pair, number))
            if error:
                return error
            if self.lost.get(pair, lambda _number: False)(number):
                return reply_to(question, text="nothing\n")
            return reply_to(question, text="\n".join(needle.lines) + "\n")
        return reply_to(question)

    def screen(self):
        """The screening of the run, as a sweep leaves it."""
        prepare(self.plan)
        for record in screening().records:
            self.store.add(record)

    def decide(self, wish=None, is_over=lambda: False):
        runner = Runner(run=prepare(self.plan), store=self.store)
        console = Console(file=self.said, width=200)
        return decide(self.plan, runner, console, wish or Wish(), is_over)

    def servers(self):
        return [cell.pair for cell in self.engine.served]

    def names(self, pair):
        found = recall_of(self.store.record(pair, "recall"))
        return [each.needle for each in found.rounds]

    def statements(self):
        found = judge(self.store.read(), Reading(), with_power=False)
        return dict(statements(found, str))

    def words(self):
        found = judge(self.store.read(), Reading(), with_power=False)
        return {pair: found.word(pair, "matched") for pair in (GOOD, BAD)}


class TaskWorld(World):
    """The same of a task; one question in four is too hard for every pair."""

    is_easy = False

    probe = {  # noqa: RUF012
        "probes": ("retrieval",),
        "settings": {
            "retrieval": RetrievalSettings(
                tasks=("multikey",), lengths=(500,), depths=(0.1, 0.9), questions=3
            )
        },
    }

    def reply(self, question):
        pair = self.engine.served[-1].pair
        text, _, begin = question.prompt.rpartition("\n")
        if question.max_tokens == 1:  # a text is read before it is asked about
            self.asked.append((pair, text))
        number = sum(each == pair for each, _ in self.asked)
        error = self.failing.pop((pair, number), None)
        if error:
            return error
        is_lost = self.lost.get(pair, lambda _number: False)(number)
        if is_lost or (sum(begin.encode()) % 4 == 0 and not self.is_easy):
            return reply_to(question, text="no idea\n")
        line = next(line for line in text.split("\n") if line.startswith(begin))
        return reply_to(question, text=f"{line.removeprefix(begin)}\n")

    def names(self, pair):
        found = retrieval_of(self.store.record(pair, "retrieval"))
        return [each.sha256 for each in found.texts]

    def word(self, pair):
        return judge(self.store.read(), Reading(), with_power=False).word(pair)


class TwoTasks(TaskWorld):
    """A task without a failure, whose texts come first, and the one of `TaskWorld`."""

    probe = {  # noqa: RUF012
        "probes": ("retrieval",),
        "settings": {
            "retrieval": RetrievalSettings(
                tasks=("single", "multikey"),
                lengths=(500,),
                depths=(0.1, 0.3, 0.5, 0.7, 0.9),
                questions=4,
            )
        },
    }

    def reply(self, question):
        text, _, begin = question.prompt.rpartition("\n")
        if begin.startswith("The code of") or question.max_tokens == 1:
            return super().reply(question)
        line, *_ = text.rpartition(begin)[2].split("\n")
        return reply_to(question, text=f"{line}\n")


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FINALISTS", 2)
    return World(tmp_path, monkeypatch)


@pytest.fixture
def task_world(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FINALISTS", 2)
    return TaskWorld(tmp_path, monkeypatch)


# Which pairs


def test_the_pairs_to_decide_are_those_that_no_other_beats_in_memory_and_loss():
    """
    A larger cache that loses more, and a cell that fell back, are not asked.
    """
    mixed, fallen = Pair("q8_0", "q4_0"), Pair("q4_0", "q8_0")
    worse = screened(mixed, loss=0.5)
    cpu = replace(screened(fallen), status=Status.FALLBACK_CPU, reason="on the CPU")

    chosen = finalists(screening(worse, cpu))

    assert WHOLE not in chosen
    assert not {mixed, fallen} & set(chosen)
    assert [GOOD, BAD] == [pair for pair in chosen if pair in {GOOD, BAD}]


def test_of_many_the_ends_of_the_front_and_some_between_are_asked():
    """
    The smallest cache is among them: if it is free, nothing else matters.
    """
    chosen = finalists(screening(types=("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")))

    assert 5 == len(chosen) == len(set(chosen))
    assert BAD == chosen[-1]
    bits = [BITS_PER_ELEMENT[p.k] + BITS_PER_ELEMENT[p.v] for p in chosen]
    assert sorted(bits, reverse=True) == bits


def test_a_screening_without_numbers_proposes_nothing():
    """
    No pair is asked on a guess.
    """
    failed = [replace(failed_record(r.pair), probe="copy") for r in screening().records]

    assert [] == finalists(screening(*failed))


def test_recall_or_the_tasks_decide_behind_what_screens():
    """
    Divergence screens unless copy is named; no screening where a pair is named.
    """
    asked = Request(probes=("recall", "copy"))
    tasks = Request(probes=("retrieval",))

    assert ("divergence", "recall") == deciding(Request(), screens=True).probes
    assert ("copy", "recall") == deciding(asked, screens=True).probes
    assert ("recall",) == deciding(asked, screens=False).probes
    assert ("divergence", "retrieval") == deciding(tasks, screens=True).probes
    assert ("retrieval",) == deciding(tasks, screens=False).probes
    for wrong in (("throughput",), ("recall", "retrieval")):
        with pytest.raises(BadInput, match=wrong[-1]):
            deciding(Request(probes=wrong), screens=True)


# How long each is asked


def test_each_pair_is_asked_in_one_server_until_it_is_decided(world):
    """
    One that loses every function is decided sooner than one that loses none; the
    verdict says the same of both.
    """
    world.lost[BAD] = lambda _number: True
    world.screen()

    assert 0 == world.decide()

    first, *others = world.servers()
    assert first == WHOLE
    assert set(others) == {Pair.parse(p) for p in world.store.setup().finalists}
    assert len(others) == len(set(others)) == 2
    assert BAD in others
    (clean,) = set(others) - {BAD}
    found = judge(world.store.read(), Reading(), with_power=False)
    assert (FREE, COSTS) == (found.word(clean, "matched"), found.word(BAD, "matched"))
    counts = [len(world.names(pair)) for pair in (WHOLE, clean, BAD)]
    assert [40, 40, 16] == counts
    assert "free: 0 functions lost of 40 that could be" in world.said.getvalue()
    assert "3 readings of text and 96 rounds" in world.said.getvalue()


def test_where_that_is_not_enough_further_servers_ask_for_more(world):
    """
    Two lost functions are no proof; they take more functions than a clean pair.
    """
    world.lost[BAD] = lambda number: number == 3
    world.screen()

    world.decide()

    assert 60 == len(world.names(WHOLE)) == len(set(world.names(WHOLE)))
    assert world.names(WHOLE) == world.names(BAD)
    assert [2, 2] == [world.servers().count(pair) for pair in (WHOLE, BAD)]
    assert 2 == recall_of(world.store.record(BAD, "recall")).starts
    assert f"{UNDECIDED}: 1 function lost of 60" in world.said.getvalue()


def test_one_text_is_too_few_to_say_that_nothing_can_be_told(tmp_path, monkeypatch):
    """
    Further texts are asked of the reference before that is said.
    """
    monkeypatch.setattr(module, "FINALISTS", 2)
    settings = RetrievalSettings(
        tasks=("multikey",), lengths=(500,), depths=(0.5,), questions=1
    )
    small = TaskWorld.probe | {"settings": {"retrieval": settings}}
    monkeypatch.setattr(TaskWorld, "probe", small)
    world = TaskWorld(tmp_path, monkeypatch)
    world.screen()

    assert 0 == world.decide()

    assert FREE == world.word(BAD)


def test_tasks_that_are_too_easy_decide_nothing_and_it_says_so(task_world):
    """
    A reference that fails nothing, at the hardest setting, has no informative task.
    """
    task_world.is_easy = True
    task_world.screen()

    assert 0 == task_world.decide()

    assert [WHOLE] == task_world.servers()
    said = task_world.said.getvalue()
    assert "uninformative, so in no average of tasks" in said
    assert "retrieval decides nothing with this model and this text" in said


def test_nothing_is_asked_of_pairs_where_the_reference_itself_knows_nothing(world):
    """
    Nothing can be lost: one server says so, and the sweep ends.
    """
    world.lost[WHOLE] = lambda _number: True
    world.screen()

    assert 0 == world.decide()

    assert [WHOLE] == world.servers()
    assert 16 == len(world.names(WHOLE))
    assert "recall decides nothing" in world.said.getvalue()
    assert "too hard for this model" in world.said.getvalue()


def test_a_reference_that_fails_ends_it(world):
    """
    There is nothing to compare with; the reason is told.
    """
    world.failing = {(WHOLE, 1): CellError("it died", hint="Look.")}
    world.screen()

    assert 1 == world.decide()
    assert [WHOLE] == world.servers()
    assert "f16/f16 was asked no further: it died" in world.said.getvalue()
    assert 1 == world.decide()
    assert [WHOLE] == world.servers()


# What is kept


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CellError("gone", hint="?")])
def test_what_was_answered_before_an_end_is_kept_and_not_asked_again(world, error):
    """
    Ctrl-C ends the command, a server that dies ends its pair; the next command goes
    on behind the last answer.
    """
    world.failing = {(BAD, 7): error}
    world.screen()

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            world.decide()
    else:
        assert 1 == world.decide()
    assert 6 == len(world.names(BAD))
    world.failing = {}
    assert 0 == world.decide()

    assert 40 == len(world.names(BAD)) == len(set(world.names(BAD)))
    assert world.names(WHOLE) == world.names(BAD)
    assert 2 == recall_of(world.store.record(BAD, "recall")).starts
    before = len(world.asked)
    assert 0 == world.decide()
    assert before == len(world.asked)


def test_a_second_server_that_never_served_leaves_the_record_of_the_first(
    world, monkeypatch
):
    """
    What a record says of its server is of the one that gave the answers; nothing else
    is written, not even for a moment in which this process may be killed.
    """
    world.screen()
    world.decide(is_over=lambda: len(world.asked) >= 30)
    before = sized(world.store.record(WHOLE, "recall"))
    world.store.add(before)

    def never(_self):
        raise KeyboardInterrupt

    written = []
    monkeypatch.setattr(ProbeContext, "serving", never)
    monkeypatch.setattr(type(world.store), "add", lambda _s, each: written.append(each))
    with pytest.raises(KeyboardInterrupt):
        world.decide()

    assert [] == written
    assert before == world.store.record(WHOLE, "recall")


def test_a_budget_ends_between_blocks_and_the_same_command_goes_on(world):
    """
    It ends with what is decided until then.
    """
    world.screen()

    assert 0 == world.decide(is_over=lambda: len(world.asked) >= 30)
    assert [WHOLE] == world.servers()
    assert 32 == len(world.names(WHOLE))
    assert "not asked yet" in world.said.getvalue()
    world.decide()

    assert FREE == world.words()[BAD]
    assert 40 == len(world.names(WHOLE))


# Tasks


def test_tasks_decide_as_recall_does(task_world):
    """
    Each pair reads the same texts in one server, until it is decided; the reference
    until a pair that loses nothing is free, with texts to spare that it fails itself.
    """
    task_world.lost[BAD] = lambda _number: True
    task_world.screen()

    assert 0 == task_world.decide()

    first, *others = task_world.servers()
    assert first == WHOLE
    assert len(others) == len(set(others)) == 2
    (clean,) = set(others) - {BAD}
    assert (FREE, COSTS) == (task_world.word(clean), task_world.word(BAD))
    whole, free, costly = map(task_world.names, (WHOLE, clean, BAD))
    assert whole == free
    assert costly == whole[: len(costly)]
    assert len(costly) < len(whole) == len(set(whole))
    said = task_world.said.getvalue()
    assert f"{clean}      free: 0 texts lost of" in said
    assert f"{len(whole + free + costly)} readings of text and " in said
    before = len(task_world.asked)
    task_world.decide()
    assert before == len(task_world.asked)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CellError("gone", hint="?")])
def test_texts_that_were_read_before_an_end_are_kept(task_world, error):
    """
    The text that was being read is read again; the reference sets no dial twice.
    """
    task_world.failing = {(WHOLE, 20): error}
    task_world.screen()

    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            task_world.decide()
    else:
        assert 1 == task_world.decide()
    before = task_world.names(WHOLE)
    dialled = retrieval_of(task_world.store.record(WHOLE, "retrieval")).frozen
    assert 0 == task_world.decide()

    after = retrieval_of(task_world.store.record(WHOLE, "retrieval"))
    assert before == task_world.names(WHOLE)[: len(before)]
    assert len(before) < len(after.texts) == len(set(task_world.names(WHOLE)))
    assert dialled == after.frozen
    assert FREE == task_world.word(BAD)


def test_a_reference_that_ended_in_a_task_without_failures_is_asked_further(
    tmp_path, monkeypatch
):
    """
    Texts of a task that tells nothing are no reason to say that nothing decides.
    """
    monkeypatch.setattr(module, "FINALISTS", 2)
    world = TwoTasks(tmp_path, monkeypatch)
    world.screen()
    world.failing = {(WHOLE, 18): CellError("it died", hint="Look.")}

    assert 1 == world.decide()
    found = retrieval_of(world.store.record(WHOLE, "retrieval"))
    assert [("single", False), ("multikey", True)] == [
        (each.task, each.is_informative) for each in found.frozen.dials
    ]
    assert {"single"} == {each.task for each in found.texts}
    assert len(found.texts) > 8
    assert 0 == world.decide()

    assert "decides nothing" not in world.said.getvalue()
    assert FREE == world.word(BAD)


def test_the_time_to_decide_counts_no_text_of_a_task_that_tells_nothing(
    tmp_path, monkeypatch
):
    """
    A certificate that lacks texts takes time, however many others were read.
    """
    world = TwoTasks(tmp_path, monkeypatch)
    runner = Runner(run=prepare(world.plan), store=world.store)
    runner.sweep(world.plan.probes[0], [WHOLE, BAD])
    for record in list(world.store.records("retrieval")):
        world.store.add(replace(record, phases=Phases(measure_s=1000.0)))

    found = judge(world.store.read(), Reading(), with_power=False)
    certificate = found.standing(BAD).certificate
    read = len(retrieval_of(world.store.record(BAD, "retrieval")).texts)
    assert certificate.asked < read
    expected_s = 2 * 1000 * (certificate.whole - certificate.asked) / read
    assert f"(about {duration(expected_s)} if" in settling(found)


def test_a_pair_of_a_sweep_is_settled_with_further_texts(task_world):
    """
    The command of the verdict says so, with its time; the texts of the sweep stay.
    """
    runner = Runner(run=prepare(task_world.plan), store=task_world.store)
    runner.sweep(task_world.plan.probes[0], [WHOLE, GOOD, BAD])
    before = task_world.names(BAD)
    command = (
        "codeneedle sweep --corpus many --probe retrieval --settle q4_0/q4_0 -- -t 1"
    )
    assert task_world.statements()["to decide"].startswith(f"{command}   (about ")

    assert 0 == task_world.decide(Wish(settle=BAD))

    assert FREE == task_world.word(BAD)
    assert UNDECIDED == task_world.word(GOOD)
    assert before == task_world.names(BAD)[: len(before)] == task_world.names(GOOD)


def test_the_plan_prices_texts_too(task_world):
    """
    Each pair reads every text once.
    """
    probes = (PROBES["copy"], *task_world.plan.probes)
    price_of = dict(price(replace(task_world.plan, probes=probes)))

    assert "3 readings of text" not in price_of["deciding"]
    assert price_of["deciding"].endswith("texts a pair")
    assert "27 readings of text and 54 rounds" == price_of["full grid"]


# One pair of a run


def test_a_pair_of_a_run_is_settled_with_further_functions(world):
    """
    The sixteen functions of an ordinary sweep are not asked again.
    """
    runner = Runner(run=prepare(world.plan), store=world.store)
    runner.sweep(world.plan.probes[0], [WHOLE, GOOD, BAD])
    assert {UNDECIDED} == set(world.words().values())
    command = "codeneedle sweep --corpus many --settle q4_0/q4_0 -- -t 1"
    assert world.statements()["to decide"].startswith(f"{command}   (about ")

    assert 0 == world.decide(Wish(settle=BAD))

    assert {GOOD: UNDECIDED, BAD: FREE} == world.words()
    assert [16, 40] == [len(world.names(pair)) for pair in (GOOD, BAD)]
    assert (40 - 16) * 2 + 16 * 3 == len(world.asked)


def test_the_plan_sets_what_it_would_take_beside_the_full_grid(world, monkeypatch):
    """
    Readings of the text and rounds; times once something was measured.
    """
    monkeypatch.setattr(module, "SCREENS", ("copy",))
    probes = (PROBES["copy"], *world.plan.probes)
    before = dict(price(replace(world.plan, probes=probes)))
    world.screen()
    world.decide()
    after = dict(price(replace(world.plan, probes=probes)))

    assert "9 pairs by copy" == before["screening"]
    assert "3 readings of text and 120 rounds" in before["deciding"]
    assert "9 readings of text and 144 rounds" == before["full grid"]
    assert "0.0 s left" in after["screening"]
    assert "9 readings of text and 144 rounds, about" in after["full grid"]


@pytest.mark.parametrize("pair", [WHOLE, GOOD])
def test_settling_needs_something_to_compare_with(world, pair):
    """
    Neither the reference itself, nor a pair of a folder in which nothing was asked.
    """
    runner = Runner(run=prepare(world.plan), store=world.store)
    if pair == WHOLE:
        runner.sweep(world.plan.probes[0], [WHOLE, BAD])

    with pytest.raises(BadInput, match="nothing to compare"):
        world.decide(Wish(settle=pair))


# Words


def test_what_to_decide_and_for_how_long_is_read_from_words():
    """
    A pair, and hours, minutes or seconds.
    """
    assert 5400 == time_span("--budget", "1.5h") == time_span("--budget", "90m")
    assert pair_of_types("--settle", "q8_0/q4_0") == Pair("q8_0", "q4_0")
    for wrong in ("2", "h", "-1h", "soon"):
        with pytest.raises(BadInput, match="--budget"):
            time_span("--budget", wrong)


@pytest.mark.real
def test_the_command_screens_asks_and_tells(codeneedle, tmp_path):
    """
    Six functions cannot decide anything, and it says so; again, it has nothing to do.
    """
    corpora = tmp_path / "corpora"
    corpora.mkdir()
    (corpora / "tiny.toml").write_text(TINY, encoding="utf-8")
    command = (
        *("sweep", "--corpus", "tiny", "--context", "2048", "--ask", "written"),
        *("--k-types", "q8_0,q4_0", "--v-types", "q8_0", "--decide"),
        *("--divergence-context", "256", "--chunks", "2", "--budget", "1h"),
    )

    first = codeneedle(*command)
    folder = tmp_path / "sweeps" / "tiny" / "needle-nano"
    cells = sorted(path.name for path in (folder / "cells").iterdir())
    again = codeneedle(*command)

    assert 0 == first.returncode == again.returncode, first.stderr
    assert [
        "q4_0-q8_0.divergence.json",
        "q4_0-q8_0.recall.json",
        "q8_0-q8_0.divergence.json",
        "q8_0-q8_0.recall.json",
    ] == cells
    assert "q4_0/q8_0     undecided: 0 functions lost of" in first.stderr
    assert "2 readings of text" in again.stderr
    setup = json.loads((folder / "setup.json").read_text(encoding="utf-8"))
    assert ["q4_0/q8_0"] == setup["finalists"]
    assert "--decide" not in setup["words"]
    assert not {"--budget", "1h"} & set(setup["words"])


@pytest.mark.real
def test_the_command_decides_by_tasks_too(codeneedle, tmp_path):
    """
    It goes from one text to as many as there may be; again, it has nothing to ask.
    """
    corpora = tmp_path / "corpora"
    corpora.mkdir()
    (corpora / "tiny.toml").write_text(TINY, encoding="utf-8")
    command = (
        *("sweep", "--corpus", "tiny", "--probe", "retrieval", "--tasks", "multivalue"),
        *("--lengths", "512", "--depths", "0.5", "--questions", "2", "--dial", "0"),
        *("--context", "2048", "--k-types", "q8_0,q4_0", "--v-types", "q8_0"),
        *("--decide", "--divergence-context", "256", "--chunks", "2"),
    )

    planned = codeneedle("plan", *command[1:])
    first = codeneedle(*command)
    (cells,) = (tmp_path / "sweeps").glob("*/needle-nano/cells")
    before = {path.name: path.read_bytes() for path in cells.iterdir()}
    again = codeneedle(*command)

    codes = {each.returncode for each in (planned, first, again)}
    assert {0} == codes, first.stderr
    assert "2 readings of text and 4 rounds" in " ".join(planned.stdout.split())
    assert {
        "q4_0-q8_0.divergence.json",
        "q4_0-q8_0.retrieval.json",
        "q8_0-q8_0.divergence.json",
        "q8_0-q8_0.retrieval.json",
    } == set(before)
    assert before == {path.name: path.read_bytes() for path in cells.iterdir()}
    (line,) = (row for row in first.stderr.split("\n") if "lost of" in row)
    assert line.startswith("q4_0/q8_0     ")
    assert line in again.stderr
