"""The machine has no more to give: one line says what, and the same command goes on."""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from faulty import (
    FILL,
    ONE,
    PATIENCE_S,
    RUN,
    SHORT,
    TWO,
    Series,
    at,
    claim,
    ended,
    going,
    is_clean,
    until,
)
from injections import Folder, Injection, error_line, processes_in, statuses
from programs import script
from stand_ins import IMPATIENT

pytestmark = pytest.mark.real

DIVERGENCE = (
    *("--probe", "divergence", "--divergence-context", "256"),
    *("--chunks", "2"),
)
THROUGHPUT = ("--probe", "throughput", "--depths", "0", "--repetitions", "1")


@pytest.fixture
def series(folder, times, llama_server, nano):
    """Two short cells; in the quick form one."""
    return short(folder, times)


def short(folder, times):
    """A series of short cells in *folder*."""
    (folder.path / "corpora").mkdir(exist_ok=True)
    (folder.path / "corpora" / "tiny.toml").write_text(SHORT, encoding="utf-8")
    return Series(folder, *(TWO if times(2, quick=1) == 2 else ONE))


@pytest.fixture
def small_disk(tmp_path, times, llama_server, nano):
    """Short cells on a disk of 80 MB, of their own."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount") or "/bin/false"
    argv = [mount, "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(place)]
    if subprocess.run(argv, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk, and only on Linux")
    try:
        yield short(Folder(place), times)
    finally:
        subprocess.run([shutil.which("umount"), "--lazy", place], check=True)


def injected(series, ledger, fault, said):
    """Tell *ledger* what *fault* cost, and what was said of it."""
    assert is_clean(said), said
    series.folder.look()
    ledger.add(
        Injection(
            group="machine",
            fault=fault,
            saw=error_line(said),
            aftermath=series.folder.aftermath(),
        )
    )


def refused(series, ledger, fault, *arguments, code=3, words="", **changes):
    """*fault* ends the program with one line, a hint and *code*."""
    found, said = ended(series.path, *(arguments or series.arguments), **changes)
    injected(series, ledger, fault, said)
    assert code == found, (fault, said)
    assert "error: " in said, said
    assert " hint: " in said, said
    assert words in said, said
    return said


def limited(what, most):
    """Sets a limit of ours, which children inherit."""
    return lambda: resource.setrlimit(what, (most, most))


WRITES = {
    "a record": ("codeneedle.records.store:Store.add", 1, ()),
    "the second record": ("codeneedle.records.store:Store.add", 2, ()),
    "the base file": ("codeneedle.engines.llama_cpp.perplexity:noted", 1, DIVERGENCE),
    "the setup": ("codeneedle.records.store:Store.adopt", 1, ()),
    "the note of a server": ("codeneedle.system.orphans:_write", 4, ()),
    "the log of a server": ("codeneedle.engines.llama_cpp.server:wait", 2, ()),
    "a server's log, in a round": ("codeneedle.engines.client:Client.complete", 2, ()),
    "a tool's log": ("codeneedle.system.processes:ends_within", 1, THROUGHPUT),
}


def test_a_disk_may_be_full_at_any_write(small_disk, ledger, times):
    """
    What had finished is kept; with room again, the same command goes on.
    """
    series = small_disk
    first = series.arguments
    for what in list(WRITES)[: times(9, quick=1)]:
        target, call, more = WRITES[what]
        series.arguments = (*first, *more)
        fault = f"the disk is full: {what}"
        refused(series, ledger, fault, prelude=at(target, call, FILL))
        assert set(statuses(series.path)) <= {"finished"}
        (series.path / "filler").unlink()
        series.complete()
        series.anew()


def test_a_disk_may_be_full_at_any_moment(small_disk, ledger, times):
    """
    While a sweep runs, somebody else takes all that is left.
    """
    series = small_disk
    chance = random.Random(4)  # noqa: S311 - no secret
    for _ in range(times(10, quick=0)):
        with going(series.path, *series.arguments) as sweep:
            with contextlib.suppress(subprocess.TimeoutExpired):
                sweep.wait(chance.uniform(0.3, 2.5))
            filler = series.path / "filler"
            subprocess.run([sys.executable, "-c", FILL], cwd=series.path, check=True)
            said, _ = sweep.communicate(timeout=PATIENCE_S)
        assert sweep.returncode in {0, 3}, said
        injected(series, ledger, "the disk is full at a random moment", said)
        filler.unlink()
        series.complete()
        series.anew()


def test_a_full_disk_takes_no_report_and_no_corpus(
    small_disk, ledger, times, llama_server
):
    """
    Each command says so; an earlier picture stays as it was.
    """
    series = small_disk
    if times(2, quick=1) == 2:
        series.complete()
        picture = series.path / RUN / "heatmap-matched.png"
        assert 0 == ended(series.path, "heatmap", "tiny")[0]
        before = picture.read_bytes()
        prelude = at("codeneedle.report.heatmap:paint", 1, FILL)
        said = "the disk is full: a picture"
        refused(series, ledger, said, "heatmap", "tiny", prelude=prelude)
        assert before == picture.read_bytes()
        (series.path / "filler").unlink()
    subprocess.run([sys.executable, "-c", FILL], cwd=series.path, check=True)
    fault = "the disk is full: a corpus"
    refused(series, ledger, fault, "gen-corpus", "--out", "corpora/new.py")
    assert not list((series.path / "corpora").glob("new.py*"))
    fault = "the disk is full: the start of a sweep"
    refused(series, ledger, fault, words="bytes are free")
    cache = {
        "CODENEEDLE_CACHE": str(series.path / "cache"),
        "LLAMA_SERVER": str(llama_server),
    }
    fault = "the disk is full: the built-in model"
    other = ("sweep", *ONE, "--out", "/dev/shm/none")  # noqa: S108 - never made
    refused(series, ledger, fault, *other, variables=cache, words="cache folder")
    (series.path / "filler").unlink()
    series.complete()


def test_output_that_cannot_be_written_is_told_and_progress_is_not(
    series, ledger, times
):
    """
    A CSV that does not fit its disk ends badly; a sweep that nobody hears goes on.
    """
    with open("/dev/full", "w") as full:  # noqa: PTH123
        code, _ = redirected(series, *series.arguments, stderr=full)
        assert 0 == code
        injected(series, ledger, "the disk is full: progress", "")
        code, said = redirected(series, "grid", "tiny", "--csv", stdout=full)
        assert 3 == code
        injected(series, ledger, "the disk is full: csv", said)
    if times(2, quick=1) == 2:
        series.anew()
        reader, writer = os.pipe()
        os.close(reader)
        code, _ = redirected(series, *series.arguments, stderr=writer)
        assert 0 == code
        injected(series, ledger, "whoever read the progress is gone", "")
    series.complete()


def redirected(series, *arguments, **streams):
    """Exit code and words of the program with one of its streams elsewhere."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    program = subprocess.run(
        [sys.executable, "-m", "codeneedle", *arguments],
        cwd=series.path,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        check=False,
        timeout=PATIENCE_S,
        **pipes,
    )
    said = program.stderr or ""
    assert is_clean(said), said
    return program.returncode, said


