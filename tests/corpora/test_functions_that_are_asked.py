"""Needles: which functions are asked for, in what order, and which of their lines."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from source_files import names_of

from codeneedle.corpora.languages.python import functions
from codeneedle.corpora.needles import (
    WRITTEN_LINES,
    Function,
    block_ends,
    choose_functions,
    choose_in_blocks,
    cut_line_numbers,
    depth_of,
    eligible_functions,
    forced_needle,
    occurring_once,
    written_needle,
)


def written(name, *, lines=20, signature="def {}():", indent=""):
    """Source of a function with as many body lines, as a list of lines."""
    head = indent + signature.format(name)
    return [head, *(f"{indent}    {name}_{at} = {at}" for at in range(lines))]


def asked(*parts):
    """Names of the functions that can be asked for in a text of these lines."""
    text = "\n".join(line for part in parts for line in part) + "\n"
    return names_of(eligible_functions(text, functions(text)))


def made(line, *, end=None):
    """A function from *line* to *end*, 22 lines if not told."""
    length = 21 if end is None else end - line
    return Function(
        name=f"f{line}",
        signature=f"def f{line}():",
        line=line,
        body=("    x",) * length,
    )


BLANK = [*written("f", lines=4), "", "   ", "\t", "    \x0c", "    return 1"]
IN_A_CLASS = [
    ["class A:"],
    written("size", signature="def {}(self):", indent="  "),
    written("size", signature="def {}(self, value):", indent="  ", lines=21),
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
        ([written("long", lines=5), written("short", lines=4)], ["long"]),
        ([BLANK], ["f"]),
        ([BLANK[:-1], ["    # after"]], []),
        ([written("f"), written("g"), ["class A:"], written("f", indent=" ")], ["g"]),
        (WITHIN, ["A.run"]),
        (
            [
                written("f", signature=f"def {{}}(\n    {name},\n):", lines=lines)
                for name, lines in (("a", 20), ("b", 21))
            ],
            ["f:1", "f:24"],
        ),
        (IN_A_CLASS, ["A.size:2", "A.size:23", "A.other"]),
        (
            [
                written("f", lines=6),
                ["class A:"],
                written("f", signature="def copy_of_{}(self):", lines=6, indent="  "),
                written("g", lines=6),
            ],
            ["f", "g"],
        ),
    ],
    ids=[
        "five lines are enough",
        "blank lines are never credited",
        "and make no function long",
        "a repeated signature has two answers",
        "a signature within another, or a comment, too",
        "signatures of several lines are compared whole",
        "equal names are told apart by their lines",
        "equal bodies are one function",
    ],
)
def test_long_functions_with_a_signature_of_their_own_can_be_asked_for(parts, names):
    """A question quotes a signature, and a round is stored by the function's name."""
    assert names == asked(*parts)


def test_of_functions_on_one_line_the_outermost_is_asked_for():
    """They have the same signature line, and one of them the longer body."""
    outer = Function(name="a", signature="a(b(", line=1, body=("x",) * 25)
    inner = Function(name="b", signature="a(b(", line=1, body=("x",) * 22)

    assert [outer] == eligible_functions("a(b(", [inner, outer])


# --- strings that occur once


CODE = st.text(alphabet="ab (){\né", max_size=60)
PLACES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=9)


