"""
KV caches that mlx-lm lacks, made of the ones it has: K and V quantized apart, and
quantized ones of bounded size. Imported only in the child process.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models import base
from mlx_lm.models.cache import KVCache, RotatingKVCache

Array = Any
"""An ``mx.array``; MLX is not installed everywhere, so its types are not checked."""

Packed = tuple[Array, ...]
"""
K or V of one layer, shape (batch, heads, tokens, ...) each: the values, or packed
values, scales and biases of quantized ones.
"""

PLAIN_BITS = 16
"""Bits of values that are not quantized."""

WORD_BITS = 32
"""Bits per packed word."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How K or V is stored."""

    bits: int  # of a value: 2, 3, 4, 5, 6 or 8; `PLAIN_BITS` if they are not quantized
    group_size: int = 64  # values that share a scale and a bias: 32, 64 or 128
    dtype: Any = None
    """
    Type of values that are not quantized, and of scales and biases; None to keep what
    the model computes.
    """

    @property
    def is_quantized(self) -> bool:
        """Whether the values are packed."""
        return self.bits != PLAIN_BITS

    @property
    def array_count(self) -> int:
        """How many arrays `stored_arrays` returns."""
        return 3 if self.is_quantized else 1

    def cast(self, values: Array) -> Array:
        """*values* in the type that is stored or quantized."""
        return values if self.dtype is None else values.astype(self.dtype)

    def stored_arrays(self, values: Array) -> Packed:
        """*values*, shape (..., head size), as they are stored."""
        values = self.cast(values)
        if not self.is_quantized:
            return (values,)
        return tuple(mx.quantize(values, group_size=self.group_size, bits=self.bits))


