"""Numbers as text, and text from elsewhere made safe to show."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.text import (
    duration_text,
    escape_invisible,
    escape_invisible_in_lines,
    escape_markdown,
    json_value_phrase,
    mib_of_bytes,
    number_text,
    plural,
    size_text,
)


@pytest.mark.parametrize(
    ("seconds", "phrase"),
    [
        (0, "0.0 s"),
        (8.24, "8.2 s"),
        (59.9, "59.9 s"),
        (59.97, "1:00"),
        (60, "1:00"),
        (187.4, "3:07"),
        (3599.4, "59:59"),
        (3599.6, "1:00:00"),
        (3723, "1:02:03"),
        (47 * 3600 + 3599, "47:59:59"),
        (52 * 3600 + 59, "2 d 4 h"),
    ],
)
def test_a_duration_is_as_long_as_it_needs_to_be(seconds, phrase):
    """Seconds, minutes, hours, days; no part of it ever reads 60."""
    assert phrase == duration_text(seconds)


@pytest.mark.parametrize(
    ("count", "phrase"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_782_579, "1.7 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1024**4, "1.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(count, phrase):
    assert phrase == size_text(count)


def test_mib_are_a_million_bytes_and_some():
    assert 1.5 == mib_of_bytes(1_572_864)


@pytest.mark.parametrize(
    ("count", "phrase"), [(0, "0 cells"), (1, "1 cell"), (1024, "1,024 cells")]
)
def test_nouns_follow_their_number(count, phrase):
    assert phrase == plural(count, "cell")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x07\r\n\x9b", r"\x1b[2J\x07\r\n\x9b"),
        ("a\u202eb\u2066\u200bc\ufeff", r"a\u202eb\u2066\u200bc\ufeff"),
        ("a\xa0b c", r"a\xa0b c"),
        ("\ud800", r"\ud800"),
        (r"naïve 漢字 \d+ é", r"naïve 漢字 \d+ é"),
    ],
)
def test_what_is_not_just_shown_becomes_visible(text, shown):
    assert shown == escape_invisible(text)


def test_lines_and_tabs_of_a_longer_text_stay() -> None:
    assert "a\n\tb\\x1b[2J\n\n\\r" == escape_invisible_in_lines("a\n\tb\x1b[2J\n\n\r")


@given(st.text())
def test_nothing_invisible_is_left(text):
    categories = {
        unicodedata.category(character) for character in escape_invisible(text)
    }

    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_zero_has_no_sign():
    assert "0.00" == number_text(-0.001, digits=2)
    assert "0.00" == number_text(0.001, digits=2, sign=True)
    assert "+0.31" == number_text(0.3125, digits=2, sign=True)
    assert "-" == number_text(math.nan, digits=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("~~gone~~", r"\~\~gone\~\~"),
        ("$x$", r"\$x\$"),
        ("&lt;b&gt;", r"\&lt;b\&gt;"),
        ("by @name", "by @<!-- -->name"),
        ("me@host", "me@host"),
        ("é@name", "é@<!-- -->name"),
        ("#12", "#<!-- -->12"),
        ("some/one#12", "some/one#<!-- -->12"),
        ("GH-12", "GH-<!-- -->12"),
        ("# a - b", r"\# a - b"),
        ("- a", r"\- a"),
        ("-0.1 to 2", "-0.1 to 2"),
        ("https://a.b", "https:<!-- -->//a.b"),
        ("www.a.b", "www.<!-- -->a.b"),
        ("q8_0/q4_0: 3.1 %", r"q8\_0/q4\_0: 3.1 %"),
    ],
)
def test_text_has_no_meaning_in_markdown(text, expected):
    assert expected == escape_markdown(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *(("b11434", "b11434"), (True, "on"), (False, "off"), (4096, "4096")),
        *((None, "none"), ("", "none"), ([], "none"), (0, "0")),
        *((["f16", "q8_0"], "f16, q8_0"), ([True, None], "on, none")),
    ],
)
def test_values_of_a_setup_are_shown_without_the_marks_of_python(value, shown):
    assert shown == json_value_phrase(value)
