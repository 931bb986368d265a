"""
How a transformer copies: every weight of the built-in model, and why it is there.

It continues a text that it has never seen by *induction*: it finds the place
earlier in its context where the last bytes were the same as now, and says the byte
that followed there. That takes four steps:

1. **Look back.** A token knows itself alone. Layer n lets it attend to the token
   2**n places before it and note down what that one knows, so that the known
   window doubles: 1, 2, 4, 8, 16 bytes in four layers. These are kept one by one,
   a small code in a *slot* each. Beyond 16 there is no room for slots: further
   layers double on, but write down *hashes* of a window instead of its bytes.
2. **Weigh.** A key that happens to be long would look like everything. So the one
   feed-forward layer that is used computes each key's squared length.
3. **Match.** In the last layer the query q is the window that ends *here*, the key
   k of an earlier place the window that ends one byte *before it*. Attention goes
   by q.k - |k|**2 / 2, which is largest where the distance |q - k| is least: where
   the successor of this window stands.
4. **Say it.** The value is the byte at that place; the output matrix reads it.

How a head knows distance but can also ignore it: rotary position turns each pair
of a head's dimensions by (position x frequency). Eight pairs get frequencies of
our choice; together they are the *ruler*, which looking back uses alone. All
others get frequency zero, so matching works at any distance.

All numbers come from roots, cosines and small integers, but for the `Matcher`.
"""

import math
from collections.abc import Sequence

import numpy as np

from codeneedle.anatomy import (
    FEED_FORWARD,
    HEAD,
    SLOTS,
    TOKENS,
    VALUE_DIMS,
    Array,
    Layer,
    Layout,
    Matcher,
    Model,
    orthonormal,
    value_codes,
)

EPSILON = 1e-5
"""Keeps root-mean-square normalization away from zero."""

RULER = (2.8459, 2.3995, 1.0556, 0.6331, 0.196, 0.0521, 0.001432, 0.0012675)
"""
Frequencies of the ruler, in radians per token.

Found by random search: the mean of their cosines is 1 at distance zero and at most
0.83 at any other below 39,000 tokens, 0.88 below 65,536.
"""

LOOK_BACK_NATS = 72.0
"""
Attention score of the place that a look-back is after.

Its rivals stay 0.12 of that, 8.6 nats, below; quantized keys shift scores by one.
"""

VALUE_SCALE = 32.0
"""Length of a value code: a constant share of every token, whatever its text."""

SQUARE_SCALE = 1 / 64
"""Keeps the squared length of a key about as small as what stands beside it."""

QUERY_OF_SQUARE = 16.0
"""Constant in each query that meets the squared length: keeps the key's part small."""

LOGIT = 20.0
"""Logit of a byte that has all the attention; any other has at most a quarter."""