def test_answers_that_cannot_be_remembered_cost_nothing(
    small_disk, ledger, nano, llama_server
):
    """
    The cache is full: what llama-server says of itself is asked again each time.
    """
    series = small_disk
    cache = series.path / "cache"
    cache.mkdir()
    shutil.copy2(nano, cache)
    prelude = at("codeneedle.engines.llama_cpp.installation:_remember", 1, FILL)
    free = "import os\nos.unlink('filler')"
    prelude += at("codeneedle.models.weights:read_header", 1, free)
    code, said = ended(
        series.path,
        *series.arguments,
        prelude=prelude,
        variables={"CODENEEDLE_CACHE": str(cache), "LLAMA_SERVER": str(llama_server)},
    )
    assert 0 == code, said
    assert [] == list(cache.rglob("*.draft*"))
    injected(series, ledger, "the disk is full: answers of llama-server", "")


def test_files_may_be_bounded(series, ledger, times):
    """
    ``ulimit -f``: too small for a note, a log, or a record.
    """
    first = series.arguments
    for most in (0, 20_000, 100, 3000)[: times(4, quick=1)]:
        code, said = ended(
            series.path, *first, before=limited(resource.RLIMIT_FSIZE, most)
        )
        injected(series, ledger, "ulimit -f is too small", said)
        assert code in {1, 3}, said
        assert ("error: " in said) == (code == 3), said
        assert code == 3 or "ulimit -f" in said, said
        series.arguments = (*first, "--retry-failed")
        series.complete()
        series.anew()


