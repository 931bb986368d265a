"""Several processes and hosts on one folder, and merges: killed, gone, late, full."""

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import sharing
from injections import Folder
from made_records import made_record, made_round, made_setup, written_of
from sharing import PAIRS, SETUP

from codeneedle.cache_types import Pair
from codeneedle.records.store import Store, run_folder
from codeneedle.sweep import merge as merging

PROGRAM = Path(sharing.__file__)


@pytest.fixture
def shared(tmp_path):
    """A working folder with the folder of a run in it, watched for losses."""
    store = Store(tmp_path / "runs" / "made")
    store.adopt(SETUP)
    return Folder(tmp_path)


def run_of(folder):
    """Where the run is."""
    return folder.path / "runs" / "made"


@contextlib.contextmanager
def started(folder, *settings):
    """A process for each of *settings*, in the shared folder; killed at the end."""
    with contextlib.ExitStack() as stack:
        several = []
        for each in settings:
            argv = [sys.executable, str(PROGRAM), str(run_of(folder)), json.dumps(each)]
            child = subprocess.Popen(
                argv,
                cwd=folder.path,
                env=os.environ | {"PYTHONPATH": str(PROGRAM.parent)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            several.append(child)
        yield several


def said(children):
    """What each said, once it has ended."""
    return [child.communicate(timeout=300)[0] for child in children]


def measured(texts):
    """The cells that were measured to their end, in all."""
    lines = "".join(texts).splitlines()
    return sorted(line.split()[1] for line in lines if line.startswith("over "))


def all_finished(folder):
    """Whether each cell has a record with numbers."""
    records = list(Store(run_of(folder)).records())
    return sorted(PAIRS) == sorted(r.pair for r in records if r.has_numbers)


ONCE = sorted(map(str, PAIRS))


def shares(number, **settings):
    """The settings of so many sweeps that have a share each."""
    return [{"share": f"{n + 1}/{number}", **settings} for n in range(number)]


def test_a_killed_share_costs_its_cell_a_second_try_and_nothing_else(
    shared, ledger, times
):
    chance = random.Random(14)  # noqa: S311 - no secret
    for at in range(times(50, quick=2)):
        folder = Folder(shared.path / str(at))
        (folder.path / "runs").mkdir(parents=True)
        with started(folder, *shares(2)) as (first, second):
            seen = [first.stdout.readline() for _ in range(chance.randrange(1, 4))]
            first.kill()
            texts = ["".join(seen), *said([first, second])]
        with started(folder, *shares(2)) as again:
            texts += said(again)
        assert [0, 0, 0] == [child.returncode for child in (second, *again)], texts
        assert all_finished(folder)
        # The killed one may have measured a cell and not stored it yet.
        assert len(measured(texts)) - len(PAIRS) in {0, 1}
        ledger.note("a share killed", of=folder)


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("the shared folder slow", shares(2, slow_s=0.1)),
        ("four at once", shares(4)),
    ],
)
def test_shares_in_one_folder_measure_each_cell_once(
    shared, ledger, times, fault, settings
):
    for at in range(times(20, quick=1)):
        folder = Folder(shared.path / str(at))
        (folder.path / "runs").mkdir(parents=True)
        with started(folder, *settings) as children:
            texts = said(children)
        assert {0} == {child.returncode for child in children}, texts
        assert ONCE == measured(texts)
        assert all_finished(folder)
        ledger.note(fault, of=folder)


def test_the_same_share_started_twice_is_refused_with_the_process_that_has_it(
    shared, ledger
):
    (settings,) = shares(1, cell_s=60)
    with started(shared, settings) as (first,):
        assert first.stdout.readline().startswith("begun")
        with started(shared, settings) as second:
            (text,) = said(second)
        assert 3 == second[0].returncode
        assert f"share 1/1 is being swept already (pid {first.pid} on " in text
    saw = text.strip().replace(str(shared.path), "...")
    ledger.note("the same share started twice", saw, of=shared)


def test_a_full_folder_ends_the_sweeps_and_they_go_on_when_there_is_room(
    shared, ledger, times
):
    for at in range(times(10, quick=1)):
        folder = Folder(shared.path / str(at))
        (folder.path / "runs").mkdir(parents=True)
        with started(folder, *shares(2, full=True)) as full:
            texts = said(full)
        assert {3} == {child.returncode for child in full}, texts
        assert "No space left on device" in texts[0]
        with started(folder, *shares(2)) as again:
            assert ONCE == measured(said(again))
        assert all_finished(folder)
        error = texts[0].splitlines()[-1].replace(str(folder.path), "...")
        ledger.note("the shared folder full", error, of=folder)


# --- merges


def finished(pair):
    """A cell that has finished."""
    setup = made_setup(needles=1)
    return made_record(pair, [made_round(needle) for needle in written_of(setup)])


@pytest.fixture
def two_runs(tmp_path):
    """Two shares of a grid, with the reference in both."""
    for at, name in enumerate("ab"):
        store = Store(run_folder(tmp_path / name, corpus="made", model="made"))
        store.adopt(SETUP)
        for pair in {Pair("f16", "f16"), *PAIRS[at::2]}:
            store.add(finished(pair))
    return [tmp_path / "a", tmp_path / "b"]


def test_a_merge_that_was_interrupted_goes_on(two_runs, ledger, tmp_path, monkeypatch):
    copy = Store.copy
    for stop_at in range(len(PAIRS)):
        left = [stop_at]

        def interrupted(*arguments, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            copy(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "copy", interrupted)
            with pytest.raises(KeyboardInterrupt):
                merging.merge(two_runs, tmp_path / str(stop_at))
        (found,) = merging.merge(two_runs, tmp_path / str(stop_at))
        stored = [r.pair for r in Store(found.folder).records() if r.has_numbers]
        assert sorted(PAIRS) == sorted(stored)
        folder = Folder(tmp_path / str(stop_at))
        ledger.note("a merge interrupted", of=folder)
