"""Run folders: whole files, one setup, one sweep at a time; files as bytes."""

import contextlib
import json
import math
import os
import shutil
import types
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_records import asking_recall, made_record, made_round, made_setup, written_of

from codeneedle.cache_types import Pair
from codeneedle.errors import BadInput, FolderUnusable, SystemRefuses
from codeneedle.probes.observations import Observed
from codeneedle.records import store as stores
from codeneedle.records.comparability import (
    OtherSetup,
    setup_identity,
    setup_identity_for_probe,
)
from codeneedle.records.record import (
    SCHEMA,
    BadRecord,
    BadSetup,
    CellRecord,
    Fingerprint,
    Phases,
    Setup,
    Status,
    as_json,
    from_json,
)
from codeneedle.records.store import (
    Store,
    append_checksum,
    checked_run_folder,
    decode_record,
    decode_setup,
    encode_masked_and_sealed,
    find_stores_or_refuse,
    is_intact_if_sealed,
)
from codeneedle.report.chosen_runs import read_runs

PAIR = Pair("q8_0", "q4_0")
SETUP = made_setup()
RECORD = made_record(PAIR, [made_round(written_of(SETUP)[0])])


@pytest.fixture
def store(tmp_path):
    """An empty run folder."""
    return Store(tmp_path)


@pytest.fixture
def file(tmp_path):
    """Where the record of `PAIR` is."""
    return tmp_path / "cells" / "q8_0-q4_0.recall.json"


def test_a_record_is_found_until_its_file_is_deleted(store, file):
    store.write_record(RECORD)

    assert RECORD == store.read_record_if_there(PAIR, "recall")
    assert None is store.read_record_if_there(PAIR, "throughput")
    assert [RECORD] == list(store.read_records())
    file.unlink()
    assert None is store.read_record_if_there(PAIR, "recall")


def test_a_write_that_fails_leaves_the_old_record(store, file, monkeypatch):
    store.write_record(RECORD)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderUnusable, match="No space left"):
        store.write_record(replace(RECORD, reason="newer"))

    assert RECORD == store.read_record_if_there(PAIR, "recall")
    assert [file] == list(file.parent.iterdir())


def test_a_folder_is_read_with_all_its_records_and_nothing_else(tmp_path):
    store = Store(tmp_path / "corpus" / "model")
    assert store.read_run() is None

    store.check_and_store_setup(SETUP)
    records = [made_record(pair, []) for pair in ("f16/f16", "q8_0/q4_0")]
    for record in records:
        store.write_record(record)
    for name in ("0.json", "g.json", "notes.json"):
        (store.folder / "cells" / name).write_text("{}")
    found = store.read_run()

    assert found is not None
    assert "corpus/model" == found.name
    assert {"f16/f16", "q8_0/q4_0"} == {str(each.pair) for each in found.records}
    assert written_of(SETUP) == written_of(found.setup)


def test_a_run_is_the_same_wherever_its_folder_lies(tmp_path):
    here = Store(tmp_path / "here" / "corpus" / "model")
    here.check_and_store_setup(SETUP)
    here.write_record(RECORD)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = Store(tmp_path / "there" / "corpus" / "model")

    assert here.read_run() == there.read_run()


@pytest.mark.parametrize(
    ("lacking", "refusal"),
    [(0, contextlib.nullcontext()), (1, pytest.raises(FolderUnusable))],
)
def test_a_folder_is_used_from_64_mib_free_on(tmp_path, leave_free, lacking, refusal):
    leave_free(64 * 1024 * 1024 - lacking)

    with refusal:
        stores.refuse_unusable_folder(tmp_path)


def test_a_grid_may_grow_and_nothing_else_may_differ(store):
    store.check_and_store_setup(replace(SETUP, types_k=("q8_0",)))

    store.check_and_store_setup(
        replace(SETUP, types_k=("q4_0", "bf16"), created="later")
    )

    grown = store.read_setup()
    assert grown
    assert ("bf16", "q8_0", "q4_0") == grown.types_k
    assert SETUP.created == grown.created
    with pytest.raises(OtherSetup, match="context: 12288; now: 4096"):
        store.check_and_store_setup(replace(SETUP, context=4096))


