"""
Divergence of two distributions, as llama-perplexity defines it: the reference's rows
rounded to 16 bits, and the statistics of rows compared. Pure.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from codeneedle.engines.llama_cpp.base_file import row_values

Row = npt.NDArray[np.float32]
"""Log-probabilities of all tokens, natural logarithms."""

DEEPEST = 16.0
"""Nats below the most probable token, from where on the file has one value for all."""

SCALE_VALUES = 4
"""16-bit values that hold a row's scale and minimum, as two 32-bit floats."""

FEW = 10
"""With so few tokens, no errors are stated."""


def encoded(row: Row) -> npt.NDArray[np.uint16]:
    """
    *row* in 16 bits a value, shape (`row_values`,).

    Source:
        ``log_softmax`` with ``log_prob`` in ``perplexity.cpp`` of llama.cpp b11434.
    """
    top = np.float32(row.max())
    low = max(np.float32(row.min()), np.float32(top - DEEPEST))
    scale = np.float32((top - low) / 65535)
    found = np.zeros(row_values(len(row)), dtype=np.uint16)
    found[:SCALE_VALUES] = np.array([scale, low], dtype=np.float32).view(np.uint16)
    if scale:
        steps = np.rint((row - low) / scale)
        values = np.where(row > low, steps, 0).astype(np.uint16)
        found[SCALE_VALUES : SCALE_VALUES + len(row)] = values
    return found


def decoded(stored: npt.NDArray[np.uint16], vocabulary: int) -> Row:
    """The log-probabilities that `encoded` made *stored* of, rounded."""
    scale, low = stored[:SCALE_VALUES].view(np.float32)
    values = stored[SCALE_VALUES : SCALE_VALUES + vocabulary].astype(np.float32)
    found: Row = scale * values + low
    return found


@dataclass(slots=True)
class Sums:
    """
    Two distributions compared token by token.

    Attributes:
        nll: Minus the log-probability of each right token, in nats.
        nll_base: The same of the reference.
        kld: Divergence from the reference, in nats.
        dp: Change of the right token's probability.
        same: Whether the most probable token is the same.
    """

    nll: list[float] = field(default_factory=list)
    nll_base: list[float] = field(default_factory=list)
    kld: list[float] = field(default_factory=list)
    dp: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    def add(self, row: Row, base: Row, right: int) -> None:
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
        self.same.append(bool(row.argmax() == base.argmax()))

    def __len__(self) -> int:
        return len(self.nll)

    def chunk(self, start: int) -> dict[str, float]:
        """Means over the tokens from *start* on, as of `engine.ChunkValues`."""
        return {
            "logp": -_mean(self.nll[start:]),
            "kld": _mean(self.kld[start:]),
            "same_top": 100 * _mean(self.same[start:]),
        }

    def statistics(self) -> dict[str, Any]:
        """As of `engine.Statistics`; estimates are pairs of a value and its error."""
        nll, base = np.array(self.nll), np.array(self.nll_base)
        kld, dp = np.array(self.kld), np.array(self.dp)
        mean, base_mean = estimate(nll), estimate(base)
        ratio = math.exp(mean[0] - base_mean[0])
        same = _mean(self.same)
        return {
            "ppl": _exponential(mean),
            "ppl_base": _exponential(base_mean),
            "ppl_ratio": (ratio, ratio * _ratio_error(nll, base)),
            "kld": estimate(kld),
            "kld_max": float(kld.max()),
            **{
                f"kld_{name}": float(np.quantile(kld, share))
                for name, share in QUANTILES.items()
            },
            "kld_min": float(kld.min()),
            "dp_mean": _percent(estimate(dp)),
            "dp_rms": _percent(_root(dp)),
            "same_top": _percent((same, _share_error(same, len(kld)))),
        }


QUANTILES = {"999": 0.999, "99": 0.99, "95": 0.95, "90": 0.9, "median": 0.5}


def estimate(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Mean and its standard error. Source: ``mean_and_uncertainty``."""
    mean, variance = float(values.mean()), float(values.var())
    count = len(values)
    return mean, math.sqrt(variance / (count - 1)) if count > FEW else 0.0


def _exponential(found: tuple[float, float]) -> tuple[float, float]:
    value = math.exp(found[0])
    return value, value * found[1]


def _ratio_error(nll: npt.NDArray[np.float64], base: npt.NDArray[np.float64]) -> float:
    """Standard error of the logarithm of the ratio: the two vary together."""
    return estimate(nll - base)[1]


def _root(dp: npt.NDArray[np.float64]) -> tuple[float, float]:
    square, error = estimate(dp**2)
    root = math.sqrt(square)
    return root, error / (2 * root) if root else 0.0


def _share_error(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / (count - 1)) if count > 1 else 0.0


def _percent(found: tuple[float, float]) -> tuple[float, float]:
    return 100 * found[0], 100 * found[1]


def _mean(values: list[float] | list[bool]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
