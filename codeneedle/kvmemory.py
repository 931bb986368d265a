"""
How large a KV cache will be, and which cache types its head sizes allow.

Predicted from the header of a model alone; what a server really takes stands in
its log. Checked against llama-server b11434.
"""

import math
from dataclasses import dataclass

from codeneedle.grid import BITS_PER_ELEMENT, BLOCK_SIZE, Pair
from codeneedle.hyperparameters import Weights

CONTEXT_STEP = 256
"""llama.cpp rounds a context up to this, in tokens: ``llama-context.cpp``."""

UBATCH = 512
"""Tokens computed at once by default; a sliding window holds that many more."""

# fmt: off
PLAIN = frozenset(
    {
        "llama", "deci", "falcon", "grok", "gpt2", "gptj", "gptneox", "mpt",
        "baichuan", "starcoder", "refact", "bloom", "stablelm", "qwen", "qwen2",
        "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "phi2",
        "phi3", "phimoe", "plamo", "codeshell", "orion", "internlm2", "minicpm",
        "minicpm3", "gemma", "starcoder2", "xverse", "command-r", "dbrx", "olmo",
        "olmoe", "openelm", "arctic", "deepseek", "deepseek2", "chatglm", "glm4",
        "glm4moe", "bitnet", "jais", "jais2", "nemotron", "exaone", "granite",
        "granitemoe", "chameleon", "plm", "bailingmoe", "bailingmoe2", "dots1",
        "arcee", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense",
        "smollm3", "seed_oss", "grovemoe", "apertus", "minimax-m2",
        "pangu-embedded", "mistral3", "mistral4", "maincoder",
    }
)
# fmt: on
"""Architectures where every layer keeps the whole context, whatever the file says."""

