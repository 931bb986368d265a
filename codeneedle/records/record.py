"""
The stored data model: setups, cell records, rounds, phases and effective server
settings.
"""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from codeneedle.errors import RequestError
from codeneedle.grid import RUNS, Pair, whole_grid

Json = dict[str, Any]

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""A duration, a size or a speed, of which sums are numbers, too."""

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

MOST_TOKENS = 16 << 20
"""Of a text or a context: no model has one of as many."""

Length = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Of a text or a context, in tokens, characters, lines or functions."""

MOST_NATS = 1e4
"""More than any log-probability has: the smallest number of 32 bits has 103."""

Nats = Annotated[float, msgspec.Meta(ge=-MOST_NATS, le=MOST_NATS)]
LogProb = Annotated[float, msgspec.Meta(ge=-MOST_NATS, le=1e-3)]
"""Natural logarithm of a probability; above 0 for rounding alone."""

# What numbers may be is checked where they are read: a record that was damaged or made
# up is neither shown nor computed with.

SCHEMA = 1
"""Version of the layout of all stored files; files of another one are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBuffer:
    """
    One KV cache of a server, from its log. Sliding-window models have two.

    Attributes:
        cells: Positions it holds, in tokens.
        layers: Layers that use it.
        k_type: Effective element type of K.
        v_type: Effective element type of V.
        k_mib: Size of K, in MiB.
        v_mib: Size of V, in MiB.
        class_name: Of the cache, where the engine has several; else empty.
        k_group_size: Values of K that share a scale, where that can be chosen; 0 if
            they are not quantized.
        v_group_size: Likewise of V.
        k_bytes_per_token: Of K in each layer, as measured; None if it was not.
        v_bytes_per_token: Likewise of V.
    """

    cells: Count
    layers: Count
    k_type: str
    v_type: str
    k_mib: Amount
    v_mib: Amount
    class_name: str = ""
    k_group_size: Count | None = None
    v_group_size: Count | None = None
    k_bytes_per_token: Amount | None = None
    v_bytes_per_token: Amount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Print:
    """
    A reply to a fixed text.

    Attributes:
        text: The reply.
        logprobs: Per token, natural logarithm of its probability; empty if the server
            tells none.
    """

    text: str
    logprobs: tuple[LogProb, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """
    Evidence of the cache of a server that does not tell what cache it has.

    Attributes:
        prints: Replies to the same text, asked several times.
        memory: Context in tokens, and what a server with it held on the host and on
            devices, in bytes; of two contexts, ascending, or none.
    """

    prints: tuple[Print, ...] = ()
    memory: tuple[tuple[int, int], ...] = ()

    @property
    def bytes_per_token(self) -> float | None:
        """What one more token of context takes; None without two contexts."""
        if len(self.memory) < 2 or self.memory[0][0] == self.memory[1][0]:  # noqa: PLR2004 - a slope
            return None
        (few, less), (many, more) = self.memory[:2]
        return (more - less) / (many - few)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """
    The settings that a server really runs with, from its log.

    Fields are None if the log has no such line.

    Attributes:
        build: Version and build number, as the server states them.
        context: Context of the one slot, in tokens.
        flash_attention: ``enabled``, ``disabled`` or ``auto``.
        kv: Its KV caches; empty if the log names none.
        rotation_k: Size of the Hadamard rotation of K, in values; 0 is none.
        rotation_v: Size of the rotation of V.
        offloaded_layers: Layers on the accelerator.
        total_layers: Layers that could be offloaded.
        graph_splits: Parts of the compute graph, one after the other on a device.
        devices: Names of the devices that hold KV caches, in order.
        compute_mib: Compute buffers of all devices, in MiB.
        threads: CPU threads it computes with.
        waiting: How these wait for each other: ``passive``, asleep, or ``active``.
        unquantized: Layers without K and V that could be quantized, one phrase each.
        quantized_kv_start: Tokens of a context that stay as they are at first.
        proof: Evidence of its cache, where it does not tell.
        left_out: Fields of requests that it refuses, and that were left out.
        unscored: Why log-probabilities of its replies were not used; empty if all were.
    """

    build: str | None = None
    context: Count | None = None
    flash_attention: str | None = None
    kv: tuple[KvBuffer, ...] = ()
    rotation_k: Count | None = None
    rotation_v: Count | None = None
    offloaded_layers: Count | None = None
    total_layers: Count | None = None
    graph_splits: Count | None = None
    devices: tuple[str, ...] = ()
    compute_mib: Amount | None = None
    threads: Count | None = None
    waiting: str | None = None
    unquantized: tuple[str, ...] = ()
    quantized_kv_start: Count | None = None
    proof: Proof | None = None
    left_out: tuple[str, ...] = ()
    unscored: str = ""

    @property
    def kv_mib(self) -> float | None:
        """Size of all KV caches, in MiB; None if the log names none."""
        if not self.kv:
            return None
        return sum(buffer.k_mib + buffer.v_mib for buffer in self.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """
    Durations of the phases of a cell, in seconds; None for phases not reached.

    Attributes:
        between_s: From the end of the last cell's server to this launch; None of
            the first cell that a command runs.
        ready_s: From launch to a verified server.
        start_s: From there to the first question.
        measure_s: Probing, the priming round included.
        stop_s: From the last answer to the end of the server's process group.
    """

    between_s: Amount | None = None
    ready_s: Amount | None = None
    start_s: Amount | None = None
    measure_s: Amount | None = None
    stop_s: Amount | None = None

    @property
    def total_s(self) -> float:
        """The cell itself, without the time before it, in seconds."""
        own = (self.ready_s, self.start_s, self.measure_s, self.stop_s)
        return sum(phase or 0.0 for phase in own)

    @property
    def waiting_s(self) -> float:
        """Time not spent on probing, in seconds: the cost of a fresh server."""
        waits = (self.between_s, self.ready_s, self.start_s, self.stop_s)
        return sum(phase or 0.0 for phase in waits)

    def after(self, former: "Phases") -> "Phases":
        """Those of a cell that took another server before: *former* and these."""
        sums = {
            each.name: round(ours + theirs, 4)
            for each in fields(self)
            if (ours := getattr(self, each.name)) is not None
            if (theirs := getattr(former, each.name)) is not None
        }
        return replace(self, **sums)


class Status(StrEnum):
    """How a cell ended; see `CellRecord.has_numbers`."""

    FINISHED = "finished"
    UNSUPPORTED = "unsupported"
    FALLBACK_CPU = "fallback-cpu"
    FALLBACK_F16 = "fallback-f16"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    MISMATCHED = "mismatched"
    UNVERIFIED = "unverified"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Trouble:
    """
    Why a server failed, or what it does instead of what it was asked for.

    Attributes:
        status: How the cell ends.
        reason: A line of its log, without prefix, or a phrase.
    """

    status: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """
    The result of one probe on one cell, or why there is none.

    Attributes:
        pair: The cache types asked for.
        probe: Name of the probe.
        status: How it ended.
        started: When it began, ISO 8601 with zone.
        reason: Why the status is not ``finished``, in one line; else empty.
        position: Place in the running order, from 1.
        command: The server's arguments, without secrets.
        effective: The settings that it really ran with.
        phases: Durations.
        peak_rss_bytes: Largest resident size of the server process that was measured.
        device_bytes: Memory of the process on accelerators at the end of probing.
        log_excerpt: The lines of the log that decided the status, or the last ones.
        observation: Raw results of the probe; its own module decodes them.
        setup: `comparability.stamp` of the setup that it was measured under; empty
            until it is stored.
        device: Device and threads that it was given, as a phrase; empty for the whole
            machine. Speeds of different ones are not compared.
        schema: Version of this layout.
    """

    pair: Pair
    probe: str
    status: Status
    started: str
    reason: str = ""
    position: Count = 0
    command: tuple[str, ...] = ()
    effective: Effective = field(default_factory=Effective)
    phases: Phases = field(default_factory=Phases)
    peak_rss_bytes: Count | None = None
    device_bytes: Count | None = None
    log_excerpt: tuple[str, ...] = ()
    observation: Json | None = None
    setup: str = ""
    device: str = ""
    schema: int = SCHEMA

    @property
    def has_numbers(self) -> bool:
        """
        Whether grids, tables, heatmaps and statistics may use its numbers.

        Only a finished cell has any: one that fell back or was interrupted did not
        measure what was asked for, whatever it stored.
        """
        return self.status is Status.FINISHED

    @property
    def is_partial(self) -> bool:
        """Whether it ended early, and holds what was observed until then."""
        ended_early = {
            Status.INTERRUPTED,
            Status.CRASHED,
            Status.TIMED_OUT,
            Status.OUT_OF_MEMORY,
        }
        return self.status in ended_early and self.observation is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleFacts:
    """
    One needle of a setup, with the truth it is scored against.

    Attributes:
        name: Qualified name of the function.
        signature: Its signature lines, verbatim, joined by newlines.
        line: Line of the signature in the corpus as it was sent, from 1.
        depth: Place in that corpus, from 0 (top) to 1 (end).
        lines: The lines that are asked for, verbatim; of written recall exactly 20 are
            not blank.
        before: Lines of the body before those; they stand in the prompt. Empty where
            the first lines of the body are asked for.
        more: Lines of the body after those, for the metric `bonus`; may be empty.
        budget: Most tokens that a reply may have; 0 where nothing is written.
    """

    name: str
    signature: str
    line: Length
    depth: Share
    lines: tuple[str, ...]
    before: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    budget: Length = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """
    The corpus as it was sent.

    Attributes:
        name: Short name, also a folder of the run.
        origin: Where the text comes from, as a phrase.
        kind: ``incompressible``, ``unseen`` or ``memorised``.
        sha256: Of the text as sent, UTF-8.
        characters: Length of the text as sent.
        source_sha256: Of the whole text, before fitting.
        sample_k: Needles wanted.
        sample_seed: Seed of the choice.
        tokens: Its length by the server's tokenizer; 0 if it was not counted.
        functions: Functions with enough lines in the text as sent.
        functions_before: The same before fitting; larger if it was trimmed.
    """

    name: str
    origin: str
    kind: str
    sha256: str
    characters: Length
    source_sha256: str
    sample_k: Length
    sample_seed: int
    tokens: Length
    functions: Length
    functions_before: Length

    @property
    def is_counted(self) -> bool:
        """Whether it was counted and fitted: it is not where no probe reads it."""
        return self.tokens > 0

    @property
    def is_trimmed(self) -> bool:
        """Whether the context was too short for the whole corpus."""
        return self.functions < self.functions_before


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFacts:
    """
    The weights of a setup.

    Attributes:
        name: Short name, also a folder of the run.
        sha256: Of the file; of all files in order, where they are split.
        size_bytes: Length of the file or files.
    """

    name: str
    sha256: str
    size_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """
    The facts that must be equal for records to be comparable.

    Attributes:
        prompt_version: Version of the wording of prompts.
        prompt_form: ``chat`` or ``completion``.
        thinking: How thinking was switched off, as a phrase.
        corpus: The text that is sent.
        needles: Functions whose lines are to be written, in asking order.
        forced: Functions whose lines are forced, in asking order: those of every
            sweep, and behind them those that open pairs may be asked in addition.
        weights: The model.
        llama: Build of llama-server, or version of another engine, as it states it.
        machine: Processor, memory, devices and system, as a phrase.
        cpu_features: What the engine uses of the processor: ``AVX AVX2 FMA``; kernels,
            and so the last digits, depend on it. Empty where it does not tell.
        context: Context size, in tokens.
        rotation: Whether quantized values were rotated, if possible.
        server_args: Further arguments of the user's for llama-server.
        seed: Seed of sampling and of the running order.
        engine: What served the model.
        lengths: How lengths in tokens were estimated; empty where they were counted.
        types_k: K types, as asked for; not compared.
        types_v: V types, as asked for; not compared.
        pairs: The pairs of a grid with holes, ``q8_0/q4_0``; empty where every K is
            measured with every V. Not compared.
        architecture: Of the weights, as their header states it: ``qwen3``. Empty where
            there is none; not compared, as the hash of the weights is.
        quant: Quantization of the weights, likewise: ``Q4_K_M``.
        created: When the run folder was made, ISO 8601; not compared.
        probes: Settings of each probe that was run, by its name; a probe that is
            new to the folder adds its own.
        calibrated: What the reference has set for all cells of a probe, by its name,
            such as how hard tasks are; compared where shares are merged.
        former: Settings that a probe had before they grew, by its name, oldest first:
            records of them lack what was added since. Not compared.
        identity: `comparability.identity` of the setup as first stored; empty
            before. Not compared.
        schema: Version of this layout.
    """

    prompt_version: int
    prompt_form: str
    thinking: str
    corpus: CorpusFacts
    needles: tuple[NeedleFacts, ...]
    forced: tuple[NeedleFacts, ...]
    weights: WeightsFacts
    llama: str
    machine: str
    context: Length
    server_args: tuple[str, ...]
    seed: int
    types_k: tuple[str, ...]
    types_v: tuple[str, ...]
    created: str
    rotation: bool
    engine: str
    lengths: str
    cpu_features: str
    probes: dict[str, Json] = field(default_factory=dict)
    pairs: tuple[str, ...] = ()
    architecture: str = ""
    quant: str = ""
    calibrated: dict[str, Json] = field(default_factory=dict)
    former: dict[str, tuple[Json, ...]] = field(default_factory=dict)
    identity: str = ""
    schema: int = SCHEMA

    @property
    def grid(self) -> list[Pair]:
        """Every pair to measure, K slowest, most precise first."""
        pairs = list(map(Pair.parse, self.pairs))
        return pairs or whole_grid(self.types_k, self.types_v)


AGAIN = "_again"
"""Behind a probe's name in the record of a pair that it has measured once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    The contents of a run folder.

    Attributes:
        name: ``corpus/model``, as its folder is called.
        setup: What its records have in common.
        records: One per cell and probe that was tried, in no particular order.
        again: Of a run that was narrowed to a probe, what it has measured once more.
        root: The folder of runs that it was read from; None if from no folder.
        sweep: The text of its sweep file; empty if there is none.
    """

    name: str
    setup: Setup
    records: tuple[CellRecord, ...]
    again: tuple[CellRecord, ...] = ()
    root: Path | None = field(default=None, compare=False)
    sweep: str = field(default="", compare=False)

    @property
    def folder(self) -> Path:
        """The run folder, as commands name it."""
        return (self.root or RUNS) / self.name


class BadRecord(RequestError):  # noqa: N818 - named after the fact
    """Not a record: truncated, edited, or another kind of file."""

    def __init__(
        self,
        *,
        file: str,
        reason: str,
        hint: str = "Delete the file and sweep again: only its cell is repeated.",
    ) -> None:
        super().__init__(f"{file} cannot be read: {reason}", hint=hint)
        self.reason = reason


class ForeignRecord(BadRecord):
    """A record, but not one of this cell or of this run folder."""

    def __init__(self, *, file: str, of: str) -> None:
        super().__init__(
            file=file,
            reason=f"it is one of {of}",
            hint="Move the file to where it belongs, and sweep again.",
        )


class BadSetup(BadRecord):
    """Not a setup: how the records beside it were made is unknown."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(
            file=file,
            reason=reason,
            hint="Sweep again as before: records tell whether they belong to that. "
            "Or choose another folder with --out.",
        )


_Layout = TypeVar("_Layout")


def shared_with(value: object, layout: type) -> dict[str, Any]:
    """The fields of *layout*, a dataclass, as *value* has them, by name."""
    return {each.name: getattr(value, each.name) for each in fields(layout)}


def as_json(stored: object) -> Json:
    """*stored*, an observation or settings, as it will be read back from disk."""
    decoded: Json = msgspec.json.decode(msgspec.json.encode(stored), type=Json)
    return decoded


def refuse_impossible(is_possible: bool, what: str, *, file: str) -> None:
    """
    Stop at stored values that contradict each other.

    Raises:
        BadRecord: Of *file*, saying *what* is wrong, unless all *is_possible*.
    """
    if not is_possible:
        raise BadRecord(file=file, reason=what)


def from_json(raw: Json, layout: type[_Layout], *, file: str) -> _Layout:
    """
    Read what `as_json` made of a *layout*.

    Raises:
        BadRecord: If *raw*, which stands in *file*, is something else.
    """
    try:
        return msgspec.convert(raw, type=layout)
    except msgspec.ValidationError as error:
        raise BadRecord(file=file, reason=str(error)) from error
