"""Runs llama-bench once, followed through its log, to a good end or a clear bad one."""

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from codeneedle.benchlines import is_unknown_type, last_phase
from codeneedle.clock import Lived
from codeneedle.engine.claim import noted
from codeneedle.engine.endings import how, without_words
from codeneedle.engine.logfile import read_log
from codeneedle.errors import CellError
from codeneedle.process import ends_within
from codeneedle.records import Status
from codeneedle.serverlog import Trouble, last_words, trouble

NAP_S = 0.25
"""Between looks at the log: rare, because a look costs the measurement something."""

LONGEST_LOOK_S = 10.0
"""What is longer between two looks was not lived through: we were suspended."""

TAIL_BYTES = 8 << 10
"""Of the log, what is looked at for progress."""

PHASES = 4
"""Warm-up, depth, reading, writing: each may be silent for as long as is allowed."""


class BenchDied(CellError):  # noqa: N818 - named after the fact
    """llama-bench ended with an error."""

    def __init__(self, *, returncode: int, log: Path, log_text: str) -> None:
        found = _why(returncode, log_text)
        super().__init__(
            f"llama-bench ended with {how(returncode)}: {found.reason}",
            hint=f"Its last words are in {log}.",
        )
        self.status = found.status
        self.log_excerpt = last_words(log_text)


class BenchHangs(CellError):  # noqa: N818 - named after the fact
    """llama-bench takes far longer than the depth before lets expect."""

    status = Status.TIMED_OUT.value

    def __init__(self, *, phase: str, seconds: float, log: Path) -> None:
        super().__init__(
            f"llama-bench is not done after {seconds:.0f} s: {phase}",
            hint=f"See {log}. Does the machine do something else at the same time?",
        )
        self.log_excerpt = last_words(read_log(log))


def followed(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, silence_s: float
) -> Generator[str, None, str]:
    """
    Run *argv* to its end.

    Args:
        argv: llama-bench, as an absolute path, and its arguments.
        env: Its whole environment.
        log: Receives its output. Overwritten.
        silence_s: How long it may say nothing, in seconds.

    Yields:
        What it does, as a phrase, whenever it says something.

    Returns:
        Its output, stdout and stderr together.

    Raises:
        BenchDied: If it ends with an error.
        BenchHangs: If it is silent for too long, or talks for ever.
        MachineError: If it cannot be started or stopped.
    """
    size, phase = 0, "loading"
    with noted(argv, env=env, log=log) as child:
        lived_s = Lived(longest_s=LONGEST_LOOK_S)
        began = heard = lived_s()
        while not ends_within(child, NAP_S):
            now, grown = lived_s(), _size(log)
            if grown != size:
                size, heard = grown, now
                phase = last_phase(_tail(log)) or phase
                yield phase
            if now - heard > silence_s or now - began > PHASES * silence_s:
                raise BenchHangs(phase=phase, seconds=now - began, log=log)
    log_text = read_log(log)
    if child.returncode:
        raise BenchDied(returncode=child.returncode, log=log, log_text=log_text)
    return log_text


def _tail(log: Path) -> str:
    # Of a log that somebody took away, nothing is left to tell of progress.
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace")
    return ""


def _size(log: Path) -> int:
    with contextlib.suppress(OSError):
        return log.stat().st_size
    return 0


def _why(returncode: int, log_text: str) -> Trouble:
    if is_unknown_type(log_text):
        return Trouble(Status.UNSUPPORTED, "it does not know this cache type")
    return trouble(log_text) or without_words(returncode)
