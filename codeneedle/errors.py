"""
The errors of codeneedle: message, hint and exit code; the nearest known name in place
of an unknown one, and what to do where memory, files or disk run out.

* CodeneedleError          exit 1   base; the user sees it without a traceback
  + RequestError           exit 2   the request is wrong
    - UnknownName                   no such name; the nearest known one is offered
    - BadInput                      a file, option or value cannot be used
  + MachineError           exit 3   this machine cannot run it
    - ToolMissing                   a program is not installed or too old
    - ToolFailed                    a program ran and failed
    - WeightsUnusable               the model file is missing, damaged or unsupported
    - FolderUnusable                a folder cannot be written to, is full or is gone
    - SystemRefuses                 memory, files, processes or disk ran out
  + NothingToShow          exit 1   a run without numbers for this report
  + CellError              exit 1   one cell failed: becomes a record with a status

Other modules define a subclass (`BadRecord`, `OtherSetup` ...) only if it is caught by
name or has other facts.
"""

import difflib
import errno
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import ClassVar

from codeneedle.exit_codes import BAD_REQUEST, CANNOT_RUN, UNFINISHED


class CodeneedleError(Exception):
    """
    Base of all errors for the user; other exceptions are bugs and keep their traceback.

    Subclasses take facts and compose the message.
    """

    exit_code: ClassVar[int] = UNFINISHED

    hint: str  # the next action, as a sentence

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(CodeneedleError):
    """The request is wrong: usage, sweep file, corpus, incompatible run folder."""

    exit_code = BAD_REQUEST


class MachineError(CodeneedleError):
    """This machine cannot run it: no llama.cpp, no weights, no memory, no disk."""

    exit_code = CANNOT_RUN


class CellError(CodeneedleError):
    """One cell failed; it becomes a record, and the sweep goes on."""

    status: str = "crashed"  # value of the `record.Status` that the record gets
    log_excerpt: tuple[str, ...] = ()
    """The lines of the server's log that show the cause."""

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        status: str = "",
        log_excerpt: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status or self.status
        self.log_excerpt = log_excerpt


class UnknownName(RequestError):  # noqa: N818 - named after the fact
    """An unknown name; the hint has the nearest known one."""

    def __init__(self, *, kind: str, name: str, known: Collection[str]) -> None:
        super().__init__(f"unknown {kind} '{name}'", hint=did_you_mean(name, known))


class BadInput(RequestError):  # noqa: N818 - named after the fact
    """A file, option or value of the user that cannot be used."""

    source: str  # its place: a path, or an option such as ``--context``
    reason: str  # what is wrong, without a full stop

    def __init__(
        self, *, source: object, reason: str, hint: str, key: str = ""
    ) -> None:
        place = f"{source}, key '{key}'" if key else str(source)
        super().__init__(f"{place}: {reason}", hint=hint)
        self.source = str(source)
        self.reason = reason


class NothingToShow(CodeneedleError):  # noqa: N818 - named after the fact
    """A run has no cell with *what* a report shows; it may have one later."""

    def __init__(self, *, run: str, what: str, hint: str) -> None:
        super().__init__(f"{run} has no cell with {what}", hint=hint)


class ToolMissing(MachineError):  # noqa: N818 - named after the fact
    """A required program is missing or too old."""

    def __init__(self, *, tool: str, reason: str, hint: str) -> None:
        super().__init__(f"{tool} {reason}", hint=hint)


class ToolFailed(MachineError):  # noqa: N818 - named after the fact
    """
    A program failed, or could not be started.

    Args:
        tool: Name of the program.
        reason: What happened, without a full stop.
        hint: The next action; by default to read the log.
        log: Its log, if it has one.
    """

    def __init__(
        self, *, tool: str, reason: str, hint: str = "", log: Path | None = None
    ) -> None:
        super().__init__(f"{tool} {reason}", hint=hint or f"See {log} for the cause.")


class WeightsUnusable(MachineError):  # noqa: N818 - named after the fact
    """A model file is missing, damaged, unsupported or changed while in use."""

    def __init__(self, *, path: Path, reason: str, hint: str) -> None:
        super().__init__(f"{path} {reason}", hint=hint)
        self.path = path


class FolderUnusable(MachineError):  # noqa: N818 - named after the fact
    """A folder cannot be written to, is full, or has been removed."""

    def __init__(
        self,
        *,
        folder: Path,
        reason: str,
        hint: str = "",
    ) -> None:
        is_forbidden = os.strerror(errno.EACCES) in reason
        usual = "Choose another folder with --out" + (
            ", or ask its owner." if is_forbidden else ", or free some space."
        )
        super().__init__(f"cannot write to {folder}: {reason}", hint=hint or usual)
        self.folder = folder


def refuse_unknown_keys(
    table: Iterable[str], known: Collection[str], *, source: Path | str, key: str = ""
) -> None:
    """
    Refuse unknown keys, so that a typo never runs a default silently.

    Args:
        table: The keys.
        known: Valid keys.
        source: File of the table.
        key: Name of the table; empty for the whole file.

    Raises:
        BadInput: If a key is not *known*; names the first one.
    """
    for name in table:
        if name not in known:
            within = f" in [{key}]" if key else ""
            raise BadInput(
                source=source,
                reason=f"unknown key '{name}'{within}",
                hint=did_you_mean(name, known),
            )


