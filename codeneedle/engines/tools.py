"""
Tools of an engine beside its servers: they compare distributions, score right tokens of
a text that they read, or measure speed.

An engine that has none needs nothing of this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from codeneedle.engines.patience import Patience
from codeneedle.grid import Pair
from codeneedle.records.record import MOST_NATS, Amount, Effective, LogProb


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """
    One run of a tool, for the record of its cell.

    Attributes:
        command: What it is started with.
        effective: What ran, as far as its log tells; None before it has ended.
    """

    command: tuple[str, ...]
    effective: Effective | None = None


Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
"""Bounds that keep sums and squares finite."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    A number with its standard error; None where the tool could not say one.

    Attributes:
        value: Finite.
        error: Finite, never negative.
    """

    value: Finite
    error: Amount | None


Distance = Annotated[float, msgspec.Meta(ge=-1.0, le=MOST_NATS)]
"""In nats; below 0 for rounding alone: distributions are kept in 16 bits."""

Percent = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """
    Two distributions over the same tokens, compared: Q beside base.

    Divergences are in nats, perplexities pure, shares and probabilities in percent.

    Attributes:
        ppl: Perplexity of Q.
        ppl_base: Perplexity of base, as read back from its file.
        ppl_ratio: The first by the second.
        kld: Mean divergence of Q from base.
        kld_max: The largest of all tokens.
        kld_999: 99.9 % of tokens are below it.
        kld_99: 99 % are.
        kld_95: 95 % are; None of old builds, which leave it out.
        kld_90: 90 % are.
        kld_median: Half of them are.
        kld_min: The smallest; rounding makes it a little less than nothing.
        dp_mean: Mean change of the probability of the right token.
        dp_rms: Root of the mean square of that change.
        same_top: Share of tokens whose most likely token is the same.
    """

    ppl: Estimate
    ppl_base: Estimate
    ppl_ratio: Estimate
    kld: Estimate
    kld_max: Distance
    kld_999: Distance
    kld_99: Distance
    kld_95: Distance | None
    kld_90: Distance
    kld_median: Distance
    kld_min: Distance
    dp_mean: Estimate
    dp_rms: Estimate
    same_top: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceTask:
    """
    A pair to be compared with the reference, on chunks of one text.

    Attributes:
        pair: Cache types.
        reference: Those of the reference; may be the same.
        context: Length of a chunk, in tokens.
        chunks: Chunks, at most.
        text: The text.
        text_name: What it is called in messages.
        weights_sha256: Of the model.
        folder: The run folder; the reference's distributions are kept in it.
        patience: With the silence of the tool.
    """

    pair: Pair
    reference: Pair
    context: int
    chunks: int
    text: bytes
    text_name: str
    weights_sha256: str
    folder: Path
    patience: Patience = field(default_factory=Patience, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """
    Distributions of the reference, as they are kept on disk.

    Attributes:
        chunks: Chunks of text.
        ppl: Perplexity, before rounding.
        seconds: How long they took to compute.
    """

    chunks: int
    ppl: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkValues:
    """
    Means over the scored tokens of one chunk.

    Attributes:
        logp: Log-probability of the right token, in nats.
        kld: Divergence from the reference, in nats.
        same_top: Tokens with the reference's first choice, in percent.
    """

    logp: LogProb
    kld: Distance
    same_top: Percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    A pair compared with the reference.

    Attributes:
        statistics: Of all scored tokens.
        tokens: Tokens scored.
        retries: How often the tool ran again because its output was incomplete.
        by_chunk: The same of each chunk, as far as the tool tells; else empty.
    """

    statistics: Statistics
    tokens: int
    retries: int = 0
    by_chunk: tuple[ChunkValues, ...] = ()


