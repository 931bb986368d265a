"""
Cache types and pairs: bits of each known type, which pair is more precise (by the
coarser of K and V), the usual six types, the first pairs of ``--decide``, a shuffled
order.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from codeneedle.errors import BadInput
from codeneedle.text import escape_invisible

ENGINE = "llama.cpp"
"""Default engine."""

RUNS = Path("sweeps")
"""Default folder of all run folders."""

BITS_PER_ELEMENT: dict[str, float] = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q8_0": 8.5,
    "kv8": 8.5,
    "q6_0": 6.5,
    "kv6": 6.5,
    "q5_1": 6.0,
    "q5_0": 5.5,
    "kv5": 5.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
    "iq4_nl": 4.5,
    "kv4": 4.5,
    "kv3": 3.5,
    "kv2": 2.5,
}
"""
Storage per cached value, scales included, most precise type first.

A block of 32 values carries a 2-byte scale, and the ``_1`` types a 2-byte
minimum: q8_0 is 34 bytes per 32 values. Source: ``ggml-common.h`` of llama.cpp;
q6_0 is ik_llama.cpp's. MLX's ``kv`` types carry a 2-byte scale and a 2-byte bias per
group, of 64 values by default.
"""

BLOCK_SIZE: dict[str, int] = {
    name: 1 if name in {"f32", "f16", "bf16"} else 32 for name in BITS_PER_ELEMENT
}
"""Values per quantization block; a head size must be a multiple of it."""

FULL_PRECISION = frozenset({"auto", "none", "default", "float16", "bfloat16", "fp16"})
"""What engines other than llama.cpp call a cache that is not quantized."""

FULL_BITS = 16.0

_Key = TypeVar("_Key", bound=Hashable)

_NUMBER = re.compile(r"\d+")

DEFAULT_TYPES = ("bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""The six types of the published 6x6 grids, most precise first."""


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A K cache type with a V cache type, spelled as the engine spells them."""

    k: str  # element type of the K cache
    v: str  # element type of the V cache

    @classmethod
    def parse(cls, text: str) -> "Pair":
        """
        Read ``q8_0/q4_0``; types of any name.

        Raises:
            BadInput: If *text* is no two words with a slash between them.
        """
        k, slash, v = text.strip().partition("/")
        if not (k and slash and v) or "/" in v:
            example = f"{k}/{k}" if k in BITS_PER_ELEMENT and not slash else "q8_0/q4_0"
            raise BadInput(
                source=f"'{text}'",
                reason="is not a pair of cache types",
                hint=f"Write the K type, a slash, the V type: {example}.",
            )
        return cls(k, v)

    @property
    def slug(self) -> str:
        """
        Safe as a file name, and of this pair alone: ``q8_0-q4_0``.

        A binary may accept types of any name, and a run folder from elsewhere may
        hold any; no name leads out of the folder.
        """
        return f"{_slug(self.k)}-{_slug(self.v)}"

    @property
    def without_weights(self) -> "Pair":
        """The pair alone, without what it is a cache of."""
        return self

    @property
    def weights(self) -> str:
        """What its weights are called beside others; empty of a pair alone."""
        return ""

    @property
    def weight_bits(self) -> float:
        """How precise its weights are; of a pair alone 0, as of all others."""
        return 0.0

    @property
    def is_unquantized(self) -> bool:
        """Whether neither K nor V is quantized, by their names."""
        return is_full_precision(self.k) and is_full_precision(self.v)

    @property
    def size_to_compare(self) -> float:
        """
        Size of its cache by the bits of its types; 1 is that of f16.

        Infinite if these are unknown. For a candidate it is that of all its memory, in
        bytes.
        """
        k, v = bits_per_value(self.k), bits_per_value(self.v)
        return math.inf if k is None or v is None else (k + v) / (2 * FULL_BITS)

    def memory_bytes(self, kv_bytes: Callable[[], float | None]) -> float | None:
        """Bytes to compare: of a pair alone what *kv_bytes* gives; None if unknown."""
        return kv_bytes()

    @override
    def __str__(self) -> str:
        return f"{self.k}/{self.v}"


@dataclass(frozen=True, slots=True, order=True)
class Candidate(Pair):
    """A pair with the weights that it is a cache of, among several files of a model."""

    weights: str = ""  # what the weights are called beside the others: ``Q4_K_M``
    weight_bits: float = field(default=0.0, compare=False)
    """How precise they are: bits per weight, or what grows with them."""

    size: float = field(default=math.nan, compare=False)
    """Bytes of all memory with them; NaN if unknown."""

    @property
    @override
    def without_weights(self) -> Pair:
        return Pair(self.k, self.v)

    @property
    @override
    def size_to_compare(self) -> float:
        """Bytes of all memory with its weights; infinite if unknown."""
        return math.inf if math.isnan(self.size) else self.size

    @override
    def memory_bytes(self, kv_bytes: Callable[[], float | None]) -> float | None:
        """Bytes of all memory with its weights; None if unknown."""
        return None if math.isnan(self.size) else self.size

    @override
    def __str__(self) -> str:
        return f"{self.weights} {self.k}/{self.v}"


FIRST = (Pair("q8_0", "q8_0"), Pair("q8_0", "q4_0"), Pair("q4_0", "q4_0"))
"""Pairs that everybody asks about, which a sweep that decides measures first."""


@dataclass(frozen=True, slots=True)
class PairFlags:
    """How an engine is asked for pairs."""

    flags: Callable[[Pair], str] = str  # its options that set a pair
    compiles: Callable[[Iterable[Pair]], str] | None = None
    """
    The option of a build that has kernels for some pairs; None where no build lacks
    any.
    """

    model: str = "--model"  # its option that takes a file of weights

    def __call__(self, pair: Pair) -> str:
        """The options that set *pair*."""
        return self.flags(pair)


def _slug(cache_type: str) -> str:
    """
    *cache_type* as a part of a file name.

    Itself if it is safe; else with a hash, so that two types never have the same.
    """
    safe = re.sub(r"[^\w.]|^\.", "_", cache_type, flags=re.ASCII)[:60]
    if safe == cache_type:
        return safe
    # No type that is safe as it stands has a tilde in it.
    digest = hashlib.sha256(cache_type.encode(errors="backslashreplace")).hexdigest()
    return f"{safe[:40]}~{digest[:12]}"


def is_full_precision(cache_type: str) -> bool:
    """Whether *cache_type* is known not to be quantized."""
    return (bits_per_value(cache_type) or 0.0) >= FULL_BITS


def bits_per_value(cache_type: str) -> float | None:
    """
    Storage per cached value, in bits; None if unknown.

    It is exact for types in `BITS_PER_ELEMENT`. For those of forks and other engines it
    is the first number of the name, without scales: 8 for ``fp8_e4m3``.
    """
    if cache_type in BITS_PER_ELEMENT:
        return BITS_PER_ELEMENT[cache_type]
    name = cache_type.lower()
    if name in FULL_PRECISION:
        return FULL_BITS
    number = _NUMBER.search(name)
    return float(number[0]) if number and 0 < float(number[0]) <= FULL_BITS else None


def precision_key(cache_type: str) -> tuple[float, int]:
    """
    Sort key of a cache type, most precise first; types of unknown size come last.

    Types of equal size keep the order of `BITS_PER_ELEMENT`; others come after those.
    """
    known, size = list(BITS_PER_ELEMENT), bits_per_value(cache_type)
    place = known.index(cache_type) if cache_type in known else len(known)
    return (0.0 if size is None else -size, place)


def distinct_most_precise_first(types: Iterable[str]) -> list[str]:
    """The distinct *types*, most precise first."""
    return sorted(dict.fromkeys(types), key=precision_key)


def most_precise(pairs: Iterable[Pair]) -> Pair:
    """
    The pair that loses least by its types: by the coarser of K and V.

    Raises:
        ValueError: If there are no pairs.
    """
    return min(pairs, key=_pair_precision_key)


def most_precise_first(pairs: Iterable[Pair]) -> list[Pair]:
    """*pairs* from the most precise one on; see `most_precise`."""
    return sorted(pairs, key=_pair_precision_key)


def _pair_precision_key(pair: Pair) -> tuple[object, ...]:
    """Sort key, most precise first: weights, coarser type, finer type, name."""
    # A pair with 4-bit V loses what 4-bit V loses, however precise its K is. The name
    # decides between types of equal size: never the running order.
    k, v = precision_key(pair.k), precision_key(pair.v)
    return (-pair.weight_bits, max(k, v), min(k, v), k, pair.k, pair.v, str(pair))


def finer_axes(pair: Pair, reference: Pair) -> list[str]:
    """
    The axes, ``K`` and ``V``, on which *pair* has more bits than *reference*.

    Types that are not quantized are equal. Of weights that are more precise it is
    ``weights``, too.
    """
    sides = {"K": (pair.k, reference.k), "V": (pair.v, reference.v)}
    axes = [
        axis
        for axis, (one, other) in sides.items()
        if _capped_bits(one) > _capped_bits(other)
    ]
    has_finer = pair.weight_bits > reference.weight_bits
    return ["weights", *axes] if has_finer else axes


def _capped_bits(cache_type: str) -> float:
    """Bits of a type, at most `FULL_BITS`; 0 if unknown."""
    return min(bits_per_value(cache_type) or 0.0, FULL_BITS)


def whole_grid(k_types: Iterable[str], v_types: Iterable[str]) -> list[Pair]:
    """Every K type with every V type, K slowest."""
    return list(itertools.starmap(Pair, itertools.product(k_types, v_types)))


def shuffle_pairs(pairs: Iterable[Pair], *, seed: int) -> list[Pair]:
    """
    *pairs* in an order that depends only on *seed*.

    Shuffled, so that heat and drift do not align with precision. Sorting by a
    hash keeps the order of the remaining pairs when the grid grows or shrinks.
    """
    return sorted(
        pairs, key=lambda pair: hashlib.sha256(f"{seed}:{pair}".encode()).digest()
    )


def pairs_by(keyed: Iterable[tuple[_Key, Pair]]) -> dict[_Key, list[Pair]]:
    """The pairs of each key, each once, in the order in which they come."""
    by_key: dict[_Key, dict[Pair, None]] = {}
    for key, pair in keyed:
        by_key.setdefault(key, {})[pair] = None
    return {key: list(pairs) for key, pairs in by_key.items()}


PAIRS_NAMED = 4
"""Pairs that a line of the legend names before it counts the others."""


def pairs_phrase(pairs: Sequence[Pair]) -> str:
    """The first `PAIRS_NAMED` of *pairs*, and how many more there are."""
    named = ", ".join(escape_invisible(str(pair)) for pair in pairs[:PAIRS_NAMED])
    rest = len(pairs) - PAIRS_NAMED
    return named if rest <= 0 else f"{named} and {rest} more"
