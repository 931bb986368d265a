"""
Why a server or a tool ended: by its signal or exit code (SIGKILL for lack of memory, a
log that is too large), else by what its log says.
"""

from collections.abc import Iterable
from pathlib import Path
from signal import SIGKILL, SIGXFSZ, Signals

from codeneedle.engines.reasons import (
    LINE_CHARACTERS,
    MEMORY,
    find_most_telling_trouble,
    find_trouble_by_signs,
    printable_line_beginning,
)
from codeneedle.errors import CellError
from codeneedle.records.record import Status, Trouble
from codeneedle.system import machine
from codeneedle.system.files import masked_log_tail
from codeneedle.text import escape_invisible, one_line

LAST_LINES = 12
"""Of the log of a program that failed, in its record."""

END_BYTES = 64 << 10
"""What is read of the end of a log."""

LONG_END_BYTES = 256 << 10
"""The same where an error may stand above a usage text or two tracebacks."""

UNTOLD = "its log does not say why"

LAST_WORDS = 200
"""Characters of the last line, where nothing else tells."""


class Died(CellError):  # noqa: N818 - named after the fact
    """A program ended while it was still needed, or with an error."""

    returncode: int  # see `subprocess.Popen`
    is_explained: bool  # whether its log or a signal says why

    def __init__(
        self,
        program: str,
        *,
        returncode: int,
        log: Path,
        excerpt: tuple[str, ...],
        cause: Trouble,
        hint: str = "",
    ) -> None:
        """
        Say how it ended, and why.

        Args:
            program: Its name.
            returncode: See `subprocess.Popen`.
            log: Its log.
            excerpt: Lines of the log that explain it.
            cause: Why it ended.
            hint: What else to do than look into the log.
        """
        super().__init__(
            f"{program} ended with {exit_phrase(returncode)}: {cause.reason}",
            hint=f"{hint} The end of its log is in {log}.".lstrip(),
            status=cause.status,
            log_excerpt=excerpt,
        )
        self.returncode = returncode
        self.is_explained = cause.reason != UNTOLD


def silence_error(
    program: str,
    seconds: float,
    *,
    log: Path,
    excerpt: tuple[str, ...],
    why: str = "",
    hint: str = "",
) -> CellError:
    """The error for a *program* that has written nothing for so many *seconds*."""
    reason = f"; {why}" if why else ""
    return CellError(
        f"{program} is running but has written nothing for {seconds:g} s{reason}",
        hint=f"See {log}. {hint}".rstrip(),
        status=Status.TIMED_OUT,
        log_excerpt=excerpt,
    )


def exit_cause_from_log(log: Path, returncode: int) -> Trouble:
    """
    Why a program of any kind ended: by a lack of memory in its log, else its signal,
    else a complaint in its log, else the last line there.
    """
    lines = [
        *map(
            printable_line_beginning, masked_log_tail(log, LONG_END_BYTES).splitlines()
        )
    ]
    last = [line for line in lines if line.strip()][-1:]
    said = Trouble(Status.CRASHED, one_line(last[0])[:LAST_WORDS]) if last else None
    lack = find_trouble_by_signs(((Status.OUT_OF_MEMORY, MEMORY),), lines)
    return lack or exit_cause(returncode, find_most_telling_trouble(lines) or said)


def exit_cause(returncode: int, said: Trouble | None = None) -> Trouble:
    """Why a program ended: SIGKILL or a full file first, else what its log *said*."""
    signal = _ending_signal(returncode)
    if signal == SIGKILL:
        return trouble_of_sigkill()
    if signal == SIGXFSZ:
        reason = "its log exceeds the limit of file sizes: see ulimit -f"
        return Trouble(Status.CRASHED, reason)
    return said or Trouble(Status.CRASHED, UNTOLD)


def exit_phrase(returncode: int) -> str:
    """``exit code 3``, ``SIGKILL`` or ``exit code 137 (SIGKILL)``: how it ended."""
    if returncode >= 0:
        signal = _ending_signal(returncode)
        told = f" ({signal.name})" if signal else ""
        return f"exit code {returncode}{told}"
    try:
        return Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


SHELL_SIGNALS = 128
"""What a shell adds to the signal that ended its child, and exits with."""


def _ending_signal(returncode: int) -> Signals | None:
    """The signal that ended a program, or what a shell started for us; None if none."""
    number = -returncode if returncode < 0 else returncode - SHELL_SIGNALS
    return Signals(number) if number in set(Signals) else None


def trouble_of_sigkill() -> Trouble:
    """
    Why SIGKILL ended a server or tool, as far as the kernel tells.

    Users send it, too, and so do programs that watch the memory.
    """
    if machine.has_memory_kill_since_start():
        reason = "the kernel ended programs for lack of memory"
        return Trouble(Status.OUT_OF_MEMORY, reason)
    reason = "nothing shows that memory ran out"
    return Trouble(Status.CRASHED, reason)


def last_log_lines(log: Path) -> tuple[str, ...]:
    """The last `LAST_LINES` of *log* that are not blank, safe to show."""
    return last_lines(masked_log_tail(log, END_BYTES).splitlines())


def last_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The last `LAST_LINES` of *lines* that are not blank, safe to show."""
    shown = [line for line in lines if line.strip()][-LAST_LINES:]
    return tuple(escape_invisible(line.rstrip())[:LINE_CHARACTERS] for line in shown)
