"""Bounds on the time and the size of answers."""

import httpcore
import pytest

from codeneedle.engines import http
from codeneedle.engines.http import (
    _Deadline,
    error_beginning,
    join_chunks,
    split_into_lines,
)
from codeneedle.engines.messages import BadReply


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def pass_s(self, deadline, seconds):
        """Let time pass as in a wait for data, with a check at each step."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            deadline.check()


@pytest.fixture
def clock(monkeypatch):
    """The clock that deadlines read."""
    clock = Clock()
    monkeypatch.setattr(http, "time", clock)
    return clock


def test_a_deadline_ends_a_request_unless_it_is_extended(clock):
    deadline = _Deadline(lambda: False)
    deadline.start(10.0)
    clock.pass_s(deadline, 9)
    deadline.extend()
    clock.pass_s(deadline, 10)

    with pytest.raises(httpcore.ReadTimeout):
        clock.pass_s(deadline, 1)


def test_a_server_that_shuts_down_may_complete_its_reply(clock):
    """The request fails SHUTDOWN_S after the shutdown was seen, not at once."""
    log = []
    deadline = _Deadline(lambda: bool(log))
    deadline.start(3600.0)
    clock.pass_s(deadline, 60)
    log.append("cleaning up before exit")
    clock.pass_s(deadline, 1 + http.SHUTDOWN_S)

    with pytest.raises(httpcore.ReadError, match="shut down"):
        clock.pass_s(deadline, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_do_not_depend_on_how_the_stream_was_cut(size):
    data = b"data: 1\r\n\r\n:\ndata: 2\n\nrest"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]

    assert [b"data: 1", b"", b":", b"data: 2", b""] == list(split_into_lines(chunks))


def test_a_line_without_end_is_refused():
    part = b"x" * (http.LINE_LIMIT_BYTES // 8)

    list(split_into_lines([part] * 8))
    with pytest.raises(BadReply, match="longer than"):
        list(split_into_lines([part] * 9))


@pytest.mark.parametrize("read", [split_into_lines, join_chunks])
def test_an_answer_without_end_is_refused(read):
    chunks = iter([b"data: x\n" * 10] * 100)

    list(read([b"data: x\n" * 10] * 10, limit_bytes=800))
    with pytest.raises(BadReply, match="longer than 800 B"):
        list(read(chunks, limit_bytes=800))
    assert 89 == len(list(chunks))


def test_of_an_error_only_the_beginning_is_read():
    chunks = iter([b"x" * 1000] * 100)

    assert b"xxx" == error_beginning([b"x"] * 3)
    assert http.ERROR_LIMIT_BYTES < len(error_beginning(chunks)) < 70_000
    assert 34 == len(list(chunks))
