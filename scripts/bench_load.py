"""
Loads a corpus in a process of its own, and tells as JSON what that took.

    python scripts/bench_load.py FOLDER [--alone]
"""

import contextlib
import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from codeneedle.corpora import corpus, workers
from codeneedle.corpora.reading import Progress
from codeneedle.corpora.workers import Alone

LOOK_S = 0.1
"""Between looks at workers. Each keeps its own peak: only last moments are missed."""

_UNIT = 1 if sys.platform == "darwin" else 1 << 10
"""Of ``ru_maxrss``: bytes on macOS, KiB on Linux, getrusage(2)."""


@dataclass(slots=True)
class Workers:
    """
    What was seen of children.

    Attributes:
        bytes: Their largest resident size, of all that lived at once together.
        count: The most that lived at once.
    """

    bytes: int = 0
    count: int = 0

    def look(self) -> None:
        """See who lives now."""
        peaks = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):
                peaks.append(_peak(child))
        self.bytes = max(self.bytes, sum(peaks))
        self.count = max(self.count, len(peaks))


@contextlib.contextmanager
def watched() -> Iterator[Workers]:
    """Children that are seen in the block."""
    seen = Workers()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(LOOK_S):
            seen.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _peak(child: psutil.Process) -> int:
    """Linux keeps the peak itself, proc(5); elsewhere, what is now."""
    status = Path(f"/proc/{child.pid}/status")
    if not status.exists():
        return int(child.memory_info().rss)
    return int(status.read_text().partition("VmHWM:")[2].split()[0]) << 10


def clocked(clock: dict[str, float]) -> Callable[[Progress], None]:
    """Notes in *clock* when each phase was first heard of."""

    def hear(progress: Progress) -> None:
        clock.setdefault(progress.phase, time.perf_counter())

    return hear


def main() -> None:
    """Load, and print what it took."""
    folder, is_alone = sys.argv[1], "--alone" in sys.argv[2:]
    with contextlib.ExitStack() as stack:
        if is_alone:
            nobody = mock.patch.object(workers, "team", return_value=Alone())
            stack.enter_context(nobody)
        seen = stack.enter_context(watched())
        phases: dict[str, float] = {}
        began = time.perf_counter()
        loaded = corpus.load(folder, hears=clocked(phases))
        wall_s = time.perf_counter() - began
    told = {
        "wall_s": wall_s,
        "phases": {phase: at - began for phase, at in phases.items()},
        "parent_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT,
        "worker_bytes": seen.bytes,
        "workers": seen.count,
        "size_bytes": loaded.size_bytes,
        "held_bytes": len(loaded.text.encode()),
        "functions": loaded.functions_in_all,
        "skipped": len(loaded.skipped),
        "sha256": loaded.sha256,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
