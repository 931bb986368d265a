"""What the throughput probe stores of a cell, and of a setup."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from codeneedle.records.record import (
    Amount,
    CellRecord,
    Count,
    Length,
    Setup,
    from_json,
)

NAME = "throughput"

Repetitions = Annotated[int, Meta(ge=1, le=1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputConditions:
    """
    What must be equal for speeds to be comparable.

    Attributes:
        depths: Tokens in the cache before each repetition, ascending.
        repetitions: Of each test at each depth.
        prompt_tokens: Tokens to read per repetition.
        generated_tokens: Tokens to write per repetition.
        arguments: Further arguments for llama-bench, the same for every cell.
        ignored: Arguments for the server that llama-bench has no like of.
    """

    depths: tuple[Length, ...]
    repetitions: Repetitions
    prompt_tokens: Length
    generated_tokens: Length
    arguments: dict[str, str]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSpeeds:
    """
    What one process of llama-bench measured, or why it did not.

    Attributes:
        depth: Tokens in the cache before each repetition.
        pp: Reading speed of each repetition, in tokens per second.
        tg: Writing speed of each repetition, in tokens per second.
        seconds: From its start to its end; 0 if it was not started.
        status: How it ended, a `records.Status`.
        gap: Why there are no speeds; empty if there are.
        peak_bytes: Most memory that was allocated, weights included; None if the tool
            does not tell.
    """

    depth: Count
    pp: tuple[Amount, ...] = ()
    tg: tuple[Amount, ...] = ()
    seconds: Amount = 0.0
    status: str = "finished"
    gap: str = ""
    peak_bytes: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """
    The observation of the throughput probe.

    Attributes:
        speeds: One per depth of the settings, ascending.
        build: Commit and number of llama-bench.
        cpu: Names of the processors.
        gpu: Names of the accelerators; empty where there are none.
        backends: Names of the accelerating backends.
        threads: CPU threads.
        load: Programs that computed before it, for each core; 0 if unknown.
    """

    speeds: tuple[DepthSpeeds, ...]
    build: str
    cpu: str
    gpu: str
    backends: str
    threads: Count
    load: Amount = 0.0


def conditions_of(setup: Setup) -> ThroughputConditions | None:
    """
    The settings of the probe; None in a run that it never measured.

    Raises:
        BadRecord: If they are something else.
    """
    stored = setup.probes.get(NAME)
    if stored is None:
        return None
    return from_json(stored, ThroughputConditions, file="setup.json")


def throughput_of(record: CellRecord) -> Throughput:
    """
    What the probe stored.

    Raises:
        BadRecord: If it is something else.
    """
    file = f"{record.pair.slug}.{record.probe}.json"
    return from_json(record.observation or {}, Throughput, file=file)
