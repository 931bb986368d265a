"""Documents on a terminal: columns that align, fold, or stand in blocks."""

import io

import pytest
from printing import printed
from rich.console import Console
from rich.text import Text

from codeneedle.document import Facts, Grid, Heading, Lines, Table
from codeneedle.report.terminal import print_with_end_if_long

EVIL = "\x1b[2J\u202e"


def lines_of(*blocks, width=40):
    return printed(blocks, width=width).splitlines()


def test_blocks_stand_apart_and_those_without_content_are_left_out():
    empty = (Lines([""]), Facts(()), Table(["a"], ()), Grid((), (), ()))

    assert ["a", "", "b"] == lines_of(Heading("a"), *empty, Lines(["b"]))


def test_no_text_can_write_on_the_terminal():
    blocks = (
        Heading(EVIL),
        Lines([EVIL]),
        Facts([(EVIL, EVIL)]),
        Table([EVIL], [[EVIL]]),
        Grid([EVIL], [EVIL], [[EVIL]]),
    )

    text = printed(blocks, width=200)

    assert 9 == text.count(r"\x1b[2J\u202e")
    assert not {"\x1b", "\u202e"} & set(text)


def test_numbers_stand_at_the_right_and_words_fold():
    table = Table(
        ["n", "what\nit is"], [["1", "one two three four five"]], ["what\nit is"]
    )

    assert ["n  what", "   it is", "1  one two three", "   four five"] == (
        lines_of(table, width=18)
    )


def test_columns_that_do_not_fit_stand_below_beside_the_first_again():
    table = Table(["K/V", "aaaa", "bbbb"], [["x", "1", "2"]], ["K/V"])

    assert ["K/V  aaaa  bbbb", "x       1     2"] == lines_of(table, width=15)
    assert ["K/V aaaa bbbb", "x      1    2"] == lines_of(table, width=13)
    assert ["K/V  aaaa", "x       1", "", "K/V  bbbb", "x       2"] == (
        lines_of(table, width=12)
    )


def test_a_text_of_several_lines_keeps_its_column():
    grid = Grid(["f16"], ["f16", "q4_0"], [[Text("ab\ncd"), "1"]])

    first, second, third = lines_of(grid)
    assert "K \\ V    f16    q4_0 " == first
    assert "f16        ab       1" == second
    assert "           cd        " == third


def test_what_is_to_be_copied_is_never_folded():
    line = "word " * 20

    assert [line] == lines_of(Lines([line], copied="command"))


@pytest.mark.parametrize(
    ("rows", "is_terminal", "times"), [(40, True, 2), (8, True, 1), (40, False, 1)]
)
def test_an_answer_that_scrolls_away_is_the_last_line_too(rows, is_terminal, times):
    console = Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=80,
        height=24,
        color_system=None,
    )
    answer = Lines(["Set: this one"])

    print_with_end_if_long(console, [answer, Lines(["a row"] * rows)], [answer])

    lines = console.file.getvalue().splitlines()
    assert times == lines.count("Set: this one")
    assert (times == 1) or lines[-1] == "Set: this one"


def test_a_line_that_begins_with_blanks_is_folded_below_its_first_word():
    """The second line of a verdict went on at the edge of a terminal."""
    shown = lines_of(Lines(["Set: it", "     of the memory of this model"]), width=20)

    assert ["Set: it", "     of the memory", "     of this model"] == shown
