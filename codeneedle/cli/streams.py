"""Where commands print: streams that may break, consoles, and the forms of output."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from codeneedle.errors import BadInput
from codeneedle.text import escape_invisible_in_lines

if TYPE_CHECKING:
    from rich.console import Console

    from codeneedle.document import Document
    from codeneedle.report.tidy import TableRow

PIPED_WIDTH = 1000
"""Columns where the output is a file or a pipe: paths and sentences stay whole."""

LEAST_WIDTH = 20
"""Columns in which every report can be drawn."""


class BestEffort:
    """
    A text stream whose write errors are ignored.

    Progress goes to stderr: a sweep goes on after its terminal was closed, the reader
    of its pipe went away, or the disk of its log filled up.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write *text*, if possible."""
        # ValueError: the stream is closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def tolerate_stderr_flush_stdout() -> Iterator[None]:
    """
    Ignore write errors on stderr from now on; flush stdout after the block.

    Raises:
        OSError: If stdout cannot be written to the end.
    """
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", BestEffort(sys.stderr))
    try:
        yield
    finally:
        if sys.stdout is not None:
            _flush_or_redirect_to_null(sys.stdout)


def refuse_closed_stdout() -> None:
    """
    Stop where stdout is closed.

    Raises:
        BadInput: With where to redirect it.
    """
    if sys.stdout is None:
        raise BadInput(
            source="stdout",
            reason="is closed, so the result cannot be printed",
            hint="Redirect it to a file or to /dev/null instead of closing it.",
        )


def _flush_or_redirect_to_null(stream: TextIO) -> None:
    """
    Flush *stream*.

    One that fails is put to the null device, and the error raised.
    """
    try:
        stream.flush()
    except OSError:
        # Else the interpreter flushes again at its end, and prints a traceback.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def show_document(document: "Document", form: str = "", end: "Document" = ()) -> None:
    """
    Print *document* for a terminal, or in the *form* ``markdown``.

    A terminal that it scrolls through shows its *end* below it.
    """
    if form == "markdown":
        from codeneedle.report.markdown import markdown

        print_text(markdown(document))
    else:
        from codeneedle.report.terminal import print_with_end_if_long

        print_with_end_if_long(stdout_console(), document, end)


def print_csv(rows: "Iterable[TableRow]") -> None:
    """Print *rows* as CSV."""
    from codeneedle.report.data import csv_text

    print_text(csv_text(rows))


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    from codeneedle.report.data import json_text

    print_text(json_text(value))


def print_text(text: str) -> None:
    """Print *text* as it is."""
    # Not by typer.echo, which drops escape sequences where there is no terminal.
    sys.stdout.write(text)


def print_escaped_on_terminal(text: str) -> None:
    """Write *text* unchanged; to a terminal, with control characters as escapes."""
    if sys.stdout.isatty():
        sys.stdout.write(escape_invisible_in_lines(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(text))


def stdout_console(file: object = None) -> "Console":
    """
    What is drawn to stdout, or to *file* in its place.

    Without a terminal it has `PIPED_WIDTH` columns, unless COLUMNS says otherwise.
    """
    from rich.console import Console

    console = Console(file=cast("TextIO | None", file), highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return _widen_to_least_width(console)


PIPED_ANSWERS = 120
"""Columns that two answers beside each other take in a pipe."""


def answers_width() -> int:
    """Columns for two answers: those of the terminal, else `PIPED_ANSWERS`."""
    console = stdout_console()
    return PIPED_ANSWERS if console.width == PIPED_WIDTH else console.width


def stderr_console() -> "Console":
    """What is drawn to stderr, progress and notes."""
    from rich.console import Console

    return _widen_to_least_width(Console(stderr=True, highlight=False, soft_wrap=True))


def _widen_to_least_width(console: "Console") -> "Console":
    """*console* with `LEAST_WIDTH` columns or more, as terminals may report none."""
    console.width = max(console.width, LEAST_WIDTH)
    return console
