"""The throughput probe: prompt and generation speed by depth, by llama-bench."""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.analysis.throughput import (
    METRICS,
    NAME,
    DepthSpeeds,
    Throughput,
    ThroughputSetup,
    crossover,
    more_metrics,
    settings_of,
)
from codeneedle.engines.llama_cpp import arguments, log
from codeneedle.engines.llama_cpp import arguments as benchargs
from codeneedle.engines.llama_cpp.arguments import ROTATION_VARIABLE, Translated
from codeneedle.engines.llama_cpp.bench import (
    AskedTests,
    BenchResult,
    BenchRow,
    NoResult,
    differences,
    followed,
    read_result,
)
from codeneedle.engines.llama_cpp.log import Asked, mismatches
from codeneedle.engines.llama_cpp.server import LOAD_TIMEOUT_S, Mismatched
from codeneedle.errors import CellError, MachineError, RequestError
from codeneedle.grid import Pair, most_precise, precision
from codeneedle.probes.probe import Measurement, Probe, Stage, Step
from codeneedle.records.record import Effective, Json, Phases, Run, as_json
from codeneedle.sweep import plan as planning
from codeneedle.sweep.plan import ContextTooLong, Plan
from codeneedle.system import processes

NAMED = 4
"""Pairs that a remark names before it counts the others."""


def remarks(run: Run) -> tuple[str, ...]:
    """
    From which depth on each pair writes faster than the most precise one.

    Pairs of which the same can be said share a line.
    """
    records = {r.pair: r for r in run.records if r.probe == NAME and r.has_numbers}
    if not records:
        return ()
    reference = most_precise(records)
    said: dict[str, list[Pair]] = defaultdict(list)
    for pair in sorted(records, key=lambda p: (*precision(p.k), *precision(p.v))):
        crossed = crossover(records[pair], records[reference])
        if pair != reference and crossed is not None:
            said[str(crossed)].append(pair)
    return tuple(
        f"writes faster than {reference} {when}: {_named(pairs)}"
        for when, pairs in said.items()
    )


def _named(pairs: list[Pair]) -> str:
    named = ", ".join(str(pair) for pair in pairs[:NAMED])
    more = len(pairs) - NAMED
    return f"{named} and {more} more" if more > 0 else named


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

ASK_TIMEOUT_S = 60.0
"""Long: the first start on a GPU may compile its kernels."""


class BenchMissing(MachineError):  # noqa: N818 - named after the fact
    """No llama-bench beside llama-server."""

    def __init__(self, *, server: Path) -> None:
        super().__init__(
            f"llama-bench is not beside {server}",
            hint="Build all three programs with 'codeneedle llama', or leave out the "
            "probe throughput.",
        )


class BenchTooOld(MachineError):  # noqa: N818 - named after the fact
    """A llama-bench without an option that this probe needs."""

    def __init__(self, *, bench: Path, missing: str) -> None:
        super().__init__(
            f"{bench} has no option {missing}",
            hint="Use a newer llama.cpp: 'codeneedle llama' builds one.",
        )


class DepthTooDeep(RequestError):  # noqa: N818 - named after the fact
    """A depth that these weights were not trained for."""

    def __init__(self, *, depth: int, deepest: int) -> None:
        super().__init__(
            f"depth {depth:,} is too deep for these weights",
            hint=f"They take --depths up to {deepest}; or stretch the context on "
            "purpose with rope arguments after --.",
        )


class CommaInPath(RequestError):  # noqa: N818 - named after the fact
    """llama-bench would take the path for several."""

    def __init__(self, *, path: Path) -> None:
        super().__init__(
            f"llama-bench cannot take weights with a comma in their path: {path}",
            hint="Rename the file or its folder, or use a symbolic link without one.",
        )


_DepthTokens = Annotated[int, Meta(ge=0)]
_Repetitions = Annotated[int, Meta(ge=1)]


class ThroughputSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a user may choose; empty or None for what suits the model."""

    depths: Annotated[
        tuple[_DepthTokens, ...],
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
        _Repetitions | None,
        Meta(
            description="Measurements of speed at each depth.",
            extra={"option": "--repetitions"},
        ),
    ] = None


def _asked(plan: Plan) -> ThroughputSettings:
    found = plan.request.settings.get(NAME, ThroughputSettings())
    if not isinstance(found, ThroughputSettings):
        raise TypeError(found)
    return found


def conditions(plan: Plan, _text: str) -> Json:
    """
    What to measure, after everything that can be checked before a cell starts.

    Reads the corpus' depth from the run folder, so its setup must be there,
    unless the depths were asked for.

    Raises:
        BenchMissing: If there is no llama-bench.
        BenchTooOld: If it lacks an option that is needed.
        RequestError: If it was asked for something impossible.
    """
    if plan.tools.bench is None:
        raise BenchMissing(server=plan.tools.server)
    if "," in str(plan.weights.path):
        raise CommaInPath(path=plan.weights.path)
    options = asked_options(plan.tools.bench)
    repetitions = _asked(plan).repetitions
    small = plan.is_built_in
    understood = arguments.translated(plan.request.server_args, options)
    return as_json(
        ThroughputSetup(
            depths=chosen_depths(plan),
            repetitions=repetitions or REPETITIONS,
            prompt_tokens=BUILT_IN_PROMPT_TOKENS if small else PROMPT_TOKENS,
            generated_tokens=BUILT_IN_GENERATED_TOKENS if small else GENERATED_TOKENS,
            arguments=_arguments(plan, understood, options),
            ignored=understood.ignored,
        )
    )


def asked_options(bench: Path) -> frozenset[str]:
    """
    The options of *bench*.

    Raises:
        BenchTooOld: If one that is needed is missing.
        MachineError: If it cannot be asked.
    """
    answer = processes.output_of([str(bench), "--help"], timeout_s=ASK_TIMEOUT_S)
    help_text = answer.stdout + answer.stderr
    options = arguments.options_in(help_text)
    for name in arguments.NEEDED:
        if name not in options:
            raise BenchTooOld(bench=bench, missing=name)
    if "jsonl" not in help_text:
        raise BenchTooOld(bench=bench, missing="--output jsonl")
    return options


def chosen_depths(plan: Plan) -> tuple[int, ...]:
    """
    Depths to measure at, in tokens, ascending.

    Those asked for, as they are; else those that suit the model, none of them
    deeper than what the weights were trained for.

    Raises:
        DepthTooDeep: If one that was asked for is deeper than that.
    """
    deepest = _deepest(plan)
    asked = _asked(plan).depths
    for depth in asked:
        if deepest is not None and depth > deepest and not _is_stretched(plan, depth):
            raise DepthTooDeep(depth=depth, deepest=deepest)
    if asked:
        return tuple(sorted(set(asked)))
    if plan.is_built_in:
        return BUILT_IN_DEPTHS
    depths = {*DEPTHS, _corpus_depth(plan)}
    limit = max(depths) if deepest is None else deepest
    return tuple(sorted({min(depth, limit) for depth in depths}))


def _deepest(plan: Plan) -> int | None:
    """The depth that leaves room for both tests; None if nothing is known."""
    trained = plan.weights.training_context
    return max(0, trained - PROMPT_TOKENS) if trained else None


def _is_stretched(plan: Plan, depth: int) -> bool:
    """Whether the context is stretched on purpose, by the rule for the server."""
    request = replace(plan.request, contexts=(depth + PROMPT_TOKENS,))
    try:
        planning.chosen_context(request, plan.weights)
    except ContextTooLong:
        return False
    return True


def _corpus_depth(plan: Plan) -> int:
    setup = plan.store.setup()
    if setup is None:
        raise ValueError("depths are chosen after the corpus was counted")
    return setup.corpus.tokens


def _arguments(
    plan: Plan, understood: Translated, options: frozenset[str]
) -> dict[str, str]:
    """Arguments that are the same for every cell; a person's come last, and win."""
    ours = {arguments.BENCH_OFFLOAD: arguments.BENCH_ALL_LAYERS}
    if "--progress" in options:
        ours["--progress"] = ""
    if plan.is_built_in:
        # As for the server: a second thread waits more than it computes.
        ours["--threads"] = "1"
        if "--poll" in options:
            ours["--poll"] = "0"
    return ours | understood.passed