@pytest.mark.parametrize("target", ["cells", "."])
def test_records_behind_a_link_are_neither_read_nor_taken_for_none(tmp_path, target):
    (tmp_path / "cells").symlink_to(target)

    with pytest.raises(BadInput, match="cells"):
        list(Store(tmp_path).read_records())


def test_who_holds_a_folder_is_named(tmp_path, golden):
    with (
        Store(tmp_path).make_and_lock_folder(),
        pytest.raises(BadInput) as caught,
        Store(tmp_path).make_and_lock_folder(),
    ):
        pass

    told, holder = str(caught.value).split(" (")
    assert golden == told
    assert holder.startswith(f"pid {os.getpid()} on ")


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "a\x00b"])
def test_no_name_leads_out_of_the_root(tmp_path, name):
    with pytest.raises(ValueError, match="no safe folder"):
        checked_run_folder(tmp_path, corpus=name, model="m")


def test_a_name_of_300_letters_is_refused_before_the_system_does(tmp_path, golden):
    with pytest.raises(ValueError, match="300 letters") as caught:
        checked_run_folder(tmp_path, corpus="c", model="n" * 300)
    assert golden == str(caught.value)
    assert checked_run_folder(tmp_path, corpus="c", model="n" * 200)
    with pytest.raises(ValueError, match="201 letters"):
        checked_run_folder(tmp_path, corpus="n" * 201, model="m")


def test_records_without_a_setup_are_not_adopted(store):
    store.write_record(RECORD)

    with pytest.raises(BadInput, match=r"no setup\.json"):
        store.check_and_store_setup(SETUP)


def test_what_stands_in_the_place_of_a_record_is_put_aside(store, file):
    file.parent.mkdir()

    for damaged in (b"{", b"[]"):
        file.write_bytes(damaged)
        store.write_record(RECORD)
    file.unlink()
    file.mkdir()
    store.write_record(RECORD)
    store.write_record(RECORD)

    assert RECORD == store.read_record_if_there(PAIR, "recall")
    assert [RECORD] == list(store.read_records())
    aside = [f"{file.name}.damaged", *(f"{file.name}.damaged-{n}" for n in (2, 3))]
    assert [file.name, *aside] == sorted(each.name for each in file.parent.iterdir())
    assert b"{" == (file.parent / aside[0]).read_bytes()


@pytest.mark.parametrize(
    ("pair", "change", "reason"),
    [
        ("q8_0/q4_0", lambda _: b'{"pair": ', "cannot be used"),
        ("q4_0/q4_0", lambda data: data, "one of q8_0/q4_0, recall"),
    ],
    ids=["damaged", "a copy of another cell's"],
)
def test_what_is_no_record_of_its_cell_is_a_gap(store, file, pair, change, reason):
    whole = made_record(Pair("q8_0", "q8_0"), [made_round(written_of(SETUP)[0])])
    store.write_record(whole)
    store.write_record(RECORD)
    data = file.read_bytes()
    file.unlink()
    file.with_name(f"{Pair.parse(pair).slug}.recall.json").write_bytes(change(data))

    gap = store.read_record_if_there(Pair.parse(pair), "recall")

    assert {pair: gap, "q8_0/q8_0": whole} == {
        str(r.pair): r for r in store.read_records()
    }
    assert Status.INTERRUPTED is gap.status
    assert reason in gap.reason


def stamped(setup):
    """A record that was measured under *setup*, as an adopted one."""
    setup = replace(setup, identity=setup_identity(setup))
    return replace(RECORD, setup=setup_identity_for_probe(setup, "recall"))


@pytest.mark.parametrize(
    "other",
    [
        replace(SETUP, weights=replace(SETUP.weights, sha256="cd" * 32)),
        replace(SETUP, context=4096),
        asking_recall(SETUP, {"depth": 7}),
    ],
    ids=["weights", "context", "recall"],
)
def test_a_record_of_another_setup_is_a_gap(store, golden, other):
    store.check_and_store_setup(SETUP)
    store.write_record(stamped(other))

    assert golden == store.read_record_if_there(PAIR, "recall").reason
    assert Status.INTERRUPTED is next(store.read_records()).status


