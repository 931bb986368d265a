"""
What a pair would take of a machine's memory, and the longest context it allows.

Predicted from the header of a model and from how much memory there is; nothing is
started. What a server really takes stands in its log.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from codeneedle.grid import BITS_PER_ELEMENT, Pair, precision
from codeneedle.hyperparameters import Weights
from codeneedle.kvmemory import CONTEXT_STEP, UBATCH, kv_bytes, refusal

CONTEXTS = (1_024, 4_096, 16_384, 32_768, 65_536, 131_072)
"""Tokens; where weights were trained for fewer, the longer ones tell nothing."""

LONGEST_CONTEXT = 1 << 22
"""Tokens that are thought of at most, where weights do not say what they can."""

RESERVE_BYTES = 512 << 20
"""For what belongs to no model: the system, the program, a driver's own memory."""

HIDDEN_COPIES = 8
"""Hidden states of a micro-batch that are alive at once; their width is small."""

MASK_BYTES = 6
"""
Per position and token of a micro-batch: the attention mask in f32 and in f16. The
latter alone was measured with b11434 and flash attention; older builds keep both.
"""

_DEVICE = re.compile(r"(?P<backend>[A-Za-z_-]+)\S* .*\((?P<mib>\d+) MiB\)")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """
    Memory that a server may fill.

    Attributes:
        size_bytes: All of it, whether free at the moment or not.
        where: Whose it is, as a phrase.
    """

    size_bytes: int
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMemory:
    """
    What one pair takes.

    Attributes:
        pair: The cache types.
        kv_bytes: Size of the KV cache at each context of the plan; None where it
            cannot be predicted.
        longest_context: Tokens that fit; 0 where not even the shortest context
            does, None where it cannot be predicted.
        refusal: Why it cannot be served with these weights; None if it can.
    """

    pair: Pair
    kv_bytes: tuple[int | None, ...]
    longest_context: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """
    What every pair of a grid takes.

    Attributes:
        contexts: In tokens, shortest first.
        pairs: Largest first; of pairs of equal size, those of a more precise K.
        weights_bytes: Size of the weights.
        allowance_bytes: What is kept for compute buffers at each context.
        room: What all of it must fit into.
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
        room: What it must fit into.
        contexts: In tokens; by default those of `CONTEXTS` that the weights were
            trained for, and the training context itself.
    """
    contexts = contexts or usual_contexts(weights.training_context)
    found = (_pair_memory(weights, pair, room, contexts) for pair in pairs)
    return MemoryPlan(
        contexts=tuple(contexts),
        pairs=tuple(sorted(found, key=_largest_first)),
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
    What is kept for compute buffers, in bytes: an estimate, meant to be too large.

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
    fits, too_long = 0, -(-most // CONTEXT_STEP)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if _fits(weights, pair, room, middle * CONTEXT_STEP):
            fits = middle
        else:
            too_long = middle
    return fits * CONTEXT_STEP


def kv_parts(weights: Weights, pair: Pair, context: int) -> tuple[float, float] | None:
    """
    Predicted size of K and of V, in bytes; None where `kv_bytes` is.

    The whole is linear in the bits of K and in those of V, so that two predictions
    with other types tell the share of each.
    """
    whole = kv_bytes(weights, pair, context)
    if whole is None:
        return None
    if weights.is_mla:
        return float(whole), 0.0
    both = kv_bytes(weights, Pair("f16", "f16"), context) or 0
    wide = kv_bytes(weights, Pair("f32", "f16"), context) or 0
    k_bytes = (wide - both) / 16 * BITS_PER_ELEMENT[pair.k]
    return k_bytes, whole - k_bytes


def room_of(devices: Iterable[str], memory_bytes: int) -> Room:
    """
    The memory of the accelerators; the machine's where there is none.

    Several accelerators share a model, so they add up. Those of another kind of
    backend most often are the same ones once more: the largest kind counts.

    Args:
        devices: As llama-server lists them: ``CUDA0 NVIDIA L4 (22563 MiB)``.
        memory_bytes: Memory of the machine.
    """
    sizes = sorted(found for found in map(_device_size, devices) if found)
    kinds = [
        (sum(size for _, size in kind), backend)
        for backend, kind in groupby(sizes, key=lambda found: found[0])
    ]
    size_bytes, backend = max(kinds, default=(0, ""))
    if not size_bytes:
        return Room(memory_bytes, "of this machine")
    count = sum(name == backend for name, _ in sizes)
    return Room(size_bytes, f"of {backend}" + (f", {count} devices" * (count > 1)))


def _device_size(device: str) -> tuple[str, int] | None:
    """The backend of a device and its memory in bytes; None if it tells no size."""
    found = _DEVICE.fullmatch(device)
    if found is None or not int(found["mib"]):
        return None
    return found["backend"], int(found["mib"]) * _MIB


def _pair_memory(
    weights: Weights, pair: Pair, room: Room, contexts: Sequence[int]
) -> PairMemory:
    return PairMemory(
        pair=pair,
        kv_bytes=tuple(kv_bytes(weights, pair, context) for context in contexts),
        longest_context=longest_context(weights, pair, room),
        refusal=refusal(weights, pair),
    )


def _fits(weights: Weights, pair: Pair, room: Room, context: int) -> bool:
    cache = kv_bytes(weights, pair, context) or 0
    needed = weights.size_bytes + cache + allowance_bytes(weights, context)
    return needed <= room.size_bytes


def _largest_first(memory: PairMemory) -> tuple[float, ...]:
    last = memory.kv_bytes[-1]
    k, v = precision(memory.pair.k), precision(memory.pair.v)
    return (last is None, -(last or 0), *k, *v)