class SplitKVCache:
    """
    A cache whose K and V are quantized each in its own way, or not at all.

    Two arrays lie in each of its parts, which are plain caches of mlx-lm: they grow or
    rotate, and are trimmed, as those do.
    """

    def __init__(self, plain: Any, key: Packing, value: Packing) -> None:
        """
        Take over the contents of a cache of mlx-lm, quantized.

        Args:
            plain: A `KVCache`, or a `RotatingKVCache` of bounded size; may be empty.
            key: How K is stored.
            value: How V is stored.
        """
        self.key, self.value = key, value
        keys, values, *place = plain.state
        if keys is None:
            arrays = [None] * (key.array_count + value.array_count)
        else:
            arrays = [*key.stored_arrays(keys), *value.stored_arrays(values)]
        self.parts = [
            type(plain).from_state((*two, *place)) for two in _split_into_twos(arrays)
        ]

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Packed, Packed]:
        """
        Append new tokens; what is held then.

        Args:
            keys: Shape (batch, heads, tokens, head size of K).
            values: Shape (batch, heads, tokens, head size of V).
        """
        new = _split_into_twos(
            [*self.key.stored_arrays(keys), *self.value.stored_arrays(values)]
        )
        held = [
            array
            for part, two in zip(self.parts, new, strict=True)
            for array in part.update_and_fetch(*two)
        ]
        return tuple(held[: self.key.array_count]), tuple(held[self.key.array_count :])

    def make_mask(
        self, count: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """
        The mask for *count* new tokens, as mlx-lm's models ask for it.

        In a cache of bounded size, each of several tokens sees the first ones that are
        kept, as a single token does. With mlx-lm's mask most of them would not, and a
        forced token would have another probability than a written one: SmolLM2, kv8/kv4
        and 24 tokens, -5.66 and -0.17 nats, where this mask gives -0.03 both ways.
        """
        mask = self.parts[0].make_mask(
            count, return_array=return_array, window_size=window_size
        )
        if count == 1 or not isinstance(mask, mx.array):
            return mask
        held = mask.shape[-1]
        kept = mx.arange(held) < getattr(self.parts[0], "keep", 0)
        return mask | (base.create_causal_mask(count, held - count) & kept)

    @property
    def offset(self) -> int:
        """Tokens so far."""
        return int(self.parts[0].offset)

    @property
    def max_size(self) -> int | None:
        """Tokens that it holds at most; None for all."""
        return getattr(self.parts[0], "max_size", None)

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of K and of V. That it has any tells mlx-lm to use `attention`."""
        return self.key.bits, self.value.bits

    @property
    def group_size(self) -> tuple[int, int]:
        """Group sizes of K and of V."""
        return self.key.group_size, self.value.group_size

    @property
    def nbytes(self) -> int:
        """Memory of K and V, in bytes, what is allocated ahead included."""
        return sum(part.nbytes for part in self.parts)

    def is_trimmable(self) -> bool:
        """Whether the last tokens can be dropped: until a full one has rotated."""
        return bool(self.parts[0].is_trimmable())

    def trim(self, count: int) -> int:
        """Drop the last *count* tokens, or all; how many were dropped."""
        dropped = [part.trim(count) for part in self.parts]
        return int(dropped[0])

    @property
    def state(self) -> tuple[Any, ...]:
        """
        K, V, offset, group sizes and bits, as of mlx-lm's ``QuantizedKVCache``.

        Of a bounded one, what `RotatingKVCache` has behind the offset comes behind it.
        """
        states = [part.state for part in self.parts]
        arrays = [array for state in states for array in state[:2]]
        keys, values = arrays[: self.key.array_count], arrays[self.key.array_count :]
        place = states[0][2:]
        return tuple(keys), tuple(values), *place, self.group_size, self.bits


def _split_into_twos(arrays: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """*arrays* by twos; there are one or three of K and of V, so none is left."""
    return zip(arrays[::2], arrays[1::2], strict=True)


def _numbers_of_k_and_v(value: int | tuple[int, int]) -> tuple[int, int]:
    """The number of K and that of V; a single *value* is both."""
    return (value, value) if isinstance(value, int) else value


def quantize_plain_cache(cache: Any, key: Packing, value: Packing) -> Any:
    """
    *cache* with K stored as *key* and V as *value*; unchanged if it is not plain.

    It may be changed in place.
    """
    if type(cache) not in {KVCache, RotatingKVCache}:
        return cache
    if not _mlx_lm_can_store(cache, key, value):
        return SplitKVCache(cache, key, value)
    if cache.keys is not None:
        cache.keys, cache.values = key.cast(cache.keys), key.cast(cache.values)
    made = cache.to_quantized(key.group_size, key.bits) if key.is_quantized else cache
    return _cast_cache_updates(made, key)


def _mlx_lm_can_store(cache: Any, key: Packing, value: Packing) -> bool:
    """
    Whether mlx-lm itself can store K and V in this way.

    Its ``QuantizedKVCache`` begins with room for ``32 // bits`` values in a word, with
    which not every head size fits 3, 5 and 6 bits. Its caches of bounded size cannot be
    quantized; and those that keep first tokens hide them, see `SplitKVCache.make_mask`.
    """
    if key != value:
        return False
    if type(cache) is RotatingKVCache:
        return not (key.is_quantized or cache.keep)
    return WORD_BITS % key.bits == 0


def _cast_cache_updates(cache: Any, packing: Packing) -> Any:
    """Have *cache* get K and V in the type that *packing* stores; returns it."""
    if packing.dtype is None:
        return cache
    update = cache.update_and_fetch
    cache.update_and_fetch = lambda keys, values: update(
        packing.cast(keys), packing.cast(values)
    )
    return cache


_attention_of_mlx_lm = base.quantized_scaled_dot_product_attention


def attention(
    queries: Array,
    q_keys: Packed,
    q_values: Packed,
    scale: float,
    mask: Any,
    group_size: int | tuple[int, int] = 64,
    bits: int | tuple[int, int] = 8,
) -> Array:
    """
    Scaled dot product attention on K and V as they are stored.

    Args:
        queries: Shape (batch, query heads, tokens, head size).
        q_keys: What the cache holds of K.
        q_values: What it holds of V.
        scale: Factor of the scores.
        mask: None, ``causal``, or an array that is true, or 0, where a token is seen.
        group_size: Values that share a scale: one number, or those of K and of V.
        bits: Bits of a value: one number, as of mlx-lm itself, or those of K and of V.

    Source:
        ``quantized_scaled_dot_product_attention`` of mlx-lm, of which it takes the
        place, and which takes one number of bits for both.
    """
    if isinstance(bits, int):
        return _attention_of_mlx_lm(
            queries, q_keys, q_values, scale, mask, group_size=group_size, bits=bits
        )
    if bits == (PLAIN_BITS, PLAIN_BITS):
        return mx.fast.scaled_dot_product_attention(
            queries, *q_keys, *q_values, scale=scale, mask=mask
        )
    batch, heads, count, _ = queries.shape
    groups = heads // q_keys[0].shape[1]
    queries = queries * scale
    if groups > 1:
        queries = queries.reshape(batch, -1, groups, count, queries.shape[-1])
        q_keys = tuple(mx.expand_dims(array, 2) for array in q_keys)
        q_values = tuple(mx.expand_dims(array, 2) for array in q_values)
    key, value = map(Packing, bits, _numbers_of_k_and_v(group_size))
    scores = _product(queries, q_keys, key, transpose=True)
    if isinstance(mask, str):
        mask = base.create_causal_mask(count, scores.shape[-1] - count)
    elif groups > 1 and mask is not None and mask.ndim > len(("heads", "new", "held")):
        mask = mx.expand_dims(mask, -3)
    if mask is not None and mask.dtype == mx.bool_:
        scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    shares = mx.softmax(scores, axis=-1, precise=True)
    result = _product(shares, q_values, value, transpose=False)
    return result.reshape(batch, heads, count, -1)


def _product(
    left: Array, packed: Packed, packing: Packing, *, transpose: bool
) -> Array:
    """*left* times the values, or their transpose, which are not unpacked."""
    if packing.is_quantized:
        return mx.quantized_matmul(
            left,
            *packed,
            transpose=transpose,
            group_size=packing.group_size,
            bits=packing.bits,
        )
    values = packed[0].astype(left.dtype)
    return left @ (values.swapaxes(-1, -2) if transpose else values)


base.quantized_scaled_dot_product_attention = attention
