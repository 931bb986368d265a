"""Run folders: whole files, one setup, one sweep at a time."""

import os
from dataclasses import replace

import pytest
from made_records import made_record, made_round, made_setup

from codeneedle.errors import BadInput, FolderUnusable
from codeneedle.grid import Pair
from codeneedle.records import store as stores
from codeneedle.records.comparability import OtherSetup, identity, stamp
from codeneedle.records.record import BadSetup, Status, Trial
from codeneedle.records.store import Store, find_runs, run_folder

PAIR = Pair("q8_0", "q4_0")
SETUP = made_setup()
RECORD = made_record(PAIR, [made_round(SETUP.needles[0])])


@pytest.fixture
def store(tmp_path):
    """An empty run folder."""
    return Store(tmp_path)


@pytest.fixture
def file(tmp_path):
    """Where the record of `PAIR` is."""
    return tmp_path / "cells" / "q8_0-q4_0.recall.json"


def test_a_record_is_found_until_its_file_is_deleted(store, file):
    """
    What was added is there, for its pair and probe alone; there is no index.
    """
    store.add(RECORD)

    assert RECORD == store.record(PAIR, "recall")
    assert None is store.record(PAIR, "throughput")
    assert [RECORD] == list(store.records())
    file.unlink()
    assert None is store.record(PAIR, "recall")


def test_a_write_that_fails_leaves_the_old_record(store, file, monkeypatch):
    """
    A full disk costs the new record, never the old one.
    """
    store.add(RECORD)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderUnusable, match="No space left"):
        store.add(replace(RECORD, reason="newer"))

    assert RECORD == store.record(PAIR, "recall")
    assert [file] == list(file.parent.iterdir())


def test_a_folder_is_read_with_all_its_records_and_nothing_else(tmp_path):
    """
    Files of other names are no records; without a setup there is no run.
    """
    store = Store(tmp_path / "corpus" / "model")
    assert store.read() is None

    store.adopt(SETUP)
    records = [made_record(pair, []) for pair in ("f16/f16", "q8_0/q4_0")]
    for record in records:
        store.add(record)
    for name in ("0.json", "g.json", "notes.json"):
        (store.folder / "cells" / name).write_text("{}")
    found = store.read()

    assert found is not None
    assert "corpus/model" == found.name
    assert {"f16/f16", "q8_0/q4_0"} == {str(each.pair) for each in found.records}
    assert SETUP.needles == found.setup.needles


def test_another_setup_is_refused_naming_the_key_and_both_values(store):
    """
    Records of two contexts never share a folder.
    """
    store.adopt(SETUP)

    with pytest.raises(OtherSetup, match="another context: 12288, now 4096"):
        store.adopt(replace(SETUP, context=4096))


def test_a_grid_may_grow(store):
    """
    Types are no part of what must not differ, and both sittings' are kept.
    """
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
        pytest.raises(BadInput, match="another sweep"),
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


def test_a_damaged_record_is_a_cell_to_be_played_again(store, file):
    """
    One file that cannot be read hides no other, and says why it is a gap.
    """
    record = made_record(Pair("q8_0", "q8_0"), [made_round(SETUP.needles[0])])
    store.add(record)
    file.write_text('{"pair": ')

    damaged, whole = store.records()

    assert record == whole
    assert PAIR == damaged.pair
    assert Status.INTERRUPTED is damaged.status
    assert "cannot be used" in damaged.reason


def test_records_without_a_setup_are_not_adopted(store):
    """
    It is unknown what they were measured under.
    """
    store.add(RECORD)

    with pytest.raises(BadInput, match=r"no setup\.json"):
        store.adopt(SETUP)


def test_what_stands_in_the_place_of_a_record_is_put_aside(store, file):
    """
    A damaged record may still hold what was measured, so that no record overwrites it.
    """
    file.parent.mkdir()

    for damaged in (b"{", b"[]"):
        file.write_bytes(damaged)
        store.add(RECORD)
    file.unlink()
    file.mkdir()
    store.add(RECORD)
    store.add(RECORD)

    assert RECORD == store.record(PAIR, "recall")
    assert [RECORD] == list(store.records())
    aside = [f"{file.name}.damaged", *(f"{file.name}.damaged-{n}" for n in (2, 3))]
    assert [file.name, *aside] == sorted(each.name for each in file.parent.iterdir())
    assert b"{" == (file.parent / aside[0]).read_bytes()


