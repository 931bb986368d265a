"""What every probe keeps to: a new one is found here by its name alone."""

import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_engine import forced_to, reply_to
from fake_tools import FakeDivergence, FakeSpeed, ToolEngine
from made_conversations import FakeTemplate, made_conversation
from made_plans import made_world, planned

from codeneedle.cache_types import Pair
from codeneedle.engines.messages import NoScores
from codeneedle.probes import PROBES
from codeneedle.probes.divergence.probe import DivergenceSettings
from codeneedle.probes.frames import cells_frame, reference_pair
from codeneedle.probes.generation.probe import GenerationSettings
from codeneedle.probes.probe import Probe, answered_or_skipped_keys
from codeneedle.probes.recall.settings import RecallSettings
from codeneedle.probes.retrieval.settings import RetrievalSettings
from codeneedle.probes.reuse.probe import ReuseSettings
from codeneedle.probes.throughput.probe import ThroughputSettings
from codeneedle.probes.transcript.record import TranscriptSettings
from codeneedle.records.record import Run, Status
from codeneedle.scores import ComputesNan
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.runner import Runner

SETTINGS = {
    "recall": RecallSettings(functions=3, lines=2),
    "divergence": DivergenceSettings(
        file=Path("prose.txt"), contexts=(512, 1024), chunks=(2,)
    ),
    "throughput": ThroughputSettings(depths=(0, 64)),
    "retrieval": RetrievalSettings(tasks=("multikey",), lengths=(512,), questions=1),
    "reuse": ReuseSettings(length=512, questions=2),
    "transcript": TranscriptSettings(file=Path("said.json")),
    "generation": GenerationSettings(tokens=64),
}
"""Little of each probe."""

ELSEWHERE = {"eval": "runs a program against a real server"}
"""Probes that an engine without a process cannot serve, and why."""

AT_ONCE = {"throughput": "its times are of one stretch"}
"""Probes of which nothing is kept before the cell is through, and why."""

PAIRS = tuple(map(Pair.parse, ("q8_0/q8_0", "q4_0/q4_0")))


def good_answer(question):
    """What stands in the text behind the last line of the prompt, if it does."""
    text, _, begin = question.prompt.rpartition("\n")
    lines = (e.removeprefix(begin) for e in text.split("\n") if e.startswith(begin))
    found = next(lines, "") if begin else ""
    return f"{found or 'an answer'}\nmore\n"


@dataclass
class Asked:
    """Counts what servers and tools are asked; ends the sweep at one question."""

    ends_at: int = 0
    count: int = 0
    first: Exception | None = None  # what the first question fails with
    scores: Exception | None = None  # what the first right answer fails with

    def forced(self):
        """As a call, of a right answer that is scored."""
        self()
        if self.scores:
            failed, self.scores = self.scores, None
            raise failed

    def __call__(self):
        self.count += 1
        if self.first and self.count == 1:
            raise self.first
        if self.count == self.ends_at:
            raise KeyboardInterrupt


@dataclass
class World:
    """A run folder in which sweeps of one probe go on."""

    probe: Probe
    asked: Asked = field(default_factory=Asked)
    tool: FakeDivergence = field(default_factory=FakeDivergence)

    def engine(self):
        """A new engine, as of a new process."""

        def reply(question):
            self.asked()
            text, at = good_answer(question), float(self.asked.count)
            return reply_to(question, text=text, predicted_tokens=3, wall_s=at)

        def force(question, right):
            self.asked.forced()
            return forced_to(question, right, wall_s=float(self.asked.count))

        speed = FakeSpeed(outcome=lambda _task: self.asked())
        self.tool.outcome = lambda _pair: self.asked()
        template = FakeTemplate()
        return ToolEngine(
            reply=reply,
            force=force,
            divergence=self.tool,
            speed=speed,
            template=template,
        )

    def plan(self, settings):
        name = self.probe.name
        return planned(engine=self.engine(), probes=(name,), **{name: settings})

    def sweep(self):
        """Measure what is left; the records by pair, and how often was asked."""
        plan = self.plan(SETTINGS[self.probe.name])
        runner = Runner(run=prepare_run_and_store_setup(plan), store=plan.store)
        before = self.asked.count
        try:
            runner.measure_pairs(self.probe, PAIRS)
        finally:
            self.setup = plan.store.read_setup()
            self.records = {
                record.pair: record
                for record in plan.store.read_records()
                if record.probe == self.probe.name
            }
        return self.asked.count - before


