"""
A survey of kernels: where attention would run for each pair, and what memory it takes.

An engine makes it before the first cell, without loading the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from codeneedle.grid import Pair
from codeneedle.records.record import Attention, DeviceMemory, KvBuffer


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
    took_s: float = 0.0
    is_kept: bool = False  # whether all answers are those of a former survey

    def attention(self, pair: Pair) -> Attention | None:
        """Where attention would run for *pair*; None if unknown or refused."""
        answer = self.pairs.get(pair)
        return answer.attention if answer else None

    def refusal(self, pair: Pair) -> str:
        """Why the engine cannot run *pair*; empty if it can, or if that is unknown."""
        answer = self.pairs.get(pair)
        return answer.refusal if answer else ""