def test_a_folder_that_is_read_only_is_named(small_disk, ledger, times):
    """
    Reports are still to be had.
    """
    series = small_disk
    series.complete()
    remounted(series.path, "ro")
    try:
        refused(series, ledger, "a read-only disk: sweep", words="read-only")
        if times(2, quick=1) == 1:
            return
        refused(series, ledger, "a read-only disk: heatmap", "heatmap", "tiny")
        refused(
            series,
            ledger,
            "a read-only disk: gen-corpus",
            "gen-corpus",
            words="ead-only",
        )
        code, said = ended(series.path, "grid", "tiny")
        assert 0 == code, said
    finally:
        remounted(series.path, "rw")
        series.complete()


def remounted(place, how):
    """Mount *place* anew."""
    mount = shutil.which("mount")
    subprocess.run([mount, "-o", f"remount,{how}", place], check=True)


GONE = {
    "in a round": ("codeneedle.engines.client:Client.complete", 2),
    "before a record": ("codeneedle.records.store:Store.add", 1),
    "while counting": ("codeneedle.sweep.prepare:serving", 1),
    "before a note": ("codeneedle.system.orphans:_write", 4),
    "before a log": ("codeneedle.system.orphans:running", 2),
    "between cells": ("codeneedle.probes.probe:serving", 2),
}


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_is_taken_away_ends_the_sweep(series, ledger, times, how):
    """
    Its lock is gone with it, so another sweep may be there: nothing is written.
    """
    away = {
        "removed": "import shutil\nshutil.rmtree('sweeps')",
        "moved": "import os\nos.rename('sweeps', f'away-{os.getpid()}')",
    }[how]
    for when in list(GONE)[
        : times({"removed": 9, "moved": 2}[how], quick=int(how == "removed"))
    ]:
        target, call = GONE[when]
        fault = f"the run folder is {how} {when}"
        refused(series, ledger, fault, prelude=at(target, call, away))
        assert not (series.path / RUN / "cells").exists()
        series.complete()
        series.anew()


BACK = """
import time
import codeneedle.clock
real, calls = time.time, [0]
def back():
    calls[0] += 1
    return real() - 3600.0 * calls[0]
time.time = back
codeneedle.system.processes.now = lambda: time.strftime(
    "%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(back())
)
"""


def test_nothing_is_decided_by_the_time_of_day(series, ledger):
    """
    The clock goes back an hour with each look at it, and files are of tomorrow.
    """
    code, said = ended(series.path, *series.arguments, prelude=BACK)
    assert 0 == code, said
    cells = sorted((series.path / RUN / "cells").glob("*.json"))
    times = {json.loads(file.read_text())["started"] for file in cells}
    assert series.cells == len(times)
    injected(series, ledger, "the clock is set back", "")
    tomorrow = time.time() + 86400.0
    for file in (series.path / RUN).rglob("*"):
        os.utime(file, (tomorrow, tomorrow))
    assert "nothing to do" in series.complete()
    code, said = ended(series.path, "grid", "tiny", prelude=BACK)
    assert 0 == code, said
    injected(series, ledger, "files are of tomorrow", "")


def test_memory_may_be_too_little_for_us(series, ledger, times):
    """
    ``ulimit -v``: the program says so, whichever library meets it first.
    """
    first = series.arguments
    for mb in (60, 200, 40, 80, 100, 150)[: times(9, quick=0)]:
        code, said = ended(
            series.path, *series.arguments, before=limited(resource.RLIMIT_AS, mb << 20)
        )
        assert code in {0, 1, 3}, (mb, said)
        assert 1 != code or statuses(series.path), (mb, said)
        injected(series, ledger, "ulimit -v is too small for us", said)
        series.arguments = (*first, "--retry-failed")
        series.complete()
        series.anew()


def test_memory_may_be_too_little_for_a_server(series, ledger, times, llama_server):
    """
    Each cell has its status and a reason of one line, and the last words of the log.
    """
    most = 'case "$*" in *--cache-type-k*) ulimit -v $(cat limit);; esac'
    server = script(
        series.path / "bin" / "llama-server", f'{most}\nexec {llama_server} "$@"'
    )
    series.arguments = (*series.arguments, "--llama-server", str(server))
    for mb in (100, 125, 20, 90, 115, 135)[: times(6, quick=1)]:
        (series.path / "limit").write_text(str(mb << 10))
        code, said = ended(series.path, *series.arguments)
        assert code in {0, 1}, said
        for file in (series.path / RUN / "cells").glob("*.json"):
            record = json.loads(file.read_text())
            assert record["status"] in {"finished", "out-of-memory", "crashed"}
            if record["status"] != "finished":
                assert record["log_excerpt"]
                assert "\n" not in record["reason"]
                said = f"{record['status']}: {record['reason']}"
        injected(series, ledger, "ulimit -v is too small for a server", said)
        (series.path / "limit").write_text("unlimited")
        series.arguments = (*series.arguments, "--retry-failed")
        series.complete()
        series.anew()


