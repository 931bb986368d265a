"""Runs are found by name."""

import os

import pytest
from made_records import made_setup

from codeneedle.records.store import NoSuchRun, Store, find_runs, run_folder

SETUP = made_setup()


def make_run(root, corpus, model, *, when=1_700_000_000):
    """A run folder with nothing but a setup, last changed at *when*."""
    store = Store(run_folder(root, corpus=corpus, model=model))
    store.adopt(SETUP)
    os.utime(store.folder / "setup.json", (when, when))
    return store


def test_a_name_finds_its_runs_newest_first(tmp_path):
    """
    A corpus with two models shows both.
    """
    make_run(tmp_path, "random-bodies", "old", when=1_700_000_000)
    make_run(tmp_path, "random-bodies", "new", when=1_700_000_001)

    found = find_runs(tmp_path, "random-bodies")

    assert ["new", "old"] == [store.folder.name for store in found]


def test_an_exact_name_wins_over_a_prefix(tmp_path):
    """
    random-bodies does not drag random-bodies-mini along.
    """
    make_run(tmp_path, "random-bodies", "m")
    make_run(tmp_path, "random-bodies-mini", "m")

    assert 1 == len(find_runs(tmp_path, "random-bodies"))
    assert 2 == len(find_runs(tmp_path, "random"))
    assert 1 == len(find_runs(tmp_path, "random-bodies-mini/m"))


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    """
    A mistyped name costs a look, not a search.
    """
    make_run(tmp_path, "jquery", "m")

    with pytest.raises(NoSuchRun) as caught:
        find_runs(tmp_path, "jqeury/m")

    assert "jquery/m" in caught.value.hint
    assert ["jquery/m"] == caught.value.known
