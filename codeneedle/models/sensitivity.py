"""
Which types of K the weights are predicted to bear, by the share of attention that
moves, and for models of which size; warnings of K biases, sinks and unrotated heads.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile

from codeneedle.models.weights import Weights

SPIKE = 10.0
"""
A bias of K is a spike if its norm is so many times the median of all layers.

Of 26 models in 150 settings every collapse had such spikes: Qwen2.5-7B has norms of 605
and 921 in its first and last layer beside a median of 22; Qwen1.5, which has biases
without spikes, did not collapse (llama.cpp #21385).
"""

MOST_MOVED = 0.05
"""
The share of attention above which rounding K is predicted to lose more than 1 %.

Caches that moved up to 0.040 lost 0.7 % at most, those from 0.056 on 1.3 % at least.
"""

LEAST_LOST, MOST_BORNE = 0.056, 0.04
"""Shares of attention between which nothing was measured."""

LEAST_PARAMETERS = 100_000_000
"""Of a model for which the rule holds: the smallest that was measured has 135M."""


def cache_quantization_warnings(
    weights: Weights, *, is_rotated: bool = True
) -> Iterator[str]:
    """What a user should expect of *weights*, with what that is based on."""
    from codeneedle.models.moved_attention import ROTATED

    moved = attention_moved_by_k_type(weights) if is_rotated else {}
    yield from _prediction_warnings(moved) if moved else _bias_warnings(weights)
    if weights.has_sinks:
        yield (
            "the model has attention sinks: quantized caches were reported to damage "
            "gpt-oss, which has them, too (ollama #11929), and not every backend has a "
            "kernel for them"
        )
    if weights.is_read and weights.key_length % ROTATED:
        yield (
            f"heads of {weights.key_length} values are not rotated (no multiple of "
            f"{ROTATED}): without rotation K q4_0 loses several times as much "
            "(RESULTS.md, on SmolLM2)"
        )


def coarsest_safe_k_type(moved: Mapping[str, float]) -> str:
    """
    The coarsest type of K that is predicted to lose at most 1 %, by what it moves.

    ``f16`` if none of the quantized ones is; empty where nothing is predicted.
    """
    borne = takewhile(lambda name: moved[name] <= MOST_MOVED, moved)
    return ["f16", *borne][-1] if moved else ""


def unsafe_k_types(weights: Weights, *, is_rotated: bool = True) -> tuple[str, ...]:
    """
    Types of K that *weights* are predicted not to bear: they lose more than 1 %.

    Nothing where that is not predicted.
    """
    moved = attention_moved_by_k_type(weights) if is_rotated else {}
    return tuple(name for name, share in moved.items() if share > MOST_MOVED)


def attention_moved_by_k_type(weights: Weights) -> Mapping[str, float]:
    """
    The share of attention that types of K move in a rotated cache, most precise first.

    Empty where that is unknown, or where nothing was measured that it could foretell.
    """
    from codeneedle.models.moved_attention import moved_attention_by_k_type

    is_as_measured = weights.parameters >= LEAST_PARAMETERS
    return moved_attention_by_k_type(weights) if is_as_measured else {}


def _prediction_warnings(moved: Mapping[str, float]) -> Iterator[str]:
    """A warning that names types of K with too much attention *moved*, if any."""
    shares = {name: share for name, share in moved.items() if share > MOST_MOVED}
    if shares:
        unknown = ""
        if min(shares.values()) < LEAST_LOST:
            ends = f"{100 * MOST_BORNE:.1f} and {100 * LEAST_LOST:.1f} %"
            unknown = f"between {ends} nothing was measured; "
        yield (
            f"K {', '.join(shares)}: predicted from the weights alone to lose more "
            "than 1 of 100 right tokens of ordinary text, since rounding it moves "
            f"{_percent_range_text(shares.values())} of the attention (rule: more than "
            f"{100 * MOST_MOVED:.0f} %, in a rotated cache; {unknown}found on models "
            "of 0.1 and 0.5B, RESULTS.md)"
        )


def _percent_range_text(shares: Collection[float]) -> str:
    """The least and the most of *shares*, in percent: ``5.4 to 62 %``."""
    least, most = map(_percent_text, (min(shares), max(shares)))
    return f"{most} %" if least == most else f"{least} to {most} %"


def _percent_text(share: float) -> str:
    """*share* in percent, rounded to two digits: ``5.4``, ``62``, ``100``."""
    return f"{float(f'{100 * share:.2g}'):g}"


def _bias_warnings(weights: Weights) -> Iterator[str]:
    """A warning if a layer's K has a bias that is a spike; none otherwise."""
    norms = {k: norm for k, norm in weights.k_bias_norms if math.isfinite(norm)}
    if not norms:
        return
    median = statistics.median_low(norms.values())
    layer = max(norms, key=lambda index: norms[index])
    if norms[layer] > SPIKE * median > 0:
        yield (
            f"K has biases up to {norms[layer]:,.0f} in layer {layer} (median "
            f"{median:,.3g}): every model that collapsed with a quantized K had such "
            "spikes (26 models, llama.cpp #21385); expect damage from K below q8_0: on "
            "Qwen2.5-Coder-0.5B, with biases up to 393, q5_1/q5_1 loses 5 of 100 right "
            "tokens of ordinary text, q8_0/q8_0 none (RESULTS.md)"
        )
