"""A session reads what is new, and tells its caches and memory."""

import pytest
from gguf_to_mlx import converted
from made_mlx import nano_folder

mx = pytest.importorskip(
    "mlx.core", reason="MLX is not installed: pip install 'codeneedle[mlx]'"
)
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from codeneedle.cache_types import Pair  # noqa: E402
from codeneedle.engines.mlx import model  # noqa: E402 - only where it is installed
from codeneedle.engines.mlx.model import Session, measure_speeds  # noqa: E402
from codeneedle.engines.mlx.settings import MlxSettings  # noqa: E402
from codeneedle.engines.mlx.tokens import TextModel  # noqa: E402
from codeneedle.models.weights import read_weights_from_headers  # noqa: E402

pytestmark = pytest.mark.slow

HEAD = 64
PROMPT = [1 + at % 200 for at in range(40)]


@pytest.fixture(scope="module")
def folder():
    """The built-in model as a folder of MLX."""
    return nano_folder()


def loaded(folder, k="kv8", v="kv4", **settings):
    settings = MlxSettings(compute="float32", **settings)
    return Session.load(folder, Pair(k, v), settings)


@pytest.mark.parametrize(
    ("k", "v", "kind", "sizes"),
    [
        ("f16", "f16", "KVCache", (2 * HEAD, 2 * HEAD)),
        ("kv8", "kv8", "QuantizedKVCache", (HEAD + 4, HEAD + 4)),
        ("kv8", "kv3", "SplitKVCache", (HEAD + 4, 24 + 4)),
        ("bf16", "kv2", "SplitKVCache", (2 * HEAD, 16 + 4)),
        ("kv6", "kv6", "SplitKVCache", (48 + 4, 48 + 4)),
    ],
)
def test_types_and_memory_are_read_from_the_arrays(folder, k, v, kind, sizes):
    """Bytes by token: 16 bits a value, or the bits, and two scales of 16 for 64."""
    found = loaded(folder, k, v).clear_and_inspect_caches()

    groups = tuple(64 if each.startswith("kv") else 0 for each in (k, v))
    for number, layer in enumerate(found):
        assert (number, kind, k, v) == (layer.layer, layer.class_name, layer.k, layer.v)
        assert sizes == (layer.k_bytes_per_token, layer.v_bytes_per_token)
        assert groups == (layer.k_group_size, layer.v_group_size)
        assert None is layer.tokens


def test_groups_of_k_and_of_v_are_read_from_the_arrays(folder):
    first = loaded(
        folder, "kv4", "kv4", group_size=(64, 32)
    ).clear_and_inspect_caches()[0]

    assert ("SplitKVCache", 64, 32) == (
        first.class_name,
        first.k_group_size,
        first.v_group_size,
    )
    assert (36, 40) == (first.k_bytes_per_token, first.v_bytes_per_token)


def test_what_is_quantized_later_is_reported_beforehand(folder):
    """So that a cell is verified before anything is measured."""
    session = loaded(folder, "kv4", "kv4", quantized_kv_start=1000, max_kv_size=128)

    first = session.clear_and_inspect_caches()[0]

    assert ("kv4", "kv4", 128) == (first.k, first.v, first.tokens)
    assert [] == session.tokens


def test_only_what_differs_from_the_prompt_before_is_read_again(folder):
    session = loaded(folder)
    fresh = session.read_and_score_prompt([*PROMPT, 7])
    session.read_and_score_prompt([*PROMPT, 8, 9])

    again = session.read_and_score_prompt([*PROMPT, 7])

    assert len(PROMPT) == session.reused
    assert (fresh == again).all()


def test_scored_tokens_have_the_probabilities_of_written_ones(folder):
    session = loaded(folder, max_kv_size=24)
    row, written = session.read_and_score_prompt(PROMPT), []
    for token in (5, 6, 7):
        written.append(float(row[token]))
        row = session.append_and_score_token(token)
    session.clear_caches()

    rows = session.score(PROMPT, [5, 6, 7])

    together = [float(row[token]) for row, token in zip(rows, (5, 6, 7), strict=True)]
    assert pytest.approx(written, abs=0.05) == together


@pytest.mark.real
def test_a_language_model_answers_with_every_kind_of_cache(smollm2):
    """Of 24 tokens, too, which is less than the question and its answer have."""
    folder = converted(read_weights_from_headers(smollm2))
    session, text = loaded(folder), TextModel(folder)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = text.ids(text.render(messages, {}))
    answers, kinds = set(), []
    for k, v, size in (
        ("f16", "f16", None),
        ("kv8", "kv8", None),
        ("kv8", "kv4", 24),
    ):
        session.pair = Pair(k, v)
        session.settings = MlxSettings(compute="float32", max_kv_size=size)
        kinds.append(session.clear_and_inspect_caches()[0].class_name)
        row, written = session.read_and_score_prompt(prompt), []
        while (token := int(row.argmax())) not in text.ends and len(written) < 12:
            written.append(token)
            row = session.append_and_score_token(token)
        answers.add(b"".join(map(text.piece, written)))

    assert {b"The capital of France is Paris."} == answers
    assert ["KVCache", "QuantizedKVCache", "SplitKVCache"] == kinds
    assert len(prompt) > 24


class Script:
    """A session that notes what happens to it."""

    vocabulary = 10

    def __init__(self):
        self.tokens, self.events = [], []

    def append_to_caches(self, tokens):
        self.events.append(f"read {len(tokens)}")
        self.tokens += tokens

    def append_and_score_token(self, token):
        self.append_to_caches([token])
        return mx.array([0.0, 1.0])

    def trim(self, length):
        self.tokens = self.tokens[:length]
        return True

    def clear_caches(self):
        self.tokens = []


def test_the_peak_of_memory_includes_reading_the_first_tokens(monkeypatch):
    """It is reset before them, and not again; a first repetition warms up."""
    script = Script()
    monkeypatch.setattr(
        model.mx, "reset_peak_memory", lambda: script.events.append("-")
    )
    monkeypatch.setattr(model.mx, "get_peak_memory", lambda: len(script.events))

    found = list(measure_speeds(script, depth=30, prompt=9, generated=2, repetitions=2))

    test = ["read 9", "read 1", "read 1"]
    assert ["-", "read 30", *test, *test, *test] == script.events
    assert [8, 11] == [each.peak_bytes for each in found]
    assert all(each.pp > 0 and each.tg > 0 for each in found)
