"""
What tools of an engine take and give, whichever engine it is (divergence, reading,
speed), and which statistics of two distributions cannot be.

An engine that has none needs nothing of this.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from codeneedle.cache_types import Pair
from codeneedle.engines.silence_limits import SilenceLimit
from codeneedle.records.record import MOST_NATS, Amount, Count, Effective, LogProb
from codeneedle.scores import ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """One run of a tool, for the record of its cell."""

    command: tuple[str, ...]  # what it is started with
    effective: Effective | None = None
    """What ran, as far as its log tells; None before it has ended."""


Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
"""Bounds that keep sums and squares finite."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error; None where the tool could not say one."""

    value: Finite  # finite
    error: Amount | None  # finite, never negative


LEAST_DIVERGENCE = 0.1
"""How far below 0 rounding may bring a mean divergence, in nats."""

Distance = Annotated[float, msgspec.Meta(ge=-1.0, le=MOST_NATS)]
"""In nats; below 0 for rounding alone: distributions are kept in 16 bits."""

Percent = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """
    Two distributions over the same tokens, compared: Q beside base.

    Divergences are in nats, perplexities pure, shares and probabilities in percent.
    """

    ppl: Estimate | None  # perplexity of Q; None where a log alone tells it, and is cut
    ppl_base: Estimate  # perplexity of base, as read back from its file
    ppl_ratio: Estimate  # the first by the second
    kld: Estimate  # mean divergence of Q from base
    kld_max: Distance  # the largest of all tokens
    kld_999: Distance  # 99.9 % of tokens are below it
    kld_99: Distance  # 99 % are
    kld_95: Distance | None  # 95 % are; None of old builds, which leave it out
    kld_90: Distance  # 90 % are
    kld_median: Distance  # half of them are
    kld_min: Distance  # the smallest; rounding makes it a little less than nothing
    dp_mean: Estimate  # mean change of the probability of the right token
    dp_rms: Estimate  # root of the mean square of that change
    same_top: Estimate  # share of tokens whose most likely token is the same

    @property
    def fault(self) -> str:
        """What no two distributions have, as a phrase; empty if all of it can be."""
        numbers = {
            statistic.name: value.value if isinstance(value, Estimate) else value
            for statistic in fields(self)
            if (value := getattr(self, statistic.name)) is not None
        }
        for name, number in numbers.items():
            if not math.isfinite(number):
                return f"{name} is {number:g}"
        perplexities = (
            estimate.value for estimate in (self.ppl, self.ppl_base) if estimate
        )
        if min(perplexities) < math.exp(-ROUNDING):
            return "a perplexity below 1"
        if not -LEAST_DIVERGENCE <= self.kld.value <= MOST_NATS:
            return f"a mean divergence of {self.kld.value:g} nats"
        is_share = 0 <= self.same_top.value <= 100  # noqa: PLR2004 - percent
        if not is_share or self.ppl_ratio.value <= 0 or self.dp_rms.value < 0:
            return "a share, a ratio or a spread that cannot be"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceTask:
    """A pair to be compared with the reference, on chunks of one text."""

    pair: Pair  # cache types
    reference: Pair  # those of the reference; may be the same
    context: int  # length of a chunk, in tokens
    chunks: int  # chunks, at most
    text: bytes
    text_name: str  # what it is called in messages
    weights_sha256: str  # of the model
    folder: Path  # the run folder; the reference's distributions are kept in it
    silence_limit: SilenceLimit = field(default_factory=SilenceLimit, compare=False)
    """How long the tool may say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Distributions of the reference, as they are kept on disk."""

    chunks: int  # chunks of text
    ppl: float | None  # perplexity, before rounding; None if untold
    seconds: float  # how long they took to compute


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkValues:
    """Means over the scored tokens of one chunk."""

    logp: LogProb  # log-probability of the right token, in nats
    kld: Distance  # divergence from the reference, in nats
    same_top: Percent  # tokens with the reference's first choice, in percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A pair compared with the reference."""

    statistics: Statistics  # of all scored tokens
    tokens: int  # tokens scored
    retries: int = 0  # how often the tool ran again because its output was incomplete
    by_chunk: tuple[ChunkValues, ...] = ()
    """The same of each chunk, as far as the tool tells; else empty."""

    logprobs: tuple[LogProb, ...] = ()
    """
    Log-probability of each scored token, in the order of the text, in nats; empty where
    the tool does not tell.
    """

    first_choices: Percent = 0.0
    """Tokens that are the first choice of the pair, in percent; 0 likewise."""

    same_as: tuple[Count, ...] = ()
    """For each chunk the first one of the same tokens, by number; empty if untold."""


