"""Stretches that one n-gram fills."""

import random

import pytest

from codeneedle.probes.generation.loops import Loop, first_loop_in

PROSE = [f"word{at} " for at in "abcdefghijklmnopqrstuvwxyz"]


@pytest.mark.parametrize("ngram", [1, 2, 7, 21, 22, 64])
@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 500])
def test_a_stretch_is_found_where_it_begins(ngram, before):
    lead = [f"{at:x}-" for at in range(before)]
    times = max(3, -(-64 // ngram))
    looping = [f"step{at}" for at in range(ngram)] * times

    found = first_loop_in([*lead, *looping, "end"])

    assert Loop(start=before, tokens=len(looping), ngram=ngram) == found


def test_sixty_four_tokens_are_a_loop_and_one_fewer_is_none():
    assert first_loop_in(["idea "] * 64)
    assert first_loop_in(["idea "] * 63) is None


@pytest.mark.parametrize(
    ("ngram", "tokens", "is_loop"),
    [(21, 64, True), (21, 63, False), (22, 66, True), (22, 65, False)],
)
@pytest.mark.parametrize("before", [0, 1, 20, 40])
def test_an_n_gram_fills_sixty_four_tokens_and_three_times_its_length(
    before, ngram, tokens, is_loop
):
    lead = [f"{at:x}-" for at in range(before)]
    looping = [f"step{at % ngram}" for at in range(tokens)]

    assert is_loop == bool(first_loop_in([*lead, *looping, "end"]))


def test_more_than_sixty_four_tokens_are_no_n_gram_however_often_they_come():
    section = [f"w{at}" for at in range(65)]

    assert first_loop_in(section[:64] * 4)
    assert first_loop_in(section * 4) is None


def test_an_answer_that_ends_in_words_of_its_loop_has_the_loop_where_it_is():
    looping = [f"step{at}" for at in range(40)] * 3

    found = first_loop_in([*looping, "end", *looping[:40]])

    assert Loop(start=0, tokens=120, ngram=40) == found


def test_an_n_gram_that_comes_twice_is_none():
    """A long sentence that is said again is no loop."""
    sentence = [f"w{at}" for at in range(64)]

    assert first_loop_in([*sentence, *sentence]) is None


def test_prose_and_an_empty_answer_have_none():
    shuffled = random.Random(1).choices(PROSE, k=2000)  # noqa: S311

    assert first_loop_in(shuffled) is None
    assert first_loop_in([]) is None


def test_a_list_that_only_counts_on_is_a_loop():
    listed = [
        token
        for at in range(10, 40)
        for token in (str(at // 10), str(at % 10), ". ", "A ", "box", "\n")
    ]

    assert first_loop_in(listed) == Loop(start=0, tokens=len(listed), ngram=6)


def test_a_list_behind_a_text_is_a_loop_by_its_own_decisions():
    lead = [f"{at:x}-" for at in range(5)]
    listed = [token for at in range(40) for token in (str(at), ". ", "box", "\n")]
    numbers = [token for at in range(90) for token in (str(at * 7919 % 997), ", ")]

    assert Loop(start=5, tokens=160, ngram=4) == first_loop_in([*lead, *listed])
    assert first_loop_in([*PROSE, *numbers, *PROSE]) is None


def test_a_row_of_numbers_is_none():
    """Tables of numbers are answers, too."""
    numbers = [token for at in range(90) for token in (str(at * 7919 % 997), ", ")]

    assert first_loop_in(numbers) is None


def test_of_two_stretches_the_first_is_told():
    first, second = ["a "] * 70, ["b ", "c "] * 50

    assert Loop(start=1, tokens=70, ngram=1) == first_loop_in(["x", *first, *second])
