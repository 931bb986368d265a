"""Induction, computed with numpy alone: what the built-in model's weights do."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from codeneedle.corpora.random_bodies import Knobs, text_of
from codeneedle.models.nano.construction import (
    BEGIN,
    EPSILON,
    HEAD,
    LOOK_BACK_NATS,
    RULER,
    VALUE_DIMS,
    Array,
    Layer,
    Model,
    model,
    orthonormal,
    value_codes,
)
from codeneedle.models.nano.model import CONTEXT, trained_matcher

TEXT = text_of(Knobs(functions=2, value_length=6, name_length=5, seed=1009))


@pytest.fixture(scope="module")
def weights() -> Model:
    """The built-in model before it is rounded to 16 bits."""
    return model(trained_matcher())


def logits(weights: Model, tokens: Sequence[int]) -> Array:
    """
    What llama.cpp computes from these weights.

    Returns:
        Shape (n, 260): after each of the n tokens, the logits of the next.
    """
    angles = np.arange(len(tokens))[:, None] * weights.frequencies
    stream = weights.embedding[list(tokens)]
    for layer in weights.layers:
        stream = stream + attention(layer, normalized(stream), angles)
        stream = stream + feed_forward(layer, normalized(stream))
    return np.asarray(normalized(stream) @ weights.readout.T)


def attention(layer: Layer, stream: Array, angles: Array) -> Array:
    """What each token fetches from itself and those before it; shape as *stream*."""
    query = rotated(stream @ layer.query.T + layer.query_bias, angles)
    key = rotated(stream @ layer.key.T + layer.key_bias, angles)
    scores = query @ key.T / math.sqrt(HEAD)
    scores[np.triu_indices(len(scores), k=1)] = -np.inf
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    return np.asarray(share @ (stream @ layer.value.T) @ layer.output.T)


def feed_forward(layer: Layer, stream: Array) -> Array:
    """The gated product of the llama architecture; shape as *stream*."""
    both = stream @ layer.expand.T
    return np.asarray(both / (1 + np.exp(-both)) * both @ layer.shrink.T)


def normalized(stream: Array) -> Array:
    """Tokens divided by the root mean square of their elements."""
    mean_square = np.mean(np.square(stream), axis=1, keepdims=True)
    return np.asarray(stream / np.sqrt(mean_square + EPSILON))


def rotated(heads: Array, angles: Array) -> Array:
    """Each pair of neighbouring dimensions, turned by its token's angle."""
    turned = (heads[:, 0::2] + 1j * heads[:, 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=2).reshape(heads.shape)


def test_a_text_that_was_never_seen_is_copied_from_its_signature_on(weights):
    """Each byte of a body is the most probable one after those before it."""
    signature, _, rest = TEXT[TEXT.index("def ") :].partition("\n")
    body = rest[: rest.index("\n\n\n") + 1].encode()
    asked = f"{TEXT}\n\n# recall\n{signature}\n".encode()

    said = logits(weights, [BEGIN, *asked, *body])[len(asked) : -1].argmax(axis=1)

    assert body == bytes(said.tolist())


@pytest.mark.parametrize("same", [12, 28, 44])
def test_of_two_like_places_the_one_that_agrees_farther_back_is_continued(
    weights, same
):
    """Where the last bytes stand twice, those before them decide, up to 63 back."""
    letters = "".join(character for character in TEXT if character.isalnum())
    shared, one, two, between = (
        letters[start : start + length]
        for start, length in ((100, same), (200, 19), (219, 19), (238, 200))
    )
    # Not at the very start, where there is nothing to look back at.
    text = f"{between}{one}{shared}!{between}{two}{shared}?{between[::-1]}"

    said = [
        int(logits(weights, [BEGIN, *f"{text}{before}{shared}".encode()])[-1].argmax())
        for before in (one, two)
    ]

    assert "!?" == bytes(said).decode()


def test_a_look_back_finds_its_distance_at_any_position():
    """In the whole context no other distance comes within eight nats of the right."""
    distance = np.arange(1, CONTEXT)[:, None]

    rival = LOOK_BACK_NATS * np.cos(distance * np.array(RULER)).mean(axis=1).max()

    assert rival < LOOK_BACK_NATS - 8


def test_the_feed_forward_part_writes_down_squared_lengths(weights):
    """Of a random token it computes the sum of the squares that the key has."""
    chance = np.random.default_rng(5)
    token = chance.normal(size=(1, weights.embedding.shape[1]))
    layer = weights.layers[-2]
    keys = trained_matcher().key.shape[0]

    (written,) = feed_forward(layer, token)

    (place,) = np.flatnonzero(layer.shrink.any(axis=1))
    squares = np.square(token @ layer.expand[:keys].T).sum() * layer.shrink.max()
    assert pytest.approx(squares) == written[place]
    assert pytest.approx(squares) == written.sum()


def test_the_code_of_a_byte_stands_out_from_all_others():
    """Codes have length one; the products of two are at most a quarter."""
    codes = value_codes()[:256]

    products = codes @ codes.T

    assert [1.0] * 256 == products.diagonal().tolist()
    assert 0.25 == (products - np.eye(256)).max()


def test_special_tokens_are_never_said():
    """Whatever the output, some byte has a logit above theirs, which is zero."""
    codes = value_codes()

    assert not codes[256:].any()
    assert (-codes[:256]).tolist() == [
        *codes[128:256].tolist(),
        *codes[:128].tolist(),
    ]


@pytest.mark.parametrize("columns", [8, VALUE_DIMS, HEAD])
def test_carriers_are_orthonormal_to_the_last_bit(columns):
    """Their products are exactly one and zero, on any platform and in 16 bits."""
    carrier = orthonormal(columns)

    assert np.eye(columns).tolist() == (carrier.T @ carrier).tolist()
    assert carrier.tolist() == carrier.astype(np.float16).tolist()
