"""
KV caches for MLX whose K and V are quantized with bits and group sizes of their own,
and attention on them. Imported only in the child process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import mlx.core as mx
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

STEP = 256
"""Tokens by which a growing cache is enlarged, as in mlx-lm."""

_TOKENS = 2
"""The axis of tokens."""


@dataclass(frozen=True, slots=True)
class Packing:
    """
    How K or V is stored.

    Attributes:
        bits: Of a value: 2, 3, 4, 5, 6 or 8; `PLAIN_BITS` if they are not quantized.
        group_size: Values that share a scale and a bias: 32, 64 or 128.
        dtype: Of values that are not quantized, and of scales and biases; None to keep
            what the model computes.
    """

    bits: int
    group_size: int = 64
    dtype: Any = None

    @property
    def is_quantized(self) -> bool:
        """Whether the values are packed."""
        return self.bits != PLAIN_BITS

    def pack(self, values: Array) -> Packed:
        """*values*, shape (..., head size), as they are stored."""
        values = values if self.dtype is None else values.astype(self.dtype)
        if not self.is_quantized:
            return (values,)
        return tuple(mx.quantize(values, group_size=self.group_size, bits=self.bits))

    def unpack(self, packed: Packed) -> Array:
        """The values that *packed* stands for."""
        if not self.is_quantized:
            return packed[0]
        return mx.dequantize(*packed, group_size=self.group_size, bits=self.bits)

    def product(self, left: Array, packed: Packed, *, transpose: bool) -> Array:
        """*left* times the values, or their transpose, which are not unpacked."""
        if self.is_quantized:
            return mx.quantized_matmul(
                left,
                *packed,
                transpose=transpose,
                group_size=self.group_size,
                bits=self.bits,
            )
        values = packed[0].astype(left.dtype)
        return left @ (values.swapaxes(-1, -2) if transpose else values)


def _each(apply: Callable[[Array], Array], packed: Packed) -> Packed:
    return tuple(apply(array) for array in packed)


def _between(packed: Packed, start: int, end: int | None = None) -> Packed:
    return _each(lambda array: array[..., start:end, :], packed)


def _joined(parts: Sequence[Packed]) -> Packed:
    arrays = zip(*parts, strict=True)
    return tuple(mx.concatenate(list(each), axis=_TOKENS) for each in arrays)


def _copied(packed: Packed) -> Packed:
    """Arrays of their own: an assignment to part of one does not change the other."""
    return _each(lambda array: array[...], packed)


def _length(packed: Packed) -> int:
    return int(packed[0].shape[_TOKENS])


def _blank(like: Packed, tokens: int) -> Packed:
    def zeros(array: Array) -> Array:
        shape = (*array.shape[:_TOKENS], tokens, *array.shape[_TOKENS + 1 :])
        return mx.zeros(shape, dtype=array.dtype)

    return _each(zeros, like)


def _write(into: Packed, at: int, new: Packed) -> None:
    for array, values in zip(into, new, strict=True):
        array[..., at : at + values.shape[_TOKENS], :] = values


def _both(value: int | Sequence[int]) -> tuple[int, int]:
    """One number for K and V, or two."""
    if isinstance(value, int):
        return value, value
    key, of_value = value
    return int(key), int(of_value)


class _Quantized:
    """What both caches have in common."""

    def __init__(self, key: Packing, value: Packing) -> None:
        self.key_packing = key
        self.value_packing = value
        self.keys: Packed | None = None
        self.values: Packed | None = None
        self.offset = 0

    @classmethod
    def from_state(cls, state: Any, meta_state: Sequence[Any] = ()) -> Self:
        """
        A cache with the contents of another one's `state` and `meta_state`.

        Args:
            state: K and V; of mlx-lm 0.32, everything.
            meta_state: The rest, as text; of mlx-lm 0.31 and before, three fields.
        """
        made = cls.__new__(cls)
        _Quantized.__init__(made, Packing(PLAIN_BITS), Packing(PLAIN_BITS))
        keys, values, *rest = state
        made.state = (keys, values)
        made.meta_state = meta_state or rest
        return made

    @property
    def bits(self) -> int | tuple[int, int]:
        """Bits of K and V; one number if they are the same."""
        return _one_or_both(self.key_packing.bits, self.value_packing.bits)

    @property
    def group_size(self) -> int | tuple[int, int]:
        """Group sizes of K and V; one number if they are the same."""
        return _one_or_both(self.key_packing.group_size, self.value_packing.group_size)

    @property
    def nbytes(self) -> int:
        """Memory of K and V, in bytes; of a growing cache, what is allocated."""
        return _bytes(self.keys) + _bytes(self.values)

    def bytes_per_token(self) -> tuple[float, float]:
        """Memory of K and of V by token, in bytes, as measured; 0 while empty."""
        found = [
            _bytes(packed) / _length(packed) if packed else 0.0
            for packed in (self.keys, self.values)
        ]
        return found[0], found[1]

    def empty(self) -> bool:
        """Whether nothing has been stored yet."""
        return self.keys is None

    def to_quantized(
        self,
        group_size: int | Sequence[int] = 64,  # noqa: ARG002 - it has its own
        bits: int | Sequence[int] = 4,  # noqa: ARG002 - likewise
    ) -> Self:
        """Itself, however often it is asked."""
        return self

    @property
    def state(self) -> Any:
        """K and V, each a tuple of arrays; None while empty."""
        raise NotImplementedError

    @state.setter
    def state(self, stored: Any) -> None:
        raise NotImplementedError

    def _packing(self) -> tuple[int, int, int, int]:
        key, value = self.key_packing, self.value_packing
        return key.group_size, key.bits, value.group_size, value.bits

    def _restore(self, packing: Sequence[int]) -> None:
        """Take group size and bits of K, then of V; types stay as they are."""
        key_group, key_bits, value_group, value_bits = packing
        dtypes = [packed and packed[-1].dtype for packed in (self.keys, self.values)]
        self.key_packing = Packing(key_bits, key_group, dtypes[0])
        self.value_packing = Packing(value_bits, value_group, dtypes[1])

    @property
    def meta_state(self) -> tuple[str, ...]:
        """What `state` does not hold, as text."""
        raise NotImplementedError

    @meta_state.setter
    def meta_state(self, stored: Sequence[str]) -> None:
        raise NotImplementedError


class SplitQuantizedKVCache(_Quantized):
    """
    A cache that grows, with K and V quantized each in its own way.

    Takes the place of mlx-lm's ``QuantizedKVCache``, whose states it reads.
    """

    def __init__(
        self,
        group_size: int | Sequence[int] = 64,
        bits: int | Sequence[int] = 8,
        *,
        dtypes: tuple[Any, Any] = (None, None),
    ) -> None:
        """
        Make an empty cache.

        Args:
            group_size: Of K and V, or of each.
            bits: Likewise; `PLAIN_BITS` leaves a side as it is.
            dtypes: Of sides that are not quantized.
        """
        super().__init__(*packings(bits, group_size, dtypes))

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Packed, Packed]:
        """
        Append new tokens; all tokens so far.

        Args:
            keys: Shape (batch, heads, tokens, head size of K).
            values: Shape (batch, heads, tokens, head size of V).
        """
        new = self.key_packing.pack(keys), self.value_packing.pack(values)
        before, self.offset = self.offset, self.offset + int(keys.shape[_TOKENS])
        self.keys = _grown(self.keys, new[0], before)
        self.values = _grown(self.values, new[1], before)
        return _between(self.keys, 0, self.offset), _between(
            self.values, 0, self.offset
        )

    def size(self) -> int:
        """Tokens in it."""
        return self.offset

    def is_trimmable(self) -> bool:
        """Always."""
        return True

    def trim(self, count: int) -> int:
        """Drop the last *count* tokens, or all; how many were dropped."""
        dropped = min(self.offset, count)
        self.offset -= dropped
        return dropped

    def make_mask(
        self, count: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """The mask for *count* new tokens, as mlx-lm's models ask for it."""
        if count == 1 and (window_size is None or self.offset < window_size):
            return None
        if window_size is None and not return_array:
            return "causal"
        return causal_mask(count, self.offset, window=window_size)

    @property
    def state(self) -> Any:
        """K and V without what is allocated ahead."""
        if self.keys is None or self.values is None:
            return None, None
        return _between(self.keys, 0, self.offset), _between(
            self.values, 0, self.offset
        )

    @state.setter
    def state(self, stored: Any) -> None:
        self.keys, self.values = (packed and tuple(packed) for packed in stored)
        self.offset = 0 if self.keys is None else _length(self.keys)

    @property
    def meta_state(self) -> tuple[str, ...]:
        """Offset; group size and bits of K, then of V."""
        return tuple(map(str, (self.offset, *self._packing())))

    @meta_state.setter
    def meta_state(self, stored: Sequence[str]) -> None:
        offset, *rest = map(int, stored)
        # Of mlx-lm: one group size, one number of bits.
        self.offset = offset
        self._restore(rest if len(rest) > len("KV") else rest * 2)


