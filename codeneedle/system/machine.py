"""
The machine: processor, cores, memory, system, free disk, and memory that a process
holds on devices.
"""

import contextlib
import functools
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from codeneedle.errors import MachineError
from codeneedle.system import processes
from codeneedle.system.files import (
    cache_folder,
    cache_unusable,
    locked,
    nap,
    nearest,
    read_regular,
    reason_of,
)
from codeneedle.text import plural, size, visible

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
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """
    The hardware and software that numbers depend on.

    Attributes:
        system: Name and version: ``Debian GNU/Linux 12``, ``macOS 15``.
        architecture: ``x86_64``, ``arm64``.
        processor: Name of its model; empty if unknown.
        physical_cores: Cores of its processors.
        logical_cores: Hardware threads.
        usable_cores: Of these, what affinity and container allow this process.
        memory_bytes: Memory, or the container's limit if that is less.
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
        """The facts that stay the same after a reboot, for comparing setups."""
        cores = f"{self.logical_cores} cores"
        if self.usable_cores < self.logical_cores:
            cores = f"{self.usable_cores} of {cores}"
        parts = (
            self.processor,
            self.architecture,
            cores,
            # Rounded: what a kernel reserves of it differs between versions.
            f"{round(self.memory_bytes / _GIB)} GiB",
            self.system,
        )
        return ", ".join(part for part in parts if part)


def facts() -> MachineFacts:
    """Collect the facts; takes milliseconds."""
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
    """Cores that this process may use, at least 1."""
    cores = psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _core_limit() or cores))


LOOK_S = 0.2
"""How long `busy_cores` looks."""


def busy_cores() -> float:
    """How many cores all programs together use now, from 0; takes `LOOK_S`."""
    return psutil.cpu_percent(interval=LOOK_S) / 100 * (psutil.cpu_count() or 1)


def available_memory_bytes() -> int:
    """Memory that can be allocated now without swapping."""
    available = psutil.virtual_memory().available
    limit = _memory_limit()
    if limit is None:
        return available
    used = _number(CGROUP / "memory.current") or 0
    return max(0, min(available, limit - used))


def free_disk_bytes(folder: Path) -> int:
    """Free space where *folder* is or would be made."""
    return psutil.disk_usage(str(nearest(folder))).free


def made_folder(
    folder: Path,
    make: Callable[[Path], Path],
    *,
    is_whole: Callable[[], bool],
    needed_bytes: int = 0,
    waiting: Callable[[], object] = nap,
) -> Path:
    """
    *folder*, below the cache folder, made unless it is whole; all of it or nothing.

    A second process waits for the first. What a process that got SIGKILL left is
    removed by the next one.

    Args:
        folder: It gets its name when *make* has returned.
        make: Takes an empty folder beside it, which is removed afterwards, and returns
            the one in there that is kept.
        is_whole: Whether *folder* is there, with all that belongs to it.
        needed_bytes: Disk that making it takes for a while.
        waiting: Called as long as another process makes it; sleeps for a moment.

    Raises:
        FolderUnusable: If it cannot be written, or the disk is too full.
    """
    prefix = f"{folder.name}.draft-"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f"{folder.name}.lock"), waiting=waiting):
            if is_whole():
                return folder
            for stale in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(stale, ignore_errors=True)
            free_bytes = free_disk_bytes(folder)
            if free_bytes < needed_bytes:
                free, needed = size(free_bytes), size(needed_bytes)
                reason = f"only {free} are free, {needed} are needed for a while"
                raise cache_unusable(folder.parent, reason)
            with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as draft:
                made = make(Path(draft))
                shutil.rmtree(folder, ignore_errors=True)
                return made.rename(folder)
    except OSError as error:
        raise cache_unusable(folder.parent, reason_of(error)) from error


def mean_load() -> float:
    """Programs that compute or wait for a core, a mean of the last minute; from 0."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0]
    return 0.0


def overload() -> str:
    """What is to be said of more programs that compute than there are cores, if so."""
    load, cores = mean_load(), usable_cores()
    if load <= cores:
        return ""
    found = f"the load of this machine is {load:.1f} on {plural(cores, 'core')}"
    return f"{found}: times are longer, and speeds lower, than without other programs"


