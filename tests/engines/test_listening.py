"""How long one waits for a server, and how much one lets it say."""

import pytest

from codeneedle.engines import client
from codeneedle.engines.client import Watch, beginning, lines, whole
from codeneedle.engines.responses import OverlongReply, ServerSilent
from codeneedle.system import processes


class Clock:
    """Time that passes with every look at it."""

    def __init__(self, step_s):
        self.step_s = step_s
        self.now_s = 0.0

    def monotonic(self):
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def slow(monkeypatch):
    """A clock on which each look takes a second."""
    monkeypatch.setattr(client, "time", Clock(1.0))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_do_not_depend_on_how_the_stream_was_cut(size):
    """
    A byte at a time or all at once, the lines are the same.
    """
    data = b"data: 1\r\n\r\n:\ndata: 2\n\nrest"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]

    assert [b"data: 1", b"", b":", b"data: 2", b""] == list(lines(chunks, silence_s=60))


def test_pings_are_no_sign_of_life(slow):
    """
    A server whose computation hangs goes on to send them.
    """
    with pytest.raises(ServerSilent):
        list(lines([b":\n"] * 100, silence_s=10))


def test_data_is_a_sign_of_life(slow):
    """
    A slow stream may last as long as it likes.
    """
    assert 100 == len(list(lines([b"data: x\n"] * 100, silence_s=10)))


def test_half_a_line_is_none(slow):
    """
    A byte now and then does not keep a server alive.
    """
    with pytest.raises(ServerSilent):
        list(lines([b"d"] * 100, silence_s=10))


@pytest.mark.parametrize("limit", ["LINE_LIMIT_BYTES", "REPLY_LIMIT_BYTES"])
def test_a_stream_without_end_is_left(limit, monkeypatch):
    """
    A line of megabytes, or more lines than an answer has.
    """
    monkeypatch.setattr(client, limit, 1000)
    chunk = b"x" * 100 if "LINE" in limit else b"data: x\n" * 10

    with pytest.raises(OverlongReply):
        list(lines([chunk] * 100, silence_s=60))


def test_an_answer_without_end_is_left(monkeypatch):
    """
    The same for what is no stream.
    """
    monkeypatch.setattr(client, "REPLY_LIMIT_BYTES", 1000)

    with pytest.raises(OverlongReply):
        whole([b"x" * 100] * 100, limit_s=60)


def test_an_answer_that_takes_too_long_is_left(slow):
    """
    Its time is one for all of it, not for each byte.
    """
    with pytest.raises(ServerSilent):
        whole([b"x"] * 100, limit_s=10)


def test_of_an_error_only_the_beginning_is_read(slow):
    """
    However long a server speaks about its error.
    """
    assert b"xxx" == beginning([b"x"] * 3)
    assert len(beginning([b"x"] * 100)) < 10


def test_a_watch_counts_no_time_in_suspension(monkeypatch):
    """
    It barks after the time that was lived through, and not when we wake up.
    """
    seconds = [0.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: seconds[0])
    watch = Watch(10.0)
    try:
        seconds[0] += 30000.0
        slept = watch.lived_s()
        assert not watch.barked
        for _ in range(20):
            seconds[0] += 1.0
            watch.lived_s()
        watch._thread.join(60)
    finally:
        watch.end()

    assert 2.0 == slept
    assert watch.barked
