"""The stored layout of the throughput probe: its conditions and observations."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from codeneedle.probes.stored import conditions_in, observed
from codeneedle.records.record import Amount, CellRecord, Count, Length, Setup

NAME = "throughput"

Repetitions = Annotated[int, Meta(ge=1, le=1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputConditions:
    """
    Conditions that must match for speeds to be comparable.

    Attributes:
        depths: Tokens in the cache before each repetition, ascending.
        repetitions: Repetitions of each test at each depth.
        prompt_tokens: Tokens to read per repetition.
        generated_tokens: Tokens to write per repetition.
        arguments: Further arguments of llama-bench, the same for every cell.
        ignored: Arguments of the server that llama-bench does not have.
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
    The speeds of one process of llama-bench, or why there are none.

    Attributes:
        depth: Tokens in the cache before each repetition.
        pp: Reading speed of each repetition, in tokens per second.
        tg: Writing speed of each repetition, in tokens per second.
        seconds: Duration of the process; 0 if it was not started.
        status: A `records.Status`.
        gap: Why there are no speeds; empty if there are.
        peak_bytes: Peak of allocated memory, including weights; None if the tool does
            not report it.
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
        answers: The speeds at each depth, by the depth.
        build: Commit and number of llama-bench.
        cpu: Names of the processors.
        gpu: Names of the accelerators; empty without any.
        backends: Names of the accelerating backends.
        threads: CPU threads.
        load: Load of the machine before it, per core; 0 if unknown.
    """

    answers: dict[str, DepthSpeeds]
    build: str
    cpu: str
    gpu: str
    backends: str
    threads: Count
    load: Amount = 0.0

    @property
    def speeds(self) -> tuple[DepthSpeeds, ...]:
        """One per depth, ascending."""
        return tuple(sorted(self.answers.values(), key=lambda at: at.depth))


def conditions_of(setup: Setup) -> ThroughputConditions | None:
    """
    The conditions of the probe in *setup*; None in a run without the probe.

    Raises:
        BadRecord: If they have another layout.
    """
    if NAME not in setup.probes:
        return None
    return conditions_in(setup, NAME, ThroughputConditions)


def throughput_of(record: CellRecord) -> Throughput:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return observed(record, Throughput)
