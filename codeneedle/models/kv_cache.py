"""
The memory of KV caches at any context, from what an engine tells of them at one; the
bits of types that it alone knows; the longest context that fits; and which types the
head sizes allow.
"""

import bisect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import cast

from codeneedle.cache_types import BITS_PER_ELEMENT, BLOCK_SIZE, Pair, precision_key
from codeneedle.models.weights import Weights
from codeneedle.records.record import KvBuffer
from codeneedle.text import MIB, mib_of_bytes

CONTEXT_STEP = 256
"""Tokens; see `pad_context`."""

UBATCH = 512
"""Tokens computed at once by default."""


def pad_context(context: int) -> int:
    """*context* as llama.cpp rounds it up, in tokens: ``llama-context.cpp``."""
    return math.ceil(context / CONTEXT_STEP) * CONTEXT_STEP


@dataclass(frozen=True, slots=True)
class Caches:
    """The KV caches of a model."""

    buffers: tuple[KvBuffer, ...]  # as an engine tells them
    context: int  # at how many tokens it does
    is_by_header: bool = False
    """Whether no engine was asked, so that they may be smaller."""

    def cache_bytes_at(self, context: int, pair: Pair | None = None) -> float | None:
        """
        Size of K and V at another context, in bytes.

        Args:
            context: In tokens.
            pair: Types of K and V; by default those of the caches.

        Returns:
            None if it is unknown: without caches, with a type of unknown size, and
            beyond the context of several caches that all hold all of that, for a
            sliding window need not be full yet.
        """
        is_open = len(self._growing_buffers) > 1 and context > self.context
        if is_open or not self.buffers:
            return None
        cells = pad_context(context)
        sizes = [
            _cell_bytes(buffer, pair)
            * (cells if buffer in self._growing_buffers else min(cells, buffer.cells))
            for buffer in self.buffers
        ]
        total = math.fsum(sizes)
        return total if math.isfinite(total) else None

    @property
    def added_bytes_per_token(self) -> float:
        """Size of a further token, in bytes: a sliding window does not grow."""
        return math.fsum(_cell_bytes(buffer, None) for buffer in self._growing_buffers)

    @property
    def _growing_buffers(self) -> list[KvBuffer]:
        """The buffers that hold the whole context, and so grow with it."""
        return [buffer for buffer in self.buffers if buffer.cells >= self.context]


@dataclass(frozen=True, slots=True)
class Buffers:
    """The buffers of a compute graph."""

    told: Mapping[int, int]
    """Size in bytes by context in tokens, as an engine tells it; not empty."""

    def buffer_bytes_at(self, context: int) -> int:
        """
        Size at another context, in bytes; of one below a micro-batch at most so much.

        It grows by a mask: by as much with each further token.
        """
        most, least = max(self.told), min(self.told)
        grown = self.told[most] - self.told[least]
        shorter = max(most - context, 0)
        return self.told[most] - grown * shorter // max(most - least, 1)


def _cell_bytes(buffer: KvBuffer, pair: Pair | None) -> float:
    """K and V of a token, in bytes, with the types of *pair*; NaN if unknown."""
    k, v = exact_k_and_v_bytes(buffer)
    if pair:
        k *= _bits_ratio(pair.k, buffer.k_type)
        v *= _bits_ratio(pair.v, buffer.v_type)
    return (k + v) / max(buffer.cells, 1)


def _bits_ratio(wanted: str, known: str) -> float:
    """Bits of a value of type *wanted*, divided by those of *known*; NaN if unknown."""
    if wanted == known:
        return 1.0
    bits = BITS_PER_ELEMENT.get
    return bits(wanted, math.nan) / bits(known, math.nan)


def caches_of_plain_attention(weights: Weights, context: int) -> Caches | None:
    """
    The cache of a model of which each layer keeps K and V of the whole context.

    Without an engine to ask, this is what the header tells; None where it says that
    caches are of another kind. An architecture may have windows that headers do not
    state: then it is an upper bound.
    """
    if not weights.has_plain_attention:
        return None
    cells, heads = pad_context(context), sum(weights.kv_heads)
    values = 0 if weights.is_mla else weights.value_length
    buffer = KvBuffer(
        cells=cells,
        layers=weights.layers,
        k_type="f16",
        v_type="f16",
        k_mib=mib_of_bytes(2 * cells * heads * weights.key_length),
        v_mib=mib_of_bytes(2 * cells * heads * values),
    )
    return Caches((buffer,), context, is_by_header=True)


def why_misfit(weights: Weights, pair: Pair) -> str:
    """Why llama-server would refuse *pair* for this model, as a phrase; else empty."""
    if weights.needs_equal_types and pair.k != pair.v:
        return f"{weights.architecture} keeps K and V as one, so both types are equal"
    k_sizes, v_sizes = _head_sizes(weights)
    return _why_block_misfit(pair.k, k_sizes) or _why_block_misfit(pair.v, v_sizes)


