"""A right continuation: where its tokens are, and how probable each was."""

import math

import pytest

from codeneedle.engines.llama_cpp.forced import right_token_ends_by_place, score_of
from codeneedle.engines.messages import BadReply, NoScores, Token, TokenPiece
from codeneedle.scores import LOWEST, NotANumber


def pieces(*parts):
    """Tokens of the whole, numbered by their place from 100 on."""
    return [TokenPiece(100 + at, part) for at, part in enumerate(parts)]


def test_a_token_that_the_prompt_alone_does_not_have_is_scored():
    """The last line break of a prompt joins the indentation of the first line."""
    whole = pieces("f():", "\n    ", "a", "\n    ", "b")

    assert {1: 4, 2: 5, 3: 10, 4: 11} == right_token_ends_by_place(
        [100, 7], whole, "    a\n    b"
    )


def test_a_token_of_the_prompt_that_changed_is_not_of_the_continuation():
    whole = pieces("f", "()", ":\n", "a")

    assert {3: 1} == right_token_ends_by_place([100, 7, 8], whole, "a")
    assert {3: 1} == right_token_ends_by_place([100, 101, 102], whole, "a")


def test_a_token_completes_the_characters_that_end_with_it():
    """A character of three bytes in two tokens is complete with the second."""
    whole = pieces("x", (0xE2, 0x82), (0xAC,), "b")

    assert {1: 0, 2: 1, 3: 2} == right_token_ends_by_place([100], whole, "\u20acb")


def told(chosen, **listed):
    others = tuple(Token(int(name[1:]), value) for name, value in listed.items())
    return Token(chosen, listed.get(f"t{chosen}", -9.0), others)


def score(right, told):
    found = score_of(right, told)
    return found.logprob, found.lead, found.is_bound


def test_a_first_choice_leads_and_another_one_lags():
    """A lead is to the most probable other token; the right one may not be listed."""
    assert (-0.1, 2.4, False) == score(1, told(1, t1=-0.1, t2=-2.5))
    assert (-2.5, -2.4, False) == score(2, told(2, t1=-0.1, t2=-2.5))
    assert (-9.0, -8.9, False) == score(3, told(3, t1=-0.1, t2=-2.5))


def test_a_token_that_is_not_listed_is_bounded_by_the_last_one_that_is():
    assert (-2.5, -2.4, True) == score(3, told(1, t1=-0.1, t2=-2.5))


@pytest.mark.parametrize("least", [-math.inf, -3.4e38])
def test_a_probability_that_no_float_holds_is_a_bound(least):
    """A server says so of what is less than the smallest one."""
    found = score(1, told(1, t1=least, t2=-2.5))

    assert (LOWEST, True) == (found[0], found[2])


@pytest.mark.parametrize(
    "impossible",
    [
        told(1, t1=None, t2=-2.5),
        told(1, t1=-0.1, t2=None),
        told(1, t1=math.nan, t2=-2.5),
        told(1, t1=-0.1, t2=math.nan),
        told(1, t1=math.inf, t2=-2.5),
        told(1, t1=7.5, t2=-1.0),
        told(1, t1=0.0, t2=0.0),
        told(1, t1=0.0, t2=-0.5),
        told(1, t1=-200.0, t2=-3.4e38),
        Token(1, 0.0, (Token(1, -1.0), Token(2, -2.0))),
        Token(1, -1.0, (Token(1, -1.0), Token(1, -2.0), Token(2, -2.0))),
    ],
)
def test_numbers_that_cannot_be_are_no_score(impossible):
    with pytest.raises((NoScores, NotANumber)):
        score(1, impossible)


@pytest.mark.parametrize("silent", [Token(), Token(logprob=-0.5), Token(1, -0.5)])
def test_probabilities_that_name_no_tokens_are_refused(silent):
    with pytest.raises(BadReply):
        score(1, silent)
