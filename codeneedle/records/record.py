"""
The stored data model and its version: setups, cell records, how a cell ended, phases of
its time, and effective settings of its server.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import msgspec
from typing_extensions import override

from codeneedle.cache_types import RUNS, Pair, whole_grid
from codeneedle.errors import RequestError
from codeneedle.scores import COMPUTES_NAN

Json = dict[str, Any]

Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e15)]
"""A duration, a size or a speed; sums of them stay finite."""

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

MOST_TOKENS = 16 << 20
"""Limit of texts and contexts, above that of any model."""

Length = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Length of a text or a context, in tokens, characters, lines or functions."""

MOST_NATS = 1e4
"""Limit of log-probabilities; that of the smallest number of 32 bits is -103."""

Nats = Annotated[float, msgspec.Meta(ge=-MOST_NATS, le=MOST_NATS)]
LogProb = Annotated[float, msgspec.Meta(ge=-MOST_NATS, le=1e-3)]
"""Natural logarithm of a probability; above 0 by rounding alone."""

SCHEMA = 4
"""Version of the layout of all stored files; files of another one are refused."""


class Attention(StrEnum):
    """Where the attention of a cell ran, or would run."""

    KERNEL = "kernel"
    """A fast kernel of the backend for this pair."""

    CPU = "cpu"
    """The CPU: the backend has no kernel for this pair."""

    CONVERTED = "converted"
    """A kernel for f16, to which the backend converts K and V at each step."""

    PLAIN = "plain"
    """No flash attention, which the engine does not have for the model at all."""

    @property
    def mark(self) -> str:
        """Short word behind a value: ``cpu``, ``f16``, ``plain``; none for a kernel."""
        words = {Attention.CPU: "cpu", Attention.CONVERTED: "f16"}
        return (words | {Attention.PLAIN: "plain"}).get(self, "")

    @property
    def is_usual(self) -> bool:
        """Whether it ran as well as it can for the model: speeds count."""
        return self in {Attention.KERNEL, Attention.PLAIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBuffer:
    """A KV cache of a server, from its log. Sliding-window models have two."""

    cells: Count  # positions it holds, in tokens
    layers: Count  # layers that use it
    k_type: str  # effective element type of K
    v_type: str  # effective element type of V
    k_mib: Amount  # size of K, in MiB
    v_mib: Amount  # size of V, in MiB
    class_name: str = ""  # class of the cache; empty if the engine has only one
    k_group_size: Count | None = None
    """
    Values of K that share a scale; 0 without quantization, None if the engine has one
    size.
    """

    v_group_size: Count | None = None  # the same of V
    k_bytes_per_token: Amount | None = None
    """Measured size of K per layer; None if not measured."""

    v_bytes_per_token: Amount | None = None  # the same of V


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory that a program takes on one device, or on the host, in bytes."""

    device: str  # as the engine names it: "CUDA0", "Host"
    weights: Count
    context: Count  # KV caches and recurrent states
    compute: Count  # buffers of the graph

    @property
    def is_host(self) -> bool:
        """Whether it is memory of the machine: ``Host``, ``CPU``, ``CUDA_Host``."""
        return self.device.startswith("CPU") or self.device.endswith("Host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A reply to a fixed text."""

    text: str  # the reply
    logprobs: tuple[LogProb, ...] = ()
    """
    Natural logarithms of the tokens' probabilities; empty if the server reports none.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEvidence:
    """Evidence of the cache of a server that does not report its cache types."""

    fingerprints: tuple[Fingerprint, ...] = ()  # repeated replies to one text
    memory: tuple[tuple[int, int], ...] = ()
    """
    Context in tokens and memory on host and devices in bytes, for two contexts in
    ascending order; or empty.
    """

    @property
    def bytes_per_token(self) -> float | None:
        """Memory of a further token of context, in bytes; None without two contexts."""
        if len(self.memory) < 2 or self.memory[0][0] == self.memory[1][0]:  # noqa: PLR2004 - a slope
            return None
        (few, less), (many, more) = self.memory[:2]
        return (more - less) / (many - few)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """
    The effective settings of a server, from its log.

    Fields are None if the log has no such line.
    """

    build: str | None = None  # version and build number, as the server reports them
    context: Count | None = None  # context of the one slot, in tokens
    flash_attention: str | None = None  # ``enabled``, ``disabled`` or ``auto``
    kv: tuple[KvBuffer, ...] = ()  # its KV caches; empty if the log has none
    rotation_k: Count | None = None
    """Size of the Hadamard rotation of K, in values; 0 is none."""

    rotation_v: Count | None = None  # size of the rotation of V
    offloaded_layers: Count | None = None  # layers on the accelerator
    total_layers: Count | None = None  # layers that could be offloaded
    graph_splits: Count | None = None
    """Parts of the compute graph, one after the other on a device."""

    attention: Attention | None = None  # where attention ran; None if nothing tells
    attention_evidence: str = ""
    """Line of the log, or phrase, that tells it; may be empty."""

    devices: tuple[str, ...] = ()  # names of the devices with KV caches, in order
    compute_mib: Amount | None = None  # compute buffers of all devices, in MiB
    memory: tuple[DeviceMemory, ...] = ()
    """Buffers by device, the host among them, as the log names them."""

    recurrent_bytes: Count = 0
    """State of recurrent layers, which cache types do not change."""

    threads: Count | None = None  # CPU threads it computes with
    waiting: str | None = None
    """How idle threads wait: ``passive``, asleep, or ``active``."""

    unquantized: tuple[str, ...] = ()
    """Phrases on layers without K and V that could be quantized."""

    quantized_kv_start: Count | None = None
    """Number of first tokens that are not quantized."""

    cache_evidence: CacheEvidence | None = None
    """Evidence of its cache, where it does not report types."""

    left_out: tuple[str, ...] = ()
    """Fields that were left out of requests because it refuses them."""

    unscored: str = ""
    """Why log-probabilities of its replies were not used; empty if they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Durations of the phases of a cell, in seconds; None for phases not reached."""

    between_s: Amount | None = None
    """
    From the end of the previous server to this launch; None for the first cell of a
    command.
    """

    ready_s: Amount | None = None  # from launch to a verified server
    start_s: Amount | None = None  # from there to the first question
    measure_s: Amount | None = None  # probing, priming round included
    stop_s: Amount | None = None
    """From the last answer to the end of the server's process group."""

    @property
    def total_from_launch_s(self) -> float:
        """All but the time before the launch, in seconds."""
        phases = (self.ready_s, self.start_s, self.measure_s, self.stop_s)
        return sum(phase or 0.0 for phase in phases)

    @property
    def waiting_s(self) -> float:
        """All but probing, in seconds: the cost of a fresh server."""
        waits = (self.between_s, self.ready_s, self.start_s, self.stop_s)
        return sum(phase or 0.0 for phase in waits)

    def with_previous_added(self, previous: "Phases") -> "Phases":
        """
        These phases, with those of an earlier server of the cell added.

        A phase that either did not reach is the one of these.
        """
        sums = {
            phase.name: round(ours + theirs, 4)
            for phase in fields(self)
            if (ours := getattr(self, phase.name)) is not None
            if (theirs := getattr(previous, phase.name)) is not None
        }
        return replace(self, **sums)


class Status(StrEnum):
    """How a cell ended."""

    FINISHED = "finished"
    UNSUPPORTED = "unsupported"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    MISMATCHED = "mismatched"
    UNVERIFIED = "unverified"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Trouble:
    """The failure of a server, or its difference from what was requested."""

    status: Status  # status of the cell
    reason: str  # a line of its log, without prefix, or a phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """The result of one probe on one cell, or why there is none."""

    pair: Pair  # the requested cache types
    probe: str  # name of the probe
    status: Status  # how it ended
    started: str  # time of its start, ISO 8601 with zone
    reason: str = ""  # why the status is not ``finished``, on one line; else empty
    position: Count = 0  # place in the running order, from 1
    command: tuple[str, ...] = ()  # arguments of the server, without secrets
    effective: Effective = field(default_factory=Effective)
    """Effective settings of the server."""

    phases: Phases = field(default_factory=Phases)  # durations
    peak_rss_bytes: Count | None = None
    """Largest resident size of the server process that was measured."""

    silence_s: Amount | None = None
    """
    Longest wait for the server or tool to say something, in seconds; None if that was
    not measured.
    """

    device_bytes: Count | None = None
    """Memory of the process on accelerators at the end of probing."""

    device_peak_bytes: Count | None = None
    """The most of it, while it was measured; None if the engine does not tell."""

    log_excerpt: tuple[str, ...] = ()
    """Lines of the log that explain the status, or the last ones."""

    observation: Json | None = None  # raw results, in the layout of the probe
    variant: str = ""
    """
    How the cell was measured once more: ``again``, ``on-cpu`` with attention there, or
    on which other kind of device; empty for the first time.
    """

    setup: str = ""
    """`comparability.setup_identity_for_probe`; empty until it is stored."""

    device: str = ""
    """
    Its device and threads, as a phrase; empty for the whole machine. Speeds on
    different devices are not compared.
    """

    schema: int = SCHEMA  # version of this layout

    @property
    def has_numbers(self) -> bool:
        """
        Whether reports and statistics may use its numbers.

        Only those of a finished cell: another status means that something else than
        requested was measured, or not all of it.
        """
        return self.status is Status.FINISHED

    @property
    def computes_nan(self) -> bool:
        """
        Whether its cell computes NaN: a finding about its pair, which no number of it
        and no other probe takes back.
        """
        return not self.has_numbers and self.reason.startswith(COMPUTES_NAN)

    @property
    def attention(self) -> Attention | None:
        """Where its attention ran; None if nothing tells."""
        return self.effective.attention

    @property
    def ran_as_usual(self) -> bool:
        """Whether its attention `is_usual`, or is unknown: its speeds are ranked."""
        return self.attention is None or self.attention.is_usual

    @property
    def is_partial(self) -> bool:
        """
        Whether it has an observation, and ended before it was whole.

        It was interrupted, crashed, or ran out of time or memory.
        """
        ended_early = {
            Status.INTERRUPTED,
            Status.CRASHED,
            Status.TIMED_OUT,
            Status.OUT_OF_MEMORY,
        }
        return self.status in ended_early and self.observation is not None


class Key(NamedTuple):
    """What a record is of."""

    pair: Pair
    probe: str
    variant: str = ""  # see `CellRecord`

    @override
    def __str__(self) -> str:
        """``q8_0/q4_0, recall again``."""
        return f"{self.pair}, {self.probe} {self.variant}".rstrip()


def key_of(record: CellRecord) -> Key:
    """The key of *record*: pair, probe and variant."""
    return Key(record.pair, record.probe, record.variant)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """The corpus of a setup, fitted to the context."""

    name: str  # short name, also a folder of the run
    origin: str  # source of the text, as a phrase
    kind: str  # ``incompressible``, ``unseen`` or ``memorised``
    sha256: str  # hash of the fitted text in UTF-8
    characters: Length  # length of the fitted text
    source_sha256: str  # hash of the whole text
    sample_k: Length  # number of needles that was requested
    sample_seed: int  # seed of their choice
    tokens: Length  # length by the server's tokenizer; 0 if it was not counted
    functions: Length  # functions of the fitted text with enough lines
    functions_before: Length  # the same of the whole text

    @property
    def is_counted(self) -> bool:
        """Whether it was counted and fitted; it is if a probe sends it."""
        return self.tokens > 0

    def estimate_tokens(self, characters: int) -> float:
        """About the tokens of so many *characters*, if they are like the text."""
        return characters * max(1, self.tokens) / max(1, self.characters)

    @property
    def is_trimmed(self) -> bool:
        """Whether the context was too short for the whole corpus."""
        return self.functions < self.functions_before


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFacts:
    """The weights of a setup."""

    name: str  # short name, also a folder of the run
    sha256: str  # hash of the file, or of all files of a split model in order
    size_bytes: Count  # length of the file or files


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the header of the weights says of the model, whatever its quantization."""

    tokenizer: str = ""  # a hash of what makes tokens of text; empty if unknown
    shape: str = ""  # architecture and size, as a phrase; empty if unknown
    name: str = ""  # chosen by its author; may be empty
    parameters: Count = 0  # numbers in all tensors; 0 if unknown


@dataclass(frozen=True, slots=True)
class Frame:
    """What a chat template puts before, between and behind the texts of messages."""

    pieces: tuple[str, ...]  # one more than there are messages
    is_trimmed: bool  # whether texts lose the white space around them


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The facts that must be equal for records to be comparable."""

    prompt_form: str  # ``chat`` or ``completion``
    thinking: str  # how thinking was switched off, as a phrase
    corpus: CorpusFacts  # the text that is sent
    weights: WeightsFacts  # the model
    llama: str  # build of llama-server, or version of another engine, as it reports it
    machine: str  # processor, memory, devices and system, as a phrase
    context: Length  # context size, in tokens
    server_args: tuple[str, ...]  # arguments that the user added for llama-server
    seed: int  # seed of sampling and of the running order
    types_k: tuple[str, ...]  # requested K types; not compared
    types_v: tuple[str, ...]  # requested V types; not compared
    created: str  # time at which the run folder was made, ISO 8601; not compared
    rotation: bool  # whether quantized values were rotated, if possible
    engine: str  # name of the engine
    lengths: str  # how lengths in tokens were estimated; empty if they were counted
    cpu_features: str
    """
    Processor features that the engine uses: ``AVX AVX2 FMA``; kernels, and so the last
    digits, depend on them. Empty if unknown.
    """

    files: dict[str, str] = field(default_factory=dict)
    """
    SHA-256 of the files that arguments name, such as templates, adapters and models
    that draft, by name of the file.
    """

    variables: dict[str, str] = field(default_factory=dict)
    """
    Variables of the environment by which backends choose how they compute, and those
    that the user passes on; of one that names a file, the SHA-256 of that.
    """

    programs: dict[str, str] = field(default_factory=dict)
    """
    Hashes of the programs that the engine starts, with their libraries, by name: a
    version may be that of many builds. Compared as far as both setups have a program.
    """

    frames: dict[str, Frame] = field(default_factory=dict)
    """
    What the chat template makes of chats, rendered once for all cells, by the roles of
    their messages: a template may name the date. Empty where servers render chats
    themselves, or there are none. Compared as far as both setups have the roles.
    """

    refused: dict[str, str] = field(default_factory=dict)
    """
    Why probes that were asked for are not measured, by name: their program would
    measure something else than the server runs. Not compared.
    """

    probes: dict[str, Json] = field(default_factory=dict)
    """Settings of all probes of the run, with what they have chosen, by name."""

    pairs: tuple[str, ...] = ()
    """
    Pairs of a grid with holes, ``q8_0/q4_0``; empty for every K with every V. Not
    compared.
    """

    architecture: str = ""
    """
    Architecture in the header of the weights: ``qwen3``; may be empty. Not compared,
    since the hash of the weights is.
    """

    quant: str = ""
    """Quantization of the weights: ``Q4_K_M``; otherwise as *architecture*."""

    training_context: Count = 0
    """
    Context that the weights were trained for, in tokens; 0 if unknown. Not compared.
    """

    model: ModelFacts = field(default_factory=ModelFacts)
    """What is the same of other weights of the model; not compared."""

    python: str = ""  # version of the Python that made it; not compared
    order: Json = field(default_factory=dict)
    """
    `verdict.asking_order.Order` of a sweep that decides, fixed before it compares a
    pair; empty of a grid. Not compared; it stands in `Settled`.
    """

    calibrated: dict[str, Json] = field(default_factory=dict)
    """
    Facts that the reference sets for all cells of a probe, by name of the probe, such
    as the difficulty of tasks. Compared where shares are joined; it stands in
    `Settled`.
    """

    identity: str = ""
    """
    `comparability.setup_identity` of the setup when it was first stored; empty before.
    Not compared.
    """

    schema: int = SCHEMA  # version of this layout

    @property
    def grid(self) -> list[Pair]:
        """
        All pairs to measure, K slowest, most precise first.

        A grid with holes as stored.
        """
        pairs = list(map(Pair.parse, self.pairs))
        return pairs or whole_grid(self.types_k, self.types_v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What the first cells of a run have settled for all others, beside its setup."""

    identity: str  # `Setup.identity` of the setup that it belongs to
    calibrated: dict[str, Json]  # see `Setup`
    order: Json  # see `Setup`
    schema: int = SCHEMA  # version of this layout


AGAIN = "again"
"""`CellRecord.variant` of the reference behind all others."""

ON_CPU = "on-cpu"
"""The same of the reference with its attention on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The contents of a run folder."""

    name: str  # ``corpus/model``, as its folder is called
    setup: Setup  # the setup of its records
    records: tuple[CellRecord, ...]
    """Records of all cells and probes that were tried, in no order."""

    variants: tuple[CellRecord, ...] = ()
    """Records of cells that were measured once more, another way."""

    root: Path | None = field(default=None, compare=False)
    """The folder of runs that it was read from; None if it was not read."""

    sweep: str = ""
    """Text of its sweep file; empty if there is none."""

    @property
    def folder(self) -> Path:
        """The run folder, as commands name it."""
        return (self.root or RUNS) / self.name

    @property
    def every_record(self) -> tuple[CellRecord, ...]:
        """Its records, those of variants included."""
        return (*self.records, *self.variants)

    def with_every_record(self, records: Iterable[CellRecord]) -> Self:
        """This run with *records* in place of its own, variants among them."""
        records = tuple(records)
        return replace(
            self,
            records=tuple(record for record in records if not record.variant),
            variants=tuple(record for record in records if record.variant),
        )

    def of_probe(self, probe: str) -> Self:
        """This run with only the records of *probe*."""
        return self.with_every_record(r for r in self.every_record if r.probe == probe)


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
    """A record of another cell or run folder."""

    def __init__(self, *, file: str, of: str) -> None:
        super().__init__(
            file=file,
            reason=f"it is one of {of}",
            hint="Move the file to where it belongs, and sweep again.",
        )


class BadSetup(BadRecord):
    """Not a setup: truncated, edited, or another kind of file."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(
            file=file,
            reason=reason,
            hint="Sweep again as before: records tell whether they belong to that. "
            "Or choose another folder with --out.",
        )


_Layout = TypeVar("_Layout")


def shared_field_values(value: object, layout: type) -> dict[str, Any]:
    """The values of *value* for the fields of *layout*, a dataclass, by name."""
    return {
        layout_field.name: getattr(value, layout_field.name)
        for layout_field in fields(layout)
    }


def as_json(stored: object) -> Json:
    """*stored*, an observation, a setup or settings, as it is read from disk."""
    decoded: Json = msgspec.json.decode(msgspec.json.encode(stored), type=Json)
    return decoded


def refuse_unless_possible(is_possible: bool, what: str, *, file: str) -> None:
    """
    Stop at stored values that contradict each other.

    Raises:
        BadRecord: On *file*, with *what* as its reason, unless *is_possible*.
    """
    if not is_possible:
        raise BadRecord(file=file, reason=what)


def from_json(raw: Json, layout: type[_Layout], *, file: str) -> _Layout:
    """
    The *layout* that `as_json` turned into *raw*.

    Raises:
        BadRecord: If *raw*, which stands in *file*, is no such layout.
    """
    try:
        return msgspec.convert(raw, type=layout)
    except msgspec.ValidationError as error:
        raise BadRecord(file=file, reason=str(error)) from error
