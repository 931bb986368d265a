"""The parts of the built-in model, and where in a token's vector what stands."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TOKENS = 260
"""Vocabulary: 256 bytes, begin, end, padding, and one that never occurs."""

BEGIN = 256
"""The token that every context begins with."""

HEAD = 64
"""Dimensions of a head; llama.cpp rotates quantized caches in blocks of 64."""

SLOTS = 16
"""Bytes of the window that are kept one by one."""

SEEN = SLOTS - 1
"""Slots that a match compares: a key's window begins one slot later."""

VALUE_DIMS = 16
"""Dimensions of the code by which a byte is handed on to the output."""

FEED_FORWARD = 96
"""Width of the feed-forward layers: two for each dimension that is squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """
    What is trained: which bytes and which differences matter to a match.

    Attributes:
        codes: Shape (260, c): a byte as it stands in a slot; rows of length one.
        hashes: One (h, seen) matrix for each layer beyond the slots, of what a
            place has seen so far; *seen* is 15 c at first and grows by h.
        query: Shape (47, seen): projects what was seen up to here.
        key: Shape (47, seen): projects what was seen before an earlier place.
        energies: Mean squared length of each hash, measured on text.
        key_energy: Mean squared length of a key, measured on text.
    """

    codes: Array
    hashes: tuple[Array, ...]
    query: Array
    key: Array
    energies: tuple[float, ...]
    key_energy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    Weights of one layer with a single head, as x @ w.T uses them.

    Attributes:
        query: Shape (64, width).
        query_bias: Shape (64,).
        key: Shape (64, width).
        key_bias: Shape (64,).
        value: Shape (64, width).
        output: Shape (width, 64).
        expand: Shape (96, width): both inputs of the feed-forward product.
        shrink: Shape (width, 96).
    """

    query: Array
    query_bias: Array
    key: Array
    key_bias: Array
    value: Array
    output: Array
    expand: Array
    shrink: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """
    All weights.

    Attributes:
        embedding: Shape (260, width).
        layers: In order of use.
        readout: Shape (260, width).
        frequencies: Shape (32,): radians per token of each pair of dimensions.
    """

    embedding: Array
    layers: tuple[Layer, ...]
    readout: Array
    frequencies: Array


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Where in a token's vector what stands.

    Attributes:
        code: Dimensions of a slot.
        hashes: How many layers write hashes.
        hash_dims: Dimensions of each.
    """

    code: int
    hashes: int
    hash_dims: int

    def slots(self, start: int, stop: int) -> slice:
        """Codes of the bytes *start* to *stop* - 1 places back."""
        return slice(start * self.code, stop * self.code)

    def hash(self, level: int, *, of_key: bool) -> slice:
        """What a layer wrote for queries (ends here) or keys (ends one before)."""
        start = SLOTS * self.code + (2 * level + of_key) * self.hash_dims
        return slice(start, start + self.hash_dims)

    @property
    def value(self) -> slice:
        """Code by which the own byte is handed on."""
        start = SLOTS * self.code + 2 * self.hashes * self.hash_dims
        return slice(start, start + VALUE_DIMS)

    @property
    def said(self) -> slice:
        """Code of the byte that the match found."""
        return slice(self.value.stop, self.value.stop + VALUE_DIMS)

    @property
    def square(self) -> int:
        """Squared length of the token's key."""
        stop: int = self.said.stop
        return stop

    @property
    def width(self) -> int:
        """Dimensions of a token's vector; llama.cpp likes multiples of 32."""
        return -(-(self.square + 1) // 32) * 32

    def view(self, levels: int, *, of_key: bool) -> list[slice]:
        """What a place has seen after so many hashes, nearest byte first."""
        near = self.slots(of_key, of_key + SEEN)
        return [near, *(self.hash(level, of_key=of_key) for level in range(levels))]


def value_codes() -> Array:
    """
    Codes of length one for all tokens; special tokens get none and are never said.

    Returns:
        Shape (260, 16). Two bytes' codes have a scalar product of at most 1/4,
        so a byte that is said stands out clearly from 255 others in 16 dimensions.

    Source:
        The Nordstrom-Robinson code as the Gray image of the octacode over Z4:
        Hammons, Kumar, Calderbank, Sloane, Sole, The Z4-linearity of Kerdock,
        Preparata, Goethals, and related codes, IEEE Trans. IT 40(2), 1994.
    """
    first = [3, 1, 2, 1, 0, 0, 0]
    generator = np.array([[*np.roll(first, n), 1] for n in range(4)])
    digits = np.indices((4, 4, 4, 4)).reshape(4, 256).T
    gray = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
    words = gray[digits @ generator % 4].reshape(256, VALUE_DIMS)
    # With each word its negative is one; a text's bytes are seldom 128 apart.
    half = words[words[:, 0] > 0]
    codes = np.zeros((TOKENS, VALUE_DIMS))
    codes[:256] = np.concatenate([half, -half]) / math.sqrt(VALUE_DIMS)
    return codes


def orthonormal(columns: int) -> Array:
    """
    Shape (64, columns): orthonormal columns that spread each number over all 64.

    A head's value carries what it copies in this basis, so that a cache's
    quantization meets many numbers of like size. Entries are n / 32: exact.
    """
    hadamard = np.ones((1, 1))
    while len(hadamard) < HEAD:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    # One transform alone would be undone where llama.cpp applies the same.
    chance = hashlib.sha256(b"signs").digest()[: HEAD // 8]
    bits = np.unpackbits(np.frombuffer(chance, np.uint8)).astype(np.float64)
    product = (hadamard * (1 - 2 * bits)) @ hadamard
    return np.asarray(product[:, :columns] / HEAD, np.float64)
