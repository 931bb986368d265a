"""A sweep waits for others or computes beside them, and says so."""

import contextlib
import os
import platform

from codeneedle.system import machine, machine_lock
from codeneedle.system.files import holding_lock
from codeneedle.system.machine import Load


def test_a_sweep_that_waits_tells_for_whom(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))
    other = os.getppid()
    lock = tmp_path / f"measuring-{platform.node() or 'here'}.lock"
    note, stale = (lock.with_suffix(f".{pid}-1") for pid in (other, 4_194_305))
    note.write_text("random-bodies-mini/needle-nano", encoding="utf-8")
    stale.write_text("a/b", encoding="utf-8")
    told = []

    with contextlib.ExitStack() as held:
        held.enter_context(holding_lock(lock, is_shared=True))

        def wait(who):
            told.append(who)
            held.close()

        with machine_lock.occupying_machine("c/d", exclusive=True, waiting=wait):
            mine = [each.read_text() for each in tmp_path.glob(f"*.{os.getpid()}-*")]

    assert [f"pid {other}, random-bodies-mini/needle-nano"] == told
    assert ["c/d"] == mine
    assert not stale.exists()
    assert not list(tmp_path.glob(f"*.{os.getpid()}-*"))


def test_a_sweep_that_must_not_wait_computes_beside_others(tmp_path, monkeypatch):
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path))

    with (
        machine_lock.occupying_machine("a/b", exclusive=True, waiting=None),
        machine_lock.occupying_machine("c/d", exclusive=True, waiting=None),
    ):
        pass


def test_more_programs_than_cores_are_said(golden):
    assert golden == Load(8.66, cores=2).overload_warning()
    assert "" == Load(2.0, cores=2).overload_warning()


def test_the_load_of_a_machine_is_shared_by_the_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (8.66, 5.4, 3.0))
    now = machine.present_load()

    assert (machine.usable_cores(), 8.66) == (now.cores, now.programs)
    assert (4.33, 0.5) == (Load(8.66, cores=2).per_core, Load(1.0, cores=2).per_core)
