"""
How a transformer copies: every weight of the built-in model, and why it is there.

The model continues a text that it has never seen by *induction*: it finds the
place earlier in its context where the last bytes were the same as now, and says
the byte that followed there. Three steps, none of them learnt from language:

1. **Look back.** A token knows itself alone. Layer n lets it attend to the token
   2**n places before it and note down what that one knows, so that the known
   window doubles: 1, 2, 4, 8, 16 bytes in four layers. These are kept one by one,
   a small code in a *slot* each. Beyond 16 there is no room for slots: further
   layers double on, but write down *hashes* of a window instead of its bytes.
2. **Match.** In the last layer the query is the window that ends *here*, the key
   of an earlier place is the window that ends one byte *before it*. Attention is
   largest where the two are alike: where this byte's successor stands.
3. **Say it.** The value is the byte at that place; the output matrix reads it.

How a head knows distance but can also ignore it: rotary position turns each pair
of a head's dimensions by (position x frequency). Eight pairs get frequencies of
our choice; together they are the *ruler*, which looking back uses alone. All
others get frequency zero, so matching works at any distance.

Feed-forward layers are zero, normalization weights one. All numbers come from
square roots, cosines and small integers, apart from the trained `Matcher`.
"""

import hashlib
import math
from collections.abc import Sequence
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

EPSILON = 1e-5
"""Keeps root-mean-square normalization away from zero."""

RULER = (2.8459, 2.3995, 1.0556, 0.6331, 0.196, 0.0521, 0.001432, 0.0012675)
"""
Frequencies of the ruler, in radians per token.

Found by random search: the mean of their cosines is 1 at distance zero and at most
0.83 at any other below 39,000 tokens, 0.88 below 65,536.
"""

SLOTS = 16
"""Bytes of the window that are kept one by one."""

SEEN = SLOTS - 1
"""Slots that a match compares: a key's window begins one slot later."""

LOOK_BACK_NATS = 72.0
"""
Attention score of the place that a look-back is after.

Its rivals stay 0.12 of that, 8.6 nats, below; quantized keys shift scores by one.
"""

VALUE_DIMS = 16
"""Dimensions of the code by which a byte is handed on to the output."""

VALUE_SCALE = 2.0
"""Length of a value code: a constant share of every token, whatever its text."""

