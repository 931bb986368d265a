"""A right continuation: where its tokens are."""

from codeneedle.engines.llama_cpp.forced import right_ends
from codeneedle.engines.messages import TokenPiece


def pieces(*parts):
    """Tokens of the whole, numbered by their place from 100 on."""
    return [TokenPiece(100 + at, part) for at, part in enumerate(parts)]


def test_a_token_that_the_prompt_alone_does_not_have_is_scored():
    """The last line break of a prompt joins the indentation of the first line."""
    whole = pieces("f():", "\n    ", "a", "\n    ", "b")

    assert {1: 4, 2: 5, 3: 10, 4: 11} == right_ends([100, 7], whole, "    a\n    b")


def test_a_token_of_the_prompt_that_changed_is_not_of_the_continuation():
    whole = pieces("f", "()", ":\n", "a")

    assert {3: 1} == right_ends([100, 7, 8], whole, "a")
    assert {3: 1} == right_ends([100, 101, 102], whole, "a")


def test_a_token_completes_the_characters_that_end_with_it():
    """A character of three bytes in two tokens is complete with the second."""
    whole = pieces("x", (0xE2, 0x82), (0xAC,), "b")

    assert {1: 0, 2: 1, 3: 2} == right_ends([100], whole, "\u20acb")