class DivergenceTool(Protocol):
    """
    Compares the next-token distributions of a pair with those of another.

    It reads chunks of a text, each from an empty cache, and scores the tokens behind
    the first one of their second halves. Where a token begins a prompt, each chunk
    begins with it: of the first it is one more, of the others it replaces the first.
    """

    @property
    def version(self) -> str:
        """The version that the tool states."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """The user's arguments for the engine that it takes, too."""
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

    def bytes_to_write(self, folder: Path, *, context: int, chunks: int) -> int:
        """What the distributions of the reference would add to *folder*, in bytes."""
        ...

    def find_stored_reference(self, task: DivergenceTask) -> Reference | None:
        """The stored distributions of the reference; None unless they are of *task*."""
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
        Compare the pair of *task* with *reference*; arguments as of `write_reference`.

        Raises:
            CellError: If the tool fails, or runs other cache types than asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTask:
    """Right tokens to be scored where they stand in a text that is read in batches."""

    pair: Pair  # cache types
    ids: tuple[int, ...]
    """
    Numbers of the tokens that are read: the first tokens of the text, with the one that
    begins a prompt, if there is one.
    """

    wanted: tuple[int, ...]
    """
    Places of the right tokens among these, from 0, ascending; each of
    `ReadingTool.scorable_places`.
    """

    text: bytes  # the text; it has twice as many tokens as are read
    text_name: str  # what it is called in messages
    folder: Path  # the run folder
    silence_limit: SilenceLimit = field(default_factory=SilenceLimit, compare=False)
    """How long the tool may say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTokens:
    """The scores of right tokens, in the order in which they were wanted."""

    logprobs: tuple[float, ...]  # see `messages.Forced`
    leads: tuple[float, ...]
    """See `messages.Forced`; 0 where two were too close to be told apart."""

    bounds: tuple[int, ...] = ()  # see `messages.Forced`
    retries: int = 0  # how often the tool ran again because its output was incomplete


class ReadingTool(Protocol):
    """Scores right tokens of a text that it reads in batches, from an empty cache."""

    @property
    def version(self) -> str:
        """The version that the tool states."""
        ...

    def scorable_places(self, tokens: int) -> range:
        """Places of a text of so many *tokens*, from 0, whose tokens are scored."""
        ...

    def bytes_needed_to_read(self, tokens: int) -> int:
        """What it takes in main memory for a text of *tokens*, beside the model."""
        ...

    def read_and_score(
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
    """Speed of one pair at one depth."""

    pair: Pair  # cache types
    depth: int  # tokens in the cache before each repetition
    prompt_tokens: int  # tokens to read per repetition
    generated_tokens: int  # tokens to write per repetition
    repetitions: int  # of each test


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What was measured at one depth."""

    pp: tuple[float, ...]  # reading speed of each repetition, in tokens per second
    tg: tuple[float, ...]  # writing speed of each repetition, in tokens per second
    build: str  # number and commit of the tool
    cpu: str  # names of the processors
    gpu: str  # names of the accelerators; empty where there are none
    backends: str  # names of the accelerating backends
    threads: int  # CPU threads
    peak_bytes: int | None = None
    """
    Most memory that was allocated, weights included; None if the tool does not tell.
    """


class SpeedTool(Protocol):
    """Measures how fast a pair reads prompts and writes tokens."""

    @property
    def arguments(self) -> Mapping[str, str]:
        """Its arguments that are the same for every cell, by name; stored."""
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
        Run the tests of reading and of writing.

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


def indices_of_first_equals(chunks: Iterable[Hashable]) -> tuple[int, ...]:
    """For each of *chunks*, the number of the first one that is equal to it."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(chunk, at) for at, chunk in enumerate(chunks))
