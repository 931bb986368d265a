"""
Divergence of two distributions, as llama-perplexity defines it: the chunks of a text,
the reference's rows rounded to 16 bits, and the statistics of rows compared. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from codeneedle.engines.messages import round_finite_score_or_zero
from codeneedle.engines.tools import ChunkValues, Estimate, Statistics

SCALE_VALUES = 4
"""16-bit values that hold a row's scale and minimum, as two 32-bit floats."""

DEEPEST = 16.0
"""Nats below the most probable token, from where on a row has one value for all."""

Row = npt.NDArray[np.float32]
"""Log-probabilities of all tokens, natural logarithms."""

FEW = 10
"""With so few tokens, no errors are stated."""


def values_per_row(vocabulary: int) -> int:
    """
    16-bit values that a scored token takes: an even vocabulary, scale and minimum.

    Source:
        ``nv`` in ``process_logits``, ``perplexity.cpp`` of llama.cpp b11434.
    """
    return 2 * ((vocabulary + 1) // 2) + 4


def split_into_chunks(
    ids: Sequence[int], *, context: int, beginning: Sequence[int]
) -> list[list[int]]:
    """
    Chunks of *context* tokens each; a rest that is shorter is left out.

    The first token of *beginning*, with which prompts begin, replaces that of each
    chunk; if it is empty, none is replaced.

    Source:
        ``kl_divergence`` in ``perplexity.cpp`` of llama.cpp b11434.
    """
    first = list(beginning[:1])
    return [
        [*first, *ids[at + len(first) : at + context]]
        for at in range(0, len(ids) - context + 1, context)
    ]


def encoded_row(row: Row) -> npt.NDArray[np.uint16]:
    """
    *row* in 16 bits a value, shape (`values_per_row`,).

    Source:
        ``log_softmax`` with ``log_prob`` in ``perplexity.cpp`` of llama.cpp b11434.
    """
    top = np.float32(row.max())
    low = max(np.float32(row.min()), np.float32(top - DEEPEST))
    scale = np.float32((top - low) / 65535)
    stored = np.zeros(values_per_row(len(row)), dtype=np.uint16)
    stored[:SCALE_VALUES] = np.array([scale, low], dtype=np.float32).view(np.uint16)
    if scale:
        steps = np.rint((row - low) / scale)
        values = np.where(row > low, steps, 0).astype(np.uint16)
        stored[SCALE_VALUES : SCALE_VALUES + len(row)] = values
    return stored


def decoded_row(stored: npt.NDArray[np.uint16], vocabulary: int) -> Row:
    """The log-probabilities that `encoded_row` made *stored* of, rounded."""
    scale, low = stored[:SCALE_VALUES].view(np.float32)
    values = stored[SCALE_VALUES : SCALE_VALUES + vocabulary].astype(np.float32)
    row: Row = scale * values + low
    return row


@dataclass(slots=True)
class Sums:
    """Two distributions compared token by token."""

    nll: list[float] = field(default_factory=list)
    """Minus the log-probability of each right token, in nats."""

    nll_base: list[float] = field(default_factory=list)  # the same of the reference
    kld: list[float] = field(default_factory=list)
    """Divergence from the reference, in nats."""

    dp: list[float] = field(default_factory=list)
    """Change of the right token's probability."""

    same: list[bool] = field(default_factory=list)
    """Whether the most probable token is the same."""

    right: list[bool] = field(default_factory=list)
    """Whether the most probable token is the right one."""

    def add_token(self, row: Row, base: Row, right: int) -> None:
        """
        Compare *row* with *base* at a place where *right* comes.

        Source:
            ``log_softmax`` with ``base_log_prob`` in ``perplexity.cpp``: tokens of the
            reference below -16 nats do not count.
        """
        self.nll.append(-float(row[right]))
        self.nll_base.append(-float(base[right]))
        seen = base > -DEEPEST
        shares = np.exp(base[seen], dtype=np.float32).astype(np.float64)
        self.kld.append(float(np.sum(shares * (base[seen] - row[seen]))))
        self.dp.append(float(np.exp(row[right]) - np.exp(base[right])))
        first = int(row.argmax())
        self.same.append(first == int(base.argmax()))
        self.right.append(first == right)

    def __len__(self) -> int:
        return len(self.nll)

    @property
    def rounded_logprobs(self) -> tuple[float, ...]:
        """Log-probability of each right token, with the decimals that are kept."""
        return tuple(round_finite_score_or_zero(min(0.0, -nats)) for nats in self.nll)

    @property
    def first_choice_percent(self) -> float:
        """Share of the right tokens that are the first choice, in percent."""
        return round(100 * _mean_or_zero(self.right), 4)

    def means_from(self, start: int) -> ChunkValues:
        """Means over the tokens from *start* on."""
        return ChunkValues(
            logp=-_mean_or_zero(self.nll[start:]),
            kld=_mean_or_zero(self.kld[start:]),
            same_top=100 * _mean_or_zero(self.same[start:]),
        )

    def statistics(self) -> Statistics:
        """Statistics of all tokens; there must be one."""
        nll, base = np.array(self.nll), np.array(self.nll_base)
        kld, dp = np.array(self.kld), np.array(self.dp)
        mean, base_mean = mean_estimate(nll), mean_estimate(base)
        ratio = math.exp(mean.value - base_mean.value)
        same = _mean_or_zero(self.same)
        return Statistics(
            ppl=_exponential_of_mean(mean),
            ppl_base=_exponential_of_mean(base_mean),
            # The two vary together.
            ppl_ratio=Estimate(ratio, ratio * _standard_error(nll - base)),
            kld=mean_estimate(kld),
            kld_max=float(kld.max()),
            kld_999=float(np.quantile(kld, 0.999)),
            kld_99=float(np.quantile(kld, 0.99)),
            kld_95=float(np.quantile(kld, 0.95)),
            kld_90=float(np.quantile(kld, 0.9)),
            kld_median=float(np.quantile(kld, 0.5)),
            kld_min=float(kld.min()),
            dp_mean=_in_percent(mean_estimate(dp)),
            dp_rms=_in_percent(_root_of_mean_square(dp)),
            same_top=_in_percent(
                Estimate(same, _standard_error_of_share(same, len(kld)))
            ),
        )


def mean_estimate(values: npt.NDArray[np.float64]) -> Estimate:
    """Mean and its standard error. Source: ``mean_and_uncertainty``."""
    return Estimate(float(values.mean()), _standard_error(values))


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    """Standard error of the mean of *values*; 0 with `FEW` or fewer."""
    count = len(values)
    return math.sqrt(float(values.var()) / (count - 1)) if count > FEW else 0.0


def _exponential_of_mean(mean: Estimate) -> Estimate:
    value = math.exp(mean.value)
    return Estimate(value, value * (mean.error or 0.0))


def _root_of_mean_square(dp: npt.NDArray[np.float64]) -> Estimate:
    """Root of the mean square of *dp*, with its error."""
    square = mean_estimate(dp**2)
    root = math.sqrt(square.value)
    return Estimate(root, (square.error or 0.0) / (2 * root) if root else 0.0)


def _standard_error_of_share(share: float, count: int) -> float:
    """Standard error of a *share* of *count*; 0 of a single one."""
    return math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else 0.0


def _in_percent(share: Estimate) -> Estimate:
    """*share* in percent; an unknown error becomes 0."""
    return Estimate(100 * share.value, 100 * (share.error or 0.0))


def _mean_or_zero(values: list[float] | list[bool]) -> float:
    """Mean of *values*; 0 without any."""
    return math.fsum(values) / len(values) if values else 0.0
