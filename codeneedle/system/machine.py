"""
The machine: processor, cores, load, memory, that of processes and on devices; which
sweeps wait for each other, and whether the kernel killed for lack of memory.
"""

import contextlib
import datetime as dt
import functools
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from typing_extensions import override

from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.system.files import cache_folder, holding_lock, read_regular
from codeneedle.text import MIB, escape_invisible, one_line, plural

ASK_TIMEOUT_S = 10.0
"""For nvidia-smi and sysctl; without its daemon, the driver takes seconds to load."""

CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
"""Linux: limits of the container; absent elsewhere."""

VMSTAT = Path("/proc/vmstat")
"""Linux: what its memory management has counted since the machine started."""

NVIDIA_SMI = "nvidia-smi"
_QUESTION = (
    "--query-compute-apps=pid,used_gpu_memory",
    "--format=csv,noheader,nounits",
)


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
    total = min(memory.total, _memory_limit() or memory.total)
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
    return max(1, min(cores, _core_limit() or cores))


def busy_cores() -> float:
    """Cores that all programs together use now, from 0; takes 0.2 s."""
    return psutil.cpu_percent(interval=0.2) / 100 * (psutil.cpu_count() or 1)


def available_memory_bytes() -> int:
    """Memory that can be allocated now, in the container, without swapping."""
    available = psutil.virtual_memory().available
    limit = _memory_limit()
    if limit is None:
        return available
    used = _number_in(CGROUP / "memory.current") or 0
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


@contextlib.contextmanager
def occupying_machine(
    what: str, *, exclusive: bool, waiting: Callable[[str], object] | None
) -> Iterator[None]:
    """
    Compute in the block, beside other sweeps of this user, or without them.

    Where the cache folder has no locks, others are not noticed.

    Args:
        what: Run that computes, shown to sweeps that wait.
        exclusive: Whether no other sweep may compute meanwhile, as times are measured.
        waiting: Called with process and run of another sweep while it computes; sleeps
            for a moment. None does not wait.
    """
    # The cache folder may be shared with other hosts.
    path = cache_folder() / f"measuring-{platform.node() or 'here'}.lock"

    def wait() -> None:
        if waiting:
            waiting(_who_computes(path))

    # Not every system names the holders of a shared lock.
    note = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = holding_lock(path, waiting=waiting and wait, is_shared=not exclusive)
            stack.enter_context(lock)
        with contextlib.suppress(OSError):
            note.write_text(what, encoding="utf-8")
            stack.callback(note.unlink, missing_ok=True)
        yield


def _who_computes(path: Path) -> str:
    """Process and run of another sweep that computes; empty if unknown."""
    who = ""
    for note in path.parent.glob(f"{path.stem}.*-*"):
        pid = note.suffix[1:].partition("-")[0]
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if not psutil.pid_exists(int(pid)):  # it was killed
                note.unlink()
            elif run := read_regular(note):
                who = f"pid {pid}, {escape_invisible(run.decode(errors='replace'))}"
    return who


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
        return _sysctl_brand()
    try:
        return processor_in(CPUINFO.read_text(errors="replace"))
    except OSError:
        return ""


def processor_in(cpuinfo: str) -> str:
    """Name of the processor in the text of ``/proc/cpuinfo``; empty if it has none."""
    lines = cpuinfo.splitlines()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    facts = {key.strip(): one_line(value) for key, value in pairs}
    # The first on x86, one of the others on ARM boards.
    keys = ("model name", "Model", "Hardware", "cpu")
    return next((facts[key] for key in keys if facts.get(key)), "")


def _sysctl_brand() -> str:
    """Name of the processor on macOS; empty if unknown."""
    argv = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return processes.run_for_output(argv, timeout_s=ASK_TIMEOUT_S).stdout.strip()
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
    """Bytes that the container may use; None where there is no limit."""
    return _number_in(CGROUP / "memory.max")


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


def ran_out_of_memory() -> bool:
    """Whether the kernel has killed a process for it since this one started."""
    return memory_kill_count() > _KILLS_BEFORE


def _number_in(path: Path) -> int | None:
    """The number in a file of the container's memory; None for ``max`` or no file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


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
    sizes = [peak_rss_bytes(process) for process in processes.process_tree(pid)]
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