SLOWEST_S_PER_TOKEN = 0.25
"""Nobody waits for a machine that reads fewer than four tokens per second."""

PATIENCE = 3.0
"""How many times longer than expected a depth may take."""

SHORTEST_PATIENCE_S = 120.0
"""What a depth may take in any case: a busy machine, a slow disk."""


@dataclass(frozen=True, slots=True)
class _Depth:
    """One process of llama-bench: a cell at one depth."""

    stage: Stage
    settings: ThroughputSetup
    depth: int

    @property
    def asked(self) -> AskedTests:
        layers = self.settings.arguments.get(benchargs.BENCH_OFFLOAD)
        return AskedTests(
            pair=self.stage.pair,
            depth=self.depth,
            prompt_tokens=self.settings.prompt_tokens,
            generated_tokens=self.settings.generated_tokens,
            repetitions=self.settings.repetitions,
            offload=int(layers) if layers and layers.lstrip("-").isdigit() else None,
        )

    @property
    def log(self) -> Path:
        of_server = self.stage.plan.store.log(self.stage.pair)
        return of_server.with_name(f"{of_server.stem}.{NAME}-{self.depth}.log")


def measure(stage: Stage) -> Measurement:
    """
    Run llama-bench once per depth, the shallowest first.

    A depth that fails is a gap, and so are the deeper ones.

    Raises:
        CellError: If the shallowest depth fails, or what runs at any depth is not
            what was asked for.
    """
    chosen = settings_of(stage.setup)
    if chosen is None:
        raise ValueError("a setup without settings of this probe")
    began = time.monotonic()
    try:
        return as_json((yield from _all_depths(stage, chosen)))
    finally:
        stage.phases = Phases(measure_s=round(time.monotonic() - began, 4))


def _all_depths(
    stage: Stage, chosen: ThroughputSetup
) -> Generator[Step, None, Throughput]:
    speeds: list[DepthSpeeds] = []
    shallowest: BenchResult | None = None
    for done, depth in enumerate(chosen.depths):
        yield Step(done, len(chosen.depths), f"depth {depth:,}")
        before = speeds[-1] if speeds else None
        if before and before.gap:
            speeds.append(_skipped(depth, speeds))
            continue
        try:
            at, result = yield from _measured(
                _Depth(stage, chosen, depth), done, before
            )
        except CellError as error:
            if shallowest is None or isinstance(error, Mismatched):
                raise
            at = _gap(depth, error)
        else:
            shallowest = shallowest or result
        speeds.append(at)
    if shallowest is None:
        raise ValueError("settings without depths")
    return _observation(speeds, shallowest.pp)