def test_a_record_of_its_setup_stays_one_when_the_grid_grows(tmp_path, store):
    store.check_and_store_setup(SETUP)
    store.write_record(stamped(SETUP))
    store.check_and_store_setup(
        replace(SETUP, types_k=("f32",), probes={"speed": {"depth": 7}})
    )

    assert stamped(SETUP) == Store(tmp_path).read_record_if_there(PAIR, "recall")


def test_a_sweep_file_gives_way_to_another_one(store):
    for text in ("a = 1\n", "a = 2\n"):
        store.store_sweep_file(text)
        assert text == store.read_sweep_file_or_empty()


def test_a_setup_that_is_gone_is_made_anew_if_the_records_are_of_it(tmp_path, store):
    adopted = store.check_and_store_setup(SETUP)
    store.write_record(stamped(SETUP))
    (tmp_path / "setup.json").unlink()

    with pytest.raises(BadInput, match="holds records"):
        Store(tmp_path).check_and_store_setup(replace(SETUP, context=4096))

    assert adopted == Store(tmp_path).check_and_store_setup(SETUP)
    assert stamped(SETUP) == Store(tmp_path).read_record_if_there(PAIR, "recall")


def test_a_damaged_setup_is_put_aside_if_the_records_name_theirs(tmp_path, store):
    store.check_and_store_setup(SETUP)
    store.write_record(stamped(SETUP))
    (tmp_path / "setup.json").write_text("{")

    assert None is store.read_intact_setup()
    assert [tmp_path / "setup.json.damaged"] == store.set_damaged_setup_aside()
    assert [] == store.set_damaged_setup_aside()
    with pytest.raises(BadInput, match="holds records"):
        store.check_and_store_setup(replace(SETUP, seed=7))
    store.check_and_store_setup(SETUP)
    assert [stamped(SETUP)] == list(store.read_records())


def test_what_the_reference_sets_is_kept_beside_what_others_have_set(tmp_path, store):
    other = Store(tmp_path)
    store.check_and_store_setup(SETUP)
    assert {} == other.read_calibrations()

    store.store_calibration("retrieval", {"dials": [3]})
    other.store_calibration("divergence", {"reference": "f16/f16"})
    store.store_calibration("retrieval", {"dials": [4]})

    kept = {"retrieval": {"dials": [4]}, "divergence": {"reference": "f16/f16"}}
    assert kept == other.read_calibrations() == store.read_calibrations()
    assert (
        kept
        == store.check_and_store_setup(replace(SETUP, types_k=("q8_0",))).calibrated
    )


def test_records_that_hang_on_a_lost_setup_are_put_aside(tmp_path, store):
    store.check_and_store_setup(SETUP)
    for probe, variant in (("retrieval", ""), ("retrieval", "again"), ("recall", "")):
        store.write_record(replace(RECORD, probe=probe, variant=variant))

    store.set_probe_aside("retrieval")

    assert ["recall"] == [each.probe for each in store.read_records()]
    assert 2 == len(list((tmp_path / "cells").glob("*.uncalibrated*")))


def test_records_of_another_setup_are_moved_aside_as_foreign(store, file):
    store.check_and_store_setup(SETUP)
    store.write_record(stamped(replace(SETUP, context=4096)))
    foreign = file.read_bytes()

    store.write_record(stamped(SETUP))

    assert foreign == file.with_name(f"{file.name}.foreign").read_bytes()
    assert stamped(SETUP) == store.read_record_if_there(PAIR, "recall")
    assert 2 == len(list(file.parent.iterdir()))


def test_types_that_differ_have_records_of_their_own(store):
    """``a-b`` and ``a_b`` are alike where dashes cannot be part of a name."""
    odd = Pair("a-b", "q8_0"), Pair("a_b", "q8_0"), Pair("a", "b-q8_0")
    records = [made_record(pair, [made_round(written_of(SETUP)[0])]) for pair in odd]
    for record in records:
        store.write_record(record)

    assert records == [store.read_record_if_there(pair, "recall") for pair in odd]
    assert sorted(records, key=str) == sorted(store.read_records(), key=str)


