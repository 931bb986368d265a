"""Counting strings in a text: one pass, the same answer as a search for each."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.corpora.needles import Finder


def searched(text, strings):
    """What a search for each string finds, places that overlap included."""
    return {
        string: count
        for string in strings
        if (count := sum(text.startswith(string, at) for at in range(len(text))))
    }


CODE = st.text(alphabet="ab (){\né", min_size=0, max_size=60)


SHORT = st.text(alphabet="ab (){\né", min_size=1, max_size=6)


@given(text=CODE, strings=st.sets(SHORT | CODE.filter(bool), max_size=8))
def test_strings_are_counted_as_by_a_search_for_each(text, strings):
    """
    Whatever stands around them, and whether they overlap or not.
    """
    assert searched(text, strings) == dict(Finder(strings).counts(text))


@given(text=CODE, cut=st.integers(0, 60), strings=st.sets(CODE.filter(bool)))
def test_a_text_may_be_searched_in_pieces(text, cut, strings):
    """
    Each piece with what follows it, and only for what begins in it.
    """
    finder = Finder(strings)
    cut = min(cut, len(text))
    pieces = finder.counts(text, until=cut) + finder.counts(text[cut:])

    # A piece begins in the middle of a word, which makes no difference.
    assert finder.counts(text) == pieces


@pytest.mark.parametrize(
    ("string", "text", "count"),
    [
        ("def run(self):", "async def run(self):\ndef run(self):", 2),
        ("run() {", "xrun() {", 1),
        ("() => {", "a(() => {", 1),
        ("run", "run rerun", 2),
        ("aa", "aaaa", 3),
        ("f(a,\n  b) {", "f(a,\n  b) {", 1),
    ],
)
def test_a_string_may_begin_and_end_within_a_word(string, text, count):
    """
    It is text that is looked for, not words.
    """
    assert {string: count} == dict(Finder([string]).counts(text))


def test_strings_that_end_alike_are_told_apart():
    """
    Each is counted where its own first word ends, and only there.
    """
    finder = Finder(["x y() {", "zzy() {"])

    assert {"x y() {": 1} == dict(finder.counts("x y() {"))


def test_no_strings_are_found_nowhere():
    """
    A text without a long function has nothing to count.
    """
    assert {} == dict(Finder([]).counts("def f():\n"))


def test_a_finder_travels_to_another_process():
    """
    It takes its strings along and builds its tables there.
    """
    finder = pickle.loads(pickle.dumps(Finder(["f()", "g()"])))  # noqa: S301 - ours

    assert ("f()", "g()") == finder.strings
    assert {"g()": 1} == dict(finder.counts("g()"))
