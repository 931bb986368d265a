"""Programs that are measured: how long one takes, and how much memory at most."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_place import Stopped

from codeneedle.system.processes import running

CODENEEDLE = (sys.executable, "-m", "codeneedle")
"""The program, as this interpreter has it."""

_UNIT = 1 if sys.platform == "darwin" else 1 << 10
"""Of ``ru_maxrss``: bytes on macOS, KiB on Linux, getrusage(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """
    A program that came to its end.

    Attributes:
        wall_s: From its start to its end, in seconds.
        peak_bytes: Its largest resident size; never less than ours, as it begins
            as a copy of us.
        output: What it printed and complained about, interleaved.
    """

    wall_s: float
    peak_bytes: int
    output: str


def timed(argv: Sequence[str], *, log: Path) -> Timed:
    """
    Run *argv* to its end, alone.

    Args:
        argv: Program and arguments.
        log: Receives its output. Overwritten.

    Raises:
        Stopped: If it ends with another code than 0.
        MachineError: If it cannot be started.
    """
    began = time.perf_counter()
    # In a terminal it would draw for people, which takes its time.
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    with running(argv, env=env, log=log) as child:
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
    output = log.read_text(encoding="utf-8", errors="replace")
    if child.returncode:
        last = output.strip().splitlines()[-2:]
        raise Stopped(
            f"{' '.join(argv[1:])} ends with {child.returncode}: {' '.join(last)}",
            hint="Run it by hand; a benchmark measures what works.",
        )
    return Timed(wall_s=wall_s, peak_bytes=usage.ru_maxrss * _UNIT, output=output)


def codeneedle(*arguments: str, log: Path) -> Timed:
    """Run the program with *arguments*; errors are those of `timed`."""
    return timed((*CODENEEDLE, *arguments), log=log)