def test_records_of_one_probe_are_read_without_the_others(store, monkeypatch):
    probes = ("recall", "divergence", "throughput")
    for probe in probes:
        store.write_record(replace(made_record(PAIR, []), probe=probe))
    decode, read = stores.decode_record, []

    def reading(data, *, file):
        read.append(file)
        return decode(data, file=file)

    monkeypatch.setattr(stores, "decode_record", reading)
    (found,) = store.read_records("divergence")
    first = len(read)
    store.read_record_if_there(PAIR, "recall")

    assert "divergence" == found.probe
    assert (1, 2) == (first, len(read))


def test_a_folder_that_was_taken_away_takes_no_record(tmp_path):
    store = Store(tmp_path / "run")
    with store.make_and_lock_folder():
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()
        with pytest.raises(FolderUnusable, match="removed or moved"):
            store.write_record(made_record(PAIR, []))
        with pytest.raises(FolderUnusable, match="removed or moved"):
            store.make_log_folder()

    assert [] == list((tmp_path / "run").iterdir())


def test_what_is_set_aside_stands_in_a_folder_of_its_own_without_locks(tmp_path):
    store = Store(tmp_path)
    for name in ("first", "second"):
        store.check_and_store_setup(
            replace(SETUP, corpus=replace(SETUP.corpus, name=name))
        )
        (store.make_log_folder() / "a.log").touch()
        with store.make_and_lock_folder():
            aside = store.set_run_aside()
        assert {"setup.json", "logs"} == {path.name for path in aside.iterdir()}
        assert name == Store(aside).read_setup().corpus.name

    assert 2 == len([path for path in tmp_path.iterdir() if path.is_dir()])


def make_run(root, corpus, model, *, when=1_700_000_000):
    """A run folder with nothing but a setup, last changed at *when*."""
    store = Store(checked_run_folder(root, corpus=corpus, model=model))
    store.check_and_store_setup(SETUP)
    os.utime(store.folder / "setup.json", (when, when))
    return store


def test_a_name_finds_its_runs_newest_first(tmp_path):
    make_run(tmp_path, "random-bodies", "old", when=1_700_000_000)
    make_run(tmp_path, "random-bodies", "new", when=1_700_000_001)
    make_run(tmp_path, "random-bodies-mini", "m", when=1_700_000_002)

    def found(name):
        return [store.folder.name for store in find_stores_or_refuse(tmp_path, name)]

    assert ["new", "old"] == found("random-bodies")
    assert ["m", "new", "old"] == found("random")
    assert ["m"] == found("random-bodies-mini/m")


@pytest.mark.parametrize("name", ["tiny", "tiny/mo"])
def test_a_run_that_must_not_be_read_is_not_called_unknown(tmp_path, monkeypatch, name):
    (tmp_path / "tiny" / "model").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root has every right

    with pytest.raises(SystemRefuses, match="Permission denied") as refused:
        find_stores_or_refuse(tmp_path, name)

    assert "ask its owner" in refused.value.hint


@pytest.mark.parametrize("level", ["sweeps", "sweeps/tiny", "sweeps/tiny/model"])
def test_a_folder_of_somebody_else_is_named_wherever_it_shuts_a_run_off(
    tmp_path, monkeypatch, level
):
    """A mode of 700 hides what is in it, and nothing else says so."""
    root = tmp_path / "sweeps"
    (root / "tiny" / "model").mkdir(parents=True)
    shut = tmp_path / level
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != shut)

    for read in (
        lambda: find_stores_or_refuse(root, "tiny/model"),
        lambda: read_runs(root),
        lambda: read_runs(root, str(root / "tiny" / "model")),
    ):
        with pytest.raises(SystemRefuses, match="Permission denied") as refused:
            read()
        assert str(shut) in str(refused.value)


