"""The machine has no more to give: one line says what, and the same command goes on."""

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from calls import called
from injected import fill_disk
from injections import BRIEF, GRID, Folder, processes_in, put_corpus, statuses
from programs import script
from started_sweeps import (
    DIVERGENCE,
    ONE,
    PATIENCE_S,
    RUN,
    THROUGHPUT,
    TWO,
    Series,
    at,
    ended,
    going,
    impatience,
    run,
    running_child,
    told,
    until,
)

pytestmark = pytest.mark.real


@pytest.fixture
def series(folder, times, llama_server, nano):
    """Two short cells; in the quick form one."""
    return short(folder, times)


def short(folder, times):
    """A series of short cells in *folder*."""
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


def noted(series, ledger, fault, said):
    """Tell *ledger* what *fault* cost, and what was said of it."""
    saw = told(said)
    series.folder.look()
    ledger.note(fault, saw, of=series.folder)


def refused(series, ledger, fault, *arguments, code=3, words="", **changes):
    """*fault* ends the program with one line, a hint and *code*."""
    found, said = ended(series.path, *(arguments or series.arguments), **changes)
    noted(series, ledger, fault, said)
    assert code == found, (fault, said)
    assert "error: " in said, said
    assert " hint: " in said, said
    assert words in said, said
    return said


def limited(what, most):
    """Sets a limit of ours, which children inherit."""
    return lambda: resource.setrlimit(what, (most, most))


WRITES = {
    "a record": ("write a record", 1, ()),
    "the second record": ("write a record", 2, ()),
    "the base file": ("write a base file", 1, DIVERGENCE),
    "the setup": ("write a setup", 1, ()),
    "the note of a server": ("write the note of a server", 3, ()),
    "the log of a server": ("wait for a server", 2, ()),
    "a server's log, in a round": ("force a right answer", 2, ()),
    "a tool's log": ("wait for a tool", 1, THROUGHPUT),
}
"""The point at which the disk is filled, which of its calls, and what is measured."""


def test_a_disk_may_be_full_at_any_write(small_disk, ledger, times):
    series = small_disk
    first = series.arguments
    for what in list(WRITES)[: times(9, quick=1)]:
        point, call, more = WRITES[what]
        series.arguments = (*first, *more)
        faults = [at(point, call, "fill_disk")]
        refused(series, ledger, f"the disk is full: {what}", faults=faults)
        assert set(statuses(series.path)) <= {"finished", "interrupted"}
        (series.path / "filler").unlink()
        series.complete()
        series.anew()


def test_a_disk_may_be_full_at_any_moment(small_disk, ledger, times):
    series = small_disk
    chance = random.Random(4)  # noqa: S311 - no secret
    for _ in range(times(10, quick=0)):
        with going(series.path, *series.arguments) as sweep:
            with contextlib.suppress(subprocess.TimeoutExpired):
                sweep.wait(chance.uniform(0.3, 2.5))
            fill_disk(series.path)
            said, _ = sweep.communicate(timeout=PATIENCE_S)
        assert sweep.returncode in {0, 3}, said
        noted(series, ledger, "the disk is full at a random moment", said)
        (series.path / "filler").unlink()
        series.complete()
        series.anew()


def test_a_full_disk_takes_no_report_and_no_corpus(
    small_disk, ledger, times, llama_server
):
    series = small_disk
    if times(2, quick=1) == 2:
        series.complete()
        picture = series.path / RUN / "heatmap-kv.png"
        draw = ("heatmap", "tiny", "--metric", "kv")
        assert 0 == ended(series.path, *draw)[0]
        before = picture.read_bytes()
        faults = [at("draw a picture", 1, "fill_disk")]
        fault = "the disk is full: a picture"
        refused(series, ledger, fault, *draw, faults=faults)
        assert before == picture.read_bytes()
        (series.path / "filler").unlink()
    fill_disk(series.path)
    fault = "the disk is full: a corpus"
    refused(series, ledger, fault, "gen-corpus", "--out", "corpora/new.py")
    assert not list((series.path / "corpora").glob("new.py*"))
    fault = "the disk is full: the start of a sweep"
    refused(series, ledger, fault, words="is free")
    (series.path / "filler").unlink()
    series.complete()


