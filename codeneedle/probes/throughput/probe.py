"""
The throughput probe: depths and tokens of its tests by default, how long a tool may be
silent, gaps behind a depth that fails, and remarks on speeds that are not compared.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from msgspec import structs
from typing_extensions import override

from codeneedle.cache_types import Pair, most_precise_first
from codeneedle.engines.engine import Ability, Engine
from codeneedle.engines.pace import Price
from codeneedle.engines.tools import Speeds, SpeedTask, SpeedTool
from codeneedle.errors import BadInput, CellError
from codeneedle.models.weights import Weights
from codeneedle.probes.cell import ProbeContext, RunContext
from codeneedle.probes.cell_metrics import OF_CELL
from codeneedle.probes.estimates import Bill, Estimates
from codeneedle.probes.metrics import Metric
from codeneedle.probes.observations import merge_chosen_settings, settings_in
from codeneedle.probes.probe import Probe, Question
from codeneedle.probes.throughput.crossover import crossover_phrase
from codeneedle.probes.throughput.metrics import (
    METRICS,
    is_measured_once,
    metrics_at_depths,
)
from codeneedle.probes.throughput.record import (
    NAME,
    DepthSpeeds,
    Throughput,
    ThroughputLayout,
    ThroughputSettings,
    throughput_layout,
    throughput_of,
)
from codeneedle.records.record import (
    Attention,
    CellRecord,
    Json,
    Run,
    Setup,
    Status,
    as_json,
)
from codeneedle.reference import reference_among
from codeneedle.system import machine
from codeneedle.text import one_line, plural

DEPTHS = (0, 4096)
"""Default depths in tokens; the length of the corpus is added."""

PROMPT_TOKENS = 512
GENERATED_TOKENS = 128
"""The defaults of llama-bench, as in most published tables."""

BUILT_IN_DEPTHS = (0, 1024, 4096)
BUILT_IN_PROMPT_TOKENS = 128
BUILT_IN_GENERATED_TOKENS = 32
"""
Sizes for the built-in model, to see the probe at work within seconds.