@pytest.mark.parametrize("name", ["jquery/m", ""])
def test_a_folder_of_somebody_else_does_not_matter_to_a_name_of_another(
    tmp_path, monkeypatch, name
):
    shut = tmp_path / "tiny"
    shut.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != shut)

    with pytest.raises(BadInput):
        find_stores_or_refuse(tmp_path, name)


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    make_run(tmp_path, "jquery", "m")

    with pytest.raises(BadInput, match="no sweep called") as caught:
        find_stores_or_refuse(tmp_path, "jqeury/m")

    assert "jquery/m" in caught.value.hint


# Files as bytes


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\x1b[2J", "\u202e", "../../etc", "=1+1", '"\\', "\0", "</script>", "\u2028"]
)
"""Hostile as any: terminal escapes, directions, paths, formulas, null characters."""

FACTS = st.floats(allow_nan=False, allow_infinity=False, width=32)
PLAIN = {str: TEXT, float: FACTS, int: st.integers(0, 2**53)}


def any_of(hint):  # noqa: PLR0911 - a kind of type each
    """Any value of a field of that type, within its limits."""
    if get_origin(hint) is Annotated:
        number, limits = get_args(hint)
        low, high = limits.ge, limits.le
        if number is float:
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        return st.integers(low, 2**53 if high is None else high)
    if is_dataclass(hint):
        return any_made(hint)
    if get_origin(hint) is tuple and get_args(hint)[-1] is not ...:
        return st.tuples(*map(any_of, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(any_of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) in {types.UnionType, Union}:
        return st.one_of(map(any_of, get_args(hint)))
    return PLAIN[hint] if hint in PLAIN else st.from_type(hint)


def any_made(layout, **chosen):
    """Any *layout*, a dataclass; *chosen* are the strategies of single fields."""
    hints = get_type_hints(layout, include_extras=True)
    fields = {name: any_of(hints[name]) for name in hints.keys() - chosen.keys()}
    return st.builds(layout, **fields, **chosen)


RECORDS = any_made(CellRecord, observation=st.none(), schema=st.just(SCHEMA))
SETTINGS = st.dictionaries(TEXT, TEXT | st.none() | FACTS)
OBJECTS = st.dictionaries(TEXT, SETTINGS)
SETUPS = any_made(
    Setup,
    probes=st.dictionaries(TEXT, SETTINGS),
    calibrated=st.dictionaries(TEXT, SETTINGS),
    order=SETTINGS,
    schema=st.just(SCHEMA),
)


@settings(max_examples=40)
@given(record=RECORDS, seen=any_made(Observed, answers=OBJECTS, facts=SETTINGS))
def test_any_record_reads_back_as_it_was_written(record, seen):
    """Strict JSON in UTF-8, without NaN, infinity and lone surrogates."""
    record = replace(record, observation=as_json(seen))
    data = encode_masked_and_sealed(record)
    read = decode_record(data, file="x")

    assert record == read
    assert seen == from_json(read.observation, Observed, file="x")
    assert data == encode_masked_and_sealed(read)
    json.loads(data.decode("utf-8"), parse_constant=pytest.fail)


@settings(max_examples=40)
@given(setup=SETUPS)
def test_any_setup_reads_back_as_it_was_written(setup):
    assert setup == decode_setup(encode_masked_and_sealed(setup), file="x")


WRITTEN = encode_masked_and_sealed(RECORD)


@given(data=st.binary() | st.text().map(str.encode))
@example(b"[]")
@example(b"null")
@example(b"NaN")
@example(b'{"schema": %d}' % SCHEMA)
def test_what_is_no_record_is_refused_with_a_hint(data):
    for decode, error in ((decode_record, BadRecord), (decode_setup, BadSetup)):
        with pytest.raises(error) as caught:
            decode(data, file="x.json")
        assert "x.json cannot be read" in str(caught.value)
        assert caught.value.hint


@given(schema=st.integers(1, SCHEMA - 1) | st.integers(SCHEMA + 1, 10**30))
@example(schema=1)
def test_every_other_schema_is_refused_with_what_to_do(schema):
    body = json.dumps({"schema": schema, "anything": 1}).encode()

    for data in (body, append_checksum(body)):
        with pytest.raises(
            BadInput, match=f"schema {schema}, this codeneedle"
        ) as caught:
            decode_record(data, file="x")
        assert "same sweep again" in caught.value.hint


def test_a_cell_of_the_time_before_kernels_were_facts_is_refused_with_what_to_do(
    golden,
):
    body = json.dumps({"schema": SCHEMA, "status": "fallback-cpu"}).encode()

    with pytest.raises(BadInput) as caught:
        decode_record(append_checksum(body), file="a.json")
    assert golden == (str(caught.value), caught.value.hint)


@given(schema=st.integers(max_value=0) | st.booleans() | st.none() | TEXT | FACTS)
def test_what_never_was_a_schema_is_no_record(schema):
    data = json.dumps({"schema": schema}).encode()

    with pytest.raises(BadRecord):
        decode_record(data, file="x")


def test_what_is_no_number_is_stored_as_nothing():
    odd = replace(
        RECORD,
        phases=Phases(ready_s=math.nan, measure_s=math.inf, stop_s=1.0),
    )

    assert (
        Phases(stop_s=1.0)
        == decode_record(encode_masked_and_sealed(odd), file="x").phases
    )


def test_text_that_no_file_can_hold_becomes_u_fffd_and_all_else_stays():
    odd = replace(RECORD, reason="in a\udcffb", command=("--out", "a\udcffb", "c"))

    read = decode_record(encode_masked_and_sealed(odd), file="x")

    assert (
        replace(odd, reason="in a\ufffdb", command=("--out", "a\ufffdb", "c")) == read
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"finished"', '"crashed"'),
        lambda text: text.replace('"crc32": "', '"crc32": "0'),
        lambda text: json.dumps(json.loads(text) | {"crc32": None}),
        lambda text: json.dumps(json.loads(text)),
    ],
    ids=["status", "sum", "no-sum", "spaces"],
)
def test_a_record_edited_by_hand_is_told_from_one_that_was_written(edit, golden):
    with pytest.raises(BadRecord) as caught:
        decode_record(
            edit(encode_masked_and_sealed(RECORD).decode()).encode(), file="a"
        )

    assert golden == str(caught.value)


def test_white_space_at_the_end_is_no_damage():
    """Some editors end a file with a line break, others take it away."""
    assert RECORD == decode_record(WRITTEN + b"\r\n", file="a")
    assert RECORD == decode_record(WRITTEN.rstrip(), file="a")


@pytest.mark.parametrize(
    ("logprob", "is_one"),
    [(0.001, True), (0.0011, False), (-10_000.0, True), (-10_001.0, False)],
)
def test_a_log_probability_is_above_0_by_rounding_alone_and_has_a_least(
    logprob, is_one
):
    stored = {"text": "a", "logprobs": [logprob]}
    try:
        from_json(stored, Fingerprint, file="a.json")
    except BadRecord:
        assert not is_one
    else:
        assert is_one


def test_lists_of_numbers_take_one_line():
    assert b'"gaps": [5.0,4.0,6.0],\n' in WRITTEN


def test_texts_that_look_like_lists_of_numbers_stay_as_they_are():
    reply = "x = [ 1, 2 ]\ny = [\n  1,\n  2\n]\n[ \t3]"
    record = made_record("q8_0/q4_0", [made_round(written_of(SETUP)[0], reply=reply)])

    assert record == decode_record(encode_masked_and_sealed(record), file="x")


def test_one_changed_bit_anywhere_breaks_the_seal():
    data = append_checksum(b'{"number": 12345, "text": "abc"}')
    end = len(data.rstrip())

    for bit in range(8 * end):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert not is_intact_if_sealed(bytes(damaged))


def test_what_bears_no_seal_is_neither_intact_nor_broken():
    for data in (
        b"",
        b"{}",
        b'{"a": 1}',
        b'{"crc32": "no"}',
        append_checksum(b'{"a": 1}')[:-6],
    ):
        assert is_intact_if_sealed(data) is None
