"""How much of a text fits, and how many of its functions are asked."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from source_files import names_of, put, python

from codeneedle.corpora.corpus import longest_beginning
from codeneedle.corpora.fitting import (
    Fit,
    Room,
    TooLong,
    context_holding_tokens,
    corpus_facts,
    cut_to_text,
    fit_corpus_to_context,
    is_context_filled,
)
from codeneedle.corpora.registry import SMALL_CORPORA, load


def test_functions_of_five_lines_are_forced_and_those_of_twenty_written(here):
    lengths = {"long": 20, "longer": 25, "short": 5, "shorter": 4}
    put(here / "a.py", "".join(python(n, lines=nr) for n, nr in lengths.items()))

    corpus = load("a.py")

    assert ["long", "longer", "short"] == names_of(corpus.functions)
    assert ["long", "longer"] == names_of(corpus.written_recall_functions())
    assert ["long", "longer", "short"] == names_of(
        corpus.forced_recall_functions(32, 5)
    )
    assert ["long", "longer"] == names_of(corpus.forced_recall_functions(32, 6))
    assert [] == corpus.forced_recall_functions(32, 26)


def test_a_pair_can_be_asked_for_more_functions_than_any_sweep_asks(here):
    corpus = load("random-bodies")

    chosen = corpus.forced_recall_functions(32, 5)

    assert 96 == len({function.name for function in chosen})
    for block in (chosen[:32], chosen[32:64], chosen[64:]):
        lines = [function.line for function in block]
        assert lines == sorted(lines)
        assert lines[0] < corpus.line_count * 0.1
        assert lines[-1] > corpus.line_count * 0.9


def test_fitting_asks_little(here):
    """Counting tokens of a whole corpus takes time, so it is halved, not walked."""
    asked = []

    def fits(text):
        asked.append(text)
        return len(text) < 100_000

    longest_beginning(load("random-bodies"), fits)

    assert len(asked) <= 9


def test_what_stands_behind_the_last_function_is_cut_off_first(here):
    put(here / "a.py", python("a") + python("b") + "# the end\n")
    corpus = load("a.py")
    whole, last = len(corpus.text), len(corpus.text) - len("# the end\n")

    found = [
        longest_beginning(corpus, lambda text, most=most: len(text) <= most)
        for most in (whole, whole - 1, last, last - 1)
    ]

    assert [whole, last, last, len(python("a"))] == [len(each.text) for each in found]
    assert [2, 2, 2, 1] == [len(each.functions) for each in found]


def test_a_text_of_long_functions_is_tried_function_by_function(here):
    """Each is longer than the first length that is tried otherwise."""
    parts = [python(name, lines=5_000) for name in "abc"]
    put(here / "a.py", "".join(parts))
    one, two = len(parts[0]), len(parts[0]) + len(parts[1])
    asked = []

    def fits(text):
        asked.append(len(text))
        return len(text) < two

    assert parts[0] == longest_beginning(load("a.py"), fits).text
    assert 65_536 < one
    assert [one, two] == asked


@pytest.mark.parametrize(("text", "lines"), [("a\n", 1), ("a", 1), ("a\nb", 2)])
def test_a_last_line_counts_with_its_newline_and_without(text, lines):
    corpus = replace(load("random-bodies-mini"), text=text)

    assert lines == corpus.line_count


@pytest.mark.parametrize(("length", "shown"), [(120, "x" * 120), (121, None)])
def test_the_end_of_a_long_path_names_a_file_that_was_left_out(length, shown):
    path = "x" * length
    corpus = replace(load("random-bodies-mini"), skipped=((path, "no text"),))

    assert [f"{shown or '...' + 'x' * 117}: no text"] == corpus.skipped_file_lines()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 30), max_size=12),
    last=st.integers(20, 30),
    gap=st.integers(0, 3),
    limit=st.integers(0, 8_000),
    wanted=st.integers(5, 20),
)
@example(lengths=[], last=20, gap=0, limit=30, wanted=5).via("nothing fits")
@example(lengths=[1], last=20, gap=0, limit=40, wanted=5).via("nothing to ask for fits")
def test_a_fitted_text_fits_ends_whole_and_could_not_be_longer(
    here, lengths, last, gap, limit, wanted
):
    functions = [python(f"f{at}", lines=nr) for at, nr in enumerate([*lengths, last])]
    put(here / "a.py", "".join(function + "# -\n" * gap for function in functions))
    corpus = load("a.py")
    lines = corpus.text.split("\n")
    beginnings = [
        "".join(f"{line}\n" for line in lines[:cut])
        for cut in corpus.cuts
        if any(
            each.last_line_number <= cut
            for each in corpus.long_enough_functions(wanted)
        )
    ]
    fitting = [text for text in (*beginnings, corpus.text) if len(text) <= limit]

    shorter = longest_beginning(corpus, lambda text: len(text) <= limit, lines=wanted)

    assert beginnings[0] == corpus.shortest_beginning(wanted)
    if shorter is None:
        assert not fitting
        return
    assert max(fitting, key=len) == shorter.text
    put(here / "b.py", shorter.text)
    assert load("b.py").functions == shorter.functions


# What a text leaves room for

QUESTION = 10
"""Tokens of a question and its answer, where a token is a character."""


def room(lines, question=QUESTION):
    return Room(
        lines=lines, tokens=lambda text: len(text) + question, prompt=lambda text: text
    )


@pytest.fixture
def three(here):
    """A corpus of three functions: of 20 lines, of 5, and of 20 again."""
    parts = [python(name, lines=nr) for name, nr in (("a", 20), ("b", 5), ("c", 20))]
    put(here / "a.py", "".join(parts))
    return load("a.py")


def fit(corpus, context, *, trained=None, may_trim=True, rooms=None):
    return Fit(
        corpus=corpus,
        context=context,
        trained=trained,
        may_trim=may_trim,
        rooms=lambda _corpus: iter(rooms or (room(20), room(5))),
    )


@pytest.mark.parametrize(("spare", "left"), [(0, ["a", "b", "c"]), (-1, ["a", "b"])])
def test_a_text_that_fits_to_the_last_token_is_whole(three, spare, left):
    needed = len(three.text) + QUESTION
    text, chosen = fit_corpus_to_context(fit(three, needed + spare))

    assert (left, 20) == (names_of(text.functions), chosen.lines)
    assert three.text.startswith(text.text)


def test_a_text_that_must_not_be_cut_is_whole_or_refused_with_what_would_do(three):
    needed = len(three.text) + QUESTION
    whole, chosen = fit_corpus_to_context(fit(three, needed, may_trim=False))
    assert (three, 20) == (whole, chosen.lines)

    larger = -(-needed // 256) * 256
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(fit(three, needed - 1, may_trim=False))
    assert (needed, larger) == (raised.value.needed, raised.value.larger)
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(
            fit(three, needed - 1, trained=needed - 1, may_trim=False)
        )
    assert None is raised.value.larger
    assert "--fit" in raised.value.ways[0]


def test_the_first_room_that_a_part_of_a_text_has_is_taken(three):
    """Where the longer question does not fit with any function, the next one does."""
    rooms = (room(20, question=10_000), room(5))
    _, chosen = fit_corpus_to_context(
        fit(three, len(three.text) + QUESTION, rooms=rooms)
    )

    assert 5 == chosen.lines


def test_where_no_function_fits_the_smallest_context_that_does_is_named(three):
    shortest = len(three.shortest_beginning(5)) + QUESTION
    text, _ = fit_corpus_to_context(fit(three, shortest))
    assert ["a"] == names_of(text.functions)

    larger = -(-shortest // 256) * 256
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(fit(three, shortest - 1))
    assert (shortest, larger) == (raised.value.needed, raised.value.larger)
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(fit(three, shortest - 1, trained=shortest - 1))
    assert (shortest, None) == (raised.value.needed, raised.value.larger)


def test_what_the_shortest_question_needs_is_named_where_none_fits(here):
    put(here / "a.py", python("a", lines=5) + python("b", lines=20))
    corpus = load("a.py")
    rooms = (room(20), room(10), room(5))

    needed = len(python("a", lines=5)) + QUESTION
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(fit(corpus, needed - 1, rooms=rooms))
    assert needed == raised.value.needed


@pytest.mark.parametrize("spare", [0, -1])
def test_where_no_function_fits_one_small_corpus_that_does_is_named(here, spare):
    put(here / "a.py", python("a", lines=2_000))
    largest, *others = sorted(
        SMALL_CORPORA, key=lambda name: len(load(name).text), reverse=True
    )
    context = len(load(largest).text) + QUESTION + spare
    with pytest.raises(TooLong) as raised:
        fit_corpus_to_context(fit(load("a.py"), context))

    fitting = [name for name in SMALL_CORPORA if name in others or not spare]
    assert (f"--corpus {fitting[0]}",) == raised.value.ways


@pytest.mark.parametrize(
    ("tokens", "trained", "context"),
    [
        (256, None, 256),
        (257, None, 512),
        (300, 300, 300),
        (301, 300, None),
        (300, 512, 512),
        (300, 1000, 512),
    ],
)
def test_a_larger_context_is_one_that_weights_were_trained_for(
    tokens, trained, context
):
    assert context == context_holding_tokens(tokens, trained)


def test_a_text_that_was_cut_has_the_functions_that_it_ends_behind(three):
    text, _ = fit_corpus_to_context(fit(three, len(three.text)))

    assert text.functions == cut_to_text(three, text.text).functions
    assert three.functions == cut_to_text(three, three.text).functions
    facts = corpus_facts(text, three, tokens=9)
    assert (9, 2, 3) == (facts.tokens, facts.functions, facts.functions_before)
    assert (text.sha256, three.sha256) == (facts.sha256, facts.source_sha256)
    assert facts.is_trimmed
    assert not corpus_facts(three, three).is_trimmed
    assert not corpus_facts(three, three).is_counted


@pytest.mark.parametrize(
    ("tokens", "is_filled"), [(0, True), (1, False), (6143, False), (6144, True)]
)
def test_a_text_fills_its_context_from_three_quarters_on_or_if_there_is_none(
    tokens, is_filled
):
    assert is_filled == is_context_filled(tokens, 8192)
