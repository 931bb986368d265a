"""
Which lines of a log say why a program failed, whatever program it is: lack of memory in
the words of all backends, what Python raises, the first of the last errors.
"""

import re
from collections.abc import Iterable, Sequence

from codeneedle.records.record import Status, Trouble
from codeneedle.text import one_line

LINE_CHARACTERS = 500
"""Of a line of a log; a model's own text may make lines of megabytes."""

Signs = Sequence[tuple[Status, re.Pattern[str]]]
"""Lines that tell what failed, most specific first."""

LAST_COMPLAINTS = 20
"""Lines at the end of a log that may say why; without usage texts and stacks."""

GAP_LINES = 4
"""Lines between two complaints that are about one failure."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?|.)?")

_ADVICE = (
    r"(?!.*\b(?:avoid|prevent|risk|may|might|if|lead to|case of)\b[^.:]{0,60}"
    r"(?:out of memory|\boom\b))"
)
_GOES_ON = (
    r"(?!.*(?:pinned memory|prompt cache|retry|falling back|fallback|skipping reorder"
    r"|m(?:un)?lock |this warning is normal))"
)
"""Without pinned or locked memory, or an old prompt, a server only gets slower."""

_ALLOCATES = r"(?:re|m|c)?alloc(?:at(?:e|ing|ion))?"

MEMORY = re.compile(
    rf"^{_ADVICE}{_GOES_ON}.*(?:"
    # CUDA, HIP, MUSA, Vulkan, Metal, SYCL, Level Zero, OpenCL, PyTorch
    r"out[ _-]?of[ _-]?(?:\w+[ _-]){0,2}(?:memory|resources)"
    r"|OutOf\w*Memory|MemoryAllocation|memory[ _]allocation[ _](?:error|fail|of size)"
    r"|ALLOCATION_FAIL|MEMORY_ALLOCATION|INVALID_BUFFER_SIZE|\bENOMEM\b|\bNO_MEMORY\b"
    # C, C++, Python, the system
    r"|bad_alloc|length_error|\bMemoryError\b|cannot allocate memory"
    r"|memory exhausted|mem_buffer != NULL"
    # whatever asks for memory and does not get it
    rf"|(?:failed|unable|not able|attempt\w*) to {_ALLOCATES}\b"
    rf"|(?:can(?:no|')t|could(?: no|n')t) {_ALLOCATES}\b"
    r"|\w*alloc\w*[^:]{0,60} failed|failed \w+ allocation"
    r"|(?:not enough|insufficient|no available|lack of) (?:\w+ ){0,2}memory"
    r"|exceeds? (?:\w+ ){0,3}memory|larger than the available (?:\w+ ){0,2}memory"
    r")",
    re.IGNORECASE,
)
"""A lack of memory, in the words of backends, languages and the system."""

_LOCKED = re.compile(r"failed to (?:m|Virtual)lock\b", re.IGNORECASE)

_ERROR = re.compile(
    r"\berrors?\b(?!\s*[:=]\s*0\b)|_ERROR\b|_ERROR_|\w(?:Error|Exception)\b|\bexception\b"
    r"|\bfatal\b|\bpanic|\babort|ASSERT|assertion|terminate called|\bwhat\(\):"
    r"|\bfail(?:ed|ure|s)\b(?!\s*[:=]\s*0\b)|segmentation fault|\bcritical\b",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r"exiting|shutting down|cleaning up|failed to (?:load|create|initiali[sz]e)\b"
    r"|failed to (?:start|launch)\b|loading error|root cause|(?:see|logged) above"
    r"|engine core|core proc|child process|caught (?:at|in)|core dumped|^aborted"
    r"|terminate called|terminating (?:due|with)|Traceback|during handling"
    r"|direct cause|to show complete usage|^\S*: (?:\w+ )?error$",
    re.IGNORECASE,
)
"""Follows another line that says what was wrong, or ends a program for it."""

_DENIAL = re.compile(
    r"\bno (?:\w+ ){1,3}(?:is|are|was|were|found)\b|\bnot\b|n't\b|\bcannot\b|\bunable\b"
    r"|\b(?:unknown|unsupported|invalid|missing|too|denied|refused|exceeds?|required)\b"
    r"|mismatch|incompatib|corrupt|unexpected|insufficient",
    re.IGNORECASE,
)
"""What a line says before others that only say that something failed."""

_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
_RAISED = re.compile(r"(?:^|\s)[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b: ?\S")
"""How Python ends a traceback, perhaps behind the words of a logger."""

_USAGE = re.compile(r"usage: ", re.IGNORECASE)
_OF_USAGE = re.compile(r"\s|-|usage:|options:", re.IGNORECASE)
_FRAME = re.compile(
    r'\s*(?:#\d+ |at 0x|File "|\^+$|\[New LWP|\[Thread )|.*\.so[.\d]*\('
)
"""Of a stack."""


_RAISES = re.compile(r"\s+raise\b")
"""Code that a traceback quotes above what was raised."""


def printable_line_beginning(line: str) -> str:
    """The beginning of *line* without terminal escapes and control characters."""
    shown = line[:LINE_CHARACTERS]
    if shown.isprintable():
        return shown
    bare = _ANSI.sub("", shown)
    return "".join(c if c.isprintable() or c == "\t" else " " for c in bare)


def find_trouble_by_signs(signs: Signs, lines: Iterable[str]) -> Trouble | None:
    """
    The first of *lines* with a sign; None without one.

    Earlier *signs* win over earlier lines.
    """
    everything = [line for line in lines if not _RAISES.match(line)]
    for status, sign in signs:
        for line in everything:
            if sign.search(line):
                return Trouble(status, one_line(line))
    return None


def find_most_telling_trouble(lines: Iterable[str]) -> Trouble | None:
    """
    The most telling of the last *lines* of a program that ended; None if none is.

    What is raised in Python is told by its last line, what C and C++ log by the first
    of those that belong together. A line that only says that something failed counts
    if none says what, or denies something right before it.
    """
    ending = _without_usage_and_stacks(lines)[-LAST_COMPLAINTS:]
    block = _last_error_lines(ending)
    firm = [line for line in block if not _WARNING.search(line)]
    causes = [line for line in firm if not _CONSEQUENCE.search(line)]
    raised = [line for line in causes if _RAISED.search(line)]
    found = (
        raised[-1:]
        or causes[:1]
        or _denial_line_before_error(ending)
        or firm[:1]
        or block[:1]
    )
    if not found:
        return None
    status = Status.OUT_OF_MEMORY if _LOCKED.search(found[0]) else Status.CRASHED
    thrown = _RAISED.search(found[0])
    return Trouble(status, one_line(found[0][thrown.start() if thrown else 0 :]))


def _without_usage_and_stacks(lines: Iterable[str]) -> list[str]:
    """*lines* without blank ones, and those of stacks and of a usage text."""
    kept: list[str] = []
    is_usage = False
    for line in lines:
        is_usage = is_usage or bool(_USAGE.match(line))
        is_shown = not (is_usage and _OF_USAGE.match(line))
        if line.strip() and is_shown and not _FRAME.match(line):
            kept.append(line)
    return kept


def _last_error_lines(lines: Sequence[str]) -> list[str]:
    """The last complaint, and those before it that belong to it; empty without one."""
    at = [at for at, line in enumerate(lines) if _ERROR.search(line)]
    begin = len(at)
    while begin > 0 and (begin == len(at) or at[begin] - at[begin - 1] <= GAP_LINES):
        begin -= 1
    return [lines[index] for index in at[begin:]]


def _denial_line_before_error(lines: Sequence[str]) -> list[str]:
    """The last line that denies something, right before the first error; or empty."""
    first = next((n for n, line in enumerate(lines) if _ERROR.search(line)), 0)
    return [
        line
        for line in reversed(lines[max(0, first - GAP_LINES) : first])
        if _DENIAL.search(line)
    ][:1]