def _head_sizes(weights: Weights) -> tuple[set[int], set[int]]:
    """The head sizes of K and of V."""
    return (
        {weights.key_length, weights.key_length_swa},
        {weights.value_length, weights.value_length_swa},
    )


def _why_block_misfit(cache_type: str, head_sizes: set[int]) -> str:
    """Why blocks of a type do not fit one of *head_sizes*; empty if they do."""
    block = BLOCK_SIZE.get(cache_type, 1)
    for size in sorted(head_sizes):
        if size % block:
            return f"block of {block} does not divide head size {size}"
    return ""


ROUNDING_BYTES = 0.005 * MIB + 1
"""
Rounding error of a size in a log, which has two decimals of MiB.

A byte more, because 0.62 of 0.625 is as far away as it can be.
"""


def exact_k_and_v_bytes(buffer: KvBuffer) -> tuple[float, float]:
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


def bits_by_cache_type(caches: Iterable[KvBuffer]) -> dict[str, float]:
    """
    Bits of a value of each cache type: known, or else measured.

    A type of a fork is measured beside one whose bits are known, on the same side of as
    many cells and layers. Without one, or where a log rounds its size by more than
    `MOST_ROUNDED`, its bits stay unknown.

    Args:
        caches: Those of all pairs of a run, as their servers state them.
    """
    sizes = [
        (name, (buffer.cells, buffer.layers, side), size)
        for buffer in caches
        for side, name, size in zip(
            "KV",
            (buffer.k_type, buffer.v_type),
            exact_k_and_v_bytes(buffer),
            strict=True,
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
    """The exact size near a *rounded* one; that itself if none is near enough."""
    size = BITS_PER_ELEMENT.get(cache_type)
    if size is None or not cells:
        return rounded
    # The heads of a layer have a multiple of 8 values, quantized ones of a block; of
    # several sizes within the rounding, as small caches have, that of rounder heads.
    least = max(BLOCK_SIZE[cache_type], 8)
    for values in (1024, 512, 256, 128, 64, 32, 16, 8):
        step = values * size / 8 * cells
        exact = round(rounded / step) * step
        if values >= least and abs(exact - rounded) <= ROUNDING_BYTES:
            return exact
    return rounded


def why_cacheless(weights: Weights) -> str:
    """Why a model has no KV cache, as a sentence; empty if it has, or may have."""
    name = weights.architecture
    if not weights.is_causal:
        return f"{name} is an encoder: it has no cache"
    if weights.kv_heads and not any(weights.kv_heads):
        return f"{name} keeps a state instead of K and V: cache types change nothing"
    return ""


CONTEXTS = (1_024, 4_096, 16_384, 32_768, 65_536, 131_072)
"""Tokens; those above the training context of a model are left out."""

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
class AvailableMemory:
    """Memory that a server may fill."""

    size_bytes: int  # free or not
    where: str  # its device, as a phrase: ``of CUDA``


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMemory:
    """The memory of one pair."""

    pair: Pair  # the cache types
    kv_bytes: tuple[float | None, ...]
    """
    Size of the KV cache at all contexts of the plan; None if it cannot be predicted.
    """

    longest_context: int | None
    """
    Tokens that fit; 0 if not even the shortest context does, None if it cannot be
    predicted.
    """

    misfit: str | None  # why it cannot be served with these weights; None if it can


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of all pairs of a grid."""

    contexts: tuple[int, ...]  # in tokens, shortest first
    pairs: tuple[PairMemory, ...]
    """Largest first; of pairs of equal size, those of a more precise K."""

    weights_bytes: int  # size of the weights
    allowance_bytes: tuple[int, ...]
    """
    What else is needed at all contexts: compute buffers, as the engine tells them or
    else estimated, and a reserve.
    """

    room: AvailableMemory  # the memory that must suffice
    training_context: int  # tokens that the weights were trained for; 0 if unknown
    is_by_header: bool  # whether no engine was asked for the sizes of caches


def predict_memory(
    weights: Weights,
    caches: Caches | None,
    pairs: Iterable[Pair],
    room: AvailableMemory,
    *,
    buffers: Buffers | None = None,
    refusal: Callable[[Pair], str],
) -> MemoryPlan:
    """
    The memory of all *pairs* at the usual contexts.

    Args:
        weights: The model.
        caches: Its caches, at the longest of these; None if they are unknown.
        pairs: In any order.
        room: The memory that must suffice.
        buffers: Those of its graphs; None if they are unknown.
        refusal: Why a pair cannot be served, as a phrase; empty if it can.
    """
    contexts = usual_contexts(weights.training_context)
    allowance = partial(bytes_beside_weights_and_cache, weights, buffers=buffers)
    memories = []
    for pair in pairs:
        why = refusal(pair)
        known = None if why else caches
        sizes = (
            known.cache_bytes_at(context, pair) if known else None
            for context in contexts
        )
        memories.append(
            PairMemory(
                pair=pair,
                kv_bytes=tuple(sizes),
                longest_context=longest_context(weights, known, pair, room, buffers),
                misfit=why or None,
            )
        )
    return MemoryPlan(
        contexts=tuple(contexts),
        pairs=tuple(sorted(memories, key=_largest_first_key)),
        weights_bytes=weights.size_bytes,
        allowance_bytes=tuple(map(allowance, contexts)),
        room=room,
        training_context=weights.training_context,
        is_by_header=bool(caches and caches.is_by_header),
    )


def usual_contexts(training_context: int) -> tuple[int, ...]:
    """`CONTEXTS` up to the training context, and that; all if it is 0, unknown."""
    if not training_context:
        return CONTEXTS
    shorter = (context for context in CONTEXTS if context < training_context)
    return (*shorter, training_context)


def bytes_beside_weights_and_cache(
    weights: Weights, context: int, *, buffers: Buffers | None = None
) -> int:
    """
    What is needed beside weights and cache, in bytes; meant as an upper bound.

    Attention reads a quantized cache by turning K and V of one layer into f16 first on
    several devices, which buffers told of a more precise pair do not have.
    `RESERVE_BYTES` are included.
    """
    computed = (
        buffers.buffer_bytes_at(context)
        if buffers
        else _compute_buffer_bytes(weights, context)
    )
    heads = max(weights.kv_heads, default=0)
    layer = 2 * context * heads * (weights.key_length + weights.value_length)
    return computed + layer + RESERVE_BYTES


def _compute_buffer_bytes(weights: Weights, context: int) -> int:
    """
    Compute buffers by the header alone, in bytes: an estimate.

    A micro-batch has a score in f32 for each token of the vocabulary, some hidden
    states, and a mask over the context.
    """
    scores = 4 * UBATCH * weights.vocabulary
    hidden = 4 * UBATCH * weights.embedding * HIDDEN_COPIES
    return scores + hidden + MASK_BYTES * UBATCH * context


def longest_context(
    weights: Weights,
    caches: Caches | None,
    pair: Pair,
    room: AvailableMemory,
    buffers: Buffers | None = None,
) -> int | None:
    """
    The longest context that fits beside the weights, in tokens.

    A multiple of `CONTEXT_STEP`, or that of *caches*, which it never exceeds: the
    longest usual one. 0 where nothing fits, None where it cannot be predicted.
    """
    if caches is None or caches.cache_bytes_at(CONTEXT_STEP, pair) is None:
        return None

    def fits(context: int) -> bool:
        # Where it is known at one context, it is at each up to theirs.
        cache = cast("float", caches.cache_bytes_at(context, pair))
        beside = bytes_beside_weights_and_cache(weights, context, buffers=buffers)
        return weights.size_bytes + cache + beside <= room.size_bytes

    return longest_context_where(fits, most=caches.context)


def longest_context_where(fits: Callable[[int], bool], *, most: int) -> int:
    """
    The longest context at which *fits* is true, in tokens, up to *most*; 0 if none.

    A multiple of `CONTEXT_STEP`, or *most*. Below one that fits, all must fit.
    """
    if fits(most):
        return most
    shorter = range(CONTEXT_STEP, most, CONTEXT_STEP)
    return CONTEXT_STEP * bisect.bisect_left(
        shorter, 1, key=lambda context: int(not fits(context))
    )


def available_memory(devices: Iterable[str], memory_bytes: int) -> AvailableMemory:
    """
    The memory of the accelerators, or of the machine if there is none.

    Several devices share a model, so they add up. Different backends most often list
    the same devices, so only the backend with the most memory counts.

    Args:
        devices: As llama-server lists them: ``CUDA0 NVIDIA L4 (22563 MiB)``.
        memory_bytes: Memory of the machine.
    """
    sizes = sorted(filter(None, map(_backend_and_bytes, devices)))
    kinds = [
        (sum(size for _, size in kind), backend)
        for backend, kind in groupby(sizes, key=itemgetter(0))
    ]
    size_bytes, backend = max(kinds, default=(0, ""))
    if not size_bytes:
        return AvailableMemory(memory_bytes, "of this machine")
    count = sum(name == backend for name, _ in sizes)
    return AvailableMemory(
        size_bytes, f"of {backend}" + (f", {count} devices" * (count > 1))
    )


def _backend_and_bytes(device: str) -> tuple[str, int] | None:
    """The backend of a device and its memory in bytes; None without a size."""
    match = _DEVICE.fullmatch(device)
    if match is None or not int(match["mib"]):
        return None
    return match["backend"], int(match["mib"]) * MIB


def _largest_first_key(memory: PairMemory) -> tuple[float, ...]:
    """Sort key: by size at the longest context, unknown ones last, then by types."""
    size_bytes = memory.kv_bytes[-1]
    size = math.inf if size_bytes is None else -size_bytes
    return (size, *precision_key(memory.pair.k), *precision_key(memory.pair.v))
