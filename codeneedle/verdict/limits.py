"""The limits of a verdict: the losses that a user accepts, and their defaults."""

import math
from dataclasses import dataclass

from codeneedle.errors import BadInput
from codeneedle.probes.metrics import LossKind

MAX_LOSS = 0.01
"""
Default limit of the loss: one of a hundred right tokens.

About the cost of 4-bit weights, of the same quantity as a pair's loss of ordinary text:
Llama 3 8B loses 0.6 % of the probability of the right
token with Q4_K_M weights, 0.9 % with Q4_K_S, 1.6 % with Q4_0 (mean Δp on ordinary text,
from the tables in ``tools/perplexity/README.md`` of llama.cpp).
"""

MAX_LOST = 0.10
"""Default limit of the share of lost answers."""

_PERCENT = 100

MAX_EVAL_LOST = 0.02
"""Default limit of the loss of an evaluation's mean score: two of 100 samples."""

CHANGE_BY_LOSS = 3.0
"""
Limit of the divergence in nats, per limit of the loss.

Q4_K_M weights diverge by 0.031 nats and lose 0.6 %; source: see `MAX_LOSS`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The losses that a user accepts."""

    max_loss: float = MAX_LOSS  # largest share of right tokens that may be lost
    max_lost: float = MAX_LOST
    """Largest share of the reference's answers that may be lost."""

    max_eval_lost: float = MAX_EVAL_LOST
    """Largest loss of the mean score of an evaluation."""

    max_memory_bytes: int | None = None
    """Largest KV cache; of several files of weights, all memory; None for any."""

    at: int | None = None  # context of that size, in tokens; None for that of the run

    def __post_init__(self) -> None:
        """
        Refuse limits that no loss can be held against.

        Raises:
            BadInput: If one is not above 0 and at most 1.
        """
        for name in ("max_loss", "max_lost", "max_eval_lost"):
            limit = getattr(self, name)
            if not 0 < limit <= 1:
                percent = limit if 1 < limit < _PERCENT else 3
                raise BadInput(
                    source=f"{name}={limit}",
                    reason="is no share above 0 and up to 1",
                    hint=f"Write {percent:g} % as {percent / _PERCENT:g}.",
                )

    def of(self, kind: LossKind) -> float:
        """
        The largest loss of one *kind* that is accepted.

        `max_lost` of answers, `max_eval_lost` of scores, `max_loss` of right tokens,
        and `CHANGE_BY_LOSS` times that of a change.
        """
        if kind is LossKind.ANSWERS:
            return self.max_lost
        if kind is LossKind.SCORE:
            return self.max_eval_lost
        if kind is LossKind.CHANGE:
            return CHANGE_BY_LOSS * self.max_loss
        return self.max_loss

    def loss_amount_text(self, kind: LossKind, loss: float) -> str:
        """
        A loss as text: ``0.9 %``, never ``-0.0 %``; ``0.0120 nats`` for a change,
        ``2.0 points`` of a score.

        Smaller limits have more digits.
        """
        digits = 1 - math.floor(math.log10(self.of(kind)))
        if kind is LossKind.CHANGE:
            return f"{loss:.{max(4, digits + 1)}f} nats"
        unit = "points" if kind is LossKind.SCORE else "%"
        return f"{100 * loss:z.{max(1, digits - 2)}f} {unit}"
