"""The stored layout of the throughput probe: its settings and observations."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.probes.stored import observed, settings_in
from codeneedle.records.record import Amount, CellRecord, Count, Length, Setup

NAME = "throughput"

REPETITIONS = 3
"""The default of llama-bench, as in most published tables."""


class ThroughputSettings(Struct, frozen=True):
    """
    What a user may choose.

    Empty or None is what the run folder holds, or else a default for the model.
    """

    depths: Annotated[
        tuple[Length, ...],
        Meta(
            description="Depths to measure speed at, in tokens.",
            extra={
                "option": "--depths",
                "metavar": "LIST",
                "unit": "tokens",
                "default": "0,4096 and the corpus",
            },
        ),
    ] = ()
    repetitions: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Measurements of speed at each depth.",
            extra={"option": "--repetitions"},
        ),
    ] = None

    @property
    def times(self) -> int:
        """Repetitions of each test at each depth."""
        return self.repetitions or REPETITIONS


class ThroughputAsked(ThroughputSettings, frozen=True, kw_only=True):
    """
    The settings as a setup stores them, with what follows; depths are ascending.

    Attributes:
        prompt_tokens: Tokens to read per repetition.
        generated_tokens: Tokens to write per repetition.
        arguments: Further arguments of llama-bench, the same for every cell.
        ignored: Arguments of the server that llama-bench does not have.
    """

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


def asked_in(setup: Setup) -> ThroughputAsked | None:
    """
    The settings of the probe in *setup*; None in a run without the probe.

    Raises:
        BadRecord: If they have another layout.
    """
    if NAME not in setup.probes:
        return None
    return settings_in(setup, NAME, ThroughputAsked)


def throughput_of(record: CellRecord) -> Throughput:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return observed(record, Throughput)
