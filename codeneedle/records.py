"""What is stored of a sweep: its setup, and one record per cell and probe."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from codeneedle.effective import Effective
from codeneedle.errors import RequestError
from codeneedle.grid import Pair
from codeneedle.phases import Phases

Json = dict[str, Any]

# 1 - first version
# 2 - files are sealed with a checksum, and records name their setup
SCHEMA = 2


class RecordTooNew(RequestError):  # noqa: N818 - named after the fact
    """Written by a later codeneedle."""

    def __init__(self, *, found: int, file: str) -> None:
        super().__init__(
            f"{file} has schema {found}, this codeneedle knows up to {SCHEMA}",
            hint="Update codeneedle, or choose another folder.",
        )


class BadRecord(RequestError):  # noqa: N818 - named after the fact
    """Not a record: truncated, edited, or something else altogether."""

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
    """Not a setup: what the records beside it were made under is unknown."""

    def __init__(self, *, file: str, reason: str) -> None:
        super().__init__(
            file=file,
            reason=reason,
            hint="Sweep again as before: records tell whether they belong to that. "
            "Or choose another folder with --out.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """
    Rounds that were asked both ways, before speculation is trusted.

    Attributes:
        pair: Of the cell that was asked, ``K/V``.
        rounds: How many.
        tokens: Tokens that were compared.
        difference: Where the replies part, as a phrase; empty if nowhere.
    """

    pair: str
    rounds: int
    tokens: int
    difference: str = ""

    @property
    def phrase(self) -> str:
        """For reports."""
        if self.difference:
            return f"off: {self.difference}"
        return f"same {self.tokens} tokens both ways in {self.rounds} rounds"


class Status(StrEnum):
    """How a cell ended. Only a finished one has numbers to average."""

    FINISHED = "finished"
    UNSUPPORTED = "unsupported"
    FALLBACK_CPU = "fallback-cpu"
    FALLBACK_F16 = "fallback-f16"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    MISMATCHED = "mismatched"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """
    What one probe saw of one cell, or why it saw nothing.

    Attributes:
        pair: The cache types asked for.
        probe: Name of the probe.
        status: How it ended.
        started: When it began, ISO 8601 with zone.
        reason: One line on any status but ``finished``; empty for that.
        position: Place in the running order, from 1.
        command: The server's arguments; secrets are never among them.
        effective: What really ran.
        phases: Where the time went.
        peak_rss_bytes: Largest resident size of the server process that was seen.
        device_bytes: What the process held on accelerators when it was through.
        log_excerpt: The lines of the log that decided something, or its last words.
        observation: What the probe saw; its own module reads it.
        setup: The setup that it was measured under, by `comparability.stamp`;
            empty in records of schema 1.
        schema: Version of this layout.
    """

    pair: Pair
    probe: str
    status: Status
    started: str
    reason: str = ""
    position: int = 0
    command: tuple[str, ...] = ()
    effective: Effective = field(default_factory=Effective)
    phases: Phases = field(default_factory=Phases)
    peak_rss_bytes: int | None = None
    device_bytes: int | None = None
    log_excerpt: tuple[str, ...] = ()
    observation: Json | None = None
    setup: str = ""
    schema: int = SCHEMA

    @property
    def is_finished(self) -> bool:
        """Whether its numbers may be used."""
        return self.status is Status.FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleFacts:
    """
    One needle of a setup, with the truth it is scored against.

    Attributes:
        name: Qualified name of the function.
        signature: Its signature lines, verbatim, joined by newlines.
        line: Line of the signature in the corpus as it was sent, from 1.
        depth: Place in that corpus, from 0 (top) to 1 (end).
        lines: The lines that are asked for, verbatim; exactly 20 are not blank.
        more: Some lines of the body after those, for `bonus`; may be empty.
        budget: Tokens that a reply may have at most; 0 until they were counted.
    """

    name: str
    signature: str
    line: int
    depth: float
    lines: tuple[str, ...]
    more: tuple[str, ...] = ()
    budget: int = 0


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
        tokens: Its length by the server's tokenizer.
        functions: Functions with enough lines in the text as sent.
        functions_before: The same before fitting; larger if it was trimmed.
    """

    name: str
    origin: str
    kind: str
    sha256: str
    characters: int
    source_sha256: str
    sample_k: int
    sample_seed: int
    tokens: int
    functions: int
    functions_before: int

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
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """
    The facts that must be equal for records to be comparable.

    Attributes:
        prompt_version: Version of the wording of prompts.
        prompt_form: ``chat`` or ``completion``.
        thinking: How thinking was switched off, as a phrase.
        corpus: The text.
        needles: What is asked, in asking order.
        weights: The model.
        llama: Build of llama-server, as it states it.
        machine: Processor, memory, devices and system, as a phrase.
        context: Context size, in tokens.
        rotation: Whether quantized values were rotated, where possible.
        server_args: Further arguments of the user's for llama-server.
        seed: Seed of sampling and of the running order.
        types_k: K types, as asked for; not compared.
        types_v: V types, as asked for; not compared.
        created: When the run folder was made, ISO 8601; not compared.
        probes: Settings of each probe that was run, by its name; a probe that is
            new to the folder adds its own.
        identity: A hash of all that is compared, but for the probes' settings, from
            when the run folder was made; empty until then. Not compared.
        trial: How the first cell answered with speculation and without; None until
            it was asked. Not compared.
        schema: Version of this layout.
    """

    prompt_version: int
    prompt_form: str
    thinking: str
    corpus: CorpusFacts
    needles: tuple[NeedleFacts, ...]
    weights: WeightsFacts
    llama: str
    machine: str
    context: int
    server_args: tuple[str, ...]
    seed: int
    types_k: tuple[str, ...]
    types_v: tuple[str, ...]
    created: str
    rotation: bool = True
    probes: dict[str, Json] = field(default_factory=dict)
    identity: str = ""
    trial: Trial | None = None
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    A run folder, read.

    Attributes:
        name: ``corpus/model``, as its folder is called.
        setup: What its records have in common.
        records: One per cell and probe that was tried, in no particular order.
    """

    name: str
    setup: Setup
    records: tuple[CellRecord, ...]