Filling the cache to the length of its corpus would take three times as long.
"""

ONCE = "measured once, so no speed is called higher (--repetitions 3)"

OVERLOADED = "measured while more programs computed than there are cores"

LOAD_TIMEOUT_S = 1800.0
"""Time limit of loading: a hundred gigabytes from a slow disk."""

SLOWEST_S_PER_TOKEN = 0.25
"""Slowest reading that is waited for: four tokens per second."""

SLACK_FACTOR = 3.0
"""Time limit of a depth, as a multiple of the expected time."""

SHORTEST_TIMEOUT_S = 120.0
"""Least time limit of a depth: a busy machine, a slow disk."""

NAMED = 4
"""Most pairs that a remark names; it counts the others."""


def default_depths(run: RunContext) -> tuple[int, ...]:
    """The depths for model and text, in tokens, ascending; none beyond the training."""
    if run.is_built_in:
        return BUILT_IN_DEPTHS
    depths = {*DEPTHS, run.setup.corpus.tokens}
    deepest = _deepest_depth(run.weights)
    limit = max(depths) if deepest is None else deepest
    return tuple(sorted({min(depth, limit) for depth in depths}))


def _deepest_depth(weights: Weights) -> int | None:
    """The depth that leaves room for a prompt; None if nothing limits it."""
    trained = weights.training_context
    return max(0, trained - PROMPT_TOKENS) if trained else None


def silence_limit_s(
    depth: int, prompt_tokens: int, before: DepthSpeeds | None = None
) -> float:
    """
    How long the tool may be silent at *depth*, in seconds.

    Time grows at most with the square of the length, by attention, so this is an upper
    bound even if all time is attention.

    Args:
        depth: In tokens.
        prompt_tokens: Tokens that are read after it.
        before: The depth that was measured before; None for the first one.
    """
    if before is None:
        return LOAD_TIMEOUT_S + SLOWEST_S_PER_TOKEN * depth
    growth = (depth + prompt_tokens) / (before.depth + prompt_tokens)
    return SHORTEST_TIMEOUT_S + SLACK_FACTOR * before.seconds * growth**2


def _prompt_and_generated_tokens(*, is_built_in: bool) -> tuple[int, int]:
    """Tokens that each repetition reads, and that it writes."""
    if is_built_in:
        return BUILT_IN_PROMPT_TOKENS, BUILT_IN_GENERATED_TOKENS
    return PROMPT_TOKENS, GENERATED_TOKENS


class ThroughputProbe(Probe):
    """Measures the speed of reading and writing at each depth."""

    @override
    def own_text_name(
        self, settings: ThroughputSettings, _engine: Engine
    ) -> str | None:
        """Empty if depths are chosen; else None: one is the length of the corpus."""
        return "" if settings.depths else None

    @override
    def bill(self, settings: ThroughputSettings, estimates: Estimates) -> Bill:
        """Both tests at each depth, each after reading up to that depth."""
        is_built_in = estimates.is_built_in
        depths = settings.depths or (BUILT_IN_DEPTHS if is_built_in else DEPTHS)
        times = settings.repetition_count
        read, written = _prompt_and_generated_tokens(is_built_in=is_built_in)
        texts = [length for depth in depths for length in (depth + read, depth) * times]
        price = Price.of_cell(
            texts,
            written=written * times * len(depths),
            depth=sum(depths) // len(depths),
        )
        return Bill(price=price)

    @override
    def adapt(
        self, settings: ThroughputSettings, estimates: Estimates
    ) -> ThroughputSettings:
        """
        *settings*, else those of the run folder, with depths in ascending order.

        Raises:
            BadInput: If a depth exceeds the context that the weights were trained for.
            MachineError: If the tool is missing or too old.
        """
        estimates.engine.speed_tool()
        deepest = _deepest_depth(estimates.weights)
        for depth in settings.depths:
            if (
                estimates.trained_context_limit
                and deepest is not None
                and depth > deepest
            ):
                raise BadInput(
                    source=f"--depths {depth}",
                    reason="these weights were trained for "
                    f"{estimates.trained_context_limit:,} tokens",
                    hint=f"Use {deepest} or less; or stretch the context with rope "
                    "arguments after --.",
                )
        if estimates.setup:
            known = settings_in(estimates.setup, NAME, ThroughputSettings)
            settings = merge_chosen_settings(known, settings)
        return structs.replace(settings, depths=tuple(sorted({*settings.depths})))

    @override
    def as_stored(self, settings: ThroughputSettings, run: RunContext) -> Json:
        """With default depths, and what follows from model and tool."""
        tool = run.engine.speed_tool()
        read, written = _prompt_and_generated_tokens(is_built_in=run.is_built_in)
        return as_json(
            ThroughputLayout(
                depths=settings.depths or default_depths(run),
                repetitions=settings.repetition_count,
                prompt_tokens=read,
                generated_tokens=written,
                arguments=dict(tool.arguments),
            )
        )

    @override
    def metrics_of(self, setup: Setup) -> tuple[Metric, ...]:
        """With both speeds and the peak memory at each depth."""
        return (*self.metrics, *metrics_at_depths(setup))

    @override
    def questions(self, setup: Setup, _goal: int | None = None) -> Iterator[Question]:
        """A question for each depth, ascending."""
        chosen = throughput_layout(setup)
        return map(Question, map(str, chosen.depths if chosen else ()))

    @override
    def measure(self, context: ProbeContext) -> Json:
        """
        Measure each depth in a separate process, in ascending order.

        Depths of an earlier record of the cell are kept. A depth that fails is a gap,
        and so are all greater ones.

        Raises:
            CellError: If the smallest depth fails, or the tool runs with another
                configuration than requested.
        """
        chosen = throughput_layout(context.run.setup)
        if chosen is None:
            raise ValueError("a setup without this probe")
        tool = context.run.engine.speed_tool()
        load = round(machine.present_load().per_core, 2)
        previous = (
            throughput_of(context.previous_record) if context.previous_record else None
        )
        known = {at.depth: at for at in previous.speeds} if previous else {}
        measured: list[DepthSpeeds] = []
        first: Speeds | None = None
        with context.record_tool_time():
            for depth in chosen.depths:
                speeds, report = known.get(depth), None
                if speeds is None:
                    speeds, report = _measure_depth_or_gap(
                        context, tool, chosen, depth, measured
                    )
                measured.append(speeds)
                first = first or report
        answers = {str(at.depth): at for at in measured}
        if previous is not None:
            load = max(load, previous.load)
            return as_json(replace(previous, answers=answers, load=load))
        if first is None:
            raise ValueError("settings without depths")
        return as_json(
            Throughput(
                answers=answers,
                build=first.build,
                cpu=first.cpu,
                gpu=first.gpu,
                backends=first.backends,
                threads=first.threads,
                load=load,
            )
        )

    @override
    def remarks(self, run: Run) -> tuple[str, ...]:
        """
        Depths at which pairs write faster than the most precise one, pairs that were
        measured on a busy machine, and speeds of pairs that are not compared.

        Pairs with the same remark share a line.
        """
        measured = {r.pair: r for r in run.records if r.probe == NAME}
        apart = tuple(
            _speed_without_kernel_phrase(measured[p])
            for p in most_precise_first(measured)
        )
        return (*_remarks_on_pairs(measured), *filter(None, apart))


def _remarks_on_pairs(measured: Mapping[Pair, CellRecord]) -> tuple[str, ...]:
    """Remarks on pairs that ran as usual, each with its pairs; none if none did."""
    records = {
        pair: record
        for pair, record in measured.items()
        if record.has_numbers and record.ran_as_usual
    }
    reference = reference_among(records.values())
    if reference is None:
        return ()
    remarks: dict[str, list[Pair]] = defaultdict(list)
    for pair in most_precise_first(records):
        depths = crossover_phrase(records[pair], records[reference])
        if pair != reference and depths:
            phrase = f"writes faster than {reference}"
            is_adverb = depths in {"always", "never"}
            phrase = f"{depths} {phrase}" if is_adverb else f"{phrase} {depths}"
            remarks[phrase].append(pair)
        if is_measured_once(records[pair]):
            remarks[ONCE].append(pair)
        if throughput_of(records[pair]).load > 1:
            remarks[OVERLOADED].append(pair)
    return tuple(
        f"{phrase}: {_first_pairs_phrase(pairs)}" for phrase, pairs in remarks.items()
    )


def _speed_without_kernel_phrase(record: CellRecord) -> str:
    """Writing speed at the greatest depth; empty if it ran as usual, or without one."""
    stored = throughput_of(record).speeds if record.observation else ()
    deepest = next((at for at in reversed(stored) if at.tg), None)
    if record.ran_as_usual or deepest is None:
        return ""
    where = "converted to f16"
    if record.attention is Attention.CPU:
        where = "attention on the CPU"
    return (
        f"not compared, {where}: {record.pair} writes "
        f"{fmean(deepest.tg):,.1f} tokens/s at depth {deepest.depth:,}"
    )


PROBE = ThroughputProbe(
    name=NAME,
    purpose="speed by depth",
    metrics=(*METRICS, *OF_CELL),
    settings=ThroughputSettings,
    layout=ThroughputLayout,
    needs=frozenset({Ability.SPEED}),
    is_timed=True,
    step="depth",
)


def _measure_depth_or_gap(
    context: ProbeContext,
    tool: SpeedTool,
    chosen: ThroughputLayout,
    depth: int,
    before: Sequence[DepthSpeeds],
) -> tuple[DepthSpeeds, Speeds | None]:
    """
    The speeds at *depth*, or a gap; and the report of the tool, None without.

    Behind a gap all are; the first depth's failure ends the cell, as does a mismatch.
    """
    failed = next((at for at in before if at.gap), None)
    if failed is not None:
        gap = f"depth {failed.depth:,} failed"
        return DepthSpeeds(depth=depth, status=failed.status, gap=gap), None
    began = context.clock()
    try:
        report = _measure_depth(context, tool, chosen, depth, before)
    except CellError as error:
        if not before or error.status == Status.MISMATCHED:
            raise
        gap = one_line(str(error))
        return DepthSpeeds(depth=depth, status=error.status, gap=gap), None
    speeds = DepthSpeeds(
        depth=depth,
        pp=report.pp,
        tg=report.tg,
        seconds=round(context.clock() - began, 3),
        peak_bytes=report.peak_bytes,
    )
    return speeds, report


def _measure_depth(
    context: ProbeContext,
    tool: SpeedTool,
    chosen: ThroughputLayout,
    depth: int,
    before: Sequence[DepthSpeeds],
) -> Speeds:
    """Run the tool at *depth*; its limit of silence grows from the depth before."""
    total, done = len(chosen.depths), len(before)
    where = f"after {plural(depth, 'token')}"
    context.report_step(done, total, where)
    return tool.measure(
        SpeedTask(
            pair=context.pair,
            depth=depth,
            prompt_tokens=chosen.prompt_tokens,
            generated_tokens=chosen.generated_tokens,
            repetitions=chosen.repetition_count,
        ),
        log=context.cell_log_path(f"{NAME}-{depth}"),
        silence_s=silence_limit_s(
            depth, chosen.prompt_tokens, before[-1] if before else None
        ),
        note=context.record_tool_run,
        progress=lambda what: context.report_step(done, total, f"{where}: {what}"),
    )


def _first_pairs_phrase(pairs: list[Pair]) -> str:
    """``f16/f16, q8_0/q8_0 and 3 more``: the first `NAMED` of *pairs*."""
    names = ", ".join(str(pair) for pair in pairs[:NAMED])
    more = len(pairs) - NAMED
    return f"{names} and {more} more" if more > 0 else names
