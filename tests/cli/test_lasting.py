"""Progress may be lost, and what was asked for may not."""

import io
import sys

import pytest

from codeneedle.cli.app import Lasting, lasting_streams


def test_progress_goes_on_where_nobody_can_hear_it():
    """
    A full disk and a closed stream are no errors.
    """
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:  # noqa: PTH123
        lasting = Lasting(full)
        assert 5 == lasting.write("line\n")
        lasting.flush()
        full.buffer.raw.close()
    assert 5 == lasting.write("line\n")
    lasting.flush()


def test_a_lasting_stream_is_otherwise_its_stream(monkeypatch):
    """
    Encoding and terminal are those of the stream.
    """
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with lasting_streams():
        sys.stderr.write("heard\n")
        assert not sys.stderr.isatty()
    assert "heard\n" == sys.stderr.getvalue()


def test_what_was_asked_for_must_arrive(monkeypatch):
    """
    A disk that is full is told, and the interpreter does not complain a second time.
    """
    monkeypatch.setattr(sys, "stderr", None)
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space left"), lasting_streams():
            sys.stdout.write("k,v\n")
        full.flush()


def test_streams_that_were_never_open_are_none(monkeypatch):
    """
    As after ``2>&-``.
    """
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    with lasting_streams():
        pass
    assert sys.stderr is None
