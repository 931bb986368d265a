"""
A sweep on a SLURM cluster of one node, from its start to its end.

    python scripts/cluster.py

Brings up munged, slurmctld and slurmd on the loopback device, in a temporary folder and
with two made-up GPUs; sweeps a small grid of the built-in model as an array. In the
middle the node is drained, one of its two workers is killed, and the task of the other
is requeued, as for a repair; the node comes back, and goes on with that task. Then the
array is sent again for what the killed one left, the shares are merged, and each record
is compared with that of a plain sweep. Takes everything down at the end.

Exit codes: 0, all records are the same; 1, they are not; 3, something is missing here;
130, interrupted.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from codeneedle.errors import CodeneedleError, MachineError, ToolFailed, ToolMissing
from codeneedle.records.comparability import first_observation_difference_path
from codeneedle.records.store import Store
from codeneedle.system.machine import usable_cores
from codeneedle.system.processes import free_port, run_for_output, running
from codeneedle.system.signals import interrupting_on_end_signals

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
PATHS = ("/usr/sbin", "/sbin")
"""Beside those of PATH: daemons are not on that of every user."""

TASKS = 3
CORPUS = "[generate]\nfunctions = 4\nvalue_length = 4\nname_length = 4\nseed = 7\n"
GRID = ("--corpus", "tiny", "--context", "4096", "--types", "f16,q8_0,q4_0")
"""A cell takes about a second, a share five."""
SERVER = ("--", "-t", "1")
"""As each task has one core."""
PATIENCE_S = 900.0
"""Longer than anything here takes."""

SLURM = """\
ClusterName=codeneedle
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={worker}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=1
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

GRES = """\
AutoDetect=off
NodeName={host} Name=gpu File=/dev/null
NodeName={host} Name=gpu File=/dev/zero
"""


def missing() -> ToolMissing | None:
    """What to install first; None if all is there. Nothing is installed from here."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if not absent:
        return None
    return ToolMissing(
        tool=", ".join(absent),
        reason="not found" if len(absent) == 1 else "are not found",
        hint="On Debian: apt-get install slurm-wlm munge",
    )


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def asked(*argv: str) -> str:
    """
    What a program says.

    Raises:
        ToolFailed: If it fails.
    """
    said = run_for_output(argv, timeout_s=PATIENCE_S, env=os.environ)
    if said.returncode:
        last = said.stderr.strip().splitlines()[-3:]
        raise ToolFailed(tool=argv[0], reason=" / ".join(last), hint=" ".join(argv))
    return said.stdout.strip()


def until(what: str, is_so: Callable[[], bool]) -> None:
    """
    Wait until *is_so*.

    Raises:
        MachineError: If that takes too long.
    """
    limit_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > limit_s:
            raise MachineError(f"waited in vain: {what}", hint="See the logs above.")
        time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A cluster of one node in *folder*, for the length of the block."""
    host = socket.gethostname().split(".")[0]
    facts = {
        "folder": folder,
        "host": host,
        "user": getpass.getuser(),
        "cores": usable_cores(),
        "control": free_port("127.0.0.1"),
        "worker": free_port("127.0.0.1"),
    }
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(SLURM.format(**facts))
    (folder / "gres.conf").write_text(GRES.format(**facts))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    munge = {"key": "key-file", "socket": "socket", "pid": "pid-file"}
    munge |= {"log": "log-file", "seed": "seed-file"}
    options = [f"--{option}={folder}/munge.{name}" for name, option in munge.items()]
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    daemons = {
        "munged": ["-F", "--force", *options],
        "slurmctld": ["-D"],
        "slurmd": ["-D", "-N", host],
    }
    with contextlib.ExitStack() as stack:
        for name, arguments in daemons.items():
            program = str(shutil.which(name))
            log = folder / f"{name}.log"
            env = dict(os.environ)
            stack.enter_context(running([program, *arguments], env=env, log=log))
            if name == "munged":
                until("munge", (folder / "munge.socket").exists)
        try:
            until("the node", lambda: _state() == "idle")
            say(f"one node: {asked('sinfo', '-N', '-h', '-o', '%N %c cores %G %t')}")
            yield
        except CodeneedleError:
            for name in daemons:
                log_text = (folder / f"{name}.log").read_text(errors="replace")
                say(f"{name}: ... {log_text[-1500:]}")
            raise
        finally:
            _cancel_all()


def _state() -> str:
    said = run_for_output(
        ("sinfo", "-N", "-h", "-o", "%t"), timeout_s=60.0, env=os.environ
    )
    return said.stdout.strip().rstrip("*")


def _cancel_all() -> None:
    with contextlib.suppress(CodeneedleError):
        asked("scancel", "--user", getpass.getuser())
        until("an empty queue", lambda: not asked("squeue", "-h"))


