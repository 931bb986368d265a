"""Needles: which functions are asked for, and with what truth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_files import names_of

from codeneedle.corpora.languages.python import functions
from codeneedle.corpora.needles import (
    ASKED_LINES,
    Function,
    choose,
    cut_points,
    depth_of,
    eligible,
    needle_facts,
    occurring_once,
)


def written(name, *, lines=20, signature="def {}():", indent=""):
    """Source of a function with as many body lines, as a list of lines."""
    head = indent + signature.format(name)
    return [head, *(f"{indent}    {name}_{at} = {at}" for at in range(lines))]


def asked(*parts):
    """Names of the functions that can be asked for in a text of these lines."""
    text = "\n".join(line for part in parts for line in part) + "\n"
    return names_of(eligible(text, functions(text)))


def made(line, *, end=None, name=None):
    """A function from *line* to *end*, 22 lines if not told."""
    length = 21 if end is None else end - line
    return Function(
        name=name or f"f{line}",
        signature=f"def f{line}():",
        line=line,
        body=("    x",) * length,
    )


def test_a_function_of_twenty_lines_can_be_asked_for():
    """
    The limit itself is long enough, one line less is not.
    """
    assert ["long"] == asked(written("long"), written("short", lines=19))


def test_blank_lines_do_not_make_a_function_long():
    """
    They are never credited, so 20 others are needed.
    """
    blank = [*written("f", lines=19), "", "   ", "\t", "    \x0c", "    return 1"]

    assert ["f"] == asked(blank)
    assert [] == asked(blank[:-1], ["    # after"])


def test_a_repeated_signature_is_no_needle():
    """
    A question that quotes it would have two answers.
    """
    text = [written("run"), written("other"), ["class A:"], written("run", indent="  ")]

    assert ["other"] == asked(*text)


def test_a_signature_inside_of_another_is_no_needle():
    """
    ``def run():`` also stands in ``async def run():``, and in a comment.
    """
    parts = [
        written("run"),
        ["class A:"],
        written("run", signature="async def {}():", indent="    "),
        written("said"),
        ["# as def said(): does"],
    ]

    assert ["A.run"] == asked(*parts)


def test_signatures_of_several_lines_are_compared_whole():
    """
    Equal first lines are no harm where the others differ.
    """
    first = written("f", signature="def {}(\n    a,\n):")
    second = written("f", signature="def {}(\n    b,\n):")

    assert ["f:1", "f:24"] == asked(first, second)


def test_equal_names_are_told_apart_by_their_lines():
    """
    A round is stored by the name of its function, so that must be unique.
    """
    parts = [
        ["class A:"],
        written("size", signature="def {}(self):", indent="  "),
        written("size", signature="def {}(self, value):", indent="  "),
        written("other", indent="  "),
    ]

    assert ["A.size:2", "A.size:23", "A.other"] == asked(*parts)


def test_of_functions_on_one_line_the_outermost_is_asked_for():
    """
    They have the same signature line, and one of them the longer body.
    """
    outer = Function(name="a", signature="a(b(", line=1, body=("x",) * 25)
    inner = Function(name="b", signature="a(b(", line=1, body=("x",) * 22)

    assert [outer] == eligible("a(b(", [inner, outer])


# --- strings that occur once


CODE = st.text(alphabet="ab (){\né", max_size=60)


@given(
    text=CODE, strings=st.sets(st.text(alphabet="ab (){\né", min_size=1, max_size=9))
)
def test_occurrences_are_those_that_a_search_for_each_string_finds(text, strings):
    """
    Whatever stands around them, and whether they overlap or not.
    """
    counts = {
        string: sum(text.startswith(string, at) for at in range(len(text)))
        for string in strings
    }

    assert {string for string in strings if counts[string] == 1} == occurring_once(
        text, strings
    )


@pytest.mark.parametrize(
    ("string", "text", "is_once"),
    [
        ("def run(self):", "async def run(self):\ndef run(self):", False),
        ("def run(self):", "run(self):\ndef run(self):", True),
        ("run() {", "xrun() {", True),
        ("run() {", "run() { xrun() {", False),
        ("a(b) {", "(b) { a(b) {", True),
        ("aa", "aaa", False),
        ("f(a,\n  b) {", "f(a,\n  b) {", True),
        ("f()", "g()", False),
    ],
)
def test_a_string_may_begin_and_end_within_a_word(string, text, is_once):
    """
    Text is searched, not words; a string that does not occur is not unique.
    """
    assert ({string} if is_once else set()) == occurring_once(text, [string])


# --- the choice


LINES = st.lists(st.integers(1, 2_000), unique=True, max_size=60).map(sorted)


@given(lines=LINES, k=st.integers(1, 30), seed=st.integers(), data=st.data())
def test_the_choice_is_spread_sorted_and_the_same_again(lines, k, seed, data):
    """
    As many as asked or there are, in order, one at least from each band that has
    any; the same ones in whatever order they came, and without some of the others.
    """
    found = [made(line) for line in lines]
    chosen = choose(found, k=k, seed=seed, line_count=2_000)
    taken = [function.line for function in chosen]
    others = [function for function in found if function not in chosen]
    kept = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    shuffled = data.draw(st.permutations([*chosen, *kept]))

    assert min(k, len(found)) == len(chosen)
    assert taken == sorted(set(taken))
    assert set(taken) <= set(lines)
    assert chosen == choose(shuffled, k=k, seed=seed, line_count=2_000)
    bands = {(line - 1) * k // 2_000 for line in lines}
    assert bands == {(line - 1) * k // 2_000 for line in taken}


def test_every_depth_is_asked():
    """
    Of functions all over the text, one is chosen from every sixteenth.
    """
    found = [made(line) for line in range(1, 3_201, 22)]
    chosen = choose(found, line_count=3_200)

    assert list(range(16)) == [(f.line - 1) * 16 // 3_200 for f in chosen]


@pytest.mark.parametrize("seed", range(8))
def test_bands_have_equal_heights(seed):
    """
    Of four lines and two bands, the third line begins the second band.
    """
    found = [made(line) for line in (1, 2, 3)]
    chosen = choose(found, k=2, seed=seed, line_count=4)

    assert 3 == chosen[-1].line


def test_another_seed_chooses_others():
    """
    The seed decides; the choice of one of them is pinned.
    """
    found = [made(line) for line in range(1, 1_001, 10)]
    ours, theirs = (choose(found, k=4, seed=s, line_count=1_000) for s in (42, 43))

    assert [121, 331, 731, 901] == [function.line for function in ours]
    assert ours != theirs


@given(blanks=st.lists(st.integers(0, 3), min_size=26, max_size=40))
def test_a_needle_ends_with_its_twentieth_line_that_is_not_blank(blanks):
    """
    Its lines are the body's first, verbatim, and the few after them follow.
    """
    body = tuple(
        line for at, n in enumerate(blanks) for line in [*[" "] * n, f"    x = {at}"]
    )
    function = Function(name="f", signature="def f():", line=7, body=body)
    needle = needle_facts(function, depth=0.25)

    assert body == (*needle.lines, *needle.more, *body[len(needle.lines) + 5 :])
    assert ASKED_LINES == sum(bool(line.strip()) for line in needle.lines)
    assert "    x = 19" == needle.lines[-1]
    assert 5 == len(needle.more)
    assert ("f", "def f():", 7, 0.25) == (
        needle.name,
        needle.signature,
        needle.line,
        needle.depth,
    )


def test_a_needle_of_just_twenty_lines_has_none_after_them():
    """
    There is nothing to earn a bonus with.
    """
    needle = needle_facts(made(1, end=21), depth=0.0)

    assert (20, ()) == (len(needle.lines), needle.more)


def test_depth_runs_from_the_first_line_to_the_last():
    """
    0 is the top of a text, 1 its end.
    """
    depths = [depth_of(made(line), line_count=101) for line in (1, 51, 101)]

    assert [0.0, 0.5, 1.0] == depths
    assert 0.0 == depth_of(made(1), line_count=1)


def test_a_text_is_cut_after_outermost_functions_only():
    """
    A cut inside of a function would divide it.
    """
    outer, inner = made(1, end=50), made(10, end=30)
    last = made(60, end=70)

    assert [50, 70] == cut_points([inner, last, outer])


def test_a_closing_brace_stands_before_the_cut():
    """
    The last line of a function is that of its brace.
    """
    function = Function(
        name="f", signature="f()\n{", line=3, body=("a", "b"), closing_lines=1
    )

    assert [7] == cut_points([function])
