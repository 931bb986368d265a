"""Caches of MLX with K and V quantized apart, alone and in a model."""

import pytest

mx = pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from mlx_lm.models import base  # noqa: E402 - only where it is installed
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache  # noqa: E402

from codeneedle.engines.mlx.cache import (  # noqa: E402
    Packing,
    RotatingQuantizedKVCache,
    SplitQuantizedKVCache,
    attention,
    quantized,
)
from codeneedle.engines.mlx.convert import converted  # noqa: E402
from codeneedle.engines.mlx.model import Session, Settings  # noqa: E402
from codeneedle.engines.mlx.tokens import read_text_model  # noqa: E402
from codeneedle.models.weights import read_header  # noqa: E402

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

EXACT = (16, 16)
"""Bits that change nothing."""


def values(tokens, seed=0, heads=2):
    """Random K or V of *tokens* tokens."""
    return mx.random.normal((1, heads, tokens, HEAD), key=mx.random.key(seed))


def numbered(first, count):
    """K whose values are the numbers of the tokens."""
    numbers = mx.arange(first, first + count, dtype=mx.float32)
    return mx.broadcast_to(numbers[None, None, :, None], (1, 1, count, HEAD))


def numbers_in(packed):
    """The numbers that `numbered` put into plain K."""
    return [round(each) for each in packed[0][0, 0, :, 0].tolist()]


def same(left, right):
    """Whether two nested tuples hold equal arrays."""
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(mx.array_equal(left, right))


@pytest.fixture(scope="module")
def folder(nano):
    """The built-in model as a folder of MLX."""
    return converted(read_header(nano))


@pytest.fixture(scope="module")
def text_model(folder):
    return read_text_model(folder)


def answer(folder, text_model, **settings):
    """What the built-in model repeats with these settings, and its caches."""
    session = Session.load(folder, Settings(compute="float32", **settings))
    row = session.read(text_model.ids(TEXT))
    said = []
    while len(said) < len(ANSWER):
        said.append(int(row.argmax()))
        row = session.step(said[-1])
    return b"".join(map(text_model.piece, said)).decode(), session.caches


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("bf16", "bf16"),
        ("kv4", "kv4"),
        ("kv8", "kv8"),
        ("kv8", "kv4"),
        ("kv4", "kv2"),
        ("f16", "kv3"),
        ("kv6", "kv5"),
    ],
)
def test_a_model_repeats_its_text_with_every_kind_of_cache(folder, text_model, k, v):
    """
    Plain, quantized alike, and quantized apart; types of odd widths, too.
    """
    said, caches = answer(folder, text_model, k=k, v=v)

    assert ANSWER == said
    assert {SplitQuantizedKVCache} == {type(each) for each in caches}


@pytest.mark.parametrize("pair", [("f16", "f16"), ("kv4", "kv4"), ("kv8", "kv4")])
def test_a_model_repeats_its_text_with_a_cache_of_bounded_size(
    folder, text_model, pair
):
    """
    As mlx-lm cannot: its rotating cache refuses to be quantized.
    """
    said, caches = answer(folder, text_model, k=pair[0], v=pair[1], max_kv_size=128)

    assert ANSWER == said
    assert {RotatingQuantizedKVCache} == {type(each) for each in caches}
    assert {128} == {each.max_size for each in caches}


def test_text_behind_a_bounded_cache_is_forgotten(folder, text_model):
    """
    The bound binds: with fewer tokens than lie between, the answer is lost.
    """
    said, _ = answer(folder, text_model, k="kv8", v="kv8", max_kv_size=32)

    assert ANSWER != said


def test_tokens_stay_as_they_are_until_quantization_starts(folder, text_model):
    """
    ``--quantized-kv-start`` beyond the text leaves mlx-lm's own caches in place.
    """
    _, before = answer(folder, text_model, k="kv4", v="kv4", quantized_kv_start=500)
    _, after = answer(folder, text_model, k="kv4", v="kv4", quantized_kv_start=100)

    assert {KVCache} == {type(each) for each in before}
    assert {SplitQuantizedKVCache} == {type(each) for each in after}


def test_a_prompt_behind_a_long_one_starts_unquantized(folder, text_model):
    """
    Its first tokens are not added to caches that the other one had quantized.
    """
    settings = Settings(compute="float32", k="kv2", v="kv2", quantized_kv_start=60)
    session = Session.load(folder, settings)
    prompt = text_model.ids(TEXT)[:40]
    fresh = session.read(prompt)

    session.read(text_model.ids(TEXT))
    again = session.read(prompt[:20] + prompt[:20])
    session.clear()

    assert (session.read(prompt[:20] + prompt[:20]) == again).all()
    assert fresh.shape == again.shape


