"""
A survey of kernels: where attention would run for each pair, and what memory it takes.

An engine makes it before the first cell, without loading the weights.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from codeneedle.cache_types import Pair
from codeneedle.models.kv_cache import Caches, why_misfit
from codeneedle.models.weights import Weights
from codeneedle.records.record import Attention, DeviceMemory, KvBuffer
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

    def expected_attention_place(self, pair: Pair) -> Attention | None:
        """Where attention would run for *pair*; None if unknown or refused."""
        answer = self.pairs.get(pair)
        return answer.attention if answer else None

    def lacks_kernel(self, pair: Pair) -> bool:
        """Whether attention of *pair* is converted or on the CPU; False if unknown."""
        attention = self.expected_attention_place(pair)
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
    return refusal or why_misfit(weights, pair)


NO_BUILD = "no build has one"
"""Ends the evidence of a pair that no option of a build gives a kernel."""


_TELL: ContextVar[Callable[[str, int, int], object] | None] = ContextVar(
    "tell", default=None
)


@contextlib.contextmanager
def reporting_survey_progress(
    tell: Callable[[str, int, int], object],
) -> Iterator[None]:
    """Have *tell* called, in the block, with a phrase, pairs answered and all pairs."""
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
