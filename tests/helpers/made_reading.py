"""An engine whose tool reads right tokens, and cells of runs on it."""

from fake_engine import FakeEngine
from made_contexts import run_context
from made_records import asking_recall, made_setup

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability
from codeneedle.engines.tools import ReadTokens, ToolRun
from codeneedle.probes.cell import ProbeContext
from codeneedle.records.record import Effective

READING = {"way": ["read"], "functions": 4}


class HalfTool:
    """A `ReadingTool` that scores second halves; it keeps what it was asked."""

    version = "1.2 (fake)"

    def __init__(self, error=None, memory_bytes=0, logprob=-0.5, lead=1.0):
        self.tasks, self.error, self.needed = [], error, memory_bytes
        self.logprob, self.lead = logprob, lead

    def scorable_places(self, tokens):
        return range(tokens // 2 + 1, tokens)

    def bytes_needed_to_read(self, _tokens):
        return self.needed

    def read_and_score(self, task, *, log, note):
        note(ToolRun(command=("read", str(log)), effective=Effective()))
        self.tasks.append(task)
        if self.error:
            raise self.error
        count = len(task.wanted)
        return ReadTokens(
            logprobs=(self.logprob,) * count, leads=(self.lead,) * count, bounds=(1,)
        )


class ReadingEngine(FakeEngine):
    """A `FakeEngine` with a tool that reads."""

    tool = None

    def reading_tool(self):
        return self.tool


def made_engine(**tool):
    """An engine whose tool behaves so."""
    engine = ReadingEngine(abilities=frozenset(Ability))
    engine.tool = HalfTool(**tool)
    return engine


def made_context(folder, engine, *, conditions=READING, pair="q8_0/q4_0", **changes):
    """A cell of a run with five functions to be read, four in every sweep."""
    setup = asking_recall(made_setup(needles=3, forced=5), conditions)
    run = run_context(folder, engine, setup=setup, text="CORPUS\n" * 99)
    return ProbeContext(run=run, pair=Pair.parse(pair), logs=folder, **changes)
