"""
Predicts the KV cache memory of a pair and the longest context that fits; checks which
types the head sizes allow.
"""

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from codeneedle.grid import BITS_PER_ELEMENT, BLOCK_SIZE, Pair, precision
from codeneedle.models.weights import Weights
from codeneedle.records.record import KvBuffer
from codeneedle.text import MIB

CONTEXT_STEP = 256
"""Tokens; see `padded`."""

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
"""Architectures of which every layer keeps the whole context; headers do not count."""

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
    The sliding windows of an architecture, where the header does not state them.

    Attributes:
        period: One layer of each period has no window; None if only headers tell.
        dense_first: Whether that is the first layer of the period, not the last.
        default: Size of the window without one in the header, in tokens.
        forced: Size that replaces one in the header, in tokens; 0 keeps that.
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
"""Default period of a qwen3next: one layer of each keeps K and V."""


def padded(context: int) -> int:
    """*context* as llama.cpp rounds it up, in tokens: ``llama-context.cpp``."""
    return math.ceil(context / CONTEXT_STEP) * CONTEXT_STEP


def kv_bytes(weights: Weights, pair: Pair, context: int) -> int | None:
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

    Returns:
        None for an unknown architecture or type, and for types that cannot be served
        with this model.

    Source:
        ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp`` and
        ``llama_model::create_memory`` of llama.cpp b11434.
    """
    parts = kv_parts(weights, pair, context)
    return None if parts is None else int(sum(parts))


def kv_parts(weights: Weights, pair: Pair, context: int) -> tuple[float, float] | None:
    """Predicted size of K and of V, in bytes; None where `kv_bytes` is None."""
    windows = _windows(weights)
    if windows is None or misfit(weights, pair) is not None:
        return None
    if pair.k not in BITS_PER_ELEMENT or pair.v not in BITS_PER_ELEMENT:
        return None
    cells = padded(context)
    k_values = v_values = 0
    for layer in _layers_with_cache(weights):
        window = windows[layer]
        kept = padded(min(cells, window + UBATCH)) if window else cells
        k_size, v_size = _head_size(weights, has_window=bool(window))
        k_values += kept * weights.kv_heads[layer] * k_size
        v_values += kept * weights.kv_heads[layer] * v_size
    k_bits, v_bits = BITS_PER_ELEMENT[pair.k], BITS_PER_ELEMENT[pair.v]
    return k_values * k_bits / 8, v_values * v_bits / 8


def misfit(weights: Weights, pair: Pair) -> str | None:
    """Why llama-server would refuse *pair* for this model, as a phrase; else None."""
    if weights.is_mla and pair.k != pair.v:
        return f"{weights.architecture} keeps K and V as one, so both types are equal"
    k_sizes, v_sizes = _head_sizes(weights)
    return _block_misfit(pair.k, k_sizes) or _block_misfit(pair.v, v_sizes)


def type_misfit(weights: Weights, cache_type: str) -> str | None:
    """
    Why *cache_type* cannot hold the heads of this model, as a phrase.

    None if it can, and for an unknown type, which the server checks.
    """
    k_sizes, v_sizes = _head_sizes(weights)
    return _block_misfit(cache_type, k_sizes | v_sizes)


def _head_sizes(weights: Weights) -> tuple[set[int], set[int]]:
    """The head sizes of K and of V."""
    k_sizes, v_sizes = {weights.key_length}, {weights.value_length}
    if weights.sliding_window:
        k_sizes.add(weights.key_length_swa)
        v_sizes.add(weights.value_length_swa)
    return k_sizes, v_sizes


def _block_misfit(cache_type: str, head_sizes: set[int]) -> str | None:
    block = BLOCK_SIZE.get(cache_type, 1)
    for size in sorted(head_sizes):
        if size % block:
            return f"block of {block} does not divide head size {size}"
    return None


def _head_size(weights: Weights, *, has_window: bool) -> tuple[int, int]:
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
    """Whether each layer keeps a state instead of K and V, despite its KV heads."""
    none = (False,) * weights.layers
    if weights.architecture not in {"qwen3next", "qwen35", "qwen35moe"}:
        return none  # elsewhere such layers have no KV heads
    if weights.recurrent_layers:
        return weights.recurrent_layers
    interval = weights.full_attention_interval or HYBRID_INTERVAL
    return tuple((layer + 1) % interval != 0 for layer in range(weights.layers))


def _windows(weights: Weights) -> tuple[int, ...] | None:
    """The window of all layers in tokens, 0 for none; None if unknown."""
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
    stated = weights.sliding_window
    size = known.default if stated is None else stated and (known.forced or stated)
    if not size:
        return (0,) * weights.layers
    pattern = weights.window_pattern
    if isinstance(pattern, tuple):
        return tuple(size if has_window else 0 for has_window in pattern)
    # A single number in the header is a period.
    period = known.period if pattern is None else pattern
    if period is None:
        return None
    dense = 0 if known.dense_first else period - 1
    return tuple(
        size if period == 0 or layer % period != dense else 0
        for layer in range(weights.layers)
    )


ROUNDING_BYTES = 0.005 * MIB + 1
"""
Rounding error of a size in a log, which has two decimals of MiB.

