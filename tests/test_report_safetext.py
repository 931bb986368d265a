"""Text from elsewhere, made safe."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from codeneedle.text import visible


def test_terminal_escapes_become_visible() -> None:
    """
    A reply cannot clear the screen, nor write over what stands there.
    """
    assert r"\x1b[2J\x07\r\n\x9b" == visible("\x1b[2J\x07\r\n\x9b")


def test_direction_marks_and_zero_widths_become_visible() -> None:
    """
    Nothing turns the line around, and nothing hides in it.
    """
    assert r"a\u202eb\u2066\u200bc\ufeff" == visible("a\u202eb\u2066\u200bc\ufeff")


def test_spaces_that_are_not_the_plain_one_become_visible() -> None:
    """
    A line that differs by a no-break space is no riddle.
    """
    assert r"a\xa0b c" == visible("a\xa0b c")


def test_text_that_can_be_read_stays() -> None:
    """
    Letters, accents and wide characters are what they were, backslashes too.
    """
    assert r"naïve 漢字 \d+ é" == visible(r"naïve 漢字 \d+ é")


def test_a_lone_surrogate_can_be_printed() -> None:
    """
    What no encoding can write becomes an escape.
    """
    assert rb"\ud800" == visible("\ud800").encode("utf-8")


@given(st.text())
def test_nothing_invisible_is_left(text: str) -> None:
    """
    No control, format or separator character survives, whatever comes.
    """
    categories = {unicodedata.category(character) for character in visible(text)}

    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
