"""What a person sees while a large corpus is read: nothing, or one line."""

import io

import pytest
from rich.console import Console

from codeneedle.cli import progress as corpusscreen
from codeneedle.cli.progress import ReadingLine, reading, reading_phrase
from codeneedle.corpora.reading import Progress


def progress(done_mb, phase="reading the corpus"):
    return Progress(
        phase=phase, done_bytes=done_mb * 1_000_000, total_bytes=100_000_000
    )


@pytest.mark.parametrize(
    ("done", "elapsed", "phrase"),
    [
        (0, 3.0, "reading the corpus: 0 of 100 MB"),
        (20, 3.0, "reading the corpus: 20 of 100 MB, 12.0 s left"),
        (100, 9.0, "reading the corpus: 100 of 100 MB, 0.0 s left"),
    ],
)
def test_the_rest_is_estimated_from_what_is_done(done, elapsed, phrase):
    """
    As fast as so far.
    """
    assert phrase == reading_phrase(progress(done), elapsed)


def test_a_line_is_shown_after_two_seconds_and_then_now_and_then():
    """
    What is over sooner shows nothing.
    """
    shown = []
    now = 0.0
    line = ReadingLine(show=shown.append, every_s=10, clock=lambda: now)
    for done in range(31):
        now = float(done)
        line.hear(progress(done))

    assert [
        "reading the corpus: 2 of 100 MB, 1:38 left",
        "reading the corpus: 12 of 100 MB, 1:28 left",
        "reading the corpus: 22 of 100 MB, 1:18 left",
    ] == shown


def test_a_second_phase_is_estimated_from_its_own_beginning():
    """
    It is quicker, and waits for no two seconds of its own.
    """
    shown = []
    now = 0.0
    line = ReadingLine(show=shown.append, every_s=1, clock=lambda: now)
    line.hear(progress(0))
    now = 50.0
    line.hear(progress(0, "comparing signatures"))
    now = 52.0
    line.hear(progress(50, "comparing signatures"))

    assert "comparing signatures: 50 of 100 MB, 2.0 s left" == shown[-1]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_long_is_shown_on_terminals_and_in_logs(monkeypatch, is_terminal):
    """
    A terminal has one line that goes at the end, a log keeps its lines.
    """
    monkeypatch.setattr(corpusscreen, "QUIET_S", 0.0)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with reading(console) as hears:
        hears(progress(10))
        hears(progress(20))

    assert "reading the corpus: 10 of 100 MB" in console.file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_over_soon_shows_nothing(is_terminal):
    """
    Not even an empty line.
    """
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=80)
    with reading(console) as hears:
        hears(progress(10))

    assert "" == console.file.getvalue()
