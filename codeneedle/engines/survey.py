"""
A survey of kernels: where attention would run for each pair, and what memory it takes.

An engine makes it before the first cell, without loading the weights.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from codeneedle.cache_types import Pair
from codeneedle.models.kv_cache import Caches, why_misfit
from codeneedle.models.weights import Weights
from codeneedle.records.record import Attention, DeviceMemory, Effective, KvBuffer
from codeneedle.system.files import cache_folder
from codeneedle.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSurvey:
    """What the engine answers for one pair."""

    pair: Pair
    attention: Attention | None = None  # None: unknown, or the pair is refused
    refusal: str = ""  # why the engine cannot run the pair; empty if it can
    evidence: str = ""  # line of the log that says so
    graph_splits: int | None = None
    kv: tuple[KvBuffer, ...] = ()
    recurrent_bytes: int = 0  # state that cache types do not change
    memory: tuple[DeviceMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the engine answers for the pairs of a grid, at one context size."""

    context: int  # in tokens
    pairs: Mapping[Pair, PairSurvey]
    unknown: str = ""  # why there is no answer for some pairs; empty if there is
    whole_splits: int | None = None  # graph splits with attention in a kernel
    cure: str = ""  # option of a build that converts none; empty if none is converted
    took_s: float = 0.0
    is_kept: bool = False  # whether all answers are those of an earlier survey

    def attention(self, pair: Pair) -> Attention | None:
        """Where attention would run for *pair*; None if unknown or refused."""
        answer = self.pairs.get(pair)
        return answer.attention if answer else None

    def lacks_kernel(self, pair: Pair) -> bool:
        """Whether attention of *pair* would run elsewhere than in a kernel."""
        attention = self.attention(pair)
        return attention is not None and not attention.is_usual

    def caches(self, pair: Pair) -> Caches | None:
        """The KV caches of *pair*; None if unknown, or it is refused."""
        answer = self.pairs.get(pair)
        return Caches(answer.kv, self.context) if answer and answer.kv else None

    @property
    def has_no_cache(self) -> bool:
        """Whether the engine makes a context without a KV cache for each pair."""
        made = [answer for answer in self.pairs.values() if answer.memory]
        return bool(made) and not any(answer.kv for answer in made)

    def refusal(self, pair: Pair) -> str:
        """Why the engine cannot run *pair*; empty if it can, or if that is unknown."""
        answer = self.pairs.get(pair)
        return answer.refusal if answer else ""


