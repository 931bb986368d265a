"""Runs a tool to its end, and ends it if it says and writes nothing for too long."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from codeneedle.system.files import file_size_or_zero
from codeneedle.system.orphans import POLL_S, running_with_note
from codeneedle.system.processes import (
    FILE_LIMIT_BYTES,
    ends_within,
)


def run_with_silence_limit(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    grown: Callable[[], None],
    silence_s: float,
    file_limit_bytes: int | None = FILE_LIMIT_BYTES,
    written: Callable[[], int] = lambda: 0,
) -> int | None:
    """
    Run a program to its end, as `running_with_note` does; end it if nothing comes.

    Args:
        argv: See `running_with_note`.
        env: See `running_with_note`.
        log: Receives its output; replaced.
        grown: Called after something has come; an exception ends the program.
        silence_s: Limit of the time in which nothing does, in seconds.
        file_limit_bytes: See `running`.
        written: Bytes that it has written elsewhere, so far.

    Returns:
        Its exit code; None if it was ended for taking too long.

    Raises:
        MachineError: As `running_with_note` does.
    """
    with running_with_note(
        argv, env=env, log=log, file_limit_bytes=file_limit_bytes
    ) as child:
        last_s = time.monotonic()
        size = 0
        while not ends_within(child, POLL_S):
            now_s, before = time.monotonic(), size
            size = file_size_or_zero(log) + written()
            if size != before:
                last_s = now_s
                grown()
            if now_s - last_s > silence_s:
                return None
        return child.returncode
