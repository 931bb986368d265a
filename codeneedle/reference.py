"""
Chooses the reference, with which all other pairs are compared: the most precise pair
that was measured, of those with a kernel if there are any.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from codeneedle.cache_types import Pair, most_precise


class ReferenceCandidate(Protocol):
    """What may be the reference: a record with numbers, or a cell with a value."""

    @property
    def pair(self) -> Pair:
        """The pair that it is of."""

    @property
    def ran_as_usual(self) -> bool:
        """Whether its attention `is_usual`, or is unknown."""


def reference_among(candidates: Iterable[ReferenceCandidate]) -> Pair | None:
    """
    The pair that all others are compared with.

    The most precise of *candidates*, of those in a kernel if there are any; None
    without candidates. Whoever needs a reference among measured pairs asks here.
    """
    every = list(candidates)
    pairs = {candidate.pair for candidate in every if candidate.ran_as_usual}
    pairs = pairs or {candidate.pair for candidate in every}
    return most_precise(pairs) if pairs else None


def choose_reference_pair(
    candidates: Sequence[ReferenceCandidate], against: Iterable[str]
) -> Pair | None:
    """
    The pair that records name, else the most precise of *candidates*, of those in a
    kernel if there are any.

    None if they name several, or one that is no candidate.

    Args:
        candidates: Those with a value.
        against: Names of the pairs that records were measured against; empty for none.
    """
    names = {*against} - {""}
    if not names:
        return reference_among(candidates)
    named = Pair.parse(min(names))
    has_value = any(candidate.pair == named for candidate in candidates)
    return named if len(names) == 1 and has_value else None
