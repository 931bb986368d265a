"""
The stored layout of divergence: a comparison for each context with its chunks, the pair
that all are compared with, and why there is none; contradictions are refused.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codeneedle.cache_types import Pair
from codeneedle.engines.tools import ChunkValues, Percent, Statistics
from codeneedle.probes.observations import (
    calibration_in,
    file_name_of,
    keep_results,
    observation_of,
)
from codeneedle.records.record import (
    Amount,
    CellRecord,
    Count,
    Json,
    Length,
    LogProb,
    Setup,
    refuse_unless_possible,
)

NAME = "divergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextComparison:
    """A cell compared with the reference at one context."""

    context: Length  # length of a chunk, in tokens
    chunks: Count  # chunks of text
    tokens: Count  # tokens scored: the second half of each chunk
    seconds: Amount  # how long the comparison took
    base_seconds: Amount  # how long the reference took to write its base file
    reference_ppl: Amount | None = None
    """
    Perplexity of the reference, as it was before 16 bits of it were kept: what is read
    back stops 16 nats below the likeliest token. None where the end of the log that
    tells it was missing; without `statistics` None, or 0.
    """

    statistics: Statistics | None = None
    """
    What llama-perplexity made of it; None where a server scored right tokens alone.
    """

    retries: Count = 0
    """How often the tool ran again because the end of its log was missing."""

    by_chunk: tuple[ChunkValues, ...] = ()
    """Means of each chunk, as far as the tool tells; else empty."""

    logprobs: tuple[LogProb, ...] = ()
    """
    Log-probability of each scored token, in the order of the text, in nats; empty where
    the tool does not tell.
    """

    first_choices: Percent = 0.0
    """Tokens that are the first choice of the pair, in percent; 0 likewise."""

    ends: tuple[Length, ...] = ()
    """
    Where each of them ends in the scored part of its chunk, in characters, where a
    server says so; empty where chunks have as many as each other.
    """

    bounded: Percent = 0.0
    """Tokens of whose probability only an upper bound is known, in percent."""

    by_chunk_tokens: tuple[Count, ...] = ()
    """How many of the tokens each chunk has, where a server has scored them."""

    untold: Count = 0  # further tokens; see `messages.Forced`
    same_as: tuple[Count, ...] = ()
    """For each chunk the first one of the same text, by number; empty if untold."""

    unscored: dict[str, str] = field(default_factory=dict)
    """Why chunks have no tokens, by their numbers."""

    @property
    def copied_chunks(self) -> frozenset[int]:
        """Numbers of the chunks that are copies of earlier ones, and no units."""
        every = enumerate(self.same_as)
        return frozenset(chunk for chunk, first in every if first != chunk)

    def logprobs_with_chunks(self) -> Iterator[tuple[int, float]]:
        """Chunk and log-probability of each token; of copies, nothing."""
        copies = self.copied_chunks
        for chunk, logprob in zip(
            self._chunk_of_each_token(), self.logprobs, strict=True
        ):
            if chunk not in copies:
                yield chunk, logprob

    def _chunk_of_each_token(self) -> Sequence[int]:
        """The chunk of each token."""
        if self.by_chunk_tokens:
            counts = enumerate(self.by_chunk_tokens)
            return [chunk for chunk, tokens in counts for _ in range(tokens)]
        if self.ends:
            return _chunk_of_each_end(self.ends)
        per_chunk = max(1, len(self.logprobs) // max(1, self.chunks))
        return [number // per_chunk for number in range(len(self.logprobs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The observation of the divergence probe."""

    reference: str  # the pair compared with: ``f16/f16``
    answers: dict[str, ContextComparison]  # one comparison for each `comparison_key`
    skipped: dict[str, str] = field(default_factory=dict)
    """Why there is none, for each such key: its engine scores no text."""

    def comparison_at(
        self, context: int | None, sizes: Mapping[int, int]
    ) -> ContextComparison | None:
        """
        The comparison at *context*; None if there is none.

        Args:
            context: In tokens; None for the first of *sizes*, or if empty, of all.
            sizes: Chunks by context; at a context without, the newest is taken.
        """
        if context is None:
            contexts = (answer.context for answer in self.answers.values())
            context = next(iter(sizes), next(contexts, None))
        if context is not None and context in sizes:
            return self.answers.get(comparison_key(context, sizes[context]))
        newest = reversed(self.answers.values())
        return next(
            (comparison for comparison in newest if comparison.context == context), None
        )


def _chunk_of_each_end(ends: Sequence[int]) -> list[int]:
    """The chunk of each token, whose *ends* begin anew with each chunk."""
    # Parts of one character may end where it does.
    begins = [now < before for before, now in itertools.pairwise(ends)]
    return list(itertools.accumulate(begins, initial=0)) if ends else []


def comparison_key(context: int, chunks: int) -> str:
    """The key of a comparison at *context* on at most so many *chunks*: ``1024x8``."""
    return f"{context}x{chunks}"


def stored_chunks_by_context(layout: Json) -> dict[int, int]:
    """Chunks by context of a stored *layout*; empty if it has none."""
    contexts, chunks = layout.get("contexts", ()), layout.get("chunks", ())
    return dict(zip(contexts, chunks, strict=False))


@dataclass(frozen=True, slots=True)
class ComparedWith:
    """What the setup of a run keeps of it."""

    reference: str  # the pair that all are compared with: ``f16/f16``
    unread: dict[str, str] = field(default_factory=dict)
    """Why the engine scores no text, by the question that the reference has skipped."""


def reference_of(setup: Setup) -> Pair | None:
    """
    The pair that all cells are compared with; None before the first.

    Raises:
        BadRecord: If what the setup keeps is something else.
    """
    known = calibration_in(setup, NAME, ComparedWith)
    return Pair.parse(known.reference) if known else None


def unread_reasons_by_key(setup: Setup) -> dict[str, str]:
    """Why pairs are not asked some questions, as the reference has shown, by key."""
    known = calibration_in(setup, NAME, ComparedWith)
    return known.unread if known else {}


@keep_results()
def divergence_of(record: CellRecord) -> Divergence | None:
    """
    What *record* holds of this probe; None if it is another's, or holds nothing.

    Raises:
        BadRecord: If what it holds cannot be read.
    """
    if record.probe != NAME or record.observation is None:
        return None
    divergence, file = observation_of(record, Divergence), file_name_of(record)
    for name, comparison in divergence.answers.items():
        context, _, chunks = name.partition("x")
        is_possible = context == str(comparison.context) and chunks.isdecimal()
        refuse_unless_possible(is_possible, f"'{name}' is no comparison", file=file)
        fault = comparison.statistics.fault if comparison.statistics else ""
        what = f"no two distributions compare like that at {comparison.context} tokens"
        refuse_unless_possible(not fault, f"{what}: {fault}", file=file)
        is_whole = len(comparison.by_chunk) in {0, comparison.chunks}
        refuse_unless_possible(is_whole, "chunks are missing or too many", file=file)
        is_whole = len(comparison.logprobs) in {0, comparison.tokens}
        is_whole &= len(comparison.ends) in {0, len(comparison.logprobs)}
        is_whole &= len(comparison.same_as) in {0, comparison.chunks}
        is_whole &= all(map(str.isdecimal, comparison.unscored))
        is_whole &= sum(comparison.by_chunk_tokens) in {0, len(comparison.logprobs)}
        is_even = comparison.ends or comparison.by_chunk_tokens or not comparison.chunks
        is_whole &= bool(is_even) or len(comparison.logprobs) % comparison.chunks == 0
        refuse_unless_possible(is_whole, "tokens are missing or too many", file=file)
    return divergence