@pytest.mark.parametrize("heads", [1, 4])
def test_a_mask_of_heads_is_applied_to_its_heads(heads):
    """
    Two of K and V, four of the queries, two texts at once.
    """
    cache = SplitQuantizedKVCache(64, (8, 4))
    key, value, queries, noise = (
        mx.random.normal((2, count, length, width), key=mx.random.key(seed))
        for seed, (count, length, width) in enumerate(
            [(2, 10, HEAD), (2, 10, HEAD), (4, 3, HEAD), (heads, 3, 10)]
        )
    )
    keys, held = cache.update_and_fetch(key, value)
    mask = noise > -0.5

    found = attention(queries, keys, held, cache=cache, scale=0.1, mask=mask)

    unpacked = cache.key_packing.unpack(keys), cache.value_packing.unpack(held)
    right = mx.fast.scaled_dot_product_attention(
        queries, *unpacked, scale=0.1, mask=mask
    )
    assert mx.allclose(found, right, atol=1e-4)


def test_a_state_does_not_change_with_what_is_written_later():
    """
    A full cache of bounded size writes over its oldest token.
    """
    cache = RotatingQuantizedKVCache(8, bits=EXACT)
    for at in range(8):
        cache.update_and_fetch(numbered(at, 1), numbered(at, 1))
    kept = RotatingQuantizedKVCache.from_state(cache.state, cache.meta_state)

    cache.update_and_fetch(numbered(99, 1), numbered(99, 1))

    assert list(range(8)) == numbers_in(kept.keys)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equal_bits_give_what_mlx_lm_gives(bits):
    """
    Packed values and attention are mlx-lm's own, where that can do it.
    """
    ours, theirs = SplitQuantizedKVCache(bits=bits), QuantizedKVCache(bits=bits)
    queries = values(5, seed=9, heads=4)
    packed = ours.update_and_fetch(values(5, 1), values(5, 2))
    others = theirs.update_and_fetch(values(5, 1), values(5, 2))

    expected = base.quantized_scaled_dot_product_attention(
        queries * 1.0, *others, scale=0.125, mask="causal", bits=bits
    )
    found = attention(queries, *packed, cache=ours, scale=0.125, mask="causal")

    assert same(others, packed)
    assert mx.allclose(expected, found, atol=1e-6)


def test_attention_uses_the_bits_of_each_side():
    """
    With different bits, it is attention on what each side has kept.
    """
    cache = SplitQuantizedKVCache(bits=(8, 3), group_size=(64, 32))
    queries = values(4, seed=9, heads=4)
    keys, kept = cache.update_and_fetch(values(4, 1), values(4, 2))

    expected = mx.fast.scaled_dot_product_attention(
        queries,
        Packing(8, 64).unpack(keys),
        Packing(3, 32).unpack(kept),
        scale=0.125,
        mask="causal",
    )
    found = attention(queries, keys, kept, cache=cache, scale=0.125, mask="causal")

    assert mx.allclose(expected, found, atol=1e-5)


def test_memory_is_what_the_bits_say():
    """
    By token and head: the packed values, and a scale and a bias for each group.
    """
    cache = SplitQuantizedKVCache(bits=(8, 4), group_size=(64, 32))
    cache.update_and_fetch(values(10).astype(mx.float16), values(10).astype(mx.float16))

    assert (2 * (64 + 4), 2 * (32 + 2 * 4)) == cache.bytes_per_token()
    assert 256 * sum(cache.bytes_per_token()) == cache.nbytes


def test_old_states_of_three_fields_are_read():
    """
    mlx-lm 0.31 has one group size and one number of bits; 0.32 has all in the state.
    """
    cache = QuantizedKVCache(group_size=32, bits=4)
    packed = cache.update_and_fetch(values(7, 1), values(7, 2))

    old = SplitQuantizedKVCache.from_state(packed, ("7", "32", "4"))
    newer = SplitQuantizedKVCache.from_state((*packed, 7, 32, 4))

    for each in (old, newer):
        assert (7, 4, 32) == (each.offset, each.bits, each.group_size)
        assert same(packed, each.state)


@pytest.mark.parametrize("bits", [4, (8, 4), (16, 4)])
def test_a_state_survives_a_round_trip(bits, tmp_path):
    """
    Through a file, too; what is appended afterwards is the same.
    """
    cache = SplitQuantizedKVCache(bits=bits, group_size=(64, 32))
    cache.update_and_fetch(values(300, 1), values(300, 2))
    arrays = {
        f"{side}.{at}": array
        for side, packed in zip("kv", cache.state, strict=True)
        for at, array in enumerate(packed)
    }
    file = str(tmp_path / "state.safetensors")
    mx.save_safetensors(file, arrays)
    read = mx.load(file)
    state = [[read[name] for name in sorted(read) if name[0] == side] for side in "kv"]

    again = SplitQuantizedKVCache.from_state(state, cache.meta_state)

    assert cache.meta_state == again.meta_state
    assert same(cache.state, again.state)
    more = values(1, 3), values(1, 4)
    assert same(cache.update_and_fetch(*more), again.update_and_fetch(*more))


def test_trimming_drops_the_last_tokens():
    """
    What is written behind them takes their place.
    """
    cache = SplitQuantizedKVCache(bits=(8, 4))
    cache.update_and_fetch(values(20, 1), values(20, 2))

    assert cache.is_trimmable()
    assert 5 == cache.trim(5)
    found = cache.update_and_fetch(values(1, 3), values(1, 4))

    fresh = SplitQuantizedKVCache(bits=(8, 4))
    fresh.update_and_fetch(values(20, 1)[..., :15, :], values(20, 2)[..., :15, :])
    assert same(fresh.update_and_fetch(values(1, 3), values(1, 4)), found)
    assert 16 == cache.trim(99)