# fmt: off
HYBRID = frozenset(
    {
        "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe",
        "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe",
        "kimi-linear",
    }
)
# fmt: on
"""Architectures where some layers keep a small state instead of K and V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """
    Which layers of an architecture see only a window, unless the file says else.

    Attributes:
        period: Every how many-th layer sees everything; None: the file must say.
        dense_first: Whether that layer is the first of its period, not the last.
        default: Size of the window where the file names none, in tokens.
        forced: Size of the window where there is one, whatever the file says.
    """

    period: int | None = None
    dense_first: bool = False
    default: int = 0
    forced: int = 0


WINDOWED = {
    "afmoe": _Window(period=4),
    "cohere2": _Window(period=4),
    "cohere2moe": _Window(period=4, dense_first=True),
    "exaone-moe": _Window(period=4, default=128),
    "gemma2": _Window(period=2, default=4096),
    "gemma3": _Window(period=6),
    "gemma3n": _Window(period=5),
    "gemma4": _Window(),
    "gpt-oss": _Window(period=2),
    "granite_swa": _Window(),
    "laguna": _Window(period=4, dense_first=True),
    "llama4": _Window(period=4, default=8192, forced=8192),
    "maple": _Window(),
    "mellum": _Window(period=4),
    "mimo2": _Window(),
    "muse-glimmer": _Window(period=4),
    "olmo2": _Window(period=4),
    "plamo3": _Window(period=8),
    "smallthinker": _Window(period=4, dense_first=True, forced=4096),
    "spark2_5": _Window(),
    "step35": _Window(),
}
"""Source: ``load_arch_hparams`` of each file in ``src/models`` of b11434."""

GEMMA3N_KV_LAYERS = 20
"""The layers after these reuse the caches of the last two of them."""

HYBRID_INTERVAL = 4
"""Every how many-th layer of a qwen3next keeps K and V, by default."""


def kv_bytes(
    weights: Weights, pair: Pair, context: int, *, ubatch: int = UBATCH
) -> int | None:
    """
    Predicted size of the KV cache, in bytes.

    A layer keeps, per token, ``head size * KV heads`` values of K and as many of
    V; models with a latent attention keep K alone. A layer with a sliding window
    keeps the window and one micro-batch instead of the context. The states of
    recurrent layers are not counted: they do not depend on the cache types.

    Args:
        weights: The model.
        pair: Types of K and V.
        context: In tokens, of the one slot that there is.
        ubatch: Tokens computed at once.

    Returns:
        None where we do not know the architecture or a type, or where the types
        cannot be served with this model.

    Source:
        ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp`` and
        ``llama_model::create_memory`` of llama.cpp b11434.
    """
    windows = _windows(weights)
    if windows is None or refusal(weights, pair) is not None:
        return None
    if pair.k not in BITS_PER_ELEMENT or pair.v not in BITS_PER_ELEMENT:
        return None
    cells = _rounded_up(context)
    bits = 0.0
    for layer in _layers_with_cache(weights):
        window = windows[layer]
        kept = _rounded_up(min(cells, window + ubatch)) if window else cells
        k_size, v_size = _row(weights, has_window=bool(window))
        row_bits = k_size * BITS_PER_ELEMENT[pair.k] + v_size * BITS_PER_ELEMENT[pair.v]
        bits += kept * weights.kv_heads[layer] * row_bits
    return int(bits) // 8


def refusal(weights: Weights, pair: Pair) -> str | None:
    """Why llama-server would not take *pair* for this model, as a phrase."""
    if weights.is_mla and pair.k != pair.v:
        return f"{weights.architecture} keeps K and V as one, so their types are equal"
    k_sizes, v_sizes = _head_sizes(weights)
    return _misfit(pair.k, k_sizes) or _misfit(pair.v, v_sizes)


def why_not(weights: Weights, cache_type: str) -> str | None:
    """
    Why *cache_type* cannot hold the heads of this model, as a phrase.

    None where it fits, and where we do not know the type: the server decides.
    """
    k_sizes, v_sizes = _head_sizes(weights)
    return _misfit(cache_type, k_sizes | v_sizes)


def _head_sizes(weights: Weights) -> tuple[set[int], set[int]]:
    """The head sizes of K and of V."""
    k_sizes, v_sizes = {weights.key_length}, {weights.value_length}
    if weights.sliding_window:
        k_sizes.add(weights.key_length_swa)
        v_sizes.add(weights.value_length_swa)
    return k_sizes, v_sizes


def _misfit(cache_type: str, head_sizes: set[int]) -> str | None:
    block = BLOCK_SIZE.get(cache_type, 1)
    for size in sorted(head_sizes):
        if size % block:
            return f"block of {block} does not divide head size {size}"
    return None


def _row(weights: Weights, *, has_window: bool) -> tuple[int, int]:
    """Values of K and of V that a KV head keeps per token."""
    if weights.is_mla:
        return weights.key_length, 0
    if has_window:
        return weights.key_length_swa, weights.value_length_swa
    return weights.key_length, weights.value_length


def _layers_with_cache(weights: Weights) -> list[int]:
    last = weights.layers
    if weights.architecture == "gemma3n":
        last = min(last, GEMMA3N_KV_LAYERS)
    elif weights.architecture == "gemma4":
        last -= weights.shared_kv_layers
    recurrent = _recurrent(weights)
    return [layer for layer in range(last) if not recurrent[layer]]


def _recurrent(weights: Weights) -> tuple[bool, ...]:
    """Which layers keep no K and V although they have KV heads."""
    none = (False,) * weights.layers
    if weights.architecture not in {"qwen3next", "qwen35", "qwen35moe"}:
        return none  # elsewhere such layers have no KV heads
    if weights.recurrent_layers:
        return weights.recurrent_layers
    interval = weights.full_attention_interval or HYBRID_INTERVAL
    return tuple((layer + 1) % interval != 0 for layer in range(weights.layers))


def _windows(weights: Weights) -> tuple[int, ...] | None:
    """The window of each layer in tokens, 0 for none; None if we do not know."""
    everything = (0,) * weights.layers
    if weights.has_indexer:
        return None  # an index is kept beside K and V
    if weights.architecture in PLAIN:
        return everything
    if weights.architecture in HYBRID:
        return None if weights.sliding_window else everything
    known = WINDOWED.get(weights.architecture)
    return None if known is None else _pattern(weights, known)


def _pattern(weights: Weights, known: _Window) -> tuple[int, ...] | None:
    asked = weights.sliding_window
    size = known.default if asked is None else asked and (known.forced or asked)
    if not size:
        return (0,) * weights.layers
    pattern = weights.window_pattern
    if isinstance(pattern, tuple):
        return tuple(size if has_window else 0 for has_window in pattern)
    # A single number in the file is a period, as the one we know is.
    period = known.period if pattern is None else pattern
    if period is None:
        return None
    dense = 0 if known.dense_first else period - 1
    return tuple(
        size if period == 0 or layer % period != dense else 0
        for layer in range(weights.layers)
    )


def _rounded_up(tokens: int) -> int:
    return math.ceil(tokens / CONTEXT_STEP) * CONTEXT_STEP