def model(matcher: Matcher) -> Model:
    """Write all weights: four layers of slots, the hashes, and the match."""
    layout = Layout(matcher.codes.shape[1], len(matcher.hashes), len(matcher.hashes[0]))
    values = value_codes()
    embedding, readout = np.zeros((2, TOKENS, layout.width))
    embedding[:, layout.slots(0, 1)] = matcher.codes
    embedding[:, layout.value] = VALUE_SCALE * values
    # What is said has length one beside all that stands there already.
    length = _rms(_energy(matcher, weighed=True) + 1, layout.width)
    readout[:, layout.said] = LOGIT * length * values
    layers = [
        *(_slot_layer(layout, 2**n) for n in range(4)),
        *(_hash_layer(layout, matcher, n) for n in range(layout.hashes)),
        _match_layer(layout, matcher),
    ]
    _weigh_keys(layers[-2], layout, matcher)
    return Model(
        embedding=embedding,
        layers=tuple(layers),
        readout=readout,
        frequencies=np.array([*RULER, *[0.0] * (HEAD // 2 - len(RULER))]),
    )


def _slot_layer(layout: Layout, back: int) -> Layer:
    """Fetch the *back* slots that the token so many places back has filled."""
    layer = _look_back(layout, back)
    known = layout.slots(0, back)
    carrier = orthonormal(known.stop)
    # Normalization has divided by this; what is copied must keep its length.
    layer.value[:, known] = carrier * _rms(back + VALUE_SCALE**2, layout.width)
    layer.output[layout.slots(back, 2 * back)] = carrier.T
    return layer


def _hash_layer(layout: Layout, matcher: Matcher, level: int) -> Layer:
    """Fetch two hashes of all that was seen, as a query and as a key would see it."""
    layer = _look_back(layout, SLOTS * 2**level)
    carrier = orthonormal(2 * layout.hash_dims)
    length = _rms(_energy(matcher, level), layout.width)
    for of_key in (False, True):
        part = carrier[:, layout.hash_dims * of_key :][:, : layout.hash_dims]
        seen = layout.view(level, of_key=of_key)
        _spread(layer.value, seen, part @ matcher.hashes[level] * length)
        layer.output[layout.hash(level, of_key=of_key)] = part.T
    return layer


def _look_back(layout: Layout, back: int) -> Layer:
    """
    A layer that attends to one distance, whatever the text; what it copies is blank.

    Query and key are the same for all tokens: biases. On each pair of the ruler the
    key points to angle 0 and the query to -(frequency x back); rotary position adds
    (frequency x position) to both, so they agree on all pairs *back* places apart.
    """
    layer = _blank(layout)
    # A pair contributes length**2, all pairs n of them, and attention divides.
    length = math.sqrt(LOOK_BACK_NATS * math.sqrt(HEAD) / len(RULER))
    for pair, frequency in enumerate(RULER):
        angle = -frequency * back
        # Rounded: the last digits of a cosine differ between C libraries.
        layer.query_bias[2 * pair] = round(length * math.cos(angle), 4)
        layer.query_bias[2 * pair + 1] = round(length * math.sin(angle), 4)
        layer.key_bias[2 * pair] = round(length, 4)
    return layer


def _weigh_keys(layer: Layer, layout: Layout, matcher: Matcher) -> None:
    """
    Let the feed-forward part of *layer* write down each key's squared length.

    Its product is silu(a) b, with a and b linear in the input. With a = b = u in one
    half and a = b = -u in the other, each square is whole, because the sigmoids of u
    and -u add up to one: silu(u) u + silu(-u) (-u) = u**2.
    """
    key = matcher.key * _rms(_energy(matcher), layout.width)
    view = layout.view(layout.hashes, of_key=True)
    _spread(layer.expand[: len(key)], view, key)
    _spread(layer.expand[len(key) : 2 * len(key)], view, -key)
    layer.shrink[layout.square, : 2 * len(key)] = SQUARE_SCALE


def _match_layer(layout: Layout, matcher: Matcher) -> Layer:
    """Attend to the places whose window before them is like the one that ends here."""
    layer = _blank(layout)
    length = _rms(_energy(matcher, weighed=True), layout.width)
    # The matcher states scores in nats; attention divides by the root of 64.
    sharp = length * math.sqrt(math.sqrt(HEAD))
    free = slice(2 * len(RULER), HEAD - 1)
    query_view = layout.view(layout.hashes, of_key=False)
    key_view = layout.view(layout.hashes, of_key=True)
    _spread(layer.query[free], query_view, matcher.query * sharp)
    _spread(layer.key[free], key_view, matcher.key * sharp)
    # The last dimension subtracts half the squared length, less its mean: softmax
    # does not see what all keys have in common, and small numbers quantize better.
    half = 0.5 * math.sqrt(HEAD) / QUERY_OF_SQUARE
    layer.query_bias[-1] = QUERY_OF_SQUARE
    layer.key_bias[-1] = half * matcher.key_energy
    layer.key[-1, layout.square] = -half / SQUARE_SCALE * length
    carrier = orthonormal(VALUE_DIMS)
    layer.value[:, layout.value] = carrier * length
    layer.output[layout.said] = carrier.T / VALUE_SCALE
    return layer


def _blank(layout: Layout) -> Layer:
    """A layer that does nothing yet; its arrays are there to be written."""
    width = layout.width
    return Layer(
        query=np.zeros((HEAD, width)),
        query_bias=np.zeros(HEAD),
        key=np.zeros((HEAD, width)),
        key_bias=np.zeros(HEAD),
        value=np.zeros((HEAD, width)),
        output=np.zeros((width, HEAD)),
        expand=np.zeros((FEED_FORWARD, width)),
        shrink=np.zeros((width, FEED_FORWARD)),
    )


def _spread(target: Array, places: Sequence[slice], columns: Array) -> None:
    """Add consecutive *columns* at the *places* where their inputs stand."""
    start = 0
    for place in places:
        stop = start + place.stop - place.start
        target[:, place] += columns[:, start:stop]
        start = stop


def _energy(
    matcher: Matcher, hashes: int | None = None, *, weighed: bool = False
) -> float:
    """Squared length of a token's vector when so many hashes, or all, are filled."""
    # Exact for slots and value code, whose lengths are one and VALUE_SCALE.
    energy = SLOTS + VALUE_SCALE**2 + 2 * math.fsum(matcher.energies[:hashes])
    return energy + (SQUARE_SCALE * matcher.key_energy) ** 2 * weighed


def _rms(energy: float, width: int) -> float:
    """Root mean square of a vector's elements, by which normalization divides."""
    return math.sqrt(energy / width + EPSILON)