def bad_value_error(option: str, text: str, kind: str, *examples: str) -> BadInput:
    """The error for the *text* of an *option* that is not *kind*, such as a size."""
    shown = " or ".join(f"{option} {example}" for example in examples)
    return BadInput(
        source=option,
        reason=f"'{text}' is not {kind}",
        hint=f"Give one, for example {shown}",
    )


def msgspec_reason_and_hint(reason: str, *, otherwise: str) -> tuple[str, str]:
    """
    Reason and hint for an invalid value, in words.

    Args:
        reason: Message of msgspec, which may name a range: ``Expected `int` >= 1``.
        otherwise: The hint if it names none.
    """
    if "Expected `array`" in reason:
        return reason, "Write a list: in square brackets, with commas."
    end = re.search(r"Expected `int` ([<>])= (\d+)", reason)
    if end is None:
        return reason, otherwise
    wanted = f"a whole number of {end[2]} or {'more' if end[1] == '>' else 'less'}"
    return reason.replace(end[0], f"must be {wanted}"), f"Give {wanted}."


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint with the nearest *known* name; without a near one, it lists them all."""
    if near := nearest_name(name, known):
        return f"Did you mean '{near}'?"
    return f"Known: {', '.join(known)}." if known else "None is known yet."


LETTERS_OF_A_PART = 3
"""Letters from which on a part of a name means it."""


def nearest_name(name: str, known: Collection[str]) -> str:
    """
    The one of *known* that *name* means, whatever its case; empty if none is near.

    A mistyped name, the beginning of one, or, of some letters, a part of a single one.
    """
    word, by_word = (
        name.casefold(),
        {candidate.casefold(): candidate for candidate in known},
    )
    begins = [candidate for candidate in by_word if candidate.startswith(word)]
    close = difflib.get_close_matches(word, list(by_word), n=1)
    parts = [candidate for candidate in by_word if word in candidate]
    is_part = len(word) >= LETTERS_OF_A_PART and len(parts) == 1
    found = ([word] if word in by_word else []) + close + begins[: len(word)]
    first = next(iter([*found, *(parts if is_part else [])]), "")
    return by_word.get(first, "")


_MEMORY_HINT = "Close other programs, or raise the limit: ulimit -v unlimited"
_DISK_HINT = "Free some space, then run the same command again."
_PROCESS_HINT = "Close other programs, or raise the limit: ulimit -u"

_RIGHTS_HINT = "You have no right to: ask its owner, or use a folder of your own."

HINTS: dict[int, str] = {
    errno.EACCES: _RIGHTS_HINT,
    errno.EPERM: _RIGHTS_HINT,
    errno.ENOMEM: _MEMORY_HINT,
    errno.EMFILE: "Raise the limit of open files: ulimit -n 1024",
    errno.ENFILE: "The whole system has too many open files: close other programs.",
    errno.ENOSPC: _DISK_HINT,
    errno.EDQUOT: _DISK_HINT,
    errno.EFBIG: "Raise the limit of file sizes: ulimit -f unlimited",
    errno.EROFS: "Choose a folder that can be written to.",
    errno.EIO: "Is the disk failing, or a network share gone?",
    errno.ESTALE: "Is a network share gone?",
    errno.EAGAIN: _PROCESS_HINT,
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
"""What to do about errors of the system, by errno; others are bugs."""

_NO_MEMORY = re.compile("Cannot allocate memory|failed to map segment")
"""In the message of the dynamic loader."""


class SystemRefuses(MachineError):  # noqa: N818 - named after the fact
    """Memory, files, processes or disk ran out, and no other error covers it."""

    def __init__(self, *, number: int, file: str | None = None) -> None:
        """State the error of an errno *number* in `HINTS`, and its *file*."""
        where = f": {file}" if file else ""
        super().__init__(
            f"the system refuses: {os.strerror(number)}{where}", hint=HINTS[number]
        )


def system_refusal(error: BaseException) -> SystemRefuses | None:
    """
    The `SystemRefuses` that caused *error*; None if it has another cause.

    Libraries wrap errors of the system in their own.
    """
    cause: BaseException | None = error
    while cause is not None:
        number = _errno(cause)
        if number in HINTS:
            file = getattr(cause, "filename", None)
            return SystemRefuses(number=number, file=str(file) if file else None)
        cause = cause.__cause__
    return None


def hint_of_system_error(error: BaseException) -> str:
    """The hint for an error that the system caused; empty for others."""
    refused = system_refusal(error)
    return refused.hint if refused else ""


def _errno(error: BaseException) -> int:
    """The errno of *error*; 0 if it has none."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError):
        return error.errno or 0
    # Loading a library and starting a thread raise classes without an errno.
    if isinstance(error, ImportError) and _NO_MEMORY.search(str(error)):
        return errno.ENOMEM
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return errno.EAGAIN
    return 0