def test_a_hundred_steps_past_its_size_keep_the_first_and_the_last():
    """
    The first four tokens, and the latest of the others, in a ring.
    """
    cache = RotatingQuantizedKVCache(16, keep=4, bits=EXACT)
    cache.update_and_fetch(numbered(0, 10), numbered(0, 10))
    for at in range(10, 116):
        keys, _ = cache.update_and_fetch(numbered(at, 1), numbered(at, 1))

        oldest = max(4, at + 1 - 12)
        expected = [*range(min(4, at + 1)), *range(oldest, at + 1)]
        assert expected == sorted(numbers_in(keys))
        assert expected == numbers_in(cache.in_order()[0])
    assert (116, 16) == (cache.offset, cache.size())


@pytest.mark.parametrize("bits", [8, (8, 4)])
def test_a_rotating_cache_holds_what_mlx_lm_s_holds(bits):
    """
    Of prompts, single tokens and prompts again, at the same places.
    """
    ours = RotatingQuantizedKVCache(16, keep=4, bits=bits)
    theirs = RotatingKVCache(16, keep=4)
    for seed, count in enumerate((10, *[1] * 20, 7, 1, 1, 40, *[1] * 30)):
        new = values(count, seed), values(count, 100 + seed)
        packed, plain = ours.update_and_fetch(*new), theirs.update_and_fetch(*new)

        packing = (ours.key_packing, ours.value_packing)
        for each, one, expected in zip(packing, packed, plain, strict=True):
            assert same(each.pack(expected), one)


def test_several_tokens_at_once_see_the_first_ones_and_a_full_window():
    """
    Behind a wrapped cache, the mask shows each its own window and what is kept.
    """
    cache = RotatingQuantizedKVCache(8, keep=2, bits=EXACT)
    for at in range(20):
        cache.update_and_fetch(numbered(at, 1), numbered(at, 1))
    mask = cache.make_mask(3, return_array=True)
    keys, _ = cache.update_and_fetch(numbered(20, 3), numbered(20, 3))

    seen = [
        [number for number, shown in zip(numbers_in(keys), row, strict=True) if shown]
        for row in mask.tolist()
    ]
    assert {0, 1} == set(seen[-1][:2])
    assert [22, 21, 20] == [row[-1] for row in reversed(seen)]
    assert all(len(row) >= 8 for row in seen)


def test_a_bounded_cache_survives_a_round_trip_after_it_has_wrapped():
    """
    Keep, size, offset and place are in its meta state.
    """
    cache = RotatingQuantizedKVCache(16, keep=4, bits=(8, 4))
    for at in range(40):
        cache.update_and_fetch(values(1, at), values(1, 100 + at))

    again = RotatingQuantizedKVCache.from_state(cache.state, cache.meta_state)

    assert cache.meta_state == again.meta_state
    more = values(1, 7), values(1, 8)
    assert same(cache.update_and_fetch(*more), again.update_and_fetch(*more))


def test_a_bounded_cache_is_trimmed_until_it_is_full():
    """
    Afterwards, what the last tokens have overwritten is gone.
    """
    cache = RotatingQuantizedKVCache(16, keep=4, bits=EXACT)
    cache.update_and_fetch(numbered(0, 10), numbered(0, 10))

    assert 3 == cache.trim(3)
    keys, _ = cache.update_and_fetch(numbered(50, 1), numbered(50, 1))
    assert [*range(7), 50] == numbers_in(keys)
    for at in range(20):
        cache.update_and_fetch(numbered(at, 1), numbered(at, 1))
    assert not cache.is_trimmable()
    assert 0 == cache.trim(1)


@pytest.mark.parametrize("count", [7, 16, 40])
def test_a_plain_rotating_cache_can_be_quantized_after_it_has_wrapped(count):
    """
    Offset and place stay as they are, and the next token goes where it would have gone.
    """
    plain = RotatingKVCache(16, keep=4)
    for at in range(count):
        plain.update_and_fetch(values(1, at), values(1, 100 + at))
    key, value = Packing(8), Packing(4)

    made = quantized(plain, key, value)

    assert (plain.offset, plain._idx) == (made.offset, made._next)
    more = values(1, 7), values(1, 8)
    packed, expected = made.update_and_fetch(*more), plain.update_and_fetch(*more)
    assert same((key.pack(expected[0]), value.pack(expected[1])), packed)


def test_converting_again_changes_nothing():
    """
    A quantized cache is its own conversion, by either way.
    """
    grown = quantized(KVCache(), Packing(8), Packing(4))
    bounded = quantized(RotatingKVCache(16, keep=4), Packing(8), Packing(4))
    for made in (grown, bounded):
        made.update_and_fetch(values(3, 1), values(3, 2))

        assert quantized(made, Packing(2), Packing(2)) is made
        assert made.to_quantized(group_size=32, bits=2) is made
        assert (8, 4) == made.bits
