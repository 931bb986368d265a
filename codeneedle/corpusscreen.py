"""What a person sees while a large corpus, or large weights, are read."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console

from codeneedle.gathering import Listener, Progress
from codeneedle.units import duration

QUIET_S = 2.0
"""What takes no longer needs no line."""

EVERY_S = 0.25
"""How often a line on a terminal is new."""

PLAIN_EVERY_S = 10.0
"""How often a log hears that it goes on."""

_MB = 1_000_000


@dataclass(slots=True, kw_only=True)
class ReadingLine:
    """
    One line on how far something has been read, from when it takes a while.

    Attributes:
        show: Takes the line, in place of an earlier one or below it.
        every_s: Time between two lines, in seconds.
        clock: Monotonic seconds.
    """

    show: Callable[[str], None]
    every_s: float
    clock: Callable[[], float] = time.monotonic
    _phase: str = ""
    _began: float = 0.0
    _next: float = field(default=0.0)

    def hear(self, progress: Progress) -> None:
        """Take *progress* in; show it if it is time for that."""
        now = self.clock()
        if progress.phase != self._phase:
            first = not self._phase
            self._phase, self._began = progress.phase, now
            self._next = now + QUIET_S if first else self._next
        if now >= self._next:
            self._next = now + self.every_s
            self.show(reading_phrase(progress, now - self._began))


def reading_phrase(progress: Progress, elapsed_s: float) -> str:
    """``reading the corpus: 34 of 98 MB, 12.0 s left``, after so many seconds."""
    done, total = progress.done_bytes, progress.total_bytes
    far = f"{progress.phase}: {done / _MB:.0f} of {total / _MB:.0f} MB"
    if not done:
        return far
    return f"{far}, {duration(elapsed_s * (total - done) / done)} left"


def line_in(console: Console, show: Callable[[str], None]) -> ReadingLine:
    """A line that *show* takes, as often as *console* should have it."""
    every_s = EVERY_S if console.is_terminal else PLAIN_EVERY_S
    return ReadingLine(show=show, every_s=every_s)


@contextlib.contextmanager
def reading(console: Console) -> Iterator[Listener]:
    """
    Show how far a corpus has been read, if it takes a while.

    Yields:
        What `codeneedle.corpus.load` should tell it to.
    """
    if not console.is_terminal:
        yield line_in(console, console.print).hear
        return
    with contextlib.ExitStack() as stack:
        status = console.status("")

        def show(line: str) -> None:
            # Not started before, as even an empty one takes a line.
            status.update(line)
            status.start()

        stack.callback(status.stop)
        yield line_in(console, show).hear
