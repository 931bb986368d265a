"""Throughput: reading and writing speed by depth, measured by llama-bench."""

import contextlib
import os
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle import benchargs, environment, serverlog
from codeneedle.benchlines import (
    AskedTests,
    BenchResult,
    BenchRow,
    NoResult,
    differences,
    read_result,
)
from codeneedle.benchrun import followed
from codeneedle.effective import Effective
from codeneedle.engine.endings import Mismatched
from codeneedle.engine.launch import ROTATION_VARIABLE
from codeneedle.engine.llama_server import LOAD_TIMEOUT_S
from codeneedle.errors import CellError
from codeneedle.mismatches import Asked, mismatches
from codeneedle.phases import Phases
from codeneedle.probe import Measurement, Probe, Step
from codeneedle.probes.throughput_metrics import (
    METRICS,
    NAME,
    DepthSpeeds,
    Settings,
    Throughput,
    json_of,
    more_metrics,
    settings_of,
)
from codeneedle.probes.throughput_remarks import remarks
from codeneedle.probes.throughput_settings import settings
from codeneedle.stage import Stage

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
    settings: Settings
    depth: int

    @property
    def asked(self) -> AskedTests:
        layers = self.settings.arguments.get(benchargs.OFFLOAD)
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
        return json_of((yield from _all_depths(stage, chosen)))
    finally:
        stage.phases = Phases(measure_s=round(time.monotonic() - began, 4))


def _all_depths(stage: Stage, chosen: Settings) -> Generator[Step, None, Throughput]:
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
        env=environment.clean(os.environ) | _variables(stage),
        log=at.log,
        silence_s=patience_s(at.depth, at.asked.prompt_tokens, before),
    )
    log_text = yield from _as_steps(phases, at, done)
    seconds = round(time.monotonic() - began, 3)
    result = _result(at, log_text)
    stage.effective = _verified(at, result, log_text)
    stage.trouble = stage.trouble or serverlog.fallback(log_text)
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
        told = NoResult(reason=error.reason, found=serverlog.trouble(log_text))
        told.log_excerpt = serverlog.last_words(log_text)
        raise told from error


def _verified(at: _Depth, result: BenchResult, log_text: str) -> Effective:
    """
    What really ran.

    Raises:
        Mismatched: If that is not what was asked for.
    """
    effective = serverlog.read(log_text)
    context = at.depth + at.asked.prompt_tokens
    asked = Asked(
        pair=at.stage.pair,
        context=context,
        rotation=at.stage.plan.request.rotation,
        all_layers=at.settings.arguments.get(benchargs.OFFLOAD) == benchargs.ALL_LAYERS,
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
    settings=settings,
    more_metrics=more_metrics,
    remarks=remarks,
)
