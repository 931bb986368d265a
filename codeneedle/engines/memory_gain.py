"""
What a pair saves of the whole memory of a model: weights, caches, recurrent state and
compute buffers.
"""

from dataclasses import dataclass

from codeneedle.cache_types import Pair
from codeneedle.engines.survey import PairSurvey, Survey
from codeneedle.models.kv_cache import Caches
from codeneedle.records.record import Effective


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
    def further_tokens_in_saved_memory(self) -> int:
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
    kv, reference = ours.cache_bytes_at(at), theirs.cache_bytes_at(at)
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