A byte more, because 0.62 of 0.625 is as far away as it can be.
"""


def cache_bytes(buffer: KvBuffer) -> tuple[float, float]:
    """
    Size of K and of V of a cache, in bytes.

    A log rounds them. The bits of the type and whole blocks of values for each cell
    and layer give the exact size, where that is within the rounding.
    """
    cells = buffer.cells * buffer.layers
    return (
        _exact_bytes(buffer.k_mib * MIB, buffer.k_type, cells),
        _exact_bytes(buffer.v_mib * MIB, buffer.v_type, cells),
    )


MOST_ROUNDED = 0.002
"""Share of a size: a type of 4.25 bits is told from one of 4.5."""


def stored_bits(caches: Iterable[KvBuffer]) -> dict[str, float]:
    """
    Bits of a value of each cache type: known, or else measured.

    A type of a fork is measured beside one whose bits are known, on the same side of as
    many cells and layers. Without one its bits stay unknown, and where a log rounds its
    size by more than `MOST_ROUNDED`.

    Args:
        caches: Those of all pairs of a run, as their servers state them.
    """
    sizes = [
        (name, (buffer.cells, buffer.layers, side), size)
        for buffer in caches
        for side, name, size in zip(
            "KV", (buffer.k_type, buffer.v_type), cache_bytes(buffer), strict=True
        )
    ]
    values = {
        place: size * 8 / BITS_PER_ELEMENT[name]
        for name, place, size in sizes
        if name in BITS_PER_ELEMENT and size
    }
    measured = {
        name: size * 8 / values[place]
        for name, place, size in sizes
        if place in values and size * MOST_ROUNDED >= ROUNDING_BYTES
    }
    return measured | BITS_PER_ELEMENT


def _exact_bytes(rounded: float, cache_type: str, cells: int) -> float:
    size = BITS_PER_ELEMENT.get(cache_type)
    if size is None or not cells:
        return rounded
    # The heads of a layer have a multiple of 8 values, quantized ones of a block.
    step = max(BLOCK_SIZE[cache_type], 8) * size / 8 * cells
    exact = round(rounded / step) * step
    return exact if abs(exact - rounded) <= ROUNDING_BYTES else rounded


def cacheless(weights: Weights) -> str:
    """Why a model has no KV cache, as a sentence; empty if it has, or may have."""
    name = weights.architecture
    if not weights.is_causal:
        return f"{name} is an encoder: it has no cache"
    if weights.kv_heads and not any(weights.kv_heads):
        return f"{name} keeps a state instead of K and V: cache types change nothing"
    return ""


CONTEXTS = (1_024, 4_096, 16_384, 32_768, 65_536, 131_072)
"""Tokens; those above the training context of a model are left out."""

LONGEST_CONTEXT = 1 << 22
"""Tokens; the limit for models without a training context in the header."""

RESERVE_BYTES = 512 << 20
"""For the system, the program and the driver."""

HIDDEN_COPIES = 8
"""Hidden states of a micro-batch that are in memory at once."""

MASK_BYTES = 6
"""
Per position and token of a micro-batch: the attention mask in f32 and in f16. The
latter alone was measured with b11434 and flash attention; older builds keep both.
"""

_DEVICE = re.compile(r"(?P<backend>[A-Za-z_-]+)\S* .*\((?P<mib>\d+) MiB\)")


@dataclass(frozen=True, slots=True)
class Room:
    """
    Memory that a server may fill.

    Attributes:
        size_bytes: Free or not.
        where: Its device, as a phrase: ``of CUDA``.
    """

    size_bytes: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMemory:
    """
    The memory of one pair.

    Attributes:
        pair: The cache types.
        kv_bytes: Size of the KV cache at all contexts of the plan; None if it cannot
            be predicted.
        longest_context: Tokens that fit; 0 if not even the shortest context does,
            None if it cannot be predicted.
        misfit: Why it cannot be served with these weights; None if it can.
    """

    pair: Pair
    kv_bytes: tuple[int | None, ...]
    longest_context: int | None
    misfit: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """
    The memory of all pairs of a grid.

    Attributes:
        contexts: In tokens, shortest first.
        pairs: Largest first; of pairs of equal size, those of a more precise K.
        weights_bytes: Size of the weights.
        allowance_bytes: Estimated compute buffers at all contexts.
        room: The memory that must suffice.
        training_context: Tokens that the weights were trained for; 0 if unknown.
    """

    contexts: tuple[int, ...]
    pairs: tuple[PairMemory, ...]
    weights_bytes: int
    allowance_bytes: tuple[int, ...]
    room: Room
    training_context: int


def predicted(
    weights: Weights,
    pairs: Iterable[Pair],
    room: Room,
    *,
    contexts: Sequence[int] | None = None,
) -> MemoryPlan:
    """
    The memory of all *pairs*.

    Args:
        weights: The model.
        pairs: In any order.
        room: The memory that must suffice.
        contexts: In tokens; by default those of `CONTEXTS` that the weights were
            trained for, and the training context itself.
    """
    contexts = contexts or usual_contexts(weights.training_context)
    memories = (
        PairMemory(
            pair=pair,
            kv_bytes=tuple(kv_bytes(weights, pair, context) for context in contexts),
            longest_context=longest_context(weights, pair, room),
            misfit=misfit(weights, pair),
        )
        for pair in pairs
    )
    return MemoryPlan(
        contexts=tuple(contexts),
        pairs=tuple(sorted(memories, key=_largest_first)),
        weights_bytes=weights.size_bytes,
        allowance_bytes=tuple(allowance_bytes(weights, each) for each in contexts),
        room=room,
        training_context=weights.training_context,
    )


def usual_contexts(training_context: int) -> tuple[int, ...]:
    """`CONTEXTS` up to the training context, and that; all if it is 0, unknown."""
    if not training_context:
        return CONTEXTS
    shorter = (context for context in CONTEXTS if context < training_context)
    return (*shorter, training_context)


def allowance_bytes(weights: Weights, context: int) -> int:
    """
    Estimated size of compute buffers, in bytes; meant as an upper bound.

    A micro-batch has a score in f32 for each token of the vocabulary, some hidden
    states, and a mask over the context. Attention reads a quantized cache by
    turning K and V of one layer into f16 first on several devices, which costs
    that layer's size. `RESERVE_BYTES` come on top.
    """
    scores = 4 * UBATCH * weights.vocabulary
    hidden = 4 * UBATCH * weights.embedding * HIDDEN_COPIES
    mask = MASK_BYTES * UBATCH * context
    heads = max(weights.kv_heads, default=0)
    layer = 2 * context * heads * (weights.key_length + weights.value_length)
    return scores + hidden + mask + layer + RESERVE_BYTES


def longest_context(weights: Weights, pair: Pair, room: Room) -> int | None:
    """
    The longest context that fits beside the weights, in tokens.

    A multiple of `CONTEXT_STEP`, or what the weights were trained for, which it
    never exceeds. 0 where nothing fits, None where it cannot be predicted.
    """
    if kv_bytes(weights, pair, CONTEXT_STEP) is None:
        return None
    most = weights.training_context or LONGEST_CONTEXT
    if _fits(weights, pair, room, most):
        return most
    shorter = range(CONTEXT_STEP, most, CONTEXT_STEP)
    return CONTEXT_STEP * bisect.bisect_left(
        shorter, 1, key=lambda context: int(not _fits(weights, pair, room, context))
    )


def room_of(devices: Iterable[str], memory_bytes: int) -> Room:
    """
    The memory of the accelerators, or of the machine if there is none.

    Several devices share a model, so they add up. Different backends most often list
    the same devices, so only the backend with the most memory counts.

    Args:
        devices: As llama-server lists them: ``CUDA0 NVIDIA L4 (22563 MiB)``.
        memory_bytes: Memory of the machine.
    """
    sizes = sorted(filter(None, map(_device_size, devices)))
    kinds = [
        (sum(size for _, size in kind), backend)
        for backend, kind in groupby(sizes, key=itemgetter(0))
    ]
    size_bytes, backend = max(kinds, default=(0, ""))
    if not size_bytes:
        return Room(memory_bytes, "of this machine")
    count = sum(name == backend for name, _ in sizes)
    return Room(size_bytes, f"of {backend}" + (f", {count} devices" * (count > 1)))


def _device_size(device: str) -> tuple[str, int] | None:
    """The backend of a device and its memory in bytes; None without a size."""
    match = _DEVICE.fullmatch(device)
    if match is None or not int(match["mib"]):
        return None
    return match["backend"], int(match["mib"]) * MIB


def _fits(weights: Weights, pair: Pair, room: Room, context: int) -> bool:
    cache = kv_bytes(weights, pair, context) or 0
    needed = weights.size_bytes + cache + allowance_bytes(weights, context)
    return needed <= room.size_bytes


def _largest_first(memory: PairMemory) -> tuple[float, ...]:
    size_bytes = memory.kv_bytes[-1]
    size = math.inf if size_bytes is None else -size_bytes
    return (size, *precision(memory.pair.k), *precision(memory.pair.v))
