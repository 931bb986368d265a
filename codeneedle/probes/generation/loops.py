"""
Finds loops: the stretch of an answer that one n-gram fills, ``idea idea idea``.

The rule: an n-gram of 1 to `LONGEST_NGRAM` tokens that follows itself without a break,
for `LEAST_TOKENS` tokens and `LEAST_TIMES` times at least, anywhere in the answer.
Numbers count as equal in an n-gram that has a word (``12. A wooden box``): a list that
only counts on is a loop, and a row of numbers is none.

Source:
    That the end of an answer is a phrase at least three times is how Holtzman et al.,
    The Curious Case of Neural Text Degeneration (ICLR 2020), count degenerate texts;
    vLLM's ``RepetitionDetectionParams`` ends replies by size and count of an n-gram.
    The least number of tokens is ours: rules of tables, and values that source code
    repeats, are shorter.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_NGRAM = 64
"""Tokens: two or three sentences."""

LEAST_TOKENS = 64
"""Of a stretch."""

LEAST_TIMES = 3
"""How often an n-gram fills it, the first time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A stretch that an n-gram fills."""

    start: int  # number of its first token, from 0
    tokens: int  # its length
    ngram: int  # length of the n-gram, in tokens


def first_loop_in(tokens: Sequence[str]) -> Loop | None:
    """
    The first stretch of *tokens* that one n-gram fills; None if none does.

    Of n-grams that fill the same stretch, the shortest.
    """
    counted = ["0" if token.strip().isdigit() else token for token in tokens]
    found = [
        *_first_loop_per_ngram_length(tokens),
        *(
            loop
            for loop in _first_loop_per_ngram_length(counted)
            if _has_adjacent_letters(tokens, loop)
        ),
    ]
    return min(found, key=lambda loop: loop.start, default=None)


def _has_adjacent_letters(tokens: Sequence[str], loop: Loop) -> bool:
    """Whether the n-gram of *loop* has two letters in a row."""
    ngram = "".join(tokens[loop.start : loop.start + loop.ngram])
    return re.search(r"[^\W\d_]{2}", ngram) is not None


def _first_loop_per_ngram_length(tokens: Sequence[str]) -> Iterator[Loop]:
    """The first loop of each length of n-grams that has one, the shortest first."""
    for ngram in range(1, min(LONGEST_NGRAM, len(tokens) // LEAST_TIMES) + 1):
        least = max(LEAST_TOKENS, LEAST_TIMES * ngram)
        if loop := _first_loop_of_ngram_length(tokens, ngram, least):
            yield loop


STEP = 32
"""
Every so many tokens one is looked at.

In a stretch, each token but the first n equals the one n before it: 43 or more in a
row, by `LEAST_TOKENS` and `LEAST_TIMES`, so that one of them is looked at.
"""


def _first_loop_of_ngram_length(
    tokens: Sequence[str], ngram: int, least: int
) -> Loop | None:
    """The first *least* tokens or more in which *ngram* tokens repeat; None without."""
    for at in range(ngram, len(tokens), STEP):
        if tokens[at] != tokens[at - ngram]:
            continue
        start = end = at
        while start > ngram and tokens[start - 1] == tokens[start - 1 - ngram]:
            start -= 1
        while end < len(tokens) and tokens[end] == tokens[end - ngram]:
            end += 1
        if end - (start - ngram) >= least:
            return Loop(start=start - ngram, tokens=end - start + ngram, ngram=ngram)
    return None
