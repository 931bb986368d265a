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


BLANK = [*written("f", lines=19), "", "   ", "\t", "    \x0c", "    return 1"]
IN_A_CLASS = [
    ["class A:"],
    written("size", signature="def {}(self):", indent="  "),
    written("size", signature="def {}(self, value):", indent="  "),
    written("other", indent="  "),
]
WITHIN = [
    written("run"),
    ["class A:"],
    written("run", signature="async def {}():", indent="    "),
    written("said"),
    ["# as def said(): does"],
]


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([written("long"), written("short", lines=19)], ["long"]),
        ([BLANK], ["f"]),
        ([BLANK[:-1], ["    # after"]], []),
        ([written("f"), written("g"), ["class A:"], written("f", indent=" ")], ["g"]),
        (WITHIN, ["A.run"]),
        (
            [written("f", signature=f"def {{}}(\n    {name},\n):") for name in "ab"],
            ["f:1", "f:24"],
        ),
        (IN_A_CLASS, ["A.size:2", "A.size:23", "A.other"]),
    ],
    ids=[
        "twenty lines are enough",
        "blank lines are never credited",
        "and make no function long",
        "a repeated signature has two answers",
        "a signature within another, or a comment, too",
        "signatures of several lines are compared whole",
        "equal names are told apart by their lines",
    ],
)
def test_long_functions_with_a_signature_of_their_own_can_be_asked_for(parts, names):
    """
    A question quotes a signature, and a round is stored by the function's name.
    """
    assert names == asked(*parts)


def test_of_functions_on_one_line_the_outermost_is_asked_for():
    """
    They have the same signature line, and one of them the longer body.
    """
    outer = Function(name="a", signature="a(b(", line=1, body=("x",) * 25)
    inner = Function(name="b", signature="a(b(", line=1, body=("x",) * 22)

    assert [outer] == eligible("a(b(", [inner, outer])


# --- strings that occur once


CODE = st.text(alphabet="ab (){\né", max_size=60)
PLACES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=9)


@given(text=CODE, places=PLACES, others=st.sets(CODE, max_size=3))
def test_occurrences_are_those_that_a_search_for_each_string_finds(
    text, places, others
):
    """
    Whatever stands around them, within words too, whether they overlap or not.
    """
    strings = {text[at : at + length] for at, length in places} | others
    strings -= {""}
    counts = {
        string: sum(text.startswith(string, at) for at in range(len(text)))
        for string in strings
    }

    assert {string for string in strings if counts[string] == 1} == occurring_once(
        text, strings
    )


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


@given(blanks=st.lists(st.integers(0, 3), min_size=20, max_size=40))
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
    assert min(5, len(body) - len(needle.lines)) == len(needle.more)
    assert ("f", "def f():", 7, 0.25) == (
        needle.name,
        needle.signature,
        needle.line,
        needle.depth,
    )


def test_depth_runs_from_the_first_line_to_the_last():
    """
    0 is the top of a text, 1 its end.
    """
    depths = [depth_of(made(line), line_count=101) for line in (1, 51, 101)]

    assert [0.0, 0.5, 1.0] == depths
    assert 0.0 == depth_of(made(1), line_count=1)


def test_a_text_is_cut_after_outermost_functions_only():
    """
    A cut inside of a function would divide it; its last line is that of its brace.
    """
    outer, inner = made(1, end=50), [made(1, end=30), made(10, end=30), made(50)]
    braced = Function(
        name="f", signature="f()\n{", line=60, body=("a", "b"), closing_lines=1
    )

    assert [50, 64] == cut_points([*inner, braced, outer])
