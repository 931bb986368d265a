"""Two files have one tokenizer where what makes tokens of text is the same."""

import pytest
from gguf_files import SHAPE, write_gguf

from codeneedle.models.weights import MOST_PARAMETERS, read_weights_from_headers

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.merges": ["a b", "b c"],
    "tokenizer.ggml.eos_token_id": 2,
}
KEYS = {**SHAPE, **TOKENIZER}


def tokenizer_of(folder, keys):
    return read_weights_from_headers(write_gguf(folder / "made.gguf", keys)).tokenizer


def test_it_does_not_depend_on_the_order_or_on_other_keys(tmp_path):
    turned = {**dict(reversed(KEYS.items())), "general.file_type": 7}

    assert tokenizer_of(tmp_path, KEYS) == tokenizer_of(tmp_path, turned) != ""


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer.ggml.tokens": ["a", "b", "d"]},
        {"tokenizer.ggml.merges": ["b c", "a b"]},
        {"tokenizer.ggml.pre": "llama-bpe"},
        {"tokenizer.ggml.eos_token_id": 1},
    ],
)
def test_it_is_another_one_by_any_part(tmp_path, other):
    assert tokenizer_of(tmp_path, KEYS) != tokenizer_of(tmp_path, {**KEYS, **other})


def test_a_file_without_one_has_none(tmp_path):
    none = {k: v for k, v in SHAPE.items() if not k.startswith("tokenizer")}

    assert "" == tokenizer_of(tmp_path, none)


def test_shape_and_parameters_are_those_of_the_model(tmp_path, golden):
    read = read_weights_from_headers(
        write_gguf(tmp_path / "made.gguf", KEYS, tensors=3)
    )

    assert golden == read.shape_phrase
    assert 3 * 32 == read.parameters < MOST_PARAMETERS