LOGIT = 20.0
"""Logit of a byte that has all the attention; any other has at most a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """
    What is trained: which bytes and which differences matter to a match.

    Attributes:
        codes: Shape (260, c): a byte as it stands in a slot; rows of length one.
        hashes: One (h, seen) matrix for each layer beyond the slots, of what a
            place has seen so far; *seen* is 15 c at first and grows by h.
        energies: Mean squared length of each hash, measured on text.
        query: Shape (48, seen): projects what was seen up to here.
        key: Shape (48, seen): projects what was seen before an earlier place.
    """

    codes: Array
    hashes: tuple[Array, ...]
    energies: tuple[float, ...]
    query: Array
    key: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """
    Weights of one attention layer with a single head, as x @ w.T uses them.

    Attributes:
        query: Shape (64, width).
        query_bias: Shape (64,).
        key: Shape (64, width).
        key_bias: Shape (64,).
        value: Shape (64, width).
        output: Shape (width, 64).
    """

    query: Array
    query_bias: Array
    key: Array
    key_bias: Array
    value: Array
    output: Array


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
    def width(self) -> int:
        """Dimensions of a token's vector; llama.cpp likes multiples of 32."""
        stop: int = self.said.stop
        return -(-stop // 32) * 32

    def view(self, levels: int, *, of_key: bool) -> list[slice]:
        """What a place has seen after so many hashes, nearest byte first."""
        near = self.slots(of_key, of_key + SEEN)
        return [near, *(self.hash(level, of_key=of_key) for level in range(levels))]


def model(matcher: Matcher) -> Model:
    """Write all weights: four layers of slots, the hashes, and the match."""
    hash_dims = len(matcher.hashes[0])
    layout = Layout(matcher.codes.shape[1], len(matcher.hashes), hash_dims)
    values = value_codes()
    embedding = np.zeros((TOKENS, layout.width))
    embedding[:, layout.slots(0, 1)] = matcher.codes
    embedding[:, layout.value] = VALUE_SCALE * values
    readout = np.zeros((TOKENS, layout.width))
    # What is said has length one beside all that stands there already.
    readout[:, layout.said] = LOGIT * values * _rms(_energy(matcher) + 1, layout.width)
    return Model(
        embedding=embedding,
        layers=(
            *(_slot_layer(layout, 2**n) for n in range(4)),
            *(_hash_layer(layout, matcher, n) for n in range(layout.hashes)),
            _match_layer(layout, matcher),
        ),
        readout=readout,
        frequencies=np.array([*RULER, *[0.0] * (HEAD // 2 - len(RULER))]),
    )


def _slot_layer(layout: Layout, back: int) -> Layer:
    """Fetch the *back* slots that the token so many places back has filled."""
    known = layout.slots(0, back)
    carrier = orthonormal(known.stop)
    value = np.zeros((HEAD, layout.width))
    # Normalization has divided by this; what is copied must keep its length.
    value[:, known] = carrier * _rms(back + VALUE_SCALE**2, layout.width)
    output = np.zeros((layout.width, HEAD))
    output[layout.slots(back, 2 * back)] = carrier.T
    return _look_back(layout, back, value=value, output=output)


def _hash_layer(layout: Layout, matcher: Matcher, level: int) -> Layer:
    """Fetch two hashes of all that was seen, as a query and as a key would see it."""
    carrier = orthonormal(2 * layout.hash_dims)
    length = _rms(_energy(matcher, level), layout.width)
    value = np.zeros((HEAD, layout.width))
    output = np.zeros((layout.width, HEAD))
    for of_key in (False, True):
        part = carrier[:, layout.hash_dims * of_key :][:, : layout.hash_dims]
        seen = layout.view(level, of_key=of_key)
        _spread(value, seen, part @ matcher.hashes[level] * length)
        output[layout.hash(level, of_key=of_key)] = part.T
    return _look_back(layout, SLOTS * 2**level, value=value, output=output)


def _match_layer(layout: Layout, matcher: Matcher) -> Layer:
    """Attend to the places whose window before them is like the one that ends here."""
    length = _rms(_energy(matcher), layout.width)
    # The matcher states scores in nats; attention divides by the root of 64.
    sharp = length * math.sqrt(math.sqrt(HEAD))
    free = slice(2 * len(RULER), HEAD)
    query, key = np.zeros((2, HEAD, layout.width))
    levels = layout.hashes
    _spread(query[free], layout.view(levels, of_key=False), matcher.query * sharp)
    _spread(key[free], layout.view(levels, of_key=True), matcher.key * sharp)
    carrier = orthonormal(VALUE_DIMS)
    value = np.zeros((HEAD, layout.width))
    value[:, layout.value] = carrier * length
    output = np.zeros((layout.width, HEAD))
    output[layout.said] = carrier.T / VALUE_SCALE
    return Layer(
        query=query,
        query_bias=np.zeros(HEAD),
        key=key,
        key_bias=np.zeros(HEAD),
        value=value,
        output=output,
    )


def _look_back(layout: Layout, back: int, *, value: Array, output: Array) -> Layer:
    """
    A layer that attends to one distance, whatever the text.

    Query and key are the same for all tokens: biases. On each pair of the ruler the
    key points to angle 0 and the query to -(frequency x back); rotary position adds
    (frequency x position) to both, so they agree on all pairs *back* places apart.
    """
    # A pair contributes length**2, all pairs n of them, and attention divides.
    length = math.sqrt(LOOK_BACK_NATS * math.sqrt(HEAD) / len(RULER))
    query_bias, key_bias = np.zeros((2, HEAD))
    for pair, frequency in enumerate(RULER):
        # Rounded: the last digits of a cosine differ between C libraries.
        query_bias[2 * pair] = round(length * math.cos(frequency * back), 4)
        query_bias[2 * pair + 1] = round(-length * math.sin(frequency * back), 4)
        key_bias[2 * pair] = round(length, 4)
    return Layer(
        query=np.zeros((HEAD, layout.width)),
        query_bias=query_bias,
        key=np.zeros((HEAD, layout.width)),
        key_bias=key_bias,
        value=value,
        output=output,
    )


def _spread(target: Array, places: Sequence[slice], columns: Array) -> None:
    """Write consecutive *columns* to the *places* where their inputs stand."""
    start = 0
    for place in places:
        stop = start + place.stop - place.start
        target[:, place] = columns[:, start:stop]
        start = stop


def _energy(matcher: Matcher, hashes: int | None = None) -> float:
    """Squared length of a token's vector when so many hashes, or all, are filled."""
    # Exact for slots and value code, whose lengths are one and VALUE_SCALE.
    return SLOTS + VALUE_SCALE**2 + 2 * math.fsum(matcher.energies[:hashes])


def _rms(energy: float, width: int) -> float:
    """Root mean square of a vector's elements, by which normalization divides."""
    return math.sqrt(energy / width + EPSILON)


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


def logits(weights: Model, tokens: Sequence[int]) -> Array:
    """
    What llama.cpp computes from these weights, in a dozen lines.

    Args:
        weights: The model.
        tokens: The context, beginning with `BEGIN`; n of them take O(n**2) memory.

    Returns:
        Shape (n, 260): after each token, the logits of the next.
    """
    angles = np.arange(len(tokens))[:, None] * weights.frequencies
    future = np.triu(np.full((len(tokens), len(tokens)), -np.inf), k=1)
    stream = weights.embedding[list(tokens)]
    for layer in weights.layers:
        normal = _normalized(stream)
        query = _rotated(normal @ layer.query.T + layer.query_bias, angles)
        key = _rotated(normal @ layer.key.T + layer.key_bias, angles)
        scores = query @ key.T / math.sqrt(HEAD) + future
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        stream = stream + attention @ (normal @ layer.value.T) @ layer.output.T
    return np.asarray(_normalized(stream) @ weights.readout.T, np.float64)


def _normalized(stream: Array) -> Array:
    mean_square = np.mean(np.square(stream), axis=1, keepdims=True)
    return np.asarray(stream / np.sqrt(mean_square + EPSILON), np.float64)


def _rotated(heads: Array, angles: Array) -> Array:
    """Turn each pair of neighbouring dimensions by its token's angle."""
    turned = (heads[:, 0::2] + 1j * heads[:, 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=2).reshape(heads.shape)
