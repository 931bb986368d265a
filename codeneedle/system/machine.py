"""
The machine: processor, cores, load, free memory, and whether the kernel killed for lack
of memory.
"""

import contextlib
import datetime as dt
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
from typing_extensions import override

from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.text import one_line, plural

ASK_TIMEOUT_S = 10.0
"""For nvidia-smi and sysctl; without its daemon, the driver takes seconds to load."""

CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
"""Linux: limits of the container; absent elsewhere."""

VMSTAT = Path("/proc/vmstat")
"""Linux: what its memory management has counted since the machine started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The hardware and software that numbers depend on."""

    system: str  # name and version: ``Debian GNU/Linux 12``, ``macOS 15``
    architecture: str  # ``x86_64``, ``arm64``
    processor: str  # name of its model; empty if unknown
    physical_cores: int  # cores of its processors
    logical_cores: int  # hardware threads
    usable_cores: int  # of these, what affinity and container allow this process
    memory_bytes: int  # memory, or the container's limit if that is less
    available_bytes: int  # of it, what is free now
    python: str  # version of Python

    def phrase(self) -> str:
        """The facts that stay the same after a reboot, for comparing setups."""
        cores = f"{self.logical_cores} cores"
        if self.usable_cores < self.logical_cores:
            cores = f"{self.usable_cores} of {cores}"
        parts = (
            self.processor,
            self.architecture,
            cores,
            # Rounded: what a kernel reserves of it differs between versions.
            f"{round(self.memory_bytes / (1 << 30))} GiB",
            self.system,
        )
        return ", ".join(part for part in parts if part)


def facts() -> MachineFacts:
    """Collect the facts; takes milliseconds."""
    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or 1
    total = min(memory.total, _container_memory_limit() or memory.total)
    return MachineFacts(
        system=_system_name(),
        architecture=platform.machine(),
        processor=_processor_name(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_cores(),
        memory_bytes=total,
        available_bytes=available_memory_bytes(),
        python=platform.python_version(),
    )


def now() -> str:
    """ISO 8601 in UTC, to the second: ``2026-01-31T23:59:59+00:00``."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def usable_cores() -> int:
    """Cores that this process may use, at least 1."""
    cores = psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _container_core_limit() or cores))


def measure_busy_cores() -> float:
    """Cores that all programs together use now, from 0; takes 0.2 s."""
    return psutil.cpu_percent(interval=0.2) / 100 * (psutil.cpu_count() or 1)


def available_memory_bytes() -> int:
    """Memory that can be allocated now, in the container, without swapping."""
    available = psutil.virtual_memory().available
    limit = _container_memory_limit()
    if limit is None:
        return available
    used = _number_in_cgroup_file(CGROUP / "memory.current") or 0
    return max(0, min(available, limit - used))


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a machine is."""

    programs: float  # that compute or wait, mean of the last minute; 0 if unknown
    cores: int  # that they share

    @property
    def per_core(self) -> float:
        """Programs for each core; more than 1 wait for each other."""
        return self.programs / self.cores

    @override
    def __str__(self) -> str:
        return f"{self.programs:.1f} on {plural(self.cores, 'core')}"

    def overload_warning(self) -> str:
        """A warning if more programs compute than there are cores; else empty."""
        if self.per_core <= 1:
            return ""
        return (
            f"the load of this machine is {self}: times are longer, and speeds lower, "
            "than without other programs"
        )


def present_load() -> Load:
    """How busy this machine is now."""
    programs = 0.0
    with contextlib.suppress(OSError):
        programs = os.getloadavg()[0]
    return Load(programs, usable_cores())


def _system_name() -> str:
    """Name and version of the system, without what updates change."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0].split('.')[0]}"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    # Without code name and point release, which change with updates.
    return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()


def _processor_name() -> str:
    """Name of the processor; empty if unknown."""
    if sys.platform == "darwin":
        return _macos_processor_name()
    try:
        return parse_processor_name(CPUINFO.read_text(errors="replace"))
    except OSError:
        return ""


def parse_processor_name(cpuinfo: str) -> str:
    """Name of the processor in the text of ``/proc/cpuinfo``; empty if it has none."""
    lines = cpuinfo.splitlines()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    facts = {key.strip(): one_line(value) for key, value in pairs}
    # The first on x86, one of the others on ARM boards.
    keys = ("model name", "Model", "Hardware", "cpu")
    return next((facts[key] for key in keys if facts.get(key)), "")


def _macos_processor_name() -> str:
    """Name of the processor on macOS; empty if unknown."""
    argv = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return processes.run_for_output(argv, timeout_s=ASK_TIMEOUT_S).stdout.strip()
    except MachineError:
        return ""


def _container_core_limit() -> int | None:
    """Whole cores that the container may use; None where there is no limit."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return None
    if not quota.isdecimal() or not period.isdecimal() or not int(period):
        return None
    return max(1, int(quota) // int(period))


def _container_memory_limit() -> int | None:
    """Bytes that the container may use; None where there is no limit."""
    return _number_in_cgroup_file(CGROUP / "memory.max")


def memory_kill_count() -> int:
    """
    Processes that the kernel has killed for lack of memory since the machine started.

    0 without such a count. Linux 4.13 and later count a process before it is killed.
    """
    try:
        text = VMSTAT.read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    counted = text.partition("\noom_kill ")[2].partition("\n")[0]
    return int(counted) if counted.isdecimal() else 0


_KILLS_BEFORE = memory_kill_count()
"""`memory_kill_count` at the start of this process."""


def has_memory_kill_since_start() -> bool:
    """Whether the kernel has killed for lack of memory since this process started."""
    return memory_kill_count() > _KILLS_BEFORE


def _number_in_cgroup_file(path: Path) -> int | None:
    """The number in a file of the container's memory; None for ``max`` or no file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