def patience_s(
    depth: int, prompt_tokens: int, before: DepthSpeeds | None = None
) -> float:
    """
    How long llama-bench may be silent at *depth*, in seconds.

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
    return SHORTEST_PATIENCE_S + PATIENCE * before.seconds * growth**2


def command(at: _Depth) -> list[str]:
    """The argv that measures *at*; a later value does not replace an earlier one."""
    plan, asked = at.stage.plan, at.asked
    arguments = {
        "--model": str(plan.weights.path),
        "--output": "jsonl",
        **at.settings.arguments,
        "--flash-attn": "1",
        "--cache-type-k": asked.pair.k,
        "--cache-type-v": asked.pair.v,
        "--repetitions": str(asked.repetitions),
        "--n-prompt": str(asked.prompt_tokens),
        "--n-gen": str(asked.generated_tokens),
        "--n-depth": str(asked.depth),
    }
    # Verbose, because without it only errors are told: no types, no fallbacks.
    # Flags carry no value.
    words = [word for item in arguments.items() for word in item if word]
    return [str(plan.tools.bench), "--verbose", *words]


def _measured(
    at: _Depth, done: int, before: DepthSpeeds | None
) -> Generator[Step, None, tuple[DepthSpeeds, BenchResult]]:
    """One depth, measured and verified."""
    stage, began = at.stage, time.monotonic()
    argv = command(at)
    stage.command = tuple(argv)
    phases = followed(
        argv,
        env=processes.clean(os.environ) | _variables(stage),
        log=at.log,
        silence_s=patience_s(at.depth, at.asked.prompt_tokens, before),
    )
    log_text = yield from _as_steps(phases, at, done)
    seconds = round(time.monotonic() - began, 3)
    result = _result(at, log_text)
    stage.effective = _verified(at, result, log_text)
    stage.trouble = stage.trouble or log.fallback(log_text)
    pp, tg = result.pp.speeds, result.tg.speeds
    return DepthSpeeds(depth=at.depth, pp=pp, tg=tg, seconds=seconds), result


def _as_steps(
    phases: Generator[str, None, str], at: _Depth, done: int
) -> Generator[Step, None, str]:
    # Closed here and not by the collector: an interruption ends the child first.
    with contextlib.closing(phases):
        while True:
            try:
                phase = next(phases)
            except StopIteration as end:
                return str(end.value)
            total = len(at.settings.depths)
            yield Step(done, total, f"depth {at.depth:,}: {phase}")


def _variables(stage: Stage) -> dict[str, str]:
    """As for the server: threads that wait for a model this small must not spin."""
    waiting = {"OMP_WAIT_POLICY": "passive"} if stage.plan.is_built_in else {}
    is_plain = not stage.plan.request.rotation
    return waiting | ({ROTATION_VARIABLE: "1"} if is_plain else {})


def _result(at: _Depth, log_text: str) -> BenchResult:
    try:
        return read_result(log_text, at.asked)
    except NoResult as error:
        told = NoResult(reason=error.reason, found=log.trouble(log_text))
        told.log_excerpt = log.last_words(log_text)
        raise told from error


def _verified(at: _Depth, result: BenchResult, log_text: str) -> Effective:
    """
    What really ran.

    Raises:
        Mismatched: If that is not what was asked for.
    """
    effective = log.read(log_text)
    context = at.depth + at.asked.prompt_tokens
    asked = Asked(
        pair=at.stage.pair,
        context=context,
        rotation=at.stage.plan.request.rotation,
        all_layers=at.settings.arguments.get(benchargs.BENCH_OFFLOAD)
        == benchargs.BENCH_ALL_LAYERS,
    )
    found = (
        *differences(result, at.asked),
        *mismatches(asked, effective),
        *_other_installation(at.stage, result.pp),
    )
    if found:
        raise Mismatched(differences=tuple(dict.fromkeys(found)), log_text=log_text)
    return replace(effective, build=_build(result.pp))


def _other_installation(stage: Stage, row: BenchRow) -> tuple[str, ...]:
    """In what llama-bench is not of the same make as the server."""
    server, found = stage.plan.server, []
    if server.build and row.build_number and server.build != row.build_number:
        found.append(f"llama-bench is build {row.build_number}, not {server.build}")
    if server.devices and row.backends == "CPU":
        found.append(f"llama-bench knows no accelerator, not {server.devices[0]}")
    return tuple(found)


def _observation(speeds: list[DepthSpeeds], row: BenchRow) -> Throughput:
    return Throughput(
        speeds=tuple(speeds),
        build=_build(row),
        cpu=row.cpu_info,
        gpu=row.gpu_info,
        backends=row.backends,
        threads=row.n_threads,
    )


def _build(row: BenchRow) -> str:
    return f"{row.build_number} ({row.build_commit})"


def _skipped(depth: int, speeds: list[DepthSpeeds]) -> DepthSpeeds:
    failed = next(at for at in speeds if at.gap)
    gap = f"depth {failed.depth:,} failed"
    return DepthSpeeds(depth=depth, status=failed.status, gap=gap)


def _gap(depth: int, error: CellError) -> DepthSpeeds:
    reason = " ".join(str(error).split())
    return DepthSpeeds(depth=depth, status=str(error.status), gap=reason)


PROBE = Probe(
    name=NAME,
    metrics=METRICS,
    measure=measure,
    settings=ThroughputSettings,
    conditions=conditions,
    more_metrics=more_metrics,
    remarks=remarks,
)