def why_impossible(survey: Survey | None, weights: Weights, pair: Pair) -> str:
    """
    Why *pair* cannot run here, as a phrase; empty if it can, or if that is unknown.

    By the *survey*, None if the engine makes none, and by the header of the *weights*.
    """
    refusal = survey.refusal(pair) if survey else ""
    return refusal or why_misfit(weights, pair) or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a pair saves beside the reference; sizes in bytes."""

    pair: Pair
    context: int  # in tokens
    weights: int  # of the model
    reference: float  # KV cache of the reference
    kv: float  # KV cache of the pair
    recurrent: int  # state that cache types do not change
    compute: int  # buffers of the graph, of the reference
    is_least: bool  # whether these are of a shorter context: they grow with it
    per_token: float  # KV cache of a further token, of the pair

    @property
    def saved_share(self) -> float:
        """What the pair saves of all memory with the reference."""
        whole = self.weights + self.reference + self.recurrent + self.compute
        return (self.reference - self.kv) / whole

    @property
    def further_tokens(self) -> int:
        """Further tokens that the memory of the reference would hold with the pair."""
        saved = self.reference - self.kv
        return int(saved / self.per_token) if self.per_token else 0


def gain_by_survey(
    survey: Survey, pair: Pair, *, reference: Pair, weights: int
) -> Gain | None:
    """
    The memory of *pair* beside that of *reference*; see `memory_gain`.

    Args:
        survey: Has both pairs, at the context in question.
        pair: The pair in question.
        reference: The pair to compare with.
        weights: Their size, in bytes.

    Returns:
        None if the engine does not tell the size of both caches.
    """
    theirs, ours = survey.caches(reference), survey.caches(pair)
    if theirs is None or ours is None:
        return None
    return memory_gain(
        pair, ours, theirs, survey.pairs[reference], at=survey.context, weights=weights
    )


def memory_gain(
    pair: Pair,
    ours: Caches,
    theirs: Caches,
    told: PairSurvey | Effective,
    *,
    at: int,
    weights: int,
) -> Gain | None:
    """
    The memory of *pair* beside that of the reference.

    Args:
        pair: The pair in question.
        ours: Its caches.
        theirs: Those of the reference.
        told: What else the engine tells of the memory of the reference.
        at: Context, in tokens.
        weights: Their size, in bytes.

    Returns:
        None if the size of one of both is unknown at that context.
    """
    kv, reference = ours.size(at), theirs.size(at)
    if kv is None or reference is None:
        return None
    return Gain(
        pair=pair,
        context=at,
        weights=weights,
        reference=reference,
        kv=kv,
        recurrent=told.recurrent_bytes,
        compute=sum(device.compute for device in told.memory),
        is_least=at > theirs.context,
        per_token=ours.added_bytes_per_token,
    )


WHOLE_SPLITS = 2
"""Graph splits of a model that is on one device: its input, and everything else."""


NO_BUILD = "no build has one"
"""Ends the evidence of a pair that no option of a build gives a kernel."""


def with_attention(
    effective: Effective, survey: Survey | None, pair: Pair, *, is_split: bool
) -> Effective:
    """
    *effective* with where attention ran, by the splits of the compute graph.

    A graph is whole with two splits, or with as many as f16/f16 has in the survey. With
    attention on the CPU it has two more for each layer that has a KV cache. What a log
    line has told stays.

    Args:
        effective: Settings of a server or tool, as its log tells them.
        survey: Survey of the run; None without one.
        pair: The pair that was measured, to compare with the survey.
        is_split: Whether arguments of the user's split the graph of each pair.
    """
    splits = effective.graph_splits
    if effective.attention is None and splits is not None:
        surveyed = survey.whole_splits if survey else None
        whole = max(WHOLE_SPLITS, surveyed or 0)
        attention = _attention_by_splits(effective, splits, whole)
        if attention is Attention.CPU and is_split and surveyed is None:
            attention = None
        evidence = f"{splits} graph splits, {whole} with attention in a kernel"
        if not _is_on_accelerator(effective):
            evidence = "the cache is on the CPU"
        if attention is not None:
            effective = replace(
                effective, attention=attention, attention_evidence=evidence
            )
    foretold = survey.attention(pair) if survey else None
    if foretold is None or foretold is effective.attention:
        return effective
    # A graph with a conversion is as whole as one with a kernel.
    is_hidden = (effective.attention, foretold) == (
        Attention.KERNEL,
        Attention.CONVERTED,
    )
    if effective.attention is None or is_hidden:
        why = survey.pairs[pair].evidence if survey and is_hidden else ""
        evidence = f"by the survey: {why}" if why else "by the survey"
        return replace(effective, attention=foretold, attention_evidence=evidence)
    told = f"{effective.attention_evidence}; the survey said {foretold}"
    return replace(effective, attention_evidence=told)


def _attention_by_splits(
    effective: Effective, splits: int, whole: int
) -> Attention | None:
    """
    A kernel without further splits, the CPU with one or more for each layer.

    None between the two.
    """
    if not _is_on_accelerator(effective) or splits <= whole:
        return Attention.KERNEL
    layers = sum(cache.layers for cache in effective.kv)
    return Attention.CPU if layers and splits - whole >= layers else None


def _is_on_accelerator(effective: Effective) -> bool:
    """Whether any of the cache is: on the CPU alone each pair has a kernel."""
    if effective.devices:
        return bool({*effective.devices} - {"CPU"})
    return bool(effective.offloaded_layers)


_TELL: ContextVar[Callable[[str, int, int], object] | None] = ContextVar(
    "tell", default=None
)


@contextlib.contextmanager
def reporting_survey_progress(
    tell: Callable[[str, int, int], object],
) -> Iterator[None]:
    """Have *tell* called with what surveys in the block ask, and how far that is."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def report_survey_progress(done: int, total: int) -> None:
    """Tell that so many pairs of a survey were answered."""
    if tell := _TELL.get():
        tell(f"asking the engine about {plural(total, 'pair')}", done, total)


def survey_log() -> Path:
    """Log of the programs that answer a survey, outside of any run folder."""
    return cache_folder() / "surveys" / "survey.log"