def test_output_that_cannot_be_written_is_told_and_progress_is_not(
    series, ledger, times
):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        assert 0 == run(series.path, *series.arguments, stderr=full).returncode
        noted(series, ledger, "the disk is full: progress", "")
        grid = run(series.path, "grid", "tiny", "--csv", stdout=full)
        assert 3 == grid.returncode
        noted(series, ledger, "the disk is full: csv", grid.stderr)
    if times(2, quick=1) == 2:
        series.anew()
        reader, writer = os.pipe()
        os.close(reader)
        assert 0 == run(series.path, *series.arguments, stderr=writer).returncode
        noted(series, ledger, "whoever read the progress is gone", "")
    series.complete()


def test_a_hash_that_cannot_be_remembered_costs_nothing(
    small_disk, ledger, llama_server
):
    series = small_disk
    cache = series.path / "cache"
    cache.mkdir()
    code, said = ended(
        series.path,
        *series.arguments,
        faults=[
            at("write the hash of the weights", 1, "fill_disk"),
            at("write a setup", 1, "empty_disk"),
        ],
        variables={"CODENEEDLE_CACHE": str(cache), "LLAMA_SERVER": str(llama_server)},
    )
    assert 0 == code, said
    assert [] == list(cache.rglob("*.draft*"))
    noted(series, ledger, "the disk is full: hash of the weights", "")


def test_a_folder_that_is_read_only_is_named(small_disk, ledger, times):
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
    "in a round": ("force a right answer", 1),
    "before a record": ("write a record", 1),
    "while counting": ("start the counting server", 1),
    "before a note": ("write the note of a server", 3),
    "before a log": ("start a server process", 2),
    "between cells": ("start the server of a cell", 2),
}


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_that_is_taken_away_ends_the_sweep(series, ledger, times, how):
    """Its lock is gone with it, so another sweep may be there: nothing is written."""
    action, most = {"removed": ("remove_runs", 9), "moved": ("move_runs", 2)}[how]
    for when in list(GONE)[: times(most, quick=int(how == "removed"))]:
        point, call = GONE[when]
        fault = f"the run folder is {how} {when}"
        refused(series, ledger, fault, faults=[at(point, call, action)])
        assert not (series.path / RUN / "cells").exists()
        series.complete()
        series.anew()


def test_nothing_is_decided_by_the_time_of_day(series, ledger):
    code, said = ended(series.path, *series.arguments, faults=[("clock_set_back", {})])
    assert 0 == code, said
    cells = sorted((series.path / RUN / "cells").glob("*.json"))
    times = {json.loads(file.read_text())["started"] for file in cells}
    assert series.cells == len(times)
    noted(series, ledger, "the clock is set back", "")
    tomorrow = time.time() + 86400.0
    for file in (series.path / RUN).rglob("*"):
        os.utime(file, (tomorrow, tomorrow))
    assert "nothing to do" in series.complete()
    code, said = ended(series.path, "grid", "tiny", faults=[("clock_set_back", {})])
    assert 0 == code, said
    noted(series, ledger, "files are of tomorrow", "")


MB = 1 << 20
LIMITS = {
    "ulimit -f is too small": (resource.RLIMIT_FSIZE, (0, 8_000, 100, 3000), {1, 3}),
    "ulimit -n is small": (resource.RLIMIT_NOFILE, (8, 16, 5, 10, 32), {0, 3}),
    "ulimit -v is too small for us": (
        resource.RLIMIT_AS,
        (60 * MB, 300 * MB, 40 * MB, 100 * MB, 260 * MB, 350 * MB, 400 * MB),
        {0, 1, 3},
    ),
}
"""What is limited, to how many bytes or files, and with what the program may end."""


@pytest.mark.parametrize("fault", LIMITS)
def test_a_limit_may_be_too_small_for_us(series, ledger, times, fault):
    first, (what, limits, codes) = series.arguments, LIMITS[fault]
    for most in limits[: times(9, quick=int("-v" not in fault))]:
        code, said = ended(series.path, *series.arguments, before=limited(what, most))
        assert code in codes, (most, said)
        assert ("error: " in said) == (code == 3), (most, said)
        assert 1 != code or statuses(series.path), (most, said)
        assert code in {0, 3} or "-f" not in fault or "ulimit -f" in said, said
        assert code == 0 or "-n" not in fault or "ulimit -n" in said, said
        noted(series, ledger, fault, said if code else "")
        series.arguments = (*first, "--retry-failed")
        series.complete()
        series.anew()


