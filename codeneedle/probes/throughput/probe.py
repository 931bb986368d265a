"""The throughput probe: prompt and generation speed by depth."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.engines.engine import Ability, Speeds, SpeedTask, SpeedTool
from codeneedle.errors import BadInput, CellError
from codeneedle.grid import Pair, most_precise, most_precise_first
from codeneedle.probes.metrics import METRICS as OF_CELL
from codeneedle.probes.metrics import Metric
from codeneedle.probes.probe import Outlook, Probe, ProbeContext, RunContext, Work
from codeneedle.probes.throughput.metrics import METRICS, at_depths, crossover
from codeneedle.probes.throughput.record import (
    NAME,
    DepthSpeeds,
    Repetitions,
    Throughput,
    ThroughputConditions,
    conditions_of,
    throughput_of,
)
from codeneedle.records.record import (
    CellRecord,
    Json,
    Length,
    Run,
    Setup,
    Status,
    as_json,
)
from codeneedle.system import machine
from codeneedle.text import one_line

DEPTHS = (0, 4096)
"""Tokens; the corpus' own depth comes on top."""

REPETITIONS = 3
PROMPT_TOKENS = 512
GENERATED_TOKENS = 128
"""llama-bench's own sizes, as in most published tables."""

BUILT_IN_DEPTHS = (0, 1024, 4096)
BUILT_IN_PROMPT_TOKENS = 128
BUILT_IN_GENERATED_TOKENS = 32
"""
Smaller for the built-in model: what it takes to see the probe at work, in seconds.

To fill the cache to the depth of its corpus takes three times as long.
"""

OVERLOADED = "measured while more programs computed than there are cores"

LOAD_TIMEOUT_S = 1800.0
"""How long loading may take: a hundred gigabytes from a slow disk."""

SLOWEST_S_PER_TOKEN = 0.25
"""A machine that reads fewer than four tokens per second is given up."""

SLACK_FACTOR = 3.0
"""How many times longer than expected a depth may take."""

SHORTEST_TIMEOUT_S = 120.0
"""What a depth may take in any case: a busy machine, a slow disk."""

NAMED = 4
"""Pairs that a remark names before it counts the others."""


class ThroughputSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty or None for what suits the model."""

    depths: Annotated[
        tuple[Length, ...],
        Meta(
            description="Depths to measure speed at, in tokens.",
            extra={
                "option": "--depths",
                "metavar": "LIST",
                "default": "0,4096 and the corpus",
            },
        ),
    ] = ()
    repetitions: Annotated[
        Repetitions | None,
        Meta(
            description="Measurements of speed at each depth.",
            extra={"option": "--repetitions"},
        ),
    ] = None


def chosen_depths(run: RunContext, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """
    Depths to measure at, in tokens, ascending.

    Those asked for, as they are; else those that suit the model, none of them
    deeper than what the weights were trained for.

    Raises:
        BadInput: If one that was asked for is deeper than that.
    """
    trained = run.weights.training_context
    # Leaves room for both tests.
    deepest = max(0, trained - PROMPT_TOKENS) if trained else None
    for depth in wanted:
        too_deep = deepest is not None and depth > deepest
        if too_deep and not run.engine.stretches_context:
            raise BadInput(
                source=f"--depths {depth}",
                reason=f"these weights were trained for {trained:,} tokens",
                hint=f"Use {deepest} or less; or stretch the context with rope "
                "arguments after --.",
            )
    if wanted:
        return tuple(sorted(set(wanted)))
    if run.is_built_in:
        return BUILT_IN_DEPTHS
    depths = {*DEPTHS, run.setup.corpus.tokens}
    limit = max(depths) if deepest is None else deepest
    return tuple(sorted({min(depth, limit) for depth in depths}))


def timeout_s(
    depth: int, prompt_tokens: int, before: DepthSpeeds | None = None
) -> float:
    """
    How long the tool may be silent at *depth*, in seconds.

    Attention makes the time grow at most with the square of the length, so this
    is an upper bound even for a cell that is all attention.

    Args:
        depth: In tokens.
        prompt_tokens: Read at each depth, beside it.
        before: The depth that was measured before; None for the first one.
    """
    if before is None:
        return LOAD_TIMEOUT_S + SLOWEST_S_PER_TOKEN * depth
    growth = (depth + prompt_tokens) / (before.depth + prompt_tokens)
    return SHORTEST_TIMEOUT_S + SLACK_FACTOR * before.seconds * growth**2


def _faster_than(reference: Pair, crossed: str) -> str:
    """``never writes faster than f16/f16``, or from or until which depth it does."""
    if crossed in {"always", "never"}:
        return f"{crossed} writes faster than {reference}"
    return f"writes faster than {reference} {crossed}"


class ThroughputProbe(Probe):
    """Measures the speed of reading and of writing at each depth."""

    def reads_corpus(self, settings: ThroughputSettings) -> bool:
        """Whether one of the depths is the length of the corpus, as by default."""
        return not settings.depths

    def work(self, settings: ThroughputSettings, outlook: Outlook) -> Work:
        """Both tests at each depth, which is read before each of them."""
        small = outlook.is_built_in
        depths = settings.depths or (BUILT_IN_DEPTHS if small else DEPTHS)
        times = settings.repetitions or REPETITIONS
        read = BUILT_IN_PROMPT_TOKENS if small else PROMPT_TOKENS
        written = BUILT_IN_GENERATED_TOKENS if small else GENERATED_TOKENS
        return Work(
            texts=tuple(
                length for depth in depths for length in (depth + read, depth) * times
            ),
            written=written * times * len(depths),
            depth=sum(depths) // len(depths),
        )

    def conditions(self, run: RunContext) -> Json:
        """
        What to measure, after everything that can be checked before a cell starts.

        Where no depths are chosen, those of the run folder.

        Raises:
            BadInput: If a depth is deeper than the weights were trained for.
            MachineError: If the tool is missing or too old.
        """
        tool = run.engine.speed_tool()
        settings = run.settings_of(ThroughputSettings, NAME)
        small = run.is_built_in
        stored = conditions_of(run.setup)
        return as_json(
            ThroughputConditions(
                depths=stored.depths
                if stored and not settings.depths
                else chosen_depths(run, settings.depths),
                repetitions=settings.repetitions or REPETITIONS,
                prompt_tokens=BUILT_IN_PROMPT_TOKENS if small else PROMPT_TOKENS,
                generated_tokens=BUILT_IN_GENERATED_TOKENS
                if small
                else GENERATED_TOKENS,
                arguments=dict(tool.arguments),
                ignored=tool.ignored,
            )
        )

    def more_metrics(self, setup: Setup) -> tuple[Metric, ...]:
        """Both speeds at each depth, and the memory where the engine reports it."""
        return at_depths(setup)

    def measure(self, context: ProbeContext) -> Json:
        """
        Measure each depth by a process of its own, the shallowest first.

        Those that an earlier record of the cell has stay as they are. A depth that
        fails is a gap, and so are the deeper ones.

        Raises:
            CellError: If the shallowest depth fails, or what runs at any depth is not
                what was asked for.
        """
        chosen = conditions_of(context.run.setup)
        if chosen is None:
            raise ValueError("a setup without conditions of this probe")
        tool = context.run.engine.speed_tool()
        load = round(machine.mean_load() / machine.usable_cores(), 2)
        former = throughput_of(context.former) if context.former else None
        known = {each.depth: each for each in former.speeds} if former else {}
        measured: list[DepthSpeeds] = []
        first: Speeds | None = None
        with context.measuring():
            for depth in chosen.depths:
                speeds, found = known.get(depth), None
                if speeds is None:
                    speeds, found = _at_depth(context, tool, chosen, depth, measured)
                measured.append(speeds)
                first = first or found
        if former is not None:
            load = max(load, former.load)
            return as_json(replace(former, speeds=tuple(measured), load=load))
        if first is None:
            raise ValueError("conditions without depths")
        return as_json(
            Throughput(
                speeds=tuple(measured),
                build=first.build,
                cpu=first.cpu,
                gpu=first.gpu,
                backends=first.backends,
                threads=first.threads,
                load=load,
            )
        )

    def remarks(self, run: Run) -> tuple[str, ...]:
        """
        From which depth on each pair writes faster than the most precise one, which
        were measured beside more programs than there are cores, and how fast those
        were that do not count.

        Pairs of which the same can be said share a line.
        """
        measured = {r.pair: r for r in run.records if r.probe == NAME}
        apart = tuple(_not_compared(measured[p]) for p in most_precise_first(measured))
        return (*_compared(measured), *filter(None, apart))


def _compared(measured: Mapping[Pair, CellRecord]) -> tuple[str, ...]:
    """What is to be said of the pairs that count."""
    records = {pair: each for pair, each in measured.items() if each.has_numbers}
    if not records:
        return ()
    reference = most_precise(records)
    said: dict[str, list[Pair]] = defaultdict(list)
    for pair in most_precise_first(records):
        crossed = crossover(records[pair], records[reference])
        if pair != reference and crossed:
            said[_faster_than(reference, crossed)].append(pair)
        if throughput_of(records[pair]).load > 1:
            said[OVERLOADED].append(pair)
    return tuple(f"{phrase}: {_named(pairs)}" for phrase, pairs in said.items())


def _not_compared(record: CellRecord) -> str:
    """The writing speed of a cell that fell back; empty of others."""
    stored = throughput_of(record).speeds if record.observation else ()
    deepest = next((at for at in reversed(stored) if at.tg), None)
    if record.has_numbers or deepest is None:
        return ""
    speed = math.fsum(deepest.tg) / len(deepest.tg)
    return (
        f"not compared, {record.status.value}: {record.pair} writes "
        f"{speed:,.1f} tokens/s at depth {deepest.depth:,}"
    )


PROBE = ThroughputProbe(
    name=NAME,
    metrics=(*METRICS, *OF_CELL),
    settings=ThroughputSettings,
    layout=ThroughputConditions,
    grows=("depths",),
    needs=frozenset({Ability.SPEED}),
    is_timed=True,
)


def _at_depth(
    context: ProbeContext,
    tool: SpeedTool,
    chosen: ThroughputConditions,
    depth: int,
    before: Sequence[DepthSpeeds],
) -> tuple[DepthSpeeds, Speeds | None]:
    """The speeds at *depth*, a gap behind one that failed; what the tool told of it."""
    failed = next((each for each in before if each.gap), None)
    if failed is not None:
        gap = f"depth {failed.depth:,} failed"
        return DepthSpeeds(depth=depth, status=failed.status, gap=gap), None
    began = time.monotonic()
    try:
        found = _measured(context, tool, chosen, depth, before)
    except CellError as error:
        if not before or error.status == Status.MISMATCHED:
            raise
        gap = one_line(str(error))
        return DepthSpeeds(depth=depth, status=error.status, gap=gap), None
    speeds = DepthSpeeds(
        depth=depth,
        pp=found.pp,
        tg=found.tg,
        seconds=round(time.monotonic() - began, 3),
        peak_bytes=found.peak_bytes,
    )
    return speeds, found


def _measured(
    context: ProbeContext,
    tool: SpeedTool,
    chosen: ThroughputConditions,
    depth: int,
    before: Sequence[DepthSpeeds],
) -> Speeds:
    total, done = len(chosen.depths), len(before)
    context.step(done, total, f"depth {depth:,}")
    return tool.measure(
        SpeedTask(
            pair=context.pair,
            depth=depth,
            prompt_tokens=chosen.prompt_tokens,
            generated_tokens=chosen.generated_tokens,
            repetitions=chosen.repetitions,
        ),
        log=context.log(f"{NAME}-{depth}"),
        silence_s=timeout_s(
            depth, chosen.prompt_tokens, before[-1] if before else None
        ),
        note=context.observe_tool,
        progress=lambda what: context.step(done, total, f"depth {depth:,}: {what}"),
    )


def _named(pairs: list[Pair]) -> str:
    named = ", ".join(str(pair) for pair in pairs[:NAMED])
    more = len(pairs) - NAMED
    return f"{named} and {more} more" if more > 0 else named
