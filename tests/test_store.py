"""Run folders: whole files, one setup, one sweep at a time."""

import os
from dataclasses import replace

import pytest
from made_records import made_record, made_round, made_setup

from codeneedle.comparability import OtherSetup
from codeneedle.grid import Pair
from codeneedle.records import BadSetup, Status
from codeneedle.store import (
    FolderBusy,
    FolderUnwritable,
    NoSuchRun,
    SetupMissing,
    Store,
    find_runs,
    run_folder,
)

PAIR = Pair("q8_0", "q4_0")
SETUP = made_setup()


def make_run(root, corpus, model, *, when=1_700_000_000):
    """A run folder with nothing but a setup, last changed at *when*."""
    store = Store(run_folder(root, corpus=corpus, model=model))
    store.adopt(SETUP)
    os.utime(store.folder / "setup.json", (when, when))
    return store


def test_a_record_is_found_again(tmp_path):
    """
    What was added is there, for its pair and probe alone.
    """
    store = Store(tmp_path)
    record = made_record(PAIR, [made_round(SETUP.needles[0])])

    store.add(record)

    assert record == store.record(PAIR, "recall")
    assert None is store.record(PAIR, "throughput")
    assert [record] == list(store.records())


def test_deleting_a_file_forgets_the_cell(tmp_path):
    """
    The folder is the truth; there is no index to go stale.
    """
    store = Store(tmp_path)
    store.add(made_record(PAIR, [made_round(SETUP.needles[0])]))

    (tmp_path / "cells" / "q8_0-q4_0.recall.json").unlink()

    assert None is store.record(PAIR, "recall")


def test_a_write_that_fails_leaves_the_old_record(tmp_path, monkeypatch):
    """
    A full disk costs the new record, never the old one.
    """
    store = Store(tmp_path)
    record = made_record(PAIR, [made_round(SETUP.needles[0])])
    store.add(record)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderUnwritable, match="No space left"):
        store.add(replace(record, reason="newer"))

    assert record == store.record(PAIR, "recall")
    left = [path.name for path in (tmp_path / "cells").iterdir()]
    assert ["q8_0-q4_0.recall.json"] == left


def test_another_setup_is_refused_naming_the_key_and_both_values(tmp_path):
    """
    Records of two contexts never share a folder.
    """
    store = Store(tmp_path)
    store.adopt(SETUP)

    with pytest.raises(OtherSetup, match="another context: 12288, now 4096"):
        store.adopt(replace(SETUP, context=4096))


def test_a_difference_deep_inside_is_named_by_its_path(tmp_path):
    """
    The message names one value, not a page of needles.
    """
    store = Store(tmp_path)
    store.adopt(SETUP)
    weights = replace(SETUP.weights, sha256="other")

    with pytest.raises(OtherSetup, match="another weights sha256"):
        store.adopt(replace(SETUP, weights=weights))


def test_a_grid_may_grow(tmp_path):
    """
    Types are no part of what must not differ, and both sittings' are kept.
    """
    store = Store(tmp_path)
    store.adopt(replace(SETUP, types_k=("q8_0",)))

    store.adopt(replace(SETUP, types_k=("q4_0", "bf16"), created="later"))

    grown = store.setup()
    assert grown
    assert ("bf16", "q8_0", "q4_0") == grown.types_k
    assert SETUP.created == grown.created


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path):
    """
    Two sweeps never write to one folder at once.
    """
    with (
        Store(tmp_path).locked(),
        pytest.raises(FolderBusy),
        Store(tmp_path).locked(),
    ):
        pass


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "a\x00b"])
def test_no_name_leads_out_of_the_root(tmp_path, name):
    """
    A name is a name, never a path.
    """
    with pytest.raises(ValueError, match="no safe folder name"):
        run_folder(tmp_path, corpus=name, model="m")


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


def test_a_damaged_record_is_a_cell_to_be_played_again(tmp_path):
    """
    One file that cannot be read hides no other, and says why it is a gap.
    """
    store = Store(tmp_path)
    record = made_record(Pair("q8_0", "q8_0"), [made_round(SETUP.needles[0])])
    store.add(record)
    (tmp_path / "cells" / "q8_0-q4_0.recall.json").write_text('{"pair": ')

    damaged, whole = store.records()

    assert record == whole
    assert PAIR == damaged.pair
    assert Status.INTERRUPTED is damaged.status
    assert "cannot be read" in damaged.reason


def test_records_without_a_setup_are_not_adopted(tmp_path):
    """
    Nobody knows what they were measured under.
    """
    store = Store(tmp_path)
    store.add(made_record(PAIR, [made_round(SETUP.needles[0])]))

    with pytest.raises(SetupMissing, match=r"no setup\.json"):
        store.adopt(SETUP)


def test_a_damaged_setup_is_not_to_be_deleted(tmp_path):
    """
    Without it the records would be anybody's.
    """
    store = Store(tmp_path)
    store.adopt(SETUP)
    (tmp_path / "setup.json").write_text("{")

    with pytest.raises(BadSetup) as caught:
        store.setup()

    assert "Move the whole folder away" in caught.value.hint
