"""Numbers as people read them."""

import pytest

from codeneedle.text import duration, mib, plural, size


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
    """
    Seconds, minutes, hours, days; no part of it ever reads 60.
    """
    assert phrase == duration(seconds)


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
    """
    Bytes are whole; the largest unit takes all that is larger.
    """
    assert phrase == size(count)


def test_mib_are_a_million_bytes_and_some():
    """
    1,048,576 of them.
    """
    assert 1.5 == mib(1_572_864)


@pytest.mark.parametrize(
    ("count", "phrase"), [(0, "0 cells"), (1, "1 cell"), (1024, "1,024 cells")]
)
def test_nouns_follow_their_number(count, phrase):
    """
    One is one.
    """
    assert phrase == plural(count, "cell")
