"""
Options of throughput (depths, repetitions) and its stored layout: the speeds at each
depth, or why there are none.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from codeneedle.probes.observations import observation_of, settings_in
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
    def repetition_count(self) -> int:
        """Repetitions of each test at each depth."""
        return self.repetitions or REPETITIONS


class ThroughputLayout(ThroughputSettings, frozen=True, kw_only=True):
    """The settings as a setup stores them, with what follows; depths are ascending."""

    prompt_tokens: Length  # tokens to read per repetition
    generated_tokens: Length  # tokens to write per repetition
    arguments: dict[str, str]
    """Further arguments of llama-bench, the same for every cell."""

    def __post_init__(self) -> None:
        """
        Refuse what a damaged setup may hold.

        Raises:
            ValueError: If it names no depth.
        """
        if not self.depths:
            raise ValueError("it names no depth")


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSpeeds:
    """The speeds of one process of llama-bench, or why there are none."""

    depth: Count  # tokens in the cache before each repetition
    pp: tuple[Amount, ...] = ()
    """Reading speed of each repetition, in tokens per second."""

    tg: tuple[Amount, ...] = ()
    """Writing speed of each repetition, in tokens per second."""

    seconds: Amount = 0.0  # duration of the process; 0 if it was not started
    status: str = "finished"  # a `record.Status`
    gap: str = ""  # why there are no speeds; empty if there are
    peak_bytes: Count | None = None
    """
    Peak of allocated memory, including weights; None if the tool does not report it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The observation of the throughput probe."""

    answers: dict[str, DepthSpeeds]  # the speeds at each depth, by the depth
    build: str  # commit and number of llama-bench
    cpu: str  # names of the processors
    gpu: str  # names of the accelerators; empty without any
    backends: str  # names of the accelerating backends
    threads: Count  # CPU threads
    load: Amount = 0.0  # load of the machine before it, per core; 0 if unknown

    @property
    def speeds(self) -> tuple[DepthSpeeds, ...]:
        """One per depth, ascending."""
        return tuple(sorted(self.answers.values(), key=lambda at: at.depth))


def throughput_layout(setup: Setup) -> ThroughputLayout | None:
    """
    The settings of the probe in *setup*; None in a run without the probe.

    Raises:
        BadRecord: If they have another layout.
    """
    if NAME not in setup.probes:
        return None
    return settings_in(setup, NAME, ThroughputLayout)


def throughput_of(record: CellRecord) -> Throughput:
    """
    The observation of the probe in *record*.

    Raises:
        BadRecord: If it has another layout.
    """
    return observation_of(record, Throughput)
