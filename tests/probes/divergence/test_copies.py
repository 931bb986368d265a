"""Texts that stand twice in a chunk, as tokenizers and the real tool read them."""

import re
import struct

import pytest
from made_contexts import real_context
from made_records import made_setup

from codeneedle.engines.messages import TokenPiece
from codeneedle.engines.tools import DivergenceTask
from codeneedle.errors import BadInput
from codeneedle.grid import Pair
from codeneedle.probes.divergence import copies
from codeneedle.probes.divergence.copies import Cutter, laid_out, made_words
from codeneedle.probes.probe import tokenizing

F16 = Pair("f16", "f16")
BEGIN = -1


class Merging:
    """
    A tokenizer that merges: quotes with line breaks, line breaks, parts of words.

    Attributes:
        begins: Whether a special token begins each prompt.
        blank: Whether a blank is put before every text.
        pattern: What is a token.
    """

    def __init__(self, *, begins=False, blank=False, pattern=""):
        self.begins, self.blank = begins, blank
        self.pattern = pattern or r'"\n+|\n+| ?[a-zA-Z]{1,4}| ?\S| '
        self.known = {}

    def tokens(self, text, *, add_special=True):
        found = re.findall(self.pattern, f" {text}" if self.blank else text, re.DOTALL)
        numbers = [self.known.setdefault(piece, len(self.known)) for piece in found]
        begin = [TokenPiece(BEGIN, "")] if self.begins and add_special else []
        return (*begin, *map(TokenPiece, numbers, found))


def chunks_of(tokenizer, text, context):
    """The chunks of *text* as the tool reads them, numbers of tokens."""
    ids = [token.id for token in tokenizer.tokens(text)]
    return [ids[at : at + context] for at in range(0, len(ids) - context, context)]


@pytest.mark.parametrize("blank", [False, True])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("context", [64, 130])
def test_the_second_half_of_a_chunk_repeats_the_first_token_by_token(
    context, begins, blank
):
    """Only the first token of a chunk may be another, as the tool may overwrite it."""
    tokenizer = Merging(begins=begins, blank=blank)
    text = laid_out(Cutter(tokenizer, "seed"), context=context, chunks=5)

    chunks = chunks_of(tokenizer, text, context)
    assert 5 == len(chunks)
    half = context // 2
    for chunk in chunks:
        assert chunk[1:half] == chunk[half + 1 :]
        assert chunks[1][0] == chunk[half]
    assert 5 == len({tuple(chunk[half:]) for chunk in chunks})


def test_a_tokenizer_whose_copies_would_differ_is_refused():
    tokenizer = Merging(pattern=r"\s+\S+|\S+")
    with pytest.raises(BadInput, match="not the same tokens"):
        laid_out(Cutter(tokenizer, "seed"), context=64, chunks=2)


def test_made_texts_depend_on_the_seed_alone():
    assert made_words("a", 900).startswith(made_words("a", 500))
    assert made_words("a", 500) != made_words("b", 500)
    assert 500 <= len(made_words("a", 500)) < 600
    assert set(copies.WORDS) >= set(re.findall("[a-z]+", made_words("a", 9000)))
    assert len(set(copies.WORDS)) == len(copies.WORDS) <= 256


# The real tool


@pytest.mark.real
def test_the_real_tool_reads_equal_halves(tmp_path):
    """The tokens in the file of the reference are those that were computed."""
    run = real_context(tmp_path / "run", setup=made_setup())
    with tokenizing(run.engine, run.folder) as tokenizer:
        text = laid_out(Cutter(tokenizer, "seed"), context=256, chunks=3)
    task = DivergenceTask(
        pair=F16,
        reference=F16,
        context=256,
        chunks=3,
        text=text.encode(),
        text_name="copies",
        weights_sha256=run.setup.weights.sha256,
        folder=run.folder,
    )
    tool = run.engine.divergence_tool()
    tool.write_reference(
        task, log=tmp_path / "log", note=lambda _: None, progress=lambda _: None
    )

    (base,) = (run.folder / "base").glob("*.kld")
    data = base.read_bytes()[20 : 20 + 4 * 3 * 256]
    for number in range(3):
        chunk = struct.unpack_from("<256i", data, 4 * 256 * number)
        assert chunk[1:128] == chunk[129:]
