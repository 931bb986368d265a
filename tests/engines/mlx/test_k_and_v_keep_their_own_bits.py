"""Caches of MLX with K and V quantized apart, alone and in a model."""

import pytest
from made_mlx import nano_folder

mx = pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from mlx_lm.models import base  # noqa: E402 - only where it is installed
from mlx_lm.models.cache import (  # noqa: E402
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from codeneedle.cache_types import Pair  # noqa: E402
from codeneedle.engines.mlx import cache as caches  # noqa: E402
from codeneedle.engines.mlx.cache import (  # noqa: E402
    PLAIN_BITS,
    Packing,
    SplitKVCache,
    attention,
    quantize_plain_cache,
)
from codeneedle.engines.mlx.model import Session  # noqa: E402
from codeneedle.engines.mlx.settings import MlxSettings  # noqa: E402
from codeneedle.engines.mlx.tokens import TextModel  # noqa: E402

pytestmark = pytest.mark.slow

HEAD = 64
TEXT = """\
def alpha(count):
    zebra = 'hjkqwz'
    return 93

def beta(value):
    quokka = 'plmokn'
    return 17

# recall
def beta(value):
"""
ANSWER = "    quokka = 'plmokn'\n"

PLAIN = Packing(PLAIN_BITS)
EIGHT = Packing(8)
FOUR = Packing(4)


def values(tokens, seed=0, heads=2):
    """Random K or V of *tokens* tokens."""
    return mx.random.normal((1, heads, tokens, HEAD), key=mx.random.key(seed))


def numbered(first, count):
    """K whose values are the numbers of the tokens, however they are packed."""
    numbers = mx.arange(first, first + count, dtype=mx.float32)
    return mx.broadcast_to(numbers[None, None, :, None], (1, 1, count, HEAD))


def unpacked(packed, packing):
    """The values that *packed* stands for."""
    if len(packed) == 1:
        return packed[0]
    return mx.dequantize(*packed, group_size=packing.group_size, bits=packing.bits)


def numbers_in(packed, packing):
    """The numbers that `numbered` put into K."""
    return [round(each) for each in unpacked(packed, packing)[0, 0, :, 0].tolist()]


def same(left, right):
    """Whether two nested tuples hold equal arrays and numbers."""
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(mx.array_equal(left, right))


def split(key=EIGHT, value=FOUR):
    """An empty cache that grows."""
    return SplitKVCache(KVCache(), key, value)


def bounded(max_size, keep=4, key=EIGHT, value=FOUR):
    """An empty cache of bounded size."""
    return SplitKVCache(RotatingKVCache(max_size, keep=keep), key, value)


@pytest.fixture(scope="module")
def folder():
    """The built-in model as a folder of MLX."""
    return nano_folder()


@pytest.fixture(scope="module")
def text_model(folder):
    return TextModel(folder)


def answer(folder, text_model, k, v, **settings):
    """What the built-in model repeats with these settings, and its caches."""
    settings = MlxSettings(compute="float32", **settings)
    session = Session.load(folder, Pair(k, v), settings)
    row = session.read_and_score_prompt(text_model.ids(TEXT))
    said = []
    while len(said) < len(ANSWER):
        said.append(int(row.argmax()))
        row = session.append_and_score_token(said[-1])
    return b"".join(map(text_model.piece, said)).decode(), session.caches


@pytest.mark.parametrize(
    ("k", "v", "kind"),
    [
        ("f16", "f16", KVCache),
        ("bf16", "bf16", KVCache),
        ("kv8", "kv8", QuantizedKVCache),
        ("kv4", "kv4", QuantizedKVCache),
        ("kv8", "kv4", SplitKVCache),
        ("kv4", "kv2", SplitKVCache),
        ("f16", "kv3", SplitKVCache),
        ("f16", "bf16", SplitKVCache),
        ("kv6", "kv5", SplitKVCache),
        ("kv5", "kv5", SplitKVCache),
    ],
)
def test_a_model_repeats_its_text_with_every_kind_of_cache(
    folder, text_model, k, v, kind
):
    """mlx-lm's own where K and V are alike, and the width divides a word."""
    said, held = answer(folder, text_model, k=k, v=v)

    assert ANSWER == said
    assert {kind} == {type(each) for each in held}


@pytest.mark.parametrize("pair", [("f16", "f16"), ("kv4", "kv4"), ("kv8", "kv4")])
def test_a_model_repeats_its_text_with_a_cache_of_bounded_size(
    folder, text_model, pair
):
    """As mlx-lm cannot: its rotating cache refuses to be quantized."""
    said, held = answer(folder, text_model, k=pair[0], v=pair[1], max_kv_size=128)

    assert ANSWER == said
    assert {(SplitKVCache, 128)} == {(type(each), each.max_size) for each in held}


def test_text_behind_a_bounded_cache_is_forgotten(folder, text_model):
    said, _ = answer(folder, text_model, k="kv8", v="kv8", max_kv_size=32)

    assert ANSWER != said


@pytest.mark.parametrize(("kind", "bits"), [("f16", 0), ("kv8", 8), ("kv4", 4)])
def test_alike_k_and_v_give_what_mlx_lm_gives(
    folder, text_model, monkeypatch, kind, bits
):
    settings = MlxSettings(compute="model")
    session = Session.load(folder, Pair(kind, kind), settings)
    session.model.set_dtype(mx.float16)
    prompt = text_model.ids(TEXT)
    found = session.read_and_score_prompt(prompt)
    monkeypatch.setattr(
        base, "quantized_scaled_dot_product_attention", caches._attention_of_mlx_lm
    )

    held = make_prompt_cache(session.model)
    if bits:
        held = [each.to_quantized(group_size=64, bits=bits) for each in held]
    session.model(mx.array([prompt[:-1]]), cache=held)
    logits = session.model(mx.array([prompt[-1:]]), cache=held)[0, -1]
    logits = logits.astype(mx.float32)

    assert (found == (logits - mx.logsumexp(logits))).all()


def test_tokens_stay_as_they_are_until_quantization_starts(folder, text_model):
    """``--quantized-kv-start`` beyond the text leaves plain caches in place."""
    _, before = answer(folder, text_model, k="kv4", v="kv4", quantized_kv_start=500)
    _, alike = answer(folder, text_model, k="kv4", v="kv4", quantized_kv_start=100)
    _, apart = answer(folder, text_model, k="kv8", v="kv4", quantized_kv_start=100)

    assert [{KVCache}, {QuantizedKVCache}, {SplitKVCache}] == [
        {type(each) for each in held} for held in (before, alike, apart)
    ]


@pytest.mark.parametrize("v", ["kv2", "kv4"])
def test_a_prompt_behind_a_long_one_starts_unquantized(folder, text_model, v):
    settings = MlxSettings(compute="float32", quantized_kv_start=60)
    session = Session.load(folder, Pair("kv2", v), settings)
    prompt = text_model.ids(TEXT)[:20] * 2

    session.read_and_score_prompt(text_model.ids(TEXT))
    again = session.read_and_score_prompt(prompt)
    session.clear_caches()

    assert (session.read_and_score_prompt(prompt) == again).all()


def test_a_mask_of_a_text_is_applied_to_all_its_heads():
    """Two of K and V, four of the queries, two texts at once."""
    cache = split()
    key, value, queries, noise = (
        mx.random.normal((2, count, length, width), key=mx.random.key(seed))
        for seed, (count, length, width) in enumerate(
            [(2, 10, HEAD), (2, 10, HEAD), (4, 3, HEAD), (1, 3, 10)]
        )
    )
    keys, held = cache.update_and_fetch(key, value)
    mask = noise > -0.5

    found = base.scaled_dot_product_attention(
        queries, keys, held, cache=cache, scale=0.1, mask=mask
    )

    right = mx.fast.scaled_dot_product_attention(
        queries, unpacked(keys, EIGHT), unpacked(held, FOUR), scale=0.1, mask=mask
    )
    assert mx.allclose(found, right, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equal_bits_give_what_mlx_lm_gives(bits):
    ours, theirs = split(Packing(bits), Packing(bits)), QuantizedKVCache(bits=bits)
    queries = values(5, seed=9, heads=4)
    packed = ours.update_and_fetch(values(5, 1), values(5, 2))
    others = theirs.update_and_fetch(values(5, 1), values(5, 2))

    expected = base.scaled_dot_product_attention(
        queries * 1.0, *others, cache=theirs, scale=0.125, mask="causal"
    )
    found = base.scaled_dot_product_attention(
        queries * 1.0, *packed, cache=ours, scale=0.125, mask="causal"
    )

    assert same(others, packed)
    assert mx.allclose(expected, found, atol=1e-6)


def test_attention_uses_the_bits_of_each_side():
    key, value = Packing(8, 64), Packing(3, 32)
    cache = split(key, value)
    queries = values(4, seed=9, heads=4)
    keys, kept = cache.update_and_fetch(values(4, 1), values(4, 2))

    expected = mx.fast.scaled_dot_product_attention(
        queries, unpacked(keys, key), unpacked(kept, value), scale=0.125, mask="causal"
    )
    found = attention(
        queries, keys, kept, 0.125, "causal", group_size=(64, 32), bits=(8, 3)
    )

    assert mx.allclose(expected, found, atol=1e-5)


def test_memory_is_what_the_bits_say():
    """By token and head: the packed values, a scale and a bias for each group."""
    cache = split(Packing(8, 64, mx.float16), Packing(4, 32, mx.float16))
    cache.update_and_fetch(values(10), values(10))

    assert 256 * 2 * ((64 + 4) + (32 + 2 * 4)) == cache.nbytes


def test_a_state_has_the_five_fields_of_mlx_lm_s():
    """K, V, offset, group sizes, bits; where K and V differ, the last two are pairs."""
    cache = split(Packing(8, 64), Packing(4, 32))
    keys, held = cache.update_and_fetch(values(7, 1), values(7, 2))

    found_keys, found_values, offset, group_size, bits = cache.state

    assert (7, (64, 32), (8, 4)) == (offset, group_size, bits)
    assert same(keys, [array[..., :7, :] for array in found_keys])
    assert same(held, [array[..., :7, :] for array in found_values])
    place = bounded(16, keep=4).state[2:]
    assert (0, 4, 16, 0, (64, 64), (8, 4)) == place


def test_trimming_drops_the_last_tokens():
    cache, fresh = split(), split()
    cache.update_and_fetch(values(20, 1), values(20, 2))

    assert cache.is_trimmable()
    assert 5 == cache.trim(5)
    found = cache.update_and_fetch(values(1, 3), values(1, 4))

    fresh.update_and_fetch(values(20, 1)[..., :15, :], values(20, 2)[..., :15, :])
    assert same(fresh.update_and_fetch(values(1, 3), values(1, 4)), found)
    assert 16 == cache.trim(99)


@pytest.mark.parametrize("key", [PLAIN, EIGHT, Packing(3), Packing(2)])
def test_a_hundred_steps_past_its_size_keep_the_first_and_the_last(key):
    """The first four tokens, and the latest of the others, in a ring."""
    cache = bounded(16, keep=4, key=key)
    cache.update_and_fetch(numbered(0, 10), numbered(0, 10))
    for at in range(10, 116):
        keys, _ = cache.update_and_fetch(numbered(at, 1), numbered(at, 1))

        oldest = max(4, at + 1 - 12)
        assert [*range(4), *range(oldest, at + 1)] == sorted(numbers_in(keys, key))
    assert 116 == cache.offset


@pytest.mark.parametrize("key", [PLAIN, EIGHT, FOUR])
def test_a_rotating_cache_holds_what_mlx_lm_s_holds(key):
    ours, theirs = bounded(16, keep=4, key=key), RotatingKVCache(16, keep=4)
    for seed, count in enumerate((10, *[1] * 110, 7, 1, 1, 40, *[1] * 30)):
        new = values(count, seed), values(count, 1000 + seed)
        packed, plain = ours.update_and_fetch(*new), theirs.update_and_fetch(*new)

        for packing, one, expected in zip((key, FOUR), packed, plain, strict=True):
            assert same(packing.stored_arrays(expected), one)


def test_several_tokens_at_once_see_the_first_ones_and_a_full_window():
    cache = bounded(8, keep=2)
    for at in range(20):
        cache.update_and_fetch(numbered(at, 1), numbered(at, 1))
    mask = cache.make_mask(3, return_array=True)
    keys, _ = cache.update_and_fetch(numbered(20, 3), numbered(20, 3))

    seen = [
        [at for at, shown in zip(numbers_in(keys, EIGHT), row, strict=True) if shown]
        for row in mask.tolist()
    ]
    assert [[0, 1], [0, 1], [0, 1]] == [row[:2] for row in seen]
    assert [20, 21, 22] == [row[-1] for row in seen]
    assert [8, 9, 10] == [len(row) for row in seen]


def test_a_bounded_cache_is_trimmed_until_it_is_full():
    cache = bounded(16)
    cache.update_and_fetch(numbered(0, 10), numbered(0, 10))

    assert 3 == cache.trim(3)
    keys, _ = cache.update_and_fetch(numbered(50, 1), numbered(50, 1))
    assert [*range(7), 50] == numbers_in(keys, EIGHT)
    for at in range(20):
        cache.update_and_fetch(numbered(at, 1), numbered(at, 1))
    assert not cache.is_trimmable()


@pytest.mark.parametrize("count", [7, 16, 40])
def test_a_plain_rotating_cache_can_be_quantized_after_it_has_wrapped(count):
    plain = RotatingKVCache(16, keep=4)
    for at in range(count):
        plain.update_and_fetch(values(1, at), values(1, 100 + at))

    made = quantize_plain_cache(plain, EIGHT, FOUR)

    assert plain.offset == made.offset
    more = values(1, 7), values(1, 8)
    packed, expected = made.update_and_fetch(*more), plain.update_and_fetch(*more)
    assert same(
        (EIGHT.stored_arrays(expected[0]), FOUR.stored_arrays(expected[1])), packed
    )


@pytest.mark.parametrize("plain", [KVCache, lambda: RotatingKVCache(16, keep=4)])
@pytest.mark.parametrize("key", [FOUR, EIGHT])
def test_converting_again_changes_nothing(plain, key):
    made = quantize_plain_cache(plain(), key, FOUR)
    made.update_and_fetch(values(3, 1), values(3, 2))

    assert quantize_plain_cache(made, Packing(2), Packing(2)) is made


def test_a_window_of_the_model_s_own_is_left_to_mlx_lm_until_it_is_quantized():
    """Layers with a window keep no first tokens, so mlx-lm's mask is right for them."""
    windows = [RotatingKVCache(16, keep=0) for _ in range(3)]
    pairs = [(PLAIN, PLAIN), (EIGHT, EIGHT), (PLAIN, FOUR)]

    assert [RotatingKVCache, SplitKVCache, SplitKVCache] == [
        type(quantize_plain_cache(window, *pair))
        for window, pair in zip(windows, pairs, strict=True)
    ]