class RotatingQuantizedKVCache(_Quantized):
    """
    A cache of bounded size, K and V quantized each in its own way.

    It keeps the first `keep` tokens, and of the others the last. A single token
    overwrites the oldest one; several are appended in order, and what is too old for
    all of them is dropped, so that it holds up to ``max_size - 1`` tokens beside them.
    """

    def __init__(
        self,
        max_size: int,
        keep: int = 0,
        *,
        group_size: int | Sequence[int] = 64,
        bits: int | Sequence[int] = 8,
        dtypes: tuple[Any, Any] = (None, None),
    ) -> None:
        """
        Make an empty cache.

        Args:
            max_size: Tokens that it holds, more than *keep*.
            keep: First tokens, which are never dropped.
            group_size: Of K and V, or of each.
            bits: Likewise; `PLAIN_BITS` leaves a side as it is.
            dtypes: Of sides that are not quantized.
        """
        super().__init__(*packings(bits, group_size, dtypes))
        self.max_size = max_size
        self.keep = keep
        self._next = 0

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Packed, Packed]:
        """As of `SplitQuantizedKVCache`; not in temporal order after a rotation."""
        new = self.key_packing.pack(keys), self.value_packing.pack(values)
        count = int(keys.shape[_TOKENS])
        if self.keys is None or self.values is None:
            self.keys, self.values = new
            self._next = count
        elif count == 1:
            self._rotate(*new)
        else:
            self._append(*new)
        self.offset += count
        return self.keys, self.values

    def in_order(self) -> tuple[Packed, Packed]:
        """K and V, oldest token first."""
        if self.keys is None or self.values is None:
            raise ValueError("an empty cache")
        return self._ordered(self.keys), self._ordered(self.values)

    def _ordered(self, packed: Packed) -> Packed:
        if self._next == _length(packed):
            return packed
        first = _between(packed, 0, self.keep)
        return _joined(
            [
                first,
                _between(packed, self._next),
                _between(packed, self.keep, self._next),
            ]
        )

    def _append(self, keys: Packed, values: Packed) -> None:
        """Several tokens: each sees at least `max_size` tokens, itself included."""
        old_keys, old_values = self.in_order()
        surplus = _length(old_keys) - self.max_size + 1
        self.keys = self._cut(old_keys, surplus, keys)
        self.values = self._cut(old_values, surplus, values)
        self._next = _length(self.keys)

    def _rotate(self, keys: Packed, values: Packed) -> None:
        """One token: appended until the cache is full, then in the oldest's place."""
        old_keys, old_values = self.in_order_if_long()
        if _length(old_keys) < self.max_size:
            self.keys = _joined([old_keys, keys])
            self.values = _joined([old_values, values])
            self._next = _length(self.keys)
            return
        if self._next >= self.max_size:
            self._next = self.keep
        _write(old_keys, self._next, keys)
        _write(old_values, self._next, values)
        self.keys, self.values = old_keys, old_values
        self._next += 1

    def in_order_if_long(self) -> tuple[Packed, Packed]:
        """K and V; cut to `max_size`, in order, after several tokens at once."""
        if self.keys is None or self.values is None:
            raise ValueError("an empty cache")
        surplus = _length(self.keys) - self.max_size
        if surplus <= 0:
            return self.keys, self.values
        keys, values = self.in_order()
        self._next = self.max_size
        return self._cut(keys, surplus), self._cut(values, surplus)

    def _cut(self, packed: Packed, surplus: int, *more: Packed) -> Packed:
        """*packed* without the oldest *surplus* tokens behind the first, and *more*."""
        if surplus <= 0:
            return _joined([packed, *more])
        kept = _between(packed, 0, self.keep)
        return _joined([kept, _between(packed, surplus + self.keep), *more])

    def size(self) -> int:
        """Tokens in it that count."""
        return min(self.offset, self.max_size)

    @property
    def state(self) -> Any:
        """K and V as they are now: a token that is written later is not in it."""
        if self.keys is None or self.values is None:
            return None, None
        return _copied(self.keys), _copied(self.values)

    @state.setter
    def state(self, stored: Any) -> None:
        # What is read from a file has lists.
        self.keys, self.values = (packed and tuple(packed) for packed in stored)

    def is_trimmable(self) -> bool:
        """Whether no token has been dropped yet."""
        return self.offset < self.max_size

    def trim(self, count: int) -> int:
        """Drop the last *count* tokens, where that is possible; how many it were."""
        if not self.is_trimmable() or self.keys is None or self.values is None:
            return 0
        dropped = min(self.offset, count)
        self.offset -= dropped
        self._next = self.offset
        self.keys = _between(self.keys, 0, self.offset)
        self.values = _between(self.values, 0, self.offset)
        if not self.offset:
            self.keys = self.values = None
        return dropped

    def make_mask(
        self, count: int, *, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """As of `SplitQuantizedKVCache`: the first `keep` tokens are always seen."""
        held = 0 if self.keys is None else _length(self.keys)
        if count == 1:
            return self._mask_of_one(window_size, held)
        window = min(window_size or self.max_size, self.max_size)
        offset = min(self.max_size - 1, held)
        if offset + count <= window and not return_array:
            return "causal"
        return causal_mask(count, offset, window=window, keep=self.keep)

    def _mask_of_one(self, window: int | None, held: int) -> Any:
        """Of a single token, which sees all but what a smaller window leaves out."""
        if window is None or window >= self.max_size or self.offset < window:
            return None
        places = mx.arange(min(held + 1, self.max_size))
        at = self._next if self._next < self.max_size else self.keep
        ring = self.max_size - self.keep
        age = mx.where(places <= at, at - places, at - places + ring)
        return (age < window) | (places < self.keep)

    @property
    def meta_state(self) -> tuple[str, ...]:
        """Keep, size, offset, next place; group size and bits of K, then of V."""
        own = (self.keep, self.max_size, self.offset, self._next)
        return tuple(map(str, own + self._packing()))

    @meta_state.setter
    def meta_state(self, stored: Sequence[str]) -> None:
        keep, size, offset, at, *rest = map(int, stored)
        self.keep, self.max_size, self.offset, self._next = keep, size, offset, at
        self._restore(rest)

    @classmethod
    def of(cls, plain: Any, key: Packing, value: Packing) -> "RotatingQuantizedKVCache":
        """The contents of mlx-lm's ``RotatingKVCache``, wrapped or not, quantized."""
        made = cls(plain.max_size, plain.keep)
        made.key_packing, made.value_packing = key, value
        if plain.keys is None:
            return made
        # Before it is full, mlx-lm allocates ahead.
        held = plain.offset if plain.offset < plain.keys.shape[_TOKENS] else None
        made.keys = key.pack(plain.keys[..., :held, :])
        made.values = value.pack(plain.values[..., :held, :])
        made.offset = plain.offset
        made._next = plain._idx  # noqa: SLF001 - where it writes next, told nowhere else
        return made


def packings(
    bits: int | Sequence[int],
    group_size: int | Sequence[int],
    dtypes: tuple[Any, Any] = (None, None),
) -> tuple[Packing, Packing]:
    """How K and V are stored; one number stands for both."""
    both_bits, both_groups = _both(bits), _both(group_size)
    key, value = (
        Packing(*each) for each in zip(both_bits, both_groups, dtypes, strict=True)
    )
    return key, value


def quantized(cache: Any, key: Packing, value: Packing) -> Any:
    """
    The contents of a cache of mlx-lm, quantized; None for a kind without K and V.

    One of ours stays as it is.
    """
    if isinstance(cache, _Quantized):
        return cache
    if type(cache) is RotatingKVCache:
        return RotatingQuantizedKVCache.of(cache, key, value)
    if type(cache) is not KVCache:
        return None
    made = SplitQuantizedKVCache()
    made.key_packing, made.value_packing = key, value
    if cache.keys is not None:
        held = cache.offset
        made.keys = key.pack(cache.keys[..., :held, :])
        made.values = value.pack(cache.values[..., :held, :])
        made.offset = held
    return made


def attention(
    queries: Array,
    keys: Packed,
    values: Packed,
    *,
    cache: _Quantized,
    scale: float,
    mask: Any = None,
) -> Array:
    """
    Scaled dot product attention on K and V as they are stored.

    Args:
        queries: Shape (batch, query heads, tokens, head size).
        keys: What the cache holds of K.
        values: Of V.
        cache: Tells how they are packed.
        scale: Of the scores.
        mask: None, ``causal``, or an array that is true, or 0, where a token is seen.

    Source:
        ``quantized_scaled_dot_product_attention`` of mlx-lm, which takes one number of
        bits for both.
    """
    key, value = cache.key_packing, cache.value_packing
    if not (key.is_quantized or value.is_quantized):
        as_queries = [each[0].astype(queries.dtype) for each in (keys, values)]
        return mx.fast.scaled_dot_product_attention(
            queries, *as_queries, scale=scale, mask=mask
        )
    batch, heads, count, _ = queries.shape
    groups = heads // keys[0].shape[1]
    queries = queries * scale
    if groups > 1:
        queries = queries.reshape(batch, -1, groups, count, queries.shape[-1])
        keys = _each(lambda array: mx.expand_dims(array, 2), keys)
        values = _each(lambda array: mx.expand_dims(array, 2), values)
        mask = _by_group(mask, groups)
    scores = _masked(key.product(queries, keys, transpose=True), mask)
    shares = mx.softmax(scores, axis=-1, precise=True)
    found = value.product(shares, values, transpose=False)
    return found.reshape(batch, heads, count, -1)


def _by_group(mask: Any, groups: int) -> Any:
    """*mask*, if it has an axis of heads, with one of K's heads and one of groups."""
    if not isinstance(mask, mx.array) or mask.ndim <= len(("tokens", "seen")):
        return mask
    *before, heads, count, held = mask.shape
    split = (1, 1) if heads == 1 else (heads // groups, groups)
    return mask.reshape(*before, *split, count, held)


def _masked(scores: Array, mask: Any) -> Array:
    if mask is None:
        return scores
    if isinstance(mask, str):
        count, held = scores.shape[-2:]
        mask = causal_mask(count, held - count)
    if mask.dtype != mx.bool_:
        return scores + mask
    return mx.where(mask, scores, mx.finfo(scores.dtype).min)


def causal_mask(
    count: int, offset: int, *, window: int | None = None, keep: int = 0
) -> Array:
    """
    Which tokens each of *count* new ones sees; shape (count, offset + count), boolean.

    Args:
        count: New tokens.
        offset: Tokens before them.
        window: The last tokens that are seen, itself included; None for all.
        keep: First tokens, which are seen whatever the window is.
    """
    places = mx.arange(offset + count)[None]
    own = mx.arange(offset, offset + count)[:, None]
    seen = places <= own
    if window is None:
        return seen
    return seen & ((places > own - window) | (places < keep))


def _grown(packed: Packed | None, new: Packed, before: int) -> Packed:
    """*packed* with *new* written at *before*, enlarged in steps if need be."""
    needed = before + _length(new)
    if packed is None or needed > _length(packed):
        room = -(-_length(new) // STEP) * STEP
        more = _blank(new, room)
        packed = _joined([_between(packed, 0, before), more]) if packed else more
    _write(packed, before, new)
    return packed


def _bytes(packed: Packed | None) -> int:
    return sum(int(array.nbytes) for array in packed or ())


def _one_or_both(key: int, value: int) -> int | tuple[int, int]:
    return key if key == value else (key, value)