def test_few_files_may_be_open(series, ledger, times):
    """
    ``ulimit -n``: either it is enough, or a line says that it is not.
    """
    for most in (8, 16, 5, 10, 32)[: times(5, quick=1)]:
        code, said = ended(
            series.path, *series.arguments, before=limited(resource.RLIMIT_NOFILE, most)
        )
        assert code in {0, 3}, said
        if code:
            assert "Too many open files" in said
            assert "ulimit -n" in said
        injected(series, ledger, "ulimit -n is small", said if code else "")
        series.complete()
        series.anew()


@pytest.mark.parametrize("who", ["us", "the server", "both"])
def test_time_in_suspension_fails_no_cell(series, ledger, times, who):
    """
    Whoever was stopped in a round goes on where it was, however long it took.
    """
    if times(2, quick=1) == 1:
        pytest.skip("in the full form alone")
    silence_s = 3.0 if who != "the server" else 60.0
    patience = {"SILENCE_S": str(silence_s), "LOAD_S": "60"}
    with subprocess.Popen(
        [sys.executable, IMPATIENT, *series.arguments],
        cwd=series.path,
        env=os.environ | patience,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        start_new_session=True,
    ) as sweep:
        try:
            server = serving(series, sweep)
            stopped = {"us": [sweep.pid], "the server": [server]}.get(
                who, [sweep.pid, server]
            )
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(1.5 * min(silence_s, 3.0))  # it is time that passes here
            for pid in reversed(stopped):
                os.kill(pid, signal.SIGCONT)
            said, _ = sweep.communicate(timeout=PATIENCE_S)
        finally:
            sweep.kill()
    injected(series, ledger, f"suspended and resumed: {who}", "")
    assert 0 == sweep.returncode, said
    assert ["finished"] * series.cells == statuses(series.path)
    series.complete()


def serving(series, sweep):
    """Pid of a cell's server, once it has begun to answer."""

    def is_answering():
        log = series.path / RUN / "logs" / f"{pair()}.log"
        return log.exists() and "launch_slot_" in log.read_text(errors="replace")

    def pair():
        return (
            str(claim(series.path).get("alias")).split(".")[1:2]
            and str(claim(series.path)["alias"]).split(".")[1]
        )

    assert until(
        lambda: "q8_0" in str(pair()) and is_answering(),
        unless=lambda: sweep.poll() is not None,
    )
    return int(claim(series.path)["pid"])


def test_two_sweeps_at_once_do_each_other_no_harm(series, ledger, times):
    """
    One gets the folder; the other one is told, or finds the work done.
    """
    chance = random.Random(2)  # noqa: S311 - no secret
    for _ in range(times(10, quick=1)):
        with (
            going(series.path, *series.arguments) as first,
            going(series.path, *series.arguments) as second,
        ):
            time.sleep(0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                first.wait(chance.uniform(0.0, 0.5))
            said = [each.communicate(timeout=PATIENCE_S)[0] for each in (first, second)]
        codes = sorted([first.returncode, second.returncode])
        assert codes in ([0, 2], [0, 0]), said
        loser = next((words for words in said if "another sweep" in words), "")
        assert bool(loser) == (codes == [0, 2]), said
        injected(series, ledger, "two sweeps in one folder", loser)
        assert "nothing to do" in series.complete()
        series.anew()


def test_a_share_without_locks_is_good_enough(series, ledger, times):
    """
    Better unlocked than unable.
    """
    prelude = (
        "import errno, fcntl\n"
        "def flock(*_):\n    raise OSError(errno.{name}, 'no locks here')\n"
        "fcntl.flock = flock\n"
    )
    for name in ("ENOLCK", "EOPNOTSUPP")[: times(2, quick=1)]:
        code, said = ended(
            series.path, *series.arguments, prelude=prelude.format(name=name)
        )
        assert 0 == code, said
        injected(series, ledger, "a share without locks", "")
        series.complete()
        series.anew()
    assert [] == processes_in(series.path)