class DivergenceTool(Protocol):
    """
    Compares the next-token distributions of a pair with those of another.

    It reads chunks of a text, each from an empty cache, and scores the tokens behind
    the first one of their second halves. Where a token begins a prompt, each chunk
    begins with it: of the first it is one more, of the others it replaces the first.
    """

    @property
    def version(self) -> str:
        """As it states it."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """The user's arguments for the engine that it takes, too."""
        ...

    @property
    def ignored(self) -> tuple[str, ...]:
        """The others, which change nothing here."""
        ...

    def check(
        self, *, text_name: str, text_bytes: int, context: int, chunks: int
    ) -> None:
        """
        Raise if *chunks* of *context* tokens cannot be compared.

        Raises:
            BadInput: If the text is too short, or too few tokens would be scored.
            MachineError: If the tool is too old for it.
        """
        ...

    def missing_bytes(self, folder: Path, *, context: int, chunks: int) -> int:
        """What the distributions of the reference would add to *folder*, in bytes."""
        ...

    def reference(self, task: DivergenceTask) -> Reference | None:
        """The stored distributions of the reference, if they are those of *task*."""
        ...

    def write_reference(
        self,
        task: DivergenceTask,
        *,
        log: Path,
        note: Callable[[ToolRun], None],
        progress: Callable[[int], None],
    ) -> Reference:
        """
        Compute and store the distributions of the reference.

        Args:
            task: Text, chunks and reference.
            log: Receives what the tool says. Overwritten.
            note: Called when the tool is started, and when it has ended.
            progress: Called with the number of chunks computed so far.

        Raises:
            BadInput: If the text turns out to be too short.
            CellError: If the tool fails, or runs other cache types than asked for.
        """
        ...

    def compare(
        self,
        task: DivergenceTask,
        reference: Reference,
        *,
        log: Path,
        note: Callable[[ToolRun], None],
        progress: Callable[[int], None],
    ) -> Comparison:
        """
        Compare the pair of *task* with *reference*; arguments as above.

        Raises:
            CellError: If the tool fails, or runs other cache types than asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTask:
    """
    Right tokens to be scored where they stand in a text that is read in batches.

    Attributes:
        pair: Cache types.
        ids: Numbers of the tokens that are read: the first tokens of the text, with
            the one that begins a prompt, if there is one.
        wanted: Places of the right tokens among these, from 0, ascending; each of
            `ReadingTool.places`.
        text: The text; it has twice as many tokens as are read.
        text_name: What it is called in messages.
        folder: The run folder.
        patience: With the silence of the tool.
    """

    pair: Pair
    ids: tuple[int, ...]
    wanted: tuple[int, ...]
    text: bytes
    text_name: str
    folder: Path
    patience: Patience = field(default_factory=Patience, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """
    The scores of right tokens, in the order in which they were wanted.

    Attributes:
        logprobs: As of `messages.Forced`.
        leads: Likewise; 0 where two were too close to be told apart.
        bounds: Likewise.
        retries: How often the tool ran again because its output was incomplete.
    """

    logprobs: tuple[float, ...]
    leads: tuple[float, ...]
    bounds: tuple[int, ...] = ()
    retries: int = 0


class ReadingTool(Protocol):
    """Scores right tokens of a text that it reads in batches, from an empty cache."""

    @property
    def version(self) -> str:
        """As it states it."""
        ...

    def places(self, tokens: int) -> range:
        """Places of a text of so many *tokens*, from 0, whose tokens are scored."""
        ...

    def memory_bytes(self, tokens: int) -> int:
        """What it takes in main memory for a text of *tokens*, beside the model."""
        ...

    def read(
        self, task: ReadingTask, *, log: Path, note: Callable[[ToolRun], None]
    ) -> ReadTokens:
        """
        Score the wanted tokens.

        Args:
            task: Text and tokens.
            log: Receives what the tool says. Overwritten.
            note: Called when the tool is started, and when it has ended.

        Raises:
            CellError: If the tool fails, reads other tokens than those of *task*, or
                runs other cache types than asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedTask:
    """
    Speed of one pair at one depth.

    Attributes:
        pair: Cache types.
        depth: Tokens in the cache before each repetition.
        prompt_tokens: Tokens to read per repetition.
        generated_tokens: Tokens to write per repetition.
        repetitions: Of each test.
    """

    pair: Pair
    depth: int
    prompt_tokens: int
    generated_tokens: int
    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """
    What was measured at one depth.

    Attributes:
        pp: Reading speed of each repetition, in tokens per second.
        tg: Writing speed of each repetition, in tokens per second.
        build: Number and commit of the tool.
        cpu: Names of the processors.
        gpu: Names of the accelerators; empty where there are none.
        backends: Names of the accelerating backends.
        threads: CPU threads.
        peak_bytes: Most memory that was allocated, weights included; None if the tool
            does not tell.
    """

    pp: tuple[float, ...]
    tg: tuple[float, ...]
    build: str
    cpu: str
    gpu: str
    backends: str
    threads: int
    peak_bytes: int | None = None


class SpeedTool(Protocol):
    """Measures how fast a pair reads prompts and writes tokens."""

    @property
    def arguments(self) -> Mapping[str, str]:
        """Its arguments that are the same for every cell, by name; stored."""
        ...

    @property
    def ignored(self) -> tuple[str, ...]:
        """The user's arguments for the engine that it does not have."""
        ...

    def measure(
        self,
        task: SpeedTask,
        *,
        log: Path,
        silence_s: float,
        note: Callable[[ToolRun], None],
        progress: Callable[[str], None],
    ) -> Speeds:
        """
        Run both tests.

        Args:
            task: What to measure.
            log: Receives what the tool says. Overwritten.
            silence_s: How long the tool may say nothing, in seconds.
            note: Called when the tool is started, and when it has ended.
            progress: Called with what the tool does, as a phrase.

        Raises:
            CellError: If the tool fails, or runs other cache types than asked for.
        """
        ...