def test_a_record_of_another_cell_is_a_gap(store, file):
    """
    A file copied to another's name is recognised by the pair inside.
    """
    store.add(RECORD)
    (file.parent / "q4_0-q4_0.recall.json").write_bytes(file.read_bytes())

    copy = store.record(Pair("q4_0", "q4_0"), "recall")

    assert Status.INTERRUPTED is copy.status
    assert "one of q8_0/q4_0, recall" in copy.reason


def stamped(setup, *, probe="recall"):
    """A record that was measured under *setup*, as an adopted one."""
    setup = replace(setup, identity=identity(setup))
    return replace(RECORD, setup=stamp(setup, probe))


@pytest.mark.parametrize(
    "other",
    [
        replace(SETUP, weights=replace(SETUP.weights, sha256="cd" * 32)),
        replace(SETUP, context=4096),
        replace(SETUP, probes={"recall": {"depth": 7}}),
    ],
)
def test_a_record_of_another_setup_is_a_gap(store, other):
    """
    Whether weights, context or the settings of its probe: it names what it is of.
    """
    store.adopt(SETUP)
    store.add(stamped(other))

    assert "one of another setup" in store.record(PAIR, "recall").reason
    assert Status.INTERRUPTED is next(store.records()).status


def test_a_record_of_its_setup_stays_one_when_the_grid_grows(tmp_path, store):
    """
    Neither types nor another probe's settings make it a foreign one.
    """
    store.adopt(SETUP)
    store.add(stamped(SETUP))
    store.adopt(replace(SETUP, types_k=("f32",), probes={"speed": {"depth": 7}}))

    assert stamped(SETUP) == Store(tmp_path).record(PAIR, "recall")


def test_a_setup_that_is_gone_is_made_anew_if_the_records_are_of_it(tmp_path, store):
    """
    Nothing that was measured is lost with the one file that says under what.
    """
    adopted = store.adopt(SETUP)
    store.add(stamped(SETUP))
    (tmp_path / "setup.json").unlink()

    with pytest.raises(BadInput, match="holds records"):
        Store(tmp_path).adopt(replace(SETUP, context=4096))

    assert adopted == Store(tmp_path).adopt(SETUP)
    assert stamped(SETUP) == Store(tmp_path).record(PAIR, "recall")


def test_a_damaged_setup_is_put_aside_if_the_records_name_theirs(tmp_path, store):
    """
    The next one to be adopted is held against them.
    """
    store.adopt(SETUP)
    store.add(stamped(SETUP))
    (tmp_path / "setup.json").write_text("{")

    assert None is store.intact_setup()
    assert tmp_path / "setup.json.damaged" == store.mend()
    assert None is store.mend()
    with pytest.raises(BadInput, match="holds records"):
        store.adopt(replace(SETUP, seed=7))
    store.adopt(SETUP)
    assert [stamped(SETUP)] == list(store.records())


def test_a_damaged_setup_of_records_that_name_none_stays(tmp_path, store):
    """
    Those of the first schema could be of any.
    """
    store.adopt(SETUP)
    store.add(RECORD)
    (tmp_path / "setup.json").write_text("{")

    with pytest.raises(BadSetup) as caught:
        store.mend()
    assert "Sweep again as before" in caught.value.hint
    assert "{" == (tmp_path / "setup.json").read_text()


def test_records_of_another_setup_are_moved_aside_as_foreign(store, file):
    """
    Hole 9: a valid record of another setup became ``.damaged``, which it is not.
    """
    store.adopt(SETUP)
    store.add(stamped(replace(SETUP, context=4096)))
    foreign = file.read_bytes()

    store.add(stamped(SETUP))

    assert foreign == file.with_name(f"{file.name}.foreign").read_bytes()
    assert stamped(SETUP) == store.record(PAIR, "recall")
    assert 2 == len(list(file.parent.iterdir()))


ODD = (Pair("a-b", "q8_0"), Pair("a_b", "q8_0"), Pair("a", "b-q8_0"))


