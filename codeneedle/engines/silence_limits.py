"""How long a server or a tool may say nothing, by what it took with other pairs."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from codeneedle.cache_types import Pair

MULTIPLE = 60.0
"""
Of the longest silence with another pair whose attention runs in the same place.

Kernels of one backend differ by less than ten times, and another program on the
machine makes a server five times slower. Where attention runs elsewhere it may be 400
times slower: then nothing follows from the other pair.
"""

LEAST_S = 300.0
"""A machine that swaps, or a disk that sleeps, says nothing for a minute or two."""


@dataclass(slots=True, kw_only=True)
class SilenceLimit:
    """The limit of a silence, and the longest one so far."""

    limit_s: float = math.inf
    """
    Time without an event or a byte, in seconds; what waits may have a lower limit of
    its own.
    """

    known: str = ""  # what the limit follows from, as a phrase; empty if from nothing
    longest_s: float = 0.0  # the longest time without one that came to an end
    _since_s: float = field(default=0.0, init=False)

    def begin_silence(self) -> None:
        """Wait from now on."""
        self._since_s = time.monotonic()

    def note_event(self) -> None:
        """Count the silence until now; the next one begins."""
        now_s = time.monotonic()
        self.longest_s = max(self.longest_s, now_s - self._since_s)
        self._since_s = now_s

    def limit_and_cause(self, limit_s: float) -> tuple[float, str]:
        """The limit and what it follows from; *limit_s* and nothing if that is less."""
        return min((self.limit_s, self.known), (limit_s, ""))


def silence_limit_of(silences_s: Mapping[Pair, float]) -> SilenceLimit:
    """The limit of a silence by the longest ones of other pairs; none without any."""
    if not silences_s:
        return SilenceLimit()
    pair = max(silences_s, key=lambda other: silences_s[other])
    longest_s = silences_s[pair]
    return SilenceLimit(
        limit_s=round(max(LEAST_S, MULTIPLE * longest_s)),
        known=f"its longest silence with {pair} was {longest_s:g} s; "
        "--retry-failed waits longer",
    )
