"""Merging: which setups go together, what is taken from where, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_records import (
    forced_of,
    made_forced,
    made_record,
    made_round,
    made_setup,
    written_of,
)

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput
from codeneedle.records.record import Key, Status
from codeneedle.records.store import Store, checked_run_folder
from codeneedle.report.chosen_runs import read_runs
from codeneedle.sweep.merge import merge

TYPES = ("f16", "q8_0", "q4_0")
SETUP = made_setup(needles=2, types_k=TYPES, types_v=TYPES)
F16, Q8, Q4 = (Pair(name, name) for name in TYPES)


def finished(pair, text=None, ms=1.0):
    """A cell that has finished; *ms* is how long it took to write."""
    rounds = [
        made_round(needle, **{"reply": text} if text else {}, predicted_ms=ms)
        for needle in written_of(SETUP)
    ]
    return made_record(pair, rounds)


def failed(pair):
    """A cell that has not."""
    record = finished(pair)
    return replace(record, status=Status.CRASHED, reason="broke", observation=None)


def share(folder, *records, setup=SETUP, model="made"):
    """A folder of run folders with one run of *records*."""
    store = Store(checked_run_folder(folder, corpus=setup.corpus.name, model=model))
    store.check_and_store_setup(setup)
    for record in records:
        store.write_record(record)
    return folder


def merged(tmp_path, *folders):
    """What became of *folders*, and the store of the joined run."""
    ((folder, found),) = merge(folders, tmp_path / "all")
    return found, Store(folder)


def test_shares_of_hosts_that_compute_alike_become_one_run(tmp_path):
    a = share(tmp_path / "a", finished(F16), finished(Q8), failed(Q4))
    b = share(tmp_path / "b", finished(F16, ms=9.0), finished(Q4))

    found, store = merged(tmp_path, a, b)

    assert {Key(F16, "recall"): 2} == found.compared
    assert {F16, Q8, Q4} == {r.pair for r in store.read_records() if r.has_numbers}
    assert SETUP.types_k == store.read_setup().types_k
    again, store = merged(tmp_path, a, b)
    assert 3 == len(list(store.read_records()))
    folders = [each.folder for each in (store, *found.stores)]
    assert folders == [each.folder for each in again.stores]


def test_of_two_records_of_a_pair_the_one_with_more_answers_is_taken(tmp_path):
    setup = made_setup(needles=0, forced=4, types_k=TYPES, types_v=TYPES)

    def asked(functions, starts):
        record = made_record(
            F16, [], forced=map(made_forced, forced_of(setup)[:functions])
        )
        return replace(record, observation=record.observation | {"starts": starts})

    few = share(tmp_path / "few", asked(2, 2), setup=setup)
    many = share(tmp_path / "many", asked(4, 1), setup=setup)

    for folders in ((few, many), (many, few)):
        ((folder, found),) = merge(folders, tmp_path / folders[0].name / "all")
        (record,) = Store(folder).read_records()
        assert asked(4, 1).observation == record.observation
        assert {Key(F16, "recall"): 2} == found.compared


def test_a_share_without_recall_joins_one_with_it(tmp_path):
    bare = replace(SETUP, probes={})
    screening = replace(finished(F16), probe="divergence", observation={})
    a = share(tmp_path / "a", screening, finished(F16))
    b = share(tmp_path / "b", screening, setup=bare)

    for folders in ((a, b), (b, a)):
        ((folder, _),) = merge(folders, tmp_path / folders[0].name / "all")
        store = Store(folder)
        assert written_of(SETUP) == written_of(store.read_setup())
        assert {"recall", "divergence"} == {each.probe for each in store.read_records()}


def test_reports_read_shares_as_the_run_that_their_merge_is(tmp_path):
    a = tmp_path / "a" / "random-bodies" / "made-model"
    hosts = (tmp_path / "a", tmp_path / "b")
    for at, (out, pair) in enumerate(zip(hosts, (Q8, Q4), strict=True), start=1):
        share(out, finished(F16), finished(pair), model=f"made-model+share-{at}-of-2")
    _, store = merged(tmp_path, *hosts)
    paths = [str(next(out.glob("*/*"))) for out in hosts]

    (run,) = read_runs(tmp_path, *paths)
    (whole,) = read_runs(tmp_path / "all", "random-bodies/made-model")

    by_pair = {record.pair: record for record in run.records}
    assert {F16, Q8, Q4} == by_pair.keys()
    assert by_pair == {record.pair: record for record in whole.records}
    assert whole.setup == replace(run.setup, created=whole.setup.created)
    assert whole.name == run.name == store.name == "/".join(a.parts[-2:])
    (alone,) = read_runs(hosts[0], None)
    for name in ("random-bodies", "random-bodies/made-model", str(a)):
        assert [alone] == read_runs(hosts[0], name)


def test_a_whole_run_of_another_folder_is_no_share_of_a_run_of_its_name(tmp_path):
    name = "made-model"
    share(tmp_path / "a", finished(F16), finished(Q8), model=f"{name}+share-1-of-2")
    share(tmp_path / "b", finished(F16), finished(Q4), model=name)
    paths = [str(next((tmp_path / each).glob("*/*"))) for each in "ab"]

    of_share, whole = read_runs(tmp_path, *paths)

    assert {F16, Q8} == {record.pair for record in of_share.records}
    assert {F16, Q4} == {record.pair for record in whole.records}


def test_a_cell_that_was_interrupted_in_its_share_is_a_gap_with_its_reason(tmp_path):
    stopped = replace(failed(Q8), status=Status.INTERRUPTED, reason="stopped")
    for at, records in enumerate([(finished(F16), stopped), (finished(F16),)], 1):
        out = tmp_path / "all"
        share(out, *records, model=f"made-model+share-{at}-of-2")

    (run,) = read_runs(tmp_path / "all", None)

    (gap,) = [record for record in run.records if record.pair == Q8]
    assert (Status.INTERRUPTED, "stopped") == (gap.status, gap.reason)


def test_a_merge_that_was_interrupted_goes_on(tmp_path, monkeypatch):
    a = share(tmp_path / "a", finished(F16), finished(Q8))
    b = share(tmp_path / "b", finished(F16), finished(Q4))
    copy, copied = Store.copy_record_from, []

    def interrupted(*arguments):
        if copied:
            raise KeyboardInterrupt
        copied.append(copy(*arguments))

    with monkeypatch.context() as patch:
        patch.setattr(Store, "copy_record_from", interrupted)
        with pytest.raises(KeyboardInterrupt):
            merged(tmp_path, a, b)
    _, store = merged(tmp_path, a, b)

    assert {F16, Q8, Q4} == {record.pair for record in store.read_records()}


def test_records_are_taken_over_byte_by_byte(tmp_path):
    a = share(tmp_path / "a", finished(F16), finished(Q8))
    path = Path(SETUP.corpus.name, "made", "cells", "q8_0-q8_0.recall.json")
    (a / path).write_bytes((a / path).read_bytes() + b"\n\n")
    _, store = merged(tmp_path, a)
    there = store.folder / "cells" / path.name
    assert (a / path).read_bytes() == there.read_bytes()

    there.write_text("damaged")
    merged(tmp_path, a)

    assert (a / path).read_bytes() == there.read_bytes()
    assert "damaged" == there.with_name(f"{there.name}.damaged").read_text()


@pytest.mark.parametrize("key", ["context", "machine", "llama"])
def test_setups_that_differ_are_refused_with_key_and_both_values(tmp_path, key):
    ours, theirs = (8192, 4096) if key == "context" else ("this one", "that one")
    mine, other = (replace(SETUP, **{key: value}) for value in (ours, theirs))
    a = share(tmp_path / "a", finished(F16), setup=mine)
    b = share(tmp_path / "b", finished(F16), setup=other)

    with pytest.raises(BadInput) as caught:
        merged(tmp_path, a, b)

    assert f"differ in {key}: {ours} and {theirs}" in str(caught.value)
    assert not (tmp_path / "all").exists()


def test_a_reference_that_says_something_else_is_refused(tmp_path, golden):
    a = share(tmp_path / "a", finished(F16), finished(Q8))
    b = share(tmp_path / "b", finished(F16, text="another answer"), finished(Q4))

    with pytest.raises(BadInput) as caught:
        merged(tmp_path, a, b)
    assert golden == str(caught.value)
    assert not (tmp_path / "all").exists()


def test_references_that_set_something_else_are_refused_and_times_may_differ(
    tmp_path, golden
):
    def calibrated(level, wall_s):
        facts = {"dials": [{"task": "nth", "level": level}], "wall_s": wall_s}
        return replace(SETUP, calibrated={"retrieval": facts})

    a = share(tmp_path / "a", finished(F16), setup=calibrated(3, 1.0))
    b = share(tmp_path / "b", finished(F16), setup=calibrated(3, 2.0))
    c = share(tmp_path / "c", finished(F16), setup=calibrated(4, 1.0))

    _, store = merged(tmp_path, a, b)

    assert calibrated(3, 1.0).calibrated == store.read_setup().calibrated
    with pytest.raises(BadInput) as caught:
        merged(tmp_path, a, c)
    assert golden == str(caught.value)


def test_shares_without_a_common_cell_are_refused(tmp_path, golden):
    """Nothing shows that their hosts compute alike."""
    a, b = share(tmp_path / "a", finished(Q8)), share(tmp_path / "b", finished(Q4))

    with pytest.raises(BadInput) as caught:
        merged(tmp_path, a, b)
    assert golden == str(caught.value)


def test_a_record_of_another_model_in_a_share_is_left_out_and_told(tmp_path, golden):
    a = share(tmp_path / "a", finished(F16))
    b = share(tmp_path / "b", finished(F16))
    foreign = replace(finished(Q4), setup="0123456789abcdef")
    Store(b / SETUP.corpus.name / "made").write_record(foreign)

    found, store = merged(tmp_path, a, b)

    assert [F16] == [record.pair for record in store.read_records()]
    (left_out,) = found.left_out
    assert golden == left_out


def test_runs_are_joined_by_what_they_are_not_by_the_names_of_their_folders(tmp_path):
    for name, pair in (("share 1", Q8), ("share2", Q4)):
        run = Store(tmp_path / name)
        run.check_and_store_setup(SETUP)
        run.write_record(finished(F16))
        run.write_record(finished(pair))

    _, store = merged(tmp_path, tmp_path / "share 1", tmp_path / "share2")

    assert "random-bodies/made-model" == store.name
    assert {F16, Q8, Q4} == {record.pair for record in store.read_records()}


def test_a_run_that_one_of_several_sources_holds_is_refused(tmp_path, golden):
    a, b = share(tmp_path / "a", finished(F16)), share(tmp_path / "b", finished(F16))
    weights = replace(SETUP.weights, name="other")
    share(b, finished(F16), setup=replace(SETUP, weights=weights), model="other")

    with pytest.raises(BadInput) as caught:
        merge([a, b], tmp_path / "all")
    assert golden == str(caught.value)
    assert not (tmp_path / "all").exists()


def test_a_name_that_is_no_folder_name_is_refused_with_a_hint(tmp_path, golden):
    Store(tmp_path / "made-model+my page").check_and_store_setup(SETUP)

    with pytest.raises(BadInput) as caught:
        merge([tmp_path / "made-model+my page"], tmp_path / "all")
    assert golden == (str(caught.value), caught.value.hint)


def test_a_folder_without_a_run_is_refused(tmp_path, golden):
    a = share(tmp_path / "a", finished(F16))
    with pytest.raises(BadInput) as caught:
        merged(tmp_path, a, tmp_path / "nowhere")
    assert golden == str(caught.value)


@pytest.mark.parametrize("at", ["", "made-model", "made-model/cells"])
def test_a_link_in_the_target_is_not_followed(tmp_path, at):
    a, elsewhere = share(tmp_path / "a", finished(F16)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "all" / SETUP.corpus.name / at
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)

    with pytest.raises(BadInput, match="is a link"):
        merged(tmp_path, a)

    assert [] == list(elsewhere.iterdir())