@given(text=CODE, places=PLACES, others=st.sets(CODE, max_size=3))
@example(text="(((", places=[(0, 2)], others=set()).via("overlapping by all but one")
def test_occurrences_are_those_that_a_search_for_each_string_finds(
    text, places, others
):
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
    found = [made(line) for line in lines]
    chosen = choose_functions(found, k=k, seed=seed, line_count=2_000)
    taken = [function.line for function in chosen]
    others = [function for function in found if function not in chosen]
    kept = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    shuffled = data.draw(st.permutations([*chosen, *kept]))

    assert min(k, len(found)) == len(chosen)
    assert taken == sorted(set(taken))
    assert set(taken) <= set(lines)
    assert chosen == choose_functions(shuffled, k=k, seed=seed, line_count=2_000)
    bands = {(line - 1) * k // 2_000 for line in lines}
    assert bands == {(line - 1) * k // 2_000 for line in taken}


@pytest.mark.parametrize("seed", range(8))
def test_bands_have_equal_heights(seed):
    found = [made(line) for line in (1, 2, 3)]
    chosen = choose_functions(found, k=2, seed=seed, line_count=4)

    assert 3 == chosen[-1].line


def test_another_seed_chooses_others():
    found = [made(line) for line in range(1, 1_001, 10)]
    ours, theirs = (
        choose_functions(found, k=4, seed=s, line_count=1_000) for s in (42, 43)
    )

    assert [121, 331, 731, 901] == [function.line for function in ours]
    assert ours != theirs


def bodies(least):
    """Functions of *least* to 40 lines that are not blank, with blank ones between."""

    def function(blanks):
        lines = ([*[" "] * n, f"    x = {at}"] for at, n in enumerate(blanks))
        body = tuple(line for part in lines for line in part)
        return Function(name="f", signature="def f():", line=7, body=body)

    return st.lists(st.integers(0, 3), min_size=least, max_size=40).map(function)


def not_blank(lines):
    """How many of *lines* are not blank."""
    return sum(bool(line.strip()) for line in lines)


@given(function=bodies(20))
def test_a_needle_ends_with_its_twentieth_line_that_is_not_blank(function):
    needle = written_needle(function, depth=0.25)

    body = function.body
    assert body == (*needle.lines, *needle.more, *body[len(needle.lines) + 5 :])
    assert WRITTEN_LINES == not_blank(needle.lines)
    assert "    x = 19" == needle.lines[-1]
    assert min(5, len(body) - len(needle.lines)) == len(needle.more)
    assert ("f", "def f():", 7, 0.25) == (
        needle.name,
        needle.signature,
        needle.line,
        needle.depth,
    )


# --- forced lines


@given(function=bodies(5), lines=st.integers(1, 5), seed=st.integers())
def test_forced_lines_and_those_before_them_are_the_beginning_of_the_body(
    function, lines, seed
):
    needle = forced_needle(function, depth=0.25, lines=lines, seed=seed)

    begun = (*needle.before, *needle.lines)
    assert function.body[: len(begun)] == begun
    assert lines == not_blank(needle.lines)
    assert needle.lines[0].strip()
    assert needle.lines[-1].strip()
    assert not_blank(begun) <= WRITTEN_LINES
    assert () == needle.more
    assert needle == forced_needle(function, depth=0.25, lines=lines, seed=seed)


@pytest.mark.parametrize(
    ("content", "lines", "starts"),
    [
        (5, 5, {0}),
        (8, 5, {0, 1, 2, 3}),
        (20, 5, set(range(16))),
        (60, 5, set(range(16))),
        (60, 20, {0}),
        (60, 1, set(range(20))),
    ],
)
def test_forced_lines_begin_at_any_line_within_the_first_twenty(content, lines, starts):
    function = made(7, end=7 + content)

    assert starts == {
        len(forced_needle(function, depth=0, lines=lines, seed=seed).before)
        for seed in range(500)
    }


def test_functions_of_one_text_begin_at_different_lines():
    starts = {
        len(forced_needle(made(line), depth=0, lines=5, seed=42).before)
        for line in range(1, 1_000, 25)
    }

    assert len(starts) > 8


@pytest.mark.parametrize(
    ("first", "limit", "ends"),
    [
        (32, 96, [32, 64, 96]),
        (16, 96, [16, 32, 64, 96]),
        (5, 12, [5, 10, 12]),
        (32, 20, [20]),
        (96, 96, [96]),
    ],
)
def test_each_block_ends_at_twice_the_functions_of_those_before_it(first, limit, ends):
    assert ends == block_ends(first, limit)


@given(
    lines=LINES, first=st.integers(1, 9), limit=st.integers(1, 70), seed=st.integers()
)
def test_each_block_is_spread_over_the_functions_that_those_before_it_left(
    lines, first, limit, seed
):
    found = [made(line) for line in lines]

    chosen = choose_in_blocks(
        found, first=first, limit=limit, seed=seed, line_count=2_000
    )

    assert min(limit, len(found)) == len(chosen)
    begin = 0
    for end in block_ends(first, limit):
        left = [function for function in found if function not in chosen[:begin]]
        block = choose_functions(left, k=end - begin, seed=seed, line_count=2_000)
        assert block == chosen[begin:end]
        begin = end


def test_depth_runs_from_the_first_line_to_the_last():
    depths = [depth_of(made(line), line_count=101) for line in (1, 51, 101)]

    assert [0.0, 0.5, 1.0] == depths
    assert 0.0 == depth_of(made(1), line_count=1)
    assert 1.0 == depth_of(made(2), line_count=2)


def test_a_text_is_cut_after_outermost_functions_only():
    outer, inner = made(1, end=50), [made(1, end=30), made(10, end=30), made(50)]
    braced = Function(
        name="f", signature="f()\n{", line=60, body=("a", "b"), closing_lines=1
    )

    within = made(62, end=63)
    assert [50, 64] == cut_line_numbers([*inner, within, braced, outer])
