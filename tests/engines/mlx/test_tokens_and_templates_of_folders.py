"""Tokenizers and templates of folders; MLX need not be installed."""

import json
import random

import pytest
from gguf_to_mlx import converted

pytest.importorskip("transformers", reason="mlx-lm, which brings it, is not installed")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from codeneedle.engines.engine import ModelSpec
from codeneedle.engines.llama_cpp.engine import LlamaCpp
from codeneedle.engines.llama_cpp.installation import ask_server_facts, locate_tools
from codeneedle.engines.mlx.tokens import TextModel
from codeneedle.models.weights import read_weights_from_headers

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[{{ mood or 'assistant' }}]{% endif %}"
)


@pytest.fixture
def pieces(tmp_path):
    """A tokenizer as SentencePiece's: blanks are spelled, unknown bytes have tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "a", "b", "\u2581a"]
    made = Tokenizer(
        models.BPE(
            vocab={word: at for at, word in enumerate(words)},
            merges=[("\u2581", "a")],
            unk_token="<unk>",  # noqa: S106 - a token of another kind
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " ")])
    made.add_special_tokens(["<s>", "</s>"])
    made.post_processor = TemplateProcessing(
        single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    return TextModel(tmp_path)


def test_what_begins_a_prompt_comes_first_and_what_ends_it_does_not_come(pieces):
    plain = pieces.ids("b a", add_special=False)

    assert [1, *plain] == pieces.ids("b a")
    assert [b"b", b" a"] == [pieces.piece(token) for token in plain]


def test_words_that_look_special_are_so_only_if_they_may_be(pieces):
    assert [1, 2] == pieces.ids("</s>")
    assert 2 not in pieces.ids("</s>", parse_special=False)


def test_pieces_are_the_bytes_of_a_text(pieces):
    ids = pieces.ids("a \u00e4</s>", add_special=False)

    assert "a \u00e4</s>".encode() == b"".join(map(pieces.piece, ids))
    assert b"" == pieces.piece(5000)


def test_whatever_is_stated_to_end_a_reply_ends_it(pieces):
    assert {2, 7, 8, 9} == pieces.ends


def test_a_prompt_is_rendered_without_the_token_that_comes_first_anyway(pieces):
    messages = [{"role": "user", "content": "b"}]
    begun = [*messages, {"role": "assistant", "content": "The"}]

    assert "[user]b[assistant]" == pieces.render(messages, None)
    assert "[user]b[assistant]The" == pieces.render(begun, {})
    assert "[user]b[thinking]" == pieces.render(messages, {"mood": "thinking"})


def test_a_template_that_refuses_says_why(pieces):
    with pytest.raises(ValueError, match="no tools"):
        pieces.render([{"role": "tool", "content": "b"}], {})


def test_no_code_of_a_model_runs(pieces, tmp_path):
    mark = tmp_path / "it ran"
    (tmp_path / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["own.Own", "own.Own"]}
    settings["tokenizer_class"] = "Own"
    settings["chat_template"] = "{{ messages.__class__.__mro__ }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    model = TextModel(tmp_path)

    assert pieces.ids("a b") == model.ids("a b")
    with pytest.raises(ValueError, match="unsafe"):
        model.render([{"role": "user", "content": "b"}], {})
    assert not mark.exists()


def test_a_model_without_a_template_renders_nothing(pieces, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")

    with pytest.raises(ValueError, match="template"):
        TextModel(tmp_path).render([{"role": "user", "content": "b"}], {})


def test_bytes_that_are_no_letters_are_spelled_as_letters(tmp_path):
    """As GPT-2 does; what has been added to the vocabulary is spelled as it is."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate(letters)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens(["\u0120\uff5ctool\uff5c"])
    made.save(str(tmp_path / "tokenizer.json"))
    model, text = TextModel(tmp_path), "a\n \u00e4\U0001f600\u0120\uff5ctool\uff5c"

    assert text.encode() == b"".join(map(model.piece, model.ids(text)))


@pytest.mark.real
def test_a_language_model_has_the_tokens_that_llama_server_counts(smollm2, tmp_path):
    header = read_weights_from_headers(smollm2)
    tools = locate_tools()
    model = ModelSpec(weights=header, name="smollm2")
    engine = LlamaCpp(tools=tools, facts=ask_server_facts(tools.server), model=model)
    ours = TextModel(converted(header))
    draw = random.Random(42)  # noqa: S311 - no secret
    marks = "ab Z\t\n09_=('\"\u00e4\u6f22\U0001f600"
    texts = ["".join(draw.choices(marks, k=200)) for _ in range(20)]
    texts += ["  x = 12345\n\n\n\tdef f():  # <|im_end|>'s", "\u00a0\u2028 \r\n"]

    with engine.tokenizing(log=tmp_path / "counting.log") as tokenizer:
        for text in texts:
            theirs = [each.id for each in tokenizer.tokens(text, add_special=False)]
            assert theirs == ours.ids(text, add_special=False, parse_special=False)
