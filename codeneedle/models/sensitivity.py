"""What in the weights is known to make a quantized KV cache cost more."""

import math
import statistics
from collections.abc import Iterator

from codeneedle.models.weights import Weights

SPIKE = 10.0
"""
A bias of K is a spike if its norm is so many times the median of all layers.

Of 26 models in 150 settings every collapse had such spikes: Qwen2.5-7B has norms of 605
and 921 in its first and last layer beside a median of 22; Qwen1.5, which has biases
without spikes, did not collapse (llama.cpp #21385).
"""

ROTATED = 64
"""llama.cpp rotates quantized values where the head size is a multiple of that."""


def warnings(weights: Weights) -> Iterator[str]:
    """What a user should expect of *weights*, with what that is based on."""
    yield from _biases(weights)
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


def _biases(weights: Weights) -> Iterator[str]:
    norms = {k: norm for k, norm in weights.k_bias_norms if math.isfinite(norm)}
    if not norms:
        return
    median = statistics.median_low(norms.values())
    layer = max(norms, key=lambda each: norms[each])
    if norms[layer] > SPIKE * median > 0:
        yield (
            f"K has biases up to {norms[layer]:,.0f} in layer {layer} (median "
            f"{median:,.3g}): every model that collapsed with a quantized K had such "
            "spikes (26 models, llama.cpp #21385); expect damage from K below q8_0: on "
            "Qwen2.5-Coder-0.5B, with biases up to 393, q5_1/q5_1 loses 5 of 100 right "
            "tokens of ordinary text, q8_0/q8_0 none (RESULTS.md)"
        )
