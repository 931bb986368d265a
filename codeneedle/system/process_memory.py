"""The memory of processes, resident and on NVIDIA devices."""

import contextlib
import functools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.system.machine import ASK_TIMEOUT_S
from codeneedle.text import MIB

NVIDIA_SMI = "nvidia-smi"


_QUESTION = (
    "--query-compute-apps=pid,used_gpu_memory",
    "--format=csv,noheader,nounits",
)


def peak_rss_bytes(pid: int) -> int | None:
    """
    Largest resident size of *pid* so far, in bytes; None if it is gone.

    ``VmHWM`` of proc(5) on Linux, the present size elsewhere.
    """
    peak = status_bytes(pid, "VmHWM")
    return _rss_bytes(pid) if peak is None else peak


def tree_peak_rss_bytes(pid: int) -> int | None:
    """
    Largest resident size of *pid* and of what it has started, in bytes; None if gone.

    Of several processes it is the sum of what each had at most.
    """
    sizes = [
        peak_rss_bytes(process) for process in processes.pids_of_tree_and_group(pid)
    ]
    present = [size for size in sizes if size is not None]
    return sum(present) if present else None


def status_bytes(pid: int, key: str) -> int | None:
    """The size *key* of ``/proc/PID/status`` in bytes; None where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return int(status.partition(f"{key}:")[2].split()[0]) << 10
    return None


def group_rss_bytes(group: int) -> int | None:
    """
    Resident memory of all processes of a process group, in bytes; None if it is gone.

    Memory that they share is counted for all of them.
    """
    sizes = [_rss_bytes(pid) for pid in processes.group_members(group)]
    present = [size for size in sizes if size is not None]
    return sum(present) if present else None


def _rss_bytes(pid: int) -> int | None:
    """Present resident size of *pid*, in bytes; None if it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def nvidia_memory_bytes(*pids: int) -> int | None:
    """
    Memory that the processes *pids* hold on all NVIDIA devices together, in bytes.

    Takes up to some seconds. None if unknown: without nvidia-smi, on macOS (where
    resident size includes it), and in containers with pids of their own.
    """
    program = nvidia_smi_path()
    if program is None:
        return None
    try:
        answer = processes.run_for_output(
            [program, *_QUESTION], timeout_s=ASK_TIMEOUT_S
        )
    except MachineError:
        return None
    if answer.returncode:
        return None
    # One line per process and device.
    sizes = [size for owner, size in _pids_and_mib(answer.stdout) if owner in pids]
    return sum(sizes) * MIB if sizes else None


@functools.cache
def nvidia_smi_path() -> str | None:
    """Path of nvidia-smi; None if there is none."""
    return None if sys.platform == "darwin" else shutil.which(NVIDIA_SMI)


def _pids_and_mib(answer: str) -> Iterator[tuple[int, int]]:
    """Pid and MiB of each line that has both."""
    for line in answer.splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal():
            yield int(pid), int(used)