@contextlib.contextmanager
def occupied(
    what: str, *, alone: bool, waiting: Callable[[str], object] | None
) -> Iterator[None]:
    """
    Compute in the block, beside other sweeps of this user, or without them.

    Where the cache folder has no locks, others are not noticed.

    Args:
        what: What computes, for those who wait for it.
        alone: Whether nobody else may compute meanwhile, as times are taken.
        waiting: Called with who computes, as long as it has to wait; sleeps for a
            moment each time. None: nobody is waited for.
    """
    # The cache folder may be shared with other hosts.
    path = cache_folder() / f"measuring-{platform.node() or 'here'}.lock"

    def wait() -> None:
        if waiting:
            waiting(_who_computes(path))

    # Of a lock that several hold, the system does not tell the holders everywhere.
    note = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(path, waiting=waiting and wait, is_shared=not alone)
            stack.enter_context(lock)
        with contextlib.suppress(OSError):
            note.write_text(what, encoding="utf-8")
            stack.callback(note.unlink, missing_ok=True)
        yield


def _who_computes(path: Path) -> str:
    """Process and run of one of the others that compute; empty if unknown."""
    found = ""
    for note in path.parent.glob(f"{path.stem}.*-*"):
        pid = note.suffix[1:].partition("-")[0]
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if not psutil.pid_exists(int(pid)):  # it was killed
                note.unlink()
            elif run := read_regular(note):
                found = f"pid {pid}, {visible(run.decode(errors='replace'))}"
    return found


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0].split('.')[0]}"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    # Without code name and point release, which change with updates.
    return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()


def _processor() -> str:
    if sys.platform == "darwin":
        return _sysctl_brand()
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = [line.split(":", 1) for line in lines if ":" in line]
    found = {key.strip(): value.strip() for key, value in named}
    # The first on x86, one of the others on ARM boards.
    for key in ("model name", "Model", "Hardware", "cpu"):
        if found.get(key):
            return " ".join(found[key].split())
    return ""


def _sysctl_brand() -> str:
    argv = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    try:
        return processes.output_of(argv, timeout_s=ASK_TIMEOUT_S).stdout.strip()
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


def memory_kills() -> int:
    """
    Processes that the kernel has killed for lack of memory since the machine started.

    0 where it does not tell. It counts one before that is killed (Linux 4.13).
    """
    try:
        text = VMSTAT.read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    counted = text.partition("\noom_kill ")[2].partition("\n")[0]
    return int(counted) if counted.isdecimal() else 0


_KILLS_BEFORE = memory_kills()
"""When this process began."""


def ran_out_of_memory() -> bool:
    """Whether the kernel has killed a process for it since this one began."""
    return memory_kills() > _KILLS_BEFORE


def _number(path: Path) -> int | None:
    """The number in a file of the container's limits; None for ``max`` or no file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def peak_rss_bytes(pid: int) -> int | None:
    """
    Largest resident size of *pid* so far, in bytes; None if it is gone.

    Linux keeps it (``VmHWM`` in kB, proc(5)); elsewhere, it is the present size.
    """
    seen = status_bytes(pid, "VmHWM")
    return _rss_bytes(pid) if seen is None else seen


def status_bytes(pid: int, key: str) -> int | None:
    """A size that Linux states of *pid* in kB; None where it states none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return int(status.partition(f"{key}:")[2].split()[0]) << 10
    return None


def group_rss_bytes(group: int) -> int | None:
    """
    Resident memory of all processes of a process group, in bytes; None if it is gone.

    What they share is counted for each of them.
    """
    found = [rss for pid in group_pids(group) if (rss := _rss_bytes(pid)) is not None]
    return sum(found) if found else None


def group_pids(group: int) -> list[int]:
    """The processes of the process group *group*, in ascending order."""
    return [pid for pid in psutil.pids() if _group_of(pid) == group]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended, or belongs to another user
        return None


def _rss_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def used_bytes(*pids: int) -> int | None:
    """
    Memory that the processes *pids* hold on all NVIDIA devices together, in bytes.

    Takes up to some seconds. None if unknown: without nvidia-smi, on macOS (where
    resident size includes it), and in containers with pids of their own.
    """
    program = nvidia_smi()
    if program is None:
        return None
    try:
        answer = processes.output_of([program, *_QUESTION], timeout_s=ASK_TIMEOUT_S)
    except MachineError:
        return None
    if answer.returncode:
        return None
    # One line per process and device.
    sizes = [size for owner, size in _lines(answer.stdout) if owner in pids]
    return sum(sizes) * _MIB if sizes else None


@functools.cache
def nvidia_smi() -> str | None:
    """Path of nvidia-smi, looked for once; None if there is none."""
    return None if sys.platform == "darwin" else shutil.which(NVIDIA_SMI)


def _lines(answer: str) -> Iterator[tuple[int, int]]:
    """Pid and MiB of each line that has both."""
    for line in answer.splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdecimal() and used.isdecimal():
            yield int(pid), int(used)