def test_types_that_differ_have_records_of_their_own(store):
    """
    Defect 8: those of ``a-b`` and ``a_b`` had one name, and moved each other aside.
    """
    records = [made_record(pair, [made_round(SETUP.needles[0])]) for pair in ODD]
    for record in records:
        store.add(record)

    assert records == [store.record(pair, "recall") for pair in ODD]
    assert sorted(records, key=str) == sorted(store.records(), key=str)


@pytest.mark.parametrize("pair", ODD)
def test_a_record_under_its_former_name_is_found_and_replaced_there(
    tmp_path, store, pair
):
    """
    Written by a version that named the files of ``a-b`` and ``a_b`` alike.
    """
    record = made_record(pair, [made_round(SETUP.needles[0])])
    file = tmp_path / "cells" / f"{pair.old_slug}.recall.json"
    store.add(record)
    (made,) = file.parent.iterdir()
    made.rename(file)

    found = store.record(pair, "recall")
    others = [store.record(other, "recall") for other in ODD if other != pair]
    store.add(replace(record, reason="newer"))

    assert record == found
    assert "newer" == store.record(pair, "recall").reason
    assert [file] == list(file.parent.iterdir())
    assert all(not other or other.status is Status.INTERRUPTED for other in others)


def test_of_two_names_of_a_record_ours_counts(tmp_path, store):
    """
    Both are its own; it is not shown twice.
    """
    record = made_record(ODD[0], [made_round(SETUP.needles[0])])
    store.add(record)
    (made,) = (tmp_path / "cells").iterdir()
    made.with_name("a_b-q8_0.recall.json").write_bytes(made.read_bytes())

    assert [record] == list(store.records())


def test_records_of_one_probe_are_read_without_the_others(store, monkeypatch):
    """
    Defect 13: to find the reference, each cell decoded every record of the run.
    """
    probes = ("recall", "divergence", "throughput")
    for probe in probes:
        store.add(replace(made_record(PAIR, []), probe=probe))
    decode, read = stores.decode_record, []

    def reading(data, *, file):
        read.append(file)
        return decode(data, file=file)

    monkeypatch.setattr(stores, "decode_record", reading)
    (found,) = store.records("divergence")
    first = len(read)
    store.record(PAIR, "recall")

    assert "divergence" == found.probe
    assert (1, 2) == (first, len(read))


def test_a_folder_that_was_taken_away_takes_no_record(tmp_path):
    """
    Another sweep may be where it is now.
    """
    store = Store(tmp_path / "run")
    with store.locked():
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with pytest.raises(FolderUnusable, match="removed or moved"):
            store.add(made_record(PAIR, []))
        with pytest.raises(FolderUnusable, match="removed or moved"):
            store.log(PAIR)

    assert [] == list((tmp_path / "run").iterdir())


def test_a_setup_of_a_former_version_keeps_its_trial(tmp_path):
    """
    Reports show it; it is not compared.
    """
    trial = Trial(pair="q8_0/q8_0", rounds=2, tokens=20)
    stored = Store(tmp_path).adopt(replace(SETUP, trial=trial))

    assert stored == Store(tmp_path).adopt(SETUP)


def make_run(root, corpus, model, *, when=1_700_000_000):
    """A run folder with nothing but a setup, last changed at *when*."""
    store = Store(run_folder(root, corpus=corpus, model=model))
    store.adopt(SETUP)
    os.utime(store.folder / "setup.json", (when, when))
    return store


def test_a_name_finds_its_runs_newest_first(tmp_path):
    """
    A corpus with two models shows both; an exact name wins over a prefix.
    """
    make_run(tmp_path, "random-bodies", "old", when=1_700_000_000)
    make_run(tmp_path, "random-bodies", "new", when=1_700_000_001)
    make_run(tmp_path, "random-bodies-mini", "m", when=1_700_000_002)

    def found(name):
        return [store.folder.name for store in find_runs(tmp_path, name)]

    assert ["new", "old"] == found("random-bodies")
    assert ["m", "new", "old"] == found("random")
    assert ["m"] == found("random-bodies-mini/m")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    """
    A mistyped name costs a look, not a search.
    """
    make_run(tmp_path, "jquery", "m")

    with pytest.raises(BadInput, match="no sweep called") as caught:
        find_runs(tmp_path, "jqeury/m")

    assert "jquery/m" in caught.value.hint
