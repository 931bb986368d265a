"""The command, called in this process: most of a start is imports."""

import io
from subprocess import CompletedProcess

import pytest

from codeneedle.cli.main import main as run_codeneedle

VARIABLES = {"COLUMNS": "100", "NO_COLOR": "1"}
"""A fixed width, and no colours."""


def called(folder, *arguments, **variables):
    """What ``codeneedle ARGUMENTS`` in *folder* prints, and its exit code."""
    words = [str(word) for word in arguments]
    out, err = _stream(), _stream()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in (VARIABLES | variables).items():
            patch.setenv(name, value)
        patch.setattr("sys.argv", ["codeneedle", *words])
        patch.setattr("sys.stdin", _stream())
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        with pytest.raises(SystemExit) as ended:
            run_codeneedle()
    code = ended.value.code or 0
    return CompletedProcess(words, code, *map(_text, (out, err)))


def _stream():
    """A stream without a terminal, to which bytes can be written, too."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()
