"""Tools without a process: they compare and measure as a test wishes."""

from dataclasses import dataclass, field, replace

from fake_engine import FakeEngine

from codeneedle.engines.tools import (
    ChunkValues,
    Comparison,
    Estimate,
    Reference,
    Speeds,
    Statistics,
    ToolRun,
)
from codeneedle.records.record import Effective


@dataclass
class ToolEngine(FakeEngine):
    """A `FakeEngine` with tools."""

    divergence: "FakeDivergence | None" = None
    speed: "FakeSpeed | None" = None

    def divergence_tool(self):
        return self.divergence

    def speed_tool(self):
        return self.speed


def made_statistics(kld=0.25, **changes):
    """Statistics of a pair whose mean divergence is *kld*."""
    values = Statistics(
        ppl=Estimate(6.0, 0.5),
        ppl_base=Estimate(4.0, 0.5),
        ppl_ratio=Estimate(1.5, 0.01),
        kld=Estimate(kld, 0.01),
        kld_max=9.0,
        kld_999=4.0,
        kld_99=3.0,
        kld_95=2.0,
        kld_90=1.0,
        kld_median=0.1,
        kld_min=0.0,
        dp_mean=Estimate(0.0, 0.1),
        dp_rms=Estimate(7.0, 0.2),
        same_top=Estimate(88.0, 1.0),
    )
    return replace(values, **changes)


@dataclass
class FakeDivergence:
    """An `tools.DivergenceTool`; it raises the errors that *outcome* has of a pair."""

    outcome: object = lambda _pair: None
    reference_attention: object = None
    tasks: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    checked: list = field(default_factory=list)
    kept: dict = field(default_factory=dict)

    perplexities: dict = field(default_factory=dict)
    """Of the reference as it is read back, by the pair that is compared."""

    untold: frozenset = frozenset()
    """Pairs whose log had no end, and so no perplexity."""

    logprob: object = lambda _pair, _place: None
    """Log-probability of a scored token of a pair; None of a tool that tells none."""

    version = "1.2 (fake)"
    arguments = ("-t", "1")

    def check(self, **asked):
        self.checked.append(asked)

    def bytes_to_write(self, _folder, *, context, chunks):
        return 0 if any(at == context for _, at in self.kept) else 1000 * chunks

    def find_stored_reference(self, task):
        return self.kept.get((task.reference, task.context))

    def write_reference(self, task, *, log, note, progress):
        self._run(
            "write", task.reference, task, note, attention=self.reference_attention
        )
        progress(task.chunks)
        self.kept[task.reference, task.context] = made = Reference(
            chunks=task.chunks, ppl=4.0, seconds=2.5
        )
        return made

    def compare(self, task, reference, *, log, note, progress):
        self._run("compare", task.pair, task, note)
        progress(1)
        values = ChunkValues(logp=-1.5, kld=0.25, same_top=88.0)
        base = Estimate(self.perplexities.get(str(task.pair), 4.0), 0.5)
        tokens = (task.context // 2 - 1) * reference.chunks
        told = [self.logprob(task.pair, at) for at in range(tokens)]
        is_told = None not in told
        statistics = made_statistics(ppl_base=base)
        if str(task.pair) in self.untold:
            statistics = replace(statistics, ppl=None)
        return Comparison(
            statistics=statistics,
            tokens=tokens,
            by_chunk=(values,) * reference.chunks,
            logprobs=tuple(told) if is_told else (),
            first_choices=60.0 if is_told else 0.0,
        )

    def _run(self, what, pair, task, note, *, attention=None):
        name = f"{what} {pair}@{task.context}"
        self.tasks.append(task)
        self.calls.append(name)
        run = ToolRun(command=("tool", name))
        note(run)
        error = self.outcome(pair)
        if error is not None:
            raise error
        effective = Effective(build=str(pair), attention=attention)
        note(replace(run, effective=effective))


@dataclass
class FakeSpeed:
    """An `tools.SpeedTool`; it raises the errors that *outcome* has of a task."""

    outcome: object = lambda _task: None
    attention: object = None
    tasks: list = field(default_factory=list)
    limits_s: list = field(default_factory=list)

    @property
    def arguments(self):
        return {"--threads": "1"}

    def measure(self, task, *, log, silence_s, note, progress):
        self.tasks.append(task)
        self.limits_s.append(silence_s)
        run = ToolRun(command=("bench", str(task.depth)))
        note(run)
        error = self.outcome(task)
        if error is not None:
            raise error
        progress("prompt run 1/2")
        effective = Effective(build="7 (fake)", attention=self.attention)
        note(replace(run, effective=effective))
        return Speeds(
            pp=(200.0, 100.0),
            tg=(20.0, 10.0),
            build="7 (fake)",
            cpu="C",
            gpu="",
            backends="CPU",
            threads=1,
        )
