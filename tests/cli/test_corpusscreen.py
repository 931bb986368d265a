"""The line about hashing weights: none if it is quick, then now and then."""

import pytest

from codeneedle.cli.progress import HashingLine, hashing_phrase

MB = 1_000_000


@pytest.mark.parametrize(
    ("done", "elapsed", "phrase"),
    [
        (0, 3.0, "hashing weights, once: 0 of 100 MB"),
        (20, 3.0, "hashing weights, once: 20 of 100 MB, 12.0 s left"),
        (100, 9.0, "hashing weights, once: 100 of 100 MB, 0.0 s left"),
    ],
)
def test_the_time_left_is_estimated_from_the_speed_so_far(done, elapsed, phrase):
    """
    Before the first byte there is no estimate.
    """
    assert phrase == hashing_phrase(done * MB, 100 * MB, elapsed)


def test_the_first_line_comes_after_two_seconds_and_others_at_intervals():
    """
    A second file starts again: its own two seconds, its own estimate.
    """
    shown = []
    now = 0.0
    line = HashingLine(show=shown.append, every_s=10, clock=lambda: now)
    for done in (*range(16), *range(4)):
        line.update(done * MB, 100 * MB)
        now += 1.0

    assert [
        "hashing weights, once: 2 of 100 MB, 1:38 left",
        "hashing weights, once: 12 of 100 MB, 1:28 left",
        "hashing weights, once: 2 of 100 MB, 1:38 left",
    ] == shown