def test_memory_may_be_too_little_for_a_server(series, ledger, times, llama_server):
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
        noted(series, ledger, "ulimit -v is too small for a server", said)
        (series.path / "limit").write_text("unlimited")
        series.arguments = (*series.arguments, "--retry-failed")
        series.complete()
        series.anew()


@pytest.mark.full
@pytest.mark.parametrize("who", ["us", "the server", "both"])
def test_a_suspension_shorter_than_the_limit_fails_no_cell(series, ledger, who):
    faults = [impatience(silence_s=60.0, load_s=60.0)]
    with going(series.path, *series.arguments, faults=faults) as sweep:
        server = serving(series, sweep)
        both = {"us": [sweep.pid], "the server": [server]}
        stopped = both.get(who, [sweep.pid, server])
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        assert until(
            lambda: all(is_stopped(pid) for pid in stopped),
            unless=lambda: sweep.poll() is not None,
        )
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        said, _ = sweep.communicate(timeout=PATIENCE_S)
    noted(series, ledger, f"suspended and resumed: {who}", "")
    assert 0 == sweep.returncode, said
    assert ["finished"] * series.cells == statuses(series.path)
    series.complete()


def is_stopped(pid):
    """Whether the process is suspended."""
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def serving(series, sweep):
    """Pid of a cell's server, once it has begun to answer."""

    def pair():
        return str(running_child(series.path).get("alias")).split(".")[1:2]

    def is_answering():
        (log,) = (series.path / RUN / "logs" / f"{name}.log" for name in pair())
        return log.exists() and "launch_slot_" in log.read_text(errors="replace")

    assert until(
        lambda: "q8_0" in str(pair()) and is_answering(),
        unless=lambda: sweep.poll() is not None,
    )
    return int(running_child(series.path)["pid"])


def test_two_sweeps_at_once_do_each_other_no_harm(series, ledger, times):
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
        noted(series, ledger, "two sweeps in one folder", loser)
        assert "nothing to do" in series.complete()
        series.anew()


def test_a_share_without_locks_is_good_enough(series, ledger, times):
    for name in ("ENOLCK", "EOPNOTSUPP")[: times(2, quick=1)]:
        faults = [("no_locks", {"name": name})]
        code, said = ended(series.path, *series.arguments, faults=faults)
        assert 0 == code, said
        noted(series, ledger, "a share without locks", "")
        series.complete()
        series.anew()
    assert [] == processes_in(series.path)


GOING_WRONG = {
    "the clock is set back a day": -86_400.0,
    "the clock is set ahead a year": 31_536_000.0,
}


@pytest.mark.parametrize("fault", GOING_WRONG)
def test_a_clock_that_is_set_costs_nothing(folder, ledger, nano, monkeypatch, fault):
    """Behind its first cell: durations and limits are by the monotonic clock."""
    true = time.time

    def told_time():
        return true() + GOING_WRONG[fault] * any(folder.path.rglob("cells/*.json"))

    monkeypatch.setattr(time, "time", told_time)
    put_corpus(folder.path, of=BRIEF)
    done = called(folder.path, "sweep", *GRID)
    folder.look()
    assert 0 == done.returncode, done.stderr
    assert ["finished"] * 4 == statuses(folder.path)
    ledger.note(fault, "", of=folder)


def test_a_disk_that_becomes_read_only_costs_the_cell_that_is_running(
    folder, ledger, nano, monkeypatch
):
    fault = "the disk becomes read-only meanwhile"
    true = os.open

    def refusing(path, flags, *more, **others):
        is_ours = Path(path).absolute().is_relative_to(folder.path)
        if (
            is_ours
            and flags & os.O_CREAT
            and len([*folder.path.rglob("cells/*.json")]) > 1
        ):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return true(path, flags, *more, **others)

    put_corpus(folder.path, of=BRIEF)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        ended = called(folder.path, "sweep", *GRID)
    folder.look()
    assert 3 == ended.returncode, ended.stderr
    assert "Read-only file system" in ended.stderr
    assert "Traceback" not in ended.stderr
    ledger.note(fault, ended.stderr.splitlines()[-2], of=folder)
    assert 1 == len(folder.finished)
    resumed = called(folder.path, "sweep", *GRID)
    assert 0 == resumed.returncode, resumed.stderr
    ledger.note(f"{fault}, and is writable again", "", of=folder)