def codeneedle(*words: str) -> str:
    """What the command says."""
    return asked(sys.executable, "-m", "codeneedle", *words)


def finished(folder: Path) -> int:
    """Records below *folder*."""
    return len(list(folder.rglob("cells/*.json")))


def array() -> Path:
    """The script of the array; its tasks say which device they have."""
    words = ("--tasks", str(TASKS), "--gpus", "1", "--cpus", "1", "--out", "shares")
    script = Path(codeneedle("submit", "slurm", *GRID, *words, *SERVER))
    device = 'echo "task $SLURM_ARRAY_TASK_ID: device $CUDA_VISIBLE_DEVICES"\n'
    script.write_text(script.read_text().replace("exec ", f"{device}exec "))
    return script


def kill_a_worker() -> str:
    """SIGKILL one of the sweeps that run as tasks; which share it had."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with contextlib.suppress(psutil.Error):
            if "--shard" in words and process.cwd() == str(Path.cwd()):
                process.send_signal(signal.SIGKILL)
                return str(words[words.index("--shard") + 1])
    raise MachineError("no sweep runs that could be killed", hint="See shares/*.log.")


def swept_in_tasks(script: Path) -> None:
    """The whole grid by tasks, with a worker killed and the node drained."""
    shares, host = Path("shares"), socket.gethostname().split(".")[0]
    say(asked("sbatch", str(script)))
    until("two finished cells", lambda: finished(shares) >= 2)  # noqa: PLR2004
    asked("scontrol", "update", f"nodename={host}", "state=drain", "reason=a test")
    say(f"drained the node: {_state()}, {finished(shares)} records; {_tasks()}")
    say(f"killed the sweep of share {kill_a_worker()}")
    until("the end of its task", lambda: len(_tasks("running")) < 2)  # noqa: PLR2004
    for task in _tasks("running"):
        asked("scontrol", "requeue", task)
        say(f"requeued task {task}")
    until("an empty node", lambda: _state() == "drain")
    say(f"the node is empty: {_state()}, {finished(shares)} records; {_tasks()}")
    asked("scontrol", "update", f"nodename={host}", "state=resume")
    until("the array", lambda: not _tasks())
    say(f"the array is over: {finished(shares)} records; it is sent again")
    say(asked("sbatch", str(script)))
    until("the array", lambda: not _tasks())


def _tasks(state: str = "pending,running,completing") -> list[str]:
    """Those in the queue, as ``1_2``."""
    return asked("squeue", "-h", "--array", "-o", "%i", "-t", state).splitlines()


def differences(plain: Store, merged: Store) -> list[str]:
    """In what the records of two runs differ, but for times; a line each."""
    ours = {(record.pair, record.probe): record for record in plain.read_records()}
    theirs = {(record.pair, record.probe): record for record in merged.read_records()}
    found = [
        f"{pair}, {probe}: only one has it" for pair, probe in ours.keys() ^ theirs
    ]
    for key in ours.keys() & theirs.keys():
        if not (ours[key].has_numbers and theirs[key].has_numbers):
            found.append(f"{key[0]}: {ours[key].status}, {theirs[key].status}")
        elif place := first_observation_difference_path(
            ours[key].observation, theirs[key].observation
        ):
            found.append(f"{key[0]}: differs from {place} on")
    return found


def main() -> int:
    """Do all of it; the exit code."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *PATHS])
    try:
        absent = missing()
        if absent:
            raise absent
        with tempfile.TemporaryDirectory(prefix="codeneedle-cluster-") as name:
            folder = Path(name)
            (folder / "work" / "corpora").mkdir(parents=True)
            os.chdir(folder / "work")
            Path("corpora/tiny.toml").write_text(CORPUS)
            try:
                with interrupting_on_end_signals():
                    return _compared(folder)
            finally:
                os.chdir("/")
    except KeyboardInterrupt:
        say("interrupted; everything is taken down")
        return 130
    except CodeneedleError as error:
        say(f"error: {error}\n hint: {error.hint}")
        return 3


def _compared(folder: Path) -> int:
    say("a plain sweep, to compare with")
    codeneedle("sweep", *GRID, "--out", "plain", *SERVER)
    with cluster(folder):
        swept_in_tasks(array())
    for log in sorted(Path("shares").glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        starts = [line for line in lines if line.startswith("task ")]
        say(f"{log.name}: {', then '.join(starts)}")
    merged = codeneedle("merge", "shares", "--out", "merged")
    (plain,) = Path("plain").glob("*/*")
    found = differences(Store(plain), Store(Path(merged)))
    for line in found:
        say(line)
    say(f"{finished(Path(merged))} records merged, {len(found)} differ from the plain")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
