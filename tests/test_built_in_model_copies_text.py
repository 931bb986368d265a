"""The built-in model: an induction circuit, in a file of the same bytes everywhere."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_servers import made_launch

from codeneedle.cache_types import Pair
from codeneedle.corpora.languages.python import functions
from codeneedle.corpora.needles import NeedleFacts, choose_functions, written_needle
from codeneedle.corpora.random_bodies import Knobs, generate_text
from codeneedle.engines.llama_cpp.client import Client
from codeneedle.engines.llama_cpp.server import serving_llama
from codeneedle.engines.messages import Completion, Message
from codeneedle.errors import WeightsUnusable
from codeneedle.models import pretrained
from codeneedle.probes.recall.alignment import Mark, align_reply
from codeneedle.probes.recall.prompts import completion_prompt

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from built_in_model import (
    BEGIN,
    CONTEXT,
    EPSILON,
    HEAD,
    LOOK_BACK_NATS,
    RULER,
    VALUE_DIMS,
    Array,
    Layer,
    Model,
    construct,
    orthonormal,
    trained_matcher,
    value_codes,
    write_gguf,
)

TEXT = generate_text(Knobs(functions=2, value_length=6, name_length=5, seed=1009))
UNSEEN_SEED = 20260101
"""Not used for training or tuning."""


@pytest.fixture(scope="module")
def weights() -> Model:
    """The built-in model before it is rounded to 16 bits."""
    return construct(trained_matcher())


def logits(weights: Model, tokens: Sequence[int]) -> Array:
    """Logits of the next of n tokens, as llama.cpp computes them; shape (n, 260)."""
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
    signature, _, rest = TEXT[TEXT.index("def ") :].partition("\n")
    body = rest[: rest.index("\n\n\n") + 1].encode()
    asked = f"{TEXT}\n\n# recall\n{signature}\n".encode()

    said = logits(weights, [BEGIN, *asked, *body])[len(asked) : -1].argmax(axis=1)

    assert body == bytes(said.tolist())


@pytest.mark.parametrize("same", [12, 28, 44])
def test_of_two_like_places_the_one_that_agrees_farther_back_is_continued(
    weights, same
):
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
    """Codes have length one, the products of two are at most a quarter."""
    codes, special = np.split(value_codes(), [256])

    products = codes @ codes.T

    assert [1.0] * 256 == products.diagonal().tolist()
    assert 0.25 == (products - np.eye(256)).max()
    assert (-codes).tolist() == np.roll(codes, 128, axis=0).tolist()
    assert not special.any()


@pytest.mark.parametrize("columns", [8, VALUE_DIMS, HEAD])
def test_carriers_are_orthonormal_to_the_last_bit(columns):
    """Their products are exactly one and zero, on any platform and in 16 bits."""
    carrier = orthonormal(columns)

    assert np.eye(columns).tolist() == (carrier.T @ carrier).tolist()
    assert carrier.tolist() == carrier.astype(np.float16).tolist()


def test_the_script_makes_the_bytes_that_the_package_ships(tmp_path):
    write_gguf(tmp_path / "again.gguf")

    shipped = pretrained.checked_built_in_path()
    assert shipped.read_bytes() == (tmp_path / "again.gguf").read_bytes()


@pytest.mark.parametrize("data", [None, b"GGUF half of it"])
def test_an_installation_without_the_whole_file_is_named(tmp_path, monkeypatch, data):
    path = tmp_path / "needle-nano.gguf"
    if data is not None:
        path.write_bytes(data)
    monkeypatch.setattr(pretrained, "built_in_path", lambda: path)

    with pytest.raises(WeightsUnusable) as caught:
        pretrained.checked_built_in_path.__wrapped__()

    assert str(path) in str(caught.value)


@pytest.fixture(scope="module")
def client(
    llama_server: Path, nano: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """The built-in model behind a real server, with the most precise cache."""
    launch = made_launch(
        llama_server,
        nano,
        context=18432,
        pair=Pair("f16", "f16"),
        options={"--jinja", "--verbosity", "--fit", "--cache-ram"},
        threads=2,
        is_tiny=True,
    )
    log = tmp_path_factory.mktemp("nano") / "server.log"
    with serving_llama(launch, log=log) as served:
        yield served.client


def recalled(client: Client, corpus: str, needle: NeedleFacts) -> str:
    """What it writes behind the signature of *needle*: as much as is asked for."""
    question = Completion(
        prompt=completion_prompt(corpus, needle),
        max_tokens=len("\n".join(needle.lines)) + 1,
    )
    return client.complete(question).text


@pytest.mark.real
def test_sixteen_thousand_tokens_are_recalled_all_but_perfectly(client):
    # Writing costs 16 ms a token behind so many: short lines, half of each function.
    knobs = Knobs(functions=37, value_length=6, name_length=5, seed=UNSEEN_SEED)
    corpus = generate_text(knobs)
    found = functions(corpus)
    chosen = choose_functions(found, k=3, line_count=corpus.count("\n"))
    whole = [written_needle(function, depth=0.0) for function in chosen]
    asked = [replace(needle, lines=needle.lines[:10]) for needle in whole]

    matched = [
        align_reply(needle, recalled(client, corpus, needle)).matched_line_count
        for needle in asked
    ]

    assert 15_500 < len(corpus) < 17_000
    assert sum(matched) / len(matched) >= 9.5, matched


@pytest.mark.real
@pytest.mark.parametrize(("differ", "least", "most"), [(20, 0, 0), (2, 3, 8)])
def test_twins_break_it_where_they_share_its_window_and_nowhere_else(
    client, differ, least, most
):
    """After five like lines of 27 bytes, nothing within 63 bytes tells twins apart."""
    knobs = Knobs(
        functions=4,
        value_length=8,
        name_length=9,
        twins=4,
        differ=differ,
        seed=UNSEEN_SEED,
    )
    corpus = generate_text(knobs)
    needles = [written_needle(each, depth=0.0) for each in functions(corpus)]
    scores = [align_reply(each, recalled(client, corpus, each)) for each in needles]
    wrong = [
        row.produced
        for each in scores
        for row in each.rows
        if row.mark in {Mark.HALLUCINATED, Mark.OVERRUN}
    ]

    assert least <= len(wrong) <= most
    assert set(wrong) <= {line for needle in needles for line in needle.lines}


@pytest.mark.real
@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        (
            "a\n---\nb\n---\nSay `f(x):` in `20` lines.",
            "a\n---\nb\n\n# recall\nf(x):\n",
        ),
        (
            "a\n---\nThese:\n```python\ndef f(\n    x,\n):\n```\nof `it`.",
            "a\n\n# recall\ndef f(\n    x,\n):\n",
        ),
        ("a\n---\nNothing is quoted.", "a\n\n# recall\nNothing is quoted.\n"),
        ("hello `x`", "hello `x`"),
    ],
)
def test_what_a_question_quotes_is_recalled(client, message, rendered):
    assert rendered == client.render((Message("user", message),))
