"""How much of an accelerator's memory a process holds, as its driver tells it."""

import functools
import shutil
import sys
from collections.abc import Iterator

from codeneedle import process
from codeneedle.errors import MachineError

ASK_TIMEOUT_S = 10.0
"""Long: without its daemon, a driver wakes up for each question."""

PROGRAM = "nvidia-smi"
_QUESTION = (
    "--query-compute-apps=pid,used_gpu_memory",
    "--format=csv,noheader,nounits",
)
_MIB = 1 << 20


def used_bytes(pid: int) -> int | None:
    """
    Memory that process *pid* holds on all NVIDIA devices together, in bytes.

    Takes up to some seconds. None where nobody can tell: without the driver's
    program, on macOS (where memory is shared, and the process' own size says it),
    and in containers that number their processes otherwise.
    """
    program = driver()
    if program is None:
        return None
    try:
        answer = process.output_of([program, *_QUESTION], timeout_s=ASK_TIMEOUT_S)
    except MachineError:
        return None
    if answer.returncode:
        return None
    # A process has a line for each device that it uses.
    sizes = [size for owner, size in _lines(answer.stdout) if owner == pid]
    return sum(sizes) * _MIB if sizes else None


@functools.cache
def driver() -> str | None:
    """The driver's program, looked for once; None where there is none to ask."""
    return None if sys.platform == "darwin" else shutil.which(PROGRAM)


def _lines(answer: str) -> Iterator[tuple[int, int]]:
    """The pid and the MiB of each line; those that tell no size are left out."""
    for line in answer.splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal():
            yield int(pid), int(used)