@pytest.fixture(params=sorted(PROBES.keys() - ELSEWHERE.keys()))
def new_world(request, tmp_path, monkeypatch):
    """Makes a world of each probe, in a folder of its own."""
    number = itertools.count()

    def new():
        folder = tmp_path / str(next(number))
        folder.mkdir()
        made_world(folder, monkeypatch)
        (folder / "prose.txt").write_text("a line of prose\n" * 400)
        said = [made_conversation(1, seed=seed) for seed in (1, 2)]
        (folder / "said.json").write_text(json.dumps(said))
        return World(PROBES[request.param])

    return new


@pytest.fixture
def world(new_world):
    """One world."""
    return new_world()


def told(record):
    """What was answered, without times."""
    observation = json.loads(json.dumps(record.observation))

    def timeless(value):
        if isinstance(value, dict):
            times = ("_s", "_ms", "seconds")
            return {k: timeless(v) for k, v in value.items() if not k.endswith(times)}
        return [*map(timeless, value)] if isinstance(value, list) else value

    return timeless(observation["answers"])


def test_a_finished_cell_has_all_answers_and_is_not_asked_again(world):
    first = world.sweep()
    again = world.sweep()

    assert [Status.FINISHED] * 2 == [each.status for each in world.records.values()]
    for record in world.records.values():
        asked = {question.key for question in world.probe.questions(world.setup)}
        assert asked <= answered_or_skipped_keys(record)
    assert first > again == 0


def test_the_setup_is_the_same_to_the_byte_before_the_reference_and_behind_all(world):
    plan = world.plan(SETTINGS[world.probe.name])
    prepare_run_and_store_setup(plan)
    file = plan.store.folder / "setup.json"
    before = file.read_bytes()

    world.sweep()
    world.sweep()

    assert before == file.read_bytes()
    is_settled = (plan.store.folder / "settled.json").exists()
    assert is_settled == (world.probe.calibrating is not None)


def test_an_interrupted_cell_goes_on_behind_its_answers(new_world):
    undisturbed = new_world()
    whole = undisturbed.sweep()
    world = new_world()
    world.asked.ends_at = whole  # the last question of the last cell

    with pytest.raises(KeyboardInterrupt):
        world.sweep()
    begun = {record.status: record for record in world.records.values()}
    kept = (begun[Status.INTERRUPTED].observation or {}).get("answers", {})
    world.sweep()

    assert {Status.FINISHED, Status.INTERRUPTED} == begun.keys()
    after = world.records[begun[Status.INTERRUPTED].pair].observation["answers"]
    # With their times: they were not asked again.
    assert bool(kept) == (world.probe.name not in AT_ONCE)
    assert kept == {key: after[key] for key in kept}
    expected = {pair: told(record) for pair, record in undisturbed.records.items()}
    assert expected == {pair: told(record) for pair, record in world.records.items()}


WITHOUT_NAN = {"throughput": "its tools tell times and no numbers of a model"}
"""Probes that cannot see NaN, and why."""


def test_a_pair_that_computes_nan_is_a_gap_and_never_the_reference(new_world):
    world = new_world()
    world.asked.first = ComputesNan(token=9)
    if world.probe.name in WITHOUT_NAN:
        pytest.skip(WITHOUT_NAN[world.probe.name])

    world.sweep()

    (gap,) = (each for each in world.records.values() if not each.has_numbers)
    (other,) = (each for each in world.records.values() if each.has_numbers)
    assert gap.computes_nan
    assert (Status.UNSUPPORTED, None) == (gap.status, gap.observation)
    run = Run(name="r", setup=world.setup, records=(gap, other))
    metric = world.probe.metrics_of(world.setup)[0]
    cells = cells_frame(run, metric)
    assert other.pair == reference_pair(cells)
    assert not next(cell for cell in cells if cell.pair == gap.pair).has_value


def test_an_answer_with_impossible_numbers_costs_no_cell(new_world):
    """It is left out: of the next questions there are scores."""
    world = new_world()
    world.asked.scores = NoScores("a log-probability of 7.5")

    world.sweep()

    assert {Status.FINISHED} == {each.status for each in world.records.values()}


def test_metrics_of_a_finished_cell_are_numbers(world):
    world.sweep()

    values = [
        value
        for metric in world.probe.metrics_of(world.setup)
        for record in world.records.values()
        for value in metric.values(record, world.setup)
    ]
    assert values
    assert all(map(math.isfinite, values))


def test_answers_name_their_text_if_there_are_texts_of_several_lengths(world):
    world.sweep()
    records = tuple(world.records.values())
    run = Run(name="", setup=world.setup, records=records)

    named = {
        bool(answer.text)
        for record in records
        for answer in world.probe.answers(run, record)
    }

    assert named <= {world.probe.asks_by_length}


def test_every_probe_is_held_to_it():
    assert PROBES.keys() == SETTINGS.keys() | ELSEWHERE.keys()
