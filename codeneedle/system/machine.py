"""
The machine: processor, cores, memory, system, free disk, and memory that a process
holds on devices.
"""

import functools
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.system.files import exists, expanded

_ASK_TIMEOUT_S = 10.0
_GIB = 1 << 30

CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container its limits; absent elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """
    What a sweep should know about the machine.

    Attributes:
        system: Name and version: ``Debian GNU/Linux 12``, ``macOS 15``.
        architecture: ``x86_64``, ``arm64``.
        processor: Name of its model; empty where the system does not tell.
        physical_cores: Cores of its processors.
        logical_cores: Threads that they run at once.
        usable_cores: How many of these we may use: affinity and container.
        memory_bytes: Memory that we may use at most.
        available_bytes: Of it, what is free now.
        python: Version of Python.
    """

    system: str
    architecture: str
    processor: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    memory_bytes: int
    available_bytes: int
    python: str

    def phrase(self) -> str:
        """The facts on which numbers depend; the same tomorrow and after a reboot."""
        cores = f"{self.logical_cores} cores"
        if self.usable_cores < self.logical_cores:
            cores = f"{self.usable_cores} of {cores}"
        parts = (
            self.processor,
            self.architecture,
            cores,
            # Rounded: kernels keep back a little more or less of it.
            f"{round(self.memory_bytes / _GIB)} GiB",
            self.system,
        )
        return ", ".join(part for part in parts if part)


def facts() -> MachineFacts:
    """Look at the machine; takes milliseconds."""
    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or 1
    total = min(memory.total, _memory_limit() or memory.total)
    return MachineFacts(
        system=_system(),
        architecture=platform.machine(),
        processor=_processor(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_cores(),
        memory_bytes=total,
        available_bytes=available_memory_bytes(),
        python=platform.python_version(),
    )


def usable_cores() -> int:
    """Cores that we may keep busy: at least 1."""
    cores = psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _core_limit() or cores))


def available_memory_bytes() -> int:
    """Memory that could be taken now without swapping."""
    available = psutil.virtual_memory().available
    limit = _memory_limit()
    if limit is None:
        return available
    used = _number(CGROUP / "memory.current") or 0
    return max(0, min(available, limit - used))


def free_disk_bytes(folder: Path) -> int:
    """Free space where *folder* is or would be made."""
    absolute = expanded(folder).absolute()
    existing = next(path for path in (absolute, *absolute.parents) if exists(path))
    return psutil.disk_usage(str(existing)).free


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0].split('.')[0]}"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    # Without the code name, and without what changes with every update.
    return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()


def _processor() -> str:
    if sys.platform == "darwin":
        return _asked_of_sysctl()
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = [line.split(":", 1) for line in lines if ":" in line]
    found = {key.strip(): value.strip() for key, value in named}
    # x86 says the first, boards with ARM the others, if anything.
    for key in ("model name", "Model", "Hardware", "cpu"):
        if found.get(key):
            return " ".join(found[key].split())
    return ""


def _asked_of_sysctl() -> str:
    argv = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return processes.output_of(argv, timeout_s=_ASK_TIMEOUT_S).stdout.strip()
    except MachineError:
        return ""


def _core_limit() -> int | None:
    """Whole cores that the container may use; None where there is no limit."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return None
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None
    return max(1, int(quota) // int(period))


def _memory_limit() -> int | None:
    return _number(CGROUP / "memory.max")


def _number(path: Path) -> int | None:
    """What a file of the container's limits says; None for ``max`` or no file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


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
        answer = processes.output_of([program, *_QUESTION], timeout_s=ASK_TIMEOUT_S)
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
