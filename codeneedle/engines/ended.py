"""How a server or a tool ended, by its exit code and the end of its log."""

from collections.abc import Iterable
from pathlib import Path
from signal import SIGKILL, SIGXFSZ, Signals

from codeneedle.errors import CellError
from codeneedle.records.record import Status, Trouble
from codeneedle.system import machine
from codeneedle.system.files import tail
from codeneedle.text import visible

LAST_LINES = 12
"""Of the log of a program that failed, in its record."""

LINE_CHARACTERS = 500
"""Of each of them; a model's own text may make lines of megabytes."""

END_BYTES = 64 << 10
"""What is read of the end of a log."""


class Died(CellError):  # noqa: N818 - named after the fact
    """A program ended while it was still needed, or with an error."""

    returncode: int  # as of `subprocess.Popen`

    def __init__(
        self,
        program: str,
        *,
        returncode: int,
        log: Path,
        excerpt: tuple[str, ...],
        cause: Trouble | None = None,
        hint: str = "",
    ) -> None:
        """
        Say how it ended, and why.

        Args:
            program: Its name.
            returncode: As of `subprocess.Popen`.
            log: Its log.
            excerpt: Lines of the log that explain it.
            cause: What the log says of the cause; None for nothing.
            hint: What else to do than look into the log.
        """
        known = cause or exit_cause(returncode)
        super().__init__(
            f"{program} ended with {exit_phrase(returncode)}: {known.reason}",
            hint=f"{hint} The end of its log is in {log}.".lstrip(),
            status=known.status,
            log_excerpt=excerpt,
        )
        self.returncode = returncode


def silent(
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


def exit_cause(returncode: int) -> Trouble:
    """Why a program ended whose log does not tell."""
    if returncode == -SIGKILL:
        return killed()
    if returncode == -SIGXFSZ:
        reason = "its log exceeds the limit of file sizes: see ulimit -f"
        return Trouble(Status.CRASHED, reason)
    return Trouble(Status.CRASHED, "its log does not say why")


def exit_phrase(returncode: int) -> str:
    """``exit code 3`` or ``SIGKILL``: how a program ended."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def killed() -> Trouble:
    """
    Why SIGKILL ended a server or tool, as far as the kernel tells.

    Users send it, too, and so do programs that watch the memory.
    """
    if machine.ran_out_of_memory():
        reason = "killed by SIGKILL: the kernel ended programs for lack of memory"
        return Trouble(Status.OUT_OF_MEMORY, reason)
    reason = "killed by SIGKILL; nothing shows that memory ran out"
    return Trouble(Status.CRASHED, reason)


def end_of(log: Path) -> tuple[str, ...]:
    """The last lines of *log*, safe to show."""
    return last_lines(tail(log, END_BYTES).splitlines())


def last_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The last `LAST_LINES` of *lines* that are not blank, safe to show."""
    shown = [each for each in lines if each.strip()][-LAST_LINES:]
    return tuple(visible(each.rstrip())[:LINE_CHARACTERS] for each in shown)
