"""What a pair loses of the right tokens of a text, and the text that is read."""

import math
from dataclasses import replace

import pytest
from fake_engine import ByteTokenizer
from made_losses import REFERENCE, losing_setup, text_read

from codeneedle.engines.llama_cpp.base_file import scored_token_count
from codeneedle.probes.divergence import texts
from codeneedle.probes.divergence.metrics import TEXT_LOGP, metrics_of_parts
from codeneedle.probes.divergence.record import NAME
from codeneedle.records.record import Run
from codeneedle.verdict.judge import judge
from codeneedle.verdict.statistics import Decision

SETUP = replace(losing_setup([REFERENCE, "q8_0/q8_0"]), probes={NAME: {}})
GOOD = "q8_0/q8_0"


def with_parts(*parts):
    return replace(SETUP, probes={NAME: {"parts": list(parts)}})


def test_chunks_are_the_units_of_a_text():
    """Of a chunk of 512 tokens 255 are scored."""
    record = text_read(GOOD, [0.001 * at for at in range(16)])
    sizes = [len(each) for each in TEXT_LOGP.values_by_unit(record, SETUP).values()]

    assert [*map(str, range(16))] == [*TEXT_LOGP.loss_values_by_unit(record, SETUP)]
    assert [scored_token_count(chunks=1, context=512)] * 16 == sizes


def test_a_loss_is_the_probability_of_right_tokens_that_the_reference_has_more():
    losses = [0.004 + 0.001 * (at % 3) for at in range(16)]
    run = Run(
        name="a/b",
        setup=SETUP,
        records=(
            text_read(REFERENCE, [0.0] * 16),
            text_read(GOOD, losses),
        ),
    )

    (pair,) = judge(run).compared_results
    row = pair.metric_result(TEXT_LOGP.name)
    assert math.fsum(losses) / 16 == pytest.approx(row.bounds.mean, abs=1e-5)
    assert ("chunks", 16) == (row.metric.unit_noun, row.bounds.units)
    assert Decision.WITHIN is row.decision


def test_what_can_be_lost_of_a_text_is_the_share_of_first_choices():
    record = text_read(REFERENCE, [0.0] * 2)
    unread = replace(record, observation=None)

    assert [0.6, 0.0] == [TEXT_LOGP.loss.able(each, SETUP) for each in (record, unread)]


def test_each_part_of_a_text_is_a_facet():
    record = text_read(GOOD, [0.0, 0.2, 0.0])
    setup = with_parts("prose", "code")
    prose, code = metrics_of_parts(setup)

    assert [
        ("text-logp@prose", "part=prose"),
        ("text-logp@code", "part=code"),
    ] == [(each.name, each.facet) for each in (prose, code)]
    assert [{"0", "2"}, {"1"}] == [
        {*each.mean_value_by_unit(record, setup)} for each in (prose, code)
    ]
    assert () == metrics_of_parts(SETUP)


def test_a_tool_that_tells_no_tokens_leaves_the_text_without_a_loss():
    record = text_read(GOOD, [0.0] * 2, is_told=False)

    assert {} == TEXT_LOGP.loss_values_by_unit(record, SETUP)


# The text


class Words(ByteTokenizer):
    """A tokenizer whose tokens have four bytes, behind one that begins a prompt."""

    def tokens(self, text, *, add_special=True):
        (byte, *_) = super().tokens("x")
        data = text.encode()
        sizes = [min(4, len(data) - at) for at in range(0, len(data), 4)]
        pieces = [replace(byte, piece="x" * size) for size in sizes]
        return (replace(byte, piece="<s>"), *pieces)


def test_prose_and_code_take_turns_chunk_by_chunk():
    prose, code = texts.read_prose_and_code()
    cuts = texts.interleaved_block_ends(Words(), 64, 5)
    whole = texts.join_built_in_blocks(cuts)

    # The token that begins a prompt is one of the first block.
    begin, block = 4 * 63, 4 * 64
    assert (
        prose[:begin] + code[:begin] + prose[begin : begin + block]
        == (whole[: 2 * begin + block])
    )
    assert 2 * begin + 3 * block == len(whole)


def test_more_chunks_have_the_same_text_before():
    few, many = (texts.interleaved_block_ends(Words(), 64, blocks) for blocks in (3, 9))

    assert few == many[:3]
    assert texts.join_built_in_blocks(many).startswith(texts.join_built_in_blocks(few))


def test_a_text_has_no_more_blocks_than_its_sources():
    longest = min(map(len, texts.read_prose_and_code())) // 4
    cuts = texts.interleaved_block_ends(Words(), longest // 2, 99)

    assert 4 <= len(cuts) <= 6
