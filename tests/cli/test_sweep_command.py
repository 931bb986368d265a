"""The sweep command without a server: the order of checks, and what comes next."""

from pathlib import Path

import pytest

from codeneedle.cli import sweep
from codeneedle.cli.sweep import next_commands, planned
from codeneedle.engines.llama_cpp import installation
from codeneedle.errors import ToolMissing
from codeneedle.sweep.request import DEFAULT_OUT, Request


def test_llama_server_is_looked_for_before_the_corpus_is_read(monkeypatch, tmp_path):
    """
    A missing program is told at once, not after a minute of reading.
    """

    def read(_name):
        raise AssertionError("the corpus was read")

    monkeypatch.setattr(sweep, "load", read)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    with pytest.raises(ToolMissing, match="llama-server"):
        planned(Request())


@pytest.mark.parametrize(
    ("metric", "out", "arguments"),
    [
        ("matched", DEFAULT_OUT, "a/b"),
        ("kld", DEFAULT_OUT, "a/b --metric kld"),
        ("matched", Path("runs"), "a/b --out runs"),
        ("matched", Path("my runs; rm -r x"), "a/b --out 'my runs; rm -r x'"),
    ],
)
def test_the_commands_that_come_next_are_quoted_for_a_shell(metric, out, arguments):
    """
    They are there to be copied.
    """
    assert next_commands("a/b", metric, out) == (
        f"codeneedle grid {arguments} | codeneedle heatmap {arguments}"
    )
