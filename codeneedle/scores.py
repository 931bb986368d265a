"""
What counts as a score: the range of log-probabilities and of scores of samples, bounds
for zero, contradictions that are refused, and NaN, which is a finding about the pair.

Whatever reads log-probabilities, statistics or scores of evaluations asks here, of what
a program says and of what is stored. What is none is an error of its answer, counted
and said; never a number. A probability of zero, or one below the representable, is a
score: an upper bound.
"""

import math
from collections.abc import Collection, Iterable, Sequence

from codeneedle.errors import CellError

LOWEST = -104.0
"""
Log-probability that stands, as an upper bound, for zero and for what lies below it.

The smallest number that a 32-bit float can hold is exp(-103.97); llama-server says
-3.4e38 where a probability is less.
"""

ROUNDING = 0.001
"""
Highest log-probability: a softmax in 16 or 32 bits adds up to 1 within its rounding,
and servers round what they say, some to three decimals.
"""

MOST_LIKELY = 1.05
"""Most that probabilities of one place may add up to: each may be rounded."""

LEAST_LIKELY = -23.0
"""
Least log-probability of the most probable token: that of one among 2^32, all equal.
"""


COMPUTES_NAN = "computes NaN"
"""What the reason of a cell that does begins with."""


class NoScore(ValueError):  # noqa: N818 - named after the fact
    """A number, or several together, that are no score; says why."""


class NotANumber(NoScore):
    """NaN: what computed it has gone wrong before."""

    def __init__(self) -> None:
        super().__init__("a log-probability of nan")


class ComputesNan(CellError):  # noqa: N818 - named after the fact
    """A cell that computes NaN: a finding about its pair, and none of its answers."""

    status = "unsupported"

    def __init__(self, *, token: int = 0, log_excerpt: tuple[str, ...] = ()) -> None:
        """
        Say from which *token* on, counted from 1 in what it reads; 0 if unknown.

        It may have begun before: only what is scored is seen.
        """
        place = f" from token {token:,} on" if token else ""
        super().__init__(
            f"{COMPUTES_NAN}{place}: this cache type overflows or has a broken kernel "
            "here",
            hint="Use another type: other pairs are compared without it. If all of "
            "them compute NaN, the weights or this build do.",
            log_excerpt=log_excerpt,
        )


def checked_log_probability(stated: float | None) -> float:
    """
    What is *stated* as a log-probability, within its range.

    Returns:
        At most 0; `LOWEST`, a bound, for zero and what lies below the representable.

    Raises:
        NotANumber: If it is NaN.
        NoScore: If it is none, or above 0 by more than `ROUNDING`.
    """
    if stated is None:
        raise NoScore("a token without a log-probability")
    if math.isnan(stated):
        raise NotANumber
    if stated > ROUNDING:
        raise NoScore(f"a log-probability of {stated:g}")
    return min(0.0, max(LOWEST, stated))


def refuse_contradiction(logprobs: Iterable[float], *, slack: float = 0.0) -> None:
    """
    Stop at log-probabilities of different tokens at one place that cannot be.

    Args:
        logprobs: Of the most probable tokens, two or more, and maybe of others.
        slack: By how much they may be rounded beyond what a program states.

    Raises:
        NoScore: If the probabilities add up to more than `MOST_LIKELY`, 1 and rounding,
            or none of several reaches `LEAST_LIKELY`.
    """
    every = list(logprobs)
    if math.fsum(map(math.exp, every)) > MOST_LIKELY + slack:
        raise NoScore("probabilities of one token that add up to more than 1")
    if len(every) > 1 and max(every) < LEAST_LIKELY - slack:
        raise NoScore("probabilities of one token, none of which is likely")


def why_contradictory(logprob: float, lead: float, *, is_bound: bool) -> str:
    """
    Why a token cannot have *logprob* and *lead*, as they are stored; empty if it can.

    Args:
        logprob: Its log-probability, or an upper bound.
        lead: *logprob* minus that of the most probable other token.
        is_bound: Whether they are bounds: the token may be far less likely.
    """
    try:
        numbers = [
            checked_log_probability(logprob),
            checked_log_probability(logprob - lead),
        ]
        refuse_contradiction(numbers[1:] if is_bound else numbers, slack=ROUNDING)
    except NoScore as error:
        return str(error)
    return ""


def why_first_contradictory(
    logprobs: Sequence[float], leads: Sequence[float], bounds: Collection[int] = ()
) -> str:
    """
    The first `why_contradictory` of tokens that are stored; empty without one.

    What surely can be is seen at a glance: reports read a million tokens.

    Args:
        logprobs: Per token, its log-probability, or an upper bound.
        leads: Per token, as many, *logprob* minus that of the most probable other one.
        bounds: Numbers of the tokens, from 0, whose numbers are bounds.
    """
    for at, (logprob, lead) in enumerate(zip(logprobs, leads, strict=True)):
        other = logprob - lead
        # False for NaN; nothing that is compared here lies above 0, where exp fails.
        if (
            LEAST_LIKELY <= logprob <= 0.0 >= other
            and math.exp(logprob) + math.exp(other) <= MOST_LIKELY
        ):
            continue
        if fault := why_contradictory(logprob, lead, is_bound=at in bounds):
            return fault
    return ""


def checked_sample_score(stated: float) -> float:
    """
    What is *stated* as the score of a sample, from 0 to 1.

    Raises:
        NoScore: If it is NaN, infinite or beyond.
    """
    if math.isnan(stated):
        raise NoScore("its score is NaN")
    if not 0 <= stated <= 1:
        raise NoScore(f"its score is {stated:g}, not from 0 to 1")
    return float(stated)
