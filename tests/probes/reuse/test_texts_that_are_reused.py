"""The text of the reuse probe, and its conversations."""

from dataclasses import replace

import pytest
from fake_engine import ByteTokenizer
from made_contexts import run_context
from made_records import made_setup

from codeneedle.probes.reuse.prompts import (
    FEWEST_FUNCTIONS,
    FirstTurn,
    build_lines_request,
    function_count_for_length,
    make_reuse_text,
)

TEXT = make_reuse_text(6, seed=3)
FIRST, SECOND = TEXT.functions[:2]


def test_functions_are_as_they_stand_in_the_text():
    lines = TEXT.text.split("\n")

    assert 6 == len(TEXT.functions)
    for each in TEXT.functions:
        assert each.signature == lines[each.line - 1] == f"def {each.name}():"
        assert list(each.lines) == lines[each.line : each.line + 5]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), None])
def test_a_text_has_about_the_length_that_was_chosen(tokenizer):
    """Without a tokenizer a token is taken to be two characters."""
    text = make_reuse_text(
        function_count_for_length(2048, tokenizer, seed=3), seed=3
    ).text

    tokens = len(text) if tokenizer else len(text) / 2
    assert 1900 < tokens <= 2048
    assert FEWEST_FUNCTIONS == function_count_for_length(1, tokenizer, seed=3)


@pytest.mark.parametrize("prefill", [True, False])
@pytest.mark.parametrize("form", ["chat", "completion"])
def test_a_second_turn_begins_with_the_first_and_its_answer(tmp_path, form, prefill):
    setup = replace(made_setup(), prompt_form=form)
    run = run_context(tmp_path, setup=setup, prefill_no_think=prefill)

    first = build_lines_request(run, TEXT.text, FIRST, tokens=9)
    second = build_lines_request(
        run, TEXT.text, SECOND, tokens=9, before=FirstTurn(FIRST, "x = 1")
    )

    if form == "completion":
        assert f"{first.prompt}x = 1\n\n# recall\n{SECOND.signature}\n" == second.prompt
        return
    said = [(each.role, each.content) for each in second.messages]
    assert first.messages[0] == second.messages[0]
    assert ("assistant", "x = 1") == said[1]
    assert "user" == said[2][0]
    assert f"`{SECOND.signature}`" in said[2][1]
    assert prefill == (len(first.messages) == 2) == (len(said) == 4)
