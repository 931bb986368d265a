"""
Executes Python code that a model wrote, where it can do no harm.

    python scripts/sandbox.py          # does a sandbox work here?

A process of its own for each program, made by `unshare` of util-linux: without any
network, in a namespace of processes that ends with it, and with a root folder that
holds a Python and the system's libraries, read-only, and an empty folder in memory.
Limits of processor time, time, memory, file size and open files; it cannot start a
process or a thread. The kernel keeps all of it: Linux 5.12 or later.
"""

import ctypes
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_S = 10
"""Processor time; a busy machine does not shorten it."""

WALL_S = 600.0
"""Time, for what sleeps alone: a busy machine must not make an answer wrong."""

MEMORY_BYTES = 1 << 29
FILE_BYTES = 1 << 20
FOLDER_BYTES = 1 << 22
MOST_FILES = 32

WORK = "/work"
"""The empty folder, in the new root."""

NOBODY = 65534

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64")
"""Folders of libraries; only the Python's own one is added."""

LAST_BYTES = 200
"""Of what a program has written."""

BEGUN = b"begun\n"
"""Written when all is confined: what fails before it is no fault of the program."""

_BY_SIGNAL = 128
"""What unshare adds to the number of the signal that has ended a program."""


class NoSandbox(Exception):  # noqa: N818 - named after the fact
    """This system makes no sandbox."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    is_done: bool  # it ran to its last line
    ending: str  # why it did not, or what it wrote last


def execute(
    program: str,
    *,
    is_confined: bool = True,
    cpu_s: int = CPU_S,
    wall_s: float = WALL_S,
) -> Outcome:
    """
    Run the source of a *program* in a process of its own, and say how it ended.

    Args:
        program: Python, without any package.
        is_confined: Whether it is kept from network and files. Limits hold anyway.
        cpu_s: How much processor time it may take, in seconds.
        wall_s: How long it may take, in seconds.

    Raises:
        NoSandbox: If the program was not begun, which says nothing about it.
    """
    # Known to nothing that the program calls; ending early is no success.
    word = secrets.token_hex()
    source = f"{program}\n\nimport sys\nsys.__stdout__.write('\\n{word}')\n"
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryFile() as told:
        try:
            done = subprocess.run(
                _argv(root, cpu_s, is_confined=is_confined),
                input=source.encode(errors="surrogatepass"),
                stdout=told,
                stderr=told,
                cwd=root,
                env={},
                timeout=wall_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            done = None
        except OSError as error:
            raise NoSandbox(f"unshare: {error.strerror}") from error
        told.seek(0)
        has_begun = told.read(len(BEGUN)) == BEGUN
        told.seek(max(told.tell(), told.seek(0, os.SEEK_END) - LAST_BYTES))
        end = told.read().decode(errors="replace").rstrip()
    late = f"not done after {wall_s:g} s"
    ending = _last_line(end, done.returncode) if done else late
    if not has_begun:
        raise NoSandbox(ending)
    if done and done.returncode == 0 and end.endswith(word):
        return Outcome(is_done=True, ending="")
    return Outcome(is_done=False, ending=ending)


def refuse_without() -> None:
    """
    Refuse a system on which a confined program does not run.

    Raises:
        NoSandbox: If it does not; names the reason.
    """
    outcome = execute("import math")
    if not outcome.is_done:
        raise NoSandbox(outcome.ending)


def _last_line(end: str, code: int) -> str:
    if (number := -code if code < 0 else code - _BY_SIGNAL) > 0:
        return f"ended by {signal.Signals(number).name}"
    return end.splitlines()[-1] if end else f"ended with {code}"


def _argv(root: str, cpu_s: int, *, is_confined: bool) -> Sequence[str]:
    """The words of the process that becomes the program."""
    python = os.path.realpath(sys.executable)
    own = [python, "-I", "-S", str(Path(__file__).absolute()), python, str(cpu_s)]
    if not is_confined:
        return own
    unshare = shutil.which("unshare")
    if unshare is None:
        raise NoSandbox("there is no unshare")
    # A namespace of users gives rights in it; root has them, and gives them up.
    is_root = os.geteuid() == 0
    user = ["--net"] if is_root else ["--net", "--user", "--map-root-user"]
    others = ["--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child"]
    facts = [root, sys.base_prefix, "root" if is_root else ""]
    return [unshare, *user, *others, *own, *facts]


# --- in the new process

_NO_NAME = b"none"
_MS_BIND_ALL = 4096 | 16384
_MS_NOSUID_NODEV = 2 | 4
_SYS_MOUNT_SETATTR = 442  # on every architecture
_AT_RECURSIVE = 0x8000
_READ_ONLY_NOSUID_NODEV = 1 | 2 | 4
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: bytes, flags: int, data: str) -> None:
    done = _libc.mount(
        source.encode(), target.encode(), kind, ctypes.c_ulong(flags), data.encode()
    )
    _check(done, f"mount {target}")


def _folders(prefix: str) -> Iterator[str]:
    yield from (each for each in SYSTEM if Path(each).is_dir())
    if not prefix.startswith(SYSTEM):
        yield prefix


def _confine(root: str, prefix: str) -> None:
    """Make *root* the root folder, with all but its working folder read-only."""
    _mount("none", root, b"tmpfs", _MS_NOSUID_NODEV, "size=1m,mode=755")
    for folder in _folders(prefix):
        Path(root + folder).mkdir(parents=True)
        _mount(folder, root + folder, _NO_NAME, _MS_BIND_ALL, "")
    Path(root + WORK).mkdir()
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY_NOSUID_NODEV)
    done = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(-1),
        ctypes.c_char_p(root.encode()),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(done, "mount_setattr")
    size = f"size={FOLDER_BYTES},mode=1777"
    _mount("none", root + WORK, b"tmpfs", _MS_NOSUID_NODEV, size)
    os.chroot(root)
    os.chdir(WORK)


def _give_up_rights(*, is_root: bool) -> None:
    """Keep no capability, now or by a program; root of the machine becomes nobody."""
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if capability == 0:
        _check(-1, "prctl")
    if is_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # Another user's process would outlive its parent.
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _limit(cpu_s: int) -> None:
    """Set the limits, which hold for what is executed next."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: MOST_FILES,
        resource.RLIMIT_NPROC: 1,  # there is one already
        resource.RLIMIT_CORE: 0,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))


def _become(python: str, cpu_s: str, *confinement: str) -> None:
    """Turn this process into *python* that runs its input; confined, if it is told."""
    if confinement:
        root, prefix, user = confinement
        _confine(root, prefix)
        _give_up_rights(is_root=user == "root")
    _limit(int(cpu_s))
    os.write(sys.stdout.fileno(), BEGUN)
    os.execve(python, [python, "-I", "-S", "-B", "-"], {})  # noqa: S606 - no shell


def main(arguments: Sequence[str]) -> int:
    """Become a program, or say whether a sandbox works here; the exit code."""
    if arguments:
        _become(*arguments)
    try:
        refuse_without()
    except NoSandbox as error:
        print(f"no sandbox here: {error}", file=sys.stderr)
        return 1
    print("a sandbox works here")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
